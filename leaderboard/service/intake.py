"""From an upload to an entry: receive, check, reserve quota, score, file."""

import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkstemp

from starlette.requests import ClientDisconnect, Request

from leaderboard.board.reported import published_methods
from leaderboard.core.errors import Problem, SubmissionError
from leaderboard.core.rounds import BlindRound, round_of
from leaderboard.scoring.evaluate import score, validate
from leaderboard.scoring.result import Result
from leaderboard.service import events, index, quotas, rounds
from leaderboard.service.accounts import Principal
from leaderboard.service.database import EntryRow, writing
from leaderboard.service.guard import LOG, body_of
from leaderboard.service.problems import Refusal
from leaderboard.service.quotas import QuotaError, Quotas
from leaderboard.service.running import Judge, Service
from leaderboard.store.entries import (
    Entry,
    NewFiling,
    entry_of,
    file_result,
    find_result,
    now,
    read_entry,
    read_result,
)
from leaderboard.store.lookalikes import lookalike
from leaderboard.store.proof import prove
from leaderboard.store.signatures import filed_paths
from leaderboard.submission.archive import Submission, open_submission
from now_builder.errors import NowError

UNLIMITED = Quotas(attempts=2**31 - 1, scored=2**31 - 1)


@dataclass(frozen=True, slots=True)
class Upload:
    """A completely received body."""

    path: Path
    sha256: str
    who: Principal


def judge_of(service: Service) -> Judge:
    """Return the judge; refuse the request if the board is read-only."""
    if service.settings.judge is None:
        raise Refusal(403, "this board is read-only: it was started without --release")
    return service.settings.judge


def quotas_of(service: Service, who: Principal) -> Quotas:
    """Return a user's quotas; the operator has none."""
    unlimited = who.user_id == service.authenticator.operator_id
    return UNLIMITED if unlimited else judge_of(service).quotas


def take(service: Service, who: Principal, which: quotas.Quota, at: datetime) -> None:
    """Count an upload or a submission to be scored; refuse it if the quota is used up."""
    try:
        quotas.take(service.database, which, who.user_id, quotas_of(service, who), at)
    except QuotaError as error:
        service.meters.submissions.labels("over_quota").inc()
        seconds = max(1, int((error.resets_at - datetime.now(UTC)).total_seconds()) + 1)
        raise Refusal(429, str(error), headers={"Retry-After": str(seconds)}) from None


@asynccontextmanager
async def received(request: Request, service: Service, who: Principal) -> AsyncIterator[Upload]:
    """Stream the body to a temporary file.

    Raises:
        Refusal: If it is too long, too slow, or ends early.
    """
    body_of(request).allow(judge_of(service).max_bytes)
    handle, name = mkstemp(dir=service.incoming, suffix=".zip")
    path, digest = Path(name), hashlib.sha256()
    try:
        with service.meters.uploads.track_inprogress(), os.fdopen(handle, "wb") as file:
            async for chunk in request.stream():
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            yield Upload(path, digest.hexdigest(), who)
    except ClientDisconnect:
        raise Refusal(400, "the body ended early") from None
    finally:
        os.unlink(path)  # noqa: PTH108 - a moment's work; async code may not call pathlib's


def check_upload(service: Service, upload: Upload) -> Submission:
    """Check everything that scoring checks; refuse the upload with every problem."""
    with _refusing(service):
        return validate(upload.path, judge_of(service).release)[0]


@contextmanager
def _refusing(service: Service) -> Iterator[None]:
    """Turn errors of a submission, or of the release, into a :class:`Refusal`."""
    try:
        yield
    except SubmissionError as error:
        service.meters.submissions.labels("refused").inc()
        detail = "; ".join(str(problem) for problem in error.problems)
        raise Refusal(422, detail, error.problems) from None
    except NowError as error:
        LOG.error(json.dumps({"fault": "release", "what": str(error)}))
        detail = "this board's release cannot be scored on for that split and track"
        raise Refusal(422, detail) from None


def _refuse_lookalike(service: Service, name: str) -> None:
    """Refuse a name that looks like that of another method, here or published."""
    known = [*published_methods(), *index.methods(service.database)]
    if other := lookalike(name, known):
        field, expected = "submission.json.method.name", f"a name unlike {other!r}"
        found = f"{name!a:.200}"
        raise SubmissionError(Problem("name.lookalike", field, found, expected))


@dataclass(frozen=True, slots=True)
class Answer:
    """What an upload is answered with.

    Attributes:
        entry: its entry; in an open blind round the person's best, if it is no step above that.
        new: whether the upload made the entry: equal bytes are one entry.
        turn: which file of how many it is in an open blind round.
    """

    entry: Entry
    new: bool
    turn: str | None = None


def file_upload(service: Service, upload: Upload) -> Answer:
    """Score an upload, and file it if it is new.

    If the process is killed at any moment, there is either a whole entry, which the next start
    finds, or none: files are synced before the row, and the row before the response.

    Raises:
        Refusal: If the file is refused, is another user's, was withdrawn, or a quota is used up.
    """
    blind = open_round(service, upload.who)
    known = index.find_by_payload(service.database, upload.sha256)
    if known is not None:
        entry = _same(service, known, upload)
        return Answer(entry, new=False, turn=_turn(service, blind, upload))
    with _refusing(service), open_submission(upload.path, "submission") as submission:
        counts = submission.meta.split == "test"
        _refuse_lookalike(service, submission.meta.method.name)
    filing = NewFiling(upload.who.handle, now())
    if counts and blind is not None:
        with service.round_lock:
            return _climb(service, upload, filing, blind)
    if counts:
        take(service, upload.who, "scored", filing.submitted_at)
    try:
        entry, new = _file(service, upload, filing, _score(service, upload))
    except BaseException:
        if counts:
            quotas.release_scored(service.database, upload.who.user_id, filing.submitted_at)
        raise
    service.meters.submissions.labels("new" if new else "same").inc()
    return Answer(entry, new)


def open_round(service: Service, who: Principal) -> BlindRound | None:
    """Return the blind round that bounds a person's files; the operator is its judge."""
    blind = round_of(judge_of(service).release, "test")
    free = who.user_id == service.authenticator.operator_id
    return None if free or blind is None or blind.closed else blind


def _turn(service: Service, blind: BlindRound | None, upload: Upload) -> str | None:
    if blind is None:
        return None
    turns = rounds.turns_of(service.database, blind, upload.who.handle)
    return turns.place(upload.sha256) if upload.sha256 in turns.files else None


def _climb(service: Service, upload: Upload, filing: NewFiling, blind: BlindRound) -> Answer:
    """File an upload if it is a step above the person's best of an open round; else keep that.

    Source:
        Blum and Hardt, The Ladder: A Reliable Leaderboard for Machine Learning Competitions, ICML
        2015.
    """
    who, engine = upload.who, service.database
    turns = rounds.turns_of(engine, blind, who.handle)
    if not turns.left and upload.sha256 not in turns.files:
        service.meters.submissions.labels("over_quota").inc()
        raise Refusal(429, f"all {turns.of} files of this round are used; your best one stands")
    result = _score(service, upload)
    turn = rounds.take_turn(engine, blind, who.handle, upload.sha256).place(upload.sha256)
    best = rounds.best_of(engine, who.user_id, result)
    if best is None or result.rsum > best.rsum:
        return Answer(*_file(service, upload, filing, result), turn)
    if best.withdrawn_at is not None:
        told = f"file {turn}: no step above your best, {best.name}, which was withdrawn"
        raise Refusal(409, told)
    service.meters.submissions.labels("same").inc()
    return Answer(_entry_of(service, best), new=False, turn=turn)


def _score(service: Service, upload: Upload) -> Result:
    judge = judge_of(service)
    with service.meters.scoring.time(), _refusing(service):
        return score(
            upload.path, judge.release, judge.attributes, name="submission", read=judge.read
        )


def _file(
    service: Service, upload: Upload, filing: NewFiling, result: Result
) -> tuple[Entry, bool]:
    store = service.settings.store
    signer, name = service.signer, entry_of(result).name
    with signer.signing_intent("scored", name) if signer else nullcontext():
        entry, new = file_result(store, result, filing)
        if not new and (entry.filing is None or entry.filing.submitter != upload.who.handle):
            # Filed by the command line before it was indexed.
            raise _taken(service)
        if signer is not None:
            paths = filed_paths(store, entry)
            signer.sign("scored", entry, paths if new else paths[:1])
            entry = prove(store, [entry])[0]
    with writing(service.database) as session:
        if index.record_entry(session, entry, upload.who.user_id):
            detail = {"track": result.track, "split": result.split, "payload": upload.sha256}
            events.append(session, upload.who.handle, "entry.filed", entry.name, detail)
    return entry, new


def _same(service: Service, known: EntryRow, upload: Upload) -> Entry:
    if known.user_id != upload.who.user_id:
        raise _taken(service)
    if known.withdrawn_at is not None:
        raise Refusal(409, f"this very file was entry {known.name}, which was withdrawn")
    service.meters.submissions.labels("same").inc()
    return _entry_of(service, known)


def _entry_of(service: Service, known: EntryRow) -> Entry:
    store = service.settings.store
    if service.signer is not None:
        service.signer.sign_pending(known.name)
    return read_entry(store, read_result(find_result(store, known.name)))


def _taken(service: Service) -> Refusal:
    service.meters.submissions.labels("taken").inc()
    return Refusal(409, "this very file is on the board already, sent by someone else")
