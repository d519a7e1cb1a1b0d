"""The commands of the README and of docs/commands.md exist, with the options shown there."""

import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
MAINS = {
    "now-builder": "now_builder.cli",
    "pc2-baseline": "pc2_baseline.cli",
    "now-leaderboard": "leaderboard.cli",
}


def commands() -> list[str]:
    pages = (README, README.parent / "docs" / "commands.md")
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages).replace("\n--", " --")
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`]*)`", text)
    return [
        command
        for command in [*lines, *(" ".join(span.split()) for span in spans)]
        if command.split(" ")[0] in MAINS and len(command.split()) > 1
    ]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_a_command_of_the_readme_has_the_options_it_is_shown_with(
    monkeypatch, capsys, command: str
) -> None:
    program, verb, *rest = shlex.split(command)
    monkeypatch.setattr(sys, "argv", [program, verb, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        import_module(MAINS[program]).main()
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    for option in (word.split("=")[0] for word in rest if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", shown), option


def test_the_readme_shows_commands_of_all_three_programs() -> None:
    assert {command.split()[0] for command in commands()} == set(MAINS)


def test_the_makefile_has_the_two_commands() -> None:
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert {"demo", "test"} <= set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
