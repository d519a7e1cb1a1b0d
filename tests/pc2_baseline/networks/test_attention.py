"""SCAN, IMRAM and MaxSim against plain loops over images, captions and words, from the papers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pc2_baseline.networks.attention import ImramSimilarity, MaxSimilarity, ScanSimilarity
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import MemoryBudget

DIM = 12
WHOLE, TINY = MemoryBudget(), MemoryBudget(keep_mb=0)


def l2norm(x, dim=-1):
    return x / (x.pow(2).sum(dim, keepdim=True).sqrt() + 1e-8)


def scan(direction="t2i", budget=WHOLE):
    temperature, sharpness = {"t2i": (9.0, 6.0), "i2t": (4.0, 5.0)}[direction]
    return ScanSimilarity(direction, temperature, sharpness, budget)


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
    direction: (lambda budget=WHOLE, d=direction: scan(d, budget), scan_score)
    for direction in ("t2i", "i2t")
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
@pytest.mark.parametrize("budget", [TINY], ids=["recomputed"])
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


def test_what_is_not_there_is_never_the_nearest():
    """All affinities are below zero, which padding's are not."""
    images, captions = codes([2, 9])
    away = CaptionCodes(-images.regions[:1, :1].expand(2, 9, -1), captions.pooled, captions.lengths)
    same = ImageCodes(images.regions[:1, :1].expand(1, 36, -1), images.pooled[:1])
    assert torch.allclose(MaxSimilarity()(same, away), torch.tensor(-1.0).double())


def test_bf16_products_stay_near():
    exact, rough = imram().float(), imram(budget=MemoryBudget(precision="bf16")).float()
    images, captions = codes([3, 17, 9])
    images = ImageCodes(images.regions.float(), images.pooled.float())
    captions = CaptionCodes(captions.words.float(), captions.pooled.float(), captions.lengths)
    found = rough(images, captions)
    assert found.dtype == torch.float32
    assert (found - exact(images, captions)).abs().max() < 0.05
