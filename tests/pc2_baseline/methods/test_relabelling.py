"""NCR and BiCro: who labels, whose margin, which pairs, and by what noisy and clean labels."""

import numpy as np
import pytest
import torch

from pc2_baseline.methods import relabelling
from pc2_baseline.methods.bicro import consistency
from pc2_baseline.methods.ncr import predicted_labels
from pc2_baseline.methods.relabelling import closeness

BOTH = pytest.mark.parametrize("preset", ["ncr", "bicro"])
CLEAN, NOISY = np.array([3, 20, 7, 1, 15, 0, 11, 22, 5, 18, 9]), np.array([2, 8, 13, 4])


def slow_hinges(matrix, margins):
    """The loss of each pair against its hardest negative of both directions."""
    found = []
    for i in range(len(matrix)):
        others = [j for j in range(len(matrix)) if j != i]
        own, margin = matrix[i][i], margins[i]
        i2t = max(max(0.0, margin + matrix[i][j] - own) for j in others)
        t2i = max(max(0.0, margin + matrix[j][i] - own) for j in others)
        found.append(i2t + t2i)
    return found


@BOTH
def test_the_loss_is_the_hinges_of_both_kinds_with_the_labels_as_soft_margins(
    divided, steps, scored, preset
):
    """Hardest negatives, the margin of the query, clean and noisy pairs in one sum."""
    method, pairs = divided(preset, "model.dropout=0")
    own, expected, parts, net = method.labels, [], [], method.nets[0]

    def spy(train, peer, clean, noisy):
        assert not net.training
        labels = own(train, peer, clean, noisy)
        for rows, values in zip((clean, noisy), labels, strict=True):
            kept = {name: value.clone() for name, value in net.state_dict().items()}
            matrix = scored(net, pairs, rows, training=True).tolist()
            net.load_state_dict(kept)  # running statistics as they were
            margins = [0.2 * (10**label - 1) / 9 for label in values.tolist()]
            expected.append(sum(slow_hinges(matrix, margins)))
            parts.extend(rows)
            assert not values.requires_grad
        return labels

    method.labels = spy
    method._learn(pairs, 1, 0)
    assert sorted(parts) == list(range(24))
    assert min(expected) > 0.1
    assert steps[-1][0] == pytest.approx(sum(expected), rel=1e-4)


@pytest.mark.parametrize("case", [("ncr", None, 24), ("bicro", 0.3, 7)])
def test_the_warm_up_learns_mean_negatives_and_bicro_the_lowest_losses_alone(
    on_tiny, steps, scored, mean_losses, case
):
    preset, share, kept = case
    own = [f"method.warmup_share={share}"] if share else []
    method, pairs = on_tiny(preset, "train.batch=24", "model.dropout=0", *own)
    costs = mean_losses(scored(method.nets[0], pairs, training=True))
    method._warm_up(pairs, 0, 0)
    (loss, step), *more = steps
    assert not more
    assert sorted(step.pair_index) == list(range(24))
    assert loss == pytest.approx(costs.sort().values[:kept].sum().item(), rel=1e-4)


@torch.no_grad()
def labels(method, pairs, peer=0, clean=CLEAN, noisy=NOISY):
    """Return the labels of clean and of noisy pairs, each peer's copy being the other as it is."""
    for own in (0, 1):
        method.others[own].load_state_dict(method.nets[1 - own].state_dict())
    method.nets[peer].eval()
    return [values.tolist() for values in method.labels(pairs, peer, clean, noisy)]


def test_ncrs_labels_are_predicted_and_clean_ones_mixed_with_the_others_belief(
    divided, scored, mean_losses
):
    """Clean: w + (1 - w) p, w of the other's division; noisy: the mean p of both networks."""
    peer = 1
    method, pairs = divided("ncr")

    def predicted(net, rows):
        """Half of a pair's losses less than 0.2, in units of the highest tenth's mean."""
        close = (0.2 - mean_losses(scored(net, pairs, rows)) / 2).clamp(0, 0.2)
        top = close.sort().values[-(len(rows) // 10 + 1) :].mean()
        return (close / top).clamp(max=1).numpy()

    clean, noisy = labels(method, pairs, peer)
    w = method.statistics[1 - peer].division.clean_prob[CLEAN]
    assert np.allclose(clean, w + (1 - w) * predicted(method.nets[peer], CLEAN), atol=1e-5)
    both = [predicted(net, NOISY) for net in method.nets]
    assert not np.allclose(*both, atol=1e-4)
    assert np.allclose(noisy, (both[0] + both[1]) / 2, atol=1e-5)


@torch.no_grad()
def slow_labels(net, pairs, matrix, losses):
    """BiCro's by loops over pairs, each half the mean of its regions or words."""
    images, captions = {}, {}
    for pair in (*CLEAN, *NOISY):
        one = pairs.batch(np.array([pair]))
        images[pair] = net.encode_images(one.regions).regions[0].mean(0)
        captions[pair] = net.encode_captions(one.tokens, one.lengths).words[0].mean(0)
    close = (0.2 - losses(matrix) / 2).clamp(0, 0.2)
    anchors = [CLEAN[i] for i in np.argsort(close.tolist())[-2:]]  # 11 // 10 + 1
    label = {}
    for pair in (*CLEAN, *NOISY):
        x = [float(torch.cosine_similarity(images[pair], images[a], dim=0)) for a in anchors]
        y = [float(torch.cosine_similarity(captions[pair], captions[a], dim=0)) for a in anchors]
        at = [int(np.argmax(x)), int(np.argmax(y))]
        ratios = [min(x[a], y[a]) / max(x[a], y[a]) if min(x[a], y[a]) > 0 else 0.0 for a in at]
        label[pair] = sum(ratios) / 2
    clean = [1.0 if pair in anchors else (1 + label[pair]) / 2 for pair in CLEAN]
    return [clean, [label[pair] for pair in NOISY]]


def test_bicros_other_network_labels_by_the_closest_tenth_of_the_clean_pairs(
    warm, scored, mean_losses
):
    peer = 1
    method, pairs = warm("bicro")
    expected, own = (
        slow_labels(net, pairs, scored(net, pairs, CLEAN), mean_losses)
        for net in (method.nets[1 - peer], method.nets[peer])
    )
    for found, slow in zip(labels(method, pairs, peer), expected, strict=True):
        assert found == pytest.approx(slow, abs=1e-4)
    assert expected[0].count(1.0) == 2
    assert expected[1] != pytest.approx(own[1], abs=1e-4)


@pytest.mark.parametrize(("preset", "counted"), [("bicro", 4), ("bicro-star", 2)])
def test_bicro_star_leaves_noisy_pairs_of_low_label_out(divided, monkeypatch, preset, counted):
    """Every pair costs 1; two of four labels are below 0.5."""
    method, pairs = divided(preset, "method.mean_epochs=0")
    divided.divide(method, *[~np.isin(np.arange(24), NOISY)] * 2)
    given = torch.tensor([0.2, 0.49, 0.5, 0.9])
    monkeypatch.setattr(method, "labels", lambda *_: (torch.ones(20), given))
    monkeypatch.setattr(
        relabelling, "triplet_hardest", lambda similarity, _: similarity.sum(1) * 0 + 1
    )
    assert method._learn(pairs, 1, 0)["loss_noisy"] == counted


def slow_consistency(images, captions):
    found = []
    for x, y in zip(images, captions, strict=True):
        total = 0.0
        for nearest in (x.index(max(x)), y.index(max(y))):
            first, second = x[nearest], y[nearest]
            if first > 0 and second > 0:
                total += min(first / second, second / first) / 2
        found.append(total)
    return found


@pytest.mark.parametrize("size", [2, 23])
def test_labels_agree_with_the_slow_version(mean_losses, size):
    torch.manual_seed(0)
    matrix = torch.rand(size, size, dtype=torch.float64)
    slow = (0.2 - mean_losses(matrix) / 2).clamp(0, 0.2).tolist()
    assert np.allclose(closeness(matrix, 0.2), slow)
    top = sorted(slow)[-(size // 10 + 1) :]
    expected = [min(1, value / (sum(top) / len(top))) for value in slow]
    assert np.allclose(predicted_labels(matrix, 0.2), expected)
    x, y = torch.rand(2, size, 5, dtype=torch.float64) * 2 - 1
    assert np.allclose(consistency(x, y), slow_consistency(x.tolist(), y.tolist()))
