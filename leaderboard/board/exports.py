"""Exports of a board: CSV, JSON, Markdown, LaTeX, BibTeX and badges. Its text is untrusted."""

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from leaderboard.board.reported import ReportedRow, Source, short_name
from leaderboard.board.tables import Board, Row, Section
from leaderboard.submission.text import BIDI
from now_builder.formats.benchmarks import BOARD_FACTS, BoardName

Colour = Literal["blue", "green", "grey"]

# White on each of them has a contrast of 5 : 1 or more.
COLOURS: Mapping[Colour, str] = {"blue": "#0b5cad", "green": "#2a6f2a", "grey": "#555555"}
_BADGES: Mapping[str, Colour] = {"reproduced": "green", "blind": "green", "scored": "blue"}
TITLES: Mapping[str, str] = {
    name: ", ".join(filter(None, (facts.title, facts.protocol)))
    for name, facts in BOARD_FACTS.items()
}
PUBLISHED = "published test split"
RECALLS = ("i2t_r1", "i2t_r5", "i2t_r10", "t2i_r1", "t2i_r5", "t2i_r10")

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
_TEX_HEAD = r"""% Needs \usepackage{booktabs}. Sources are cited by the keys of the BibTeX export.
% A character that pdfTeX cannot set is shown by its code; XeTeX and LuaTeX set it.
\providecommand{\nowchar}[1]{\ifdefined\Umathchardef\char"#1\relax\else\texttt{U+#1}\fi}
"""
_SAFE_IN_URL = ":/?#@!&*+,;=%~-._"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRow:
    """A row of an exported board, its fields in the order of the exports.

    Attributes:
        noise: The training noise in words. Rows under different noise, or scored on different data,
            get tables of their own.
        proof: whether the row is proof; only then it may have a place.
        place_interval: first and last place that the row may have.
        evidence: ``scored``, ``reproduced``, ``contradicted``, ``blind``, ``reported`` or
            ``reference``.
        claimed: rSum of the entry's own file where the figures are those of the keeper's run.
        low: lower end of the 95 % interval of rSum.
        recalls: Six, as in ``RECALLS``, in percent; none where only the sum is known.
        date: day of the scoring, ISO 8601.
        source: publication of a reported row.
        notes: codes of the notes on the matrix.
        equal_to: name of an earlier entry with the same ranks.
        lists: whether it was submitted as ranked lists, which get no place.
    """

    board: str
    noise: str
    data: str = PUBLISHED
    proof: bool = False
    place: int | None = None
    place_interval: tuple[int, int] | None = None
    method: str
    evidence: str
    rsum: float
    claimed: float | None = None
    low: float | None = None
    high: float | None = None
    recalls: tuple[float, ...] = ()
    ensemble: int | None = None
    post_processing: str | None = None
    date: str | None = None
    entry: str | None = None
    url: str | None = None
    authors: tuple[str, ...] = ()
    source: Source | None = None
    table: str | None = None
    footnote: str | None = None
    notes: tuple[str, ...] = ()
    equal_to: str | None = None
    lists: bool = False


def rows_of(board: Board) -> list[ExportRow]:
    """Return the export rows of a board: of each section its proof, then its claims."""
    return [
        export_row(board.name, section, row)
        for section in board.sections
        for row in section.rows
        if row.evidence != "reference"
    ]


def export_row(board: BoardName, section: Section, row: Row) -> ExportRow:
    """Make the export row of a scored entry or of a reported row.

    Raises:
        ValueError: If the row is a reference.
    """
    known = row.resampled if row.entry else row.low < row.high
    low, high = (row.low, row.high) if known else (None, None)
    if row.reported is not None:
        return replace(from_reported(row.reported), low=low, high=high)
    if row.entry is None:
        raise ValueError(f"{row.method}: found a reference, expected an entry or a reported row")
    result = row.entry.shown
    return ExportRow(
        board=board,
        noise=section.kind.noise.title,
        method=row.method,
        evidence=row.evidence,
        rsum=row.rsum,
        data=_data_of(section),
        proof=row.proof,
        claimed=row.claimed,
        place=row.place,
        place_interval=row.places,
        low=low,
        high=high,
        recalls=row.recalls,
        ensemble=result.training.ensemble_size,
        post_processing=result.postprocessing.kind,
        date=row.date,
        entry=row.entry.name,
        url=result.links.paper or result.links.code,
        authors=result.authors,
        footnote=result.reason,
        notes=tuple(note.code for note in result.notes),
        equal_to=row.equal_to,
        lists=result.precision is None,
    )


def from_reported(row: ReportedRow) -> ExportRow:
    """Make the export row of a reported row."""
    return ExportRow(
        board=row.board,
        noise=row.noise.title,
        method=row.method,
        evidence="reported",
        rsum=row.rsum,
        recalls=row.recalls,
        ensemble=row.ensemble,
        url=row.source.url,
        authors=row.source.authors,
        source=row.source,
        table=row.table,
        footnote=row.footnote,
    )


def _data_of(section: Section) -> str:
    kind = section.kind
    if section.published or kind.fingerprint is None:
        return PUBLISHED
    kinds = {"rebuilt": "rebuilt release", "blind": "blind round", "closed": "closed blind round"}
    return f"{kinds.get(kind.origin, 'copy')} {kind.fingerprint[:8]}, {kind.split} split"


@dataclass(frozen=True, slots=True)
class Badge:
    """A badge: label on the left, message on a coloured ground."""

    label: str
    message: str
    colour: Colour = "blue"


def to_csv(rows: Iterable[ExportRow]) -> str:
    """Write a table for spreadsheets: numbers as numbers, no text that would run as a formula."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        cells = _record(row).items()
        writer.writerow({k: _cell(v) if isinstance(v, str) else v for k, v in cells})
    return out.getvalue()


def to_json(rows: Iterable[ExportRow]) -> str:
    """Write the rows as JSON with their text unchanged; non-finite numbers become null."""
    records = [
        _record(row)
        | {
            "notes": list(row.notes),
            "equal_to": row.equal_to,
            "authors": [_encodable(author) for author in row.authors],
            "source": row.source.model_dump(mode="json") if row.source else None,
        }
        for row in rows
    ]
    return json.dumps({"rows": records}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def to_markdown(rows: Iterable[ExportRow]) -> str:
    """Write a table of proof and one of claims for each board and noise, footnotes below."""
    parts = []
    for title, group in _tables(rows):
        notes: list[str] = []
        lines = [
            f"### {_markdown(title)}",
            "",
            "| # | Method | i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rSum | 95 % | Evidence |",
            "|--:|:--|" + "--:|" * 7 + ":--|:--|",
        ]
        for row in group:
            method = _markdown(row.method)
            if link := _url(row.url):
                method = f"[{method}]({link})"
            method += _mark(row, notes, r" \[{}\]")
            cells = [_place(row), method, *_figures(row), _interval(row), _markdown(_evidence(row))]
            lines.append("| " + " | ".join(cells) + " |")
        lines += [f"\n\\[{n}\\] {_markdown(note)}" for n, note in enumerate(notes, 1)]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def to_latex(rows: Iterable[ExportRow]) -> str:
    """Write booktabs tables of proof and of claims by board and noise; any text is escaped."""
    parts = [_TEX_HEAD]
    for title, group in _tables(rows):
        notes: list[str] = []
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex(title)}.}}",
            r"\begin{tabular}{rlrrrrrrrl}",
            r"\toprule",
            r"& & \multicolumn{3}{c}{Image to text} & \multicolumn{3}{c}{Text to image} & & \\",
            r"\# & Method & R@1 & R@5 & R@10 & R@1 & R@5 & R@10 & rSum & 95\,\% \\",
            r"\midrule",
        ]
        for row in group:
            method = _latex(row.method) + (rf"~\cite{{{row.source.key}}}" if row.source else "")
            method += _mark(row, notes, " {{[}}{}{{]}}")
            method += rf" \emph{{{_latex(remarks)}}}" if (remarks := _remarks(row)) else ""
            cells = [_place(row), method, *_figures(row), _interval(row).replace("–", "--")]
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par{{\footnotesize {{[}}{n}{{]}} {_latex(note)}\par}}"
                  for n, note in enumerate(notes, 1)]  # fmt: skip
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)


def _remarks(row: ExportRow) -> str:
    claimed = [] if row.claimed is None else [f"claimed {_rounded(row.claimed)}"]
    equal = [f"ranks of {row.equal_to}"] if row.equal_to else []
    return ", ".join([*claimed, *equal, *row.notes])


def _evidence(row: ExportRow) -> str:
    notes = ["ranked lists"] * row.lists
    return ", ".join(filter(None, (row.evidence, *notes, _remarks(row))))


def to_bibtex(rows: Iterable[ExportRow]) -> str:
    """Write every source once, and a ``misc`` entry for every scored row."""
    found: dict[str, str] = {}
    for row in rows:
        if row.source:
            found.setdefault(row.source.key, _bib_source(row.source))
        elif row.entry:
            key = "now-" + re.sub(r"[^A-Za-z0-9-]", "", row.entry)
            found.setdefault(key, _bib_entry(key, row))
    return "\n".join(found.values())


FORMATS: Mapping[str, Callable[[Iterable[ExportRow]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "md": to_markdown,
    "tex": to_latex,
    "bib": to_bibtex,
}


def badge_of(row: ExportRow) -> Badge:
    """Make the badge of a row: green for proof, blue for a scored claim, else grey."""
    place = f", place {row.place}" if row.place else ""
    claim = ", contradicted" if row.evidence == "contradicted" else ", claim"
    return Badge(
        TITLES.get(row.board, row.board),
        f"rSum {_rounded(row.rsum)}{place if row.proof else claim}",
        "grey" if row.equal_to else _BADGES.get(row.evidence, "grey"),
    )


def badge_svg(badge: Badge) -> str:
    """Draw a badge: one picture, no script, nothing loaded."""
    label, message = _line(badge.label), _line(badge.message)
    left, right = _width(label), _width(message)
    texts = "".join(
        f'<text x="{x}" y="14">{escape(text)}</text>'
        for x, text in ((left / 2, label), (left + right / 2, message))
    )
    name = escape(f"{label}: {message}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f"aria-label={quoteattr(f'{label}: {message}')}><title>{name}</title>"
        f'<rect width="{left}" height="20" fill="#333333"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{COLOURS[badge.colour]}"/>'
        '<g fill="#ffffff" text-anchor="middle" font-size="11" '
        f'font-family="Verdana,DejaVu Sans,sans-serif">{texts}</g></svg>\n'
    )


def badge_json(badge: Badge) -> str:
    """Write a badge for the endpoint of shields.io.

    Source: https://shields.io/badges/endpoint-badge
    """
    return json.dumps(
        {
            "schemaVersion": 1,
            "label": _line(badge.label),
            "message": _line(badge.message),
            "color": COLOURS[badge.colour],
        },
        ensure_ascii=False,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _record(row: ExportRow) -> dict[str, object]:
    """Flatten a row into named values; non-finite numbers become None."""
    places = row.place_interval or (None, None)
    flat: dict[str, dict[str, object]] = {
        "place_interval": dict(zip(("place_low", "place_high"), places, strict=True)),
        "recalls": dict(zip(RECALLS, row.recalls or [None] * 6, strict=True)),
        "authors": {"authors": " and ".join(row.authors) or None},
        "source": {"source": row.source.key if row.source else None},
        "notes": {"notes": " ".join(row.notes) or None, "equal_to": row.equal_to},
    }
    record: dict[str, object] = {}
    for name in (field.name for field in fields(row)):
        record |= flat.get(name, {name: getattr(row, name)})
    return {
        name: _encodable(value)
        if isinstance(value, str)
        else (_finite(value) if isinstance(value, float) else value)
        for name, value in record.items()
    }


CSV_COLUMNS = tuple(_record(ExportRow(board="", noise="", method="", evidence="", rsum=0.0)))


def _line(text: str) -> str:
    """Return text on one line, without control characters and direction marks."""
    hidden = {
        char
        for char in set(text)
        if unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} or ord(char) & 0xFFFE == 0xFFFE
    }
    return " ".join("".join(" " if char in hidden | BIDI else char for char in text).split())


def _cell(text: str) -> str:
    line = _line(text)
    return line if _NUMBER.fullmatch(line) else _FORMULA_START.sub(r"\1'", line)


def _markdown(text: str) -> str:
    return _MARKDOWN.sub(r"\\\g<0>", _line(text))


def _latex(text: str) -> str:
    return "".join(
        char if char.isascii() or char in _TEX_PLAIN else rf"\nowchar{{{ord(char):04X}}}"
        for char in _bib(text)
    )


def _bib(text: str) -> str:
    """Escape for LaTeX, keeping the braces balanced as BibTeX counts them."""
    return "".join(_TEX.get(char, char) for char in _line(text))


def _url(url: str | None) -> str | None:
    """Return an http(s) address, percent-encoded for every output format, else None."""
    if url is None or not re.match(r"https?://[^/?#]", url):
        return None
    return quote(_encodable(url), safe=_SAFE_IN_URL)


def _tables(rows: Iterable[ExportRow]) -> Iterable[tuple[str, list[ExportRow]]]:
    """Group rows by table; yield titles and rows in the order of first appearance."""
    tables: dict[tuple[str, str, str, str], list[ExportRow]] = {}
    for row in rows:
        part = "proof" if row.proof else "claims, not ranked"
        tables.setdefault((row.board, row.noise, row.data, part), []).append(row)
    for (board, noise, data, part), group in tables.items():
        yield f"{TITLES.get(board, board)}: {noise}; {data}; {part}", group


def _mark(row: ExportRow, notes: list[str], pattern: str) -> str:
    """Append a row's footnote to ``notes`` and return the mark that refers to it."""
    note = row.footnote or ""
    if row.source:
        where = f"{short_name(row.source)}, {row.table}" if row.table else short_name(row.source)
        note = f"{where}. {note}".strip()
    if not note:
        return ""
    if note not in notes:
        notes.append(note)
    return pattern.format(notes.index(note) + 1)


def _place(row: ExportRow) -> str:
    if row.place is None:
        return ""
    if row.place_interval is None or len({*row.place_interval, row.place}) == 1:
        return str(row.place)
    return f"{row.place} ({row.place_interval[0]}-{row.place_interval[1]})"


def _figures(row: ExportRow) -> list[str]:
    return [*(map(_rounded, row.recalls) if row.recalls else [""] * 6), _rounded(row.rsum)]


def _interval(row: ExportRow) -> str:
    low, high = _rounded(row.low), _rounded(row.high)
    return f"{low}–{high}" if low and high else ""


def _rounded(value: float | None) -> str:
    finite = _finite(value)
    return "" if finite is None else f"{finite:.1f}"


def _width(text: str) -> int:
    """Estimate a text's width in pixels, with a margin on both sides."""
    return 12 + sum(12 if unicodedata.east_asian_width(char) in "WF" else 7 for char in text)


def _bib_source(source: Source) -> str:
    venue = {"article": "journal", "inproceedings": "booktitle", "misc": "howpublished"}
    return _bib_text(
        source.kind,
        source.key,
        {
            "title": f"{{{_bib(source.title)}}}",
            "author": " and ".join(_bib(author) for author in source.authors),
            venue[source.kind]: _bib(source.venue),
            "pages": source.pages or "",
            "year": str(source.year),
            "url": _url(source.url) or "",
        },
    )


def _bib_entry(key: str, row: ExportRow) -> str:
    year = re.match(r"\d{4}", row.date or "")
    return _bib_text(
        "misc",
        key,
        {
            "title": f"{{{_bib(row.method)}}}",
            # In braces of its own, a name is not taken apart.
            "author": " and ".join(f"{{{_bib(author)}}}" for author in row.authors),
            "howpublished": _bib(f"Leaderboard {TITLES.get(row.board, row.board)}, {row.entry}"),
            "year": year[0] if year else "",
            "url": _url(row.url) or "",
            "note": _bib(f"rSum {_rounded(row.rsum)}, {_evidence(row)}, {row.noise}"),
        },
    )


def _bib_text(kind: str, key: str, values: Mapping[str, str]) -> str:
    lines = [f"  {name} = {{{value}}}," for name, value in values.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"]) + "\n"
