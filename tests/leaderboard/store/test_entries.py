"""The store: records about a result, and the state that a kill leaves behind."""

import json
from datetime import UTC, datetime

import pytest

from leaderboard.scoring.evaluate import score
from leaderboard.store.entries import (
    file_result,
    find_result,
    withdraw,
)
from leaderboard.store.recompute import read_board
from now_builder.errors import FormatError

AT = datetime(2026, 11, 22, 3, 4, 5, tzinfo=UTC)


@pytest.fixture
def result(packed, release):
    return score(packed, release)


def test_a_filing_says_when_and_is_read_back(tmp_path, result):
    entry, new = file_result(tmp_path / "s", result, AT)
    assert new
    assert entry.filing.submitted_at == AT
    assert read_board([tmp_path / "s"]) == [entry]
    assert entry.evidence == "scored"
    again, new = file_result(tmp_path / "s", result)
    assert (again, new) == (entry, False)


def test_a_withdrawn_entry_leaves_its_result_and_a_tombstone(tmp_path, result):
    entry, _ = file_result(tmp_path / "s", result)
    for reason in ("a bug in the loader", "another reason"):
        withdraw(tmp_path / "s", entry.name, reason, AT)
    (found,) = read_board([tmp_path / "s"])
    assert found.withdrawal.reason == "a bug in the loader"
    assert found.result == entry.result
    for name in ("0" * 12, "../x", "*"):
        with pytest.raises(FormatError, match=r"entry .* not found"):
            withdraw(tmp_path / "s", name, "", AT)
        with pytest.raises(FormatError, match=r"entry .* not found"):
            find_result(tmp_path / "s", name)


def test_a_filing_without_its_result_is_no_entry(tmp_path, result, monkeypatch):
    """The result is written last, so an entry counts only if it is complete."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("leaderboard.store.entries.write_result", die)
        with pytest.raises(KeyboardInterrupt):
            file_result(tmp_path / "s", result, AT)
    assert read_board([tmp_path / "s"]) == []
    left = [tmp_path / "s" / name / ".x.json.1.999999999.tmp" for name in ("results", "filings")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    entry, new = file_result(tmp_path / "s", result, AT)
    assert (new, [path for path in left if path.exists()]) == (True, [])
    assert read_board([tmp_path / "s"]) == [entry]


def test_an_invalid_record_is_named(tmp_path, result):
    entry, _ = file_result(tmp_path / "s", result, AT)
    path = tmp_path / "s" / "filings" / f"{entry.name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rsum": 600}))
    with pytest.raises(FormatError, match=rf"{entry.name}\.json: filing\.rsum"):
        read_board([tmp_path / "s"])
