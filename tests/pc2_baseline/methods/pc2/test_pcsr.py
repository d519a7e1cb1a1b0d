"""PCSR: three stages, and a history of pseudo-classes that tells noisy pairs apart."""

from functools import partial

import numpy as np
import pytest
import torch

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2 import pcsr
from pc2_baseline.methods.pc2.paper import peer_epoch, score_with_noisy
from pc2_baseline.methods.pc2.pcsr import ClassHistory, Pcsr
from pc2_baseline.methods.pc2.peers import PairStatistics
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Learner, Step
from pc2_baseline.modules.losses import soft_margin, triplet_hardest

KINDS = np.repeat([2, 1, 0], [12, 6, 6])
"""Twelve clean pairs, six refinable and six ambiguous ones, as given by hand."""


@pytest.fixture
def made(on_tiny):
    """Make PCSR on the tiny release, and its pairs."""
    return partial(on_tiny, "pcsr", "train.warmup_epochs=1", "method.lambda_entropy=1")


def believe(method, *by_peer):
    """Set a division and a history of each peer: 2 clean, 1 noisy but consistent, 0 neither."""
    zeros, none = np.zeros(24, np.float32), np.zeros(24, bool)
    method.statistics = []
    for history, kinds in zip(method.histories, by_peer, strict=True):
        prob = np.linspace(0.6, 0.9, 24)
        own = PairStatistics(zeros, Division(prob, kinds == 2), zeros, zeros, none)
        method.statistics.append(own)
        history.counts[:] = 0
        history.counts[:, 0] = torch.from_numpy(np.where(kinds == 1, 9, 3))
        history.threshold = torch.tensor(5.0)


def of_one_peer(method, pairs, peer=0):
    """Return what a peer trains with, its clean pairs encoded, and noisy ones."""
    own = peer_epoch(method, pairs, peer, triplet_hardest)
    own.net.eval()
    return own, encode(own, pairs, np.arange(12))


def encode(own, pairs, rows):
    return own.net.encode(pairs.batch(rows), len(rows))[0]


def test_without_pseudo_classes_it_cannot_be():
    with pytest.raises(ConfigError, match="pcsr needs pseudo_classes"):
        read_settings("pcsr", ["method.pseudo_classes=false", "method.rectify=false",
                               "method.search_by=embedding"])  # fmt: skip


def test_the_warm_up_is_info_nce_alone_and_the_classifier_does_not_learn(made, steps, scored):
    small = "train.batch=24", "model.dropout=0"
    method, pairs = made("method.temperature=0.3", "train.weight_decay=0", *small)
    before = {name: value.clone() for name, value in method.nets[0].classify.named_parameters()}
    similarity = scored(method.matching[0], pairs, training=True)
    method.fit_epoch(pairs, 0)
    assert steps[0][0] == pytest.approx(float(info_nce(similarity, 0.3).mean()), rel=1e-5)
    after = dict(method.nets[0].classify.named_parameters())
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_stages_are_clean_then_refinable_then_ambiguous_pairs_too(made, spy, epoch):
    """The divisions of the peers are crossed: the first one trains on the second one's."""
    method, pairs = made("method.noisy_from_epoch=1", "method.ambiguous_from_epoch=2")
    believe(method, KINDS[::-1], KINDS)
    calls = spy(Pcsr, "training_step")
    method.fit_epoch(pairs, epoch)
    parts = [rows for _, (_, own, _, rows, _), _ in calls if own.net is method.nets[0]]
    kinds = [np.concatenate(own) for own in zip(*parts, strict=True)]
    assert sorted(kinds[0]) == list(range(12))
    assert set(kinds[1]) == (set(range(12, 18)) if epoch >= 2 else set())
    assert set(kinds[2]) == (set(range(18, 24)) if epoch >= 3 else set())


def test_the_threshold_starts_at_the_mean_lead_and_is_tracked(made):
    method, pairs = made("train.epochs=3")
    history = method.histories[0]
    thresholds = []
    for epoch in range(3):
        method.divide_pairs(pairs, epoch, 0)
        thresholds.append(float(history.threshold))
    first = 1 - 0.06 * (0.4 + 0.5 * 1 / 4 - 0)
    second = first - 0.06 * (0.4 + 0.5 * 2 / 4 - 1)
    third = second - 0.06 * (0.4 + 0.5 * 3 / 4 - 1)
    assert thresholds == pytest.approx([first, second, third])


def test_refinable_images_learn_from_the_caption_of_the_clean_image_of_their_class(made):
    method, pairs = made()
    believe(method, KINDS, KINDS)
    own, clean = of_one_peer(method, pairs)
    images = encode(own, pairs, np.arange(12, 18)).images
    _, found = score_with_noisy(method.method, own, clean, images)
    asked, keys = own.net.predict(images), own.net.predict(clean.images)
    cosine = torch.cosine_similarity(asked[:, None], keys[None], dim=2)
    best, chosen = cosine.max(1)
    matrix = own.net.matching.score(images, clean.captions)[:, chosen]
    expected = triplet_hardest(
        matrix, soft_margin(best.clamp(max=1), 0.2), chosen[:, None] != chosen[None]
    )
    assert torch.allclose(found, expected.sum(), atol=1e-5)
    classifier = list(own.net.classify.parameters())
    gradients = torch.autograd.grad(found, classifier, retain_graph=True, allow_unused=True)
    assert set(gradients) == {None}, "nothing is learned from the choice"
    threshold = best.sort().values[2:4].mean().item()
    method.method = method.method.model_copy(update={"mismatch_threshold": threshold})
    kept = expected[best >= threshold].sum()
    _, above = score_with_noisy(method.method, own, clean, images)
    assert torch.allclose(above, kept, atol=1e-5)
    assert not torch.allclose(found, kept)


def test_ambiguous_images_are_matched_and_classified_by_a_forgiving_loss(made):
    """Margins by the other peer's belief; generalised cross-entropy with their own captions."""
    method, pairs = made("method.lambda_pseudo=3")
    believe(method, KINDS, KINDS)
    own, _ = of_one_peer(method, pairs)
    rows = np.arange(18, 24)
    ambiguous = encode(own, pairs, rows)
    found = method.ambiguous_loss(own, ambiguous, rows)
    prob = torch.from_numpy(np.linspace(0.6, 0.9, 24)[rows]).float()
    matrix = own.net.matching.score(ambiguous.images, ambiguous.captions)
    matching = triplet_hardest(matrix, soft_margin(prob, 0.2)).sum()
    images, words = own.net.predict(ambiguous.images), own.net.predict(ambiguous.captions)
    chosen = images[torch.arange(6), words.argmax(1)]
    robust = ((1 - chosen**0.7) / 0.7).mean()
    entropy = sum(-(p.mean(0) * p.mean(0).log()).sum() for p in (images, words)) / 2
    assert torch.allclose(found, matching + 3 * robust - entropy, atol=1e-5)


def test_a_step_goes_down_the_weighted_sum_of_the_losses_of_its_kinds(made, monkeypatch):
    """Images of all kinds are encoded together, then told apart again."""
    method, pairs = made("method.lambda_noisy=10", "method.lambda_ambiguous=100", "model.dropout=0")
    believe(method, KINDS, KINDS)
    given, taken = {}, []

    def loss_of(name, value):
        return lambda *args: given.setdefault(name, args) and torch.tensor(value)

    monkeypatch.setattr(method, "_matching_loss", loss_of("clean", 1.0))
    monkeypatch.setattr(method, "ambiguous_loss", loss_of("ambiguous", 3.0))
    both = lambda *args: given.setdefault("refinable", args) and (None, torch.tensor(2.0))  # noqa: E731
    monkeypatch.setattr(pcsr, "score_with_noisy", both)
    monkeypatch.setattr(pcsr, "class_terms", loss_of("classes", 0.5))
    monkeypatch.setattr(Learner, "step", lambda _, loss, step: taken.append((loss, step)) or 0.0)
    own, _ = of_one_peer(method, pairs)
    rows = np.array([0, 1, 2]), np.array([12, 13]), np.array([18, 19])
    step, batch = Step(0, 0, "a", np.arange(2)), pairs.batch(np.array([0, 1, 2, 18, 19, 12, 13]))
    method.training_step(own, batch, rows, step)
    none = rows[1][:0]
    method.training_step(own, pairs.batch(rows[0]), (rows[0], none, none), step)
    assert [float(loss) for loss, _ in taken] == [1.5 + 10 * 2 + 100 * 3, 1.5]
    assert taken[0][1].parts == {"refinable": 2.0, "ambiguous": 3.0}
    clean, refinable, ambiguous = (encode(own, pairs, part) for part in rows)
    expected = [
        (given["classes"][1].images, clean.images),
        (given["refinable"][3], refinable.images), (given["refinable"][2].images, clean.images),
        (given["ambiguous"][1].images, ambiguous.images),
        (given["ambiguous"][1].captions, ambiguous.captions),
    ]  # fmt: skip
    assert all(torch.allclose(one.pooled, other.pooled, atol=1e-5) for one, other in expected)
    assert np.array_equal(given["clean"][2], rows[0])
    assert np.array_equal(given["ambiguous"][2], rows[2])


def of(classes, count=4):
    """Predictions whose likeliest classes are the given ones."""
    return torch.eye(count)[torch.tensor(classes)] * 0.6 + 0.1


@pytest.fixture
def history():
    """Three passes: pair 0 always in class 2, pair 1 twice in class 0, pair 2 never twice."""
    found = ClassHistory(3, 4)
    for classes in ([2, 0, 1], [2, 3, 0], [2, 0, 3]):
        found.add(of(classes))
    return found


def test_the_lead_is_that_of_the_most_frequent_class_over_the_second(history):
    assert history.counts.tolist() == [[0, 0, 3, 0], [2, 0, 0, 1], [1, 1, 0, 1]]
    assert history.lead().tolist() == [3, 1, 0]


def test_a_pair_is_consistent_with_a_lead_above_the_threshold_not_at_it(history):
    history.start_threshold()
    assert history.threshold == pytest.approx(4 / 3)
    assert history.is_consistent().tolist() == [True, False, False]
    history.threshold = torch.tensor(1.0)
    assert history.is_consistent().tolist() == [True, False, False]
    history.threshold = torch.tensor(0.9)
    assert history.is_consistent().tolist() == [True, True, False]
