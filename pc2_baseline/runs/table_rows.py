"""From finished runs to the lines of a table: spreads, tests, references and reported rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import numpy as np
from jaxtyping import Float

from leaderboard.board.display_text import REFERENCES
from leaderboard.board.reported import short_name
from leaderboard.board.tables import Row, boards_of, make_board
from leaderboard.core.uncertainty import p_against_first
from leaderboard.metrics import hits_per_image
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import Result
from leaderboard.store.entries import entry_of, read_result, write_result
from leaderboard.submission.archive import Compute, open_submission, pack
from leaderboard.submission.gallery import read_gallery
from now_builder.formats.benchmarks import BOARD_FACTS
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs.measured_run import ONE, TWO, WHOLE, Measured
from pc2_baseline.runs.series import GridRun, MeanStd
from pc2_baseline.runs.text_table import RECALLS, SCORES

ONE_NETWORK, TWO_NETWORKS = "one_network_rsum", "two_networks_rsum"
MEASURED = ("dev_rsum", "seconds", "memory_gb", "gpu_memory_gb", "auroc")
FIGURES = (*SCORES, ONE_NETWORK, TWO_NETWORKS, *MEASURED)
"""Names of all figures of a line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a table: a row scored here, ``reported`` by a paper, or a ``reference``.

    Attributes:
        networks: Networks whose similarities are averaged, if known.
        figures: Known figures by name, of :data:`FIGURES`.
        behind: rSum points below the best line of the section.
        p: p-value of that difference, adjusted by Holm over the lines of the section; 1 for the
            best.
        notes: Remarks, such as why a run failed, or the source.
    """

    title: str
    evidence: str
    networks: int | None = None
    seeds: tuple[int, ...] = ()
    figures: Mapping[str, MeanStd] = field(default_factory=dict)
    behind: float | None = None
    p: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """Lines that are comparable with each other: one tokenizer, or data set, on one test split."""

    track: str
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class RowRuns:
    """The finished runs of a row in the order of their seeds, and why other seeds failed."""

    track: str
    title: str
    done: Sequence[tuple[GridRun, Measured]]
    failures: Mapping[int, str]


def make_sections(release: Path, rows: Sequence[RowRuns]) -> list[Section]:
    """Compute every line of the table, a section a track."""
    tracks = dict.fromkeys(row.track for row in rows)
    return [
        _section(release, track, [row for row in rows if row.track == track]) for track in tracks
    ]


def _section(release: Path, track: str, rows: Sequence[RowRuns]) -> Section:
    results = [[_result(run, WHOLE) for run, _ in row.done] for row in rows]
    lines = [_line(release, row, scored) for row, scored in zip(rows, results, strict=True)]
    first = next((result for scored in results for result in scored), None)
    if first is None:
        return Section(track, f"{release.name}, {track}", tuple(lines))
    images, captions = first.n_images, first.n_pairs
    size = (
        f"{captions:,} pairs" if images == captions else f"{images:,} images, {captions:,} captions"
    )
    return Section(
        track,
        f"{BOARD_FACTS[boards_of(first)[0]].title}: {release.resolve().name}, test split, {size}",
        (*_compared(lines, results), *other_lines(first)),
    )


def _line(release: Path, row: RowRuns, results: Sequence[Result]) -> Line:
    """Summarise the finished runs of a row."""
    failed = tuple(f"seed {seed} failed: {why}" for seed, why in row.failures.items())
    if not row.done:
        return Line(row.title, "scored", notes=failed)
    figures = {
        name: MeanStd.of([scores[name] for scores in map(_scores, results)]) for name in SCORES
    }
    networks = row.done[0][1].networks
    by_networks = {
        ONE_NETWORK: _rsum(row.done, WHOLE if networks == 1 else ONE),
        TWO_NETWORKS: _averaged(release, row)
        if networks == 1
        else _rsum(row.done, WHOLE if networks == 2 else TWO),
    }
    measured = {
        name: MeanStd.of(values)
        for name in MEASURED
        if (values := [v for _, m in row.done if (v := getattr(m, name)) is not None])
    }
    unranked = {f"not ranked: {result.reason}" for result in results if result.reason}
    return Line(
        row.title,
        "scored",
        networks,
        tuple(run.seed for run, _ in row.done),
        {**figures, **{name: v for name, v in by_networks.items() if v}, **measured},
        notes=(*failed, *sorted(unranked)),
    )


def _rsum(done: Sequence[tuple[GridRun, Measured]], ending: str) -> MeanStd | None:
    """Return the rSum of a part of the networks, if all runs have been scored so."""
    if any(ending not in measured.scored for _, measured in done):
        return None
    return MeanStd.of([_result(run, ending).rsum for run, _ in done])


def _averaged(release: Path, row: RowRuns) -> MeanStd | None:
    """Return the rSum of each seed averaged with the next, and of the last with the first.

    No deviation: two of these share a network.
    """
    runs = [run for run, _ in row.done]
    ring = runs if len(runs) < 3 else [*runs, runs[0]]
    values = [average_runs(release, pair, row.title).rsum for pair in pairwise(ring)]
    return MeanStd(fmean(values), None, values) if values else None


def average_runs(release: Path, runs: Sequence[GridRun], title: str) -> Result:
    """Score the mean similarity of several runs, anew where a run's submission is newer.

    The submission ``seeds-0-1.zip`` and ``seeds-0-1.result.json`` are written beside the runs.
    """
    name = "-".join(["seeds", *(str(run.seed) for run in runs)])
    output = runs[0].folder.with_name(f"{name}.zip")
    result = output.with_suffix(".result.json")
    sources = [run.beside(".zip") for run in runs]
    newest = max(source.stat().st_mtime_ns for source in sources)
    if not result.exists() or result.stat().st_mtime_ns < newest:
        _average(release, sources, output, title)
        write_result(result, score(output, release))
    return read_result(result)


def _average(release: Path, sources: Sequence[Path], output: Path, title: str) -> None:
    matrices, metas = [], []
    for source in sources:
        with open_submission(source) as submission:
            meta = submission.meta
            gallery = read_gallery(release, meta.split, meta.track)
            matrices.append(np.asarray(submission.read(gallery).arrays))
            metas.append(meta)
    training = metas[0].training.model_copy(
        update={
            "seeds": tuple(seed for meta in metas for seed in meta.training.seeds),
            "ensemble_size": sum(meta.training.ensemble_size or 1 for meta in metas),
        }
    )
    method = metas[0].method.model_copy(update={"name": f"{title}, seeds averaged"})
    about = {"training": training, "method": method, "compute": Compute()}
    pack(output, ensemble(matrices), metas[0].model_copy(update=about))


def _result(run: GridRun, ending: str) -> Result:
    return read_result(run.beside(f"{ending}.result.json"))


def _scores(result: Result) -> dict[str, float]:
    recalls = (*result.i2t.values(), *result.t2i.values())
    return {**dict(zip(RECALLS, recalls, strict=True)), "rsum": result.rsum}


def _compared(lines: Sequence[Line], results: Sequence[Sequence[Result]]) -> list[Line]:
    """Test each line against the best, image by image, on the mean of its seeds."""
    known = [place for place, scored in enumerate(results) if scored]
    hits = np.stack([mean_hits(results[place]) for place in known])
    behind = 100 * (hits.mean(axis=1).max() - hits.mean(axis=1))
    compared = list(lines)
    for place, *tested in zip(known, behind, p_against_first(hits), strict=True):
        difference, p = map(float, tested)
        compared[place] = replace(lines[place], behind=difference, p=p)
    return compared


def mean_hits(results: Iterable[Result]) -> Float[np.ndarray, " images"]:
    """Return the hits of each image, averaged over results on the same split."""
    ranks = [result.ranks for result in results if result.ranks is not None]
    hits = [hits_per_image(*record.read(), record.owner()) for record in ranks]
    return np.asarray(np.mean(hits, axis=0))


def other_lines(result: Result) -> list[Line]:
    """Return the rows that papers report for a published test split, and below them references."""
    board, entry = boards_of(result)[0], entry_of(result)
    section = make_board(board, [entry]).section_of(entry.name)
    rows = [row for row in section.rows if row.entry is None] if section else []
    return sorted(map(_other_line, rows), key=lambda line: line.evidence == "reference")


def _other_line(row: Row) -> Line:
    names = SCORES if row.recalls else ("rsum",)
    values = zip(names, (*row.recalls, row.rsum), strict=True)
    figures = {name: MeanStd.of([value]) for name, value in values}
    if row.reported is None:
        return Line(REFERENCES.get(row.method, row.method), "reference", figures=figures)
    source = f"{short_name(row.reported.source)}, {row.reported.table}"
    notes = (source, *([row.reported.footnote] if row.reported.footnote else []))
    return Line(row.method, "reported", row.reported.ensemble, figures=figures, notes=notes)
