"""A network that starts from the words read on a page and the words of a caption."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from now_builder.formats.features import REGIONS
from now_builder.formats.word_vectors import ROWS, WIDTH
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import cosine_logits
from pc2_baseline.networks.similarity import BlockSimilarity, FeatureSettings, MatchingNetwork

SKETCH_WEIGHT = 4.0
"""Weight of the cosine of two sketches, next to that of the pooled vectors."""
BOUND = 1.0 + SKETCH_WEIGHT
"""Largest similarity."""
_INITIAL_DEVIATION = 0.005
"""Standard deviation of the initial weights of the learned maps."""
POWER = 0.8
"""Exponent of the whitening: 0 leaves variances unchanged, 1 makes them equal."""
FLOOR = 0.02
"""Fraction of the largest variance that is added to each variance."""


class ReadingSettings(FeatureSettings):
    """Settings of the similarity that compares words of pages and captions."""

    @property
    def pooled_width(self) -> int:
        """Width of a pooled vector."""
        return WIDTH

    def build(self, features: int, vocabulary: int, words: Any, group: Any) -> MatchingNetwork:  # noqa: ARG002
        """Build the network; a loaded one finds the maps of its data in its state."""
        sides = words or WordSides.unknown(features)
        images = ReadingImageEncoder(features, sides, self.feature_dropout)
        return MatchingNetwork(images, ReadingCaptionEncoder(sides), ReadingSimilarity())


@dataclass(frozen=True, slots=True)
class Whitening:
    """A map that centres vectors and makes their variances more equal.

    Frequent letters and endings, which all texts have, then count less.

    Attributes:
        mean: Mean of the fitted vectors.
        matrix: Symmetric matrix that scales the principal axes.
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


def inverse_frequency(pages: Float[Tensor, "36 256"], count: int) -> Float[Tensor, "36 256"]:
    r"""Return :math:`1 + \log\frac{1 + n}{1 + n_t}` for places that n_t of n pages use."""
    return 1 + torch.log((1 + count) / (1 + pages))


def weigh(
    sketches: Float[Tensor, "n 36 256"], weights: Float[Tensor, "36 256"]
) -> Float[Tensor, "n 36 256"]:
    """Return weighted sketches of unit length; zero without words."""
    weighted: Tensor = unit((sketches * weights).flatten(1)).view(-1, ROWS, WIDTH)
    return weighted


@dataclass(frozen=True, slots=True)
class Whitenings:
    """Maps of the words on pages and in captions.

    Attributes:
        pages: Map of the mean row of pages' sketches.
        captions: Map of the mean row of captions' sketches.
        weights: Weight of each place of a sketch, higher where fewer pages use it.
    """

    pages: Whitening
    captions: Whitening
    weights: Float[Tensor, "36 256"]


@dataclass(frozen=True, slots=True)
class WordSides(Whitenings):
    """Maps of words and features that are fitted before a network is trained.

    Attributes:
        columns: Columns of a region that contain the sketch.
        centre: Mean of the pages' mean regions.
        scale: Standard deviation of the mean regions; 1 where it is zero.
    """

    columns: slice
    centre: Float[Tensor, " features"]
    scale: Float[Tensor, " features"]

    @classmethod
    def unknown(cls, features: int) -> "WordSides":
        """Return maps of the right shapes, for a network whose state is loaded afterwards."""
        zeros = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        letters, ones = Whitening(zeros[0], zeros), torch.ones(features)
        return cls(letters, letters, zeros[:ROWS], slice(0, WIDTH), ones, ones)


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
    """Encode a screenshot by its sketch and by a learned projection of the regions' mean.

    The pooled vector is the map of the sketch's mean row plus the projection of the standardised
    mean region, which is close to zero at first, scaled to unit length. The local vectors are the
    rows of the weighted sketch. :meth:`fixed` depends on no learned weight, so it can be cached.
    """

    columns: Tensor
    centre: Tensor
    scale: Tensor
    weights: Tensor

    def __init__(self, feature_dim: int, words: WordSides, feature_dropout: float) -> None:
        super().__init__()
        self.register_buffer("centre", words.centre.float())
        self.register_buffer("scale", words.scale.float())
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, WIDTH)
        _begin_near_zero(self.project)
        self.page = Whiten(words.pages)
        self.register_buffer("weights", words.weights.float())
        columns = torch.arange(words.columns.start, words.columns.stop)
        self.register_buffer("columns", columns)

    def fixed(self, regions: Float[Tensor, "images 36 features"]) -> Float[Tensor, "images n 256"]:
        """Return all inputs that no epoch changes, as rows.

        They are the 36 rows of the weighted sketch, then the map of its mean row and the
        standardised mean region, wrapped.
        """
        words = regions.index_select(2, self.columns)
        mean = (regions.mean(1) - self.centre) / self.scale
        rest = torch.cat([self.page(words.mean(1)), mean], 1)
        wrapped = functional.pad(rest, (0, -rest.shape[1] % WIDTH)).view(len(rest), -1, WIDTH)
        return torch.cat([weigh(words, self.weights), wrapped], 1)

    def forward(self, regions: Float[Tensor, "images rows width"]) -> ImageCodes:
        """Encode the screenshots of a batch, from their regions or from :meth:`fixed`."""
        fixed = self.fixed(regions) if regions.shape[1] == REGIONS else regions
        rest = fixed[:, REGIONS:].flatten(1)
        mean = rest[:, WIDTH : WIDTH + len(self.centre)]
        pooled = rest[:, :WIDTH] + self.project(unit(self.drop(mean)))
        return ImageCodes(fixed[:, :REGIONS], unit(pooled))


class ReadingCaptionEncoder(nn.Module):
    """Encode a caption by its sketch.

    The pooled vector is the mean row, whitened, then turned by a learned map that is close to the
    identity at first. The local vectors are the rows of the weighted sketch.
    """

    weights: Tensor

    def __init__(self, words: WordSides) -> None:
        super().__init__()
        self.whiten = Whiten(words.captions)
        self.register_buffer("weights", words.weights.float())
        self.turn = nn.Linear(WIDTH, WIDTH)
        _begin_near_zero(self.turn)

    def forward(
        self, written: Float[Tensor, "captions 9216"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode the captions of a batch from their sketches."""
        rows = written.float().view(-1, ROWS, WIDTH)
        letters = self.whiten(rows.mean(1))
        turned = unit(letters + self.turn(letters))
        return CaptionCodes(weigh(rows, self.weights), turned, torch.full_like(lengths, ROWS))


def _begin_near_zero(layer: nn.Linear) -> None:
    """Draw small weights: words decide at first, but two networks differ."""
    nn.init.normal_(layer.weight, std=_INITIAL_DEVIATION)
    nn.init.zeros_(layer.bias)


class ReadingSimilarity(BlockSimilarity):
    """Score by the cosine of the pooled vectors plus the weighted cosine of the sketches."""

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the similarities of a block, in [-5, 5], or their logits."""
        sketches = images.regions.flatten(1) @ captions.words.flatten(1).T
        similarity = images.pooled @ captions.pooled.T + SKETCH_WEIGHT * sketches
        return cosine_logits(similarity, BOUND) if logits else similarity
