"""Read Flickr30K, MS-COCO and CC152K from their ``*_precomp`` folders."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from now_builder.errors import FormatError
from now_builder.formats.captions import Vocabulary
from now_builder.formats.captions import read_vocabulary as read_json_vocabulary
from now_builder.formats.io import sha256_of
from now_builder.formats.precomp import (
    benchmark_of,
    captions_path,
    file_stem,
    precomp_folder,
    read_texts,
)
from now_builder.formats.release import read_published_regions
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings
from pc2_baseline.data.words import SeenWords, cut_captions

SplitArrays = tuple[Path, Any, list[Int[np.ndarray, " _"]]]
"""Path of a split's features (for messages), the features, and the ids of each caption."""


class PrecompReader:
    """Read a ``*_precomp`` data set from its folder or the parent folder."""

    encoder_sha256 = None

    def __init__(self, release: Path, data: DataSettings) -> None:
        self.release = release
        self.data = data

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the data set."""
        return read_vocabulary(self.release, self.data)

    def captions_path(self, split: Split) -> Path:
        """Return the caption file of a split."""
        return captions_path(self.release, split, self.data.name)

    def fingerprint(self, split: Split) -> str:
        """Identify a split by its caption file, its vocabulary and the size of its image file.

        The images themselves are tens of GB and are not hashed.
        """
        images = self._images_path(split)
        vocabulary = sha256_of(vocabulary_path(self.release, self.data))
        size = images.stat().st_size if images.exists() else 0
        text = f"{sha256_of(self.captions_path(split))}\n{vocabulary}\n{size}\n"
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, split: Split, stack: ExitStack) -> SplitArrays:  # noqa: ARG002 - nothing to close
        """Read a split's captions and map its images into memory; see ``data.dev_images``."""
        data, vocabulary = self.data, self.vocabulary
        texts = read_texts(self.captions_path(split))
        regions = read_images(self.release, split, data.name, len(texts))
        if split == "dev" and data.dev_images:
            each = len(texts) // len(regions)
            regions = regions[: data.dev_images]
            texts = texts[: each * len(regions)]
        return self._images_path(split), regions, encode(texts, vocabulary, data)

    def words(self, split: Split) -> SeenWords | None:  # noqa: ARG002 - of no split
        """Return ``None``: these data sets have no words read on images."""
        return None

    def count_train(self) -> tuple[int, int]:
        """Return the number of captions and of images of the training split."""
        texts = read_texts(self.captions_path("train"))
        return len(texts), len(read_images(self.release, "train", self.data.name, len(texts)))

    def pair_names(self, pairs: int) -> dict[str, list[str]]:
        """Return row numbers as the keys of the training pairs."""
        return {"key": [str(row) for row in range(pairs)]}

    def _images_path(self, split: Split) -> Path:
        return self.captions_path(split).with_name(f"{file_stem(self.data.name, split)}_ims.npy")


def read_images(
    release: Path, split: Split, name: str, captions: int
) -> Shaped[np.ndarray, "images regions dim"]:
    """Map a split's images into memory, one row per image, also if the file repeats rows.

    Files have one row per image, or one row per caption with the rows of an image in sequence. If
    dev or test of Flickr30K or MS-COCO has as many rows as captions, the first regions of each five
    rows are compared: if they are equal in all groups, every fifth row is an image; if in none,
    every row is.

    Raises:
        FormatError: If the file is missing or damaged, captions are no multiple of images, or some
            images are repeated and others are not.
    """
    path = precomp_folder(release, name) / f"{file_stem(name, split)}_ims.npy"
    regions = read_published_regions(path)
    if regions.shape[0] == 0 or captions % regions.shape[0]:
        problem = f"{regions.shape[0]} images for {captions} captions"
        raise FormatError(path, f"{problem}, expected a divisor of it")
    each = benchmark_of(name).each
    one_each = regions.shape[0] == captions and captions % each == 0
    if each == 1 or split == "train" or not one_each:
        return regions
    # Whether each group of rows begins with the same region.
    groups = (np.asarray(regions[row : row + each, 0]) for row in range(0, len(regions), each))
    repeated = np.array([bool((rows == rows[0]).all()) for rows in groups])
    if repeated.all():
        return regions[::each]
    if repeated.any():
        one, other = int(repeated.argmax()) * each, int(repeated.argmin()) * each
        problem = f"{one + each - 1} are one image, rows {other} to {other + each - 1} are not"
        raise FormatError(path, f"rows {one} to {problem}: expected all images five times, or none")
    return regions


def read_vocabulary(release: Path, data: DataSettings) -> Vocabulary:
    """Read the vocabulary of a data set; its size is the number of words.

    Raises:
        FormatError: If it is missing, lacks a special token or has an id outside its size.
    """
    path = vocabulary_path(release, data)
    vocabulary = read_json_vocabulary(path)
    ids, size = vocabulary.word2idx, len(vocabulary.word2idx)
    missing = [token for token in ("<pad>", "<start>", "<end>", "<unk>") if token not in ids]
    if missing or ids["<pad>"] != 0:
        problem = f"no token {missing[0]}" if missing else f"<pad> is {ids['<pad>']}"
        raise FormatError(path, f"{problem}, expected <pad> (0), <start>, <end> and <unk>")
    if max(ids.values()) >= size:
        raise FormatError(path, f"a token has id {max(ids.values())}, but there are {size} tokens")
    return vocabulary.model_copy(update={"idx": size})


def vocabulary_path(release: Path, data: DataSettings) -> Path:
    """Return the vocabulary file: as set, or one in or next to the data set's folder."""
    name = f"{data.name}_vocab.json"
    if data.vocab_path is not None:
        return find_in(data.vocab_path, [name]) if data.vocab_path.is_dir() else data.vocab_path
    folder = precomp_folder(release, data.name)
    places = [release / "vocab", folder / "vocab", folder.parent / "vocab", folder]
    for place in places:
        if (place / name).exists():
            return place / name
    raise FormatError(places[0] / name, "file not found; set data.vocab_path to the vocabulary")


def find_in(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of these vocabulary files that a folder has."""
    if path := next((folder / name for name in names if (folder / name).exists()), None):
        return path
    there = ", ".join(sorted(path.name for path in folder.glob("*.json"))) or "no .json"
    raise FormatError(folder / names[0], f"file not found; the folder has {there:.300}")


def encode(
    texts: list[str], vocabulary: Vocabulary, data: DataSettings
) -> list[Int[np.ndarray, " _"]]:
    """Cut lower-cased captions into words; return their ids, with ``<start>`` and ``<end>``.

    Words that the vocabulary lacks become ``<unk>``.
    """
    ids, unknown = vocabulary.word2idx, vocabulary.word2idx["<unk>"]
    captions = []
    for content in cut_captions(texts, sentences=data.sentences):
        words = ["<start>", *content[: data.max_tokens], "<end>"]
        captions.append(np.array([ids.get(word, unknown) for word in words], dtype=np.int64))
    return captions
