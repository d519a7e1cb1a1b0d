"""Pack arrays on disk, in any order of rows and columns, as a submission."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from leaderboard.metrics import Labels
from leaderboard.submission.archive import Lists, Submission, opened, pack, pack_arrays
from leaderboard.submission.untrusted import read_lists, read_matrix
from now_builder.errors import FormatError
from now_builder.formats.io import read_lines


@dataclass(frozen=True, slots=True)
class Sources:
    """Files that a submission is made from.

    Attributes:
        i2t: a matrix; with ``t2i`` the ranked lists of the images.
        t2i: the ranked lists of the captions.
        image_ids: keys of the rows, if they are not in the order of the split.
        caption_ids: keys of the columns, if they are in another order.
    """

    i2t: Path
    t2i: Path | None = None
    image_ids: Path | None = None
    caption_ids: Path | None = None


def pack_files(path: Path, meta: Submission, sources: Sources) -> None:
    """Check arrays against the keys of a description, reorder and pack them."""
    rows = _order(sources.image_ids, meta.image_ids or ())
    columns = _order(sources.caption_ids, meta.caption_ids or ())
    if sources.t2i is None:
        matrix = read_matrix_file(sources.i2t, (len(rows), len(columns)))
        pack(path, matrix[np.ix_(rows, columns)], meta)
        return
    lists = [_read_lists(sources.i2t, rows, columns), _read_lists(sources.t2i, columns, rows)]
    pack_arrays(path, lists, meta.model_copy(update={"payload": "ranked"}))


def read_matrix_file(path: Path, shape: tuple[int, int]) -> Float[np.ndarray, "images captions"]:
    """Read a similarity matrix from a ``.npy`` file of floats, or of whole numbers as float64."""
    with opened(path) as file:
        return read_matrix(file, "matrix", path.stat().st_size, shape, whole=True)


def _order(path: Path | None, keys: Sequence[str]) -> Labels:
    """Return the position of each key of the split in a file of keys."""
    if path is None:
        return np.arange(len(keys))
    found = read_lines(path, "no such file")
    if found:
        found[0] = found[0].removeprefix("\ufeff")  # a byte order mark, which some editors write
    while found and not found[-1].strip():
        found.pop()
    places = {key: place for place, key in enumerate(found)}
    missing = [key for key in keys if key not in places]
    if missing or len(found) != len(keys):
        short = f"{missing[0]!r} is missing" if missing else "some occur twice, or are too many"
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
