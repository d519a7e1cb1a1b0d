"""Tables of scores as text: mean ± standard deviation over seeds, the best of a column in bold."""

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from leaderboard.metrics import CUTOFFS
from pc2_baseline.runs.series import MeanStd

Value = MeanStd | str
"""A cell: a figure over seeds, or text."""

WAYS = {"i2t": "Image to text", "t2i": "Text to image"}
RECALLS = tuple(f"{way}_R@{cutoff}" for way in WAYS for cutoff in CUTOFFS)
SCORES = (*RECALLS, "rsum")
"""Names of the six recalls in percent, and of their sum."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Heading where every column has one of its own.
        short: Heading below ``over``, which neighbouring columns share.
        digits: Decimals of a mean and of its deviation.
        bold: Whether the highest mean, as written, is bold.
    """

    title: str
    short: str
    over: str = ""
    align: Literal["l", "c", "r"] = "r"
    digits: int = 1
    bold: bool = False


SCORE_COLUMNS = (
    *(
        Column(f"{way} R@{cutoff}", f"R@{cutoff}", over, bold=True)
        for way, over in WAYS.items()
        for cutoff in CUTOFFS
    ),
    Column("rSum", "rSum", bold=True),
)
"""A column for each of :data:`SCORES`."""


@dataclass(frozen=True, slots=True)
class Notation:
    """Cells of a format: the sign before a deviation, marks of bold, and the escaping of text."""

    plus_minus: str
    bold: tuple[str, str]
    escape: Callable[[str], str]

    def cells(self, columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> list[list[str]]:
        """Write the cells of all rows; a row has one for each column."""
        by_row = [list(row) for row in rows]
        best = [_highest(column, [row[i] for row in by_row]) for i, column in enumerate(columns)]
        return [
            [self._cell(*cell) for cell in zip(row, columns, best, strict=True)] for row in by_row
        ]

    def _cell(self, value: Value, column: Column, best: float | None) -> str:
        if isinstance(value, str):
            return self.escape(value)
        mean = f"{value.mean:,.{column.digits}f}"
        if round(value.mean, column.digits) == best:
            mean = mean.join(self.bold)
        if value.sd is None:
            return mean
        return f"{mean} {self.plus_minus} {value.sd:,.{column.digits}f}"


def _highest(column: Column, values: Iterable[Value]) -> float | None:
    means = [round(value.mean, column.digits) for value in values if isinstance(value, MeanStd)]
    return max(means, default=None) if column.bold else None


_TEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
        "<": r"\textless{}", ">": r"\textgreater{}",
        **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    }
)  # fmt: skip

MARKDOWN = Notation("±", ("**", "**"), lambda text: text.replace("|", "\\|"))
LATEX = Notation("$\\pm$", ("\\textbf{", "}"), lambda text: text.translate(_TEX))
HTML = Notation("±", ("<b>", "</b>"), html.escape)


def to_markdown(columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> str:
    """Write a table as Markdown."""
    rule = {"l": "---", "c": ":-:", "r": "--:"}
    lines = [
        [column.title for column in columns],
        [rule[column.align] for column in columns],
        *MARKDOWN.cells(columns, rows),
    ]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_latex(columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> str:
    """Write a table as LaTeX, for the packages booktabs and amssymb."""
    over, rules, place = [], "", 1
    for title, group in groupby(columns, key=lambda column: column.over):
        width = len(list(group))
        if title:
            over.append(f"\\multicolumn{{{width}}}{{c}}{{{title}}}")
            rules += f"\\cmidrule(lr){{{place}-{place + width - 1}}}"
        else:
            over += [""] * width
        place += width
    lines = [
        f"\\begin{{tabular}}{{{''.join(column.align for column in columns)}}}",
        "\\toprule",
        " & ".join(over) + " \\\\",
        rules,
        " & ".join(column.short for column in columns) + " \\\\",
        "\\midrule",
        *(" & ".join(row) + " \\\\" for row in LATEX.cells(columns, rows)),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"
