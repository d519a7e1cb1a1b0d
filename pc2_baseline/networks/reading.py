"""A network that starts from the words read on a page and the letters of a caption."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from now_builder.formats.features import REGIONS
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes, word_mask
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import cosine_logits
from pc2_baseline.networks.similarity import BlockSimilarity, FeatureSettings, MatchingNetwork

FEWEST = 1e-3
"""Minimum vector length of a region that shows words."""
_BEGINNING = 0.005
"""Initial standard deviation of the learned maps' weights."""
POWER = 0.8
"""Strength of the whitening, from 0 (none) to 1 (full)."""
FLOOR = 0.02
"""Fraction of the largest variance that is added to every variance."""


class ReadingSettings(FeatureSettings):
    """Settings of the network that compares words read on pages with the letters of captions."""

    @property
    def pooled_width(self) -> int:
        """Width of a pooled vector: that of letters."""
        return WIDTH

    def build(self, features: int, vocabulary: int, words: Any, group: Any) -> MatchingNetwork:  # noqa: ARG002
        """Build the network; a loaded state brings the words of its data."""
        sides = words or WordSides.unknown(features)
        images = ReadingImageEncoder(features, sides, self.feature_dropout)
        return MatchingNetwork(images, ReadingCaptionEncoder(sides), ReadingSimilarity())


@dataclass(frozen=True, slots=True)
class Whitening:
    """A map that centres vectors and evens out their variance in each direction.

    It reduces the weight of frequent letters and endings, which all texts share.

    Attributes:
        mean: Mean of the vectors that it was fitted to.
        matrix: Symmetric.
    """

    mean: Float[Tensor, " dim"]
    matrix: Float[Tensor, "dim out"]

    def __call__(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows out"]:
        """Return unit vectors."""
        mapped: Tensor = unit((rows - self.mean) @ self.matrix)
        return mapped


def fit_whitening(blocks: Iterable[Float[Tensor, "_ dim"]]) -> Whitening:
    r"""Fit :math:`(\Sigma + f\sigma_1 I)^{-p/2}` to vectors, with the widest variance sigma_1."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for block in blocks:
        count, total, products = (
            count + len(block),
            total + block.sum(0),
            products + block.T @ block,
        )
    mean = total / max(1, count)
    spread, axes = torch.linalg.eigh(products / max(1, count) - mean.outer(mean))
    spread = spread.clamp(min=0)
    scale = (spread + FLOOR * spread[-1] + 1e-12).pow(-POWER / 2)
    return Whitening(mean, (axes * scale) @ axes.T)


@dataclass(frozen=True, slots=True)
class Whitenings:
    """Maps of the words that were read and of those that are written.

    Attributes:
        pages: Fitted to pages' mean words.
        regions: Fitted to single regions' words.
        captions: Fitted to captions' letters.
    """

    pages: Whitening
    regions: Whitening
    captions: Whitening


@dataclass(frozen=True, slots=True)
class WordSides(Whitenings):
    """Statistics of the words on both sides of a pair, computed before the training.

    Attributes:
        columns: Columns of a region with the words on it.
        centre: Mean of the pages' mean regions.
        scale: Their standard deviation; 1 where it is zero.
    """

    columns: slice
    centre: Float[Tensor, " features"]
    scale: Float[Tensor, " features"]

    @classmethod
    def unknown(cls, features: int) -> "WordSides":
        """Return placeholders of the right shapes, for a network whose state is loaded later."""
        zeros = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        letters, ones = Whitening(zeros[0], zeros), torch.ones(features)
        return cls(letters, letters, letters, slice(0, WIDTH), ones, ones)


class Whiten(nn.Module):
    """A fixed :class:`Whitening`, kept with the network's weights."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, fitted: Whitening) -> None:
        super().__init__()
        self.register_buffer("mean", fitted.mean.float())
        self.register_buffer("matrix", fitted.matrix.float())

    def forward(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows out"]:
        """Return unit vectors."""
        return Whitening(self.mean, self.matrix)(rows)


class ReadingImageEncoder(nn.Module):
    """Encode a screenshot by the words read on it and a correction by its mean region.

    The pooled vector is that of the page's words plus a learned projection of the standardised
    mean region, scaled to unit length; the projection is nearly zero at first. The local vectors
    are those of each region's words, zero without any. :meth:`fixed` returns the part that
    depends on no weight, which can be computed once for all epochs.
    """

    columns: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, feature_dim: int, words: WordSides, feature_dropout: float) -> None:
        super().__init__()
        self.register_buffer("centre", words.centre.float())
        self.register_buffer("scale", words.scale.float())
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, WIDTH)
        _begin_near_zero(self.project)
        self.page, self.region = Whiten(words.pages), Whiten(words.regions)
        columns = torch.arange(words.columns.start, words.columns.stop)
        self.register_buffer("columns", columns)

    def fixed(self, regions: Float[Tensor, "images 36 features"]) -> Float[Tensor, "images n 256"]:
        """Return the part that is the same in every epoch, in rows.

        The rows are the vectors of the 36 regions' words, then, wrapped, the vector of the page's
        words and the standardised mean region.
        """
        words = regions.index_select(2, self.columns)
        shown = words.norm(dim=2, keepdim=True) > FEWEST
        mean = (regions.mean(1) - self.centre) / self.scale
        rest = torch.cat([self.page(words.mean(1)), mean], 1)
        wrapped = functional.pad(rest, (0, -rest.shape[1] % WIDTH)).view(len(rest), -1, WIDTH)
        return torch.cat([self.region(unit(words)) * shown, wrapped], 1)

    def forward(self, regions: Float[Tensor, "images rows width"]) -> ImageCodes:
        """Encode the screenshots of a batch, from their regions or from :meth:`fixed`."""
        fixed = self.fixed(regions) if regions.shape[1] == REGIONS else regions
        rest = fixed[:, REGIONS:].flatten(1)
        mean = rest[:, WIDTH : WIDTH + len(self.centre)]
        pooled = rest[:, :WIDTH] + self.project(unit(self.drop(mean)))
        return ImageCodes(fixed[:, :REGIONS], unit(pooled))


class ReadingCaptionEncoder(nn.Module):
    """Encode a caption by its letters, with a learned map that is nearly the identity at first.

    The map acts on the pooled vector, not on the one local vector.
    """

    def __init__(self, words: WordSides) -> None:
        super().__init__()
        self.whiten = Whiten(words.captions)
        self.turn = nn.Linear(WIDTH, WIDTH)
        _begin_near_zero(self.turn)

    def forward(
        self, written: Float[Tensor, "captions 256"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode the captions of a batch from the vectors of their letters."""
        letters = self.whiten(written)
        turned = unit(letters + self.turn(letters))
        return CaptionCodes(letters[:, None], turned, torch.ones_like(lengths))


def _begin_near_zero(layer: nn.Linear) -> None:
    """Draw weights so small that the words decide at first, yet two networks differ."""
    nn.init.normal_(layer.weight, std=_BEGINNING)
    nn.init.zeros_(layer.bias)


class ReadingSimilarity(BlockSimilarity):
    """Score by the sum of two cosines: of the pooled vectors, and with the nearest region."""

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarities of a block, in [-2, 2], or their logits."""
        similarity = images.pooled @ captions.pooled.T + nearest_regions(images, captions)
        return cosine_logits(similarity, 2.0) if logits else similarity


def nearest_regions(images: ImageCodes, captions: CaptionCodes) -> Float[Tensor, "images captions"]:
    """Return the largest cosine of a local vector of each image with one of each caption."""
    regions, words = images.regions, captions.words
    cosines = torch.einsum("iro,cwo->icrw", regions, words)
    padding = ~word_mask(captions.lengths, words.shape[1], words.device)
    return cosines.masked_fill(padding[None, :, None], -1.0).flatten(2).amax(2)
