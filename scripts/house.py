"""Count lines, modules, commands and settings, and compare them with the budget."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

SOURCE = ("now_builder", "pc2_baseline", "leaderboard")
TOOLS = ("benchmarks", "recipes", "scripts")
MOST_IN_A_FOLDER = 20


def tracked(*folders: str) -> list[Path]:
    """List the Python files of folders that git tracks, or that are new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    return [path for name in names if name.endswith(".py") and (path := Path(name)).exists()]


def lines(*folders: str) -> int:
    """Count the lines of the Python files of folders."""
    return sum(len(path.read_bytes().splitlines()) for path in tracked(*folders))


def settings_fields() -> int:
    """Count the annotated fields of all classes that have Settings in their names."""
    nodes = (node for path in tracked(*SOURCE) for node in ast.walk(ast.parse(path.read_bytes())))
    classes = (node for node in nodes if isinstance(node, ast.ClassDef))
    fields = (item for one in classes if "Settings" in one.name for item in one.body)
    annotated = (item.annotation for item in fields if isinstance(item, ast.AnnAssign))
    return sum("ClassVar" not in ast.unparse(annotation) for annotation in annotated)


def commands() -> int:
    """Count the commands of the three programs that have no subcommands."""
    return sum(1 for n in SOURCE for _ in _leaves(get_command(import_module(f"{n}.cli").app)))


def _leaves(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", {})
    for one in inner.values():
        yield from _leaves(one)
    if not inner:
        yield command


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
    }
    for name, count in counts.items():
        print(f"{name:9} {count:6,} of {budget[name]:6,}{'  over' * (count > budget[name])}")  # noqa: T201
    inside = [path.parent for path in tracked(*SOURCE) if path.name != "__init__.py"]
    crowded = {one for one in inside if inside.count(one) > MOST_IN_A_FOLDER}
    over = [name for name, count in counts.items() if count > budget[name]]
    if over := [*over, *map(str, sorted(crowded))]:
        sys.exit(f"pyproject.toml: over budget: {', '.join(over)}")


if __name__ == "__main__":
    main()
