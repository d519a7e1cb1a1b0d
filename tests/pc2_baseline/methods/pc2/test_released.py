"""Each difference between PC2's equations and its released code, on both."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from now_builder.errors import ConfigError
from pc2_baseline.config import read_settings
from pc2_baseline.methods.pc2 import released
from pc2_baseline.methods.pc2.paper import describe, peer_epoch
from pc2_baseline.methods.pc2.released import resampled
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.losses import triplet_hardest

NOISY, ONE_EPOCH = "method.noisy_from_epoch=0", "train.warmup_epochs=1"


@pytest.fixture
def halved(on_tiny, divided):
    """PC2 of a preset after the warm-up; for both peers the even pairs are clean."""

    def make(preset, *overrides, epochs=1):
        wide = "model.embed_dim=32", "method.class_hidden=16"  # cosines below 1
        method, pairs = on_tiny(preset, ONE_EPOCH, *wide, *overrides)
        for epoch in range(epochs):
            method.fit_epoch(pairs, epoch)
        divided.divide(method, *[np.arange(24) % 2 == 0] * 2)
        return method, pairs

    return make


@pytest.mark.parametrize("have", [7, 11, 36, 40])
def test_resampling_is_the_librarys_linear_interpolation_gradient_too(have):
    words = torch.randn(2, have, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    words.requires_grad_()
    expected = functional.interpolate(words.transpose(1, 2), 6, mode="linear").transpose(1, 2)
    found = resampled(words, 6)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1)).double()
    gradients = [
        torch.autograd.grad((each * weights).sum(), words)[0] for each in (found, expected)
    ]
    torch.testing.assert_close(*gradients)


def test_the_gradient_goes_through_the_cosine_in_the_released_code_alone(halved, monkeypatch):
    """There the noisy step alone teaches the classifier, which it needs for the cosines."""
    paper, pairs = halved("pc2-paper", epochs=0)
    codes = paper.nets[0].matching.encode_images(pairs.batch(np.arange(4)).regions)
    assert not describe(paper.nets[0], codes, paper.method).requires_grad
    method, pairs = halved("pc2-released", epochs=0)
    own = peer_epoch(method, pairs, 0, triplet_hardest)
    monkeypatch.setattr(own.learner, "step", lambda loss, _: loss.backward() or 0.0)
    step = Step(0, 0, "a", np.arange(8))
    even, odd = (pairs.batch(np.arange(first, 8, 2)) for first in (0, 1))
    method._noisy_step(own, method.banks[0], even, odd, step)
    assert own.net.classify.layers[0].weight.grad.any()


@pytest.mark.parametrize(
    ("preset", "override", "costs"),
    [("pc2-paper", "method.mismatch_threshold=1.0", False), ("pc2-released", NOISY, True)],
)
def test_a_low_cosine_zeroes_the_margin_or_leaves_the_pair_out(
    halved, monkeypatch, preset, override, costs
):
    """All cosines are below 1: PC2* leaves all pairs out; margin 0 still costs."""
    monkeypatch.setattr(released, "ZERO_BELOW", 1.0)
    method, pairs = halved(preset, override)
    assert (method.fit_epoch(pairs, 1)["loss_noisy_a"] > 0) == costs


def test_the_released_bank_is_written_by_position_in_a_subset(halved):
    """Twelve clean and twelve noisy pairs: only the first twelve entries change."""
    method, pairs = halved("pc2-released", NOISY)
    before = method.banks[0].predictions.clone()
    assert (before.sum(1) > 0.99).all(), "the warm-up writes every pair's"
    method.fit_epoch(pairs, 1)
    changed = (method.banks[0].predictions != before).any(1)
    assert changed[:12].all()
    assert not changed[12:].any()


@pytest.mark.parametrize(("preset", "count"), [("pc2-paper", 2 + 1), ("pc2-released", 2)])
def test_two_steps_move_the_optimiser_twice_a_batch_and_it_starts_anew_after_the_warm_up(
    halved, preset, count
):
    """Two steps of the warm-up; then one batch of clean pairs, and one of noisy ones."""
    method, pairs = halved(preset, NOISY)
    method.fit_epoch(pairs, 1)
    parameter = method.nets[0].matching.images.project.weight
    assert int(method.learners[0].optimiser.state[parameter]["step"]) == count


def test_the_dividing_pass_is_in_one_order_or_anew_each_epoch(on_tiny):
    small = "method.division_batch=8"
    paper, pairs = on_tiny("pc2-paper", small)
    assert np.array_equal(*(paper.divide_pairs(pairs, 0).loss for _ in range(2)))
    method, pairs = on_tiny("pc2-released", small)
    assert not np.array_equal(*(method.divide_pairs(pairs, epoch, 0).loss for epoch in (0, 1)))


def test_without_pseudo_classes_no_class_is_learned(halved):
    method, pairs = halved(
        "pc2-paper", "method.pseudo_classes=false", "method.search_by=embedding",
        "method.rectify=false",
    )  # fmt: skip
    before = method.nets[0].classify.layers[0].weight.clone()
    figures = method.fit_epoch(pairs, 1)
    assert torch.equal(method.nets[0].classify.layers[0].weight, before)
    assert figures["loss_noisy_a"] > 0


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["method.pseudo_classes=false"], "rectify"),
        (["method.pseudo_classes=false", "method.rectify=false"], "search_by"),
        (['method.class_input="padded"'], "class_input"),
        (['method.steps="two"'], "steps"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides, named):
    with pytest.raises(ConfigError, match=named):
        read_settings("pc2-paper", overrides)
