"""What the three programs share: lazy commands, settings as options, log lines, exit codes."""

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
from typing import Annotated

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from now_builder.cli import main
from now_builder.config import Strict
from now_builder.errors import ConfigError, NowError
from now_builder.program.command_line import Fields, Program, set_up_logging
from now_builder.program.stopping import stoppable

PROGRAMS = {
    "now_builder": "crawl status label ocr train-detector measure-detector detect tokenize "
    "package export publish fetch-now build verify report audit doctor simweb "
    "pinned",
    "leaderboard": "pack score compare verify submit reproduce withdraw "
    "check-store dataset-report export export-site blind",
    "pc2_baseline": "train predict zero-shot rank-pairs evaluate examples make-noise "
    "division table plant",
}
SETTINGS = {
    "crawl": "crawl", "label": "detect", "train-detector": "detect", "detect": "detect",
    "tokenize": "tokenize", "package": "package", "export": "export",
    "publish": "export", "report": "inspect", "audit": "inspect",
    "simweb make": "simweb",
}  # fmt: skip
"""Departments whose settings are options of a command."""

WALK = """
import contextlib, importlib, io, json, os, sys
import typer
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter  # which Typer takes, too
from typer.main import get_command

program = sys.argv[1]
main = importlib.import_module(f"{program}.cli")

def words(command, before=()):
    yield before
    for name in getattr(command, "commands", ()):
        yield from words(command.commands[name], (*before, name))

def modules(line, pipe):
    sys.argv = ["program", *line, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code
    result = {"code": code, "modules": sorted(sys.modules), "text": shown.getvalue()}
    os.write(pipe, json.dumps(result).encode())

for line in words(get_command(main.app)):
    ours, theirs = os.pipe()
    if not os.fork():
        os.close(ours)
        modules(line, theirs)
        os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        print(json.dumps([" ".join(line), json.load(pipe)]))
    os.wait()
"""


class Size(Strict):
    """Settings of a command for tests."""

    width: int = Field(3, ge=1, description="How wide.")
    with_: bool = Field(default=False, description="With it.")
    name: str = Field(description="A name.")


app = Program("sizes", "For tests.")


@app.command("measure")
def _measure(
    thing: Annotated[str, typer.Argument(metavar="THING", help="What is measured.")],
    size: Annotated[Size, Fields(f"{__name__}:Size", {"name": "-n"})],
    force: Annotated[bool, typer.Option("--force", help="Start over.")] = False,  # noqa: FBT002
) -> None:
    """Measure a thing."""
    typer.echo(f"{thing} {size!r} {force}")


@app.command(rich_help_panel="Others")
def plain_one() -> None:
    """Do nothing in particular,
    on two lines.

    Never mentioned in the list.
    """


def helps(program: str) -> dict[str, dict]:
    """Ask each command for its help, each in a process of its own that has loaded nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", WALK, program], capture_output=True, text=True, check=True
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_imports_what_its_command_needs_and_nothing_else(program):
    pages = helps(program)
    assert {word for line in pages for word in line.split()[:1]} == set(PROGRAMS[program].split())
    for line, shown in pages.items():
        assert shown["code"] == 0, line
        assert "Usage: " in shown["text"], line
        modules = set(shown["modules"])
        heavy = {
            "numpy", "pandas", "pyarrow", "h5py", "torch", "sklearn", "matplotlib", "PIL",
            "playwright", "jieba", "transformers", "httpx", "rich",
        }  # fmt: skip
        assert not heavy & modules, line
        loaded = {name for name in modules if name.endswith((".settings", ".config"))}
        expected = set()
        if program == "now_builder" and line in SETTINGS:
            expected = {f"now_builder.{SETTINGS[line]}.settings", "now_builder.config"}
        if line in {"plant", "zero-shot"}:
            expected = {"pc2_baseline.config", "now_builder.config"}
        ours = {name for name in loaded if name.split(".")[0] in PROGRAMS}
        assert ours == expected, line


def test_a_settings_class_becomes_options():
    shown = CliRunner().invoke(app, ["measure", "--help"]).output
    for text in ("--width <int>", "How wide.  [default: 3]", "--with / --no-with", "-n, --name"):
        assert text in shown
    done = CliRunner().invoke(app, ["measure", "it", "-n", "x", "--with", "--width", "5"])
    assert done.output == f"it {Size(width=5, with_=True, name='x')!r} False\n"
    assert CliRunner().invoke(app, ["measure", "it"]).exit_code == 2, "a name is required"


def test_a_setting_out_of_range_is_named_with_its_command():
    done = CliRunner().invoke(app, ["measure", "it", "-n", "x", "--width", "0"])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).startswith("sizes measure: width: ")


@pytest.fixture
def quiet():
    """Remove the log handlers that a test sets up."""
    loggers = [logging.getLogger(name) for name in PROGRAMS]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def test_a_record_of_ours_is_a_line_on_stderr(quiet, capsys, monkeypatch):
    for level, lines in (("", 2), ("debug", 3), ("WARNING", 1)):
        monkeypatch.setenv("NOW_LOG", level or "info")
        set_up_logging()
        set_up_logging()
        logger = logging.getLogger("leaderboard.anything")
        logger.warning("%d of %d", 1, 2)
        logger.info("seen")
        logger.debug("more")
        logging.getLogger("somebody.else").info("not ours")
        assert capsys.readouterr().err.splitlines() == ["warning: 1 of 2", "seen", "more"][:lines]
    monkeypatch.setenv("NOW_LOG", "loud")
    with pytest.raises(NowError, match="NOW_LOG=loud: expected debug, info"):
        set_up_logging()


def test_a_path_that_cannot_be_written_is_one_line(quiet, monkeypatch, capsys, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(sys, "argv", ["now-builder", "simweb", "make", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert said == [f"error: {file}: cannot be read or written (File exists)"]


STOPS = {
    "again": ("", "no file is left half-written; run the same command again"),
    "kept": ("kept='epochs are kept'", "epochs are kept; run the same command again to resume"),
}


def stopped(program, body, about, number, *arguments):
    """Run the program's entry point with an additional command and send it a signal."""
    code = textwrap.dedent(f"""
        import asyncio, os, signal, time
        from now_builder.errors import Stopped
        from {program}.cli import app, main

        # A shell that starts the tests in the background ignores SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        @app.command("wait"{about and ", " + about})
        def wait(force: bool = False) -> None:
            {body}

        main()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code, "wait", *arguments], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "waiting\n"
        os.killpg(process.pid, number)
        _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


WAIT = "print('waiting', flush=True); time.sleep(60)"


@pytest.mark.parametrize(
    ("program", "kind", "number"),
    [("now_builder", "again", signal.SIGINT), ("pc2_baseline", "kept", signal.SIGTERM)],
)
def test_a_signal_ends_in_one_line_that_says_what_is_kept(program, kind, number):
    about, line = STOPS[kind]
    assert stopped(program, WAIT, about, number) == (128 + number, f"stopped: {line}\n")


def test_a_forked_worker_ends_by_sigterm_without_a_word():
    body = (
        "r, w = os.pipe(); child = os.fork(); child or (os.write(w, b'.'), time.sleep(60)); "
        "os.read(r, 1); os.kill(child, signal.SIGTERM); "
        f"assert os.waitpid(child, 0)[1] == signal.SIGTERM; {WAIT}"
    )
    code, line = stopped("leaderboard", body, "", signal.SIGINT)
    assert (code, line) == (130, f"stopped: {STOPS['again'][1]}\n")


def test_a_full_disk_is_one_line_and_other_errors_stay_as_they_are():
    def fail(problem):
        raise problem

    message = r"No space left.*; epochs are kept; free some space and run"
    for problem in (
        OSError(errno.ENOSPC, "No space left", "x.h5"),
        ValueError("No space left on device"),
        OSError(errno.EDQUOT, "No space left for this user"),
    ):
        with pytest.raises(NowError, match=message):
            stoppable(fail, "epochs are kept")(problem)
    with pytest.raises(PermissionError):
        stoppable(fail, None)(OSError(errno.EACCES, "no"))
