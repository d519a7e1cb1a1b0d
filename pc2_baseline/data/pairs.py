"""Splits of a release as batches of tensors: regions, tokens and lengths by pair_index."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from now_builder.errors import ConfigError, FormatError
from now_builder.formats import word_vectors
from now_builder.formats.benchmarks import NOW_NAMES, PRECOMP
from now_builder.formats.captions import Vocabulary
from now_builder.formats.features import REGIONS
from now_builder.formats.noise import matched, own_images, read_noise
from now_builder.formats.precomp import captions_path, read_texts, stem
from now_builder.formats.release import (
    Captions,
    data_folder,
    features_hashes,
    is_ours,
    open_regions,
    read_pairs,
    read_release_vocabulary,
    read_split_captions,
    region_attributes,
)
from now_builder.formats.split import SPLITS, Split
from pc2_baseline.config import DataSettings
from pc2_baseline.data import precomp
from pc2_baseline.data.seen_words import SeenWords

_SCAN = 512

_Sides = tuple[Path, Any, list[Int[np.ndarray, " _"]]]
"""Path of a split's features, for messages, the features, and the framed captions."""


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
    """A split, ready to be cut into batches; a pair is a caption with the image assigned to it.

    Attributes:
        regions: Array-like (images, 36, features): on the GPU, in memory, memory-mapped or an
            HDF5 dataset.
        captions: Ids of each pair with ``<start>`` and ``<end>``.
        fingerprint: Fingerprint of the split and tokenizer.
        device: Device of the batches.
        image_of: Row of ``regions`` of each pair.
        matched: Whether each pair is matched, if a noise file says so, or a truth that the
            training asks for.
        words: Which columns of a region hold the words that its detector read, and how captions
            are compared with them; ``None`` where the detector does not read.
    """

    regions: Any
    captions: Sequence[Int[np.ndarray, " _"]]
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
        """Return the pair indices of the matched pairs.

        Raises:
            ConfigError: If it is not known which ones match.
        """
        if self.matched is None:
            raise ConfigError(
                "method.matched_only: it is not known which pairs match, expected data.truth or "
                "data.noise_file"
            )
        return np.flatnonzero(self.matched)

    def batch(self, pair_index: Int[np.ndarray, " batch"]) -> Batch:
        """Read some pairs, in the order asked for."""
        tokens, lengths = self.caption_batch(pair_index)
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
        order, back = np.unique(images, return_inverse=True)
        stored: np.ndarray = np.asarray(self.regions[order], dtype=np.float32)
        return torch.from_numpy(stored[back]).to(self.device)

    def caption_batch(
        self, pair_index: Int[np.ndarray, " batch"]
    ) -> tuple[Int[Tensor, "batch words"], Int[Tensor, " batch"]]:
        """Read the captions of some pairs: tokens and lengths."""
        tokens, lengths = pad([self.captions[row] for row in pair_index])
        return tokens.to(self.device), lengths


def pad(
    captions: Sequence[Int[np.ndarray, " _"]],
) -> tuple[Int[Tensor, "batch words"], Int[Tensor, " batch"]]:
    """Pad captions with zeros to one length; return them and their true lengths."""
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
        pair_index: Pairs to cut.
        size: Largest batch, 2 or more.
        generator: Shuffles the pairs first; without it they stay in order.
    """
    order = pair_index if generator is None else generator.permutation(pair_index)
    return list(np.array_split(order, max(1, min(-(-len(order) // size), len(order) // 2))))


def cut_full(
    pair_index: Int[np.ndarray, " pairs"], size: int, generator: np.random.Generator | None = None
) -> list[Int[np.ndarray, " _"]]:
    """Cut pairs into full batches and one with what is left, which may be a single pair.

    The arguments are those of :func:`cut`.

    Source:
        PyTorch's ``DataLoader``, and with it the released codes of the field.
    """
    order = pair_index if generator is None else generator.permutation(pair_index)
    return [order[start : start + size] for start in range(0, len(order), size)]


Cut = Callable[
    [Int[np.ndarray, " pairs"], int, np.random.Generator | None], list[Int[np.ndarray, " _"]]
]
"""How pairs are cut into batches: :func:`cut` or :func:`cut_full`."""


def endless(
    pair_index: Int[np.ndarray, " pairs"],
    size: int,
    generator: np.random.Generator,
    into_batches: Cut = cut,
) -> Iterator[Int[np.ndarray, " _"]]:
    """Cut pairs into batches again and again, shuffled anew each time; nothing from nothing."""
    while len(pair_index):
        yield from into_batches(pair_index, size, generator)


def read_vocabulary(release: Path, data: DataSettings) -> Vocabulary:
    """Read the vocabulary of the track, or data set, and check that it can frame captions.

    Raises:
        FormatError: If it is missing or has no ``<start>`` or ``<end>``.
    """
    if precomp.is_precomp(data):
        return precomp.read_vocabulary(release, data)
    path = data.vocab_path
    if path is not None and path.is_dir():
        path = precomp.find_in(path, [f"{name}_vocab_{data.tokenizer}.json" for name in NOW_NAMES])
    vocabulary = read_release_vocabulary(release, data.tokenizer, path)
    for token in ("<start>", "<end>"):
        if token not in vocabulary.word2idx:
            raise FormatError(
                path or release / "vocab", f"no token {token}, expected it in word2idx"
            )
    return vocabulary


def hash_of_vocabulary(vocabulary: Vocabulary) -> str:
    """Identify a vocabulary by its tokens and their ids."""
    lines = (f"{index}\t{word}\n" for word, index in sorted(vocabulary.word2idx.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """What tells the data of a training from others.

    Attributes:
        fingerprints: Fingerprint of each split, as :attr:`ReleaseReader.fingerprints` returns it.
        features_sha256: SHA-256 of each split's feature file, from the manifest; empty without one.
        vocabulary_sha256: Hash of the vocabulary, as :func:`hash_of_vocabulary` returns it;
            ``None`` where it is not known.
    """

    fingerprints: dict[Split, str]
    features_sha256: dict[Split, str]
    vocabulary_sha256: str | None


def frame(
    path: Path, captions: Captions, vocabulary: Vocabulary, max_tokens: int | None
) -> list[Int[np.ndarray, " _"]]:
    """Add ``<start>`` and ``<end>`` to each caption.

    Args:
        path: The caption file, for the message.
        captions: Content ids.
        vocabulary: Vocabulary of the same tokenizer.
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


class ReleaseReader:
    """Read vocabulary, captions and splits of a data set, each file once.

    Args:
        release: Folder of the data set.
        data: What is read from it.

    Raises:
        FormatError: If it is another data set, or has no such track.
    """

    def __init__(self, release: Path, data: DataSettings) -> None:
        _check_layout(release, data)
        self.release = release
        self.data = data
        self._captions: dict[Split, Captions] = {}
        self._fingerprints: dict[Split, str] = {}

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary, see :func:`read_vocabulary`."""
        return read_vocabulary(self.release, self.data)

    @cached_property
    def fingerprints(self) -> dict[Split, str]:
        """Fingerprint of each split that is there; no features are read."""
        return {split: self.fingerprint(split) for split in SPLITS if self._path(split).exists()}

    @cached_property
    def identity(self) -> DataIdentity:
        """What tells these data from others; no features are read."""
        vocabulary = hash_of_vocabulary(self.vocabulary)
        return DataIdentity(self.fingerprints, features_hashes(self.release), vocabulary)

    def fingerprint(self, split: Split) -> str:
        """Identify a split.

        Raises:
            FormatError: If its captions cannot be read.
        """
        if split not in self._fingerprints:
            if precomp.is_precomp(self.data):
                found = precomp.fingerprint(self.release, split, self.data)
            else:
                found = self._read(split).fingerprint
            self._fingerprints[split] = found
        return self._fingerprints[split]

    @contextmanager
    def open(self, split: Split, device: torch.device) -> Iterator[PairSet]:
        """Open a split, see :func:`open_pairs`; its captions are let go of."""
        data = self.data
        layout = self._open_precomp if precomp.is_precomp(data) else self._open_now
        with ExitStack() as stack:
            origin, regions, captions = layout(split, stack)
            pairs, images = len(captions), int(regions.shape[0])
            regions, on_gpu = _in_memory(regions, data, device)
            check_regions(origin, regions, allow_zero_rows=data.allow_zero_rows)
            if on_gpu:
                regions = torch.from_numpy(regions).to(device)
            image_of, truth = own_images(pairs, images), None
            if split == "train" and data.noise_file is not None:
                image_of = read_noise(data.noise_file, pairs, images)
                truth = matched(image_of, images)
            prints = self.fingerprint(split)
            self._captions.pop(split, None)
            words = None if precomp.is_precomp(data) else self._words(split)
            yield PairSet(regions, captions, prints, device, image_of, truth, words)

    def _words(self, split: Split) -> SeenWords | None:
        """Return the words of a split, where the detector of its features reads."""
        columns = word_vectors.read_columns(region_attributes(self.release, split))
        if columns is None:
            return None
        return SeenWords(columns, self.vocabulary.idx2word, self.data.tokenizer)

    def _path(self, split: Split) -> Path:
        """Return the caption file of a split."""
        if precomp.is_precomp(self.data):
            return captions_path(self.release, split, self.data.name)
        return data_folder(self.release) / f"{split}_caps_{self.data.tokenizer}.txt"

    def _read(self, split: Split) -> Captions:
        if split not in self._captions:
            tokenizer = self.data.tokenizer
            self._captions[split] = read_split_captions(self.release, split, tokenizer)
        return self._captions[split]

    def _open_now(self, split: Split, stack: ExitStack) -> _Sides:
        origin = data_folder(self.release) / split
        vocabulary = self.vocabulary
        regions = stack.enter_context(open_regions(self.release, split))
        _check_shape(origin, regions)
        path = self._path(split)
        framed = frame(path, self._read(split), vocabulary, self.data.max_tokens)
        if not framed or regions.shape[0] != len(framed):
            raise FormatError(
                path,
                f"{len(framed)} captions for {regions.shape[0]} images, "
                "expected as many, and at least one",
            )
        return origin, regions, framed

    def _open_precomp(self, split: Split, _: ExitStack) -> _Sides:
        data, path = self.data, self._path(split)
        vocabulary = self.vocabulary
        texts = read_texts(path)
        regions = precomp.read_images(self.release, split, data.name, len(texts))
        origin = path.with_name(f"{stem(data.name, split)}_ims.npy")
        _check_shape(origin, regions)
        if split == "dev" and data.dev_images:
            each = len(texts) // len(regions)
            regions = regions[: data.dev_images]
            texts = texts[: each * len(regions)]
        return origin, regions, precomp.encode(texts, vocabulary, data)


def open_pairs(
    release: Path, split: Split, data: DataSettings, device: torch.device
) -> AbstractContextManager[PairSet]:
    """Open a split for training or prediction.

    Of the training split, a noise file says which image each caption is given.

    Raises:
        FormatError: If a file is missing or torn, counts disagree, a caption is empty or has an
            id outside the vocabulary, a region is all zero or not finite, or the noise file is
            not one of this split.
        ConfigError: If captions cannot be cut into words.
    """
    return ReleaseReader(release, data).open(split, device)


def _in_memory(regions: Any, data: DataSettings, device: torch.device) -> tuple[Any, bool]:
    """Read regions into memory if they fit; also return whether they fit on the GPU."""
    kind = np.dtype(np.float16) if data.hold == "fp16" else regions.dtype
    gib = int(np.prod(regions.shape)) * kind.itemsize / 2**30
    on_gpu = device.type == "cuda" and gib <= data.device_gb
    if gib > data.memory_gb and not on_gpu:
        return regions, False
    return np.array(regions, dtype=kind), on_gpu


def tracks_of(release: Path) -> list[str]:
    """Name the tokenizers that NoW's captions are cut by in a folder, if it holds NoW."""
    try:
        folder = data_folder(release)
    except FormatError:
        return []
    return sorted({path.stem.partition("_caps_")[2] for path in folder.glob("*_caps_*.txt")})


def _check_layout(release: Path, data: DataSettings) -> None:
    """Raise an error that names what is there, if another data set or track is asked for."""
    tracks, own = tracks_of(release), release.resolve().name
    if not precomp.is_precomp(data) and not tracks:
        there = next((name for name in PRECOMP if name == own or (release / name).is_dir()), None)
        if there:
            raise FormatError(release, f"holds {there}: --set data.name={there} reads it")
    elif precomp.is_precomp(data) and tracks and not (release / data.name).is_dir():
        name = DataSettings().name
        raise FormatError(release, f"holds NoW: --set data.name={name} reads it, not {data.name}")
    elif not precomp.is_precomp(data) and data.tokenizer not in tracks:
        problem = f"no track {data.tokenizer}, it has {', '.join(tracks)}"
        raise FormatError(release, f"{problem}: --set data.tokenizer={tracks[0]}")


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


def pair_names(release: Path, data: DataSettings, pairs: int) -> dict[str, list[str]]:
    """Return the names of the training pairs under each column that a truth file may have.

    Args:
        release: Ours; or the authors' archive, which has keys alone; or a data set of the field,
            whose keys are row numbers.
        data: What is read from it.
        pairs: Number of training pairs.
    """
    if precomp.is_precomp(data):
        return {"key": [str(row) for row in range(pairs)]}
    if is_ours(release):
        found = [pair for pair in read_pairs(release) if pair.split == "train"]
        found.sort(key=lambda pair: pair.pair_index)
        return {"key": [pair.key for pair in found], "url": [pair.url for pair in found]}
    return {"key": read_split_captions(release, "train", data.tokenizer).keys}


def check_regions(origin: Path, regions: Any, *, allow_zero_rows: bool) -> None:
    """Refuse features that are not finite, and images or regions that are all zero.

    Args:
        origin: Path named in the message.
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
