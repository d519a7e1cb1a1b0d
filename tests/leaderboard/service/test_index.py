"""The index says what the folder says, however it came to be."""

from datetime import UTC, datetime, timedelta

import pytest

from leaderboard.scoring.evaluate import score
from leaderboard.service import events
from leaderboard.service.accounts import (
    create_user,
    list_users,
)
from leaderboard.service.database import EntryRow, open_database, writing
from leaderboard.service.index import (
    entries_of,
    find_by_payload,
    find_entry,
    mark_withdrawn,
    rebuild,
    record_entry,
    update_index,
)
from leaderboard.store.entries import (
    NewFiling,
    add_reproduction,
    file_result,
    find_result,
    read_entry,
    read_result,
    withdraw,
)
from leaderboard.store.signatures import Signer, make_key
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import FormatError
from tests.leaderboard.conftest import SIZES, make_similarity, run_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAMES = ("Mine", "Yours", "Theirs", "Ours")


@pytest.fixture(scope="module")
def results(tmp_path_factory, release):
    """Scored submissions by different methods, one of them on the dev split."""
    made = []
    for seed, method in enumerate(NAMES):
        split = "dev" if method == "Ours" else "test"
        path = tmp_path_factory.mktemp("packed") / "x.zip"
        meta = new_submission(release, "jieba", split, method)
        pack(path, make_similarity(SIZES[split], seed=seed), meta)
        made.append(score(path, release))
    return made


@pytest.fixture
def ann(database):
    return create_user(database, "ann")


@pytest.fixture
def store(tmp_path):
    return tmp_path / "store"


def _submit(database, store, result, user_id, at=NOON):
    """What the service does with an accepted submission."""
    handles = {user.user_id: user.handle for user in list_users(database)}
    entry, _ = file_result(store, result, NewFiling(handles[user_id], at))
    with writing(database) as session:
        new = record_entry(session, entry, user_id)
        events.append(session, handles[user_id], "entry.filed", entry.name)
    return entry.name, new


@pytest.fixture
def live(database, store, results, ann):
    """A store and an index that grew together: names in the order of NAMES."""
    names = [
        _submit(database, store, result, ann, NOON + timedelta(hours=hour))[0]
        for hour, result in enumerate(results)
    ]
    tombstone = withdraw(store, names[2], "a mistake", NOON)
    with writing(database) as session:
        assert mark_withdrawn(session, names[2], tombstone.withdrawn_at)
    return names


def _all(database):
    rows = [row for user in list_users(database) for row in entries_of(database, user.user_id)]
    columns = [column.name for column in EntryRow.__table__.columns]
    return {row.name: [getattr(row, name) for name in columns] for row in rows}


def _fresh(tmp_path):
    return open_database(f"sqlite:///{tmp_path / 'fresh.sqlite'}")


def test_a_row_says_what_the_result_says(database, live, results):
    row = find_entry(database, live[0])
    assert (row.method, row.track, row.split) == ("Mine", "jieba", "test")
    assert row.rsum == results[0].rsum
    assert row.fingerprint == results[0].release.fingerprint
    assert row.name == find_by_payload(database, results[0].payload_sha256).name
    assert (row.submitted_at, row.evidence, row.withdrawn_at) == (NOON, "scored", None)
    assert find_entry(database, live[2]).withdrawn_at == NOON
    assert find_entry(database, "f" * 12) is None
    assert find_by_payload(database, "f" * 64) is None


def test_a_users_entries_the_newest_first_those_of_no_date_last(
    database, store, results, ann, live
):
    entry, _ = file_result(store, results[0].model_copy(update={"payload_sha256": "e" * 64}))
    with writing(database) as session:
        record_entry(session, entry, ann)
    found = [row.name for row in entries_of(database, ann)]
    assert found == [*reversed(live), entry.name]
    assert entries_of(database, ann + 1) == []


def test_rebuilt_in_place_or_from_the_folder_alone_it_is_the_live_index(
    tmp_path, database, store, live
):
    before, fresh = _all(database), _fresh(tmp_path)
    assert len(before) == 4
    for engine, added, users in ((database, 0, 0), (database, 0, 0), (fresh, 4, 1)):
        counts = rebuild(engine, store)
        assert (counts.entries, counts.added, counts.removed) == (4, added, 0)
        assert counts.users == users
        assert [user.handle for user in list_users(engine)] == ["ann"]
        assert _all(engine) == before
    fresh.dispose()


def test_every_start_brings_the_index_up_to_date(database, store, results, ann, live):
    before = _all(database)
    assert update_index(database, store).added == 0
    assert [event.kind for event in events.read(database)].count("index.made") == 0
    find_result(store, live[3]).unlink()
    (store / "withdrawals" / f"{live[2]}.json").unlink()
    withdraw(store, live[0], "", NOON)
    late, _ = file_result(
        store, results[1].model_copy(update={"payload_sha256": "d" * 64}), NewFiling("bob", NOON)
    )
    counts = update_index(database, store)
    assert (counts.entries, counts.added, counts.removed, counts.users) == (4, 1, 1, 1)
    after = _all(database)
    assert find_entry(database, live[3]) is None
    assert after[live[1]] == before[live[1]]
    assert find_entry(database, live[0]).withdrawn_at == NOON
    assert find_entry(database, live[2]).withdrawn_at is None
    assert find_entry(database, late.name).user_id != ann
    assert rebuild(database, store).added == 0
    assert _all(database) == after


def test_a_start_reads_no_result_that_it_knows(database, store, live):
    find_result(store, live[0]).write_text("torn")
    assert update_index(database, store).entries == 4
    with pytest.raises(FormatError):
        rebuild(database, store)
    assert find_entry(database, live[0]) is not None


def test_a_signed_reproduction_raises_the_evidence(database, store, live, tmp_path):
    entry = read_entry(store, read_result(find_result(store, live[0])))
    run = add_reproduction(store, run_of(entry))
    update_index(database, store)
    assert find_entry(database, live[0]).evidence == "scored"
    make_key(store, tmp_path / "k", [])
    Signer(store, tmp_path / "k").sign("reproduced", entry, [run])
    update_index(database, store)
    assert find_entry(database, live[0]).evidence == "reproduced"
    assert find_entry(database, live[1]).evidence == "scored"
    lower = entry.result.model_copy(update={"rsum": 50.0})
    last = run_of(entry, lower, (-60.0, -40.0)).model_copy(update={"payload_sha256": "e" * 64})
    Signer(store, tmp_path / "k").sign("reproduced", entry, [add_reproduction(store, last)])
    update_index(database, store)
    found = find_entry(database, live[0])
    assert (found.evidence, found.rsum) == ("contradicted", 50.0), "the last run decides"


def test_of_one_upload_scored_twice_the_earlier_entry_counts(tmp_path, store, results):
    """One without a date is of before every submission was dated."""
    again = results[0].model_copy(update={"rsum_deviation": 1.0})
    later, _ = file_result(store, again, NewFiling("bob", NOON + timedelta(days=1)))
    second, _ = file_result(store, results[0], NewFiling("ann", NOON))
    first, _ = file_result(store, results[0].model_copy(update={"rsum_deviation": 2.0}))
    fresh = _fresh(tmp_path)
    counts = rebuild(fresh, store)
    assert counts.entries == 1
    assert counts.duplicates == (second.name, later.name)
    assert find_by_payload(fresh, results[0].payload_sha256).name == first.name
    fresh.dispose()


@pytest.mark.parametrize("submitter", ["Ann of the hills", "<script>", "x" * 100])
def test_a_filing_whose_submitter_is_no_handle_makes_no_user(tmp_path, store, results, submitter):
    entry, _ = file_result(store, results[0], NewFiling(submitter, NOON))
    fresh = _fresh(tmp_path)
    counts = rebuild(fresh, store)
    assert (counts.entries, counts.users, list_users(fresh)) == (1, 0, [])
    assert find_entry(fresh, entry.name).user_id is None
    fresh.dispose()


def test_a_store_that_is_not_there_empties_nothing(tmp_path, database, live):
    before = _all(database)
    for act in (rebuild, update_index):
        with pytest.raises(FormatError, match="no such folder"):
            act(database, tmp_path / "elsewhere")
    assert _all(database) == before
