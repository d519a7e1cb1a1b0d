"""SCAN, IMRAM and MaxSim against plain loops over images, captions and words, from the papers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pc2_baseline.networks.attention import ImramSimilarity, MaxSimilarity, ScanSimilarity
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import MemoryBudget

DIM = 12
WHOLE, TINY = MemoryBudget(), MemoryBudget(keep_mb=0)


def l2norm(x, dim=-1):
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def scan(direction="t2i", pooling="mean", budget=WHOLE):
    temperature, sharpness = {"t2i": (9.0, 6.0), "i2t": (4.0, 5.0)}[direction]
    return ScanSimilarity(direction, temperature, pooling, sharpness, budget)


def imram(seed=0, steps=3, budget=WHOLE, temperature=9.0):
    torch.manual_seed(seed)
    return ImramSimilarity(DIM, steps, temperature, budget).double()


def codes(lengths, images=2, regions=36, seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor(lengths)
    there = torch.arange(int(lengths.max())) < lengths[:, None]
    shape = (len(lengths), int(lengths.max()), DIM)
    seen = unit(torch.randn(images, regions, DIM, generator=generator, dtype=torch.float64))
    words = unit(torch.randn(*shape, generator=generator, dtype=torch.float64)) * there[..., None]
    return ImageCodes(seen, unit(seen.mean(1))), CaptionCodes(words, unit(words.sum(1)), lengths)


def attend(queries, keys, temperature):
    """What each of one caption's or image's queries attends to among the other's keys."""
    affinity = torch.nn.functional.leaky_relu(keys @ queries.T, 0.1)
    weights = torch.softmax(temperature * l2norm(affinity, 1), 0)
    return weights.T @ keys


def loop(images, captions, score):
    """One pair at a time, of words that are there: no padding anywhere."""
    rows = []
    for regions in images.regions:
        found = [
            score(regions, words[:length])
            for words, length in zip(captions.words, captions.lengths.tolist(), strict=True)
        ]
        rows.append(torch.stack(found))
    return torch.stack(rows)


def scan_score(similarity):
    def score(regions, words):
        t2i = similarity.direction == "t2i"
        queries, keys = (words, regions) if t2i else (regions, words)
        cosines = (queries * l2norm(attend(queries, keys, similarity.temperature))).sum(1)
        if similarity.pooling == "mean":
            return cosines.mean()
        return (similarity.sharpness * cosines).exp().sum().log() / similarity.sharpness

    return score


def imram_score(similarity):
    def one_way(first, keys, memory):
        total, queries = 0, first
        for step in range(similarity.steps):
            asking = l2norm(queries) if step else queries  # words and regions are unit vectors
            attended = attend(asking, keys, similarity.temperature)
            total = total + (first * l2norm(attended)).sum(1).mean()
            both = torch.cat([queries, attended], 1)
            gate = torch.sigmoid(memory.gate(both))
            queries = gate * queries + (1 - gate) * torch.tanh(memory.write(both))
        return total

    def score(regions, words):
        by_words = one_way(words, regions, similarity.words)
        return by_words + one_way(regions, words, similarity.regions)

    return score


def maxsim_score(_):
    def score(regions, words):
        by_word = [max(word @ region for region in regions) for word in words]
        by_region = [max(word @ region for word in words) for region in regions]
        return (sum(by_word) / len(words) + sum(by_region) / len(regions)) / 2

    return score


KINDS = {
    f"{direction}-{pooling}": (
        lambda budget=WHOLE, d=direction, p=pooling: scan(d, p, budget),
        scan_score,
    )
    for direction in ("t2i", "i2t")
    for pooling in ("mean", "lse")
}
KINDS["imram"] = (lambda budget=WHOLE: imram(budget=budget), imram_score)
KINDS["maxsim"] = (MaxSimilarity, maxsim_score)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), seed=st.integers(0, 99))
def test_all_captions_at_once_are_the_loop_over_pairs(kind, lengths, seed):
    make, reference = KINDS[kind]
    similarity = make()
    images, captions = codes(lengths, seed=seed)
    expected = loop(images, captions, reference(similarity))
    assert (similarity(images, captions) - expected).abs().max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [WHOLE, TINY], ids=["kept", "recomputed"])
def test_gradients_are_those_of_the_loop_whole_and_in_small_chunks(kind, budget):
    make, reference = KINDS[kind]
    similarity = make(budget)
    if budget is TINY:
        similarity._chunk_bytes = lambda *_: 8 * similarity.width * 36 * 8
    weights = torch.randn(2, 5, generator=torch.Generator().manual_seed(3)).double()
    found = []
    for own in (True, False):
        images, captions = codes([3, 17, 1, 40, 9])
        leaves = [images.regions, captions.words]
        for leaf in leaves:
            leaf.requires_grad_()
        similarity.zero_grad()
        matrix = (
            similarity(images, captions) if own else loop(images, captions, reference(similarity))
        )
        (matrix * weights).sum().backward()
        found.append([*leaves, *similarity.parameters()])
        found[-1] = [value.grad.clone() for value in found[-1]]
    for ours, plain in zip(*found, strict=True):
        assert (ours - plain).abs().max() < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_padding_left_dirty_is_still_masked(kind):
    similarity = KINDS[kind][0]()
    images, captions = codes([3, 8])
    dirty = captions.words.clone()
    dirty[0, 3:] = 7.0
    found = similarity(images, CaptionCodes(dirty, captions.pooled, captions.lengths))
    assert torch.equal(found, similarity(images, captions))


@pytest.mark.parametrize("kind", KINDS)
def test_a_caption_scores_alike_in_any_company(kind):
    similarity = KINDS[kind][0]()
    images, captions = codes([5, 60, 12])
    rows = torch.tensor([2, 0])
    alone = similarity(images[:2], captions[rows])
    assert torch.allclose(alone, similarity(images, captions)[:2][:, rows], atol=1e-13)


def test_scan_by_hand():
    """Two regions at right angles, one word along the first, temperature log 4 and 2 log 2."""
    regions = torch.eye(DIM, dtype=torch.float64)[None, :2]
    words = torch.eye(DIM, dtype=torch.float64)[None, :1]
    images = ImageCodes(regions, regions[:, 0])
    captions = CaptionCodes(words, words[:, 0], torch.tensor([1]))
    # One word: its affinities 1 and 0, each scaled over the words alone, are 1 and 0. The softmax
    # is 0.8 and 0.2, and (0.8, 0.2) is 4 / sqrt(17) along the word.
    t2i = ScanSimilarity("t2i", math.log(4), "mean", 1.0)
    assert t2i(images, captions).item() == pytest.approx(4 / math.sqrt(17), abs=1e-7)
    # Both regions attend to the only word: cosines 1 and 0, by mean, and by LogSumExp.
    mean, lse = (ScanSimilarity("i2t", 4.0, pooling, 2.0) for pooling in ("mean", "lse"))
    assert mean(images, captions).item() == pytest.approx(0.5, abs=1e-7)
    expected = math.log(math.exp(2) + 1) / 2
    assert lse(images, captions).item() == pytest.approx(expected, abs=1e-7)
    logits = lse(images, captions, logits=True).item()
    assert math.tanh(logits / 2) * lse.bound == pytest.approx(expected, abs=1e-7)


def test_maxsim_by_hand():
    """Three regions along the axes; words along the first, between it and the second, and away."""
    axes = torch.eye(DIM, dtype=torch.float64)
    words = torch.stack([axes[0], 0.6 * axes[0] + 0.8 * axes[1], -axes[3]])[None]
    images = ImageCodes(axes[None, :3], axes[:1])
    captions = CaptionCodes(words, words[:, 0], torch.tensor([3]))
    # Nearest regions of the words: 1, 0.8 and 0; nearest words of the regions: 1, 0.8 and 0.
    assert MaxSimilarity()(images, captions).item() == pytest.approx(0.6)
    # Without the last word, the words' mean is over two, the regions' over three all the same.
    short = CaptionCodes(words, words[:, 0], torch.tensor([2]))
    assert MaxSimilarity()(images, short).item() == pytest.approx((0.9 + 0.6) / 2)


def test_what_is_not_there_is_never_the_nearest():
    """All affinities are below zero, which padding's are not."""
    images, captions = codes([2, 9])
    away = CaptionCodes(-images.regions[:1, :1].expand(2, 9, -1), captions.pooled, captions.lengths)
    same = ImageCodes(images.regions[:1, :1].expand(1, 36, -1), images.pooled[:1])
    assert torch.allclose(MaxSimilarity()(same, away), torch.tensor(-1.0).double())


def test_one_step_of_imram_is_scan_both_ways():
    images, captions = codes([3, 9, 5])
    t2i, i2t = (ScanSimilarity(way, 9.0, "mean", 1.0) for way in ("t2i", "i2t"))
    both = t2i(images, captions) + i2t(images, captions)
    assert torch.allclose(imram(steps=1)(images, captions), both, atol=1e-13)


def test_each_direction_of_imram_has_a_memory_of_its_own():
    images, captions = codes([3, 9, 5])
    swapped = imram()
    before = swapped(images, captions)
    swapped.words, swapped.regions = swapped.regions, swapped.words
    assert not torch.allclose(swapped(images, captions), before, atol=1e-6)
    assert imram(steps=2)(images, captions).abs().max() <= 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("extreme", ["alike", "opposite"])
def test_scores_and_logits_are_finite_at_the_extremes_and_rank_alike(kind, extreme):
    similarity = KINDS[kind][0]().float()
    ones = unit(torch.ones(2, 60, DIM))
    sign = 1.0 if extreme == "alike" else -1.0
    images = ImageCodes(ones[:, :36].clone().requires_grad_(), ones[:, 0])
    captions = CaptionCodes(sign * ones, sign * ones[:, 0], torch.tensor([60, 60]))
    scores = similarity(images, captions)
    logits = similarity(images, captions, logits=True)
    assert torch.isfinite(logits).all()
    assert torch.allclose((logits / 2).tanh() * similarity.bound, scores, atol=1e-4)
    scores.sum().backward()
    assert torch.isfinite(images.regions.grad).all()
    images, captions = (value for value in codes([4, 9, 30], seed=5))
    similarity = similarity.double()
    with torch.no_grad():
        plain, logits = similarity(images, captions), similarity(images, captions, logits=True)
    assert torch.equal(plain.flatten().argsort(), logits.flatten().argsort())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_for_the_backward_pass_is_bounded_by_the_estimate(kind):
    """Bytes of all tensors saved by autograd, beside those given in."""
    similarity = KINDS[kind][0]()
    images, captions = codes([30, 12, 40, 22, 33], images=8)
    similarity.few_active = False
    images.regions.requires_grad_()
    seen = {}

    def note(tensor):
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        similarity(images, captions)
    estimate = similarity._kept(captions, images, torch.float64)
    assert 0.5 * estimate < sum(seen.values()) < 2 * estimate


def test_bf16_products_stay_near():
    exact, rough = imram().float(), imram(budget=MemoryBudget(precision="bf16")).float()
    images, captions = codes([3, 17, 9])
    images = ImageCodes(images.regions.float(), images.pooled.float())
    captions = CaptionCodes(captions.words.float(), captions.pooled.float(), captions.lengths)
    found = rough(images, captions)
    assert found.dtype == torch.float32
    assert (found - exact(images, captions)).abs().max() < 0.05
