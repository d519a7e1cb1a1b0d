"""Recalls are those of torchmetrics and the field's own loop where nothing ties."""

import numpy as np
import pytest

from leaderboard.metrics import CUTOFFS, recalls


def _drawn(seed, size=60, strength=1.5):
    """All values differ, so that every way of ranking agrees."""
    draw = np.random.default_rng(seed)
    similarity = draw.permutation(size**2).reshape(size, size) / size**2
    return (similarity + 0.2 * strength * draw.random(size) * np.eye(size)).astype(np.float64)


def _six(found):
    return [way.recall(cutoff) for way in (found.i2t, found.t2i) for cutoff in CUTOFFS]


@pytest.mark.slow  # torchmetrics takes many seconds to import
def test_recalls_are_those_of_torchmetrics():
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    torch = pytest.importorskip("torch")
    similarity = _drawn(1)
    size = len(similarity)
    queries = torch.arange(size).repeat_interleave(size)
    right = torch.eye(size, dtype=torch.bool).reshape(-1)
    expected = []
    for values in (similarity, np.ascontiguousarray(similarity.T)):
        for cutoff in CUTOFFS:
            metric = retrieval.RetrievalHitRate(top_k=cutoff)
            rate = metric(torch.from_numpy(values).reshape(-1), right, queries)
            expected.append(100 * float(rate))
    assert _six(recalls(similarity)) == pytest.approx(expected, abs=1e-4)


def test_all_figures_are_those_of_the_loop_of_the_field():
    similarity = _drawn(0, 151)
    found = recalls(similarity)
    total = 0.0
    for way, values in ((found.i2t, similarity), (found.t2i, similarity.T)):
        ranks = np.array(
            [np.where(np.argsort(row)[::-1] == i)[0][0] for i, row in enumerate(values)]
        )
        expected = [100 * np.mean(ranks < cutoff) for cutoff in CUTOFFS]
        assert [way.recall(cutoff) for cutoff in CUTOFFS] == pytest.approx(expected)
        assert way.median_rank == np.floor(np.median(ranks)) + 1
        assert way.mean_rank == pytest.approx(ranks.mean() + 1)
        assert way.mrr == pytest.approx(np.mean(1 / (ranks + 1)))
        total += sum(expected)
    assert found.rsum == pytest.approx(total)
    assert found.rsum == found.rsum_argsort == found.rsum_optimistic == found.rsum_pessimistic
