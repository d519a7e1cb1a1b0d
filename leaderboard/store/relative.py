"""Flags from comparing two entries: near-identical ranks, rebuilt lists, test far above dev."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import numpy as np

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
# Correlations this close to the threshold are computed exactly: the product rounds.
_MARGIN = 1e-6


def relative_flags(entries: Iterable[Entry]) -> dict[str, tuple[Flag, ...]]:
    """Flag entries by comparison with other entries; names without a flag are left out.

    Of two near-identical entries the later one is flagged, by the judge's signed order; both, if
    neither is signed, for then nobody can tell. Withdrawn ones count too: a copy of what
    was withdrawn is one. Entries whose ranks are all equal (all perfect, all tied) resemble each
    other trivially, and are left out.
    """
    found: dict[str, list[Flag]] = defaultdict(list)
    groups: dict[tuple[str, str, str], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=_age):
        result = entry.result
        groups[result.track, result.split, result.release.fingerprint].append(entry)
    for (_, split, _), group in groups.items():
        for name, flag in (*_copies(group), *_rebuilt_lists(group)):
            if all(flag.code != other.code for other in found[name]):
                found[name].append(flag)
        if split == "test":
            devs = [e for key, dev in groups.items() if key[1] == "dev" for e in dev]
            for name, flag in _gaps(group, devs):
                found[name].append(flag)
    return {name: tuple(flags) for name, flags in found.items()}


def _age(entry: Entry) -> tuple[bool, int, datetime, str]:
    """Return a sort key: the judge's order first, then dates, which anyone may have written."""
    arrival = entry.proof.arrival
    at = entry.filing.submitted_at if entry.filing else _NEVER
    return arrival is None, arrival or 0, at, entry.name


def _copies(group: Sequence[Entry]) -> Iterable[tuple[str, Flag]]:
    """Find the entries whose ranks are near-identical to those of an earlier one."""
    known = [(e, e.result.ranks) for e in group if e.result.ranks and _vary(e.result.ranks)]
    if len(known) < 2:
        return
    places = [centred_places(middles(record.read())) for _, record in known]
    stacked = np.stack([one / np.linalg.norm(one) for one in places])
    alike = stacked @ stacked.T
    for later in range(1, len(known)):
        close = np.flatnonzero(alike[later, :later] >= NEAR_IDENTICAL - _MARGIN)
        for earlier in close.tolist():
            exact = near_identical(known[earlier][1].read(), known[later][1].read())
            if exact >= NEAR_IDENTICAL:
                first = known[earlier][0]
                message = (
                    f"its ranks are those of the earlier entry {first.name}: Spearman's"
                    f" correlation {exact:.4f}, expected less than {NEAR_IDENTICAL:g}"
                )
                yield known[later][0].name, Flag(code="near-identical", message=message)
                if known[later][0].proof.arrival is None and first.proof.arrival is None:
                    message = (
                        f"its ranks are those of the entry {known[later][0].name}; which of them"
                        " came first is not signed"
                    )
                    yield first.name, Flag(code="near-identical", message=message)
                break


def _rebuilt_lists(group: Sequence[Entry]) -> Iterable[tuple[str, Flag]]:
    """Find ranked lists that follow the ranks of an earlier entry, as if rebuilt from them.

    The later of two is flagged if either is of lists.
    """
    known = [(e, e.result.ranks) for e in group if e.result.ranks]
    if not any(record.depth for _, record in known):
        return
    places = np.stack([first_places(record.read()) for _, record in known])
    lists = np.array([record.depth is not None for _, record in known])
    for later in range(1, len(known)):
        shares = np.where(lists[:later] | lists[later], kept(places[:later], places[later]), 0.0)
        earlier = int(shares.argmax())
        if shares[earlier] > KEPT_RANKS:
            message = (
                f"{100 * shares[earlier]:.0f} % of the queries at ranks 2 to 10 in the earlier"
                f" entry {known[earlier][0].name} have the same rank here, expected"
                f" {100 * KEPT_RANKS:.0f} % at most: as if its lists were rebuilt from those ranks"
            )
            yield known[later][0].name, Flag(code="rebuilt-lists", message=message)


def _vary(record: RankRecord) -> bool:
    return bool(np.ptp(middles(record.read())))


def _gaps(tests: Sequence[Entry], devs: Sequence[Entry]) -> Iterable[tuple[str, Flag]]:
    """Find test scores that exceed dev by more than sampling error allows."""
    of_method: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for entry in devs:
        of_method[_method(entry)].append(entry.result)
    for entry in tests:
        result = entry.result
        for dev in of_method[_method(entry)]:
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
    result = entry.result
    who = entry.filing.submitter if entry.filing else None
    return result.track, result.release.origin, result.method.name, result.method.version, who


def _score(result: Result) -> SplitScore:
    return SplitScore(result.rsum, result.rsum_deviation, result.n_pairs)
