"""Draw what counting finds: mismatch by number of copies, and AUROC of counting next to methods.

python docs/figures/counting.py docs/figures    # figures of docs/counting.md and docs/tables.md
"""

import math
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

INK, SOFT, FILL, ACCENT = "#1d1c1a", "#5f5b54", "#8cc1bb", "#0b6b66"
COPIES = (("1 page", 908, 4), ("2", 13, 23), ("3 to 5", 21, 71), ("more, of at most 20", 211, 91))
"""Pages of the site with the caption, judged pairs, percentage of them mismatched."""
AUROC: tuple[tuple[str, float, float], ...] = (
    ("reading", 0.948, math.nan),
    ("cross-fit", 0.944, 0.948),
    ("rank-pairs", 0.944, 0.960),
    ("GSC", 0.911, 0.952),
    ("DECL", 0.899, 0.926),
    ("PC²", 0.867, 0.860),
    ("CREAM", 0.866, 0.948),
    ("copies", 0.838, 0.5),
    ("SPS", 0.815, 0.849),
    ("LEMoN", 0.809, 0.805),
    ("NCR", 0.759, 0.758),
    ("kind of URL", 0.702, math.nan),
    ("language", 0.514, math.nan),
)
"""AUROC on all judged training pairs, and on captions that stand once on their site."""
COUNTING = {"copies", "kind of URL", "language"}


def draw_copies() -> Figure:
    """Draw the share of mismatched pairs as a bar for each number of copies."""
    figure = Figure(figsize=(7, 2.2), layout="constrained")
    axes = figure.subplots()
    places = range(len(COPIES))
    axes.barh(places, [100] * len(COPIES), color="#eeebe3", height=0.62)
    axes.barh(places, [share for *_, share in COPIES], color=FILL, height=0.62)
    for place, (_, pairs, share) in enumerate(COPIES):
        axes.text(101, place, f"{share} % of {pairs}", va="center", color=INK)
    axes.set_yticks(places, labels=[name for name, *_ in COPIES])
    axes.set(xlim=(0, 121), xticks=[0, 25, 50, 75, 100])
    axes.set_xlabel("mismatched pairs, percent", color=SOFT, loc="left")
    axes.invert_yaxis()
    return figure


def draw_auroc() -> Figure:
    """Draw a row of two points for each method and each way of counting."""
    figure = Figure(figsize=(7, 3.9), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0.5, color=SOFT, linewidth=0.8, linestyle=":")
    for place, (name, every, once) in enumerate(AUROC):
        colour = SOFT if name in COUNTING else ACCENT
        axes.plot([every, once], [place] * 2, color="#d8d3c8", linewidth=2, zorder=1)
        axes.plot(every, place, "o", color=colour, label="all pairs" if not place else None)
        label = "captions that stand once" if not place else None
        axes.plot(once, place, "o", color=colour, markerfacecolor="white", label=label)
    axes.set_yticks(range(len(AUROC)), labels=[name for name, *_ in AUROC])
    for text, (name, *_) in zip(axes.get_yticklabels(), AUROC, strict=True):
        text.set(color=SOFT if name in COUNTING else INK)
    axes.set(xlim=(0.48, 1))
    axes.set_xlabel("AUROC against the verdicts; counting in grey", color=SOFT, loc="left")
    axes.invert_yaxis()
    axes.legend(loc="lower right", frameon=False, labelcolor=INK)
    return figure


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "counting"
    for stem, made in (("copies", draw_copies()), ("auroc", draw_auroc())):
        made.axes[0].spines[:].set_visible(False)
        made.axes[0].tick_params(length=0)
        made.savefig(Path(sys.argv[1]) / f"counting-{stem}.svg", metadata={"Date": None})
