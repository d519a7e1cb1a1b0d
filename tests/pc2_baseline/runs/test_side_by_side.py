"""Tasks in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import closing

from pc2_baseline.runs.side_by_side import Task, peak_memory, side_by_side


def python(code):
    return [sys.executable, "-c", textwrap.dedent(code)]


def tasks(folder, *messages):
    return [Task(f"task {n}", text, folder / f"{n}.log") for n, text in enumerate(messages)]


def gone(process, seconds=10.0):
    """Whether a process ends within some seconds."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def first_line(path, seconds=20.0):
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text().splitlines()[0]
        time.sleep(0.05)
    raise AssertionError(f"{path}: nothing")


def test_each_task_ends_with_its_reason_and_the_others_go_on(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    code = """
        import os, sys
        word = sys.stdin.readline().strip()
        print("told", word)
        if word == "mistake":
            sys.exit("error: lr is 9, expected less")
        if word == "killed":
            os.kill(os.getpid(), 9)
        if word == "crash":
            raise ValueError("no such thing")
    """
    todo = tasks(tmp_path, "fine", "mistake", "crash", "killed", "well")
    lines = []
    ended = list(side_by_side(python(code), todo, [{}], lambda *line: lines.append(line)))
    assert [line for line in lines if line[1].startswith("told ")] == [
        (task.name, f"told {task.message}") for task in todo
    ]
    assert [(done.name, done.running, done.waiting) for done in ended] == [
        (f"task {n}", 0, 4 - n) for n in range(5)
    ]
    fine, mistake, crash, killed, well = (done.failure for done in ended)
    assert (fine, well) == (None, None)
    assert mistake == "lr is 9, expected less"
    assert crash == "ValueError: no such thing"
    assert killed == f"ended by signal 9, perhaps out of memory; {tmp_path / '3.log'}"
    assert (tmp_path / "0.log").read_text() == "told fine\n"


def test_as_many_run_at_once_as_there_are_lanes_each_in_its_own_environment(tmp_path):
    code = """
        import os, pathlib, sys, time
        folder = pathlib.Path(sys.stdin.readline().strip())
        own = folder / os.environ["PLACE"]
        own.touch(exist_ok=False)  # nobody else is there
        if len(list(folder.iterdir())) == 2:
            print("met")
        time.sleep(0.5)
        own.unlink()
    """
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    slots = [{"PLACE": "a"}, {"PLACE": "b"}]
    ended = list(side_by_side(python(code), tasks(tmp_path, *[str(meeting)] * 4), slots))
    assert [done.failure for done in ended] == [None] * 4
    assert any("met" in (tmp_path / f"{n}.log").read_text() for n in range(4))
    assert max(done.running for done in ended) == 1


def test_whoever_stops_looking_leaves_no_process_behind(tmp_path):
    code = """
        import os, pathlib, sys, time
        other = sys.stdin.readline().strip()
        print(os.getpid(), flush=True)
        while not other or not pathlib.Path(other).read_text():
            time.sleep(0.05)
    """
    todo = tasks(tmp_path, str(tmp_path / "1.log"), "")
    with closing(side_by_side(python(code), todo, [{}, {}])) as ended:
        assert next(ended).name == "task 0"
        process = int(first_line(tmp_path / "1.log"))
        os.kill(process, 0)
    assert gone(process, 0.1)


SLEEP = """
    import os, sys, time
    from pc2_baseline.runs.side_by_side import end_with_parent
    end_with_parent()
    print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_a_process_ends_with_the_one_that_started_it_even_if_that_is_killed(tmp_path):
    code = f"""
        import sys
        from pathlib import Path
        from pc2_baseline.runs.side_by_side import Task, side_by_side
        command = [sys.executable, "-c", {textwrap.dedent(SLEEP)!r}]
        list(side_by_side(command, [Task("task", "", Path({str(tmp_path / "log")!r}))], [{{}}]))
    """
    parent = subprocess.Popen(python(code))
    try:
        child = int(first_line(tmp_path / "log"))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert gone(child)


def test_the_memory_of_a_process_is_its_own_not_that_of_who_started_it():
    held = bytearray(400 * 2**20)
    held[::4096] = b"x" * len(held[::4096])
    code = "from pc2_baseline.runs.side_by_side import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 2**20 < int(done.stdout) < peak_memory() - 200 * 2**20
