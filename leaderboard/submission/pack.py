"""Pack arrays on disk, in any order of rows and columns, as a submission."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Integer, Shaped

from leaderboard.metrics import Matrix
from leaderboard.submission.archive import (
    Lists,
    Submission,
    opened_array,
    pack_arrays,
    read_lists_file,
    read_matrix_file,
)
from leaderboard.submission.untrusted import FLOATS, WHOLE, read_array_header
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import read_lines


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that a submission is made from.

    Attributes:
        i2t: matrix, or ranked lists of image queries.
        t2i: other matrix, or ranked lists of caption queries; None if one matrix serves both.
        image_ids: file of row keys, one a line; None if in the order of the split.
        caption_ids: file of column keys, likewise.
    """

    i2t: Path
    t2i: Path | None = None
    image_ids: Path | None = None
    caption_ids: Path | None = None


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
    if not _are_lists(sources.i2t):
        shape = len(rows), len(columns)
        matrices = [_in_order(read_matrix_file(file, shape), rows, columns) for file in files]
        payload = "matrix" if len(files) == 1 else "matrix_pair"
        pack_arrays(path, matrices, meta.model_copy(update={"payload": payload}))
        return
    if sources.t2i is None:
        raise ConfigError(
            f"{sources.i2t}: holds ranked lists of the images; --t2i names those of the captions"
        )
    i2t = read_lists_file(sources.i2t, len(rows), len(columns))
    t2i = read_lists_file(sources.t2i, len(columns), len(rows))
    lists = [_renumbered(i2t, rows, columns), _renumbered(t2i, columns, rows)]
    pack_arrays(path, lists, meta.model_copy(update={"payload": "ranked"}))


def _are_lists(path: Path) -> bool:
    with opened_array(path) as file:
        return read_array_header(file, str(path), FLOATS | WHOLE).dtype.kind == "i"


def _order(path: Path | None, keys: Sequence[str]) -> Integer[np.ndarray, " _"]:
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


def _in_order(
    matrix: Matrix, rows: Integer[np.ndarray, " _"], columns: Integer[np.ndarray, " _"]
) -> Matrix:
    return np.asarray(matrix[np.ix_(rows, columns)])


def _renumbered(
    lists: Lists, queries: Integer[np.ndarray, " _"], candidates: Integer[np.ndarray, " _"]
) -> Shaped[np.ndarray, "queries depth"]:
    """Reorder lists, and renumber their candidates, by the order of the split."""
    return np.asarray(np.argsort(candidates)[lists[queries]].astype(np.int32))
