"""Read text and JSON with clear errors; write files whole, by rename, or not at all."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.progress import Progress


@contextmanager
def replacing(path: Path, *, durable: bool = True, mode: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``.

    The name survives a power cut only if it is ``durable``; what is in the file always does. Who
    may read it is for ``mode`` or else the process's ``umask`` to say, whatever wrote it:
    safetensors writes for its owner alone.
    """
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
    finally:
        temporary.unlink(missing_ok=True)


@cache
def _plain_mode() -> int:
    """Return the permissions of a new file; a ``umask`` can be read only by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return 0o666 & ~umask


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a fresh temporary folder beside ``path``; on success it takes the place of ``path``.

    Between the two renames of a replacement ``path`` does not exist for an instant; the old folder
    is removed only after the new one stands.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(path, "tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    old = _beside(path, "old")
    try:
        yield temporary
        if path.exists():
            path.rename(old)
        temporary.rename(path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _beside(path: Path, ending: str) -> Path:
    """Name a file that no other thread or process uses."""
    return path.with_name(f".{path.name}.{threading.get_ident()}.{os.getpid()}.{ending}")


def remove_leftovers(folder: Path) -> None:
    """Drop what a killed process left half-written in ``folder``: its own temporary files."""
    for path in folder.glob(".*.tmp"):
        process = path.name.split(".")[-2]
        if process.isdigit() and not _alive(int(process)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return process != os.getpid()


def sync_folder(folder: Path) -> None:
    """Make a rename inside ``folder`` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def user_cache() -> Path:
    """Return this project's folder in the user's cache, which ``XDG_CACHE_HOME`` moves."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "noise-of-web"


def write_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Write UTF-8 text atomically, with these permissions or those of the ``umask``."""
    with replacing(path, mode=mode) as temporary:
        if mode is not None:
            temporary.touch(mode, exist_ok=False)
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
