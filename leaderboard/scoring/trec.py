"""TREC runs: one scored as ranked lists of a direction, a submission written as runs and qrels."""

import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Num

from leaderboard.core.tracks import ScoredSplit, Track
from leaderboard.metrics import Labels, Ranks, ndcg, one_way
from leaderboard.scoring.evaluate import LISTS_REASON, direction_of, is_right, read_payload
from leaderboard.scoring.result import Direction
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


@dataclass(frozen=True, slots=True)
class RunScore:
    """Figures of one direction, by a run.

    Attributes:
        way: ``i2t`` if images are the queries, ``t2i`` if captions are.
        queries_found: number of queries that the run has lines of; the others count as missed.
    """

    track: Track
    split: ScoredSplit
    way: Way
    n_pairs: int
    queries: int
    queries_found: int
    direction: Direction

    def tree(self) -> dict[str, object]:
        """Return the score as plain values, for JSON, named as in a result."""
        return {
            "track": self.track,
            "split": self.split,
            "n_pairs": self.n_pairs,
            "queries": self.queries,
            "queries_found": self.queries_found,
            "ranked": False,
            "reason": LISTS_REASON,
            self.way: self.direction.model_dump(mode="json", by_alias=True),
        }


@dataclass(frozen=True, slots=True)
class _Run:
    """The lines of a run, by query and falling score: rows of the split, and scores."""

    queries: Labels
    candidates: Labels
    scores: Float[np.ndarray, " lines"]

    def ranks_of(self, right: Bool[np.ndarray, " lines"]) -> Ranks:
        """Return the ranks of the lines that are right."""
        first = np.diff(self.queries, prepend=-1) != 0
        begins = first.copy()
        begins[1:] |= self.scores[1:] != self.scores[:-1]
        tie = np.cumsum(begins) - 1
        places = np.arange(len(first)) - np.flatnonzero(first)[np.cumsum(first) - 1]
        hits = np.bincount(tie[right], minlength=len(places[begins]))
        found = tie[right]
        return Ranks(
            places[begins][found],
            (np.bincount(tie) - hits)[found],
            np.zeros(len(found), np.int64),
            hits[found],
        )


def score_run(
    path: Path, release: Path, split: ScoredSplit, track: Track, way: Way | None = None
) -> RunScore:
    """Score a TREC run of one direction, whose queries and documents are keys of the split.

    As in ``trec_eval`` the scores alone order a query's lines, and what they lack counts as missed.
    Ties count by expectation.

    Args:
        path: lines of ``query Q0 document rank score tag``.
        release: the release that the run is made on.
        split: ``dev`` or ``test``.
        track: tokenizer or data set.
        way: direction; by default the one that the first line's tag ends in, or else i2t.

    Raises:
        FormatError: If a line is none, or its keys are not those of the split, or repeated.
    """
    gallery = read_gallery(release, split, track)
    way, queries_found, direction = judge_run(path, gallery, way)
    pairs, queries = len(gallery.caption_keys), gallery.shape[WAYS.index(way)]
    return RunScore(track, split, way, pairs, queries, queries_found, direction)


def judge_run(path: Path, gallery: Gallery, way: Way | None = None) -> tuple[Way, int, Direction]:
    """Return direction, number of queries with lines, and figures of a run; see `score_run`."""
    if way is None:
        tag = next(_lines(path))[1][5]
        way = "t2i" if re.split(r"[\W_]", tag)[-1] == "t2i" else "i2t"
    run = _read(path, gallery, way)
    pair = run.queries, run.candidates
    images, captions = pair if way == "i2t" else pair[::-1]
    right, twins = gallery.owner[captions] == images, is_right(gallery, images, captions)
    n_queries, n_candidates = gallery.shape if way == "i2t" else gallery.shape[::-1]
    depth = max(MIN_LIST, int(np.bincount(run.queries).max()))
    strict = _by_row(run.ranks_of(right), run.queries[right], n_queries, depth)
    aware = _by_row(run.ranks_of(twins), run.queries[twins], n_queries, depth)
    own = _by_row(run.ranks_of(right), captions[right], len(gallery.owner), depth)
    most = max(n_candidates, depth + 1)  # so that a rank as high as the depth is not known
    gain = ndcg(own, gallery.owner if way == "i2t" else None)
    direction = direction_of(
        one_way(strict, most, depth, ndcg=gain),
        one_way(aware, most, depth),
        int(np.count_nonzero(strict.equal)),
    )
    return way, len(np.unique(run.queries)), direction


def _by_row(ranks: Ranks, rows: Labels, count: int, depth: int) -> Ranks:
    """Return the best rank of each row; rows that have none get ``depth``."""
    best, first = np.unique(rows, return_index=True)
    filled = [np.full(count, usual) for usual in (depth, 0, 0, 1)]
    for column, field in zip(filled, fields(Ranks), strict=True):
        column[best] = getattr(ranks, field.name)[first]
    return Ranks(*filled)


def _read(path: Path, gallery: Gallery, way: Way) -> _Run:
    sides = [("image", gallery.image_keys), ("caption", gallery.caption_keys)]
    kinds, keys = zip(*(sides if way == "i2t" else sides[::-1]), strict=True)
    places = [{key: row for row, key in enumerate(column)} for column in keys]
    rows, scores = (array("q"), array("q")), array("d")
    for number, line in _lines(path):
        for known, found, cell, kind in zip(places, rows, (0, 2), kinds, strict=True):
            row = known.get(line[cell])
            if row is None:
                name, wanted = ("query", "document")[cell // 2], f"a key of the {kind}s"
                raise FormatError(
                    path,
                    f"line {number}: {name} {shown(line[cell])}, expected {wanted} of the split, "
                    f"such as {next(iter(known))!r}; the direction is {way} (--direction)",
                )
            found.append(row)
        scores.append(_score(path, number, line[4]))
    queries, documents = (np.array(found, np.int64) for found in rows)
    pairs, counts = np.unique(queries * len(keys[1]) + documents, return_counts=True)
    if len(pairs) < len(queries):
        query, document = divmod(int(pairs[counts.argmax()]), len(keys[1]))
        twice = f"document {keys[1][document]!r} twice for query {keys[0][query]!r}"
        raise FormatError(path, f"{twice}, expected it once")
    order = np.lexsort((-np.array(scores), queries))
    return _Run(queries[order], documents[order], np.array(scores)[order])


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield number and cells of each line that is not blank.

    Raises:
        FormatError: If there is none, or one has another number of cells.
    """
    number = 0
    for number, line in enumerate(stream_lines(path, "no such file"), 1):
        cells = line.split()
        if len(cells) != 6:
            raise FormatError(
                path,
                f"line {number}: {len(cells)} columns, expected 6: "
                "query Q0 document rank score tag",
            )
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
