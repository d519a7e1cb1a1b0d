"""Score a similarity matrix in a ``.npy`` file of any size, in constant memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from leaderboard.metrics import CUTOFFS, Matrix, OneWay, Recalls, recalls, tie_width
from leaderboard.submission.archive import opened
from leaderboard.submission.untrusted import ArrayHeader, read_array_header, refusal
from now_builder.errors import FormatError


@contextmanager
def open_matrix(path: Path) -> Iterator[Matrix]:
    """Map a ``.npy`` file of a matrix into memory without reading its values.

    Raises:
        FormatError: If there is no such file.
        SubmissionError: If it is not a matrix of floats in C order, or its size is wrong.
    """
    with opened(path) as file:
        header = _checked(file, read_array_header(file, "matrix"))
        yield np.memmap(file, header.dtype, "r", header.length, header.shape)


def _checked(file: BinaryIO, header: ArrayHeader) -> ArrayHeader:
    if len(header.shape) != 2 or 0 in header.shape:
        raise refusal("matrix.shape", "matrix", f"shape {header.shape}", "images x captions")
    if header.fortran_order:
        mend = "np.save(path, np.ascontiguousarray(similarity))"
        raise refusal("matrix.order", "matrix", "columns in one piece", "rows in one piece", mend)
    size = os.fstat(file.fileno()).st_size
    expected = header.length + header.shape[0] * header.shape[1] * header.dtype.itemsize
    if size != expected:
        raise refusal("array.size", "matrix", f"{size} bytes", f"{expected} by its header")
    return header


def recall_file(path: Path, captions_per_image: int = 1) -> Recalls:
    """Score a matrix on disk, in which the captions of an image are consecutive."""
    with open_matrix(path) as matrix:
        images, captions = matrix.shape
        if captions != images * captions_per_image:
            wanted = f"({images}, {images * captions_per_image}): --captions-per-image"
            raise refusal("matrix.shape", "matrix", f"shape {matrix.shape}", wanted)
        try:
            return recalls(matrix, np.arange(captions) // captions_per_image)
        except ValueError as error:
            raise FormatError(path, str(error)) from None


def recall_tree(found: Recalls) -> dict[str, object]:
    """Return metrics as plain values, for JSON."""
    bounds = ("rsum", "rsum_optimistic", "rsum_pessimistic", "rsum_argsort")
    return {
        **{name: getattr(found, name) for name in bounds},
        "ties": tie_width(found.ranks),
        "i2t": _way(found.i2t),
        "t2i": _way(found.t2i),
    }


def _way(way: OneWay) -> dict[str, object]:
    return {
        "queries": way.n_queries,
        **{f"R@{cutoff}": way.recall(cutoff) for cutoff in CUTOFFS},
        "medR": way.median_rank,
        "meanR": way.mean_rank,
        "MRR": way.mrr,
        "nDCG@10": way.ndcg,
    }
