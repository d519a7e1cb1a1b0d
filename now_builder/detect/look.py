"""What a region's own pixels say: a thumbnail, and which small patterns its strokes are made of."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torchvision.ops import roi_align

from now_builder.detect.text import DIMENSION

SIDE = 8
"""Side of a pattern, px: about half a character of body text at 360 px a screen."""
STRIDE = 2
THUMBNAIL = 16
PATTERNS = 192
SHARES = (384, 192, 192)
"""Of the 768 stored numbers: embedding, thumbnail, patterns."""

_FLAT = 0.8
"""Patches whose grey values spread less (norm about the mean) show nothing."""
_SAMPLES = 160
_ROUNDS = 25


class Block(nn.Module):
    """A fixed map of one kind of description to unit vectors: centred, partly whitened, cut."""

    centre: Tensor
    matrix: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("matrix", torch.eye(inputs, outputs))

    def forward(self, rows: Float[Tensor, "n inputs"]) -> Float[Tensor, "n outputs"]:
        """Map descriptions to unit vectors."""
        unit: Tensor = F.normalize((rows - self.centre) @ self.matrix, dim=1)
        return unit

    def fit(self, rows: Float[Tensor, "n inputs"], floor: float = 1e-4) -> None:
        """Take the widest directions of some rows, each divided by the root of its deviation.

        Args:
            rows: Descriptions of regions of the train pool.
            floor: Share of the widest variance that is added to every variance.
        """
        wide = rows.double()
        centre = wide.mean(dim=0)
        spread, axes = torch.linalg.eigh((wide - centre).T @ (wide - centre) / len(wide))
        count = self.matrix.shape[1]
        spread, axes = spread.flip(0)[:count].clamp(min=0), axes.flip(1)[:, :count]
        spread = spread + floor * spread[0] + 1e-12
        self.centre.copy_(centre)
        self.matrix.copy_(axes * spread.pow(-0.25))


class Look(nn.Module):
    """Describe regions by their pixels alone, beside the embedding of a small network.

    A network of some hundred thousand parameters, trained for minutes on a few hundred pages,
    forgets what its losses do not ask for. A thumbnail keeps what is drawn; counts of small grey
    patterns, normalised for contrast, keep the texture of the writing, and so its script.

    Source:
        Patterns: k-means features (Coates, Ng and Lee, AISTATS 2011); counts: bags of visual words
        (Csurka et al., 2004).

    Differs:
        APT has nothing of the kind: its backbone is pre-trained by CLIP. The paper size goes
        without.
    """

    patterns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("patterns", F.normalize(torch.eye(PATTERNS, SIDE * SIDE), dim=1))
        self.embedding = Block(DIMENSION, SHARES[0])
        self.thumbnail = Block(3 * THUMBNAIL**2, SHARES[1])
        self.counts = Block(PATTERNS, SHARES[2])

    def forward(
        self,
        embedded: Float[Tensor, "all 768"],
        screenshots: UInt8[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> Float[Tensor, "all 768"]:
        """Join the three descriptions of each region; rows have a mean square of 1 per number.

        Args:
            embedded: The network's embeddings, all pages' regions in a row.
            screenshots: RGB.
            regions: Boxes of each page, in px of the screenshots.
        """
        blocks = [
            self.embedding(embedded),
            self.thumbnail(thumbnails(screenshots, regions)),
            self.counts(self.count(screenshots, regions)),
        ]
        joined: Tensor = torch.cat(blocks, dim=1) * (DIMENSION / len(blocks)) ** 0.5
        return joined

    def count(
        self, screenshots: UInt8[Tensor, "n 3 h w"], regions: Sequence[Float[Tensor, "_ 4"]]
    ) -> Float[Tensor, "all patterns"]:
        """Give the root of each pattern's share among the patches of each region."""
        rows = []
        for page, boxes in zip(screenshots, regions, strict=True):
            seen = self._nearest(page)
            for left, top, right, bottom in (boxes / STRIDE).round().int().tolist():
                part = seen[top : max(bottom, top + 1), left : max(right, left + 1)].flatten()
                rows.append(torch.bincount(part, minlength=PATTERNS + 1)[:PATTERNS])
        if not rows:
            return self.patterns.new_zeros(0, PATTERNS)
        counted = torch.stack(rows).float()
        return (counted / counted.sum(dim=1, keepdim=True).clamp(min=1)).sqrt()

    def _nearest(self, page: UInt8[Tensor, "3 h w"]) -> Int[Tensor, "i j"]:
        """Give the likest pattern at each place; one more number stands for flat patches."""
        patches, flat, grid = _patches(page)
        nearest = (patches @ self.patterns.T).argmax(dim=1)
        return torch.where(flat, PATTERNS, nearest).reshape(grid)

    def fit_patterns(self, pages: Sequence[UInt8[Tensor, "3 h w"]], seed: int) -> None:
        """Learn the patterns from screenshots by spherical k-means."""
        generator = torch.Generator().manual_seed(seed)
        chosen = []
        for page in pages:
            patches, flat, _ = _patches(page)
            patches = patches[~flat]
            chosen.append(patches[torch.randperm(len(patches), generator=generator)[:_SAMPLES]])
        rows = torch.cat(chosen)
        if len(rows) < PATTERNS:
            return
        centres = rows[torch.randperm(len(rows), generator=generator)[:PATTERNS]]
        for _ in range(_ROUNDS):
            nearest = (rows @ centres.T).argmax(dim=1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, rows)
            empty = sums.norm(dim=1) < 1e-6
            centres = torch.where(empty[:, None], centres, F.normalize(sums, dim=1))
        self.patterns.copy_(centres)


def thumbnails(
    screenshots: UInt8[Tensor, "n 3 h w"], regions: Sequence[Float[Tensor, "_ 4"]]
) -> Float[Tensor, "all values"]:
    """Bring the pixels of each region to a small square, values about zero."""
    pixels = screenshots.float() / 255 - 0.5
    squares: Tensor = roi_align(
        pixels, list(regions), THUMBNAIL, sampling_ratio=2, aligned=True
    ).flatten(1)
    return squares


def _patches(
    page: UInt8[Tensor, "3 h w"],
) -> tuple[Float[Tensor, "n values"], Tensor, tuple[int, int]]:
    """Cut a page into overlapping grey patches of unit norm; tell the flat ones and the grid."""
    grey = page.float().mean(dim=0)[None, None] / 255
    grid = tuple((side - SIDE) // STRIDE + 1 for side in page.shape[1:])
    patches = F.unfold(grey, SIDE, stride=STRIDE)[0].T
    patches = patches - patches.mean(dim=1, keepdim=True)
    norms = patches.norm(dim=1)
    return patches / (norms[:, None] + 1e-3), norms < _FLAT, (grid[0], grid[1])
