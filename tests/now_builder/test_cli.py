"""The command line: what a user meets before any work is done."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import now_builder

VERBS = [
    "crawl", "label", "train-detector", "measure-detector", "detect", "tokenize", "package",
    "build", "verify", "report", "audit", "audit-stats", "doctor",
]  # fmt: skip


def now(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from now_builder.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
    )


def test_help_lists_every_verb_of_the_road() -> None:
    shown = now("--help").stdout
    assert all(verb in shown for verb in VERBS)


def test_help_loads_neither_torch_nor_a_browser_driver() -> None:
    code = "import sys, now_builder.cli; print({'torch', 'playwright', 'jieba'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_teaches_its_options(verb: str) -> None:
    done = now(verb, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_a_missing_url_list_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = now("crawl", tmp_path / "none.txt", tmp_path / "captures")
    assert done.returncode == 1
    assert "none.txt" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_setting_out_of_range_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "urls.txt").write_text("http://example.org/\n", encoding="utf-8")
    done = now("crawl", tmp_path / "urls.txt", tmp_path / "out", "--page-timeout-s", "-1")
    assert done.returncode == 1
    assert "page_timeout_s" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_is_a_usage_error() -> None:
    assert now("crawl", "a", "b", "--nonsense").returncode == 2


def test_detect_without_weights_is_refused(tmp_path: Path) -> None:
    done = now("detect", tmp_path, tmp_path / "features.h5")
    assert done.returncode == 1
    assert "weights" in done.stderr


@pytest.mark.skipif("NOW_TEST_WHEEL" not in os.environ, reason="only where the wheel is tested")
def test_the_wheel_is_what_is_tested() -> None:
    assert "site-packages" in now_builder.__file__
