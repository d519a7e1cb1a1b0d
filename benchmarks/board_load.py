"""Many submitters at once, the service killed in the middle, and the ledger of what it lost.

Each submitter has a token of its own and sends files that are new, sent before, broken, somebody
else's, or one more than the quota allows. The service is killed (SIGKILL) when part of them is
acknowledged, and started again; clients try again, as clients do. At the end folder, database and
board must each hold every acknowledged submission exactly once, and nothing else. Any violation is
printed and ends in exit code 1.

    python benchmarks/board_load.py --submitters 200 --submissions 2000
    python benchmarks/board_load.py --submitters 200 --submissions 2000 \
        --database postgresql://postgres@127.0.0.1/board

The database must be empty; without --database it is the SQLite file that the service makes itself.
A PostgreSQL server that is thrown away afterwards, as the user postgres:

    initdb -D /tmp/pg -U postgres -A trust && postgres -D /tmp/pg -k /tmp/pg -c listen_addresses= &
    createdb -h /tmp/pg board
    python benchmarks/board_load.py --database "postgresql://postgres@/board?host=/tmp/pg"
"""

import argparse
import asyncio
import hashlib
import io
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import select

from leaderboard.service.accounts import create_token, create_user
from leaderboard.service.database import EntryRow, User, default_url, open_database, reading
from leaderboard.service.events import check_chain
from leaderboard.service.quotas import Quotas, remaining
from leaderboard.store.entries import read_results
from leaderboard.submission.archive import new_submission
from leaderboard.submission.gallery import read_gallery
from now_builder.formats.captions import to_line
from now_builder.formats.release import (
    DATA_FOLDER,
    Manifest,
    Pair,
    fingerprint,
    write_manifest,
    write_pairs,
)
from now_builder.formats.split import Shares, SplitPlan

MAIN = "from leaderboard.cli import main; main()"
OPERATOR = "board-load-operator-token"
ATTEMPTS = 100_000
ALONE = 10
TRIES, PAUSE_S, DOWN_S = 400, 0.25, 1.0


@dataclass
class Upload:
    """A file on its way.

    Attributes:
        wanted: The statuses that are right for it.
    """

    user: int
    kind: str
    content: bytes
    wanted: set[int]


@dataclass
class Ledger:
    """What happened.

    Attributes:
        acknowledged: User and entry by sha256 of the file.
        seconds: Time to each response 201, and whether the first try was answered.
    """

    acknowledged: dict[str, tuple[int, str]] = field(default_factory=dict)
    contents: dict[int, list[bytes]] = field(default_factory=dict)
    seconds: list[tuple[float, bool]] = field(default_factory=list)
    created: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def make_release(folder: Path, pairs: int) -> Path:
    """Write what scoring reads of a release: keys and captions; nobody looks at features here."""
    data = folder / DATA_FOLDER
    data.mkdir(parents=True)
    keys = [f"00000_{row:04d}" for row in range(pairs)]
    captions = [[4 + row % 7, 20 + row] for row in range(pairs)]
    (data / "test_ids.txt").write_text("".join(f"{key}\n" for key in keys))
    (data / "test_caps_jieba.txt").write_text("".join(f"{to_line(ids)}\n" for ids in captions))
    write_pairs(folder / "pairs.parquet", [_pair(key, row) for row, key in enumerate(keys)])
    manifest = Manifest(
        name="load",
        created_at="2026-01-01T00:00:00Z",
        split=SplitPlan(shares=Shares(train=0.5, dev=0.25, test=0.25)),
        counts={"train": 0, "dev": 0, "test": pairs},
        rejects={},
        fingerprints={"test": {"jieba": fingerprint(keys, captions)}},
        detector={},
        settings={},
        versions={},
        files={},
    )
    write_manifest(folder, manifest)
    return folder


def _pair(key: str, row: int) -> Pair:
    return Pair(
        key=key,
        split="test",
        pair_index=row,
        url=f"http://site{row:04d}.test/",
        site=f"site{row:04d}.test",
        caption=f"caption {row}",
        caption_source="name",
        lang="en",
        phash=None,
        regions_sha256=hashlib.sha256(key.encode()).hexdigest(),
    )


class Files:
    """Makes distinct valid submissions quickly: one noisy matrix, a few of its rows drawn again."""

    def __init__(self, release: Path, seed: int) -> None:
        n_pairs = len(read_gallery(release, "test", "jieba").image_keys)
        self._random = np.random.default_rng(seed)
        noise = self._random.standard_normal((n_pairs, n_pairs), dtype=np.float32)
        self._matrix = noise + 3 * np.eye(n_pairs, dtype=np.float32)
        meta = new_submission(release, "jieba", "test", "Load")
        self._meta = meta.model_copy(update={"image_ids": None, "caption_ids": None})

    def make(self, name: str) -> bytes:
        """Return the bytes of a zip that no other call gives."""
        rows = self._random.integers(0, len(self._matrix), 5)
        self._matrix[rows] += self._random.standard_normal(5, dtype=np.float32)[:, None] / 10
        method = self._meta.method.model_copy(update={"name": name})
        text = self._meta.model_copy(update={"method": method}).model_dump_json(exclude_none=True)
        out, array = io.BytesIO(), io.BytesIO()
        np.lib.format.write_array(array, self._matrix, version=(1, 0), allow_pickle=False)
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("submission.json", text)
            archive.writestr("similarity.npy", array.getvalue())
        return out.getvalue()


class Service:
    """The command serve in a process of its own, which can be killed and started again."""

    def __init__(self, folder: Path, release: Path, options: argparse.Namespace) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.down = 0.0
        self._log = folder / "log"
        self._command = [sys.executable, "-c", MAIN, "serve", "--store", str(folder / "store")]
        self._command += ["--release", str(release), "--port", str(port)]
        self._command += ["--attempts", str(ATTEMPTS), "--scored", str(options.quota)]
        self._environment = os.environ | {"NOW_LEADERBOARD_TOKEN": OPERATOR}
        if options.database:
            self._environment["NOW_LEADERBOARD_DATABASE"] = options.database

    def start(self) -> None:
        """Start, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )
        for _ in range(1200):
            try:
                httpx.get(f"{self.url}/healthz", timeout=30).raise_for_status()
            except httpx.HTTPError:
                if self._process.poll() is not None:
                    sys.exit(f"the service does not start:\n{self._log.read_text()[-3000:]}")
                time.sleep(0.05)
            else:
                return
        sys.exit("the service does not answer")

    def kill(self) -> None:
        """Kill it without a word, and start it again a moment later."""
        started = time.perf_counter()
        self._process.kill()
        self._process.wait()
        time.sleep(DOWN_S)
        self.start()
        self.down = time.perf_counter() - started

    def stop(self) -> None:
        """Ask it to stop."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(120)

    def faults(self) -> list[str]:
        """Return the lines of its log that tell of a fault."""
        lines = self._log.read_text().splitlines()
        return [line for line in lines if "fault" in line or "Traceback" in line]


def plan(user: int, count: int, quota: int) -> list[str]:
    """Choose what a submitter sends: new files up to one more than the quota, and the rest."""
    others = ["broken", "again", "stolen"]
    kinds = ["new"] * min(quota, max(1, count - len(others)))
    if len(kinds) < count:
        kinds.append("over" if len(kinds) == quota else "broken")
    kinds += [others[index % 3] for index in range(count - len(kinds))]
    first, rest = kinds[0], kinds[1:]
    over = [kind for kind in rest if kind == "over"]
    rest = [kind for kind in rest if kind != "over"]
    random.Random(user).shuffle(rest)
    return [first, *rest, *over]


class Load:
    """The submitters.

    Args:
        url: Address of the service.
        tokens: One for each of them.
        files: Makes what they send.
    """

    def __init__(self, url: str, tokens: list[str], files: Files) -> None:
        self._url, self._tokens, self._files = url, tokens, files
        self.ledger = Ledger()
        self.enough = asyncio.Event()

    async def run(self, options: argparse.Namespace, service: Service) -> float:
        """Let them all send at once; give the seconds that it took."""
        each, more = divmod(options.submissions, options.submitters)
        kinds = [plan(u, each + (u < more), options.quota) for u in range(options.submitters)]
        expected = sum(kind == "new" for own in kinds for kind in own)
        self._kill_at = max(1, int(expected * options.kill_at))
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        started = time.perf_counter()
        async with httpx.AsyncClient(timeout=600, limits=limits, trust_env=False) as self._http:
            senders = [self._submitter(user, own) for user, own in enumerate(kinds)]
            await asyncio.gather(self._killer(service), *senders)
        return time.perf_counter() - started

    async def _killer(self, service: Service) -> None:
        await self.enough.wait()
        await asyncio.to_thread(service.kill)

    async def _submitter(self, user: int, kinds: list[str]) -> None:
        for number, kind in enumerate(kinds):
            upload = self._upload(user, kind, number)
            if upload is not None:
                await self._send(upload)

    def _upload(self, user: int, kind: str, number: int) -> Upload | None:
        own = self.ledger.contents.setdefault(user, [])
        if kind == "again":
            return Upload(user, kind, own[0], {200})
        if kind == "stolen":
            others = [held for who, held in self.ledger.contents.items() if who != user and held]
            return Upload(user, kind, others[user % len(others)][0], {409}) if others else None
        content = self._files.make(f"User {user}, number {number}")
        if kind == "broken":
            return Upload(user, kind, content[: len(content) // 2], {422})
        return Upload(user, kind, content, {429} if kind == "over" else {200, 201})

    async def _send(self, upload: Upload) -> None:
        started = time.perf_counter()
        headers = {"Authorization": f"Bearer {self._tokens[upload.user]}"}
        for attempt in range(TRIES):
            try:
                answer = await self._http.put(
                    f"{self._url}/v1/submissions", content=upload.content, headers=headers
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code < 500:
                self._note(upload, answer, time.perf_counter() - started, first=attempt == 0)
                return
            await asyncio.sleep(PAUSE_S)
        self.ledger.violations.append(f"no answer after {TRIES} tries: {upload.kind}")

    def _note(self, upload: Upload, answer: httpx.Response, seconds: float, *, first: bool) -> None:
        ledger, status = self.ledger, answer.status_code
        ledger.statuses[upload.kind, status] += 1
        if status not in upload.wanted:
            ledger.violations.append(f"{upload.kind}: found {status}: {answer.text[:200]}")
        if upload.kind != "new" or not answer.is_success:
            return
        sha256 = hashlib.sha256(upload.content).hexdigest()
        name = answer.headers["Location"].rpartition("/")[2]
        ledger.acknowledged[sha256] = upload.user, name
        if not ledger.contents[upload.user]:
            ledger.contents[upload.user].append(upload.content)
        if status == 201:
            ledger.created[sha256] += 1
            ledger.seconds.append((seconds, first))
        if len(ledger.acknowledged) >= self._kill_at:
            self.enough.set()


def measure_alone(url: str, files: Files) -> list[float]:
    """Time single submissions to an idle service."""
    seconds = []
    for number in range(ALONE):
        content = files.make(f"Alone, number {number}")
        started = time.perf_counter()
        httpx.put(
            f"{url}/v1/submissions",
            content=content,
            headers={"Authorization": f"Bearer {OPERATOR}"},
            timeout=60,
            trust_env=False,
        ).raise_for_status()
        seconds.append(time.perf_counter() - started)
    return seconds


def check(load: Ledger, store: Path, database: str, url: str, quota: int) -> Iterator[str]:
    """Compare what was acknowledged with folder, database and board; yield what is wrong."""
    wanted = Counter(load.acknowledged)
    entries = [e for e in read_results([store]) if e.filing and e.filing.submitter != "operator"]
    yield from _same("folder", wanted, Counter(e.result.payload_sha256 for e in entries))
    engine = open_database(database)
    with reading(engine) as session:
        rows = session.execute(
            select(EntryRow.payload_sha256, EntryRow.name, User.handle).join(User)
        ).all()
        users = {user.handle: user.id for user in session.scalars(select(User))}
    rows = [row for row in rows if row.handle != "operator"]
    yield from _same("database", wanted, Counter(row.payload_sha256 for row in rows))
    for row in rows:
        user, name = load.acknowledged.get(row.payload_sha256, (-1, ""))
        if (row.handle, row.name) != (f"user-{user}", name):
            yield f"database: {row.name} belongs to {row.handle}, acknowledged {name} to {user}"
    rows_shown = httpx.get(f"{url}/v1/boards/jieba", timeout=600).json()["rows"]
    shown = Counter(row["entry"] for row in rows_shown if row["entry"])
    own = {entry.name for entry in entries}
    named = Counter(name for _, name in load.acknowledged.values())
    yield from _same("board", named, Counter({n: c for n, c in shown.items() if n in own}))
    for sha256, times in load.created.items():
        if times > 1:
            yield f"answers: {sha256[:12]} was made {times} times"
    for handle, count in Counter(row.handle for row in rows).items():
        left = remaining(engine, users[handle], Quotas(ATTEMPTS, quota), datetime.now(UTC))
        if count > quota:
            yield f"quota: {handle} has {count} scored, expected {quota} at most"
        if left.scored != quota - count:
            yield f"quota: {handle} has {left.scored} left, expected {quota - count}"
    chain = check_chain(engine)
    if chain.broken_at is not None:
        yield f"log: the chain breaks at event {chain.broken_at}"
    engine.dispose()


def _same(where: str, wanted: Counter[str], found: Counter[str]) -> Iterator[str]:
    lost, extra = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    doubled = [key for key, count in found.items() if count > 1]
    for word, keys in (("lost", lost), ("extra", extra), ("doubled", doubled)):
        if keys:
            yield f"{where}: {len(keys)} {word}, such as {min(keys)[:12]}"


def summary(load: Ledger, alone: list[float], seconds: float, service: Service) -> str:
    """Say it in a few lines."""
    first = np.array([taken for taken, at_once in load.seconds if at_once] or [0.0])
    again = np.array([taken for taken, at_once in load.seconds if not at_once] or [0.0])
    marks = (50, 90, 99, 100)

    def spread(values: np.ndarray) -> str:
        found = np.percentile(values, marks)
        return ", ".join(f"p{m} {v:.2f} s" for m, v in zip(marks, found, strict=True))

    counts = ", ".join(
        f"{kind} {status}: {n}" for (kind, status), n in sorted(load.statuses.items())
    )
    rate = len(load.acknowledged) / (seconds - service.down)
    return f"""\
alone: {len(alone)} submissions, {spread(np.array(alone))}
load: {sum(load.statuses.values())} uploads in {seconds:.1f} s, {service.down:.1f} s of them down
scored: {len(load.acknowledged)}, {rate:.1f} a second while up
answers: {counts}
latency of the {len(first)} answered at once: {spread(first)}
latency of the {len(again)} that had to try again: {spread(again)}"""


def main() -> int:
    """Run it all; give the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submitters", type=int, default=8)
    parser.add_argument("--submissions", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--quota", type=int, default=6, help="scored submissions of a user")
    parser.add_argument("--kill-at", type=float, default=0.4, help="share acknowledged by then")
    parser.add_argument("--database", help="empty; SQLite in the store where not given")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="board-load-") as name:
        folder = Path(name)
        release = make_release(folder / "release", options.pairs)
        database = options.database or default_url(folder / "store")
        files, service = Files(release, options.seed), Service(folder, release, options)
        tokens = _tokens(database, options.submitters)
        service.start()
        alone = measure_alone(service.url, files)
        load = Load(service.url, tokens, files)
        seconds = asyncio.run(load.run(options, service))
        ledger = load.ledger
        ledger.violations += check(ledger, folder / "store", database, service.url, options.quota)
        if max(alone) >= 1:
            ledger.violations.append(f"alone: {max(alone):.2f} s, expected less than a second")
        service.stop()
        ledger.violations += service.faults()
        print(summary(ledger, alone, seconds, service))
    for violation in ledger.violations[:40]:
        print(f"VIOLATION {violation}")
    print(f"{len(ledger.violations)} violations")
    return 1 if ledger.violations else 0


def _tokens(database: str, count: int) -> list[str]:
    engine = open_database(database)
    tokens = []
    for user in range(count):
        create_user(engine, f"user-{user}")
        tokens.append(create_token(engine, f"user-{user}", ["submit"]))
    engine.dispose()
    return tokens


if __name__ == "__main__":
    sys.exit(main())
