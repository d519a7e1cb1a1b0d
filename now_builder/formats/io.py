"""Read text and JSON with clear errors; write files whole, by rename, or not at all."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError, FormatError
from now_builder.program.progress import Progress

_log = logging.getLogger(__name__)


def check_output(path: Path, suffix: str) -> None:
    """Refuse, before all work, what could not be written after it.

    Raises:
        ConfigError: If it has another suffix, or is a folder.
    """
    if path.suffix != suffix:
        raise ConfigError(f"{path}: expected the name of a {suffix} file")
    if path.is_dir():
        raise ConfigError(f"{path}: a folder, expected the name of a {suffix} file to write")


_MARKS = {
    "plan.parquet": "captures",
    "manifest.json": "a release",
    "export.json": "an export",
    "run.toml": "a run",
    "sites.csv": "a pinned web",
    "filings": "a folder of results",
}
"""Files and folders that name the command which made the folder they are in."""


def check_folder_is_ours(folder: Path, *own: str) -> None:
    """Refuse to write into a folder that another command made; ``own`` are marks of this one's.

    Raises:
        ConfigError: If it is one.
    """
    for name, content in _MARKS.items():
        if name not in own and (folder / name).exists():
            raise ConfigError(f"{folder}: contains {content} ({name}). Name another folder")


@contextmanager
def atomic_write(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``.

    The name survives a power cut only if it is ``durable``; the content always does. The file has
    the permissions ``mode``, or those of the ``umask``: safetensors writes for its owner alone. Any
    error of the disk names ``path``.
    """
    if path.is_dir():  # "." too
        raise FormatError(path, "a folder, expected a file to write")
    if path.exists() and not path.is_file():  # /dev/stdout: a rename would take its place
        raise FormatError(path, "a device or pipe, expected a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, "tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fchmod(file.fileno(), _plain_mode() if mode is None else mode)
            os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except Exception as error:
        _raise_named(error, temporary, path)
        raise
    finally:
        with suppress(OSError):  # what went wrong before is what counts
            temporary.unlink(missing_ok=True)


_OF_DISK = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.EACCES}
)
_IN_WORDS = re.compile(
    r"\(os error (\d+)\)"  # safetensors
    r"|Not enough free space to write|requested and \d+ written"  # NumPy
    r"|inline_container\.cc.* unexpected pos|PytorchStreamWriter failed"
)
"""Messages of libraries that could not write a file and give no number."""


def _raise_named(error: Exception, temporary: Path, path: Path) -> None:
    """Raise an error of the disk anew if it names no file, or the temporary one or one in it."""
    name, number = getattr(error, "filename", None), getattr(error, "errno", None)
    if isinstance(name, str):
        if Path(name).is_relative_to(temporary):
            inside = path / Path(name).relative_to(temporary)
            raise OSError(number, os.strerror(number or 0), str(inside)) from error
    elif number is None and (words := _IN_WORDS.search(str(error))):
        number = int(words[1] or errno.ENOSPC)
    if name is None and number in _OF_DISK:
        raise OSError(number, os.strerror(number), str(path)) from error


@cache
def _plain_mode() -> int:
    """Return the permissions of a new file; a ``umask`` can be read only by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a fresh temporary folder beside ``path``; on success it takes the place of ``path``.

    Between the two renames of a replacement ``path`` does not exist for an instant; the old folder
    is removed only after the new one stands, and else put back: after a kill by the next call, or
    by :func:`remove_leftovers`. Where ``path`` is a link, it stays, and the folder that it leads to
    is replaced. Any error of the disk names ``path``, or the file in it.
    """
    if not path.name:
        raise FormatError(path, "a folder without a name of its own, expected one to write")
    if path.is_symlink():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary, old = _beside(path, "tmp"), _beside(path, "old")
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
    except Exception as error:
        _raise_named(error, temporary, path)
        raise
    finally:
        if not path.exists():
            with suppress(OSError):  # there is none where nothing was replaced
                old.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _beside(path: Path, ending: str) -> Path:
    """Name a file that no other thread or process uses."""
    return path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}.{ending}")


_HALF = re.compile(r"\.(.+?)(?:\.(\d+))?\.(\d+)\.tmp")
_MOVED = re.compile(r"\.(.+)\.(\d+)\.(\d+)\.old")


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Drop what killed processes left half-written in ``folder``, of one name or of all.

    A folder that was moved away, and whose place nothing took, is put back.
    """
    for path in folder.glob(".*"):
        found = _HALF.fullmatch(path.name) or _MOVED.fullmatch(path.name)
        if found is None or name not in {None, found[1]} or _alive(int(found[3]), found[2]):
            continue
        if path.suffix == ".old" and not (folder / found[1]).exists():
            path.rename(folder / found[1])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _alive(process: int, thread: str | None) -> bool:
    """Whether a process runs or, of this one, whose number a dead one may have had, the thread."""
    if process == os.getpid():
        running = {str(one.ident) for one in threading.enumerate()}
        return thread in running - {str(threading.get_ident())}
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NO_LOCKS = {
    errno.ENOLCK: "no locks available",
    errno.ENOSYS: "locks are not implemented",
    errno.EOPNOTSUPP: "locks are not supported",
    524: "locks are not supported",  # ENOTSUPP of Linux itself, which NFS lets through
}


@contextmanager
def locking(path: Path) -> Iterator[None]:
    """Take a lock on ``path`` inside, or warn and go on without it on file systems without locks.

    Network file systems may be mounted without locks; any other error is raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn_of_locks(path, _NO_LOCKS[error.errno])


@cache
def _warn_of_locks(path: Path, problem: str) -> None:
    """Warn once for each file."""
    _log.warning(
        "%s: %s on this file system; start no second command that writes here", path, problem
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Let one command at a time write in a folder, which is created, and removed if left empty.

    Raises:
        ConfigError: If another command, which may be another thread's, writes in it.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with locking(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it dies with its process
    except BlockingIOError:
        raise ConfigError(f"{folder}: another command is writing in this folder") from None
    else:
        yield
    finally:
        os.close(descriptor)
        if new:
            with suppress(OSError):  # it holds files
                folder.rmdir()


def user_cache() -> Path:
    """Return this project's folder in the user's cache, which ``XDG_CACHE_HOME`` moves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noise-of-web"


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, in a stable form (two spaces, UTF-8, a final newline)."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def sha256_of(path: Path) -> str:
    """Hash a file's bytes (hexadecimal)."""
    digest = hashlib.sha256()
    with path.open("rb") as file, Progress(path.name, path.stat().st_size, "B") as progress:
        while block := file.read(2**20):
            digest.update(block)
            progress.add(len(block))
    return digest.hexdigest()


def stream_lines(path: Path, missing: str) -> Iterator[str]:
    r"""Read a UTF-8 text line by line; only ``\n`` (or ``\r\n``) ends one.

    Raises:
        FormatError: If it cannot be read; ``missing`` is what is said if it is not there.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n").removesuffix("\r")
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except (UnicodeDecodeError, OSError) as error:
        raise FormatError(path, f"not a readable UTF-8 text ({error})") from None


def read_lines(path: Path, missing: str) -> list[str]:
    """Read all lines of a UTF-8 text as :func:`stream_lines` does."""
    return list(stream_lines(path, missing))


_MAGIC = {
    b"\x1f\x8b": "gzip data; unpack it first, by gunzip",
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save it as CSV",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
_JSON = re.compile(r"\s*(\{|\[\s*([\"\[{\]]|$))")
_MARKUP = re.compile(r"\s*<([!?]|/?[a-z][\w:-]*[\s/>])", re.IGNORECASE)


def check_not_binary(path: Path, head: bytes, expected: str) -> None:
    """Raise a FormatError if a file's first bytes are those of a packed or binary one."""
    found = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    if found is None and head[:1000].count(0) > len(head[:1000]) // 10:
        found = "binary data"
    if found is not None:
        raise FormatError(path, f"expected {expected}, found {found}")


def describe_content(text: str | bytes) -> tuple[int, str]:
    """Return the line in which a text begins, and what it is instead of lines, or ``""``."""
    head = text if isinstance(text, str) else text.decode("utf-8-sig", "replace")
    forms = (("JSON", _JSON), ("HTML or XML", _MARKUP))
    found = next((kind for kind, form in forms if form.match(head)), "")
    return head[: len(head) - len(head.lstrip())].count("\n") + 1, found


def decode_text(path: Path, content: bytes, expected: str) -> str:
    """Decode the lines of a user's file: UTF-8, with or without a byte order mark.

    Raises:
        FormatError: If it is packed, binary, JSON, HTML or XML, or not UTF-8.
    """
    check_not_binary(path, content, expected)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x}"
        problem = f"line {line}: {byte} is not UTF-8 text, expected {expected}"
        raise FormatError(path, problem) from None
    line, found = describe_content(text)
    if found:
        raise FormatError(path, f"line {line}: expected {expected}, found {found}")
    return text


def read_json(path: Path, missing: str) -> Any:
    """Read JSON.

    Raises:
        FormatError: If it cannot be read; ``missing`` is what is said if it is not there.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except (ValueError, RecursionError, OSError) as error:
        raise FormatError(path, f"not JSON ({error})") from None
