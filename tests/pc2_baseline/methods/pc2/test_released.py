"""Each difference between PC2's equations and its released code, on both."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from now_builder.errors import ConfigError
from pc2_baseline.config import presets, read_settings
from pc2_baseline.data.pairs import open_pairs
from pc2_baseline.methods import make_method
from pc2_baseline.methods.pc2 import released
from pc2_baseline.methods.pc2.paper import peer_epoch
from pc2_baseline.methods.pc2.peers import PairStatistics, Pc2Peers
from pc2_baseline.methods.pc2.pseudo_caption import find_pseudo_captions, search_clean_set
from pc2_baseline.methods.pc2.released import refit, resampled
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.losses import own_entropy, triplet_costs, triplet_hardest
from pc2_baseline.networks.codes import CaptionCodes
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
BOTH = ["pc2-paper", "pc2-released"]
NOW = ['data.tokenizer="jieba"', 'data.name="now100k_precomp"']


@pytest.fixture
def method_of(tiny, small_settings):
    """Make PC2 of a preset on the tiny release, with pairs beside it."""

    def make(preset, *overrides, epochs=0):
        settings = read_settings(preset, [*small_settings, *NOW, *overrides])
        with open_pairs(tiny, "train", settings.data, CPU) as pairs:
            method = make_method(settings, Sizes(len(pairs), pairs.features, 28), CPU)
            for epoch in range(epochs):
                method.fit_epoch(pairs, epoch)
            return method, pairs

    return make


def split_in_half(method, pairs):
    """Make the even pairs clean for both peers."""
    clean = np.arange(len(pairs)) % 2 == 0
    zeros, none = np.zeros(len(pairs), np.float32), np.zeros(len(pairs), bool)
    prob = np.where(clean, 0.9, 0.1)
    own = PairStatistics(zeros, Division(prob, clean), zeros, prob, none)
    method.statistics = [own, own]


@pytest.mark.parametrize("preset", sorted(name for name in presets() if name.startswith("pc2")))
def test_every_preset_runs_through_warm_up_and_noisy_steps(method_of, preset):
    method, _ = method_of(
        preset, "train.warmup_epochs=1", "method.noisy_from_epoch=1", epochs=3
    )  # fmt: skip
    assert all(np.isfinite(found.loss).all() for found in method.statistics)


@pytest.mark.parametrize("preset", ["pc2-paper", "pc2-released", "pcsr"])
def test_a_warm_up_that_is_not_judged_learns_the_same(method_of, monkeypatch, preset):
    """Divisions that no later epoch needs are left out: for pc2 all but two, for pcsr none."""
    found, counts = [], []
    for judged in ("true", "false"):
        taken = []
        count = lambda self, peer, taken=taken: taken.append(peer) or {}  # noqa: E731
        monkeypatch.setattr(Pc2Peers, "summary", count)
        method, _ = method_of(
            preset, "train.warmup_epochs=4", f"train.judge_warmup={judged}", epochs=6
        )
        found.append(method.state_dict())
        counts.append(len(taken) // 2)
    assert counts == [6, {"pc2-paper": 4, "pc2-released": 3, "pcsr": 6}[preset]]
    for group, tensors in found[0].items():
        assert all(torch.equal(value, found[1][group][name]) for name, value in tensors.items())


def test_the_margin_of_a_hinge_is_the_querys_or_broadcast():
    """S = 0 off the diagonal and on it: the cost of a cell is its margin."""
    margins = torch.tensor([0.1, 0.2])
    off = ~torch.eye(2, dtype=torch.bool)
    costs = {
        axis: [side.tolist() for side in triplet_costs(torch.zeros(2, 2), margins, off, axis)]
        for axis in ("query", "image", "caption")
    }
    of_image = torch.tensor([[0.0, 0.1], [0.2, 0.0]]).tolist()
    of_caption = torch.tensor([[0.0, 0.2], [0.1, 0.0]]).tolist()
    assert costs["query"] == [of_image, of_caption]
    assert costs["image"] == [of_image, of_image]
    assert costs["caption"] == [of_caption, of_caption]


def test_own_entropy_is_largest_for_uniform_predictions():
    """ln 8 for uniform logits, and 0 for a certain prediction, however spread their mean is."""
    assert own_entropy(torch.zeros(4, 8)).item() == pytest.approx(np.log(8))
    assert own_entropy(1e3 * torch.eye(8)).item() == pytest.approx(0.0)


def test_resampling_centres_short_captions_and_interpolates_long_ones():
    words = torch.arange(1.0, 4.0)[None, :, None]
    assert resampled(words, 6).flatten().tolist() == [0, 1, 2, 3, 0, 0]
    assert resampled(torch.arange(4.0)[None, :, None], 2).flatten().tolist() == [0.5, 2.5]


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


def test_a_refitted_pseudo_caption_keeps_its_length_but_not_its_words(method_of):
    """Two words centred among six places: the first two places are zeros, the words are cut."""
    method, _ = method_of("pc2-released")
    net = method.nets[0]
    words = torch.zeros(2, 4, 32)
    words[0, :2], words[1] = 1.0, 2.0
    captions = CaptionCodes(words, words[:, 0], torch.tensor([2, 4]))
    found = refit(net, captions, 8)
    assert found.lengths.tolist() == [2, 4]
    assert found.words[:, :, 0].tolist() == [[0.0] * 8, [0, 0, 2, 2, 0, 0, 0, 0]]


def test_the_gradient_goes_through_the_cosine_in_the_released_code_alone(method_of, monkeypatch):
    """There the noisy step alone teaches the classifier, which it needs for the cosines."""
    paper, pairs = method_of("pc2-paper")
    codes = paper.nets[0].matching.encode_images(pairs.batch(np.arange(4)).regions)
    assert not paper.describe(paper.nets[0], codes).requires_grad
    method, pairs = method_of("pc2-released")
    split_in_half(method, pairs)
    own = peer_epoch(method, pairs, 0, triplet_hardest)
    monkeypatch.setattr(own.learner, "step", lambda loss, _: loss.backward() or 0.0)
    step = Step(0, 0, "a", np.arange(8))
    method._noisy_step(own, np.arange(0, 8, 2), np.arange(1, 8, 2), step)
    assert own.net.classify.layers[0].weight.grad.any()


def test_a_low_cosine_zeroes_the_margin_or_leaves_the_pair_out(method_of, monkeypatch):
    """All cosines are below 1: PC2* leaves all pairs out; margin 0 still costs."""
    monkeypatch.setattr(released, "ZERO_BELOW", 1.0)
    for preset, override, costs in (
        ("pc2-paper", "mismatch_threshold=1.0", False),
        ("pc2-released", "noisy_from_epoch=0", True),
    ):
        method, pairs = method_of(preset, "train.warmup_epochs=1", f"method.{override}", epochs=1)
        split_in_half(method, pairs)
        assert (method.fit_epoch(pairs, 1)["loss_noisy_a"] > 0) == costs


def test_noisy_pairs_wait_for_their_epoch(method_of):
    method, pairs = method_of(
        "pc2-released", "train.warmup_epochs=1", "method.noisy_from_epoch=2", epochs=1
    )
    figures = []
    for epoch in (1, 2, 3):
        split_in_half(method, pairs)
        figures.append(method.fit_epoch(pairs, epoch)["loss_noisy_a"])
    assert figures[0] == figures[1] == 0
    assert figures[2] > 0


def test_the_released_bank_is_written_by_position_in_a_subset(method_of):
    """Twelve clean and twelve noisy pairs: only the first twelve entries change."""
    method, pairs = method_of(
        "pc2-released", "train.warmup_epochs=1", "method.noisy_from_epoch=0", epochs=1
    )
    before = method.banks[0].predictions.clone()
    assert (before.sum(1) > 0.99).all(), "the warm-up writes every pair's"
    split_in_half(method, pairs)
    method.fit_epoch(pairs, 1)
    changed = (method.banks[0].predictions != before).any(1)
    assert changed[:12].all()
    assert not changed[12:].any()


def test_the_oscillation_of_the_released_code_is_since_the_warm_up(method_of):
    method, pairs = method_of("pc2-released", "train.warmup_epochs=2", epochs=2)
    bank = method.banks[0].predictions.clone()
    split_in_half(method, pairs)
    method.fit_epoch(pairs, 2)
    assert torch.equal(method.banks[0].predictions, bank), "no noisy epoch yet: nothing written"
    assert method.statistics[0].oscillation.max() > 0


def test_two_steps_move_the_optimiser_twice_a_batch_and_it_starts_anew_after_the_warm_up(method_of):
    """Three steps of the warm-up; then two batches of clean pairs, and of noisy ones."""
    counts = []
    for preset in BOTH:
        now = "train.warmup_epochs=1", "method.noisy_from_epoch=0"
        method, pairs = method_of(preset, *now, epochs=1)
        split_in_half(method, pairs)
        method.fit_epoch(pairs, 1)
        counts.append(_steps(method))
    assert counts == [3 + 2, 2 * 2]


def _steps(method):
    parameter = method.nets[0].matching.images.project.weight
    return int(method.learners[0].optimiser.state[parameter]["step"])


def test_the_dividing_pass_is_in_one_order_or_anew_each_epoch(method_of):
    small = "method.division_batch=8"
    paper, pairs = method_of("pc2-paper", small)
    assert np.array_equal(*(paper.divide_pairs(pairs, 0).loss for _ in range(2)))
    method, pairs = method_of("pc2-released", small)
    assert not np.array_equal(*(method.divide_pairs(pairs, epoch, 0).loss for epoch in (0, 1)))


def test_the_clean_set_search_equals_a_search_of_all_clean_predictions(method_of):
    method, pairs = method_of("pc2-paper", 'method.search_in="clean_set"',
                              "train.warmup_epochs=1", epochs=1)  # fmt: skip
    split_in_half(method, pairs)
    net = method.nets[0].eval()
    own = peer_epoch(method, pairs, 0, triplet_hardest)
    clean = np.arange(0, len(pairs), 2)
    noisy = np.arange(1, len(pairs), 2)
    with torch.no_grad():
        images = net.matching.encode_images(pairs.batch(noisy).regions)
        cosines, chosen, captions = search_clean_set(own, images)
        for row, prediction in enumerate(net.predict(images)):
            bank = method.banks[0].predictions[clean]
            expected = torch.cosine_similarity(prediction[None], bank).max()
            assert cosines[row].item() == pytest.approx(expected.item(), abs=1e-5)
        wanted = clean[np.unique(chosen.numpy())]
        own = net.matching.encode_captions(*pairs.caption_batch(wanted))
    assert torch.equal(captions.words, own.words)


def test_embeddings_find_the_image_of_the_same_direction():
    """Rows 2 and 0 point the same way as the two asked for, whatever their lengths."""
    clean = torch.eye(3)
    found = find_pseudo_captions(torch.tensor([[0.0, 0.0, 3.0], [0.5, 0.1, 0.0]]), clean)
    assert found.chosen.tolist() == [2, 0]
    assert found.negatives.tolist() == [[False, True], [True, False]]


def test_without_pseudo_classes_no_class_is_learned(method_of):
    method, pairs = method_of(
        "pc2-paper", "method.pseudo_classes=false", 'method.search_by="embedding"',
        "method.rectify=false", "train.warmup_epochs=1", epochs=1,
    )  # fmt: skip
    split_in_half(method, pairs)
    before = method.nets[0].classify.layers[0].weight.clone()
    figures = method.fit_epoch(pairs, 1)
    assert torch.equal(method.nets[0].classify.layers[0].weight, before)
    assert figures["loss_noisy_a"] > 0


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["method.pseudo_classes=false"], "rectify"),
        (["method.pseudo_classes=false", "method.rectify=false"], "search_by"),
        (['method.search_by="embedding"', 'method.search_in="clean_set"'], "search_in"),
        (['method.class_input="padded"'], "class_input"),
        (['method.steps="two"'], "steps"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides, named):
    with pytest.raises(ConfigError, match=named):
        read_settings("pc2-paper", overrides)
