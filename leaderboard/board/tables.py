"""Boards: one table of results, reported rows and references, ranked among comparable rows."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, hypot
from typing import Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from leaderboard.board.reported import NoiseCondition, ReportedRow, read_reported
from leaderboard.core.rounds import Origin
from leaderboard.core.uncertainty import intervals_of, resampled, sum_deviation, tied_with_first
from leaderboard.metrics import RECALLS, hits_per_image
from leaderboard.scoring.references import REFERENCES, chance_rsum
from leaderboard.scoring.result import Result, Within
from leaderboard.scoring.within import units_within
from leaderboard.store.entries import Entry, Evidence
from now_builder.formats.benchmarks import BENCHMARKS, BOARD_FACTS, FOLD, BoardName
from now_builder.formats.captions import TOKENIZERS

RowEvidence = Evidence | Literal["reported", "reference"]
PROOF = frozenset({"blind", "reproduced"})
PUBLISHED = "published test split"

COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("board", "noise", "data"), "object"),
    "proof": "bool",
    **dict.fromkeys(("place", "place_low", "place_high"), "Int64"),
    **dict.fromkeys(("method", "evidence"), "object"),
    **dict.fromkeys(("rsum", "whole_rsum", "claimed", "low", "high", *RECALLS), "float"),
    "ensemble": "Int64",
    **dict.fromkeys(("post_processing", "date", "entry", "url", "authors", "source"), "object"),
    **dict.fromkeys(("table", "footnote", "notes", "equal_to"), "object"),
    # for pages alone
    **dict.fromkeys(("kind", "item"), "object"),
    "ranked": "bool",
    "tied": "boolean",
}
"""Columns of a board, by their type.

``noise`` is the training noise in words: rows under different noise, or scored on different
``data``, get tables of their own. ``place`` is that by rSum among proof, from 1; equal scores share
one. ``place_low`` and ``place_high`` are the first and last place held under resampling.
``claimed`` is the rSum of an entry's own file where the figures are those of the keeper's run;
``low`` and ``high`` are the 95 % interval of rSum. On a release split by domain rSum, interval,
recalls and places are those within sites, and ``whole_rsum`` is that of the whole gallery.
``entry`` is its name, ``equal_to`` that of an earlier entry with the same ranks, ``source`` the
publication of a reported row, ``notes`` the codes of the notes on the matrix. ``kind`` is what
comparable rows have in common, ``item`` the entry or reported row, ``tied`` whether the row is not
significantly below the first.
"""

_Z95 = 1.96
_INJECTED = frozenset(track for track, benchmark in BENCHMARKS.items() if not benchmark.web)
_PROTOCOLS = ("web", "none", "captions", "images", "either", "unknown", "unstated")


@dataclass(frozen=True, slots=True)
class SectionKind:
    """Properties that comparable rows have in common.

    Attributes:
        fingerprint: fingerprint of the split; None if all rows are reported.
        folds: number of folds that the figures are averaged over.
        sites: number of sites that they are averaged over; 0 unless the release is split by domain.
        published: whether this is the test split of the board's reported figures.
    """

    split: str
    fingerprint: str | None
    origin: Origin
    noise: NoiseCondition
    n_images: int
    n_pairs: int
    folds: int = 1
    sites: int = 0
    published: bool = False

    @property
    def name(self) -> str:
        """Name of the section in URLs, unique on the board."""
        mismatch = "" if self.noise.mismatch is None else f"-{round(100 * self.noise.mismatch)}"
        where = self.fingerprint[:16] if self.fingerprint else "reported"
        sites = "-sites" if self.sites else ""
        return f"{self.split}-{where}-{self.noise.protocol}{mismatch}-{self.n_images}{sites}"

    @property
    def data(self) -> str:
        """The data in words."""
        if self.published or self.fingerprint is None:
            return PUBLISHED
        kinds = {"rebuilt": "rebuilt release", "blind": "blind round", "closed": "blind round"}
        return f"{kinds.get(self.origin, 'copy')} {self.fingerprint[:8]}, {self.split} split"


def boards_of(result: Result) -> tuple[BoardName, ...]:
    """Return the boards that show a result; the first is that of its own ranks."""
    if result.track != "coco":
        return (result.track,)
    if result.n_images <= FOLD:
        return ("coco-1k",)
    return ("coco-5k", "coco-1k") if result.folds else ("coco-5k",)


def make_board(
    name: BoardName,
    entries: Iterable[Entry],
    equal: Mapping[str, str] | None = None,
    references: Mapping[str, Mapping[str, float]] | None = None,
) -> pd.DataFrame:
    """Make the table of a board: section by section, of each its proof, then its claims.

    Results on the published layout with as many images and captions as the reported rows stand with
    them; results on other data get their own sections. Claims, withdrawn entries and those that
    repeat the ranks of an earlier one get no place, nor do rows whose training noise no reported
    row has: their submitter alone states it.

    Args:
        name: name of the board.
        entries: entries, also those of other boards.
        equal: the earlier entry of the same ranks, by name, as :func:`equal_ranks`.
        references: rSum of the reference scorers, by name, as the keepers of the board recomputed
            them, by the fingerprint of the data.
    """
    sections: dict[SectionKind, list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.withdrawal is None and name in boards_of(entry.result):
            sections[_kind(entry.shown, name)].append(entry)
    facts = BOARD_FACTS[name]
    origin: Origin = "archive" if name in TOKENIZERS else "field"
    reported: dict[NoiseCondition, list[ReportedRow]] = defaultdict(list)
    for one in read_reported(name):
        reported[one.noise].append(one)
    for noise in reported.keys() - {kind.noise for kind in sections if kind.published}:
        size = *facts.test_size, facts.folds
        sections[SectionKind("test", None, origin, noise, *size, published=True)] = []
    parts = []
    for kind, own in sections.items():
        rows = [_entry_row(entry, name, (equal or {}).get(entry.name)) for entry in own]
        rows += _reference_rows(kind, own, (references or {}).get(kind.fingerprint or "", {}))
        own_reported = reported.get(kind.noise, []) if kind.published else []
        rows += [_reported_row(row, kind) for row in own_reported]
        shared = {"board": name, "noise": kind.noise.title, "data": kind.data, "kind": kind}
        part = pd.DataFrame([row | shared for row in rows], columns=list(COLUMNS)).astype(COLUMNS)
        if kind.noise in reported or not kind.noise.mismatch:
            _add_places(part)
        proven, printed = bool(part["proof"].any()), bool(own_reported)
        order = (
            *(kind.split != "test", not proven, name in TOKENIZERS and printed, not printed),
            _PROTOCOLS.index(kind.noise.protocol),
            *(kind.noise.mismatch or 0.0, -kind.n_images, kind.fingerprint or ""),
        )
        parts.append((order, _ordered(part, proven=proven)))
    parts.sort(key=lambda pair: pair[0])
    return pd.concat([part for _, part in parts], ignore_index=True)


def axis_of(highest: float) -> float:
    """Return the smallest multiple of 60 rSum points that is at least ``highest``, at most 600."""
    return min(60.0 * max(1, ceil(highest / 60)), 600.0)


def base_of(lowest: float, axis: float) -> float:
    """Return the start of the axis of bars: greater than 0 if all rows are far above 0."""
    base = min(20.0 * floor(lowest / 20), axis - 40)
    return base if base >= 0.75 * axis else 0.0


def spelled(method: str) -> str:
    """Return a method's name as pages spell it: PC² for PC2."""
    return re.sub(r"\bPC2\b", "PC²", method)


def _kind(result: Result, board: BoardName) -> SectionKind:
    folds = result.folds if board == "coco-1k" else None
    sizes = result.n_images, result.n_pairs
    facts, count = BOARD_FACTS[board], folds.count if folds else 1
    published = (
        result.release.origin in {"archive", "field"}
        and result.split == "test"
        and (*sizes, count) == (*facts.test_size, facts.folds)
    )
    release = result.release
    part, data = part_of(result, board), (release.fingerprint, release.origin)
    sites = part.count if isinstance(part, Within) and part is result.within_site else 0
    return SectionKind(result.split, *data, _noise(result), *sizes, count, sites, published)


def _noise(result: Result) -> NoiseCondition:
    """Return the noise condition under which a result was trained."""
    noise = result.training.noise
    mismatch = min(round(noise.mismatch, 2), 0.99) if noise else 0.0
    if noise is not None and mismatch:
        return NoiseCondition(protocol=noise.protocol, mismatch=mismatch)
    if result.track not in _INJECTED:
        return NoiseCondition(protocol="web")
    clean = NoiseCondition(protocol="none", mismatch=0.0)
    return clean if noise is not None else NoiseCondition(protocol="unstated")


def part_of(result: Result, board: BoardName) -> Result | Within:
    """Return the figures of a result that a board shows: of folds, within sites, or the whole."""
    by_domain = result.ranks is not None and result.ranks.site_owners is not None
    sites = result.within_site if by_domain else None
    return (result.folds if board == "coco-1k" else sites) or result


def _entry_row(entry: Entry, board: BoardName, equal_to: str | None) -> dict[str, Any]:
    result, part = entry.shown, part_of(entry.shown, board)
    return {
        "proof": entry.evidence in PROOF,
        "method": spelled(result.method.name),
        "evidence": entry.evidence,
        "rsum": part.rsum,
        "whole_rsum": result.rsum if part is result.within_site else None,
        "claimed": part_of(entry.result, board).rsum if entry.run else None,
        "low": part.rsum_interval[0],
        "high": part.rsum_interval[1],
        **dict(zip(RECALLS, part.i2t.values() + part.t2i.values(), strict=True)),
        "ensemble": result.training.ensemble_size,
        "post_processing": result.postprocessing.kind,
        "date": entry.filing.submitted_at.date().isoformat() if entry.filing else None,
        "entry": entry.name,
        "url": result.links.paper or result.links.code,
        "authors": result.authors,
        "footnote": result.reason,
        "notes": tuple(note.code for note in result.notes),
        "equal_to": equal_to,
        "item": entry,
        "ranked": result.ranked,
    }


def _reported_row(row: ReportedRow, kind: SectionKind) -> dict[str, Any]:
    """Make a reported row; its interval is the narrowest plausible one.

    The directions are taken as independent, though they correlate.
    """
    ways = zip((row.i2t, row.t2i), (kind.n_images, kind.n_pairs), strict=True)
    half = _Z95 * hypot(*(sum_deviation(way, queries) for way, queries in ways if way))
    return {
        "proof": False,
        "method": row.method,
        "evidence": "reported",
        "rsum": row.rsum,
        "low": row.rsum - half if half else None,
        "high": row.rsum + half if half else None,
        **dict(zip(RECALLS, row.recalls or [None] * 6, strict=True)),
        "ensemble": row.ensemble,
        "date": str(row.source.year),
        "url": row.source.url,
        "authors": row.source.authors,
        "source": row.source.key,
        "table": row.table,
        "footnote": row.footnote,
        "notes": (),
        "item": row,
        "ranked": True,
    }


def trusted_references(entry: Entry, known: Mapping[str, float]) -> dict[str, float]:
    """Return the references of an entry that the board can vouch for.

    They are chance, those of the data's report in the store, and those of a keeper's run or of a
    file that is in no store. References that a stranger filed are not shown.
    """
    result = entry.shown
    trusted = result.references if entry.run or not entry.filing else {}
    chance = chance_rsum(result.n_images, result.n_pairs)
    return {**trusted, **known, "chance": chance}


def _reference_rows(
    kind: SectionKind, entries: Sequence[Entry], known: Mapping[str, float]
) -> list[dict[str, Any]]:
    """Make the rows of chance and of the references on which the entries agree."""
    values = {"chance": {chance_rsum(kind.n_images // kind.folds, kind.n_pairs // kind.folds)}}
    if kind.sites:
        sites = [entry.shown.within_site for entry in entries]
        values["chance"] = {min(own.chance or 0.0 for own in sites if own)}
    for entry in entries if kind.folds == 1 and not kind.sites else ():
        for name, rsum in trusted_references(entry, known).items():
            values.setdefault(name, set()).add(rsum)
    agreed = {name: min(values[name]) for name in REFERENCES if len(values.get(name, ())) == 1}
    shared = {"proof": False, "evidence": "reference", "ranked": True}
    return [{"method": name, "rsum": rsum, **shared} for name, rsum in agreed.items()]


def _add_places(part: pd.DataFrame) -> None:
    """Number the proof by rSum, 1, 2, 2, 4, and add place intervals and ties.

    Place intervals are those among rows with ranks, shifted by the other rows whose interval lies
    above the whole of a row's own (for the first place) or overlaps it (for the last).
    """
    ranked = part[part["proof"] & part["ranked"] & part["equal_to"].isna()]
    part.loc[ranked.index, "place"] = ranked["rsum"].rank(method="min", ascending=False)
    hits = {row: own for row, item, kind in zip(ranked.index, ranked["item"], ranked["kind"],
            strict=True) if (own := _hits(item.shown, kind)) is not None}  # fmt: skip
    if not hits:
        return
    rivals, table = ranked.drop(index=list(hits)), np.stack(list(hits.values()))
    records = [item.shown.ranks for item in ranked["item"] if item.shown.ranks]
    owners = next((own for own in (one.clusters()[0] for one in records) if own is not None), None)
    if owners is not None and not ranked["kind"].iloc[0].sites:
        table = np.stack([np.bincount(owners, row) for row in table])
    tied = tied_with_first(table)
    for row, (first, last), even in zip(hits, intervals_of(resampled(table)), tied, strict=True):
        low, high = part.loc[row, ["low", "high"]]
        part.loc[row, "place_low"] = int(first) + int((rivals["low"] > high).sum())
        part.loc[row, "place_high"] = int(last) + int((rivals["high"] >= low).sum())
        part.loc[row, "tied"] = bool(even)


def _hits(result: Result, kind: SectionKind) -> Float[np.ndarray, " units"] | None:
    """Return the expected hits of each site, or of each image, of folds or all."""
    sites, record = result.within_site, result.ranks
    if kind.sites and sites and sites.ranks:
        return units_within("within_site", sites.ranks, sites.spans)
    if kind.folds > 1:
        record = result.folds.ranks if result.folds else None
    return hits_per_image(*record.read(), record.owner()) if record else None


def _ordered(part: pd.DataFrame, *, proven: bool) -> pd.DataFrame:
    """Sort by rSum: proof first; in each part what repeats, is contradicted or unranked last."""
    references = part["evidence"] == "reference"
    order = pd.DataFrame(
        {
            "claim": ~(part["proof"] | (references & proven)),
            "unranked": ~part["ranked"],
            "doubted": part["equal_to"].notna() | (part["evidence"] == "contradicted"),
            "rsum": -part["rsum"],
            "method": part["method"],
            "entry": part["entry"].fillna(""),
        }
    )
    return part.loc[order.sort_values(list(order.columns)).index]


def seeds_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the mean over seeds, as text, of each row that was filed with several, by entry.

    Such rows are of the same authors and method, with the same evidence: only their seeds differ,
    and no two have one in common.
    """
    runs: dict[tuple[object, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        result = row["item"].shown if row["entry"] else None
        if result and result.authors and result.training.seeds:
            training = result.training.model_copy(update={"seeds": ()})
            method = result.method.name, result.method.version, result.postprocessing
            runs[result.authors, row["evidence"], *method, training].append(row)
    means: dict[str, str] = {}
    for group in runs.values():
        seeds = [seed for row in group for seed in row["item"].shown.training.seeds]
        if len(group) > 1 and len(set(seeds)) == len(seeds):
            rsums = pd.Series([row["rsum"] for row in group])
            text = f"{len(group)} seeds: {rsums.mean():.1f} ± {rsums.std():.1f}"
            means |= {row["entry"]: text for row in group}
    return means
