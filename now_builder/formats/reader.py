"""Read a release: its pairs, captions, vocabularies and region features."""

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

    Made by :func:`open_release`. Each method reads from disk; nothing is cached.

    Attributes:
        path: Folder of the release.
        manifest: Manifest; ``None`` for the authors' archive.
    """

    path: Path
    manifest: Manifest | None

    @property
    def splits(self) -> tuple[Split, ...]:
        """Names of the splits, in the order train, dev, test."""
        return tuple(split for split in SPLITS if self.tokenizers(split))

    def tokenizers(self, split: str) -> tuple[str, ...]:
        """Return the names of a split's tokenizers."""
        head = f"{check_split(split)}_caps_"
        paths = data_folder(self.path).glob(f"{head}*.txt")
        return tuple(sorted(path.stem.removeprefix(head) for path in paths))

    def captions(self, split: str, tokenizer: str = "jieba") -> Captions:
        """Read the keys and token ids of a split, in pair order."""
        return read_split_captions(self.path, check_split(split), tokenizer)

    def vocabulary(self, tokenizer: str = "jieba") -> Vocabulary:
        """Read the vocabulary of a tokenizer."""
        return read_release_vocabulary(self.path, tokenizer)

    def pairs(self, split: str | None = None) -> Iterator[Pair]:
        """Yield the pairs of a split, or of all: URL, text, language and so on, in pair order."""
        name = None if split is None else check_split(split)
        return (pair for pair in stream_pairs(self.path) if name in {None, pair.split})

    def regions(self, split: str) -> AbstractContextManager[Any]:
        """Open the region features of a split: an unread array-like (pairs, 36, 768)."""
        return open_regions(self.path, check_split(split))

    def features(self, split: str) -> AbstractContextManager["Features"]:
        """Open the feature file of a split: regions, boxes, scores, classes and sources."""
        from now_builder.formats.features import open_features

        return open_features(data_folder(self.path) / f"{check_split(split)}.h5")


def open_release(path: Path | str) -> Release:
    """Open a release for reading.

    Raises:
        FormatError: If the folder is not a release, or its manifest cannot be read.
    """
    folder = Path(path).absolute()  # the working directory may change before it is read
    data_folder(folder)
    return Release(folder, read_manifest(folder) if is_ours(folder) else None)
