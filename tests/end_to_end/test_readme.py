"""The commands that README and docs show exist, with the options shown there."""

import re
import shlex
import sys
from importlib import import_module

import pytest

from tests.end_to_end.documented import MAINS, PAGES, ROOT, commands

GROUPS = {"admin", "user", "token", "blind", "keys", "simweb", "pinned"}
SHOWN = sorted({command for page in PAGES for command in commands(page)})


@pytest.mark.parametrize("command", SHOWN)
def test_a_documented_command_has_the_options_it_is_shown_with(
    monkeypatch, capsys, command: str
) -> None:
    program, *rest = shlex.split(command)
    group = next((n for n, word in enumerate(rest) if word not in GROUPS), 0)
    monkeypatch.setattr(sys, "argv", [program, *rest[: group + 1], "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        import_module(MAINS[program]).main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for option in (word.split("=")[0] for word in rest if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown), option


def test_the_documentation_shows_commands_of_all_three_programs() -> None:
    assert {command.split()[0] for command in commands(ROOT / "README.md")} == set(MAINS)
    assert len(SHOWN) > 100


def test_no_line_of_prose_is_longer_than_160_characters() -> None:
    """Tables and code excepted."""
    for path in [*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        text = re.sub(r"(?ms)^( *)```.*?^\1```$", "", path.read_text("utf-8"))
        long = [line for line in text.splitlines() if len(line) > 160 and line.lstrip()[0] != "|"]
        assert not long, path


def test_the_makefile_has_the_two_commands() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
