"""Flags of near-identical entries."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from leaderboard.metrics import count_ranks
from leaderboard.scoring.result import QueryRanks, RankRecord, query_ranks
from leaderboard.store.entries import (
    Entry,
    Filing,
    NewFiling,
    age,
    file_result,
    read_results,
)
from leaderboard.store.relative import (
    NEAR_IDENTICAL,
    Pairs,
    relative_flags,
    unit_ranks,
)
from leaderboard.store.verify import read_board
from tests.leaderboard.conftest import SIZES, make_similarity, score_matrix
from tests.leaderboard.random_entries import make_entries
from tests.leaderboard.scoring.similarities import embedded

AT = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.fixture
def filed(tmp_path, release):
    """File a matrix, an hour after the one before; give the entry's name."""
    hours = iter(range(99))

    def file(matrix, method="Mine", who="ann"):
        result = score_matrix(tmp_path / "x.zip", release, matrix, method)
        filing = NewFiling(who, AT + timedelta(hours=next(hours)))
        return file_result(tmp_path / "s", result, filing)[0].name

    return file


def _codes(store):
    found = relative_flags(read_results([store]))
    return {name: [flag.code for flag in flags] for name, flags in found.items()}


def test_of_two_entries_of_the_same_ranks_the_earlier_one_keeps_its_place(tmp_path, filed):
    """Who refiles a rival's public result takes nothing from them."""
    matrix = make_similarity()
    first = filed(matrix, "Theirs", who="bob")
    copy = filed(np.exp(matrix) * 3, "Mine")
    other = filed(make_similarity(seed=5), "Another")
    assert _codes(tmp_path / "s") == {copy: ["near-identical"]}
    (flag,) = relative_flags(read_results([tmp_path / "s"]))[copy]
    assert first in flag.message
    assert other not in flag.message


def test_what_one_sends_twice_or_two_send_alike_is_said_so(tmp_path, filed):
    """The second one's result is the first one's under another name."""
    matrix = make_similarity()
    first, again = filed(matrix, "Mine"), filed(np.exp(matrix), "Mine 2")
    (flag,) = relative_flags(read_results([tmp_path / "s"]))[again]
    assert f"its sender has sent these ranks before, as the entry {first}" in flag.message
    kept = next(one for one in read_results([tmp_path / "s"]) if one.name == first).result
    named = kept.method.model_copy(update={"name": "Theirs"})
    result = kept.model_copy(update={"method": named})
    taken, _ = file_result(tmp_path / "s", result, NewFiling("eve", AT + timedelta(days=2)))
    eves = kept.model_copy(update={"authors": ("Eve",)})
    file_result(tmp_path / "s", eves, NewFiling(None, AT + timedelta(days=3)))
    found = relative_flags(read_results([tmp_path / "s"]))
    assert found.keys() == {entry.name for entry in read_results([tmp_path / "s"])} - {first}
    assert "the same file, byte for byte" in found[taken.name][0].message


def test_without_a_filing_the_entry_of_a_store_is_the_oldest_and_a_file_the_newest(tmp_path, filed):
    """Names, which are hashes, decide nothing."""
    store, first = tmp_path / "s", filed(make_similarity())
    (store / "filings" / f"{first}.json").unlink()
    copies = {filed(make_similarity() * factor, f"Copy {factor}") for factor in (2, 3, 4, 5)}
    (path,) = (store / "results").glob(f"*-{max(copies)}.json")
    path.rename(tmp_path / path.name)
    for paths in ([store, tmp_path / path.name], [tmp_path / path.name, store]):
        assert set(relative_flags(read_board(paths))) == copies
    (path,) = (store / "results").glob(f"*-{first}.json")
    for read in (read_results, read_board):
        (entry,) = (one for one in read([path, store]) if one.name == first)
        assert entry.stored, "a file of it was read before"


def test_entries_without_anything_to_differ_in_are_no_copies(tmp_path, filed):
    for value in (0, 1):
        filed(np.full((SIZES["test"], SIZES["test"]), value, np.float32), f"Nothing {value}")
        filed(np.eye(SIZES["test"], dtype=np.float32) - value, f"All {value}")
    assert _codes(tmp_path / "s") == {}


def _record(matrix):
    """The ranks of a matrix's queries."""
    i2t, t2i = count_ranks(matrix)
    order = np.arange(len(matrix))
    return RankRecord(i2t=query_ranks(i2t, order), t2i=query_ranks(t2i, order))


def _correlation(first, second):
    return float(unit_ranks(first) @ unit_ranks(second))


def test_rank_correlation_is_spearmans():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    first = draw.normal(size=(80, 80)).round(1) + np.eye(80)
    records = _record(first), _record(first + draw.normal(size=(80, 80)).round(1))
    flat = [np.concatenate([way.greater + way.equal / 2 for way in r.read()]) for r in records]
    assert _correlation(*records) == pytest.approx(stats.spearmanr(*flat).statistic)
    assert _correlation(records[0], records[0]) == pytest.approx(1)
    assert unit_ranks(_record(np.eye(60))) is None


def test_an_entry_with_a_little_noise_added_is_near_identical_and_another_training_is_not():
    """The other training has the same pages and captions, and draws of its own."""
    draw = np.random.default_rng(0)
    meaning = embedded(draw, 300, 1.0)
    one, other = (meaning + 0.05 * draw.normal(size=(300, 300)) for _ in range(2))
    copy = _record(one + 1e-3 * draw.normal(size=(300, 300)))
    assert _correlation(_record(one), copy) > NEAR_IDENTICAL
    assert 0.5 < _correlation(_record(one), _record(other)) < NEAR_IDENTICAL


def _slowly(entries):
    """Compare all pairs anew, one after the other: the earlier entry that each one is like."""
    units = {entry.name: unit_ranks(entry.result.ranks) for entry in entries}
    names = [name for name, unit in units.items() if unit is not None]
    found = {}
    for at, later in enumerate(names):
        for earlier in names[:at]:
            if round(float(units[earlier] @ units[later]), 9) >= NEAR_IDENTICAL:
                found[later] = earlier
                break
    return found


def _random_entries(draw, count):
    """Make entries of random ranks: many are near or partial copies."""
    base = make_entries(1)[0].result
    ways = []
    for number in range(count):
        kind = draw.integers(4) if ways else 0
        way = draw.integers(0, 12, size=(2, 60))
        if kind:
            other = ways[draw.integers(len(ways))]
            way = np.where(draw.random((2, 60)) < (0.0, 0.0, 0.001, 0.55)[kind], way, other)
        ways.append(way if number % 7 else np.zeros_like(way))
    order = draw.permutation(count)
    for number, (i2t, t2i) in enumerate(ways):
        record = RankRecord(
            i2t=QueryRanks(greater=tuple(i2t.tolist())), t2i=QueryRanks(greater=tuple(t2i.tolist()))
        )
        changed = {"ranks": record, "n_pairs": 60, "n_images": 60}
        name, at = f"{number:012x}", AT + timedelta(days=int(order[number]))
        filing = Filing(name=name, submitted_at=at)
        yield Entry(name, base.model_copy(update=changed), filing)


@pytest.mark.parametrize("seed", range(4))
def test_flags_kept_from_store_to_store_are_those_of_comparing_all_anew(seed):
    """Entries arrive one by one, in another order than that of their dates; some leave again."""
    draw, pairs = np.random.default_rng(seed), Pairs()
    entries = list(_random_entries(draw, 24))
    for count in range(1, len(entries) + 1):
        some = [entry for entry in entries[:count] if draw.random() < 0.9]
        kept = relative_flags(some, pairs)
        assert kept == relative_flags(some)
        slow = _slowly(sorted(some, key=age))
        assert kept.keys() == slow.keys()
        assert all(slow[name] in flag.message for name, (flag,) in kept.items())
    assert slow
