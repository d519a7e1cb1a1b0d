"""The store: records about a result, and the state that a kill leaves behind."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leaderboard.scoring.evaluate import score
from leaderboard.store.entries import (
    NewFiling,
    file_result,
    find_result,
    prepare_store,
    read_results,
    withdraw,
)
from leaderboard.submission.archive import new_submission, pack, with_details
from now_builder.errors import FormatError
from tests.leaderboard.conftest import make_similarity

AT = datetime(2026, 11, 22, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def result(tmp_path, release):
    """Of a submission that says who made it."""
    meta = with_details(new_submission(release, "jieba", "test", "Mine"), {"authors": ["Ann"]})
    pack(tmp_path / "x.zip", make_similarity(), meta)
    return score(tmp_path / "x.zip", release)


def test_a_filing_says_who_and_when_and_is_read_back(tmp_path, result):
    entry, new = file_result(tmp_path / "s", result, NewFiling("ann", AT))
    assert new
    assert (entry.filing.submitter, entry.filing.submitted_at) == ("ann", AT)
    assert read_results([tmp_path / "s"]) == [entry]
    assert (entry.evidence, entry.result.authors) == ("scored", ("Ann",))
    again, new = file_result(tmp_path / "s", result, NewFiling("bob", AT))
    assert (again, new) == (entry, False)


@pytest.mark.usefixtures("no_locks")
def test_a_store_without_locks_is_added_to_with_a_warning(tmp_path, result, caplog):
    file_result(tmp_path / "s", result, NewFiling("ann", AT))
    assert len(read_results([tmp_path / "s"])) == 1
    assert "store.lock: no locks available on this file system" in caplog.text


@pytest.mark.parametrize(("mode", "narrow"), [(0o755, 0o700), (0o770, 0o700), (0o500, 0o500)])
def test_a_private_folder_that_others_may_read_is_narrowed(tmp_path, mode, narrow):
    private = tmp_path / "store" / "private"
    private.mkdir(parents=True)
    private.chmod(mode)
    prepare_store(tmp_path / "store")
    assert private.stat().st_mode & 0o777 == narrow


def test_a_private_folder_that_cannot_be_narrowed_is_warned_of(tmp_path, monkeypatch, caplog):
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(0o755)

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", refuse)
    prepare_store(tmp_path)
    [warned] = [record.getMessage() for record in caplog.records]
    assert warned.endswith("private: permissions 0755, so others may read it; chmod 700")


def test_a_withdrawn_entry_leaves_its_result_and_a_tombstone(tmp_path, result):
    entry, _ = file_result(tmp_path / "s", result)
    first = withdraw(tmp_path / "s", entry.name, "a bug in the loader", AT)
    assert withdraw(tmp_path / "s", entry.name, "another reason", AT) == first
    (found,) = read_results([tmp_path / "s"])
    assert found.withdrawal.reason == "a bug in the loader"
    assert found.result == entry.result
    for name in ("0" * 12, "../x", "*"):
        with pytest.raises(FormatError, match="no entry"):
            withdraw(tmp_path / "s", name, "", AT)
        with pytest.raises(FormatError, match="no entry"):
            find_result(tmp_path / "s", name)


_WITHDRAWING = """
import time
from datetime import UTC, datetime
from leaderboard.store import entries
store, name, reason, delay, barrier, told = argv
write = entries._write_record
entries._write_record = lambda *record: (time.sleep(delay), write(*record))
barrier.wait()
told.put(entries.withdraw(store, name, reason, datetime.now(UTC)).reason)
"""


def test_of_two_processes_that_withdraw_an_entry_the_first_writes_its_tombstone(
    tmp_path, result, forked
):
    entry, _ = file_result(tmp_path / "s", result)
    barrier, told = forked.Barrier(2), forked.Queue()
    for reason, delay in (("one", 0.3), ("two", 0.9)):
        forked(_WITHDRAWING, tmp_path / "s", entry.name, reason, delay, barrier, told)
    (found,) = {told.get(), told.get()}
    assert read_results([tmp_path / "s"])[0].withdrawal.reason == found


def test_what_a_kill_before_the_result_leaves_is_no_entry(tmp_path, result, monkeypatch):
    """The filing is written first and the result last: then nothing counts until all is there."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("leaderboard.store.entries.write_result", die)
        with pytest.raises(KeyboardInterrupt):
            file_result(tmp_path / "s", result, NewFiling("ann", AT))
    assert read_results([tmp_path / "s"]) == []
    left = [tmp_path / "s" / name / ".x.json.1.999999999.tmp" for name in ("", "results")]
    left.append(tmp_path / "s" / "filings" / ".x.json.1.999999999.tmp")
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    entry, new = file_result(tmp_path / "s", result, NewFiling("ann", AT))
    assert (new, [path for path in left if path.exists()]) == (True, [])
    assert read_results([tmp_path / "s"]) == [entry]


def test_a_record_that_is_not_one_is_named(tmp_path, result):
    entry, _ = file_result(tmp_path / "s", result, NewFiling("ann", AT))
    path = tmp_path / "s" / "filings" / f"{entry.name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rsum": 600}))
    with pytest.raises(FormatError, match=rf"{entry.name}\.json: filing\.rsum"):
        read_results([tmp_path / "s"])
