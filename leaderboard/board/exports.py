"""Exports of a board as CSV, JSON, Markdown and LaTeX; all text is untrusted."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

import pandas as pd
import regex
from jinja2 import Environment

from leaderboard.board.reported import read_sources, short_name
from leaderboard.board.tables import COLUMNS
from leaderboard.metrics import RECALLS
from now_builder.formats.benchmarks import BOARD_FACTS
from now_builder.program.html import template_environment

TITLES: Mapping[str, str] = {
    name: ", ".join(filter(None, (facts.title, facts.protocol)))
    for name, facts in BOARD_FACTS.items()
}
EXPORTED = list(COLUMNS)[: list(COLUMNS).index("kind")]

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?")
_FORMULA = "=+\\-@＝＋－＠"
# A formula may also begin after characters that end a cell in other programs and countries.
_FORMULA_START = re.compile(rf"(^|[;,\"]\s*)(?=[{_FORMULA}])")
_MARKDOWN = re.compile(r"[\\`*_{}\[\]<>()#|!~$&@^]|:(?=\S)|(?<=www)\.", re.IGNORECASE)
_TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # After the end of a row, a bracket would be an argument.
    "[": "{[}",
    "]": "{]}",
} | {mark: f"\\{mark}" for mark in "$&#%_"}
# Characters that every engine sets in every font encoding; the rest goes through \nowchar.
_TEX_PLAIN = frozenset("ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÑÒÓÔÕÖØÙÚÛÜÝàáâãäåæçèéêëìíîïñòóôõöøùúûüýÿß²³¹×±°–—‘’“”")
_HIDDEN = regex.compile(r"[\p{Cc}\p{Cs}\p{Zl}\p{Zp}\p{Bidi_Control}]|[\uFFFE\uFFFF]|\p{Cn}")

Row = Mapping[str, Any]


def rows_of(board: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a board as plain values, with None for a missing one."""
    rows = board.astype(object).where(board.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def to_csv(board: pd.DataFrame) -> str:
    """Write a table for spreadsheets: numbers as numbers, no text that would run as a formula."""
    table = board.loc[board["evidence"] != "reference", EXPORTED].copy()
    table["authors"], table["notes"] = (
        [joint.join(values) or None for values in table[name]]
        for name, joint in (("authors", " and "), ("notes", " "))
    )
    text = [name for name in EXPORTED if COLUMNS[name] == "object"]
    table[text] = table[text].map(lambda value: _cell(value) if isinstance(value, str) else value)
    return table.to_csv(index=False, lineterminator="\n")


def to_json(board: pd.DataFrame) -> str:
    """Write the rows as JSON with their text unchanged."""
    rows = rows_of(board.loc[board["evidence"] != "reference", EXPORTED])
    for row in rows:
        source = read_sources().get(row["source"] or "")
        row["source"] = source.model_dump(mode="json") if source else None
    return json.dumps({"rows": rows}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def to_markdown(board: pd.DataFrame) -> str:
    """Write a table of proof and one of claims for each board and noise, footnotes below."""
    return _templates().get_template("board.md.j2").render(tables=_tables(board))


def to_latex(board: pd.DataFrame) -> str:
    """Write booktabs tables of proof and of claims by board and noise; any text is escaped."""
    return _templates().get_template("board.tex.j2").render(tables=_tables(board))


FORMATS: Mapping[str, Callable[[pd.DataFrame], str]] = {
    "csv": to_csv,
    "json": to_json,
    "md": to_markdown,
    "tex": to_latex,
}


@cache
def _templates() -> Environment:
    environment = template_environment("leaderboard.board")
    environment.filters.update(markdown=_markdown, latex=_latex)
    return environment


def _tables(board: pd.DataFrame) -> Iterator[tuple[str, list[dict[str, Any]], list[str]]]:
    """Yield title, rows and footnotes of each table of proof or claims, without references."""
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows_of(board[board["evidence"] != "reference"]):
        part = "proof" if row["proof"] else "claims, not ranked"
        tables.setdefault((row["board"], row["noise"], row["data"], part), []).append(row)
    for (name, *about), table in tables.items():
        notes: list[str] = []
        shown = [row | _display(row, notes) for row in table]
        yield f"{TITLES.get(name, name)}: {'; '.join(about)}", shown, notes


def _display(row: Row, notes: list[str]) -> dict[str, Any]:
    """Return a row's cells as text, and the number of its footnote, which is added to ``notes``."""
    place, low, high = row["place"], row["place_low"], row["place_high"]
    among = "" if low is None or {low, high} == {place} else f" ({low}-{high})"
    figures = [row[name] for name in (*RECALLS, "rsum")]
    return {
        "places": "" if place is None else f"{place}{among}",
        "figures": ["" if value is None else f"{value:.1f}" for value in figures],
        "interval": "" if row["low"] is None else f"{row['low']:.1f}–{row['high']:.1f}",
        "link": _url(row["url"]),
        "remarks": _remarks(row),
        "mark": _mark(row, notes),
    }


def _remarks(row: Row) -> str:
    whole = [] if row["whole_rsum"] is None else [f"whole gallery {row['whole_rsum']:.1f}"]
    claimed = [] if row["claimed"] is None else [f"claimed {row['claimed']:.1f}"]
    equal = [f"ranks of {row['equal_to']}"] if row["equal_to"] else []
    return ", ".join([*whole, *claimed, *equal, *row["notes"]])


def _mark(row: Row, notes: list[str]) -> str:
    """Append a row's source and footnote to ``notes`` and return their number."""
    note = row["footnote"] or ""
    if source := read_sources().get(row["source"] or ""):
        where = ", ".join(filter(None, (short_name(source), row["table"])))
        note = f"{where}. {note}".strip()
    if not note:
        return ""
    if note not in notes:
        notes.append(note)
    return str(notes.index(note) + 1)


def _line(text: str) -> str:
    """Return text on one line, without control characters and direction marks."""
    return " ".join(_HIDDEN.sub(" ", text).split())


def _cell(text: str) -> str:
    line = _line(text)
    return line if _NUMBER.fullmatch(line) else _FORMULA_START.sub(r"\1'", line)


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", _line(text))


def _latex(text: str) -> str:
    escaped = "".join(_TEX.get(char, char) for char in _line(text))
    return "".join(
        char if char.isascii() or char in _TEX_PLAIN else rf"\nowchar{{{ord(char):04X}}}"
        for char in escaped
    )


def _url(url: str | None) -> str | None:
    """Return an http(s) address, percent-encoded, else None."""
    if url is None or not re.match(r"https?://[^/?#]", url):
        return None
    return quote(url, safe=":/?#@!&*+,;=%~-._", errors="replace")
