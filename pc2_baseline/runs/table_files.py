"""The files of a table: Markdown, LaTeX, CSV, and one page of HTML."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from now_builder.formats.io import write_text
from now_builder.program.html import template_environment
from pc2_baseline.runs import text_table
from pc2_baseline.runs.table_rows import FIGURES, ONE_NETWORK, TWO_NETWORKS, Line, Section
from pc2_baseline.runs.text_table import HTML, SCORE_COLUMNS, SCORES, Column, Value

LEGEND = (
    "Recalls in percent on the test split, at the epoch that dev chose; ± is the standard "
    "deviation (n − 1) over the seeds. Dev rSum: of that epoch, to compare settings by. "
    "Networks: how many are averaged. One network: the first of a method of several; two: its "
    "first two, or of a method of one each seed averaged with the next (no ±: they share "
    "networks). Behind: rSum points below the best row, and p of the paired sign-flip test over "
    "the test images, on the mean of the seeds, with Holm's correction; it does not cover the "
    "choice of seeds. Seconds: all epochs, choosing on dev included. Memory: the largest size "
    "of the training's process. AUROC: of the division at that epoch. Rows marked as reported "
    "are printed in papers; references know nothing but what they are named after."
)
_ABOUT = "Recalls in percent; table.md explains the columns."

_METHOD = Column("method", "Method", align="l")
_FIGURES = (
    ("dev_rsum", Column("dev rSum", "dev")),
    (ONE_NETWORK, Column("rSum, one network", "one", "rSum by networks", bold=True)),
    (TWO_NETWORKS, Column("rSum, two networks", "two", "rSum by networks", bold=True)),
    ("networks", Column("networks", "Nets")),
    ("behind", Column("behind", "Behind")),
    ("p", Column("p", "$p$")),
    ("seconds", Column("seconds", "Seconds", digits=0)),
    ("memory_gb", Column("memory, GiB", "GiB", digits=2)),
    ("gpu_memory_gb", Column("GPU memory, GiB", "GPU GiB", digits=2)),
    ("auroc", Column("AUROC", "AUROC", digits=3)),
)
_SEEDS = Column("seeds", "Seeds")
_RARE = {"gpu_memory_gb", "auroc"}


def write_table(out: Path, sections: Sequence[Section]) -> str:
    """Write ``table.md``, ``.tex``, ``.csv`` and ``.html``; return the Markdown."""
    markdown = to_markdown(sections)
    write_text(out / "table.tex", to_latex(sections))
    write_text(out / "table.csv", to_csv(sections))
    write_text(out / "table.html", to_html(sections))
    write_text(out / "table.md", markdown)
    return markdown


def to_markdown(sections: Sequence[Section]) -> str:
    """Write a table for each section, with notes below it, and what the columns mean."""
    parts = []
    for section in sections:
        notes = "".join(f"- {note}\n" for note in notes_of(section))
        table = text_table.to_markdown(*_cells(section))
        parts.append(f"### {section.title}\n\n{table}" + (f"\n{notes}" if notes else ""))
    return "\n".join([*parts, f"{LEGEND}\n"])


def to_latex(sections: Sequence[Section]) -> str:
    """Write a table for each section, for the packages booktabs and amssymb."""
    parts = [f"% \\usepackage{{booktabs, amssymb}}\n% {_ABOUT}\n"]
    for section in sections:
        notes = "".join(f"% {note}\n" for note in notes_of(section))
        parts.append(f"% {section.title}\n{text_table.to_latex(*_cells(section))}{notes}")
    return "\n".join(parts)


def to_csv(sections: Sequence[Section]) -> str:
    """Write a line for each line of all sections: every figure's mean and deviation."""
    out = io.StringIO(newline="")
    names = [part for name in FIGURES for part in (name, f"{name}_sd")]
    columns = ["track", "method", "evidence", "networks", "seeds", *names, "behind", "p", "notes"]
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for section in sections:
        for line in section.lines:
            figures = {name: line.figures.get(name) for name in FIGURES}
            writer.writerow(
                {
                    "track": section.track, "method": line.title, "evidence": line.evidence,
                    "networks": line.networks, "seeds": " ".join(map(str, line.seeds)),
                    **{name: found and found.mean for name, found in figures.items()},
                    **{f"{name}_sd": found and found.sd for name, found in figures.items()},
                    "behind": line.behind, "p": line.p, "notes": "; ".join(line.notes),
                }
            )  # fmt: skip
    return out.getvalue()


def to_html(sections: Sequence[Section]) -> str:
    """Write one page that needs nothing else, wide or narrow."""
    tables = []
    for section in sections:
        columns, rows = _cells(section)
        cells = [[Markup(cell) for cell in row] for row in HTML.cells(columns, rows)]  # noqa: S704 - escaped
        kinds = [line.evidence for line in section.lines]
        tables.append(
            (section.title, columns, list(zip(kinds, cells, strict=True)), notes_of(section))
        )
    template = template_environment("pc2_baseline.runs").get_template("table.html.j2")
    return template.render(tables=tables, legend=LEGEND)


def notes_of(section: Section) -> list[str]:
    """Return the notes below a section's table; lines with the same note share it."""
    named: dict[str, list[str]] = {}
    for line in section.lines:
        for note in line.notes:
            named.setdefault(note, []).append(_title(line))
    return [f"{', '.join(titles)}: {note}" for note, titles in named.items()]


def _title(line: Line) -> str:
    if line.evidence == "scored":
        return line.title if line.figures or not line.notes else f"{line.title} (failed)"
    return f"{line.title} ({line.evidence})"


def _cells(section: Section) -> tuple[list[Column], list[list[Value]]]:
    """Return the columns of a section that are not empty, and the cells of its lines."""
    kept = [
        (name, column)
        for name, column in _FIGURES
        if name not in _RARE or any(line.figures.get(name) for line in section.lines)
    ]
    columns = [_METHOD, *SCORE_COLUMNS, *(column for _, column in kept), _SEEDS]
    names = [*SCORES, *(name for name, _ in kept)]
    rows: list[list[Value]] = [
        [
            _title(line),
            *(_value(line, name) for name in names),
            str(len(line.seeds)) if line.evidence == "scored" else "",
        ]
        for line in section.lines
    ]
    return columns, rows


def _value(line: Line, name: str) -> Value:
    if name == "networks":
        return "" if line.networks is None else str(line.networks)
    if name == "behind":
        return "" if line.behind is None else "best" if not line.behind else f"{line.behind:.1f}"
    if name == "p":
        return _p(line.p) if line.behind else ""
    found = line.figures.get(name)
    if found is None:
        return ""
    return found if line.evidence == "scored" else f"{found.mean:.1f}"  # no rival of ours


def _p(p: float | None) -> str:
    return "" if p is None else "< 0.001" if p < 0.001 else f"{p:.3f}"
