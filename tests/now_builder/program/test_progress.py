"""Progress: a bar on a terminal once it takes long, elsewhere a line now and then."""

import os
import pty
import re
import subprocess
import sys
import termios

import pytest

from now_builder.program.progress import Progress, track_progress

SLOW = """
import sys, time
from now_builder.program import progress
progress.DELAY_S = float(sys.argv[1])
for _ in progress.track_progress(range(4), "work", "step"):
    time.sleep(0.2)
"""


def test_on_a_terminal_a_bar_appears_once_it_takes_long() -> None:
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    subprocess.run([sys.executable, "-c", SLOW, "0.1"], stderr=end, check=True)
    output = os.read(terminal, 2**16).decode()
    os.close(end)
    os.close(terminal)
    assert re.search(r"work: +75%.* 3/4 ", output)


def test_elsewhere_a_line_tells_the_rate_and_what_is_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(track_progress("abc", "work", "step")) == ["a", "b", "c"]
    assert capsys.readouterr().err == "", "it took no five seconds"
    monkeypatch.setattr("now_builder.program.progress.FIRST_S", 0.0)
    assert list(track_progress(iter("abc"), "work", "step", total=3)) == ["a", "b", "c"]
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"work: 1 of 3 steps, [\d.]+ steps/s, [\d:]+ left", first)
    assert list(track_progress("ab", "work", "batch")) == ["a", "b"]
    first, *_ = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"work: 1 of 2 batches, [\d.]+ batches/s, [\d:]+ left", first)
    with Progress("large.h5", 4_000_000, "B") as progress:
        progress.add(1_500_000)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"large\.h5: 1\.50MB of 4\.00MB, \S+B/s, [\d:]+ left", line)
