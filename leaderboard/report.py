"""A result as text for a terminal."""

import json
from dataclasses import asdict
from io import StringIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leaderboard.result import Direction, Result
from leaderboard.uncertainty import SIGNIFICANT, Comparison

WAYS = (("i2t", "image to caption"), ("t2i", "caption to image"))
REFERENCES = {
    "chance": "chance",
    "lang": "language alone",
    "lang+topic": "language and topic",
}


def as_text(result: Result, width: int = 100) -> str:
    """Lay a result out for people: recalls with intervals, rSum beside its references."""
    console = Console(file=StringIO(), width=width, color_system=None, legacy_windows=False)
    place = "ranked" if result.ranked else f"not ranked: {result.reason}"
    console.print(
        Text(
            f"{result.method.name}: rSum {result.rsum:.1f}"
            f" (95 % interval {result.rsum_interval[0]:.1f} to {result.rsum_interval[1]:.1f})"
            f" on {result.n_pairs} pairs of {result.split}, track {result.track}; {place}"
        )
    )
    console.print(_recalls(result))
    console.print(_references(result))
    for note in _notes(result):
        console.print(Text(note))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def comparison_as_text(found: Comparison, names: tuple[str, str], width: int = 100) -> str:
    """Lay a paired comparison out for people."""
    console = Console(file=StringIO(), width=width, color_system=None, legacy_windows=False)
    told = "told apart" if found.p < SIGNIFICANT else "not told apart"
    console.print(
        Text(
            f"{names[0]} less {names[1]}: {found.difference:+.1f} rSum points (95 % interval"
            f" {found.low:+.1f} to {found.high:+.1f}), sign-flip p {found.p:.2g}: {told}"
        )
    )
    table = Table(box=None, pad_edge=False)
    for column in ("", "only the first hits", "only the second hits", "undecided", "McNemar p"):
        table.add_column(column, justify="left" if not column else "right")
    for field, name in WAYS:
        for cutoff, each in getattr(found, field).items():
            counts = (each.first_only, each.second_only, each.undecided)
            table.add_row(f"{name} R@{cutoff}", *map(str, counts), f"{each.p:.2g}")
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def comparison_as_json(found: Comparison) -> str:
    """Give a paired comparison as JSON text."""
    return json.dumps(asdict(found), indent=2)


def _recalls(result: Result) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("R@1", "R@5", "R@10", "medR", "meanR", "MRR"):
        table.add_column(name, justify="right")
    for field, name in WAYS:
        way: Direction = getattr(result, field)
        cells = [
            f"{value:.1f} [{low:.1f}, {high:.1f}]"
            for value, (low, high) in zip(way.values(), way.interval.values(), strict=True)
        ]
        ranks = [
            _figure(way.median_rank, 0),
            _figure(way.mean_rank, 1),
            _figure(way.mrr, 3),
        ]
        table.add_row(name, *(Text(cell) for cell in [*cells, *ranks]))
    return table


def _figure(value: float | None, digits: int) -> str:
    """Print a rank statistic, or that the lists end too early for it."""
    return "–" if value is None else f"{value:.{digits}f}"


def _references(result: Result) -> Table:
    rows = [(REFERENCES[name], value) for name, value in result.references.items()]
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
    notes += [f"Look at this ({flag.code}): {flag.message}" for flag in result.flags]
    return notes
