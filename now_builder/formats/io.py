"""Read text and JSON with clear errors; write files and folders atomically; lock folders."""

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
    """Fail early, with a ConfigError, if the output path is a folder or has another suffix."""
    if path.suffix != suffix or path.is_dir():
        problem = "a folder, " if path.is_dir() else ""
        raise ConfigError(f"{path}: {problem}expected the name of a {suffix} file")


_MARKERS = {
    "plan.parquet": "captures",
    "manifest.json": "a release",
    "export.json": "an export",
    "run.toml": "a run",
    "sites.csv": "a pinned web",
    "filings": "a folder of results",
}
"""Files and folders that only one command writes, and the content of the folders with them."""


def check_folder_is_ours(folder: Path, *markers: str) -> None:
    """Raise a ConfigError if another command made the folder; this one writes ``markers``."""
    for name, content in _MARKERS.items():
        if name not in markers and (folder / name).exists():
            raise ConfigError(f"{folder}: contains {content} ({name}). Name another folder")


@contextmanager
def atomic_write(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path; on success, sync the file and rename it to ``path``.

    The content survives a power cut; the rename does if it is ``durable``. ``mode`` has the
    permissions of the file, by default those of the ``umask``: some libraries, such as safetensors,
    write files that only their owner can read. Disk errors name ``path``.
    """
    if path.is_dir():  # "." too
        raise FormatError(path, "a folder, expected a file to write")
    if path.exists() and not path.is_file():  # a rename would replace /dev/stdout
        raise FormatError(path, "a device or pipe, expected a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path, "tmp")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fchmod(file.fileno(), _default_mode() if mode is None else mode)
            os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except Exception as error:
        _name_path(error, temporary, path)
        raise
    finally:
        with suppress(OSError):  # an earlier error matters more
            temporary.unlink(missing_ok=True)


_DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE, errno.EACCES}
)
_DISK_MESSAGE = re.compile(
    r"\(os error (\d+)\)"  # safetensors
    r"|Not enough free space to write|requested and \d+ written"  # NumPy
    r"|inline_container\.cc.* unexpected pos|PytorchStreamWriter failed"
)
"""Messages of libraries that could not write a file and set no ``errno``."""


def _name_path(error: Exception, temporary: Path, path: Path) -> None:
    """Raise a disk error again with ``path`` if it names no file or the temporary one."""
    name, number = getattr(error, "filename", None), getattr(error, "errno", None)
    if isinstance(name, str):
        if Path(name).is_relative_to(temporary):
            inside = path / Path(name).relative_to(temporary)
            raise OSError(number, os.strerror(number or 0), str(inside)) from error
    elif number is None and (match := _DISK_MESSAGE.search(str(error))):
        number = int(match[1] or errno.ENOSPC)
    if name is None and number in _DISK_ERRORS:
        raise OSError(number, os.strerror(number), str(path)) from error


@cache
def _default_mode() -> int:
    """Return the permissions of a new file. The ``umask`` can be read only by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a new temporary folder; on success, rename it to ``path``.

    An existing folder is moved away, and deleted once the new one has its name. After a failure it
    is moved back; after a kill, the next call or :func:`remove_leftovers` does that. If ``path`` is
    a symbolic link, its target is replaced. Disk errors name ``path``, or the file in it.
    """
    if not path.name:
        raise FormatError(path, "a folder without a name, expected one to write")
    if path.is_symlink():
        path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, path.name)
    temporary, old = _temporary_path(path, "tmp"), _temporary_path(path, "old")
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
    except Exception as error:
        _name_path(error, temporary, path)
        raise
    finally:
        if not path.exists():
            with suppress(OSError):  # nothing was moved away
                old.rename(path)
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _temporary_path(path: Path, suffix: str) -> Path:
    """Return a hidden path in the same folder that no other thread or process uses."""
    return path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}.{suffix}")


_TEMPORARY = re.compile(r"\.(.+?)(?:\.(\d+))?\.(\d+)\.tmp")
_MOVED = re.compile(r"\.(.+)\.(\d+)\.(\d+)\.old")
"""Name, thread and process of a temporary path, and of a folder that was moved away."""


def remove_leftovers(folder: Path, name: str | None = None) -> None:
    """Delete temporary files and folders of killed processes; ``name`` selects one target.

    A folder that was moved away and not replaced is moved back.
    """
    for path in folder.glob(".*"):
        match = _TEMPORARY.fullmatch(path.name) or _MOVED.fullmatch(path.name)
        if match is None or name not in {None, match[1]} or _is_running(int(match[3]), match[2]):
            continue
        if path.suffix == ".old" and not (folder / match[1]).exists():
            path.rename(folder / match[1])
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_running(process: int, thread: str | None) -> bool:
    """Return whether a process runs, or another thread of this one if it has the same number."""
    if process == os.getpid():
        running = {str(other.ident) for other in threading.enumerate()}
        return thread in running - {str(threading.get_ident())}
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_NO_LOCKS = {
    errno.ENOLCK: "no locks available",
    errno.ENOSYS: "locks are not implemented",
    errno.EOPNOTSUPP: "locks are not supported",
    524: "locks are not supported",  # the kernel's ENOTSUPP, which NFS passes on
}


@contextmanager
def locking(path: Path) -> Iterator[None]:
    """Turn the error of a file system without locks into a warning, once for each ``path``.

    Network file systems may be mounted without locks. All other errors are raised.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _warn_of_locks(path, _NO_LOCKS[error.errno])


@cache
def _warn_of_locks(path: Path, problem: str) -> None:
    _log.warning("%s: %s on this file system. Run one command at a time here", path, problem)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create and lock a folder; it is removed if it was new and is empty at the end.

    Raises:
        ConfigError: If another command or another thread has locked it.
    """
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with locking(folder):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system ends it on exit
    except BlockingIOError:
        raise ConfigError(f"{folder}: another command is writing in this folder") from None
    else:
        yield
    finally:
        os.close(descriptor)
        if new:
            with suppress(OSError):  # the folder contains files
                folder.rmdir()


def user_cache() -> Path:
    """Return this project's cache folder, in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noise-of-web"


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, in a stable form (two spaces, UTF-8, a final newline)."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def sha256_of(path: Path) -> str:
    """Return the SHA-256 hash of a file (hexadecimal)."""
    digest = hashlib.sha256()
    with path.open("rb") as file, Progress(path.name, path.stat().st_size, "B") as progress:
        while block := file.read(2**20):
            digest.update(block)
            progress.add(len(block))
    return digest.hexdigest()


def stream_lines(path: Path, missing: str = "no such file") -> Iterator[str]:
    r"""Yield the lines of a UTF-8 text; only ``\n`` and ``\r\n`` end a line.

    Raises:
        FormatError: If the file cannot be read; with the message ``missing`` if there is none.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.removesuffix("\n").removesuffix("\r")
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except (UnicodeDecodeError, OSError) as error:
        raise FormatError(path, f"not readable as UTF-8 text ({error})") from None


def read_lines(path: Path, missing: str = "no such file") -> list[str]:
    """Return all lines of a UTF-8 text, see :func:`stream_lines`."""
    return list(stream_lines(path, missing))


_MAGIC = {
    b"\x1f\x8b": "gzip data; unpack it with gunzip",
    b"PK\x03\x04": "a zip archive or an Excel workbook; unpack it, or save it as CSV",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
}
_JSON = re.compile(r"\s*(\{|\[\s*([\"\[{\]]|$))")
_MARKUP = re.compile(r"\s*<([!?]|/?[a-z][\w:-]*[\s/>])", re.IGNORECASE)


def check_not_binary(path: Path, head: bytes, expected: str) -> None:
    """Raise a FormatError if a file begins like a compressed or binary one."""
    content = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "")
    if not content and head[:1000].count(0) > len(head[:1000]) // 10:
        content = "binary data"
    if content:
        raise FormatError(path, f"expected {expected}, found {content}")


def describe_content(text: str | bytes) -> tuple[int, str]:
    """Return the first line with text, and ``JSON``, ``HTML or XML`` or ``""`` for plain text."""
    head = text if isinstance(text, str) else text.decode("utf-8-sig", "replace")
    content = "JSON" if _JSON.match(head) else "HTML or XML" if _MARKUP.match(head) else ""
    return head[: len(head) - len(head.lstrip())].count("\n") + 1, content


def decode_text(path: Path, content: bytes, expected: str) -> str:
    """Decode a user's text file: UTF-8, with or without a byte order mark.

    Raises:
        FormatError: If it is compressed, binary, JSON, HTML or XML, or not UTF-8.
    """
    check_not_binary(path, content, expected)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x}"
        problem = f"line {line}: {byte} is not UTF-8 text, expected {expected}"
        raise FormatError(path, problem) from None
    line, form = describe_content(text)
    if form:
        raise FormatError(path, f"line {line}: expected {expected}, found {form}")
    return text


def read_json(path: Path, missing: str) -> Any:
    """Read JSON.

    Raises:
        FormatError: If the file cannot be read; with the message ``missing`` if there is none.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except (ValueError, RecursionError, OSError) as error:
        raise FormatError(path, f"not JSON ({error})") from None
