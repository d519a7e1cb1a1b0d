"""Compute patch features: counts of small patterns in a region, and its words."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.detect.model.word_reader import WordReader
from now_builder.detect.pixels import window_means
from now_builder.formats import word_vectors

SIDE = 8
"""Side of a pattern in px: about half a character of body text on a screen 360 px wide."""
STRIDE = 2
PATTERNS = 256
"""Number of patterns of strokes, and of shapes."""
SHARES = (DIMENSION - 2 * PATTERNS, PATTERNS, PATTERNS)
"""Columns of embedding, strokes and shapes among the 768 stored numbers."""
SHARES_WITH_WORDS = (128, 192, 192)
"""The same if words follow in the other columns."""
WEIGHTS = (1.0, 4.0, 4.0)
"""Norms of the three; the embedding of a network trained for minutes describes the style of a site
more than the contents of its pages."""
WORDS = slice(DIMENSION - word_vectors.WIDTH, DIMENSION)
"""Columns of the words among the stored numbers."""
_WORDS_SCALE = 0.5
"""Factor of the sketch of a page's words, whose rows are then about as long as the other parts."""

_FLAT = 0.1  # Minimum contrast of a patch: root mean square deviation of pixel values in [0, 1]
_HALF = 2
_SAMPLES = 160
_ROUNDS = 25
_AT_ONCE = 1024  # Patches that are compared with the patterns in one product


class Block(nn.Module):
    """Map features to unit vectors: centre, whiten partly, reduce the dimension."""

    centre: Tensor
    matrix: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("matrix", torch.eye(inputs, outputs))

    def forward(self, rows: Float[Tensor, "n inputs"]) -> Float[Tensor, "n outputs"]:
        """Map features to unit vectors."""
        unit: Tensor = F.normalize((rows - self.centre) @ self.matrix, dim=1)
        return unit

    def fit(self, rows: Float[Tensor, "n inputs"], floor: float = 1e-4) -> None:
        """Fit to the directions of largest variance, each divided by the variance's fourth root."""
        wide = rows.double()
        centre = wide.mean(dim=0)
        spread, axes = torch.linalg.eigh((wide - centre).T @ (wide - centre) / len(wide))
        count = self.matrix.shape[1]
        spread, axes = spread.flip(0)[:count].clamp(min=0), axes.flip(1)[:, :count]
        spread = spread + floor * spread[0] + 1e-12
        self.centre.copy_(centre)
        self.matrix.copy_(axes * spread.pow(-0.25))


class Patterns(nn.Module):
    """Count how often small patterns, learned from screenshots, occur in a region.

    Source:
        Patterns: k-means features (Coates, Ng and Lee, AISTATS 2011); counts: bags of visual words
        (Csurka et al., 2004).
    """

    centres: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels
        eye = torch.eye(PATTERNS, channels * SIDE**2)
        self.register_buffer("centres", F.normalize(eye, dim=1))

    def forward(
        self, pages: Float[Tensor, "n 3 h w"], regions: Sequence[Float[Tensor, "_ 4"]]
    ) -> Float[Tensor, "all patterns"]:
        """Return the square root of each pattern's share of the patches in each region."""
        rows = []
        for page, boxes in zip(pages, regions, strict=True):
            seen = self._nearest(page)
            for left, top, right, bottom in (boxes / STRIDE).round().int().tolist():
                part = seen[top : max(bottom, top + 1), left : max(right, left + 1)].flatten()
                rows.append(torch.bincount(part, minlength=PATTERNS + 1)[:PATTERNS])
        if not rows:
            return self.centres.new_zeros(0, PATTERNS)
        counted = torch.stack(rows).float()
        return (counted / counted.sum(dim=1, keepdim=True).clamp(min=1)).sqrt()

    def fit(self, pages: Iterable[Float[Tensor, "3 h w"]], seed: int) -> None:
        """Learn the patterns from screenshots by spherical k-means.

        Nothing changes if there are fewer patches than patterns.
        """
        generator = torch.Generator().manual_seed(seed)
        chosen = []
        for page in pages:
            patches, *_ = self._patches(page)
            order = torch.randperm(len(patches), generator=generator)[:_SAMPLES]
            drawn = patches[order.to(patches.device)]
            chosen.append(F.normalize(drawn - drawn.mean(dim=1, keepdim=True), dim=1))
        rows = torch.cat(chosen)
        if len(rows) < PATTERNS:
            return
        start = torch.randperm(len(rows), generator=generator)[:PATTERNS]
        centres = rows[start.to(rows.device)]
        for _ in range(_ROUNDS):
            nearest = (rows @ centres.T).argmax(dim=1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
            empty = sums.norm(dim=1) < 1e-6
            centres = torch.where(empty[:, None], centres, F.normalize(sums, dim=1))
        self.centres.copy_(centres)

    def _nearest(self, page: Float[Tensor, "3 h w"]) -> Int[Tensor, "i j"]:
        """Return the nearest pattern at each place; ``PATTERNS`` for flat patches."""
        patches, places, shape = self._patches(page)
        seen = torch.full((shape[0] * shape[1],), PATTERNS, device=page.device)
        # centring the patterns instead of the patches gives the same products
        centred = self.centres - self.centres.mean(dim=1, keepdim=True)
        seen[places] = _nearest_pattern(patches, centred)
        return seen.view(shape)

    def _patches(self, page: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
        """Cut out the overlapping patches of a page that are not flat.

        Most are flat, so their contrast is computed before they are cut out.

        Returns:
            The patches, their places by number, and the number of places down and across.
        """
        seen = page.mean(dim=0, keepdim=True) if self.channels == 1 else page
        moments = torch.stack([seen.mean(dim=0), seen.square().mean(dim=0)])
        halved = window_means(moments, STRIDE, STRIDE)  # means of patches, in two steps
        mean, square = window_means(halved, SIDE // STRIDE, 1)
        places = torch.nonzero((square - mean.square() >= _FLAT**2).flatten())[:, 0]
        windows = _windows(seen)
        patches = windows[places % mean.shape[1], places // mean.shape[1]].flatten(1)
        return patches, places, (mean.shape[0], mean.shape[1])


def _nearest_pattern(patches: Tensor, centred: Tensor) -> Tensor:
    """Return the pattern with the largest product with each patch.

    On a CPU it works in parts that fit the cache, with NumPy's ``argmax``, which is three times as
    fast as PyTorch's.
    """
    if patches.device.type != "cpu":
        return (patches @ centred.T).argmax(dim=1)
    products = ((part @ centred.T).numpy() for part in torch.split(patches, _AT_ONCE))
    return torch.from_numpy(np.concatenate([each.argmax(axis=1) for each in products]))


def _windows(page: Float[Tensor, "channels h w"]) -> Float[Tensor, "across down channels values"]:
    """View a page as overlapping patches, with contiguous memory for each channel of a patch."""
    channels, height, _ = page.shape
    columns = page.unfold(2, SIDE, STRIDE).permute(2, 0, 1, 3).contiguous()
    down = (height - SIDE) // STRIDE + 1
    strides = (channels * height * SIDE, STRIDE * SIDE, height * SIDE, 1)
    return columns.as_strided((len(columns), down, channels, SIDE**2), strides)


class PatchFeatures(nn.Module):
    """Complete the embedding of a small network by patterns and words from the pixels.

    A network of some hundred thousand parameters, trained for minutes on a few hundred pages, only
    keeps what its losses require. Grey patterns keep the strokes of the writing, and so its script;
    colour patterns at half the resolution keep the shapes of pictures; an optional
    :class:`WordReader` keeps the words.

    Differs:
        Not in APT, whose backbone is pre-trained by CLIP; the paper size does not use it.
    """

    def __init__(self, *, words: bool = False) -> None:
        super().__init__()
        self.shares = SHARES_WITH_WORDS if words else SHARES
        self.strokes, self.shapes = Patterns(1), Patterns(3)
        self.of_network = Block(DIMENSION, self.shares[0])
        self.of_strokes = Block(PATTERNS, self.shares[1])
        self.of_shapes = Block(PATTERNS, self.shares[2])
        self.words = WordReader() if words else None

    @property
    def blocks(self) -> tuple[Block, Block, Block]:
        """The fitted maps of embedding, strokes and shapes."""
        return self.of_network, self.of_strokes, self.of_shapes

    def forward(
        self,
        embedded: Float[Tensor, "all 768"],
        screenshots: UInt8[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> Float[Tensor, "all 768"]:
        """Join the features of each region.

        Without words, rows have a mean square of 1 per number; words add to it.
        """
        described = self.describe(embedded, screenshots, regions)
        parts = [
            weight * block(rows)
            for weight, block, rows in zip(WEIGHTS, self.blocks, described, strict=True)
        ]
        if self.words is not None:
            parts.append(_WORDS_SCALE * self.words(screenshots, regions))
        energy = sum(weight**2 for weight in WEIGHTS)
        joined = torch.cat(parts, dim=1) * (DIMENSION / energy) ** 0.5
        return F.pad(joined, (0, DIMENSION - joined.shape[1]))  # if words are left out

    def describe(
        self,
        embedded: Float[Tensor, "all 768"],
        screenshots: UInt8[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> tuple[Float[Tensor, "all 768"], Float[Tensor, "all p"], Float[Tensor, "all p"]]:
        """Compute embedding, strokes and shapes before :class:`Block` maps them."""
        large, small = _scales(screenshots)
        shapes = self.shapes(small, [boxes / _HALF for boxes in regions])
        return embedded, self.strokes(large, regions), shapes

    def fit_patterns(self, pages: Sequence[UInt8[Tensor, "3 h w"]], seed: int) -> None:
        """Learn the patterns of strokes and shapes from screenshots."""
        self.strokes.fit((_scales(page[None])[0][0] for page in pages), seed)
        self.shapes.fit((_scales(page[None])[1][0] for page in pages), seed)


def _scales(screenshots: Tensor) -> tuple[Tensor, Tensor]:
    large = screenshots.float().div_(255)
    return large, window_means(large, _HALF, _HALF)
