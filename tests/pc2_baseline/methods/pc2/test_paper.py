"""PC2 and its baseline learn, divide, and keep their books by pair_index."""

import numpy as np
import pytest
import torch

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2 import network, paper, released
from pc2_baseline.methods.pc2.network import to_slots
from pc2_baseline.modules import division
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.losses import soft_margin
from pc2_baseline.networks import similarity


@pytest.fixture
def fitted(on_tiny):
    """PC2 after a warm-up epoch and a co-taught one."""
    method, pairs = on_tiny("pc2-paper/demo", "train.warmup_epochs=1")
    for epoch in range(2):
        method.fit_epoch(pairs, epoch)
    return method, pairs


@torch.no_grad()
def test_after_an_epoch_the_bank_holds_each_pairs_own_prediction(fitted):
    method, pairs = fitted
    for net, bank in zip(method.nets, method.banks, strict=True):
        net.eval()
        for pair in range(len(pairs)):
            codes = net.matching.encode_images(pairs.batch(np.array([pair])).regions)
            assert torch.allclose(bank.predictions[pair], net.predict(codes)[0], atol=1e-6)


def test_a_long_caption_is_interpolated_as_images_are_resized():
    words = torch.randn(1, 50, 4)
    expected = torch.nn.functional.interpolate(
        words.transpose(1, 2), size=36, mode="linear", align_corners=False
    ).transpose(1, 2)
    assert torch.allclose(to_slots(words, torch.tensor([50])), expected, atol=1e-5)
    short = to_slots(torch.cat([words[:, :5], torch.zeros(1, 45, 4)], 1), torch.tensor([5]))
    assert torch.equal(short[0, 15:20], words[0, :5])
    assert not short[0, :15].any()
    assert not short[0, 20:].any()


def test_oscillation_is_the_divergence_of_the_epoch_before_from_the_new_one(on_tiny):
    method, pairs = on_tiny("pc2-paper/demo", "train.lr=1e-2")
    method.fit_epoch(pairs, 0)
    old = [bank.predictions.double() for bank in method.banks]
    method.fit_epoch(pairs, 1)
    for p, bank, own in zip(old, method.banks, method.statistics, strict=True):
        q, found = bank.predictions.double(), torch.from_numpy(own.oscillation).double()
        assert torch.allclose(found, (p * (p / q).log()).sum(1), rtol=1e-3, atol=1e-6)
        assert not torch.allclose(found, (q * (q / p).log()).sum(1), rtol=1e-2, atol=1e-6)


def test_images_learn_the_classes_of_their_captions_and_spread_predictions_cost_less(on_tiny):
    """Cross-entropy less weighted entropy, by loops."""
    weights = ["method.lambda_pseudo=0.5", "method.lambda_entropy=3"]
    method, pairs = on_tiny("pc2-paper", *weights, "method.class_input=pooled")
    net = method.nets[0].eval()
    with torch.no_grad():
        net.classify.layers[2].weight *= 20  # predictions that differ
    own, _ = net.encode(pairs.batch(np.arange(24)), 24)
    images, captions = (net.classify(codes).softmax(1) for codes in (own.images, own.captions))
    classes = captions.argmax(1)
    assert not torch.equal(classes, images.argmax(1))
    cross = -sum(images[row, label].log() for row, label in enumerate(classes)) / 24
    entropy = -sum(p * p.log() for mean in (images.mean(0), captions.mean(0)) for p in mean) / 2
    found = paper.class_terms(net, own, method.method)
    assert found.item() == pytest.approx((0.5 * cross - 3 * entropy).item(), abs=1e-5)


@torch.no_grad()
def test_pseudo_captions_are_searched_by_predictions_or_by_embeddings(on_tiny):
    method, pairs = on_tiny("pc2-paper", "method.class_input=pooled")
    net = method.nets[0].eval()
    images = net.matching.encode_images(pairs.batch(np.arange(24)).regions)
    for search_by, expected in (("prediction", net.predict(images)), ("embedding", images.pooled)):
        how = method.method.model_copy(update={"search_by": search_by})
        assert torch.equal(paper.describe(net, images, how), expected), search_by


@pytest.mark.parametrize("threshold", [0.5, 0.7])
def test_a_pair_is_stable_from_tau_on_and_clean_above_its_own(on_tiny, monkeypatch, threshold):
    """The threshold itself is stable, but not clean."""
    posterior = np.array([0.1, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, *[0.2] * 17])
    monkeypatch.setattr(paper, "clean_posterior", lambda *_: posterior)
    monkeypatch.setattr(division, "clean_posterior", lambda *_, **__: posterior)
    named = [f"method.{name}_threshold={threshold}" for name in ("oscillation", "division")]
    method, pairs = on_tiny("pc2-paper", *named)
    moved = np.arange(24.0)
    assert np.array_equal(paper.stable_pairs(moved, method.method, 0)[1], posterior >= threshold)
    plain = method.method.model_copy(update={"rectify": False})
    assert not any(found.any() for found in paper.stable_pairs(moved, plain, 0))
    own = method.divide_pairs(pairs, 0)
    assert np.array_equal(own.division.is_clean, posterior > threshold)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_losses_are_divided_on_the_scale_that_is_set(on_tiny, scale):
    method, pairs = on_tiny("pc2-paper", f"method.division_scale={scale}")
    own = method.divide_pairs(pairs, 0)
    found = division.clean_posterior(own.loss, method.train.seed, scale=scale)
    assert np.array_equal(own.division.clean_prob, found)


def test_a_noisy_margin_is_soft_by_the_cosine_of_the_pseudo_caption(divided, spy, monkeypatch):
    """(10^y - 1) / 9 of 0.2, with the highest cosine y of made-up vectors, but 0 if it is below."""
    method, pairs = divided("pc2-paper")
    p, q = torch.rand(8, 5), torch.rand(16, 5)
    p[0] *= -1
    monkeypatch.setattr(
        paper, "describe", lambda net, codes, method: {8: p, 16: q}[len(codes.pooled)]
    )
    calls = spy(paper, "triplet_hardest")
    own = paper.peer_epoch(method, pairs, 0, paper.triplet_hardest)
    clean, noisy = own.division.clean, own.division.noisy
    step = Step(1, 0, "a", np.append(clean, noisy))
    paper.training_step(method.method, own, pairs.batch(step.pair_index), len(clean), step)
    y = [max(torch.cosine_similarity(one, other, dim=0) for other in q) for one in p]
    y = torch.stack(y).clamp(min=0)
    _, (_, margins, _), _ = calls[0]  # then come those of the clean pairs
    assert torch.allclose(margins, 0.2 * (10**y - 1) / 9, atol=1e-5)
    assert (margins < 0.19).any()


def test_nothing_is_learned_from_the_choice_of_a_pseudo_caption(divided):
    """Without the class terms the classifier's gradient is zero, though margins are its cosines."""
    weightless = ["method.lambda_pseudo=0", "method.lambda_entropy=0"]
    method, pairs = divided("pc2-paper", *weightless)
    assert method._learn(pairs, 1, 0)["loss_noisy"] > 0
    gradients = [own.grad for own in method.nets[0].classify.parameters()]
    assert not any(own is not None and own.any() for own in gradients)


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released"])
@pytest.mark.parametrize("peer", [0, 1])
def test_clean_margins_are_soft_and_rectified_by_the_others_statistics(
    divided, steps, spy, preset, peer
):
    """w + (1 - w) w° where the pair is stable, and w where not; then (10^y - 1) / 9 of 0.2."""
    method, pairs = divided(preset, "method.noisy_from_epoch=9")
    calls = spy(paper if preset == "pc2-paper" else released, "triplet_hardest")
    method._learn(pairs, 1, peer)
    margins = calls[0][1][1]
    other, rows = method.statistics[1 - peer], steps[-1][1].pair_index
    w, stable = other.division.clean_prob[rows], other.stable_prob[rows] * other.is_stable[rows]
    expected = 0.2 * (10 ** (w + (1 - w) * stable) - 1) / 9
    assert torch.allclose(margins, torch.from_numpy(expected).float(), atol=1e-6)
    full = torch.from_numpy(np.where(other.is_stable[rows], 1.0, 0.0))
    assert not torch.allclose(margins, soft_margin(full, 0.2).float())


def test_the_noisy_loss_counts_by_its_weight(divided, steps):
    found = {}
    for weight in (0.0, 0.25, 1.0):
        method, pairs = divided("pc2-paper", f"method.lambda_noisy={weight}")
        steps.clear()
        method._learn(pairs, 1, 0)
        found[weight] = steps[0][0]
    noisy = found[1.0] - found[0.0]
    assert noisy > 0.01
    assert found[0.25] == pytest.approx(found[0.0] + 0.25 * noisy, rel=1e-5)


@pytest.mark.parametrize("preset", ["pc2-paper", "pcsr"])
def test_one_block_of_all_images_has_the_gradients_of_two(divided, monkeypatch, preset):
    """A GPU takes one, the CPU two; SAF's scores depend on a block's images, so it takes two."""
    found, blocks = {}, {}
    for apart in ({"cpu"}, set()):
        for kind in ("sgr", "saf"):
            monkeypatch.setattr(network, "AT_ONCE", apart)
            monkeypatch.setattr(similarity, "AT_ONCE", apart)
            sets = f"model.similarity={kind}", "model.dropout=0", "method.noisy_from_epoch=0"
            method, pairs = divided(preset, *sets)
            own = method.nets[0].double()
            method.learners[0].restart()
            calls = []
            own.matching.similarity.register_forward_hook(lambda *_, calls=calls: calls.append(1))
            wide = lambda self, images, read=PairSet.image_batch: read(self, images).double()  # noqa: E731
            with monkeypatch.context() as patch:
                patch.setattr(PairSet, "image_batch", wide)
                method._learn(pairs, 1, 0)
            blocks[bool(apart), kind] = len(calls)
            found.setdefault(kind, []).append(
                [p.grad for p in own.parameters() if p.grad is not None]
            )
    assert [blocks[key] for key in ((True, "sgr"), (False, "sgr"), (False, "saf"))] == [2, 1, 2]
    for one, other in zip(*found["sgr"], strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-13)
