"""Splits of a release as batches of tensors: regions, tokens and lengths by pair_index."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import REGIONS
from now_builder.formats.noise import images_of_captions, matched, read_noise
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings, ModelSettings
from pc2_baseline.data.pixels import PixelReader
from pc2_baseline.data.readers import Reader, check_layout, make_reader
from pc2_baseline.data.words import SeenWords

_SCAN = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Some pairs of a split.

    Attributes:
        regions: Features, or the images that a network reads.
        tokens: Token ids with ``<start>`` and ``<end>``, padded with zeros, or letter vectors.
        lengths: Number of tokens of each caption, on the CPU.
        pair_index: Rows of the split.
    """

    regions: Float[Tensor, "batch rows width"]
    tokens: Num[Tensor, "batch words"]
    lengths: Int[Tensor, " batch"]
    pair_index: Int[Tensor, " batch"]


@dataclass(frozen=True, slots=True)
class PairSet:
    """A split, ready to be cut into batches; a pair is a caption with the image assigned to it.

    Attributes:
        regions: Array-like (images, 36, features): on the GPU, in memory, memory-mapped or an
            HDF5 dataset.
        captions: Token ids of each pair with ``<start>`` and ``<end>``, or letter vectors.
        fingerprint: Fingerprint of the split and tokenizer.
        device: Device of the batches.
        image_of: Row of ``regions`` of each pair.
        matched: Whether each pair is matched, if a noise file or a truth for training is given.
        words: Words read on each region; ``None`` if the detector does not read.
    """

    regions: Any
    captions: Sequence[Num[np.ndarray, " _"]]
    fingerprint: str
    device: torch.device
    image_of: Int[np.ndarray, " pairs"]
    matched: Bool[np.ndarray, " pairs"] | None = None
    words: SeenWords | None = None

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self.regions.shape[0])

    @property
    def features(self) -> int:
        """Width of a region."""
        return int(self.regions.shape[2])

    def matched_rows(self) -> Int[np.ndarray, " matched"]:
        """Return the pair indices of the matched pairs."""
        if self.matched is None:
            raise ConfigError(
                "method mscn and method.matched_only: matched pairs are unknown; set data.truth or "
                "data.noise_file"
            )
        return np.flatnonzero(self.matched)

    def batch(self, pair_index: Int[np.ndarray, " batch"]) -> Batch:
        """Read some pairs, in the given order."""
        tokens, lengths = self.caption_batch(pair_index)
        return Batch(
            self.image_batch(self.image_of[pair_index]),
            tokens,
            lengths,
            torch.from_numpy(pair_index.astype(np.int64)),
        )

    def image_batch(self, images: Int[np.ndarray, " batch"]) -> Float[Tensor, "batch rows width"]:
        """Read some images by their row of ``regions``."""
        if isinstance(self.regions, Tensor):
            rows = send(torch.from_numpy(images.astype(np.int64)), self.regions.device)
            regions = self.regions[rows].to(self.device, torch.float32)
        else:
            order, back = np.unique(images, return_inverse=True)
            stored: np.ndarray = np.asarray(self.regions[order], dtype=np.float32)
            regions = torch.from_numpy(stored[back]).to(self.device)
        return regions

    def caption_batch(
        self, pair_index: Int[np.ndarray, " batch"]
    ) -> tuple[Num[Tensor, "batch words"], Int[Tensor, " batch"]]:
        """Read the captions of some pairs: tokens and lengths."""
        tokens, lengths = pad([self.captions[row] for row in pair_index])
        return send(tokens, self.device), lengths


def send(numbers: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting for earlier work on a GPU."""
    if device.type == "cuda":
        return numbers.pin_memory().to(device, non_blocking=True)
    return numbers.to(device)


def pad(
    captions: Sequence[Num[np.ndarray, " _"]],
) -> tuple[Num[Tensor, "batch words"], Int[Tensor, " batch"]]:
    """Pad captions with zeros to one length; return them and their true lengths."""
    lengths = np.array([len(caption) for caption in captions])
    tokens = np.zeros((len(captions), lengths.max()), dtype=captions[0].dtype)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(captions)
    return torch.from_numpy(tokens), torch.from_numpy(lengths)


def cut(
    pair_index: Int[np.ndarray, " pairs"], size: int, generator: np.random.Generator | None = None
) -> list[Int[np.ndarray, " _"]]:
    """Cut pairs into the fewest batches of at most ``size`` (2 or more), of nearly equal sizes.

    A pair alone would have no negative: a batch of two may get a third one. A generator shuffles
    the pairs first.
    """
    order = pair_index if generator is None else generator.permutation(pair_index)
    return list(np.array_split(order, max(1, min(-(-len(order) // size), len(order) // 2))))


def full_batches(
    pair_index: Int[np.ndarray, " pairs"], size: int, generator: np.random.Generator | None = None
) -> list[Int[np.ndarray, " _"]]:
    """Cut pairs into full batches and one with the remainder, which may be a single pair.

    Source:
        PyTorch's ``DataLoader``, and with it the released codes of the field.
    """
    order = pair_index if generator is None else generator.permutation(pair_index)
    return [order[start : start + size] for start in range(0, len(order), size)]


Cut = Callable[
    [Int[np.ndarray, " pairs"], int, np.random.Generator | None], list[Int[np.ndarray, " _"]]
]
"""Function that cuts pairs into batches: :func:`cut` or :func:`full_batches`."""


def cycle_batches(
    pair_index: Int[np.ndarray, " pairs"],
    size: int,
    generator: np.random.Generator,
    into_batches: Cut = cut,
) -> Iterator[Int[np.ndarray, " _"]]:
    """Yield batches endlessly, reshuffled after each pass; none if there are no pairs."""
    while len(pair_index):
        yield from into_batches(pair_index, size, generator)


@contextmanager
def open_pairs(
    release: Path,
    split: Split,
    data: DataSettings,
    device: torch.device,
    model: ModelSettings | None = None,
) -> Iterator[PairSet]:
    """Open a split for training or prediction by a network; see :func:`open_split`."""
    check_layout(release, data)
    with open_split(make_reader(release, data, model), split, device) as pairs:
        yield pairs


@contextmanager
def open_split(reader: Reader, split: Split, device: torch.device) -> Iterator[PairSet]:
    """Open a split; in the training split, a noise file assigns an image to each caption.

    Raises:
        FormatError: If a file is missing or damaged, counts disagree, a caption is empty or has an
            id outside the vocabulary, a region is all zero or not finite, or the noise file does
            not fit the split.
        ConfigError: If captions cannot be cut into words.
    """
    data = reader.data
    with ExitStack() as stack:
        origin, regions, captions = reader.read(split, stack)
        are_features = not isinstance(reader, PixelReader)
        if are_features and (len(regions.shape) != 3 or regions.shape[1] != REGIONS):
            problem = f"features of shape {regions.shape}, expected (images, {REGIONS}, dim)"
            raise FormatError(origin, problem)
        pairs, images = len(captions), int(regions.shape[0])
        gib = int(np.prod(regions.shape)) * regions.dtype.itemsize / 2**30
        on_gpu = device.type == "cuda" and gib <= data.device_gb
        if on_gpu or gib <= data.memory_gb:
            regions = np.array(regions)
        if are_features:
            check_regions(origin, regions, allow_zero_rows=data.allow_zero_rows)
        if on_gpu:
            regions = torch.from_numpy(regions).to(device)
        image_of, truth = images_of_captions(pairs, images), None
        if split == "train" and data.noise_file is not None:
            image_of = read_noise(data.noise_file, pairs, images)
            truth = matched(image_of, images)
        fingerprint, words = reader.fingerprint(split), reader.words(split)
        yield PairSet(regions, captions, fingerprint, device, image_of, truth, words)


def check_regions(origin: Path, regions: Any, *, allow_zero_rows: bool) -> None:
    """Check that features are finite, and no image nor (by default) region is all zero."""
    for start in range(0, regions.shape[0], _SCAN):
        rows: np.ndarray = np.asarray(regions[start : start + _SCAN])
        bad = ~np.isfinite(rows).all(axis=(1, 2))
        if bad.any():
            raise FormatError(origin, f"image {start + bad.argmax()}: features that are not finite")
        zero = np.asarray(~rows.any(axis=2))
        invalid = np.asarray(zero.all(axis=1) if allow_zero_rows else zero.any(axis=1))
        if invalid.any():
            image = int(invalid.argmax())
            hint = "" if zero[image].all() else "; --set data.allow_zero_rows=true accepts them"
            problem = f"{int(zero[image].sum())} of {REGIONS} regions are all zero{hint}"
            raise FormatError(origin, f"image {start + image}: {problem}")
