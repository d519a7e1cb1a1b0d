"""A release opened for reading: its pairs, captions, vocabularies and region features."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from now_builder.formats.captions import Vocabulary
from now_builder.formats.release import (
    Captions,
    Manifest,
    Pair,
    check_split,
    data_folder,
    is_ours,
    open_regions,
    read_manifest,
    read_release_vocabulary,
    read_split_captions,
    stream_pairs,
)
from now_builder.formats.split import SPLITS, Split

if TYPE_CHECKING:
    from now_builder.formats.features import Features


@dataclass(frozen=True, slots=True)
class Release:
    """A release made by ``now-builder package``, or the archive of NoW's authors.

    Nothing is held in memory: each method reads what it returns. Made by :func:`open_release`.

    Attributes:
        path: Folder of the release.
        manifest: Its manifest; ``None`` of the authors' archive.
    """

    path: Path
    manifest: Manifest | None

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that are there, in the order train, dev, test."""
        return tuple(split for split in SPLITS if self.tokenizers(split))

    def tokenizers(self, split: str) -> tuple[str, ...]:
        """Return the names of the tokenizers that a split's captions are cut by."""
        head = f"{check_split(split)}_caps_"
        paths = data_folder(self.path).glob(f"{head}*.txt")
        return tuple(sorted(path.stem.removeprefix(head) for path in paths))

    def captions(self, split: str, tokenizer: str = "jieba") -> Captions:
        """Read keys and token ids of a split, in pair order."""
        return read_split_captions(self.path, check_split(split), tokenizer)

    def vocabulary(self, tokenizer: str = "jieba") -> Vocabulary:
        """Read the vocabulary of a tokenizer."""
        return read_release_vocabulary(self.path, tokenizer)

    def pairs(self, split: str | None = None) -> Iterator[Pair]:
        """Stream URL, text, language and the like of each pair, in pair order."""
        wanted = None if split is None else check_split(split)
        return (pair for pair in stream_pairs(self.path) if wanted in {None, pair.split})

    def regions(self, split: str) -> AbstractContextManager[Any]:
        """Open the region features of a split: an array-like (pairs, 36, 768), unread."""
        return open_regions(self.path, check_split(split))

    def features(self, split: str) -> AbstractContextManager["Features"]:
        """Open the whole feature file of a split: regions, boxes, scores, classes and sources."""
        from now_builder.formats.features import open_features

        return open_features(data_folder(self.path) / f"{check_split(split)}.h5")


def open_release(path: Path | str) -> Release:
    """Open a release for reading.

    Raises:
        FormatError: If it is neither, or its manifest cannot be read.
    """
    folder = Path(path).absolute()  # it is read later, maybe from another folder
    data_folder(folder)
    return Release(folder, read_manifest(folder) if is_ours(folder) else None)
