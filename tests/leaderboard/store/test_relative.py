"""Flags that take two entries."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from leaderboard.scoring.checks import (
    KEPT_RANKS,
    LEAST_KEPT,
    NEAR_IDENTICAL,
    SplitScore,
    middles,
    near_identical,
)
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import QueryRanks, RankRecord
from leaderboard.store.entries import (
    Entry,
    NewFiling,
    Proof,
    file_result,
    read_results,
)
from leaderboard.store.proof import read_board
from leaderboard.store.relative import Pairs, relative_flags
from leaderboard.store.signatures import make_key
from leaderboard.submission.archive import new_submission, pack, pack_arrays
from tests.leaderboard.conftest import SIZES, make_similarity
from tests.leaderboard.random_entries import make_entries

AT = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def filed(tmp_path, release):
    """File a matrix, an hour after the one before; give the entry's name."""
    hours = iter(range(99))

    def file(matrix, method="Mine", split="test", who="ann"):
        pack(tmp_path / "x.zip", matrix, new_submission(release, "jieba", split, method))
        filing = NewFiling(who, AT + timedelta(hours=next(hours)))
        entry, _ = file_result(tmp_path / "s", score(tmp_path / "x.zip", release), filing)
        return entry.name

    return file


def _rebuilt(ranks, draw):
    """Make lists of ten with the own pair at its rank, a place better in 15 % of the queries."""
    lists = np.zeros((len(ranks), 10), np.int32)
    for row, rank in enumerate(ranks):
        others = draw.permutation([n for n in range(len(ranks)) if n != row])
        place = max(0, int(rank) - int(draw.random() < 0.15))
        lists[row] = np.insert(others, place, row)[:10]
    return lists


def test_lists_rebuilt_from_another_entrys_ranks_and_moved_up_are_flagged(tmp_path, release, filed):
    """Lists of another matrix, as good, are not."""
    theirs = filed(make_similarity(strength=1.0), "Theirs", who="bob")
    entries = {entry.name: entry for entry in read_results([tmp_path / "s"])}
    draw, victim = np.random.default_rng(0), entries[theirs].result
    rebuilt = [_rebuilt(way.greater, draw) for way in victim.ranks.read()]
    other = make_similarity(strength=1.0, seed=8)
    honest = [np.argsort(-way, axis=1)[:, :10].astype(np.int32) for way in (other, other.T)]
    for name, lists in (("Honest", honest), ("Rebuilt", rebuilt)):
        meta = new_submission(release, "jieba", "test", name)
        pack_arrays(tmp_path / "l.zip", lists, meta.model_copy(update={"payload": "ranked"}))
        at = NewFiling("ann", AT + timedelta(days=1))
        entry, _ = file_result(tmp_path / "s", score(tmp_path / "l.zip", release), at)
    assert entry.result.rsum > victim.rsum
    assert _codes(tmp_path / "s") == {entry.name: ["rebuilt-lists"]}


def _codes(store):
    found = relative_flags(read_results([store]))
    return {name: [flag.code for flag in flags] for name, flags in found.items()}


def test_of_two_entries_of_the_same_ranks_both_are_flagged_without_a_signed_order(tmp_path, filed):
    matrix = make_similarity()
    first = filed(matrix, "Theirs", who="bob")
    copy = filed(np.exp(matrix) * 3, "Mine")
    other = filed(make_similarity(seed=5), "Another")
    assert _codes(tmp_path / "s") == {name: ["near-identical"] for name in (first, copy)}
    (flag,) = relative_flags(read_results([tmp_path / "s"]))[copy]
    assert first in flag.message
    assert other not in flag.message
    make_key(tmp_path / "s", tmp_path / "k", read_results([tmp_path / "s"]))
    assert set(relative_flags(read_board([tmp_path / "s"]))) == {copy}


def test_entries_without_anything_to_differ_in_are_no_copies(tmp_path, filed):
    for value in (0, 1):
        filed(np.full((SIZES["test"], SIZES["test"]), value, np.float32), f"Nothing {value}")
        filed(np.eye(SIZES["test"], dtype=np.float32) - value, f"All {value}")
    assert _codes(tmp_path / "s") == {}


def test_a_test_score_far_above_dev_is_flagged_where_the_splits_are_as_large(
    tmp_path, filed, monkeypatch
):
    """The small release's dev is half of test: nothing is said, until they are taken as equal."""
    dev = filed(make_similarity(SIZES["dev"], 0.0, 1), split="dev")
    test = filed(make_similarity(strength=5.0))
    filed(make_similarity(strength=5.0, seed=3), "Of no dev")
    filed(make_similarity(strength=5.0, seed=4), who="bob")
    assert _codes(tmp_path / "s") == {}
    as_large = lambda result: SplitScore(result.rsum, result.rsum_deviation, 24)  # noqa: E731
    monkeypatch.setattr("leaderboard.store.relative._score", as_large)
    assert _codes(tmp_path / "s") == {test: ["dev-test-gap"]}
    assert dev


def _slowly(entries):
    """Compare all pairs anew, one after the other: who is like which earlier entry."""
    found, devs = {}, []
    for at, later in enumerate(entries):
        before = [one for one in entries[:at] if one.result.n_pairs == later.result.n_pairs]
        ranks = later.result.ranks.read()
        for earlier in before if np.ptp(middles(ranks)) else devs:
            theirs = earlier.result.ranks.read()
            if np.ptp(middles(theirs)) and near_identical(theirs, ranks) >= NEAR_IDENTICAL:
                found[later.name, "near-identical"] = earlier.name
                break
        lists = [e for e in before if e.result.ranks.depth or later.result.ranks.depth]
        shares = [_share_kept(e.result.ranks.read(), ranks) for e in lists]
        if shares and max(shares) > KEPT_RANKS:
            found[later.name, "rebuilt-lists"] = lists[int(np.argmax(shares))].name
    return found


def _share_kept(earlier, later):
    pairs = [
        (2 * a.greater[n] + a.equal[n], 2 * b.greater[n] + b.equal[n])
        for a, b in zip(earlier, later, strict=True)
        for n in range(len(a.greater))
    ]
    among = [one == other for one, other in pairs if 2 <= one < 20]
    return sum(among) / len(among) if len(among) >= LEAST_KEPT else 0.0


def _random_entries(draw, count):
    """Make entries of random ranks: many are near or partial copies; some are lists."""
    base = make_entries(1)[0].result
    ways = []
    for number in range(count):
        kind = draw.integers(4) if ways else 0
        way = draw.integers(0, 12, size=(2, 60))
        if kind:
            other = ways[draw.integers(len(ways))]
            way = np.where(draw.random((2, 60)) < (0.0, 0.0, 0.001, 0.55)[kind], way, other)
        ways.append(way if number % 7 else np.zeros_like(way))
    signed = draw.permutation(count)
    for number, (i2t, t2i) in enumerate(ways):
        record = RankRecord(
            i2t=QueryRanks(greater=tuple(i2t.tolist())),
            t2i=QueryRanks(greater=tuple(t2i.tolist())),
            depth=12 if draw.random() < 0.4 else None,
        )
        changed = {"ranks": record, "n_pairs": 60, "n_images": 60}
        proof = Proof(arrival=int(signed[number]) + 1, scored=True)
        yield Entry(f"{number:012x}", base.model_copy(update=changed), proof=proof)


@pytest.mark.parametrize("seed", range(4))
def test_flags_kept_from_store_to_store_are_those_of_comparing_all_anew(seed):
    """Entries arrive one by one, in another order than the signed one; some leave again."""
    draw, pairs = np.random.default_rng(seed), Pairs()
    entries = list(_random_entries(draw, 24))
    for count in range(1, len(entries) + 1):
        some = [entry for entry in entries[:count] if draw.random() < 0.9]
        kept = relative_flags(some, pairs)
        assert kept == relative_flags(some)
        slow = _slowly(sorted(some, key=lambda entry: entry.proof.arrival))
        found = {(name, f.code): f.message for name, flags in kept.items() for f in flags}
        assert found.keys() == slow.keys()
        assert all(other in found[key] for key, other in slow.items())
    assert {code for _, code in slow} == {"near-identical", "rebuilt-lists"}
