"""Splits of a release as batches of tensors: regions, tokens and lengths by pair_index."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from now_builder.errors import FormatError
from now_builder.formats.benchmarks import PRECOMP
from now_builder.formats.captions import Vocabulary
from now_builder.formats.noise import matched, own_images, read_noise
from now_builder.formats.precomp import captions_path, read_texts, stem
from now_builder.formats.release import (
    Captions,
    data_folder,
    open_regions,
    read_release_vocabulary,
    read_split_captions,
)
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings
from pc2_baseline.data import precomp
from pc2_baseline.modules.image import REGIONS

_SCAN = 512


@dataclass(frozen=True, slots=True)
class Batch:
    """Some pairs of a split.

    Attributes:
        regions: Features as released.
        tokens: Ids with ``<start>`` and ``<end>``, padded with zeros.
        lengths: Tokens of each caption, on the CPU.
        pair_index: Rows of the split.
    """

    regions: Float[Tensor, "batch 36 features"]
    tokens: Int[Tensor, "batch words"]
    lengths: Int[Tensor, " batch"]
    pair_index: Int[Tensor, " batch"]


@dataclass(frozen=True, slots=True)
class PairSet:
    """A split, ready to be cut into batches; a pair is a caption with the image it is given.

    Attributes:
        regions: Array-like (images, 36, features): on the GPU, in memory, memory-mapped or an
            HDF5 dataset.
        captions: Ids of each pair with ``<start>`` and ``<end>``.
        fingerprint: Of the split and tokenizer.
        device: Where batches go.
        image_of: Row of ``regions`` of each pair.
        matched: Whether each pair has its own image, where a noise file tells.
    """

    regions: Any
    captions: Sequence[Int[np.ndarray, " _"]]
    fingerprint: str
    device: torch.device
    image_of: Int[np.ndarray, " pairs"]
    matched: Bool[np.ndarray, " pairs"] | None = None

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

    def batch(self, pair_index: Int[np.ndarray, " batch"]) -> Batch:
        """Read some pairs, in the order asked for."""
        tokens, lengths = self._tokens(pair_index)
        return Batch(
            self.image_batch(self.image_of[pair_index]),
            tokens,
            lengths,
            torch.from_numpy(pair_index.astype(np.int64)),
        )

    def image_batch(self, images: Int[np.ndarray, " batch"]) -> Float[Tensor, "batch 36 features"]:
        """Read some images by their row of ``regions``."""
        if isinstance(self.regions, Tensor):
            rows = torch.from_numpy(images.astype(np.int64)).to(self.regions.device)
            return self.regions[rows].to(self.device, torch.float32)
        return torch.from_numpy(self._regions(images)).to(self.device)

    def caption_batch(
        self, pair_index: Int[np.ndarray, " batch"]
    ) -> tuple[Int[Tensor, "batch words"], Int[Tensor, " batch"]]:
        """Read the captions of some pairs: tokens and lengths."""
        return self._tokens(pair_index)

    def _tokens(
        self, pair_index: Int[np.ndarray, " batch"]
    ) -> tuple[Int[Tensor, "batch words"], Int[Tensor, " batch"]]:
        tokens, lengths = pad([self.captions[row] for row in pair_index])
        return tokens.to(self.device), lengths

    def _regions(
        self, images: Int[np.ndarray, " batch"]
    ) -> Float[np.ndarray, "batch regions features"]:
        order, back = np.unique(images, return_inverse=True)
        rows: Float[np.ndarray, "batch regions features"] = np.asarray(
            self.regions[order], dtype=np.float32
        )[back]
        return rows


def pad(
    captions: Sequence[Int[np.ndarray, " _"]],
) -> tuple[Int[Tensor, "batch words"], Int[Tensor, " batch"]]:
    """Put captions side by side, padded with zeros; and give their lengths."""
    lengths = np.array([len(caption) for caption in captions])
    tokens = np.zeros((len(captions), lengths.max()), dtype=np.int64)
    tokens[np.arange(tokens.shape[1]) < lengths[:, None]] = np.concatenate(captions)
    return torch.from_numpy(tokens), torch.from_numpy(lengths)


def cut(
    pair_index: Int[np.ndarray, " pairs"], size: int, generator: np.random.Generator | None = None
) -> list[Int[np.ndarray, " _"]]:
    """Cut pairs into as few batches of at most ``size`` as can be, near-equal in size.

    No pair is left alone, for want of a negative, unless there is only one: batches of two may
    take a third.

    Args:
        pair_index: What to cut.
        size: Largest batch, 2 or more.
        generator: Shuffles first; without it the order stays.
    """
    order = pair_index if generator is None else generator.permutation(pair_index)
    return list(np.array_split(order, max(1, min(-(-len(order) // size), len(order) // 2))))


def endless(
    pair_index: Int[np.ndarray, " pairs"], size: int, generator: np.random.Generator
) -> Iterator[Int[np.ndarray, " _"]]:
    """Cut pairs into batches again and again, shuffled anew each time; nothing from nothing."""
    while len(pair_index):
        yield from cut(pair_index, size, generator)


def read_vocabulary(release: Path, data: DataSettings) -> Vocabulary:
    """Read the vocabulary of the track, or data set, and check that it can frame captions.

    Raises:
        FormatError: If it is missing or has no ``<start>`` or ``<end>``.
    """
    if precomp.is_precomp(data):
        return precomp.read_vocabulary(release, data)
    path = data.vocab_path
    if path is not None and path.is_dir():
        path = path / f"{data.name}_vocab_{data.tokenizer}.json"
    vocabulary = read_release_vocabulary(release, data.tokenizer, path)
    for token in ("<start>", "<end>"):
        if token not in vocabulary.word2idx:
            raise FormatError(
                path or release / "vocab", f"no token {token}, expected it in word2idx"
            )
    return vocabulary


def frame(
    path: Path, captions: Captions, vocabulary: Vocabulary, max_tokens: int | None
) -> list[Int[np.ndarray, " _"]]:
    """Put ``<start>`` and ``<end>`` around each caption.

    Args:
        path: The caption file, for the message.
        captions: Content ids.
        vocabulary: Of the same tokenizer.
        max_tokens: Content ids kept, from the front.

    Raises:
        FormatError: Naming the line of an empty caption or an id outside the vocabulary.
    """
    start, end = vocabulary.word2idx["<start>"], vocabulary.word2idx["<end>"]
    framed = []
    for line, ids in enumerate(captions.captions, 1):
        if not ids:
            raise FormatError(path, f"line {line}: an empty caption, expected at least one id")
        if max(ids) >= vocabulary.idx:
            raise FormatError(
                path,
                f"line {line}: id {max(ids)}, but the vocabulary has {vocabulary.idx} tokens "
                "(another tokenizer's vocabulary?)",
            )
        framed.append(np.array([start, *ids[:max_tokens], end], dtype=np.int64))
    return framed


@contextmanager
def open_pairs(
    release: Path, split: Split, data: DataSettings, device: torch.device
) -> Iterator[PairSet]:
    """Open a split for training or prediction.

    Of the training split, a noise file says which image each caption is given.

    Raises:
        FormatError: If a file is missing or torn, counts disagree, a caption is empty or has an
            id outside the vocabulary, a region is all zero or not finite, or the noise file is
            not one of this split.
        ConfigError: If captions cannot be cut into words.
    """
    layout = _open_precomp if precomp.is_precomp(data) else _open_now
    with ExitStack() as stack:
        side = layout(release, split, data, stack)
        regions, pairs = side.regions, len(side.captions)
        images = int(regions.shape[0])
        regions, on_gpu = _in_memory(regions, data, device)
        check_regions(side.origin, regions, allow_zero_rows=data.allow_zero_rows)
        if on_gpu:
            regions = torch.from_numpy(regions).to(device)
        image_of, truth = own_images(pairs, images), None
        if split == "train" and data.noise_file is not None:
            image_of = read_noise(data.noise_file, pairs, images)
            truth = matched(image_of, images)
        yield PairSet(regions, side.captions, side.fingerprint, device, image_of, truth)


def _in_memory(regions: Any, data: DataSettings, device: torch.device) -> tuple[Any, bool]:
    """Read regions once where they fit, else leave them where they lie; tell if a GPU has room."""
    kind = np.dtype(np.float16) if data.hold == "fp16" else regions.dtype
    gib = int(np.prod(regions.shape)) * kind.itemsize / 2**30
    on_gpu = device.type == "cuda" and gib <= data.device_gb
    if gib > data.memory_gb and not on_gpu:
        return regions, False
    return np.array(regions, dtype=kind), on_gpu


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both halves of a split as they lie there; ``origin`` is for messages about images."""

    origin: Path
    regions: Any
    captions: list[Int[np.ndarray, " _"]]
    fingerprint: str


def _open_now(release: Path, split: Split, data: DataSettings, stack: ExitStack) -> _Sides:
    folder = _now_folder(release)
    path, origin = folder / f"{split}_caps_{data.tokenizer}.txt", folder / split
    vocabulary = read_vocabulary(release, data)
    regions = stack.enter_context(open_regions(release, split))
    _check_shape(origin, regions)
    captions = read_split_captions(release, split, data.tokenizer)
    framed = frame(path, captions, vocabulary, data.max_tokens)
    if not framed or regions.shape[0] != len(framed):
        raise FormatError(
            path,
            f"{len(framed)} captions for {regions.shape[0]} images, "
            "expected as many, and at least one",
        )
    return _Sides(origin, regions, framed, captions.fingerprint)


def _now_folder(release: Path) -> Path:
    """Find the folder of NoW's arrays; where another data set lies instead, say so."""
    try:
        return data_folder(release)
    except FormatError:
        for name in PRECOMP:
            if release.resolve().name == name or (release / name).is_dir():
                raise FormatError(
                    release, f"holds {name}: --set data.name={name} reads it"
                ) from None
        raise


def _open_precomp(release: Path, split: Split, data: DataSettings, _: ExitStack) -> _Sides:
    path = captions_path(release, split, data.name)
    vocabulary = precomp.read_vocabulary(release, data)
    texts = read_texts(path)
    regions = precomp.read_images(release, split, data.name, len(texts))
    origin = path.with_name(f"{stem(data.name, split)}_ims.npy")
    _check_shape(origin, regions)
    if split == "dev" and data.dev_images:
        each = len(texts) // len(regions)
        regions = regions[: data.dev_images]
        texts = texts[: each * len(regions)]
    framed = precomp.encode(texts, vocabulary, data)
    return _Sides(origin, regions, framed, precomp.fingerprint(release, split, data))


def _check_shape(origin: Path, regions: Any) -> None:
    if len(regions.shape) != 3 or regions.shape[1] != REGIONS:
        raise FormatError(
            origin, f"features of shape {regions.shape}, expected (images, {REGIONS}, dim)"
        )


def count_train(release: Path, data: DataSettings) -> tuple[int, int]:
    """Count captions and images of the training split, reading as little as can be.

    Raises:
        FormatError: If they cannot be read or are no multiple of each other.
    """
    if precomp.is_precomp(data):
        texts = read_texts(captions_path(release, "train", data.name))
        regions = precomp.read_images(release, "train", data.name, len(texts))
        return len(texts), len(regions)
    with open_regions(release, "train") as found:
        return int(found.shape[0]), int(found.shape[0])


def check_regions(origin: Path, regions: Any, *, allow_zero_rows: bool) -> None:
    """Refuse features that are not finite, and images or regions that are all zero.

    Args:
        origin: For the message.
        regions: Array-like (images, 36, features).
        allow_zero_rows: Take zero regions, but never a whole image of them.

    Raises:
        FormatError: Naming the first such image.
    """
    for start in range(0, regions.shape[0], _SCAN):
        rows: np.ndarray = np.asarray(regions[start : start + _SCAN])
        bad = ~np.isfinite(rows).all(axis=(1, 2))
        if bad.any():
            raise FormatError(origin, f"image {start + bad.argmax()}: features that are not finite")
        zero = np.asarray(~rows.any(axis=2))
        refused = np.asarray(zero.all(axis=1) if allow_zero_rows else zero.any(axis=1))
        if refused.any():
            image = int(refused.argmax())
            hint = "" if zero[image].all() else "; --set data.allow_zero_rows=true takes them"
            raise FormatError(
                origin,
                f"image {start + image}: {int(zero[image].sum())} of {REGIONS} regions are all zero"
                f"{hint}",
            )
