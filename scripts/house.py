"""Count lines, modules, commands, settings and odd phrases, and compare them with the budget."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

SOURCE = ("now_builder", "pc2_baseline", "leaderboard")
PROSE = ("docs", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "DATASET_CARD.md")
TOOLS = ("benchmarks", "recipes", "scripts")
MOST_IN_A_FOLDER = 20


def tracked(*folders: str, ends: tuple[str, ...] = (".py",)) -> list[Path]:
    """List the files of folders, by default Python, that git tracks, or that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.check_output(command, text=True).split("\n")
    return [path for name in names if name.endswith(ends) and (path := Path(name)).exists()]


def lines(*folders: str) -> int:
    """Count the lines of the Python files of folders."""
    return sum(len(path.read_bytes().splitlines()) for path in tracked(*folders))


def phrases(patterns: list[str]) -> int:
    """Count the phrases in source and documentation that a reader would have to translate."""
    files = tracked(*SOURCE, *PROSE, ends=(".py", ".md", ".j2", ".toml", ".ipynb"))
    return sum(len(re.findall("|".join(patterns), path.read_text("utf-8"))) for path in files)


def settings_fields() -> int:
    """Count the annotated fields of all classes that have Settings in their names."""
    nodes = (node for path in tracked(*SOURCE) for node in ast.walk(ast.parse(path.read_bytes())))
    classes = (n for n in nodes if isinstance(n, ast.ClassDef) and "Settings" in n.name)
    fields = (item for n in classes for item in n.body if isinstance(item, ast.AnnAssign))
    return sum("ClassVar" not in ast.unparse(item.annotation) for item in fields)


def commands() -> int:
    """Count the commands of the three programs that have no subcommands."""
    return sum(1 for n in SOURCE for _ in _leaves(get_command(import_module(f"{n}.cli").app)))


def _leaves(command: Any) -> Iterator[Any]:
    if not hasattr(command, "commands"):
        yield command
    for one in getattr(command, "commands", {}).values():
        yield from _leaves(one)


def main() -> None:
    """Print each count next to its budget; exit with 1 if one is over."""
    budget = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["house"]
    counts = {
        "source": lines(*SOURCE),
        "tests": lines("tests"),
        "tools": lines(*TOOLS),
        "modules": len(tracked(*SOURCE)),
        "commands": commands(),
        "settings": settings_fields(),
        "phrases": phrases(budget["odd"]),
    }
    for name, count in counts.items():
        print(f"{name:9} {count:6,} of {budget[name]:6,}{'  over' * (count > budget[name])}")  # noqa: T201
    inside = [str(path.parent) for path in tracked(*SOURCE) if path.name != "__init__.py"]
    crowded = {folder for folder in inside if inside.count(folder) > MOST_IN_A_FOLDER}
    if over := [name for name in counts if counts[name] > budget[name]] + sorted(crowded):
        sys.exit(f"pyproject.toml: over budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
