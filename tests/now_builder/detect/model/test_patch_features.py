"""Features from a region's own pixels."""

import numpy as np
import pytest
import torch

from now_builder.detect.model.patch_features import (
    PATTERNS,
    SHARES,
    SHARES_WITH_WORDS,
    SIDE,
    STRIDE,
    WEIGHTS,
    WORDS,
    Block,
    PatchFeatures,
    Patterns,
)


def striped(period: int, *, upright: bool, size: int = 96) -> torch.Tensor:
    """A grey page of stripes."""
    wave = ((torch.arange(size) // period) % 2).float()
    page = wave.expand(size, size) if upright else wave[:, None].expand(size, size)
    return page.expand(3, size, size).clone()


def pages(count: int = 8, size: int = 96) -> torch.Tensor:
    """Pages of stripes, coloured blobs and noise."""
    generator = torch.Generator().manual_seed(0)
    drawn = [striped(2 + i % 3, upright=i % 2 == 0, size=size) for i in range(count)]
    tint = torch.rand(count, 3, 1, 1, generator=generator)
    noise = torch.rand(count, 3, size, size, generator=generator)
    return ((torch.stack(drawn) * tint + noise) / 2 * 255).to(torch.uint8)


@pytest.fixture(scope="module")
def features() -> PatchFeatures:
    made = PatchFeatures()
    shots = pages(64)
    made.fit_patterns(list(shots), seed=0)
    boxes = [torch.tensor([[0.0, 0, 24, 24], [8, 8, 40, 40], [0, 0, 48, 48]])] * len(shots)
    embedded = torch.randn(3 * len(shots), 768, generator=torch.Generator().manual_seed(1))
    for block, rows in zip(made.blocks, made.describe(embedded, shots, boxes), strict=True):
        block.fit(rows)
    return made


def test_a_pattern_is_counted_where_it_is_and_not_elsewhere() -> None:
    patterns = Patterns(1)
    page = torch.full((3, 96, 96), 0.5)
    page[:, :, 48:] = striped(4, upright=True)[:, :, 48:]
    patterns.fit([striped(4, upright=True), torch.rand(3, 96, 96)], seed=0)
    left, right = patterns(page[None], [torch.tensor([[0.0, 0, 40, 96], [48, 0, 96, 96]])])
    assert left.sum() == 0  # flat: nothing to count
    assert right.square().sum() == pytest.approx(1.0)


@pytest.mark.parametrize("channels", [1, 3])
def test_patches_are_those_of_the_loop_over_places(channels: int) -> None:
    """A patch is flat where its deviation is under 0.1; all others are cut, row by row."""
    page = pages(1)[0].float() / 255
    page[:, :, 40:70] = 0.5 + (page[:, :, 40:70] - 0.5) * torch.linspace(0, 1, 30)
    seen = page if channels == 3 else page.mean(dim=0, keepdim=True)
    expected, is_flat = [], []
    for top in range(0, 96 - SIDE + 1, STRIDE):
        for left in range(0, 96 - SIDE + 1, STRIDE):
            patch = seen[:, top : top + SIDE, left : left + SIDE].flatten()
            is_flat.append(bool(patch.std(correction=0) < 0.1))
            if not is_flat[-1]:
                expected.append(patch)
    patterns = Patterns(channels)
    patterns.centres.copy_(torch.rand(patterns.centres.shape))
    patches, places, shape = patterns._patches(page)
    assert shape == (45, 45)
    assert places.tolist() == [place for place, flat in enumerate(is_flat) if not flat]
    assert 0.1 < np.mean(is_flat) < 0.9
    assert torch.equal(patches, torch.stack(expected))
    centred = patches - patches.mean(dim=1, keepdim=True)
    seen = torch.full((len(is_flat),), PATTERNS)
    seen[places] = (centred @ patterns.centres.T).argmax(dim=1)
    assert torch.equal(patterns._nearest(page).flatten(), seen), "centred patches are compared"


def test_a_region_outside_or_without_area_gives_a_finite_row() -> None:
    patterns = Patterns(1)
    boxes = [torch.tensor([[95.0, 95, 96, 96], [0, 0, 0, 0], [-5, -5, -1, -1]])]
    assert torch.isfinite(patterns(torch.rand(1, 3, 96, 96), boxes)).all()


def test_the_three_parts_have_their_lengths_and_a_row_a_mean_square_of_one(
    features: PatchFeatures,
) -> None:
    shots = pages(4)
    boxes = [torch.tensor([[0.0, 0, 30, 30], [4, 4, 44, 44]])] * 4
    embedded = torch.randn(8, 768)
    rows = features(embedded, shots, boxes)
    assert rows.shape == (8, 768)
    assert torch.allclose(rows.square().mean(dim=1), torch.ones(8), atol=1e-3)
    lengths = torch.stack([part.norm(dim=1) for part in rows.split(SHARES, dim=1)], dim=1)
    wanted = torch.tensor(WEIGHTS) / torch.tensor(WEIGHTS).norm()
    assert torch.allclose(
        lengths / lengths.norm(dim=1, keepdim=True), wanted.expand(8, 3), atol=1e-3
    )
    alone = features(embedded[4:6], shots[2:3], boxes[2:3])
    assert torch.allclose(rows[4:6], alone, atol=1e-5), "a page does not change another's rows"


def test_a_block_evens_out_directions_and_keeps_the_widest() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([8.0, 4, 2, 0.01, 0.01])
    rows = torch.randn(4000, 5, generator=generator) * scales + 3
    block = Block(5, 3)
    block.fit(rows)
    mapped = (rows - block.centre) @ block.matrix
    spread = mapped.std(dim=0)
    assert torch.allclose(mapped.mean(dim=0), torch.zeros(3), atol=1e-3)
    assert spread[0] / spread[2] == pytest.approx(2.0, rel=0.1)  # the root of 8 / 2
    assert torch.allclose(block(rows).norm(dim=1), torch.ones(4000), atol=1e-4)


def test_words_stand_in_the_last_columns_and_are_zero_where_they_are_left_out(
    features: PatchFeatures,
) -> None:
    torch.manual_seed(0)
    reads = PatchFeatures(words=True).eval()
    wider = features.state_dict()
    for name, share in zip(("network", "strokes", "shapes"), SHARES_WITH_WORDS, strict=True):
        wider[f"of_{name}.matrix"] = wider[f"of_{name}.matrix"][:, :share]
    reads.load_state_dict(wider, strict=False)
    shots, boxes = pages(2), [torch.tensor([[0.0, 0, 30, 30], [4, 4, 44, 44]])] * 2
    embedded = torch.randn(4, 768)
    plain, found = features(embedded, shots, boxes), reads(embedded, shots, boxes)
    kept = found[:, : sum(SHARES_WITH_WORDS)].split(SHARES_WITH_WORDS, dim=1)
    for part, whole in zip(kept, plain.split(SHARES, dim=1), strict=True):
        cosines = torch.cosine_similarity(part, whole[:, : part.shape[1]], dim=1)
        assert torch.allclose(cosines, torch.ones(4), atol=1e-4)
    assert reads.words is not None
    assert slice(512, 768) == WORDS
    slow = 0.5 * reads.words(shots, boxes)
    energy = sum(weight**2 for weight in WEIGHTS)
    assert torch.allclose(found[:, WORDS], slow * (768 / energy) ** 0.5, atol=1e-4)
    reads.words = None
    without = reads(embedded, shots, boxes)
    assert not without[:, WORDS].any()
    assert torch.equal(without[:, : WORDS.start], found[:, : WORDS.start])
