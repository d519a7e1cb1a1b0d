"""Draw rSum and AUROC of the division against the number of training pairs.

Make a table for each number of pairs, then draw:

for pairs in 1000 2000 4000 8000; do
  now-builder package captures features.h5 captions release-$pairs --train $pairs --split-by page
  pc2-baseline make-noise release-$pairs noise-$pairs.npy --mismatch 0.4 --protocol captions
  pc2-baseline table release-$pairs growth/$pairs --methods contrastive,ridge,pc2-pooled --on demo \
    --tokenizers bert --set data.noise_file=noise-$pairs.npy
done
python docs/figures/growth.py docs/figures/growth.png growth/1000 growth/2000 growth/4000 …
"""

import csv
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

PANELS = (("rsum", "rSum on test"), ("auroc", "AUROC of the division"))


def read_lines(table: Path) -> list[dict[str, str]]:
    """Return the rows of the methods in a table."""
    with (table / "table.csv").open(encoding="utf-8", newline="") as file:
        return [line for line in csv.DictReader(file) if line["evidence"] == "scored"]


def draw(out: Path, tables: dict[int, list[dict[str, str]]]) -> None:
    """Draw a curve for each method and panel, with standard deviations over seeds."""
    mpl.rcParams["svg.hashsalt"] = out.name
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    names = dict.fromkeys(line["method"] for lines in tables.values() for line in lines)
    for axes, (column, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for number, name in enumerate(names):
            points = [
                (pairs, float(line[column]), float(line[f"{column}_sd"] or 0))
                for pairs, lines in sorted(tables.items())
                for line in lines
                if line["method"] == name and line[column]
            ]
            if points:
                pairs, values, deviations = zip(*points, strict=True)
                axes.errorbar(
                    pairs, values, deviations, label=name, color=f"C{number}", marker="o", capsize=3
                )
        axes.set_xscale("log")
        axes.set_xticks(sorted(tables), labels=[f"{pairs:,}" for pairs in sorted(tables)])
        axes.minorticks_off()
        axes.set(xlabel="training pairs", title=title)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize="small")
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    folders = [Path(word) for word in sys.argv[2:]]
    draw(Path(sys.argv[1]), {int(folder.name): read_lines(folder) for folder in folders})
