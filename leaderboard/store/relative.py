"""Flags of entries whose ranks are near-identical to those of an earlier entry."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import sqrt

import numpy as np
from jaxtyping import Float

from leaderboard.scoring.result import Flag, RankRecord, Result
from leaderboard.store.entries import Entry, age

NEAR_IDENTICAL = 0.98
"""Spearman's correlation of all ranks from which two entries count as near-identical."""

_BLOCK = 256
# A product of matrices rounds otherwise than one of vectors.
_DIGITS = 9


class Pairs:
    """Pairs of near-identical entries, and their correlations.

    They are kept by the entries' names, which are hashes of their content, so that a new entry is
    compared with all others, and these not again with each other.
    """

    def __init__(self) -> None:
        self._units: dict[tuple[object, ...], dict[str, Float[np.ndarray, " queries"]]]
        self._units = defaultdict(dict)
        self._known: set[str] = set()
        self._alike: dict[str, dict[str, float]] = defaultdict(dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Compare the entries that are not known yet with all others on the same data."""
        fresh: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for entry in entries:
            if entry.result.ranks is not None and entry.name not in self._known:
                self._known.add(entry.name)
                unit = unit_ranks(entry.result.ranks)
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
        places = {entry.name: place for place, entry in enumerate(group)}
        for own, entry in enumerate(group):
            alike = self._alike.get(entry.name, {})
            first = min((places[name] for name in alike if name in places), default=own)
            if first < own:
                yield entry, group[first], alike[group[first].name]

    def _compare(
        self, units: dict[str, Float[np.ndarray, " queries"]], fresh: Sequence[str]
    ) -> None:
        names, stacked = list(units), np.stack(list(units.values()))
        for start in range(0, len(fresh), _BLOCK):
            block = fresh[start : start + _BLOCK]
            correlations = (np.stack([units[name] for name in block]) @ stacked.T).round(_DIGITS)
            for row, column in np.argwhere(correlations >= NEAR_IDENTICAL).tolist():
                one, other = block[row], names[column]
                if one != other:
                    self._alike[one][other] = self._alike[other][one] = correlations[row, column]


def unit_ranks(record: RankRecord) -> Float[np.ndarray, " queries"] | None:
    """Return the ranks of an entry's ranks, centred and scaled to norm 1.

    The product of two entries' is Spearman's correlation, both directions concatenated; ties
    count as the middle of their places. None if all ranks are equal.
    """
    ranks = np.concatenate([way.greater + way.equal / 2 for way in record.read()])
    _, inverse, counts = np.unique(ranks, return_inverse=True, return_counts=True)
    places = (np.cumsum(counts) - (counts - 1) / 2)[inverse] - (len(ranks) + 1) / 2
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

    Of two near-identical entries the one received later is flagged, in the order of
    :func:`leaderboard.store.entries.age`. Withdrawn ones count too: a copy of a withdrawn entry is
    a copy. Entries whose ranks are all equal (all perfect, all tied)
    resemble each other trivially, and are left out. ``pairs`` keeps the comparisons for the next
    time.
    """
    found: dict[str, Flag] = {}
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    pairs = pairs or Pairs()
    ordered = sorted(entries, key=age)
    pairs.add(ordered)
    for entry in ordered:
        groups[_data_of(entry.result)].append(entry)
    for group in groups.values():
        for later, first, alike in pairs.copies(group):
            message = _likeness(later, first, alike)
            found.setdefault(later.name, Flag(code="near-identical", message=message))
    return {name: (flag,) for name, flag in found.items()}


def _likeness(later: Entry, first: Entry, alike: float) -> str:
    """Say how an entry is like an earlier one."""
    figure = f"Spearman's correlation {alike:.4f}, expected less than {NEAR_IDENTICAL:g}"
    if later.result.payload_sha256 == first.result.payload_sha256:
        return f"the same file, byte for byte, as that of the earlier entry {first.name}"
    senders = {one.filing.submitter if one.filing else None for one in (later, first)}
    if len(senders) == 1 and None not in senders:
        return f"its sender has sent these ranks before, as the entry {first.name}: {figure}"
    return f"its ranks are those of the earlier entry {first.name}: {figure}"
