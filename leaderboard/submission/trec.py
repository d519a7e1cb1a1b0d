"""Submissions as TREC runs."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Num

from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.formats.io import atomic_write, write_text

DEPTH = 1000
"""Candidates of a query in a run, as usual at TREC. All candidates that tie with the last one are
written too, so that ties count as in the matrix."""


def write_trec(path: Path, release: Path, out: Path) -> list[Path]:
    """Write a submission as a TREC run and its qrels for each direction.

    Returns:
        The files: ``i2t.trec``, ``i2t.qrels``, ``t2i.trec``, ``t2i.qrels``.

    Raises:
        SubmissionError: If it cannot be read, or is of another release.
        FormatError: If the release cannot be read, or is a blind round's without its pairing.
    """
    with open_submission(path) as submission:
        meta = submission.meta
        gallery = read_gallery(release, meta.split, meta.track)
        matrix = submission.read(gallery)
    name = re.sub(r"\W+", "-", meta.method.name)
    images, captions = gallery.image_keys, gallery.caption_keys
    owners = [images[row] for row in gallery.owner]
    files = []
    for way, values, queries, documents, right in (
        ("i2t", matrix, images, captions, zip(owners, captions, strict=True)),
        ("t2i", matrix.T, captions, images, zip(captions, owners, strict=True)),
    ):
        run, qrels = out / f"{way}.trec", out / f"{way}.qrels"
        write_text(qrels, "".join(f"{query} 0 {document} 1\n" for query, document in right))
        with atomic_write(run) as temporary, temporary.open("w", encoding="utf-8") as file:
            for query, line in zip(queries, values, strict=True):
                file.writelines(_run_lines(query, documents, line, f"{name}.{way}"))
        files += [run, qrels]
    return files


def _run_lines(
    query: str, documents: Sequence[str], line: Num[np.ndarray, " candidates"], tag: str
) -> Iterator[str]:
    """Yield the lines of a query, best candidate first."""
    order = np.flatnonzero(line >= np.sort(line)[-DEPTH:][0])
    order = order[np.argsort(-line[order], kind="stable")]
    scores = line[order].astype(str).tolist()  # the shortest that give the same float
    for rank, (place, score) in enumerate(zip(order.tolist(), scores, strict=True), 1):
        yield f"{query} Q0 {documents[place]} {rank} {score} {tag}\n"
