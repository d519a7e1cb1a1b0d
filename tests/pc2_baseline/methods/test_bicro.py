"""BiCro: anchors, ratios, thresholds, and the warm-up's choice."""

import dataclasses

import numpy as np
import pytest
import torch

from pc2_baseline.methods import relabelling
from pc2_baseline.modules.beta_mixture import divide_by_beta
from pc2_baseline.modules.coteaching import DividedPairs
from pc2_baseline.modules.division import Division

CLEAN, NOISY = np.array([3, 20, 7, 1, 15, 0, 11, 22, 5, 18, 9]), np.array([2, 8, 13, 4])


@pytest.fixture
def bicro(on_tiny):
    """BiCro at its first epoch after the warm-up, and its pairs."""

    def make(preset="bicro", *overrides):
        method, pairs = on_tiny(preset, "train.warmup_epochs=1", "train.batch=24", *overrides)
        method.fit_epoch(pairs, 0)
        for peer in (0, 1):
            method.others[peer].load_state_dict(method.nets[1 - peer].state_dict())
        return method, pairs

    return make


@torch.no_grad()
def labels(method, pairs, peer=0):
    found = method.labels(pairs, peer, CLEAN, NOISY)
    return [values.tolist() for values in found]


@torch.no_grad()
def slow_labels(net, pairs):
    """By loops over pairs, each half the mean of its regions or words."""
    net.eval()
    images, captions = {}, {}
    for pair in (*CLEAN, *NOISY):
        one = pairs.batch(np.array([pair]))
        images[pair] = net.encode_images(one.regions).regions[0].mean(0)
        captions[pair] = net.encode_captions(one.tokens, one.lengths).words[0].mean(0)
    matrix = net.score_batch(pairs.batch(CLEAN))
    close = []
    for i in range(len(CLEAN)):
        row = (0.2 + matrix[i] - matrix[i, i]).clamp(min=0)
        column = (0.2 + matrix[:, i] - matrix[i, i]).clamp(min=0)
        row[i] = column[i] = 0
        close.append(float((0.2 - (row.mean() + column.mean()) / 2).clamp(0, 0.2)))
    anchors = [CLEAN[i] for i in np.argsort(close)[-2:]]  # 11 // 10 + 1
    label = {}
    for pair in (*CLEAN, *NOISY):
        x = [float(torch.cosine_similarity(images[pair], images[a], dim=0)) for a in anchors]
        y = [float(torch.cosine_similarity(captions[pair], captions[a], dim=0)) for a in anchors]
        at = [int(np.argmax(x)), int(np.argmax(y))]
        ratios = [min(x[a], y[a]) / max(x[a], y[a]) if min(x[a], y[a]) > 0 else 0.0 for a in at]
        label[pair] = sum(ratios) / 2
    clean = [1.0 if pair in anchors else (1 + label[pair]) / 2 for pair in CLEAN]
    return [clean, [label[pair] for pair in NOISY]]


@pytest.mark.parametrize("peer", [0, 1])
def test_the_other_network_labels_by_the_closest_tenth_of_the_clean_pairs(bicro, peer):
    method, pairs = bicro()
    expected = slow_labels(method.nets[1 - peer], pairs)
    for found, slow in zip(labels(method, pairs, peer), expected, strict=True):
        assert found == pytest.approx(slow, abs=1e-4)
    assert expected[0].count(1.0) == 2
    own = slow_labels(method.nets[peer], pairs)
    assert expected[1] != pytest.approx(own[1], abs=1e-4)


def test_an_anchor_is_certain_where_another_has_the_same_image(bicro):
    """As with five captions an image: the nearest image may then be the other's."""
    method, pairs = bicro()
    alike = dataclasses.replace(pairs, image_of=np.zeros(24, dtype=np.int64))
    clean, _ = labels(method, alike)
    assert clean.count(1.0) == 2


@pytest.mark.parametrize(("preset", "counted"), [("bicro", 4), ("bicro-star", 2)])
def test_bicro_star_leaves_noisy_pairs_of_low_label_out(bicro, monkeypatch, preset, counted):
    """Every pair costs 1; two of four labels are below 0.5."""
    method, pairs = bicro(preset, "method.mean_epochs=0")
    is_clean = ~np.isin(np.arange(24), NOISY)
    own = DividedPairs(np.zeros(24, np.float32), Division(np.where(is_clean, 0.9, 0.1), is_clean))
    method.statistics = [own, own]
    given = torch.tensor([0.2, 0.49, 0.5, 0.9])
    monkeypatch.setattr(method, "labels", lambda *_: (torch.ones(20), given))
    monkeypatch.setattr(
        relabelling, "triplet_hardest", lambda similarity, _: similarity.sum(1) * 0 + 1
    )
    assert method._learn(pairs, 1, 0)["loss_noisy"] == counted


def test_as_released_noisy_pairs_of_low_label_have_margin_0_and_go_on_acting(bicro):
    plain = labels(*bicro())
    middle = float(np.median(plain[1]))
    method, pairs = bicro("bicro", f"method.zero_below={middle}")
    found = labels(method, pairs)
    assert found[0] == plain[0]
    assert found[1] == [label if label >= middle else 0.0 for label in plain[1]]
    assert 0.0 in found[1]


@pytest.mark.parametrize(("share", "kept"), [(0.3, 7), (1.0, 24), (0.01, 1)])
def test_the_warm_up_learns_the_lowest_losses_of_a_batch(on_tiny, steps, share, kept):
    method, pairs = on_tiny(
        "bicro", "train.batch=24", "model.dropout=0", f"method.warmup_share={share}"
    )
    with torch.no_grad():
        matrix = method.nets[0].train().score_batch(pairs.batch(np.arange(24)))
    method._learn(pairs, 0, 0)
    own, off = matrix.diagonal(), 1 - torch.eye(24)
    costs = ((0.2 + matrix - own[:, None]).clamp(min=0) * off).mean(1)
    costs = costs + ((0.2 + matrix - own[None]).clamp(min=0) * off).mean(0)
    assert steps[0][0] == pytest.approx(costs.sort().values[:kept].sum().item(), rel=1e-4)


def test_pairs_are_divided_by_a_mixture_of_beta_distributions(bicro):
    method, pairs = bicro()
    found = method._divide(pairs, 0)
    assert np.array_equal(found.division.clean_prob, divide_by_beta(found.loss).clean_prob)
