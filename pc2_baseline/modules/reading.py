"""Words that a detector read against words of captions, each set of vectors evened out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.errors import ConfigError
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.data.seen_words import SeenWords
from pc2_baseline.networks.fused import unit

POWER = 0.8
"""How far spreads are evened out: 0 not at all, 1 wholly."""
FLOOR = 0.02
"""Share of the widest variance that is added to every variance."""
_IMAGES = 128
_FEWEST = 1e-3
"""Length below which a region shows no words."""


@dataclass(frozen=True, slots=True)
class Whitening:
    """A map that centres vectors and evens out how far they spread in each direction.

    What all texts have, frequent letters and endings, counts less for it.

    Attributes:
        mean: Mean of the vectors that it was fitted to.
        matrix: Symmetric.
    """

    mean: Float[Tensor, " dim"]
    matrix: Float[Tensor, "dim dim"]

    def __call__(self, rows: Float[Tensor, "*rows dim"]) -> Float[Tensor, "*rows dim"]:
        """Return unit vectors."""
        mapped: Tensor = unit((rows - self.mean) @ self.matrix)
        return mapped


def fit_whitening(blocks: Iterable[Float[Tensor, "_ dim"]]) -> Whitening:
    r"""Fit :math:`(\Sigma + f\sigma_1 I)^{-p/2}` to vectors, with the widest variance sigma_1.

    Args:
        blocks: The vectors, in blocks.
    """
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
class Reading:
    """How words that were read are compared with words that are written.

    Attributes:
        pages: Of pages' mean words.
        regions: Of single regions' words.
        captions: Of captions' words.
    """

    pages: Whitening
    regions: Whitening
    captions: Whitening

    def page_vectors(self, split: PairSet) -> Float[Tensor, "images 256"]:
        """Return a unit vector of what was read on each page."""
        return self.pages(torch.cat([block.mean(1) for block in read_blocks(split)]))

    def caption_vectors(self, split: PairSet) -> Float[Tensor, "pairs 256"]:
        """Return a unit vector of what each caption says."""
        return self.captions(words_of(split).vectors)

    def best_regions(
        self, split: PairSet, captions: Float[Tensor, "pairs 256"]
    ) -> Float[Tensor, "images pairs"]:
        """Return the cosine of each caption with the region of each page that is nearest to it.

        Args:
            split: The pages.
            captions: As :meth:`caption_vectors` returns them.
        """
        return torch.cat(
            [(self._regions(block) @ captions.T).amax(1) for block in read_blocks(split)]
        )

    def own_best_regions(
        self, split: PairSet, captions: Float[Tensor, "pairs 256"]
    ) -> Float[Tensor, " pairs"]:
        """Return the same of each caption with its own page."""
        own = [torch.from_numpy(rows) for rows in cut(np.arange(len(split)), _IMAGES)]
        blocks = read_blocks(split, split.image_of)
        return torch.cat([
            torch.einsum("brd,bd->br", self._regions(block), captions[rows]).amax(1)
            for rows, block in zip(own, blocks, strict=True)
        ])  # fmt: skip

    def _regions(self, words: Float[Tensor, "n 36 256"]) -> Float[Tensor, "n 36 256"]:
        """Return unit vectors of regions; zero where there are no words."""
        shown = words.norm(dim=2, keepdim=True) > _FEWEST
        vectors: Tensor = self.regions(unit(words)) * shown
        return vectors

    def state(self) -> dict[str, Tensor]:
        """Return its tensors by name."""
        named = (("pages", self.pages), ("regions", self.regions), ("captions", self.captions))
        return {
            f"{name}_{part}": value
            for name, own in named
            for part, value in (("mean", own.mean), ("matrix", own.matrix))
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Reading":
        """Make one from :meth:`state`."""
        return cls(*(
            Whitening(state[f"{name}_mean"], state[f"{name}_matrix"])
            for name in ("pages", "regions", "captions")
        ))  # fmt: skip


def fit_reading(train: PairSet) -> Reading:
    """Fit the three maps to the pages and captions of the training split."""
    pages = fit_whitening(block.mean(1) for block in read_blocks(train))
    regions = fit_whitening(
        unit(block[block.norm(dim=2) > _FEWEST]) for block in read_blocks(train)
    )
    return Reading(pages, regions, fit_whitening([words_of(train).vectors]))


def read_blocks(
    split: PairSet, images: np.ndarray | None = None
) -> Iterable[Float[Tensor, "n 36 256"]]:
    """Yield what was read on pages, in blocks, in float64 on the CPU.

    Args:
        split: The pages.
        images: Which, in which order; without it all.
    """
    order = np.arange(split.images) if images is None else images
    columns = words_of(split).columns
    for rows in cut(np.arange(len(order)), _IMAGES):
        yield split.image_batch(order[rows])[:, :, columns].double().cpu()


def words_of(split: PairSet) -> SeenWords:
    """Return the words of a split.

    Raises:
        ConfigError: If its features hold none.
    """
    if split.words is None:
        raise ConfigError(
            "method.words: the features of this release hold no words; expected those of a "
            "detector that reads, such as tiny-web"
        )
    return split.words
