"""Format results, comparisons and reports as text for a terminal."""

import textwrap

import pandas as pd

from leaderboard.board.display_text import REFERENCES, WITHIN
from leaderboard.core.uncertainty import SIGNIFICANT, Comparison, Difference
from leaderboard.metrics import CUTOFFS, steps_of
from leaderboard.scoring.result import Direction, Result, Within
from leaderboard.store.dataset import DatasetReport

CLAIM = (
    "a claim, because everyone who has the release knows its pairing; a blind round or a keeper’s"
    " run of the code (reproduce) makes it proof"
)
"""Standing of a result outside an open blind round."""
WAYS = (("i2t", "image to caption"), ("t2i", "caption to image"))


def as_text(result: Result) -> str:
    """Format a result: recalls with intervals, rSum with its references, notes."""
    place = CLAIM if result.release.origin != "blind" else "of an open blind round"
    if not result.ranked:
        place = f"not ranked: {result.reason}"
    low, high = result.rsum_interval
    head = (
        f"{result.method.name}: rSum {result.rsum:.1f} (95 % interval {low:.1f} to {high:.1f})"
        f" on {result.n_pairs} pairs of {result.split}, track {result.track}; {place}"
    )
    rows = {}
    for field, name in WAYS:
        way: Direction = getattr(result, field)
        recalls = zip(CUTOFFS, way.values(), way.interval.values(), strict=True)
        rows[name] = {
            f"R@{cutoff}": f"{value:.1f} [{low:.1f}, {high:.1f}]"
            for cutoff, value, (low, high) in recalls
        } | _rank_statistics(way)
    table = pd.DataFrame.from_dict(rows, orient="index").to_string()
    return "\n".join([*_wrapped(head), table, *_references(result), *_wrapped(*_notes(result))])


def comparison_as_text(comparison: Comparison, names: tuple[str, str]) -> str:
    """Format a paired comparison of two named results."""
    heads = [f"{names[0]} minus {names[1]}: {_difference(comparison)}"]
    if comparison.within_site:
        heads.append(f"Within sites: {_difference(comparison.within_site)}")
    rows = {
        f"{name} R@{cutoff}": {
            "only the first hits": test.first_only,
            "only the second hits": test.second_only,
            "undecided": test.undecided,
            "McNemar p": f"{test.p:.2g}",
        }
        for field, name in WAYS
        for cutoff, test in getattr(comparison, field).items()
    }
    return "\n".join([*_wrapped(*heads), pd.DataFrame.from_dict(rows, orient="index").to_string()])


def _difference(test: Difference) -> str:
    verdict = "significant" if test.p < SIGNIFICANT else "not significant"
    points = f"{test.difference:+.1f} rSum points"
    interval = f"95 % interval {test.low:+.1f} to {test.high:+.1f}"
    return f"{points} ({interval}), sign-flip p {test.p:.2g}: {verdict}"


def dataset_text(report: DatasetReport) -> str:
    """Format a dataset report: duplicates, ceilings and copied captions by track."""
    rows = [track.model_dump(exclude={"fingerprint", "references"}) for track in report.tracks]
    table = pd.DataFrame(rows).to_string(index=False, float_format="{:.2f}".format)
    copied = ", ".join(f"{track} {share:.1f} %" for track, share in report.copied.items())
    return (
        f"{report.name} ({report.origin}), fingerprint {report.fingerprint[:16]}\n{table}\n"
        f"training captions that occur at least three times: {copied}"
    )


def _rank_statistics(way: Direction) -> dict[str, str]:
    """Format the rank statistics; a dash replaces the ones that a blind round hides."""
    figures = {
        "medR": (way.median_rank, ".0f"),
        "meanR": (way.mean_rank, ".1f"),
        "MRR": (way.mrr, ".3f"),
        "nDCG@10": (way.ndcg, ".3f"),
    }
    return {name: "–" if v is None else format(v, form) for name, (v, form) in figures.items()}


def _references(result: Result) -> list[str]:
    rows = [(REFERENCES[name].lower(), value) for name, value in result.references.items()]
    rows.append(("this submission", result.rsum))
    longest, width = max(value for _, value in rows), max(len(name) for name, _ in rows) + 2
    return ["rSum of reference scorers"] + [
        f"{name:{width}}{value:6.1f}  {'█' * max(1, round(40 * value / longest))}"
        for name, value in sorted(rows, key=lambda row: row[1])
    ]


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
    duplicates = result.duplicates
    if duplicates.captions or duplicates.images:
        notes.append(
            f"{duplicates.captions} captions and {duplicates.images} images of the split are not"
            f" unique: a perfect scorer reaches {duplicates.ceiling_rsum:.1f}. If duplicates of"
            f" the right one count as right, rSum is {duplicates.rsum:.1f}."
        )
    if folds := result.folds:
        notes.append(f"Mean of {folds.count} folds of {folds.size} images: rSum {folds.rsum:.1f}.")
    for field, title in WITHIN.items():
        part: Within | None = getattr(result, field)
        if part is not None:
            low, high = part.rsum_interval
            rsum = f"rSum {part.rsum:.1f} (95 % interval {low:.1f} to {high:.1f})"
            notes.append(f"{title} ({part.count}): {rsum}, by chance {part.chance or 0:.1f}.")
    name, best = max(result.references.items(), key=lambda item: item[1])
    notes.append(f"{result.rsum - best:+.1f} over the best reference, {REFERENCES[name].lower()}.")
    return notes + [f"Note ({note.code}): {note.message}" for note in result.notes]


def _wrapped(*paragraphs: str) -> list[str]:
    return [line for text in paragraphs for line in textwrap.wrap(text, 110)]
