"""The command line: what a user meets before any work is done."""

import os
import sys
from importlib import import_module
from pathlib import Path

import pytest

import now_builder
from now_builder.cli import main


@pytest.fixture
def now(monkeypatch, capsys):
    """The command, in this process: gives exit code, stdout and stderr."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["now-builder", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return command


def test_each_program_prints_the_version(monkeypatch, capsys) -> None:
    for program in ("now_builder", "pc2_baseline", "leaderboard"):
        monkeypatch.setattr(sys, "argv", [program, "--version"])
        with pytest.raises(SystemExit) as ended:
            import_module(f"{program}.cli").main()
        assert (ended.value.code, capsys.readouterr().out) == (0, f"{now_builder.__version__}\n")


def test_a_missing_url_list_is_one_line_and_exit_code_1(now, tmp_path: Path) -> None:
    code, text, problem = now("crawl", tmp_path / "none.txt", tmp_path / "captures")
    assert (code, text) == (1, "")
    assert "none.txt" in problem
    assert len(problem.strip().splitlines()) == 1


def test_an_unknown_option_is_a_usage_error(now) -> None:
    code, text, problem = now("crawl", "a", "b", "--nonsense")
    assert (code, text) == (2, "")
    assert "No such option: --nonsense" in problem
    assert "Try 'now-builder crawl -h' for help." in problem


@pytest.mark.skipif("NOW_TEST_WHEEL" not in os.environ, reason="only where the wheel is tested")
def test_the_wheel_is_what_is_tested() -> None:
    assert "site-packages" in now_builder.__file__
