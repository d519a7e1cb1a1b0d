"""Compare the words that a detector read on pages with the words of captions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import FORMAT, ROWS, WIDTH
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.data.words import SeenWords
from pc2_baseline.networks.encoders import Loss
from pc2_baseline.networks.reading import (
    SKETCH_WEIGHT,
    ReadingImageEncoder,
    Whitening,
    Whitenings,
    WordSides,
    fit_whitening,
    inverse_frequency,
    weigh,
)

_IMAGES, _CAPTIONS = 128, 4096
"""Images and captions in a block."""


@dataclass(frozen=True, slots=True)
class Reading(Whitenings):
    """Fitted maps and weights that compare pages and captions by their words."""

    def page_vectors(self, split: PairSet) -> Float[Tensor, "images width"]:
        """Return a unit vector of the words on each page."""
        return self.pages(torch.cat([block.mean(1) for block in read_blocks(split)]))

    def caption_vectors(self, split: PairSet) -> Float[Tensor, "pairs width"]:
        """Return a unit vector of each caption's words."""
        return self.captions(_written(split).mean(1, dtype=torch.float64))

    def caption_sketches(self, split: PairSet) -> Float[Tensor, "pairs 36 256"]:
        """Return the weighted sketch of each caption, of unit length, in float16."""
        parts = torch.split(_written(split), _CAPTIONS)
        return torch.cat([weigh(part.float(), self.weights.float()).half() for part in parts])

    def sketch_scores(
        self, split: PairSet, sketches: Float[Tensor, "captions 36 256"]
    ) -> Float[Tensor, "images captions"]:
        """Return the weighted cosine of each page's sketch with each caption's."""
        parts = torch.split(sketches.flatten(1), _CAPTIONS)
        pages = torch.cat([*map(self._sketches, read_blocks(split))]).flatten(1)
        return torch.cat([SKETCH_WEIGHT * (pages @ part.float().T) for part in parts], 1).double()

    def sketch_scores_of(
        self,
        split: PairSet,
        sketches: Float[Tensor, "captions 36 256"],
        rows: Int[Tensor, "pairs each"],
    ) -> Float[Tensor, "pairs each"]:
        """Return the weighted cosines of each pair's page with some captions (``rows``)."""
        places = [torch.from_numpy(place) for place in cut(np.arange(len(split)), _IMAGES)]
        blocks = read_blocks(split, split.image_of)
        scores = [
            torch.einsum("brd,berd->be", self._sketches(block), sketches[rows[place]].float())
            for place, block in zip(places, blocks, strict=True)
        ]
        return SKETCH_WEIGHT * torch.cat(scores).double()

    def _sketches(self, words: Float[Tensor, "n 36 256"]) -> Float[Tensor, "n 36 256"]:
        return weigh(words.float(), self.weights.float())

    def state(self) -> dict[str, Tensor]:
        """Return its tensors by name."""
        parts = {
            f"{name}_{part}": getattr(getattr(self, name), part)
            for name in ("pages", "captions")
            for part in ("mean", "matrix")
        }
        return {**parts, "sketch_weights": self.weights}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> "Reading":
        """Create a reading from :meth:`state`."""
        pages, captions = (
            Whitening(state[f"{name}_mean"], state[f"{name}_matrix"])
            for name in ("pages", "captions")
        )
        return cls(pages, captions, state["sketch_weights"])


def fit_reading(train: PairSet) -> Reading:
    """Fit the maps to the pages and captions of the training split."""
    return Reading(*_fit(train))


def fit_word_sides(train: PairSet) -> WordSides:
    """Fit the maps of a network that reads to the training split."""
    columns, standard = words_of(train).columns, centre_and_scale(mean_regions(train))
    return WordSides(*_fit(train), columns, *standard)


def _written(split: PairSet) -> Float[Tensor, "pairs 36 256"]:
    """Return the sketches of captions, as :func:`with_texts` has them."""
    return torch.from_numpy(np.stack(split.captions)).view(-1, ROWS, WIDTH)


def _fit(train: PairSet) -> tuple[Whitening, Whitening, Tensor]:
    """Fit the maps of pages and captions, and the weight of each place of a sketch."""
    pages = fit_whitening(block.mean(1) for block in read_blocks(train))
    captions = fit_whitening([_written(train).mean(1, dtype=torch.float64)])
    counts = sum(((block != 0).double().sum(0) for block in read_blocks(train)), torch.zeros(()))
    return pages, captions, inverse_frequency(counts, train.images)


def mean_regions(split: PairSet) -> Float[Tensor, "images features"]:
    """Return the mean region of each image of a split, in float64 on the CPU."""
    blocks = cut(np.arange(split.images), _IMAGES)
    return torch.cat(
        [split.image_batch(rows).mean(1, dtype=torch.float64).cpu() for rows in blocks]
    )


def centre_and_scale(
    pages: Float[Tensor, "images features"],
) -> tuple[Float[Tensor, " features"], Float[Tensor, " features"]]:
    """Return the mean and standard deviation of each feature; 1 for a constant feature."""
    spread = pages.std(0, correction=0)
    return pages.mean(0), torch.where(spread > 0, spread, torch.ones_like(spread))


def guess_scale(read: Float[Tensor, "pairs dim"], captions: Float[Tensor, "pairs dim"]) -> Loss:
    """Return the least-squares factor from first guesses to captions, 0 if negative."""
    factor: Tensor = (read * captions).sum() / read.square().sum().clamp(min=1e-12)
    return factor.clamp(min=0)


def read_blocks(
    split: PairSet, images: np.ndarray | None = None
) -> Iterable[Float[Tensor, "n 36 256"]]:
    """Yield the sketches of pages, in blocks, in float64 on the CPU."""
    order = np.arange(split.images) if images is None else images
    columns = words_of(split).columns
    for rows in cut(np.arange(len(order)), _IMAGES):
        yield split.image_batch(order[rows])[:, :, columns].double().cpu()


def with_texts_read(split: PairSet, settings: Settings) -> PairSet:
    """Return :func:`with_texts` of a split for a method that reads texts, else the split."""
    return with_texts(split) if settings.reads else split


def with_texts(split: PairSet) -> PairSet:
    """Return a split whose captions are sketches of their texts instead of tokens."""
    return replace(split, captions=list(words_of(split).sketches))


@torch.no_grad()
def cache_whitened(method: object, split: PairSet, memory_gb: float) -> PairSet:
    """Return a split whose regions are :meth:`ReadingImageEncoder.fixed`, computed once.

    The split is returned unchanged if its regions are on the GPU or on disk, if both would take
    more than ``memory_gb`` GiB, or if no network reads. Pages are computed in blocks of one size,
    so that an epoch has the same bits after a resume.
    """
    values = [value for field in vars(method).values() for value in
              (field if isinstance(field, list) else [field])]  # fmt: skip
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
            "method.words or model.similarity=reading: the features of this release hold no words "
            f"in the format {FORMAT}; run now-builder detect again with a detector that reads, "
            "such as tiny-web"
        )
    return split.words
