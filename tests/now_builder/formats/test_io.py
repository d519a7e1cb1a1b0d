"""Written last means complete: what is half-written is never seen, and is cleared away."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from now_builder.formats.io import (
    remove_leftovers,
    replacing,
    replacing_folder,
    sha256_of,
    write_json,
    write_text,
)


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half", encoding="utf-8")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_who_may_read_a_file_is_the_umasks_to_say_whatever_wrote_it(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    with replacing(tmp_path / "private") as temporary:
        temporary.touch(mode=0o600)
    assert (tmp_path / "private").stat().st_mode == plain.stat().st_mode


def test_a_secret_is_its_owners_alone_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []

    def write(path: Path, text: str, **_: object) -> None:
        modes.append(path.stat().st_mode & 0o777)

    monkeypatch.setattr(Path, "write_text", write)
    write_text(tmp_path / "secret", "x", mode=0o600)
    assert [*modes, (tmp_path / "secret").stat().st_mode & 0o777] == [0o600, 0o600]


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    for text in ("one", "two"):
        with replacing_folder(folder) as temporary:
            (temporary / f"{text}.txt").write_text(text, encoding="utf-8")
    assert [path.name for path in folder.iterdir()] == ["two.txt"]
    assert list(tmp_path.iterdir()) == [folder]


def test_leftovers_of_dead_processes_go_and_those_of_living_stay(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        kept = [f".a.txt.{living.pid}.tmp", ".hidden.tmp", "b.txt", f".c.{living.pid}"]
        gone = [f".a.txt.{dead.pid}.tmp", f".b.{os.getpid()}.tmp"]
        for name in kept + gone:
            (tmp_path / name).write_text("x", encoding="utf-8")
        (tmp_path / f".folder.{dead.pid}.tmp").mkdir()
        (tmp_path / f".folder.{dead.pid}.tmp" / "inside").write_text("x", encoding="utf-8")
        remove_leftovers(tmp_path)
        living.kill()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_json_is_stable_and_refuses_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"网": 1})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "网": 1\n}\n'.encode()
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", float("nan"))
    assert len(sha256_of(tmp_path / "a.json")) == 64
