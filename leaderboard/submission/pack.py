"""Pack arrays on disk, in any order of rows and columns, as a submission."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from leaderboard.metrics import Labels
from leaderboard.submission.archive import Lists, Submission, opened, pack_arrays
from leaderboard.submission.untrusted import read_lists, read_matrix
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import read_lines


@dataclass(frozen=True, slots=True)
class Sources:
    """Files that a submission is made from: matrices or ranked lists, and keys of rows and columns.

    Without ``t2i`` one matrix serves both; without keys they are in the order of the split. Whole
    numbers are scores too, unless ``lists`` says that the files are ranked lists.
    """

    i2t: Path
    t2i: Path | None = None
    image_ids: Path | None = None
    caption_ids: Path | None = None
    lists: bool = False


def pack_files(path: Path, meta: Submission, sources: Sources) -> None:
    """Check arrays against the keys of a description, reorder and pack them.

    Raises:
        FormatError: If a file is missing, or a list of keys is not that of the split.
        SubmissionError: If an array does not fit the split.
        ConfigError: If ranked lists of only one direction are given.
    """
    rows = _order(sources.image_ids, meta.image_ids or ())
    columns = _order(sources.caption_ids, meta.caption_ids or ())
    files = [file for file in (sources.i2t, sources.t2i) if file is not None]
    if not sources.lists:
        shape = len(rows), len(columns)
        matrices = [read_matrix_file(file, shape)[np.ix_(rows, columns)] for file in files]
        payload = "matrix" if len(files) == 1 else "matrix_pair"
        pack_arrays(path, matrices, meta.model_copy(update={"payload": payload}))
        return
    if sources.t2i is None:
        raise ConfigError(
            f"--lists: {sources.i2t} holds those of the images; --t2i names those of the captions"
        )
    lists = [_read_lists(sources.i2t, rows, columns), _read_lists(sources.t2i, columns, rows)]
    pack_arrays(path, lists, meta.model_copy(update={"payload": "ranked"}))


def read_matrix_file(path: Path, shape: tuple[int, int]) -> Float[np.ndarray, "images captions"]:
    """Read a similarity matrix from a ``.npy`` file of floats, or of whole numbers as float64.

    Raises:
        FormatError: If there is no such file.
        SubmissionError: If it is no ``.npy`` of scores, of another shape or size, or not finite.
    """
    with opened(path) as file:
        return read_matrix(file, "matrix", path.stat().st_size, shape, whole=True)


def _order(path: Path | None, keys: Sequence[str]) -> Labels:
    """Return the position of each key of the split in a file of keys."""
    if path is None:
        return np.arange(len(keys))
    found = read_lines(path, "no such file")
    places = {key: place for place, key in enumerate(found)}
    missing = [key for key in keys if key not in places]
    if missing or len(found) != len(keys):
        short = f"{missing[0]!r} is missing" if missing else "some stand there twice or too many"
        raise FormatError(
            path, f"{len(found)} keys, expected the {len(keys)} of the split once each: {short}"
        )
    return np.array([places[key] for key in keys], dtype=np.int64)


def _read_lists(path: Path, queries: Labels, candidates: Labels) -> Lists:
    """Read ranked lists; reorder them, and renumber their candidates, by the order of the split."""
    with opened(path) as file:
        size = path.stat().st_size
        lists = read_lists(file, "lists", size, len(queries), len(candidates))
    return np.asarray(np.argsort(candidates)[lists[queries]].astype(np.int32))
