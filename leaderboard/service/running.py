"""What a running board holds: store, database, judge, pages, threads."""

import fcntl
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import get_args

from sqlalchemy import Engine, select, text
from sqlalchemy.exc import SQLAlchemyError

from leaderboard.scoring.evaluate import Standard, read_standard
from leaderboard.service import index, quotas
from leaderboard.service.access import Doorkeeper, Operator
from leaderboard.service.accounts import OPERATOR, add_user
from leaderboard.service.database import User, default_url, open_database, reading, writing
from leaderboard.service.metering import Meters
from leaderboard.service.pages import Pages
from leaderboard.service.quotas import Quotas
from leaderboard.submission.archive import max_submission
from leaderboard.submission.gallery import TRACKS, ScoredSplit, Track
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import BENCHMARKS
from now_builder.formats.precomp import captions_path
from now_builder.formats.release import data_folder

SCORERS = 2
_INCOMING, _LOCK = "incoming", "serve.lock"


@dataclass(frozen=True, slots=True)
class Judge:
    """What a server needs to accept submissions.

    Attributes:
        release: The release that submissions must be made on.
        truth: Languages and topics for the references, if at hand.
        max_bytes: The most that a body may hold.
        quotas: What a user may do in a day.
        standard: What each split is measured against, read once.
    """

    release: Path
    truth: Path | None
    max_bytes: int
    quotas: Quotas
    standard: Callable[[Path, ScoredSplit, Track, Path | None], Standard]


def make_judge(release: Path, truth: Path | None = None, limits: Quotas | None = None) -> Judge:
    """Prepare for scoring against a release.

    Raises:
        FormatError: If there is no such release.
    """
    standard = lru_cache(maxsize=32)(read_standard)
    return Judge(release, truth, _largest(release), limits or Quotas(), standard)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a board is started with.

    Attributes:
        store: Folder of results; the truth.
        judge: Accepts submissions; a board without one is read-only and needs no database.
        database: Address; a file in the store's private folder where None.
        operator: Who may do everything with one token from the environment.
    """

    store: Path
    judge: Judge | None = None
    database: str | None = None
    operator: Operator | None = None


class Service:
    """A running board.

    Attributes:
        settings: As given.
        keeper: Tells whose token a request shows.
        pages: The site, rendered once for each state of the store.
        meters: What is counted.
        scorers: The few threads that score; the queue before them is fair.
        incoming: Folder of uploads that are being received or scored.

    Raises:
        ConfigError: If another process serves this store, or the database cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.meters = Meters()
        self.pages = Pages(settings.store, discloses=settings.judge is not None)
        self.keeper = Doorkeeper(None)
        self.incoming = settings.store / "private" / _INCOMING
        settings.store.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            if settings.judge is not None:
                self._open(settings, opened)
            self.scorers = ThreadPoolExecutor(SCORERS, thread_name_prefix="scorer")
            opened.callback(self.scorers.shutdown, wait=True)
            self._opened = opened.pop_all()

    def _open(self, settings: Settings, opened: ExitStack) -> None:
        self.incoming.parent.mkdir(mode=0o700, exist_ok=True)
        opened.callback(os.close, _only_one(self.incoming.with_name(_LOCK)))
        _empty(self.incoming)
        database = open_database(settings.database or default_url(settings.store))
        opened.callback(database.dispose)
        index.update_index(database, settings.store)
        quotas.reconcile(database, datetime.now(UTC))
        self.keeper = Doorkeeper(database, settings.operator, _operator_id(database))

    @property
    def database(self) -> Engine:
        """Give the database of a board that accepts submissions."""
        if self.keeper.database is None:
            raise ValueError("a read-only board has no database")
        return self.keeper.database

    def problem(self) -> str | None:
        """Say why the board cannot work now: a database that does not answer, a full disk."""
        if self.keeper.database is None:
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
        """Finish what is being scored, then let go of everything."""
        self._opened.close()


def _operator_id(database: Engine) -> int:
    """Give the row of who has the machine; no token of the database is theirs."""
    with writing(database) as session:
        user = session.scalar(select(User).where(User.handle == OPERATOR))
        return (user or add_user(session, OPERATOR)).id


def _only_one(path: Path) -> int:
    """Hold a lock for as long as this process lives: two services would score one file twice.

    Raises:
        ConfigError: If another one has it.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"{path}: another process serves this store") from None
    return lock


def _empty(folder: Path) -> None:
    """Drop the uploads that a killed process left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)


def _largest(release: Path) -> int:
    """Give the most bytes that a submission to any split of a release may have.

    Raises:
        FormatError: If no track is in it.
    """
    sizes, problems = [], []
    for track in TRACKS:
        for split in get_args(ScoredSplit):
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
    """Find a split's captions, and how many of them an image has."""
    for name, benchmark in BENCHMARKS.items():
        if track == name:
            return captions_path(release, split, benchmark.folder), benchmark.each
    return data_folder(release) / f"{split}_caps_{track}.txt", 1
