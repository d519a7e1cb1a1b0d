"""SPS: three kinds of pairs and of steps, the stable space, and whose caption is a proxy."""

import numpy as np
import pytest
import torch

from pc2_baseline.methods import sps
from pc2_baseline.modules.coteaching import DividedPairs
from pc2_baseline.modules.division import Division, divide

PLAIN = ["model.dropout=0"]
STRICT, CLEAN, NOISY = np.arange(12), np.arange(12, 18), np.arange(18, 24)
PROB = np.repeat([0.9, 0.55, 0.1], [12, 6, 6])


@pytest.fixture
def believing(on_tiny):
    """Make SPS whose other peer believes in twelve pairs strictly, in six less, and not in six."""

    def make(*overrides):
        method, pairs = on_tiny("sps", "train.warmup_epochs=1", "train.batch=24", *overrides)
        zeros = np.zeros(24, np.float32)
        own = DividedPairs(zeros, Division(np.full(24, 0.7), np.ones(24, dtype=bool)))
        method.statistics = [own, DividedPairs(zeros, Division(PROB, PROB > 0.5))]
        return method, pairs

    return make


def slow_info_nce(matrix):
    """InfoNCE of each pair at temperature 0.07, both directions added."""
    logs = matrix.double() / 0.07
    return [
        -(logs[i].log_softmax(0) + logs[:, i].log_softmax(0))[i].item() for i in range(len(logs))
    ]


def slow_chances(matrix):
    """The probability of each pair at temperature 0.07, the mean of both directions."""
    logs = matrix.double() / 0.07
    both = [(logs[i].softmax(0) + logs[:, i].softmax(0))[i].item() for i in range(len(logs))]
    return np.array(both) / 2


def test_the_warm_up_learns_all_pairs_by_info_nce_which_divides_them(on_tiny, steps, scored):
    method, pairs = on_tiny("sps", *PLAIN, "train.batch=24", "method.division_batch=24")
    expected = [np.mean(slow_info_nce(scored(net, pairs, training=True))) for net in method.nets]
    method.fit_epoch(pairs, 0)
    assert [loss for loss, _ in steps] == pytest.approx(expected, rel=1e-4)
    for net, found in zip(method.nets, method.statistics, strict=True):
        assert found.loss.tolist() == pytest.approx(slow_info_nce(scored(net, pairs)), rel=1e-3)
        assert np.array_equal(found.division.clean_prob, divide(found.loss, 0).clean_prob)


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_clean_pairs_act_from_their_epoch_on_once_and_noisy_ones_from_theirs(
    believing, steps, epoch
):
    """Each kind in steps of its own; two strict batches, so the noisy pairs come twice."""
    method, pairs = believing(
        "method.clean_from_epoch=1", "method.noisy_from_epoch=2", "train.batch=6"
    )
    method._learn(pairs, epoch, 0)
    kinds = [{*rows} for rows in (STRICT, CLEAN, NOISY)]
    found = []
    for _, step in steps:
        (kind,) = [k for k, rows in enumerate(kinds) if {*step.pair_index} <= rows]
        found.append(kind)
    assert found == {1: [0, 0], 2: [0, 1, 0], 3: [0, 1, 2, 0, 2]}[epoch]
    for rows, kind in ((STRICT, 0), (CLEAN, 1)):
        own = [step.pair_index for (_, step), k in zip(steps, found, strict=True) if k == kind]
        assert not own or sorted(np.concatenate(own)) == rows.tolist()


def test_strict_pairs_are_learned_by_info_nce_in_a_space_that_is_the_same_from_both_sides(
    believing, steps, scored
):
    method, pairs = believing(*PLAIN)
    batch, net = pairs.batch(STRICT), method.nets[0]
    matrix = scored(net, pairs, STRICT, training=True)
    with torch.no_grad():
        regions = net.encode_images(batch.regions).regions
        captions = net.encode_captions(batch.tokens, batch.lengths)
    words = zip(captions.words, captions.lengths, strict=True)
    means = [regions.mean(1), torch.stack([own[:length].mean(0) for own, length in words])]
    gaps = []
    for i in range(12):
        for j in range(12):
            image, caption = (torch.cosine_similarity(m[i], m[j], dim=0) for m in means)
            gaps.append(float((matrix[i, j] - matrix[j, i]) ** 2 + (image - caption) ** 2))
    method._learn(pairs, 1, 0)
    ((loss, step),) = steps
    assert sorted(step.pair_index) == STRICT.tolist()
    expected = np.mean(slow_info_nce(matrix)) + 25 * np.mean(gaps)
    assert loss == pytest.approx(expected, rel=1e-4)


def test_a_label_of_clean_pairs_mixes_the_others_belief_with_the_own_prediction(
    believing, scored, spy
):
    method, pairs = believing("method.clean_from_epoch=0")
    calls = spy(method, "_labels")
    chances = slow_chances(scored(method.nets[0], pairs, CLEAN))
    method._learn(pairs, 1, 0)
    ((_, (_, _, rows), labels),) = calls
    found = dict(zip(rows.tolist(), labels.tolist(), strict=True))
    assert [found[row] for row in CLEAN] == pytest.approx(0.55 + 0.45 * chances, abs=1e-5)


@torch.no_grad()
def test_a_proxy_is_the_caption_of_the_most_alike_strictly_clean_image(believing, monkeypatch):
    """Its label is its chance among the noisy images times the cosine; 0 below the threshold."""
    monkeypatch.setattr(sps, "PROXY_THRESHOLD", 0.0)
    method, pairs = believing()
    net = method.nets[0].eval()
    batch, labels = method._proxies(pairs, 0, STRICT, NOISY)
    regions = net.encode_images(pairs.batch(np.arange(24)).regions).regions.mean(1)
    cosine = []
    for place, row in enumerate(NOISY):
        alike = [float(torch.cosine_similarity(regions[row], regions[s], dim=0)) for s in STRICT]
        own = pairs.captions[STRICT[int(np.argmax(alike))]]
        assert batch.tokens[place, : len(own)].tolist() == own.tolist()
        cosine.append(max(alike))
    assert torch.equal(batch.regions, pairs.batch(NOISY).regions)
    expected = slow_chances(net.score_batch(batch)) * np.array(cosine)
    assert labels.tolist() == pytest.approx(expected, abs=1e-5)
    middle = float(np.sort(expected)[2:4].mean())
    monkeypatch.setattr(sps, "PROXY_THRESHOLD", middle)
    _, labels = method._proxies(pairs, 0, STRICT, NOISY)
    assert labels.tolist() == pytest.approx(np.where(expected < middle, 0, expected), abs=1e-5)
