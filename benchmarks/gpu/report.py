"""What a check has found so far, as JSON and as a Markdown table, both rewritten at every step."""

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
    """A bound that a figure is to keep.

    Attributes:
        at_least: Whether the figure is to be no less than ``bound``, or else no more.
    """

    bound: float
    at_least: bool = True

    def __str__(self) -> str:
        """Write it with its sign."""
        return f"{'≥' if self.at_least else '≤'} {self.bound:g}"

    def is_met(self, value: float) -> bool:
        """Tell whether a value keeps it."""
        return value >= self.bound if self.at_least else value <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, and how it was come by.

    Attributes:
        value: ``None`` where it could not be had; ``note`` then says why.
        command: What repeats it.
        goal: In words; ``None`` without one.
        met: Whether the goal is kept.
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
    """Rows of words and numbers, such as a profile by kernel."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


class Report:
    """Both files of a check; parts run before, in other processes, stay in them.

    Args:
        folder: Of ``gpu-check.json`` and ``gpu-check.md``; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.json_path, self.markdown_path = folder / "gpu-check.json", folder / "gpu-check.md"
        folder.mkdir(parents=True, exist_ok=True)
        self.parts: dict[str, dict[str, Any]] = {}
        if self.json_path.exists():
            self.parts = read_parts(self.json_path)

    def begin(self, part: str, command: str, environment: dict[str, str]) -> None:
        """Start a part over."""
        self.parts[part] = {
            "title": TITLES[part],
            "command": command,
            "status": "cut off",
            "reason": "it never came to its end",
            "begun": _now(),
            "seconds": None,
            "environment": environment,
            "figures": [],
            "tables": [],
        }
        self.write()

    def add(self, part: str, found: Figure | Table) -> None:
        """Put a figure or a table under its part."""
        kind = "figures" if isinstance(found, Figure) else "tables"
        self.parts[part][kind].append(asdict(found))
        self.write()

    def end(self, part: str, status: str, reason: str, seconds: float) -> None:
        """Say what became of a part; what it has found stays."""
        if part not in self.parts:
            self.begin(part, "", {})
        self.parts[part].update(status=status, reason=reason, seconds=round(seconds, 1))
        self.write()

    def write(self) -> None:
        """Write both files, each by rename."""
        self.parts = dict(sorted(self.parts.items()))
        tree = {"format": FORMAT, "written": _now(), "parts": self.parts}
        write_json(self.json_path, tree)
        write_text(self.markdown_path, to_markdown(tree))


def reason_of(error: Exception) -> str:
    """Say what an error is and where it was raised."""
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
    """Lay a check out as tables."""
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
