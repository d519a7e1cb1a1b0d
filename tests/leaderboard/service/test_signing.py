"""A service that dies or fails between filing and signing: nothing stays lost or unsigned."""

import hashlib
import shutil

from leaderboard.store.check_store import check_store
from leaderboard.store.entries import file_result, read_results
from leaderboard.store.proof import read_board
from leaderboard.store.signatures import Signer, make_key, read_chain
from tests.leaderboard.conftest import OPERATOR_TOKEN as OPERATOR


def _problems(store, tmp_path):
    copy = shutil.copytree(store, tmp_path / "copy", ignore=shutil.ignore_patterns("private"))
    return check_store(copy)


_KILLED = """
import os, signal
from leaderboard.service import running
from leaderboard.service.accounts import OPERATOR, Principal
from leaderboard.service.intake import Upload, file_upload
from leaderboard.service.quotas import Quotas
from leaderboard.store.signatures import Signer
store, release, key, upload, sha256 = argv
judge = running.make_judge(release, None, Quotas())
service = running.Service(running.Settings(store, judge, None, None, key))
who = Principal(1, OPERATOR, frozenset({"submit"}))
Signer.sign = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
file_upload(service, Upload(upload, sha256, who))
"""


def test_killed_between_filing_and_signing_an_entry_is_signed_at_the_next_start(
    make_board, zipped, tmp_path, release, forked
):
    store, key, upload = tmp_path / "store", tmp_path / "k", tmp_path / "upload.zip"
    make_key(store, key, [])
    upload.write_bytes(zipped())
    digest = hashlib.sha256(upload.read_bytes()).hexdigest()
    process = forked(_KILLED, store, release, key, upload, digest)
    process.join()
    assert process.exitcode == -9
    (entry,) = read_board([store])
    assert not entry.proof.scored
    (store / "results" / ".x.json.1.999999999.tmp").touch()
    board = make_board(judge_key=key)
    assert board.call("GET", f"/v1/entries/{entry.name}").json()["signed"]
    assert _problems(store, tmp_path) == []
    assert list((store / "private" / "unsigned").iterdir()) == []
    assert board.put(zipped()).status_code == 200
    assert len(read_chain(store).signatures) == 1


def test_what_a_fault_left_unsigned_is_signed_when_it_is_asked_for_again(
    make_board, zipped, tmp_path, monkeypatch
):
    make_key(tmp_path / "store", tmp_path / "k", [])
    board = make_board(judge_key=tmp_path / "k")

    def fail(*_):
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(Signer, "sign", fail)
        assert board.put(zipped()).status_code == 500
    assert board.put(zipped()).status_code in {200, 201}
    assert _problems(tmp_path / "store", tmp_path) == []
    (entry,) = read_board([tmp_path / "store"])
    assert entry.proof.scored
    path = f"/v1/entries/{entry.name}/withdraw"
    with monkeypatch.context() as full:
        full.setattr(Signer, "sign", fail)
        assert board.call("POST", path, OPERATOR, json={"reason": "x"}).status_code == 500
    board.stop()
    board = make_board(judge_key=tmp_path / "k")
    assert board.call("GET", f"/v1/entries/{entry.name}").json()["withdrawal"] is not None
    assert [one.says for one in read_chain(tmp_path / "store").signatures] == [
        "scored",
        "withdrawn",
    ]


def test_a_result_that_nobody_scored_is_not_signed_by_a_start(make_board, zipped, tmp_path):
    store, key = tmp_path / "store", tmp_path / "k"
    make_key(store, key, [])
    board = make_board(judge_key=key)
    board.put(zipped())
    board.stop()
    result = read_results([store])[0].result
    forged = result.model_copy(update={"authors": ("Eve",)})
    file_result(store, forged)
    make_board(judge_key=key)
    assert sorted(entry.proof.scored for entry in read_board([store])) == [False, True]
