"""Files and folders are written completely or not at all; leftovers are removed."""

import errno
import fcntl
import os
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import (
    atomic_folder,
    atomic_write,
    lock_folder,
    locking,
    remove_leftovers,
    write_text,
)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


WRITERS = (
    lambda path: path.write_bytes(bytes(2**18)),
    lambda path: pq.write_table(pa.table({"a": np.random.default_rng(0).random(2**16)}), path),
    lambda path: np.ones(2**16).tofile(path),
    lambda path: safetensors.numpy.save_file({"a": np.ones(2**16)}, path),
    lambda path: torch.save({"a": torch.ones(2**18)}, path),
)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_names_the_file_whatever_wrote_it(tmp_path: Path, write) -> None:
    """Some libraries name their temporary file or none, and some say the number in words."""
    path = tmp_path / "a"
    with (
        pytest.raises(OSError, match=r"too large|No space") as caught,
        atomic_write(path) as temporary,
    ):
        write(temporary)
    assert caught.value.filename == str(path)
    assert caught.value.errno in {errno.EFBIG, errno.ENOSPC}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "error",
    [ConnectionResetError(errno.ECONNRESET, "reset"), ssl.SSLError(1, "certificate"),
     TimeoutError("timed out"), OSError("other"), RuntimeError("other"),
     PermissionError(errno.EACCES, "denied", "/elsewhere")],
)  # fmt: skip
def test_errors_of_other_things_than_the_disk_stay_as_they_are(tmp_path: Path, error) -> None:
    with pytest.raises(type(error)) as caught, atomic_write(tmp_path / "a"):
        raise error
    assert caught.value is error


@pytest.mark.usefixtures("no_locks")
def test_without_locks_there_is_one_warning(tmp_path: Path, caplog) -> None:
    for name in ("a", "a", "b"):
        with locking(tmp_path / name):
            fcntl.flock(0, fcntl.LOCK_EX)
    assert [record.getMessage().split(": ")[0] for record in caplog.records] == [
        str(tmp_path / "a"), str(tmp_path / "b"),
    ]  # fmt: skip
    assert "no locks available on this file system" in caplog.text
    with locking(tmp_path / "nfs"):
        raise OSError(524, "Unknown error 524")
    assert "nfs: locks are not supported on this file system" in caplog.text
    with pytest.raises(BlockingIOError), locking(tmp_path):
        raise BlockingIOError(errno.EAGAIN, "held")


def test_files_have_the_permissions_of_the_umask(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with atomic_write(tmp_path / "private") as temporary:
        temporary.touch(mode=0o600)
    assert (tmp_path / "private").stat().st_mode == plain.stat().st_mode


def test_a_file_never_takes_the_place_of_a_folder_or_a_pipe(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    for taken in (".", "there", "/"):
        with pytest.raises(FormatError, match=f"^{taken}: a folder, expected a file"):
            write_text(Path(taken), "new")
    os.mkfifo(tmp_path / "out")
    with pytest.raises(FormatError, match="out: a device or pipe, expected a file to write"):
        write_text(tmp_path / "out", "new")
    assert (tmp_path / "out").is_fifo()
    with pytest.raises(FormatError, match="without a name"), atomic_folder(Path()):
        pass
    assert len(list(tmp_path.iterdir())) == 2


def test_one_command_writes_in_a_folder_and_a_refused_one_leaves_none(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    refused = pytest.raises(ConfigError, match="folder: another command is writing in this folder")
    with lock_folder(folder):
        with refused, lock_folder(folder):
            pass
        assert folder.is_dir()
    assert not folder.exists()


def test_a_folder_is_replaced_as_a_whole_and_a_link_to_one_stays(tmp_path: Path) -> None:
    folder, link = tmp_path / "disk" / "site", tmp_path / "site"
    link.symlink_to(folder)
    for text in ("one", "two"):
        with atomic_folder(link) as temporary:
            (temporary / f"{text}.txt").write_text(text, encoding="utf-8")
    assert link.is_symlink()
    assert [path.name for path in folder.iterdir()] == ["two.txt"]
    assert {path.name for path in (*tmp_path.iterdir(), *folder.parent.iterdir())} == {
        "disk",
        "site",
    }


def test_a_folder_stays_if_its_replacement_stops_between_the_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "site", Path.rename
    folder.mkdir()

    def stop(path: Path, target: Path) -> None:
        if path.suffix == ".tmp":
            raise KeyboardInterrupt
        rename(path, target)

    monkeypatch.setattr(Path, "rename", stop)
    with pytest.raises(KeyboardInterrupt), atomic_folder(folder):
        pass
    assert list(tmp_path.iterdir()) == [folder]


def _write_much(folder: Path) -> None:
    (folder / "a").write_bytes(bytes(2**18))


def _write_inside(folder: Path) -> None:
    (folder / "none" / "a").write_text("x", encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "write", "named"),
    [("site", _write_much, "site"), ("site", _write_inside, "site/none/a"),
     ("x" * 240, _write_much, "x" * 240)],
)  # fmt: skip
@pytest.mark.usefixtures("full_disk")
def test_an_error_of_the_disk_names_the_folder_that_was_asked_for(
    tmp_path: Path, name: str, write, named: str
) -> None:
    with (
        pytest.raises(OSError, match=r"too l|No such") as caught,
        atomic_folder(tmp_path / name) as folder,
    ):
        write(folder)
    assert caught.value.filename == str(tmp_path / named)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_dead_processes_go_and_those_of_living_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    ended = threading.Event()
    thread, own = threading.Thread(target=ended.wait, daemon=True), threading.get_ident()
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        kept = [f".a.txt.{living.pid}.tmp", ".hidden.tmp", "b.txt", f".c.{living.pid}"]
        kept.append(f".a.{thread.ident}.{os.getpid()}.tmp")
        gone = [f".a.txt.{dead.pid}.tmp", f".b.{os.getpid()}.tmp", f".c.{own}.{os.getpid()}.tmp"]
        for name in kept + gone:
            (tmp_path / name).write_text("x", encoding="utf-8")
        (tmp_path / f".folder.{dead.pid}.tmp").mkdir()
        (tmp_path / f".folder.{dead.pid}.tmp" / "inside").write_text("x", encoding="utf-8")
        for name in ("site", "b.txt"):  # the one was moved away, the other replaced
            (tmp_path / f".{name}.1.{dead.pid}.old").mkdir()
        remove_leftovers(tmp_path, "site")
        assert all((tmp_path / name).exists() for name in gone), "of another name"
        remove_leftovers(tmp_path)
        living.kill()
    ended.set()
    thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*kept, "site"])
