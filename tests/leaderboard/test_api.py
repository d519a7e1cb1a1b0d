"""The public functions: the example works, and importing the package is light."""

import doctest
import subprocess
import sys

import pytest

import leaderboard


def test_the_example_works(release, tmp_path):
    names = {"release": str(release), "folder": tmp_path}  # as text, paths are taken as well
    (example,) = doctest.DocTestFinder(recurse=False).find(leaderboard, extraglobs=names)
    found = doctest.DocTestRunner().run(example)
    assert found.attempted > 7
    assert found.failed == 0


def test_every_public_name_is_there():
    assert all(callable(getattr(leaderboard, name)) for name in leaderboard.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        leaderboard.other  # noqa: B018 - looked up for its error


def test_importing_it_imports_nothing_heavy():
    code = "import sys, leaderboard; print({'numpy', 'pydantic', 'typer'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
