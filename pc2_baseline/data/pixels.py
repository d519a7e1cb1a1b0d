"""Screenshots and caption texts of a release, for a dual encoder."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt8

from leaderboard.core.rounds import round_of
from now_builder.dual_encoder import EncoderInputs, hash_of_encoder
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.release import Pair, is_ours, read_split_pairs
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import open_screenshot
from now_builder.formats.split import Split
from pc2_baseline.config import DataSettings, DualEncoderSettings
from pc2_baseline.data.precomp import SplitArrays
from pc2_baseline.data.release_reader import ReleaseReader
from pc2_baseline.progress import bar

_DECODERS = min(16, os.cpu_count() or 1)
_BLOCK = 256


class PackedScreenshots:
    """Array-like (images, 1, values) of screenshots, each as :meth:`EncoderInputs.pack` packs it.

    Screenshots are read, decoded and resized on access, in threads.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, shots: Sequence[Screenshot], inputs: EncoderInputs) -> None:
        self.shape = (len(shots), 1, prod(inputs.shape))
        self._shots, self._inputs = shots, inputs

    def __getitem__(self, rows: slice | Int[np.ndarray, " n"]) -> UInt8[np.ndarray, "n 1 values"]:
        def pack(row: int) -> UInt8[np.ndarray, "1 values"]:
            shot = self._shots[row]
            packed: np.ndarray = self._inputs.pack([open_screenshot(shot.read(), shot.key)]).numpy()
            return packed

        with ThreadPoolExecutor(_DECODERS) as pool:
            return np.stack(list(pool.map(pack, np.arange(len(self._shots))[rows].tolist())))

    def __array__(self, dtype: Any = None, copy: Any = None) -> UInt8[np.ndarray, "n 1 values"]:
        """Pack all screenshots."""
        packed = np.empty(self.shape, self.dtype)
        blocks = np.split(np.arange(len(packed)), range(_BLOCK, len(packed), _BLOCK))
        for rows in bar(blocks, "decode screenshots", len(blocks)):
            packed[rows] = self[rows]
        return packed


class PixelReader(ReleaseReader):
    """Read screenshots instead of features, and token ids of a dual encoder.

    Raises:
        ConfigError: If the settings name no captures, or the encoder cannot be loaded.
        FormatError: If the release has no texts.
    """

    def __init__(self, release: Path, data: DataSettings, model: DualEncoderSettings) -> None:
        super().__init__(release, data)
        check_has_texts(release)
        if data.captures is None:
            problem = 'model.similarity = "dual_encoder" needs screenshots; set --captures CAPTURES'
            raise ConfigError(f"{problem}, the folder that {release} was packaged from")
        self.encoder, self.inputs = model.encoder, EncoderInputs(model.encoder)
        self._captures = data.captures

    @cached_property
    def encoder_sha256(self) -> str | None:
        """Hash of the dual encoder."""
        return hash_of_encoder(self.inputs.folder)

    def read(self, split: Split, stack: ExitStack) -> SplitArrays:  # noqa: ARG002 - the base's
        """Find the screenshots of a split and read its texts; nothing is decoded yet."""
        pairs = pairs_with_texts(self.release, split)
        check_keys(self.release, split, pairs, self._read_captions(split).keys)
        shots = find_screenshots(self._captures, pairs)
        ordered = [shots[pair.key] for pair in pairs]
        packed = PackedScreenshots(ordered, self.inputs)
        captions = self.inputs.tokens([pair.caption for pair in pairs], self.data.max_tokens)
        return self._captures, packed, [np.array(ids) for ids in captions]

    def words(self, split: Split) -> None:
        """Return ``None``: words that a detector has read are not used."""

    def texts(self, split: Split) -> list[str]:
        """Return the caption texts of a split; empty if it has none."""
        return [pair.caption for pair in read_split_pairs(self.release, split)]


def check_has_texts(release: Path) -> None:
    """Check that a data set is a release of ``package``, which has caption texts."""
    if not is_ours(release):
        problem = "no manifest.json and so no caption texts, as in the authors' archive"
        raise FormatError(release, problem)


def check_keys(release: Path, split: str, pairs: Sequence[Pair], keys: Sequence[str]) -> None:
    """Check that the pairs of a split have the keys of its captions."""
    if [pair.key for pair in pairs] != list(keys):
        problem = f"keys of {split} differ from those of its captions"
        raise FormatError(release / "pairs.parquet", problem)


def pairs_with_texts(release: Path, split: str) -> list[Pair]:
    """Read the pairs of a split, in pair order."""
    if blind := round_of(release, split):
        problem = f"{split} is blind round {blind.round!r}, without screenshots and caption texts"
        raise FormatError(release, f"{problem}; a dual encoder needs both")
    check_has_texts(release)
    pairs = read_split_pairs(release, split)
    if not pairs:
        raise FormatError(release, f"no pair in {split}")
    return pairs
