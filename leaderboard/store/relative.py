"""Flags of entries whose ranks are near-identical to those of an earlier entry."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import sqrt

import numpy as np
from jaxtyping import Float

from leaderboard.metrics import Ranks
from leaderboard.scoring.result import Flag, Result
from leaderboard.store.entries import Entry

NEAR_IDENTICAL = 0.999
"""Rank correlation from which two entries count as near-identical."""

_NEVER = datetime.max.replace(tzinfo=UTC)
_BLOCK = 256
# A product of matrices rounds otherwise than one of vectors.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class _Links:
    """The entries that one entry is near-identical to, by number, and their correlations."""

    others: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, others: Iterable[int], values: Iterable[float]) -> None:
        self.others.extend(others)
        self.values.extend(values)


class Pairs:
    """Pairs of near-identical entries.

    They are kept by the entries' names, which stand for their content, so that one more entry is
    compared with all others, and these not again with each other.
    """

    def __init__(self) -> None:
        self._units: dict[tuple[object, ...], dict[str, Float[np.ndarray, " queries"]]]
        self._units = defaultdict(dict)
        self._numbers: dict[str, int] = {}
        self._links: dict[str, _Links] = defaultdict(_Links)

    def add(self, entries: Iterable[Entry]) -> None:
        """Compare the entries that are not known yet with all others on the same data."""
        fresh: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for entry in entries:
            if entry.result.ranks is not None and entry.name not in self._numbers:
                self._numbers[entry.name] = len(self._numbers)
                unit = _unit(mid_ranks(entry.result.ranks.read()))
                if unit is not None:
                    data = _data_of(entry.result)
                    self._units[data][entry.name] = unit
                    fresh[data].append(entry.name)
        for data, names in fresh.items():
            self._compare(self._units[data], names)

    def copies(self, group: Sequence[Entry]) -> Iterator[tuple[Entry, Entry, float]]:
        """Yield each entry that is near-identical to an earlier one in the group.

        It comes with the earliest such entry, and Spearman's correlation.
        """
        places = np.full(len(self._numbers), len(group))
        for own, entry in enumerate(group):
            if entry.name in self._numbers:
                places[self._numbers[entry.name]] = own
        for own, entry in enumerate(group):
            if entry.name in self._links:
                links = self._links[entry.name]
                of_others = places[np.array(links.others)]
                first = int(of_others.argmin())
                if of_others[first] < own:
                    yield entry, group[of_others[first]], links.values[first]

    def _compare(
        self, units: dict[str, Float[np.ndarray, " queries"]], fresh: Sequence[str]
    ) -> None:
        names, stacked = list(units), np.stack(list(units.values()))
        known = set(names) - set(fresh)
        for start in range(0, len(fresh), _BLOCK):
            block = fresh[start : start + _BLOCK]
            correlations = np.stack([units[name] for name in block]) @ stacked.T
            for one, row in zip(block, correlations.round(_DIGITS), strict=True):
                near = np.flatnonzero(row >= NEAR_IDENTICAL).tolist()
                others = [at for at in near if names[at] != one]
                values = row[others].tolist()
                if others:
                    self._links[one].add((self._numbers[names[at]] for at in others), values)
                for at, value in zip(others, values, strict=True):
                    if names[at] in known:
                        self._links[names[at]].add([self._numbers[one]], [value])


def near_identical(first: tuple[Ranks, Ranks], second: tuple[Ranks, Ranks]) -> float:
    """Return Spearman's correlation of all ranks, both directions concatenated.

    From :data:`NEAR_IDENTICAL` on, two entries count as near-identical. Ties count as the middle.
    If one of them has all ranks equal it is 1 if they agree, else 0.

    Raises:
        ValueError: If the numbers of queries differ.
    """
    ranks = mid_ranks(first), mid_ranks(second)
    if len(ranks[0]) != len(ranks[1]):
        raise ValueError(f"found {len(ranks[1])} queries in the second, expected {len(ranks[0])}")
    if np.array_equal(ranks[0], ranks[1]):
        return 1.0
    one, other = map(_unit, ranks)
    return 0.0 if one is None or other is None else round(float(one @ other), _DIGITS)


def mid_ranks(ranks: tuple[Ranks, Ranks]) -> Float[np.ndarray, " queries"]:
    """Return all ranks of an entry, from 0, ties as the middle of their places."""
    return np.concatenate([way.greater + way.equal / 2 for way in ranks])


def _unit(values: Float[np.ndarray, " queries"]) -> Float[np.ndarray, " queries"] | None:
    """Return the centred places of values, ties as the middle, at norm 1; None if all are equal."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    places = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - (len(values) + 1) / 2
    norm = sqrt(float(places @ places))
    return np.asarray(places / norm) if norm else None


def _data_of(result: Result) -> tuple[object, ...]:
    """Return the data that entries must share to be compared query by query."""
    fingerprint = result.release.fingerprint
    return result.track, result.split, fingerprint, result.n_images, result.n_pairs


def relative_flags(
    entries: Iterable[Entry], pairs: Pairs | None = None
) -> dict[str, tuple[Flag, ...]]:
    """Flag near-identical entries; names without a flag are left out.

    Of two near-identical entries the later one is flagged, by the judge's signed order; both, if
    neither is signed, for then nobody can tell. Withdrawn ones count too: a copy of a withdrawn
    entry is a copy. Entries whose ranks are all equal (all perfect, all tied) resemble each
    other trivially, and are left out. ``pairs`` keeps the comparisons for the next time.
    """
    found: dict[str, Flag] = {}
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    pairs = pairs or Pairs()
    ordered = sorted(entries, key=_age)
    pairs.add(ordered)
    for entry in ordered:
        groups[_data_of(entry.result)].append(entry)
    for group in groups.values():
        for name, message in _copies(group, pairs):
            found.setdefault(name, Flag(code="near-identical", message=message))
    return {name: (flag,) for name, flag in found.items()}


def _age(entry: Entry) -> tuple[bool, int, datetime, str]:
    """Return a sort key: the judge's order first, then dates, which anyone may have written."""
    arrival = entry.proof.arrival
    at = entry.filing.submitted_at if entry.filing else _NEVER
    return arrival is None, arrival or 0, at, entry.name


def _copies(group: Sequence[Entry], pairs: Pairs) -> Iterator[tuple[str, str]]:
    """Yield the names of near-identical entries in a group, and the messages of their flags."""
    for later, first, alike in pairs.copies(group):
        message = (
            f"its ranks are those of the earlier entry {first.name}: Spearman's"
            f" correlation {alike:.4f}, expected less than {NEAR_IDENTICAL:g}"
        )
        yield later.name, message
        if later.proof.arrival is None and first.proof.arrival is None:
            message = f"its ranks are those of the entry {later.name}; which came first is unsigned"
            yield first.name, message
