"""The public names: an example that runs, and nothing imported before it is used."""

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

import now_builder
from now_builder.errors import FormatError


def test_the_example_of_the_documentation_runs(small_release: Path) -> None:
    names = {"folder": small_release}
    found = doctest.testmod(now_builder, extraglobs=names, raise_on_error=True)
    assert found.attempted > 5


def test_every_public_name_is_there_and_others_are_not() -> None:
    assert all(getattr(now_builder, name) for name in now_builder.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        now_builder.nothing  # noqa: B018 - looked up


def test_importing_the_package_imports_nothing_of_it() -> None:
    command = [sys.executable, "-c", "import sys, now_builder; print(*sys.modules)"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if name.startswith(("now_builder.", "numpy", "pyarrow"))]


def test_a_release_stays_where_it_was_opened(small_release: Path, monkeypatch) -> None:
    monkeypatch.chdir(small_release)
    opened = now_builder.open_release(".")
    monkeypatch.chdir("/")
    assert opened.captions("dev").keys


def test_a_folder_without_a_release_is_refused(tmp_path: Path, small_release: Path) -> None:
    with pytest.raises(FormatError, match="no folder"):
        now_builder.open_release(tmp_path)
    with pytest.raises(FormatError, match="expected one of train, dev, test"):
        now_builder.open_release(small_release).captions("val")
