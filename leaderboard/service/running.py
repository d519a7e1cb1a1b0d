"""State of a running service: store, database, judge, pages, threads."""

import asyncio
import fcntl
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import get_args
from weakref import WeakValueDictionary

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from leaderboard.core.tracks import TRACKS, ScoredSplit, Track
from leaderboard.scoring.evaluate import ScoringInputs, read_inputs
from leaderboard.service import index, quotas
from leaderboard.service.access import Authenticator
from leaderboard.service.accounts import OPERATOR, add_user
from leaderboard.service.database import User, default_url, open_database, reading, writing
from leaderboard.service.metering import Meters
from leaderboard.service.pages import Pages
from leaderboard.service.quotas import Quotas
from leaderboard.store.entries import PRIVATE, locked
from leaderboard.store.signatures import Signer
from leaderboard.submission.archive import max_submission
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.io import locking
from now_builder.formats.precomp import captions_path
from now_builder.formats.release import data_folder

SCORERS = 2


@dataclass(frozen=True, slots=True)
class Judge:
    """Release, limits and cached inputs for scoring submissions.

    Attributes:
        attributes: file with languages and topics of pages, for the references.
        max_bytes: maximum size of a body.
        read: cached :func:`leaderboard.scoring.evaluate.read_inputs`.
    """

    release: Path
    attributes: Path | None
    max_bytes: int
    quotas: Quotas
    read: Callable[[Path, ScoredSplit, Track, Path | None], ScoringInputs]


def make_judge(release: Path, attributes: Path | None, limits: Quotas) -> Judge:
    """Make the judge of a release."""
    return Judge(release, attributes, _max_bytes(release), limits, lru_cache(32)(read_inputs))


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a service.

    Attributes:
        store: folder of results, which is authoritative.
        judge: without one the board is read-only and needs no database.
        database: URL of the database; None for a file in the store's private folder.
        operator_hash: :func:`leaderboard.service.access.hash_operator_token`.
        judge_key: file with the judge's private key; None signs nothing.
    """

    store: Path
    judge: Judge | None = None
    database: str | None = None
    operator_hash: bytes | None = None
    judge_key: Path | None = None


class Service:
    """A running service.

    Attributes:
        scorers: pool of the scoring threads.
        upload_locks: lock of each upload's bytes, by sha256, while it is held or awaited.
        round_lock: held while a file of an open blind round is scored and answered.
        incoming: folder of uploads that are being received or scored.

    Raises:
        ConfigError: If another process serves this store, or the database cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meters = Meters()
        self.signer = Signer(settings.store, settings.judge_key) if settings.judge_key else None
        self.pages = Pages(settings.store)
        self.authenticator = Authenticator(None)
        self.round_lock = threading.Lock()
        self.upload_locks = WeakValueDictionary[str, asyncio.Lock]()
        self.incoming = settings.store / PRIVATE / "incoming"
        settings.store.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            if settings.judge is not None:
                self._open(settings, opened)
            self.scorers = ThreadPoolExecutor(SCORERS, thread_name_prefix="scorer")
            opened.callback(self.scorers.shutdown, wait=True)
            self._opened = opened.pop_all()

    def _open(self, settings: Settings, opened: ExitStack) -> None:
        with locked(settings.store):  # drops what a killed process left half-written
            pass
        opened.callback(os.close, _lock_file(self.incoming.with_name("serve.lock")))
        # Uploads left by a killed process.
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir(mode=0o700)
        database = open_database(settings.database or default_url(settings.store))
        opened.callback(database.dispose)
        if self.signer is not None:
            self.signer.sign_pending()
        index.update_index(database, settings.store)
        quotas.reconcile(database, datetime.now(UTC))
        with writing(database) as session:
            row = session.scalar(select(User).where(User.handle == OPERATOR))
            operator = (row or add_user(session, OPERATOR)).id
        self.authenticator = Authenticator(database, settings.operator_hash, operator)

    @property
    def database(self) -> Engine:
        """Return the database of a board that accepts submissions."""
        if self.authenticator.database is None:
            raise ValueError("a read-only board has no database")
        return self.authenticator.database

    def problem(self) -> str | None:
        """Return why the board cannot work now (database, disk), or None."""
        if self.authenticator.database is None:
            return None
        try:
            with reading(self.database) as session:
                session.execute(text("SELECT 1"))
        except SQLAlchemyError:
            return "the database does not answer"
        probe = self.incoming / ".probe"
        try:
            probe.write_bytes(b"probe")
            probe.unlink()
        except OSError:
            return "the store cannot be written"
        return None

    def close(self) -> None:
        """Finish the submissions being scored, then release all resources."""
        self._opened.close()


def _lock_file(path: Path) -> int:
    """Lock a file for the life of this process: two services would score one file twice."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with locking(path):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"{path}: another process serves this store") from None
    return lock


def _max_bytes(release: Path) -> int:
    """Return the largest size of a submission to any split of a release, in bytes."""
    sizes, problems = [], []
    for track, split in product(TRACKS, get_args(ScoredSplit)):
        try:
            path, each = _captions(release, split, track)
        except FormatError as error:
            problems.append(error)
            continue
        if path.exists():
            with path.open("rb") as file:
                captions = sum(1 for _ in file)
            sizes.append(max_submission((captions // each, captions)))
    if not sizes:
        raise problems[0] if problems else FormatError(release, "no captions of dev or test in it")
    return max(sizes)


def _captions(release: Path, split: ScoredSplit, track: Track) -> tuple[Path, int]:
    """Return a split's caption file, and its number of captions per image."""
    for name, benchmark in BENCHMARKS.items():
        if track == name:
            return captions_path(release, split, benchmark.folder), benchmark.each
    return data_folder(release) / f"{split}_caps_{track}.txt", 1
