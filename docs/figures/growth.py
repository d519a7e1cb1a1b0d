"""Draw rSum, over all test pairs and within sites, against the number of training pairs.

The commands are in docs/tables.md; OUT is with/PAIRS for features with words, without/PAIRS for
features without:

python docs/figures/growth.py docs/figures/growth.png with/* without/*
"""

import csv
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

REFERENCES = {"language alone": 80.0, "language and site": 312.2}
PANELS = (
    ("rsum", "rSum", REFERENCES),
    ("within_site_rsum", "rSum within sites", {"chance": 216.9}),
)
"""Column, title and references."""
COLOURS = ("#0b6b66", "#7a3b8f", "#9a3412", "#6f6044", "#5f5b54")
Line = dict[str, str]


def read_lines(table: Path) -> list[Line]:
    """Return the rows of the methods in a table."""
    with (table / "table.csv").open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if line["evidence"] == "scored"]


def draw(out: Path, tables: dict[tuple[str, int], list[Line]]) -> None:
    """Draw a curve for each method and panel: solid with words, dashed without."""
    mpl.rcParams["svg.hashsalt"] = out.name
    figure = Figure(figsize=(9, 4), layout="constrained")
    sizes = sorted({pairs for _, pairs in tables})
    curves = dict.fromkeys(
        (words, line["method"]) for (words, _), lines in tables.items() for line in lines
    )
    methods = list(dict.fromkeys(method for _, method in curves))
    for axes, (column, title, references) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for words, method in curves:
            points = [
                (pairs, float(line[column]))
                for pairs in sizes
                for line in tables.get((words, pairs), [])
                if line["method"] == method
            ]
            style = {"linestyle": "-" if words == "with" else "--", "marker": "o", "markersize": 4}
            colour = COLOURS[methods.index(method)]
            axes.plot(*zip(*points, strict=True), color=colour, label=method, **style)
        for name, value in references.items():
            axes.axhline(value, color="grey", linewidth=0.8, linestyle=":")
            axes.text(sizes[0], value - 20, name, color="#5f5b54", fontsize="small")
        axes.set_xscale("log")
        axes.set_xticks(sizes, labels=[f"{pairs:,}" for pairs in sizes])
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
        axes.set(xlabel="training pairs", title=title, ylim=(0, 620))
    names = [f"{method}, {words} words" for words, method in curves]
    figure.axes[1].legend(names, fontsize="small", frameon=False, loc=(0, 0.5))
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[2:]]
    lines = {(path.parent.name, int(path.name)): read_lines(path) for path in folders}
    draw(Path(sys.argv[1]), lines)
