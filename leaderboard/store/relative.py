"""Flags from comparing two entries: near-identical ranks, rebuilt lists, test far above dev."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from jaxtyping import Float, Integer

from leaderboard.scoring.checks import (
    GAP_Z,
    KEPT_RANKS,
    NEAR_IDENTICAL,
    SplitScore,
    centred_places,
    dev_test_gap,
    first_places,
    kept,
    middles,
    near_identical,
)
from leaderboard.scoring.result import Flag, RankRecord, Result
from leaderboard.store.entries import Entry

_NEVER = datetime.max.replace(tzinfo=UTC)
# Correlations this close to the threshold are computed one by one: the product rounds.
_MARGIN = 1e-6
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class _Seen:
    """Ranks of an entry.

    Attributes:
        unit: places of the ranks, centred, of norm 1; None if all ranks are equal.
        first: :func:`leaderboard.scoring.checks.first_places`.
    """

    record: RankRecord
    unit: Float[np.ndarray, " queries"] | None
    first: Integer[np.ndarray, " queries"]


@dataclass(frozen=True, slots=True)
class _Links:
    """The entries that one entry resembles, by number, and how much."""

    others: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, others: Iterable[int], values: Iterable[float]) -> None:
        self.others.extend(others)
        self.values.extend(values)


class Pairs:
    """Pairs of entries that resemble each other.

    What is found is kept by the entries' names, which stand for their content, so that one more
    entry is compared with all others, and these not again with each other.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], dict[str, _Seen]] = defaultdict(dict)
        self._numbers: dict[str, int] = {}
        self._alike: dict[str, _Links] = defaultdict(_Links)
        self._kept: dict[str, _Links] = defaultdict(_Links)

    def add(self, entries: Iterable[Entry]) -> None:
        """Compare the entries that are not known yet with all others on the same data."""
        fresh: dict[tuple[object, ...], list[str]] = defaultdict(list)
        for entry in entries:
            seen, ranks = self._seen[_data_of(entry.result)], entry.result.ranks
            if ranks is not None and entry.name not in seen:
                seen[entry.name] = _see(ranks)
                self._numbers.setdefault(entry.name, len(self._numbers))
                fresh[_data_of(entry.result)].append(entry.name)
        for data, names in fresh.items():
            self._find_alike(self._seen[data], names)
            self._find_kept(self._seen[data], len(names))

    def copies(self, group: Sequence[Entry]) -> Iterator[tuple[Entry, Entry, float]]:
        """Yield entries of near-identical ranks as an earlier one in the group.

        Each comes with the earliest such entry, and Spearman's correlation.
        """
        for own, earlier, values in self._earlier(group, self._alike):
            first = int(earlier.argmin())
            yield group[own], group[earlier[first]], float(values[first])

    def rebuilt(self, group: Sequence[Entry]) -> Iterator[tuple[Entry, Entry, float]]:
        """Yield entries that repeat the ranks 2 to 10 of an earlier one in the group.

        Each comes with the entry of which it repeats most, and that share. Only pairs count of
        which one at least is of ranked lists.
        """
        for own, earlier, values in self._earlier(group, self._kept):
            most = int(np.lexsort((earlier, -values))[0])
            yield group[own], group[earlier[most]], float(values[most])

    def _earlier(
        self, group: Sequence[Entry], found: Mapping[str, _Links]
    ) -> Iterator[tuple[int, Integer[np.ndarray, " _"], Float[np.ndarray, " _"]]]:
        """Yield each entry with links to earlier ones: its place, their places, how much."""
        places = np.full(len(self._numbers), len(group))
        for own, entry in enumerate(group):
            if entry.name in self._numbers:
                places[self._numbers[entry.name]] = own
        for own, entry in enumerate(group):
            if entry.name in found:
                links = found[entry.name]
                of_others = places[np.array(links.others)]
                before = of_others < own
                if before.any():
                    yield own, of_others[before], np.array(links.values)[before]

    def _find_alike(self, seen: dict[str, _Seen], fresh: Sequence[str]) -> None:
        units = {name: one.unit for name, one in seen.items() if one.unit is not None}
        names, fresh = list(units), [name for name in fresh if name in units]
        stacked = np.stack(list(units.values())) if fresh else np.empty((0, 0))
        known = set(names) - set(fresh)
        for start in range(0, len(fresh), _BLOCK):
            block = fresh[start : start + _BLOCK]
            for one, close in zip(
                block, np.stack([units[name] for name in block]) @ stacked.T, strict=True
            ):
                for at in np.flatnonzero(np.abs(close - NEAR_IDENTICAL) < _MARGIN).tolist():
                    ranks = (seen[name].record.read() for name in (one, names[at]))
                    close[at] = near_identical(*ranks)
                near = np.flatnonzero(close >= NEAR_IDENTICAL).tolist()
                others = [at for at in near if names[at] != one]
                values = close[others].tolist()
                self._alike[one].add((self._numbers[names[at]] for at in others), values)
                for at, value in zip(others, values, strict=True):
                    if names[at] in known:
                        self._alike[names[at]].add([self._numbers[one]], [value])

    def _find_kept(self, seen: dict[str, _Seen], fresh: int) -> None:
        """Compare the last entries, ``fresh`` in number, with all those before them."""
        names, all_seen = list(seen), list(seen.values())
        lists = np.array([one.record.depth is not None for one in all_seen])
        if not lists.any():
            return
        places = np.stack([one.first for one in all_seen])
        for own in range(len(names) - fresh, len(names)):
            before = np.arange(own) if lists[own] else np.flatnonzero(lists[:own])
            theirs, ours = kept(places[before], places[own])
            for at in np.flatnonzero(np.maximum(theirs, ours) > KEPT_RANKS).tolist():
                one, other = names[own], names[before[at]]
                if theirs[at] > KEPT_RANKS:
                    self._kept[one].add([self._numbers[other]], [float(theirs[at])])
                if ours[at] > KEPT_RANKS:
                    self._kept[other].add([self._numbers[one]], [float(ours[at])])


def _see(record: RankRecord) -> _Seen:
    ranks = record.read()
    places = centred_places(middles(ranks))
    norm = float(np.linalg.norm(places))
    return _Seen(record, places / norm if norm else None, first_places(ranks))


def _data_of(result: Result) -> tuple[object, ...]:
    """Return what entries share that can be compared query by query."""
    fingerprint = result.release.fingerprint
    return result.track, result.split, fingerprint, result.n_images, result.n_pairs


def relative_flags(
    entries: Iterable[Entry], pairs: Pairs | None = None
) -> dict[str, tuple[Flag, ...]]:
    """Flag entries by comparison with other entries; names without a flag are left out.

    Of two near-identical entries the later one is flagged, by the judge's signed order; both, if
    neither is signed, for then nobody can tell. Withdrawn ones count too: a copy of what
    was withdrawn is one. Entries whose ranks are all equal (all perfect, all tied) resemble each
    other trivially, and are left out. ``pairs`` keeps what was compared, for the next time.
    """
    found: dict[str, list[Flag]] = defaultdict(list)
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    pairs = pairs or Pairs()
    ordered = sorted(entries, key=_age)
    pairs.add(ordered)
    for entry in ordered:
        groups[_data_of(entry.result)].append(entry)
    devs = [entry for entry in ordered if entry.result.split == "dev"]
    for group in groups.values():
        for name, flag in (*_copies(group, pairs), *_rebuilt_lists(group, pairs)):
            if all(flag.code != other.code for other in found[name]):
                found[name].append(flag)
        if group[0].result.split == "test":
            for name, flag in _gaps(group, devs):
                found[name].append(flag)
    return {name: tuple(flags) for name, flags in found.items()}


def _age(entry: Entry) -> tuple[bool, int, datetime, str]:
    """Return a sort key: the judge's order first, then dates, which anyone may have written."""
    arrival = entry.proof.arrival
    at = entry.filing.submitted_at if entry.filing else _NEVER
    return arrival is None, arrival or 0, at, entry.name


def _copies(group: Sequence[Entry], pairs: Pairs) -> Iterator[tuple[str, Flag]]:
    """Flag the entries whose ranks are near-identical to those of an earlier one."""
    for later, first, alike in pairs.copies(group):
        message = (
            f"its ranks are those of the earlier entry {first.name}: Spearman's"
            f" correlation {alike:.4f}, expected less than {NEAR_IDENTICAL:g}"
        )
        yield later.name, Flag(code="near-identical", message=message)
        if later.proof.arrival is None and first.proof.arrival is None:
            message = (
                f"its ranks are those of the entry {later.name}; which of them"
                " came first is not signed"
            )
            yield first.name, Flag(code="near-identical", message=message)


def _rebuilt_lists(group: Sequence[Entry], pairs: Pairs) -> Iterator[tuple[str, Flag]]:
    """Flag ranked lists that follow the ranks of an earlier entry, as if rebuilt from them.

    The later of two is flagged if either is of lists.
    """
    for later, earlier, share in pairs.rebuilt(group):
        message = (
            f"{100 * share:.0f} % of the queries at ranks 2 to 10 in the earlier"
            f" entry {earlier.name} have the same rank here, expected"
            f" {100 * KEPT_RANKS:.0f} % at most: as if its lists were rebuilt from those ranks"
        )
        yield later.name, Flag(code="rebuilt-lists", message=message)


def _gaps(tests: Sequence[Entry], devs: Sequence[Entry]) -> Iterable[tuple[str, Flag]]:
    """Find test scores that exceed dev, of the same known submitter, by more than sampling error.

    Anyone may give a method another's name.
    """
    of_method: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for entry in devs:
        of_method[_method(entry)].append(entry.result)
    for entry in tests:
        result = entry.result
        for dev in of_method[_method(entry)] if _submitter(entry) else ():
            gap = dev_test_gap(_score(dev), _score(result))
            if gap is not None and gap > GAP_Z:
                message = (
                    f"test lies {result.rsum - dev.rsum:.1f} rSum points above dev,"
                    f" {gap:.1f} standard errors, expected {GAP_Z:g} at most"
                )
                yield entry.name, Flag(code="dev-test-gap", message=message)
                break


def _method(entry: Entry) -> tuple[object, ...]:
    """Return what a dev and a test entry of one method have in common."""
    result, method = entry.result, entry.result.method
    return result.track, result.release.origin, method.name, method.version, _submitter(entry)


def _submitter(entry: Entry) -> str | None:
    """Return who filed an entry; None while that is hidden, or if nobody said."""
    return entry.filing.submitter if entry.filing else None


def _score(result: Result) -> SplitScore:
    return SplitScore(result.rsum, result.rsum_deviation, result.n_pairs)
