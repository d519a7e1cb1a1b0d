"""TREC runs: one scored as ranked lists of a direction, a submission written as runs and qrels."""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Num
from pydantic import Field

from leaderboard.core.tracks import ScoredSplit, Track
from leaderboard.metrics import Labels, Ranks, ndcg, one_way
from leaderboard.scoring.evaluate import LISTS_REASON, direction_of, is_right, read_payload
from leaderboard.scoring.result import Direction, Record, is_none
from leaderboard.submission.archive import open_submission
from leaderboard.submission.gallery import Gallery, read_gallery
from leaderboard.submission.untrusted import MIN_LIST, shown
from now_builder.errors import FormatError
from now_builder.formats.io import replacing, stream_lines, write_text

Way = Literal["i2t", "t2i"]
WAYS: tuple[Way, ...] = ("i2t", "t2i")
DEPTH = 1000
"""Candidates of a query in a run that is written, as is the custom at TREC; all that tie with the
last of them are written too, so that ties count as in the matrix."""


class RunScore(Record):
    """Figures of one direction, by a run; ``i2t`` if images are its queries, else ``t2i``.

    Attributes:
        queries_found: number of queries that the run has lines of; the others count as missed.
    """

    track: Track
    split: ScoredSplit
    ranked: Literal[False] = False
    reason: str = LISTS_REASON
    n_pairs: int
    queries: int
    queries_found: int
    i2t: Direction | None = Field(None, exclude_if=is_none)
    t2i: Direction | None = Field(None, exclude_if=is_none)


def score_run(
    path: Path, gallery: Gallery, split: ScoredSplit, track: Track, way: Way | None = None
) -> RunScore:
    """Score a TREC run of one direction, whose queries and documents are keys of the split.

    As in ``trec_eval`` the scores alone order a query's lines, and what they lack counts as missed.
    Ties count by expectation.

    Args:
        path: lines of ``query Q0 document rank score tag``.
        gallery: the split that the run is made on.
        split: its name.
        track: tokenizer or data set.
        way: direction; by default the one that the first line's tag ends in, or else i2t.

    Raises:
        FormatError: If a line is none, or its keys are not those of the split, or repeated.
    """
    if way is None:
        tag = next(_lines(path))[1][5]
        way = "t2i" if re.split(r"[\W_]", tag)[-1] == "t2i" else "i2t"
    run = _read(path, gallery, way)
    pair = run["query"].to_numpy(), run["document"].to_numpy()
    images, captions = pair if way == "i2t" else pair[::-1]
    queries, candidates = gallery.shape if way == "i2t" else gallery.shape[::-1]
    depth = max(MIN_LIST, int(np.bincount(pair[0]).max()))
    right, twins = gallery.owner[captions] == images, is_right(gallery, images, captions)
    strict = _ranks(run, right, pair[0], queries, depth)
    aware = _ranks(run, twins, pair[0], queries, depth)
    own = _ranks(run, right, captions, len(gallery.owner), depth)
    gain = ndcg(own, gallery.owner if way == "i2t" else None)
    most = max(candidates, depth + 1)  # so that a rank as high as the depth is not known
    ways = one_way(strict, most, depth, ndcg=gain), one_way(aware, most, depth)
    direction = direction_of(*ways, int(np.count_nonzero(strict.equal)))
    return RunScore(
        track=track,
        split=split,
        n_pairs=len(gallery.caption_keys),
        queries=queries,
        queries_found=len(np.unique(pair[0])),
        i2t=direction if way == "i2t" else None,
        t2i=direction if way == "t2i" else None,
    )


def _ranks(
    run: pd.DataFrame, right: Bool[np.ndarray, " lines"], rows: Labels, count: int, depth: int
) -> Ranks:
    """Return the best rank of the right lines of each row; rows that have none get ``depth``."""
    tie = run.assign(right=right.astype(np.int64)).groupby(["query", "score"])["right"]
    hits = tie.transform("sum").to_numpy()
    greater = run.groupby("query")["score"].rank("min", ascending=False).to_numpy() - 1
    columns = greater, tie.transform("size").to_numpy() - hits, np.zeros_like(hits), hits
    filled = [np.full(count, usual) for usual in (depth, 0, 0, 1)]
    best, first = np.unique(rows[right], return_index=True)  # lines are in falling order
    for column, values in zip(filled, columns, strict=True):
        column[best] = values[right][first]
    return Ranks(*filled)


def _read(path: Path, gallery: Gallery, way: Way) -> pd.DataFrame:
    """Read rows of query and document, and score; by query, in falling order of the scores."""
    sides = [("images", gallery.image_keys), ("captions", gallery.caption_keys)]
    kinds, keys = zip(*(sides if way == "i2t" else sides[::-1]), strict=True)
    places = [{key: row for row, key in enumerate(column)} for column in keys]
    rows, scores = (array("l"), array("l")), array("d")
    for number, line in _lines(path):
        for known, found, key, kind in zip(places, rows, line[0:3:2], kinds, strict=True):
            if key not in known:
                found_key = f"{'query' if found is rows[0] else 'document'} {shown(key)}"
                wanted = f"a key of the {kind} of the split, such as {next(iter(known))!r}"
                why = f"the direction is {way} (--direction)"
                raise FormatError(path, f"line {number}: {found_key}, expected {wanted}; {why}")
            found.append(known[key])
        scores.append(_score(path, number, line[4]))
    columns = zip(("query", "document", "score"), (*rows, scores), strict=True)
    run = pd.DataFrame({name: np.array(values) for name, values in columns})
    twice = run[run.duplicated(["query", "document"])]
    if len(twice):
        query, document = (keys[side][twice.iloc[0, side]] for side in (0, 1))
        problem = f"document {document!r} twice for query {query!r}, expected it once"
        raise FormatError(path, problem)
    return run.sort_values(["query", "score"], ascending=[True, False])


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line that is not blank.

    Raises:
        FormatError: If there is none, or one has another number of cells.
    """
    number = 0
    for number, line in enumerate(stream_lines(path, "no such file"), 1):
        cells = line.split()
        if len(cells) != 6:
            wanted = "6: query Q0 document rank score tag"
            raise FormatError(path, f"line {number}: {len(cells)} columns, expected {wanted}")
        yield number, cells
    if number == 0:
        raise FormatError(path, "no lines, expected those of a TREC run")


def _score(path: Path, number: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise FormatError(path, f"line {number}: score {shown(text)}, expected a finite number")
    return value


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
        arrays = read_payload(submission, gallery, release).arrays
    ways = (arrays, arrays.T) if isinstance(arrays, np.ndarray) else arrays
    name = re.sub(r"\W+", "-", meta.method.name)
    sides = gallery.image_keys, gallery.caption_keys
    own = [sides[0][row] for row in gallery.owner], gallery.caption_keys
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for way, values, (queries, documents), right in zip(
        WAYS, ways, (sides, sides[::-1]), (own, own[::-1]), strict=True
    ):
        with (
            replacing(out / f"{way}.trec") as temporary,
            temporary.open("w", encoding="utf-8") as file,
        ):
            for query, line in zip(queries, values, strict=True):
                file.writelines(_run_lines(query, documents, line, f"{name}.{way}"))
        qrels = (f"{query} 0 {document} 1\n" for query, document in zip(*right, strict=True))
        write_text(out / f"{way}.qrels", "".join(qrels))
        files += [out / f"{way}.trec", out / f"{way}.qrels"]
    return files


def _run_lines(
    query: str, documents: Sequence[str], line: Num[np.ndarray, " candidates"], tag: str
) -> Iterator[str]:
    """Yield the lines of a query, from its similarities or its ranked list."""
    if line.dtype.kind == "i":
        order, scores = line, [str(score) for score in range(len(line), 0, -1)]
    else:
        least = np.sort(line)[-DEPTH:][0]
        order = np.flatnonzero(line >= least)
        order = order[np.argsort(-line[order], kind="stable")]
        scores = line[order].astype(str).tolist()  # the shortest that give the same float
    for rank, (place, score) in enumerate(zip(order.tolist(), scores, strict=True), 1):
        yield f"{query} Q0 {documents[place]} {rank} {score} {tag}\n"
