"""What only a judge can say is signed: attacks on real stores, and the life of a key."""

import json
import shutil
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leaderboard.board.exports import FORMATS, badge_of, export_row
from leaderboard.board.tables import make_board
from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.result import Flag, Release
from leaderboard.site.pages import Site
from leaderboard.store.check_store import Trust, check_store
from leaderboard.store.entries import (
    Filing,
    Reproduction,
    add_reproduction,
    file_result,
    locked,
    read_results,
    reproduction_path,
    withdraw,
    write_result,
)
from leaderboard.store.proof import read_board
from leaderboard.store.relative import relative_flags
from leaderboard.store.reproduce import Claim, reproduce
from leaderboard.store.signatures import (
    Signature,
    Signer,
    filed_paths,
    make_key,
    message,
    read_chain,
    read_private,
    rotate_key,
)
from leaderboard.submission.archive import new_submission, pack
from now_builder.errors import ConfigError, FormatError
from tests.leaderboard.conftest import file_entry, filed_on, make_similarity, proven, run_of

AT = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(release, tmp_path_factory):
    """A store with a key and two signed entries; its key lies beside it."""
    store = tmp_path_factory.mktemp("signed") / "store"
    store.mkdir()
    make_key(store, store.parent / "judge.key", [])
    signer = Signer(store, store.parent / "judge.key")
    for day, name in enumerate(("First", "Second")):
        entry = file_entry(store, release, name, 2.0 + day, filed_on(day), seed=day)
        signer.sign("scored", entry, filed_paths(store, entry))
    return store


@pytest.fixture
def board(made, tmp_path):
    """A copy of it without what is private, as a pull request would be made on."""
    shutil.copy(made.parent / "judge.key", tmp_path / "judge.key")
    (tmp_path / "judge.key").chmod(0o600)
    return shutil.copytree(made, tmp_path / "board", ignore=shutil.ignore_patterns("private"))


@pytest.fixture
def unsigned(made, tmp_path):
    """The same without a key, as stores were before keys."""
    skipped = shutil.ignore_patterns("private", "keys", "signatures")
    return shutil.copytree(made, tmp_path / "unsigned", ignore=skipped)


def _named(store, method):
    return next(e for e in read_board([store]) if e.result.method.name == method)


def _forge(store, method, **changes):
    """File a changed copy of an entry's result by hand."""
    result = _named(store, method).result.model_copy(update=changes)
    return file_result(store, result, None)[0]


def _codes(store, base=None, **trust):
    shutil.rmtree(store / "private", ignore_errors=True)
    return {problem.code for problem in check_store(store, base, Trust(**trust))}


def _row(store, name):
    entries = read_board([store])
    (section,) = (
        part
        for part in make_board("jieba", entries, relative_flags(entries)).sections
        if part.row_of(name)
    )
    return section, section.row_of(name)


def test_a_signed_store_is_fine_and_a_store_without_a_key_says_not_signed(board, unsigned):
    assert _codes(board) == set()
    assert [(e.proof.scored, e.proof.arrival) for e in read_board([board])] in (
        [(True, 1), (True, 2)],
        [(True, 2), (True, 1)],
    )
    assert _codes(unsigned) == set()
    assert {e.proof.scored for e in read_board([unsigned])} == {False}


@pytest.mark.parametrize("kind", ["board", "unsigned"])
def test_a_typed_blind_origin_gets_no_mark(kind, request, made):
    store = request.getfixturevalue(kind)
    origin = Release(origin="blind", fingerprint="0" * 64)
    forged = _forge(store, "First", release=origin, ranks=None)
    assert _named(store, "First").evidence == "scored"
    assert next(e for e in read_board([store]) if e.name == forged.name).evidence == "scored"
    assert "result.unproved" in _codes(store)


@pytest.mark.parametrize("kind", ["board", "unsigned"])
def test_a_reproduction_written_by_hand_gets_no_mark(kind, request, tmp_path):
    store = request.getfixturevalue(kind)
    base = shutil.copytree(store, tmp_path / "base")
    entry = _named(store, "First")
    said = {"by": "me", "reproduced_at": AT, "rsum": 500.0, "payload_sha256": "a" * 64}
    add_reproduction(store, Reproduction(name=entry.name, **said))
    assert _named(store, "First").evidence == "scored"
    assert _codes(store, base) == {"record.unsigned"}


def test_a_run_that_is_sent_again_is_filed_once_and_signed(board, packed, release):
    name, key = _named(board, "First").name, board.parent / "judge.key"
    unsigned, _ = reproduce(board, name, packed, release, Claim("Fay"))
    for by in ("Fay", "Guy"):
        again, _ = reproduce(board, name, packed, release, Claim(by), Signer(board, key))
        assert again == unsigned
    assert _named(board, "First").reproductions == (unsigned,)
    assert (_codes(board), len(read_chain(board).signatures)) == (set(), 3)


@pytest.mark.parametrize(
    ("claim", "found"),
    [
        (Claim("Fay", "HEAD"), r"reproduction\.code_commit: found 'HEAD', expected pattern"),
        (Claim("Fay", "ABCDEF0"), r"code_commit: found 'ABCDEF0'"),
        (Claim(""), r"reproduction\.by: found ''"),
        (Claim("Fay", run=Path("none")), "run.toml: no such file"),
    ],
)
def test_a_claim_that_is_none_is_refused_before_anything_is_scored(board, claim, found):
    with pytest.raises((SubmissionError, FormatError), match=found):
        reproduce(board, _named(board, "First").name, Path("no.zip"), Path("none"), claim)


def test_a_run_that_was_filed_by_hand_with_another_rsum_is_not_signed(board, packed, release):
    name, key = _named(board, "First").name, board.parent / "judge.key"
    run, _ = reproduce(board, name, packed, release, Claim("Fay"))
    path = board / reproduction_path(run)
    path.write_text(run.model_copy(update={"rsum": 600.0}).model_dump_json(by_alias=True))
    with pytest.raises(FormatError, match=f"{path.name}: rSum 600.0, expected {run.rsum}"):
        reproduce(board, name, packed, release, Claim("Fay"), Signer(board, key))
    assert _named(board, "First").reproductions == ()


def test_a_foreign_tombstone_has_no_effect_and_is_refused(board, unsigned, tmp_path):
    base = shutil.copytree(unsigned, tmp_path / "base")
    for store in (board, unsigned):
        withdraw(store, _named(store, "First").name, "gone", AT)
    assert _named(board, "First").withdrawal is None
    assert _codes(board) == {"record.unsigned"}
    assert _codes(unsigned, base) == {"record.unsigned"}
    assert _codes(unsigned, base, judge=True) == set()


def test_nothing_unsigned_stands_beside_a_signed_entry(board, release):
    """A submitter of one's own for an entry that has none, and a run of 599 points."""
    signer = Signer(board, board.parent / "judge.key")
    entry = file_entry(board, release, "Plain", 2.0, None, seed=5)
    signer.sign("scored", entry, filed_paths(board, entry))
    said = {"name": entry.name, "reproduced_at": AT}
    run = Reproduction(by="cy", rsum=300.0, payload_sha256="b" * 64, **said)
    signer.sign("reproduced", entry, [add_reproduction(board, run)])
    add_reproduction(board, Reproduction(by="Eve", rsum=599.0, payload_sha256="c" * 64, **said))
    filing = Filing(name=entry.name, submitter="eve", submitted_at=AT)
    path = board / "filings" / f"{entry.name}.json"
    path.write_text(filing.model_dump_json(indent=2) + "\n")
    shown = _named(board, "Plain")
    assert (shown.filing, shown.reproductions) == (None, (run,))
    assert _codes(board) == {"record.unsigned"}


def test_nobody_files_an_entry_that_the_base_has_without_a_filing(unsigned, release, tmp_path):
    entry = file_entry(unsigned, release, "Plain", 2.0, None, seed=5)
    shutil.rmtree(unsigned / "private")
    base = shutil.copytree(unsigned, tmp_path / "base")
    filing = Filing(name=entry.name, submitter="eve", submitted_at=AT)
    path = unsigned / "filings" / f"{entry.name}.json"
    path.write_text(filing.model_dump_json(indent=2) + "\n")
    late = [p.field for p in check_store(unsigned, base) if p.code == "filing.late"]
    assert late == [f"filings/{entry.name}.json"]


def test_an_unsigned_copy_of_a_store_takes_no_proof_away(board, unsigned):
    """Nor does its tombstone withdraw a signed entry."""
    withdraw(unsigned, _named(unsigned, "First").name, "gone", AT)
    for paths in ([board, unsigned], [unsigned, board]):
        first = next(e for e in read_board(paths) if e.result.method.name == "First")
        assert (first.proof.scored, first.withdrawal) == (True, None)


@pytest.mark.parametrize(
    "attack",
    [
        lambda board: shutil.rmtree(board / "keys"),
        lambda board: shutil.copy(
            board / "signatures" / "00000001.json", board / "signatures" / "00000003.json"
        ),
        lambda board: shutil.copy(
            board / "signatures" / "00000001.json", board / "signatures" / "00000001x.json"
        ),
        lambda board: next((board / "results").iterdir()).unlink(),
    ],
    ids=["keys removed", "replayed at the end", "replayed under another name", "result removed"],
)
def test_replays_and_removals_stop_every_reader(board, attack):
    attack(board)
    with pytest.raises(FormatError):
        read_board([board])
    assert {"signature.invalid", "record.name"} & _codes(board)


def test_a_filing_dated_back_neither_makes_the_original_a_copy_nor_passes(board, unsigned):
    original, base = _named(board, "First").name, unsigned.parent / "base"
    shutil.copytree(unsigned, base)
    for store in (board, unsigned):
        copied = _named(store, "First").result
        copied = copied.model_copy(
            update={"method": copied.method.model_copy(update={"name": "Copy"})}
        )
        filing = filed_on(-2200)
        assert filing.submitted_at.year < 2021
        copy, _ = file_result(store, copied, filing)
        flags = relative_flags(read_board([store]))
        # without signatures the dates are the order, and the check below keeps them
        assert flags.keys() == {original if store == unsigned else copy.name}
    assert "record.unsigned" in _codes(board)
    assert _codes(unsigned, base) == {"filing.date"}


def test_a_bribed_reference_is_refused_and_not_drawn(board):
    known = _row(board, _named(board, "First").name)[0]
    drawn = [row.method for row in known.rows if row.evidence == "reference"]
    assert set(drawn) == {"chance", "lang"}
    forged = _forge(board, "First", references={"bribe": 12.0})
    assert {"result.differs", "record.unsigned"} <= _codes(board)
    with pytest.raises(FormatError, match="bribe"):
        read_board([board])
    section = make_board("jieba", [forged]).sections[0]
    assert [r.method for r in section.rows if r.evidence == "reference"] == ["chance"]


def test_removed_chance_and_language_are_refused(unsigned, release):
    result = _named(unsigned, "First").result
    chance = {"chance": result.references["chance"]}
    _forge(unsigned, "First", references=chance)
    assert _codes(unsigned) == set()
    assert _codes(unsigned, releases=(release,)) == {"result.differs"}
    _forge(unsigned, "Second", references={})
    assert _codes(unsigned) == {"result.differs"}


def test_a_changed_figure_stops_every_reader(unsigned, now_leaderboard):
    _forge(unsigned, "First", rsum=599.0)
    assert "result.differs" in _codes(unsigned)
    code, _, told = now_leaderboard("export-site", unsigned.parent / "site", "--results", unsigned)
    assert (code != 0, "rsum: found 599.0" in told) == (True, True)


def test_removed_flags_are_not_signed(board, release):
    store = board
    signer = Signer(store, store.parent / "judge.key")
    honest = file_entry(store.parent / "other", release, "Forged", 2.0, seed=7).result
    flags = (Flag(code="identity-like", message="13 times, expected 8"),)
    forged, _ = file_result(store, honest.model_copy(update={"flags": flags}), filed_on(9))
    signer.sign("scored", forged, filed_paths(store, forged))
    path = filed_paths(store, forged)[0]
    cleaned = forged.result.model_copy(update={"flags": ()})
    write_result(path, cleaned)
    with pytest.raises(FormatError, match="another content"):
        read_board([store])
    assert {"signature.invalid"} <= _codes(store)
    write_result(path, forged.result)
    claim, _ = file_result(store, cleaned)
    assert not next(e for e in read_board([store]) if e.name == claim.name).proof.scored
    assert "record.unsigned" in _codes(store)


def test_a_flagged_row_has_no_place_and_does_not_lead(entry_on):
    honest, tricked = proven(entry_on("Honest")), proven(entry_on("Tricked", 3.0, seed=1))
    flag = {tricked.name: (Flag(code="index-local", message="seen"),)}
    (section,) = (
        part for part in make_board("jieba", [honest, tricked], flag).sections
        if part.row_of(honest.name)
    )  # fmt: skip
    first, last = section.row_of(honest.name), section.row_of(tricked.name)
    assert last.rsum > first.rsum
    assert (first.place, last.place, section.lead.entry.name) == (1, None, honest.name)
    assert section.rows.index(first) < section.rows.index(last)


def _run(store, method, release, strength, seed=9):
    """File and sign a run of an entry as the command does; return the record."""
    meta, path = new_submission(release, "jieba", "test", "Run"), store.parent / "run.zip"
    pack(path, make_similarity(strength=strength, seed=seed), meta)
    entry, key = _named(store, method).name, store.parent / "judge.key"
    return reproduce(store, entry, path, release, Claim("cy"), Signer(store, key))[0]


def test_proof_stands_before_claims_with_the_figures_of_the_run(board, release):
    """The lower of two entries, run again with another seed: first, for it alone is proof."""
    run = _run(board, "First", release, 2.0)
    entry = _named(board, "First")
    section, row = _row(board, entry.name)
    assert (row.evidence, row.place, section.rows[0]) == ("reproduced", 1, row)
    assert (row.rsum, row.claimed) == (run.rsum, entry.result.rsum)
    assert row.recalls == run.result.i2t.values() + run.result.t2i.values()
    assert (row.low, row.high) == run.result.rsum_interval
    assert row.method == "First", "described as the entry is"
    assert section.row_of(_named(board, "Second").name).place is None
    assert _codes(board) == set()


def test_a_run_that_scores_less_contradicts_and_takes_the_place(board, release):
    """A claim of 600 that comes out far lower, also where a run had agreed before."""
    signer = Signer(board, board.parent / "judge.key")
    forged = file_entry(board, release, "Forged", 60.0, None, seed=5)
    signer.sign("scored", forged, filed_paths(board, forged))
    assert _run(board, "Forged", release, 59.0).agrees
    assert _row(board, forged.name)[1].place == 1
    run = _run(board, "Forged", release, 0.8, seed=8)
    assert run.difference[1] < 0
    section, row = _row(board, forged.name)
    assert (row.evidence, row.place, row.proof, row.ranked) == ("contradicted", None, False, True)
    assert (row.rsum, row.claimed) == (run.rsum, 600.0)
    assert [one.entry.name for one in section.rows if one.entry][-1] == forged.name
    assert section.n_proof == 0
    assert badge_of(export_row("jieba", section, row)).message.endswith(", contradicted")


def test_a_higher_run_is_proof_and_a_record_without_a_result_is_none(board, release):
    assert _run(board, "First", release, 60.0).difference[0] > 0
    assert _named(board, "First").evidence == "reproduced"
    entry = _named(board, "Second")
    old = run_of(entry).model_copy(update={"result": None, "difference": None})
    paths = [add_reproduction(board, old)]
    Signer(board, board.parent / "judge.key").sign("reproduced", entry, paths)
    assert _named(board, "Second").evidence == "scored"
    assert _named(board, "Second").reproductions == (old,)


@pytest.mark.parametrize("field", ["difference", "rsum", "result"])
def test_a_record_of_a_run_says_what_follows_from_its_ranks(board, release, field):
    run = _run(board, "First", release, 0.5)
    path = board / reproduction_path(run)
    better = _named(board, "Second").result.rsum
    forged = {
        "difference": (-1.0, 1.0),
        "rsum": better,
        "result": run.result.model_copy(update={"rsum": better}),
    }
    changed = run.model_copy(update={field: forged[field]})
    path.write_text(changed.model_dump_json(by_alias=True) + "\n")
    assert "result.differs" in _codes(board)
    with pytest.raises(FormatError, match=path.name):
        reproduce(board, run.name, board.parent / "run.zip", release, Claim("cy"))


def test_the_export_of_the_command_is_that_of_the_site(board, release, now_leaderboard):
    """With the flags that take two entries: a copy has no place in either."""
    _run(board, "First", release, 2.0)
    copy = file_entry(board, release, "Copy", 2.0, filed_on(2), seed=0)
    site = Site(read_board([board]))
    for kind in FORMATS:
        code, text, _ = now_leaderboard("export", "jieba", "--store", board, "--to", kind)
        assert (code, text) == (0, site.get(f"boards/jieba.{kind}")[0])
    rows = json.loads(site.get("boards/jieba.json")[0])["rows"]
    assert next(row["flags"] for row in rows if row["entry"] == copy.name) == ["near-identical"]


def test_deleting_and_reordering_signed_records_shows(board):
    folder = board / "signatures"
    first, second = sorted(folder.iterdir())
    texts = first.read_text(), second.read_text()
    first.unlink()
    with pytest.raises(FormatError, match="none is missing"):
        read_board([board])
    for path, text, number in ((first, texts[1], 1), (second, texts[0], 2)):
        path.write_text(json.dumps(json.loads(text) | {"number": number}))
    with pytest.raises(FormatError, match="the signature before it"):
        read_board([board])


def test_changed_statements_and_strange_keys_are_refused_by_name(board, tmp_path):
    path = min((board / "signatures").iterdir())
    said = json.loads(path.read_text())
    (board / "signatures" / "00000002.json").unlink()
    for change, told in (
        ({"says": "reproduced"}, "did not sign"),
        ({"at": "2020-01-01T00:00:00Z"}, "did not sign"),
        ({"payload_sha256": "0" * 64}, "did not sign"),
        ({"key": "ab" * 8}, "unknown key abababababababab"),
    ):
        path.write_text(json.dumps(said | change))
        with pytest.raises(FormatError, match=told):
            read_board([board])


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\n", ".hidden", "", "a/b", "../../key"])
def test_a_signature_of_what_can_be_no_record_is_named(board, name):
    """Whoever opens a store has a key that signs anything."""
    key = read_private(board.parent / "judge.key", board)
    path = max((board / "signatures").iterdir())
    said = Signature.model_validate_json(path.read_text())
    said = said.model_copy(update={"files": {f"results/{name}": "0" * 64}})
    said = said.model_copy(update={"signature": key.sign(message(said)).hex()})
    path.write_text(said.model_dump_json())
    with pytest.raises(FormatError, match="the path 'results/"):
        read_board([board])
    assert "signature.invalid" in _codes(board)


def test_a_key_of_ones_own_is_refused(board, unsigned, tmp_path):
    base = shutil.copytree(unsigned, tmp_path / "base")
    make_key(unsigned, tmp_path / "own.key", read_results([unsigned]))
    assert "key.new" in _codes(unsigned, base)
    stranger = next((unsigned / "keys").iterdir())
    own = next((board / "keys").iterdir())
    shutil.copy(stranger, board / "keys")
    with pytest.raises(FormatError, match=f"another key ({stranger.stem}|{own.stem})"):
        read_board([board])
    with pytest.raises(ConfigError):
        Signer(board, tmp_path / "own.key")


def test_a_retired_key_signs_nothing_more(board, tmp_path, release):
    old, new = board.parent / "judge.key", tmp_path / "new.key"
    retired = Signer(board, old)
    made = rotate_key(board, old, new)
    entry = file_entry(board, release, "Third", 2.5, filed_on(7), seed=9)
    with pytest.raises(ConfigError, match=made.name):
        retired.sign("scored", entry, filed_paths(board, entry))
    retired._append(read_chain(board), "scored", entry, {})
    with pytest.raises(FormatError, match=f"{retired.name}, which is not in use at 3"):
        read_board([board])
    (board / "signatures" / "00000003.json").unlink()
    Signer(board, new).sign("scored", entry, filed_paths(board, entry))
    assert _codes(board) == set()


def test_a_key_must_be_its_owners_alone_and_outside_the_store(board):
    key = board.parent / "judge.key"
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="0644, expected 0600"):
        Signer(board, key)
    with pytest.raises(ConfigError, match="inside the store"):
        make_key(board.parent / "other", board.parent / "other" / "k", [])


def test_the_first_key_knows_what_was_there_but_did_not_score_it(unsigned, tmp_path):
    gone = _named(unsigned, "Second")
    withdraw(unsigned, gone.name, "an error", AT)
    make_key(unsigned, tmp_path / "k", read_results([unsigned]))
    first, second = _named(unsigned, "First"), _named(unsigned, "Second")
    assert (first.proof.arrival, first.proof.scored, second.withdrawal is None) == (1, False, False)
    assert _codes(unsigned) == set()


def _die(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", ["_new_private", "_publish", "Signer", "Signer.sign"])
def test_the_first_key_is_made_by_the_same_call_after_a_kill(unsigned, tmp_path, monkeypatch, step):
    gone = _named(unsigned, "Second")
    withdraw(unsigned, gone.name, "an error", AT)

    with monkeypatch.context() as patch:
        patch.setattr(f"leaderboard.store.signatures.{step}", _die)
        with pytest.raises(KeyboardInterrupt):
            make_key(unsigned, tmp_path / "k", read_results([unsigned]))
    made = make_key(unsigned, tmp_path / "k", read_results([unsigned]))
    assert Signer(unsigned, tmp_path / "k").name == made.name
    assert _named(unsigned, "Second").withdrawal is not None
    for file in ("k", "other"):
        with pytest.raises(ConfigError, match="has a key already"):
            make_key(unsigned, tmp_path / file, [])
    assert _codes(unsigned) == set()


@pytest.mark.parametrize("step", ["_new_private", "_publish"])
def test_the_next_key_is_made_by_the_same_call_after_a_kill(board, tmp_path, monkeypatch, step):
    old, new = board.parent / "judge.key", tmp_path / "new.key"
    with monkeypatch.context() as patch:
        patch.setattr(f"leaderboard.store.signatures.{step}", _die)
        with pytest.raises(KeyboardInterrupt):
            rotate_key(board, old, new)
    for left in (tmp_path / ".new.key.1.999999999.tmp", board / "keys" / ".x.1.999999999.tmp"):
        left.touch()
    made = rotate_key(board, old, new)
    assert Signer(board, new).name == made.name
    assert check_store(board) == []
    assert list(tmp_path.glob(".*.tmp")) == []
    (board / "private" / "next-key").write_text(str(new))  # killed once it was published
    assert rotate_key(board, old, new) == made
    with pytest.raises(ConfigError, match=f"expected the one in use: {made.name}"):
        rotate_key(board, old, new)


def _first_key(store, key):
    return make_key(store, key, [])


def _next_key(store, key):
    return rotate_key(store, store.parent / "judge.key", key)


@pytest.mark.parametrize(
    ("state", "make", "refused"),
    [("unsigned", _first_key, "has a key already"), ("board", _next_key, "the one in use: ")],
)
def test_of_two_calls_at_once_one_makes_the_key(
    request, tmp_path, monkeypatch, state, make, refused
):
    store = request.getfixturevalue(state)

    @contextmanager
    def after_the_other(store):
        monkeypatch.undo()
        make(store, tmp_path / "other")
        with locked(store):
            yield

    monkeypatch.setattr("leaderboard.store.signatures.locked", after_the_other)
    with pytest.raises(ConfigError, match=refused):
        make(store, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert read_chain(store).problems == []


def test_a_file_with_another_key_is_not_taken_for_the_first(unsigned, tmp_path):
    (tmp_path / "old").write_text("0" * 64)
    (tmp_path / "old").chmod(0o600)
    for _ in range(2):
        with pytest.raises(ConfigError, match="exists; a key is never written over"):
            make_key(unsigned, tmp_path / "old", [])


def test_commands_sign_what_they_file(packed, release, tmp_path, now_leaderboard, monkeypatch):
    store, key = tmp_path / "store", tmp_path / "k"
    assert now_leaderboard("keys", "make", key, "--store", store)[0] == 0
    assert key.stat().st_mode & 0o777 == 0o600
    name = now_leaderboard("keys", "show", key, "--store", store)[1].split()[0]
    sent = ("submit", packed, "--store", store, "--release", release, "--judge-key", key)
    with monkeypatch.context() as patch:
        patch.setattr(Signer, "sign", _die)
        assert now_leaderboard(*sent)[0] != 0
    assert now_leaderboard(*sent)[0] == 0
    assert check_store(store) == []
    assert now_leaderboard(*sent)[0] == 0
    (entry,) = read_board([store])
    assert (entry.proof.scored, len(read_chain(store).signatures)) == (True, 1)
    assert now_leaderboard("keys", "rotate", key, tmp_path / "n", "--store", store)[0] == 0
    listed = now_leaderboard("keys", "list", "--store", store)[1].splitlines()
    assert (name in listed[0], "retired" in listed[0], "in use" in listed[1]) == (True,) * 3


def test_a_store_without_a_key_lists_none(unsigned, now_leaderboard):
    listed = now_leaderboard("keys", "list", "--store", unsigned)
    assert listed == (0, f"{unsigned}: no key, not signed\n", "")


def test_two_processes_sign_one_chain(board, release):
    entries = [file_entry(board, release, f"E{n}", 1.5, filed_on(9), seed=20 + n) for n in (0, 1)]
    script = (
        "import sys; from pathlib import Path\n"
        "from leaderboard.store.entries import read_results\n"
        "from leaderboard.store.signatures import Signer, filed_paths\n"
        "store = Path(sys.argv[1]); signer = Signer(store, Path(sys.argv[2]))\n"
        "entry = next(e for e in read_results([store]) if e.name == sys.argv[3])\n"
        "signer.sign('scored', entry, filed_paths(store, entry))\n"
    )
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", script, board, board.parent / "judge.key", entry.name]
        )
        for entry in entries
    ]
    assert [run.wait() for run in runs] == [0, 0]
    assert [one.number for one in read_chain(board).signatures] == [1, 2, 3, 4]
    assert _codes(board) == set()


def test_a_site_is_not_replaced_by_results_that_lack_its_signatures(
    board, unsigned, release, tmp_path, now_leaderboard
):
    """The one trick that reached proof: a new chain of keys, where no copy of the store was kept.

    Whoever has the store can sign anything with a key of their own; the site remembers.
    """
    site, forged = tmp_path / "site", shutil.copytree(unsigned, tmp_path / "forged")
    make_key(forged, tmp_path / "own.key", read_results([forged]))
    older = shutil.copytree(board, tmp_path / "older")
    max((older / "signatures").iterdir()).unlink()
    assert now_leaderboard("export-site", site, "--results", older)[0] == 0
    file_entry(board, release, "Later", 1.0, seed=9)
    for _ in range(2):
        assert now_leaderboard("export-site", site, "--results", board)[0] == 0, "it goes on"
    page = (site / "index.html").read_bytes()
    for store in (forged, older, unsigned):
        site.rename(site.with_name(".site.1.999999999.old"))  # as a kill may leave it
        code, _, told = now_leaderboard("export-site", site, "--results", store)
        assert (code, told.count("\n")) == (1, 1)
        assert "signatures.txt: the results lack signature" in told
        assert (site / "index.html").read_bytes() == page
    assert now_leaderboard("export-site", site, "--results", forged, board)[0] == 0
    assert now_leaderboard("export-site", tmp_path / "anew", "--results", forged)[0] == 0


def test_pages_say_whether_they_are_signed(board, unsigned, now_leaderboard):
    for store, said in ((board, "Signed by the judge"), (unsigned, "Not signed: this board")):
        site = store.parent / f"site-{store.name}"
        assert now_leaderboard("export-site", site, "--results", store)[0] == 0
        pages = [path.read_text() for path in site.rglob("*.html")]
        assert pages
        assert all(said in page for page in pages)
