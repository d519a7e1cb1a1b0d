"""Read NoW, from ``package`` or its authors: vocabulary, captions and features of each split."""

from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from jaxtyping import Int

from now_builder.errors import FormatError
from now_builder.formats import word_vectors
from now_builder.formats.benchmarks import NOW_NAMES
from now_builder.formats.captions import SPECIALS, Vocabulary
from now_builder.formats.release import (
    Captions,
    data_folder,
    is_ours,
    open_regions,
    read_manifest,
    read_release_vocabulary,
    read_split_captions,
    read_split_pairs,
    read_texts,
    region_attributes,
)
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings
from pc2_baseline.data.precomp import SplitArrays, find_in
from pc2_baseline.data.words import SeenWords

_MOST_TOKENS = 2**22
"""Maximum size of a vocabulary: fifteen times that of the largest tokenizers."""


class ReleaseReader:
    """Read a release of NoW, each caption file once.

    Attributes:
        encoder: Name of the pre-trained model that encodes it, if any.
    """

    encoder: str | None = None

    def __init__(self, release: Path, data: DataSettings) -> None:
        self.release = release
        self.data = data
        self._captions: dict[Split, Captions] = {}
        self._fingerprints: dict[Split, str] = {}
        self._texts: dict[Split, list[str]] = {}

    @cached_property
    def encoder_sha256(self) -> str | None:
        """Hash of the pre-trained model; ``None`` without one."""
        return None

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the track, which has ``<start>`` and ``<end>``."""
        data, path = self.data, self.data.vocab_path
        if path is not None and path.is_dir():
            path = find_in(path, [f"{name}_vocab_{data.tokenizer}.json" for name in NOW_NAMES])
        vocabulary = read_release_vocabulary(self.release, data.tokenizer, path)
        for token in ("<start>", "<end>"):
            if token not in vocabulary.word2idx:
                raise FormatError(
                    path or self.release / "vocab", f"no token {token}, expected it in word2idx"
                )
        if vocabulary.idx > _MOST_TOKENS:  # a network has as many rows
            problem = f"idx is {vocabulary.idx}, expected {_MOST_TOKENS} tokens at most"
            raise FormatError(path or self.release / "vocab", problem)
        return vocabulary

    def captions_path(self, split: Split) -> Path:
        """Return the caption file of a split."""
        return data_folder(self.release) / f"{split}_caps_{self.data.tokenizer}.txt"

    def fingerprint(self, split: Split) -> str:
        """Return the fingerprint of a split."""
        if split not in self._fingerprints:
            self._fingerprints[split] = self._identify(split, self._read_captions(split))
        return self._fingerprints[split]

    def _identify(self, split: Split, stored: Captions) -> str:
        """Return the fingerprint of captions, compared with the manifest's if there is one."""
        size, fingerprint = len(stored.keys), stored.fingerprint
        if is_ours(self.release):
            manifest = read_manifest(self.release)
            prints = manifest.fingerprints.get(split, {})
            same = prints.get(self.data.tokenizer, fingerprint) == fingerprint
            if not same or manifest.counts.get(split, size) != size:
                path = self.captions_path(split)
                raise FormatError(path, "captions or keys are not those of manifest.json")
        return fingerprint

    def read(self, split: Split, stack: ExitStack) -> SplitArrays:
        """Read the captions of a split and open its features, which the stack closes."""
        path, vocabulary = self.captions_path(split), self.vocabulary
        regions = stack.enter_context(open_regions(self.release, split))
        stored = self._read_captions(split)
        captions = frame(path, stored, vocabulary, self.data.max_tokens)
        self._fingerprints[split] = self._identify(split, stored)
        del self._captions[split]
        if not captions or regions.shape[0] != len(captions):
            problem = f"{len(captions)} captions for {regions.shape[0]} images"
            raise FormatError(path, f"{problem}, expected as many, and at least one")
        return data_folder(self.release) / split, regions, captions

    def words(self, split: Split) -> SeenWords | None:
        """Return the words read on a split's pages; ``None`` if its detector does not read."""
        columns = word_vectors.read_columns(region_attributes(self.release, split))
        if columns is None:
            return None
        return SeenWords(columns, partial(self.texts, split))

    def texts(self, split: Split) -> list[str]:
        """Return the text of each caption of a split.

        Texts are joined from tokens if the release has none (the authors' archive, a blind round),
        or ``data.max_tokens`` cuts captions.
        """
        if split not in self._texts:
            track = self.data.tokenizer
            stored = self._captions.get(split) or read_split_captions(self.release, split, track)
            texts: dict[str, str] = {}
            if is_ours(self.release) and self.data.max_tokens is None:
                texts = read_texts(self.release, split)
                if missing := [key for key in stored.keys if key not in texts]:
                    problem = f"no row of {missing[0]} of {split}, which has a caption"
                    raise FormatError(self.release / "pairs.parquet", problem)
            self._texts[split] = [
                texts.get(key) or self._join(ids)
                for key, ids in zip(stored.keys, stored.captions, strict=True)
            ]
        return self._texts[split]

    def _join(self, ids: list[int]) -> str:
        """Return the text of the first ``data.max_tokens`` tokens of a caption."""
        words = self.vocabulary.idx2word
        tokens = [words.get(str(number), "") for number in ids[: self.data.max_tokens]]
        kept = [token for token in tokens if token not in SPECIALS]
        return word_vectors.text_of_tokens(kept, self.data.tokenizer)

    def count_train(self) -> tuple[int, int]:
        """Return the number of captions and of images of the training split."""
        with open_regions(self.release, "train") as regions:
            return int(regions.shape[0]), int(regions.shape[0])

    def pair_names(self, pairs: int) -> dict[str, list[str]]:  # noqa: ARG002 - PrecompReader uses it
        """Return the keys of the training pairs, and their URLs if the release has them."""
        if is_ours(self.release):
            rows = read_split_pairs(self.release, "train")
            return {"key": [pair.key for pair in rows], "url": [pair.url for pair in rows]}
        return {"key": read_split_captions(self.release, "train", self.data.tokenizer).keys}

    def _read_captions(self, split: Split) -> Captions:
        if split not in self._captions:
            track = self.data.tokenizer
            self._captions[split] = read_split_captions(self.release, split, track)
        return self._captions[split]


def frame(
    path: Path, captions: Captions, vocabulary: Vocabulary, max_tokens: int | None
) -> list[Int[np.ndarray, " _"]]:
    """Add ``<start>`` and ``<end>`` to the first ``max_tokens`` ids of each caption."""
    start, end = vocabulary.word2idx["<start>"], vocabulary.word2idx["<end>"]
    framed = []
    for line, ids in enumerate(captions.captions, 1):
        if not ids:
            raise FormatError(path, f"line {line}: an empty caption, expected at least one id")
        if max(ids) >= vocabulary.idx:
            problem = f"line {line}: id {max(ids)}, but the vocabulary has {vocabulary.idx} tokens"
            raise FormatError(path, f"{problem} (another tokenizer's vocabulary?)")
        framed.append(np.array([start, *ids[:max_tokens], end], dtype=np.int64))
    return framed
