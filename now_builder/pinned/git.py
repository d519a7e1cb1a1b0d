"""Run git on untrusted repositories: fetch a commit, read its files.

Files are read as objects and never checked out, so no hook, filter or attribute is used. Git runs
no helper for another protocol and never asks for a password.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from now_builder.errors import NowError
from now_builder.pinned.sites import Site

_OPTIONS = (
    "safe.directory=*", "credential.helper=", "core.hooksPath=/dev/null",
    "maintenance.auto=false", "http.lowSpeedLimit=1000", "http.lowSpeedTime=60",
    "fetch.unpackLimit=1",
)  # fmt: skip
_KEPT = ("GIT_CONFIG_", "GIT_EXEC_PATH", "GIT_SSL_", "GIT_PROXY_")
"""Prefixes of environment variables that git keeps; others could name another repository."""
_LISTING = 2**24
"""Maximum size in bytes of a list of files; a few packed trees can name more than a disk holds."""
_OTHER_COMMIT = re.compile(
    r"not our ref|unadvertised object|no such remote ref|couldn't find remote"
)
_GONE = re.compile(
    r"not found|could not read Username|does not appear to be a git rep|error: (?:40[134]|451)"
)


class SiteError(Exception):
    """A site cannot be made; its row records ``status`` and ``reason``."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = "".join(sign if sign.isprintable() else " " for sign in reason)[:200]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit; ``size`` is ``None`` if the repository lacks its content."""

    mode: str
    name: str
    size: int | None


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of the repositories, and limits of a site.

    Attributes:
        mirrors: Folder of repositories; ``None``: fetch them.
        origin: Address of a repository, with ``{}`` for ``owner/name``.
        size: Maximum size of a site's files in bytes; a packed commit may be four times as large.
        seconds: Timeout of a fetch in seconds.
    """

    mirrors: Path | None = None
    origin: str = "https://github.com/{}.git"
    size: int = 60_000_000
    seconds: float = 600.0

    @property
    def packed_blocks(self) -> int:
        """Maximum size of a packed commit in blocks of 512 bytes, for ``ulimit``."""
        return self.size * 4 // 512


@dataclass(slots=True)
class Git:
    """Run git from several threads; ``stop`` ends all processes and prevents new ones."""

    stopped: bool = False
    _running: set[Any] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def stop(self) -> None:
        """End all processes."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                _kill(process)

    @contextmanager
    def repository(self, site: Site, source: Source, web: Path) -> Iterator[Path]:
        """Yield a repository with a site's commit: a mirror, or one fetched into ``web``.

        Raises:
            SiteError: If the repository or the commit is not available.
        """
        if source.mirrors is not None:
            repository = _mirror(source.mirrors, site.repository)
            if self.run(repository, "cat-file", "-e", f"{site.commit}^{{commit}}")[0]:
                head = self.run(repository, "rev-parse", "--verify", "HEAD")[1].decode().strip()
                raise SiteError("other_commit", f"the mirror has {head or 'none'}")
            yield repository
            return
        with tempfile.TemporaryDirectory(dir=web, prefix=".", suffix=f".{os.getpid()}.tmp") as name:
            self._fetch(site, source, Path(name))
            yield Path(name)

    def files(self, repository: Path, site: Site) -> dict[bytes, Entry]:
        """Return the files of a site's folder by path."""
        listed = "ls-tree", "--full-tree", "-rlz", f"{site.commit}:{site.folder}"
        with self._start(repository, *listed, stdout=subprocess.PIPE) as process:
            listing = process.stdout.read(_LISTING)
            if len(listing) == _LISTING:
                raise SiteError("too_large", f"a listing of files above {_LISTING} bytes")
            if process.wait():
                raise SiteError("no_pages", f"no readable folder /{site.folder} at the commit")
        entries = {}
        for line in listing.split(b"\0")[:-1]:
            about, _, path = line.partition(b"\t")
            mode, _, name, size = about.decode().split()
            entries[path] = Entry(mode, name, int(size) if size.isdigit() else None)
        return entries

    def contents(self, repository: Path, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the contents of objects."""
        with tempfile.TemporaryFile() as requests:
            requests.write("".join(f"{name}\n" for name in names).encode())
            requests.seek(0)
            batch = "cat-file", "--batch", "--buffer"
            with self._start(repository, *batch, stdin=requests, stdout=subprocess.PIPE) as process:
                for name in names:
                    about = process.stdout.readline().split()
                    size = int(about[2]) if len(about) == 3 else -1
                    content = process.stdout.read(size + 1)[:-1] if size >= 0 else b""
                    if len(content) != size:
                        raise SiteError("damaged", f"object {name} cannot be read")
                    yield content

    def _fetch(self, site: Site, source: Source, repository: Path) -> None:
        """Fetch a commit without its history into a new repository."""
        self.run(repository, "init", "-q", "--bare", "--template=", str(repository))
        address = source.origin.format(site.repository)
        fetch = ("fetch", "-q", "--depth=1", "--no-tags", "--no-recurse-submodules",
                 "--no-write-fetch-head", address, site.commit)  # fmt: skip
        code, _, errors = self.run(repository, *fetch, source=source)
        if code == 0:
            return
        line = next((line for line in errors.splitlines()[::-1] if line), f"git ended with {code}")
        packs = [path.stat().st_size for path in (repository / "objects" / "pack").iterdir()]
        if max(packs, default=0) >= source.packed_blocks * 512:
            raise SiteError("too_large", f"more than {source.size * 4 / 1e6:.0f} MB packed")
        if _OTHER_COMMIT.search(errors):
            raise SiteError("other_commit", line)
        raise SiteError("gone" if _GONE.search(errors) else "unreachable", line)

    def run(self, repository: Path, *words: str, source: Source | None = None) -> tuple[Any, ...]:
        """Run a command; return its exit code, output and messages."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self._start(repository, *words, source=source, **pipes) as process:
            try:
                output, errors = process.communicate(timeout=source.seconds if source else None)
            except subprocess.TimeoutExpired as error:
                raise SiteError("timeout", f"not fetched in {error.timeout:.0f} s") from None
        return process.returncode, output, errors.decode(errors="replace")

    @contextmanager
    def _start(
        self, repository: Path, *words: str, source: Source | None = None, **pipes: Any
    ) -> Iterator[Any]:
        """Run git while the context is open, with network access to ``source`` only."""
        command = ["git", "--no-replace-objects", f"--git-dir={repository}"]
        command += [word for option in _OPTIONS for word in ("-c", option)] + list(words)
        allowed = "none"
        if source is not None:
            allowed = source.origin.partition(":")[0]
            limit = f'ulimit -f {source.packed_blocks} 2>/dev/null; exec "$@"'
            command = ["sh", "-c", limit, "sh", *command]
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(_KEPT)
        }
        kept |= {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "", "GIT_ALLOW_PROTOCOL": allowed,
                 "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", "LANGUAGE": ""}  # fmt: skip
        pipes = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | pipes
        with self._lock:
            if self.stopped:
                raise SiteError("stopped", "")
            try:
                process = subprocess.Popen(command, env=kept, start_new_session=True, **pipes)
            except FileNotFoundError:
                raise NowError("pinned make: git is missing. Install it") from None
            self._running.add(process)
        try:
            with process:
                try:
                    yield process
                finally:
                    _kill(process)
        finally:
            with self._lock:
                self._running.discard(process)


def _kill(process: Any) -> None:
    """Kill a process and its children."""
    if process.poll() is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _mirror(mirrors: Path, repository: str) -> Path:
    """Return the git directory of a repository in a folder of mirrors."""
    owner, _, name = repository.partition("/")
    folder = mirrors / f"{owner}+{name}"
    for place in (folder, folder / ".git", folder / "repo", folder / "repo" / ".git",
                  mirrors / owner / f"{name}.git"):  # fmt: skip
        if (place / "HEAD").is_file() and (place / "objects").is_dir():
            return place.resolve()
    raise SiteError("gone", f"no folder {folder.name} among the mirrors")
