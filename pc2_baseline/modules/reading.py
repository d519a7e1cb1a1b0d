"""Words that a detector read against words of captions, each set of vectors evened out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.data.words import SeenWords
from pc2_baseline.networks.encoders import Loss
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.reading import (
    FEWEST,
    ReadingImageEncoder,
    Whitening,
    Whitenings,
    WordSides,
    fit_whitening,
)

_IMAGES = 128


@dataclass(frozen=True, slots=True)
class Reading(Whitenings):
    """How words that were read are compared with words that are written."""

    def page_vectors(self, split: PairSet) -> Float[Tensor, "images width"]:
        """Return a unit vector of the words on each page."""
        return self.pages(torch.cat([block.mean(1) for block in read_blocks(split)]))

    def caption_vectors(self, split: PairSet) -> Float[Tensor, "pairs width"]:
        """Return a unit vector of each caption's letters."""
        return self.captions(_written(split))

    def best_regions(
        self, split: PairSet, captions: Float[Tensor, "pairs width"]
    ) -> Float[Tensor, "images pairs"]:
        """Return the cosine of each caption with the region of each page that is nearest to it."""
        letters = unit(captions)
        return torch.cat(
            [(self._regions(block) @ letters.T).amax(1) for block in read_blocks(split)]
        )

    def best_regions_of(
        self,
        split: PairSet,
        captions: Float[Tensor, "captions width"],
        rows: Int[Tensor, "pairs each"],
    ) -> Float[Tensor, "pairs each"]:
        """Return the same of some captions (``rows``) of each pair with the pair's page."""
        letters = unit(captions)
        places = [torch.from_numpy(place) for place in cut(np.arange(len(split)), _IMAGES)]
        blocks = read_blocks(split, split.image_of)
        return torch.cat([
            torch.einsum("brd,bed->bre", self._regions(block), letters[rows[place]]).amax(1)
            for place, block in zip(places, blocks, strict=True)
        ])  # fmt: skip

    def _regions(self, words: Float[Tensor, "n 36 256"]) -> Float[Tensor, "n 36 256"]:
        """Return unit vectors of regions; zero where there are no words."""
        shown = words.norm(dim=2, keepdim=True) > FEWEST
        vectors: Tensor = self.regions(unit(words)) * shown
        return vectors

    def state(self) -> dict[str, Tensor]:
        """Return its tensors by name."""
        named = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return {
            f"{name}_{part}": value
            for name, own in named
            for part, value in (("mean", own.mean), ("matrix", own.matrix))
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Reading":
        """Make one from :meth:`state`."""
        names = [field.name for field in fields(cls)]
        return cls(*(Whitening(state[f"{name}_mean"], state[f"{name}_matrix"]) for name in names))


def fit_reading(train: PairSet) -> Reading:
    """Fit the maps to the pages and captions of the training split."""
    return Reading(*_fit_pages(train), fit_whitening([_written(train)]))


def fit_word_sides(train: PairSet) -> WordSides:
    """Fit the maps of a network that reads to the training split."""
    columns, standard = words_of(train).columns, centre_and_scale(mean_regions(train))
    return WordSides(*_fit_pages(train), fit_whitening([_written(train)]), columns, *standard)


def _written(split: PairSet) -> Float[Tensor, "pairs 256"]:
    """Return the vectors of captions' letters, as :func:`with_texts` has them."""
    return torch.from_numpy(np.stack(split.captions)).double()


def _fit_pages(train: PairSet) -> tuple[Whitening, Whitening]:
    """Fit the maps of pages' mean words and of single regions' words."""
    pages = fit_whitening(block.mean(1) for block in read_blocks(train))
    regions = fit_whitening(unit(block[block.norm(dim=2) > FEWEST]) for block in read_blocks(train))
    return pages, regions


def mean_regions(split: PairSet) -> Float[Tensor, "images features"]:
    """Return the mean region of each image of a split, in float64 on the CPU."""
    blocks = cut(np.arange(split.images), _IMAGES)
    return torch.cat(
        [split.image_batch(rows).mean(1, dtype=torch.float64).cpu() for rows in blocks]
    )


def centre_and_scale(
    pages: Float[Tensor, "images features"],
) -> tuple[Float[Tensor, " features"], Float[Tensor, " features"]]:
    """Return mean and standard deviation of each feature; 1 for one that is the same everywhere."""
    spread = pages.std(0, correction=0)
    return pages.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))


def guess_scale(read: Float[Tensor, "pairs dim"], captions: Float[Tensor, "pairs dim"]) -> Loss:
    """Return the one factor of least squares from first guesses to captions, 0 if negative."""
    factor: Tensor = (read * captions).sum() / read.square().sum().clamp(min=1e-12)
    return factor.clamp(min=0)


def read_blocks(
    split: PairSet, images: np.ndarray | None = None
) -> Iterable[Float[Tensor, "n 36 256"]]:
    """Yield the word vectors of pages, in blocks, in float64 on the CPU."""
    order = np.arange(split.images) if images is None else images
    columns = words_of(split).columns
    for rows in cut(np.arange(len(order)), _IMAGES):
        yield split.image_batch(order[rows])[:, :, columns].double().cpu()


def with_texts_read(split: PairSet, settings: Settings) -> PairSet:
    """Return a split as a method takes it that reads texts; as it is for one that reads none."""
    return with_texts(split) if settings.reads else split


def with_texts(split: PairSet) -> PairSet:
    """Return a split whose captions are the vectors of their letters, in place of tokens."""
    return replace(split, captions=list(words_of(split).letters))


@torch.no_grad()
def cache_whitened(method: object, split: PairSet, memory_gb: float) -> PairSet:
    """Return a split whose regions are :meth:`ReadingImageEncoder.fixed`, computed once.

    Regions that are on the GPU or on disk stay as they are, as do all where both would take more
    than ``memory_gb`` GiB, or no network reads. The pages are taken in blocks of one size, so that
    the same epoch has the same bits after a resume.
    """
    values = [value for own in vars(method).values() for value in
              (own if isinstance(own, list) else [own])]  # fmt: skip
    parts = (part for net in values if isinstance(net, nn.Module) for part in net.modules())
    encoder = next((part for part in parts if isinstance(part, ReadingImageEncoder)), None)
    if encoder is None or type(split.regions) is not np.ndarray:
        return split
    rows = encoder.fixed(split.image_batch(np.zeros(1, dtype=np.int64))).shape[1]
    kept = split.images * rows * WIDTH * np.dtype(np.float32).itemsize
    if (split.regions.nbytes + kept) / 2**30 > memory_gb:
        return split
    regions = np.empty((split.images, rows, WIDTH), dtype=np.float32)
    for block in cut(np.arange(split.images), _IMAGES):
        regions[block] = encoder.fixed(split.image_batch(block)).cpu().numpy()
    return replace(split, regions=regions)


def words_of(split: PairSet) -> SeenWords:
    """Return the words of a split."""
    if split.words is None:
        raise ConfigError(
            "method.words or model.similarity=reading: the features of this release hold no words; "
            "expected those of a detector that reads, such as tiny-web"
        )
    return split.words
