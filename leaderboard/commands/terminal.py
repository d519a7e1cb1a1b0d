"""Results, comparisons and reports as text for a terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from leaderboard.board.display_text import CLAIM, REFERENCES
from leaderboard.core.steps import steps_of
from leaderboard.core.uncertainty import SIGNIFICANT, Comparison
from leaderboard.metrics import CUTOFFS, OneWay, Recalls, tie_width
from leaderboard.scoring.evaluate import LISTS_REASON
from leaderboard.scoring.result import Direction, Result
from leaderboard.scoring.trec import RunScore
from leaderboard.store.dataset import DatasetReport

WAYS = (("i2t", "image to caption"), ("t2i", "caption to image"))


def as_text(result: Result) -> str:
    """Format a result: recalls with intervals, rSum beside its references."""
    place = CLAIM if result.release.origin != "blind" else "of an open blind round"
    if not result.ranked:
        place = f"not ranked: {result.reason}"
    head = Text(
        f"{result.method.name}: rSum {result.rsum:.1f}"
        f" (95 % interval {result.rsum_interval[0]:.1f} to {result.rsum_interval[1]:.1f})"
        f" on {result.n_pairs} pairs of {result.split}, track {result.track}; {place}"
    )
    recalls = _recalls((result.i2t, result.t2i), WAYS)
    return _printed(110, head, recalls, _references(result), *map(Text, _notes(result)))


def run_text(found: RunScore) -> str:
    """Format the score of a TREC run: the recalls of its direction with intervals."""
    head = Text(
        f"{found.queries_found} of {found.queries} queries of {found.split}, track"
        f" {found.track}; not ranked: {LISTS_REASON}"
    )
    ways = [(way, name) for way, name in zip((found.i2t, found.t2i), WAYS, strict=True) if way]
    return _printed(110, head, _recalls(*zip(*ways, strict=True)))


def comparison_as_text(found: Comparison, names: tuple[str, str]) -> str:
    """Format a paired comparison."""
    verdict = "significant" if found.p < SIGNIFICANT else "not significant"
    head = Text(
        f"{names[0]} less {names[1]}: {found.difference:+.1f} rSum points (95 % interval"
        f" {found.low:+.1f} to {found.high:+.1f}), sign-flip p {found.p:.2g}: {verdict}"
    )
    columns = ("only the first hits", "only the second hits", "undecided", "McNemar p")
    table = _table("", *columns, left=1)
    for field, name in WAYS:
        for cutoff, each in getattr(found, field).items():
            counts = (each.first_only, each.second_only, each.undecided)
            table.add_row(f"{name} R@{cutoff}", *map(str, counts), f"{each.p:.2g}")
    return _printed(100, head, table)


def _recalls(directions: Sequence[Direction], ways: Sequence[tuple[str, str]]) -> Table:
    table = _table("", "R@1", "R@5", "R@10", "medR", "meanR", "MRR", "nDCG@10", left=1)
    for way, (_, name) in zip(directions, ways, strict=True):
        cells = [
            f"{value:.1f} [{low:.1f}, {high:.1f}]"
            for value, (low, high) in zip(way.values(), way.interval.values(), strict=True)
        ]
        table.add_row(name, *(Text(cell) for cell in [*cells, *_rank_statistics(way)]))
    return table


def _rank_statistics(way: Direction | OneWay) -> list[str]:
    """Format the rank statistics, with a dash for those that ranked lists do not determine."""
    figures = way.median_rank, way.mean_rank, way.mrr, way.ndcg
    return [*map(_or_dash, figures, (".0f", ".1f", ".3f", ".3f"))]


def _references(result: Result) -> Table:
    rows = [(REFERENCES[name].lower(), value) for name, value in result.references.items()]
    rows.append(("this submission", result.rsum))
    longest = max(value for _, value in rows)
    table = Table(box=None, pad_edge=False)
    table.add_column("rSum beside")
    table.add_column("", justify="right")
    table.add_column("")
    for name, value in sorted(rows, key=lambda row: row[1]):
        table.add_row(name, f"{value:.1f}", "█" * max(1, round(40 * value / longest)))
    return table


def _notes(result: Result) -> list[str]:
    notes = []
    if result.release.origin == "blind":
        recall, points = steps_of(result.n_pairs)
        notes.append(f"An open blind round: recalls in steps of {recall:g}, rSum of {points:g}.")
    if result.ties.width:
        notes.append(
            f"Ties decide {result.ties.width:.1f} rSum points: {result.rsum_pessimistic:.1f} if all"
            f" are lost, {result.rsum_optimistic:.1f} if all are won"
            f" ({result.rsum_argsort:.1f} by a stable argsort)."
        )
    twins = result.duplicates
    if twins.captions or twins.images:
        notes.append(
            f"{twins.captions} captions and {twins.images} images of the split are not unique:"
            f" a perfect scorer reaches {twins.ceiling_rsum:.1f}. Counting every one of them as"
            f" right gives {twins.rsum:.1f}."
        )
    if result.folds is not None:
        folds = result.folds
        notes.append(f"Mean of {folds.count} folds of {folds.size} images: rSum {folds.rsum:.1f}.")
    name, reached = result.best_reference
    notes.append(
        f"{result.rsum - reached:+.1f} against the best of these, {REFERENCES[name].lower()}."
    )
    notes += [f"Look at this ({note.code}): {note.message}" for note in result.notes]
    return notes


def recall_text(found: Recalls) -> str:
    """Format the recalls of a bare matrix."""
    table = _table("", "queries", "R@1", "R@5", "R@10", "medR", "meanR", "MRR", "nDCG@10")
    for (_, name), way in zip(WAYS, (found.i2t, found.t2i), strict=True):
        table.add_row(
            name,
            str(way.n_queries),
            *(f"{way.recall(cutoff):.2f}" for cutoff in CUTOFFS),
            *_rank_statistics(way),
        )
    parts: list[RenderableType] = [Text(f"rSum {found.rsum:.2f}"), table]
    if tie_width(found.ranks):
        bounds = f"{found.rsum_pessimistic:.2f} if all ties are lost, {found.rsum_optimistic:.2f}"
        parts.append(Text(f"{bounds} if all are won ({found.rsum_argsort:.2f} by stable argsort)."))
    return _printed(100, *parts)


def dataset_text(report: DatasetReport) -> str:
    """Format a dataset report: tracks, splits, leaks."""
    return _printed(
        110,
        Text(f"{report.name} ({report.origin}), fingerprint {report.fingerprint[:16]}"),
        Text("\nCaptions, by their tokens"),
        _tracks(report),
        Text("\nImages and pages"),
        _splits(report),
        Text("\nPairs of a later split that an earlier one has too"),
        _leaks(report),
    )


def _printed(width: int, *parts: RenderableType) -> str:
    file = StringIO()
    console = Console(file=file, width=width, color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def _table(*columns: str, left: int = 2) -> Table:
    """Make a table whose first columns are aligned to the left."""
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(columns):
        table.add_column(name, justify="left" if place < left else "right")
    return table


def _tracks(report: DatasetReport) -> Table:
    table = _table(
        "split", "track", "captions", "distinct", "not unique", "largest", "R@1 i2t", "R@1 t2i",
        "rSum", "<unk> %", "tokens",
    )  # fmt: skip
    for track in report.tracks:
        table.add_row(
            track.split,
            Text(track.track),
            *map(str, (track.captions, track.distinct, track.queries)),
            str(max((size for size, _ in track.group_sizes), default=1)),
            f"{track.ceiling_i2t:.2f}",
            f"{track.ceiling_t2i:.2f}",
            _or_dash(track.ceiling_rsum, ".1f"),
            _or_dash(track.unknown, ".2f"),
            f"{track.tokens_median:.0f}, most {track.tokens_most}",
        )
    return table


def _splits(report: DatasetReport) -> Table:
    table = _table(
        "split", "languages", "pairs", "images", "not unique", "same look", "sites", "domains"
    )
    for split in report.splits:
        languages = [f"{name} {count}" for name, count in (split.languages or ())[:4]]
        table.add_row(
            split.split,
            Text(", ".join(languages) or "–"),
            *map(str, (split.pairs, split.images, split.image_queries)),
            *map(_or_dash, (split.looks, split.sites, split.domains)),
        )
    return table


def _leaks(report: DatasetReport) -> Table:
    table = _table("later", "earlier", "captions", "images", "alike", "on shared sites", "sites")
    for leak in report.leaks:
        table.add_row(
            leak.later,
            leak.earlier,
            Text(", ".join(f"{track} {count}" for track, count in leak.captions.items())),
            str(leak.images),
            *map(_or_dash, (leak.alike, leak.site_pairs, leak.sites)),
        )
    return table


def _or_dash(value: object, form: str = "") -> str:
    return "–" if value is None else format(value, form)
