"""Results of a check as JSON and Markdown, both rewritten after every figure."""

import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from now_builder.formats.io import write_json, write_text

FORMAT = "now-gpu-check/1"
TITLES = {
    "a": "A small step against float64 on the CPU",
    "b": "A step of PC² at NoW's size",
    "d": "Epochs of PC² in bf16 with features on the device",
    "f": "Tests on the device, as many as the time is for",
}


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of a figure.

    Attributes:
        at_least: Whether ``bound`` is a minimum; otherwise it is a maximum.
    """

    bound: float
    at_least: bool = True

    def __str__(self) -> str:
        """Return the bound with its sign."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def is_met(self, value: float) -> bool:
        """Return whether a value is within the bound."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number and its origin.

    Attributes:
        value: ``None`` if it could not be measured; ``note`` gives the reason.
        command: Command that repeats it.
        goal: Goal in words; ``None`` without one.
        met: Whether the goal is met.
    """

    name: str
    value: float | None
    unit: str
    command: str
    goal: str | None = None
    met: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts and numbers, such as a profile by kernel."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


class Report:
    """Both files of a check; results of earlier parts, from other processes, are kept.

    Args:
        folder: Folder of ``gpu-check.json`` and ``gpu-check.md``; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        self.json_path, self.markdown_path = folder / "gpu-check.json", folder / "gpu-check.md"
        folder.mkdir(parents=True, exist_ok=True)
        self.parts: dict[str, dict[str, Any]] = {}
        if self.json_path.exists():
            self.parts = read_parts(self.json_path)

    def begin(self, part: str, command: str, environment: dict[str, str]) -> None:
        """Reset the results of a part."""
        self.parts[part] = {
            "title": TITLES[part],
            "command": command,
            "status": "cut off",
            "reason": "it did not finish",
            "begun": _now(),
            "seconds": None,
            "environment": environment,
            "figures": [],
            "tables": [],
        }
        self.write()

    def add(self, part: str, result: Figure | Table) -> None:
        """Add a figure or a table to a part."""
        section = "figures" if isinstance(result, Figure) else "tables"
        self.parts[part][section].append(asdict(result))
        self.write()

    def end(self, part: str, status: str, reason: str, seconds: float) -> None:
        """Record how a part ended; its results are kept."""
        if part not in self.parts:
            self.begin(part, "", {})
        self.parts[part].update(status=status, reason=reason, seconds=round(seconds, 1))
        self.write()

    def write(self) -> None:
        """Write both files atomically."""
        self.parts = dict(sorted(self.parts.items()))
        tree = {"format": FORMAT, "written": _now(), "parts": self.parts}
        write_json(self.json_path, tree)
        write_text(self.markdown_path, to_markdown(tree))


def reason_of(error: Exception) -> str:
    """Describe an error and where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(where.filename).name}:{where.lineno}"
    return f"{type(error).__name__} at {place}: {str(error)[:500]}"


def read_parts(path: Path) -> dict[str, dict[str, Any]]:
    """Read the parts of a check's JSON.

    Raises:
        ValueError: If the file is of another format.
    """
    tree = json.loads(path.read_text(encoding="utf-8"))
    if tree.get("format") != FORMAT:
        raise ValueError(f"{path}: format {tree.get('format')!r}, expected {FORMAT!r}")
    parts: dict[str, dict[str, Any]] = tree["parts"]
    return parts


def to_markdown(tree: dict[str, Any]) -> str:
    """Format a check as Markdown tables."""
    lines = ["# GPU check", "", f"Written {tree['written']}.", ""]
    lines += _rows(
        ("part", "", "status", "seconds", "on"),
        [
            (number, part["title"], _status(part), part["seconds"], _where(part))
            for number, part in tree["parts"].items()
        ],
    )
    for number, part in tree["parts"].items():
        lines += [f"## {number} · {part['title']}", "", f"`{part['command']}`", ""]
        lines += [f"- {name}: {value}" for name, value in part["environment"].items()] + [""]
        columns = ("figure", "value", "unit", "goal", "met", "note")
        figures = [tuple(figure[name] for name in ("name", *columns[1:]))
                   for figure in part["figures"]]  # fmt: skip
        lines += _rows(columns, figures)
        for table in part["tables"]:
            lines += [f"### {table['title']}", "", *_rows(table["columns"], table["rows"])]
    return "\n".join(lines)


def _rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return [*lines, *(f"| {' | '.join(map(_cell, row))} |" for row in rows), ""]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    text = f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1000 else str(value)
    if isinstance(value, float) and abs(value) >= 1000:
        text = f"{value:,.0f}"
    return text.replace("|", "\\|").replace("\n", " ")


def _status(part: dict[str, Any]) -> str:
    return f"**{part['status']}**: {part['reason']}" if part["reason"] else str(part["status"])


def _where(part: dict[str, Any]) -> str:
    return str(part["environment"].get("device", ""))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
