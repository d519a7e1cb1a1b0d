"""Matrices in ``.npy`` files: score one of any size in constant memory, or pack it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from leaderboard.metrics import CUTOFFS, Labels, Recalls, recalls, tie_width
from leaderboard.submission.archive import Submission, opened, pack
from leaderboard.submission.untrusted import read_array_header, read_matrix, refusal
from now_builder.errors import FormatError
from now_builder.formats.io import read_lines


def recall_file(path: Path, captions_per_image: int = 1) -> Recalls:
    """Score a matrix on disk, in which the captions of an image are consecutive.

    Raises:
        FormatError: If there is no such file, or a value is not finite.
        SubmissionError: If it is not a matrix of floats in C order, or its size is wrong.
    """
    with opened(path) as file:
        header = read_array_header(file, "matrix")
        images = header.shape[0] if header.shape else 0
        wanted = images, images * captions_per_image
        if header.shape != wanted or images == 0:
            expected = f"{wanted}, images x captions: --captions-per-image"
            raise refusal("matrix.shape", "matrix", f"shape {header.shape}", expected)
        if header.fortran_order:
            mend = "np.save(path, np.ascontiguousarray(similarity))"
            found, expected = "columns in one piece", "rows in one piece"
            raise refusal("matrix.order", "matrix", found, expected, mend)
        if (size := path.stat().st_size) != header.expected_size:
            expected = f"{header.expected_size} by its header"
            raise refusal("array.size", "matrix", f"{size} bytes", expected)
        matrix = np.memmap(file, header.dtype, "r", header.length, header.shape)
        try:
            return recalls(matrix, np.arange(wanted[1]) // captions_per_image)
        except ValueError as error:
            raise FormatError(path, str(error)) from None


def recall_tree(found: Recalls) -> dict[str, object]:
    """Return metrics as plain values, for JSON."""
    bounds = ("rsum", "rsum_optimistic", "rsum_pessimistic", "rsum_argsort")
    tree: dict[str, object] = {name: getattr(found, name) for name in bounds}
    tree["ties"] = tie_width(found.ranks)
    for name, way in (("i2t", found.i2t), ("t2i", found.t2i)):
        tree[name] = {
            "queries": way.n_queries,
            **{f"R@{cutoff}": way.recall(cutoff) for cutoff in CUTOFFS},
            "medR": way.median_rank,
            "meanR": way.mean_rank,
            "MRR": way.mrr,
            "nDCG@10": way.ndcg,
        }
    return tree


def pack_file(
    path: Path,
    meta: Submission,
    matrix: Path,
    image_ids: Path | None = None,
    caption_ids: Path | None = None,
) -> None:
    """Pack a matrix of floats or whole numbers, reordered by files of keys.

    Args:
        path: the submission to write.
        meta: its description, with the keys of the split.
        matrix: the ``.npy`` file.
        image_ids: keys of the rows, if they are not in the order of the split.
        caption_ids: keys of the columns, if they are in another order.
    """
    rows = _order(image_ids, meta.image_ids or ())
    columns = _order(caption_ids, meta.caption_ids or ())
    with opened(matrix) as file:
        size, shape = matrix.stat().st_size, (len(rows), len(columns))
        similarity = read_matrix(file, "matrix", size, shape, whole=True)
    pack(path, similarity[np.ix_(rows, columns)], meta)


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
