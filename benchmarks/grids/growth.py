"""How a division and retrieval grow with the data, at several sizes, part of the captions shuffled.

Packages the same captures once for each size, shuffles a share of the training captions, trains
methods on each release (`pc2-baseline table`) and draws AUROC of the clean probability and test
rSum against the number of training pairs. Dev and test are the same pairs at every size. Run again,
it goes on.

    python benchmarks/grids/growth.py OUT --captures captures --features features.h5 \
        --captions captions --sizes 500,1000,2000 --seeds 3
"""

import argparse
import csv
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

METHODS = "ridge,contrastive-demo,crossfit-pooled-demo,pc2-pooled-demo,ncr-demo"
SETTINGS = ("model.similarity=pooled", "model.word_dropout=0.3")
PANELS = (("auroc", "AUROC of the clean probability"), ("rsum", "test rSum"))


def run(command: str, *words: object) -> None:
    """Run one of the project's commands; what it says stays visible."""
    package = "now_builder" if command == "now-builder" else "pc2_baseline"
    call = [sys.executable, "-c", f"from {package}.cli import main; main()", *map(str, words)]
    subprocess.run(call, check=True)


def tabulate(options: argparse.Namespace, size: int) -> Path:
    """Make the table of one size; returns its CSV file."""
    release = options.out / f"release-{size}"
    noise = options.out / f"noise-{size}.npy"
    table = options.out / f"table-{size}"
    if not (release / "manifest.json").exists():
        sources = (options.captures, options.features, options.captions)
        run("now-builder", "package", *sources, release, "--train", size)
    if not noise.exists():
        share = ("--mismatch", options.mismatch, "--protocol", "captions")
        run("pc2-baseline", "make-noise", release, noise, *share)
    settings = [*options.set, f"data.noise_file={noise.absolute()}"]
    sets = [word for setting in settings for word in ("--set", setting)]
    grid = ("--methods", options.methods, "--tokenizers", options.tokenizer, "--seeds")
    run("pc2-baseline", "table", release, table, *grid, options.seeds, "--device", "cpu", *sets)
    return table / "table.csv"


def draw(tables: dict[int, Path], out: Path) -> None:
    """Draw each method's figures against the size, with standard deviations over seeds."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - quick help

    rows = {
        size: list(csv.DictReader(path.open(encoding="utf-8"))) for size, path in tables.items()
    }
    methods = [line["method"] for line in next(iter(rows.values())) if line["networks"]]
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 2), PANELS, strict=True):
        for number, method in enumerate(methods):
            points = [
                (size, float(line[name]), float(line[f"{name}_sd"] or 0))
                for size, lines in rows.items()
                for line in lines
                if line["method"] == method and line[name]
            ]
            if points:
                sizes, values, deviations = zip(*points, strict=True)
                style = {"marker": "o", "capsize": 3, "color": f"C{number}"}
                axes.errorbar(sizes, values, deviations, label=method, **style)
        axes.set_xscale("log")
        axes.set_xticks(list(rows), labels=[f"{size:,}" for size in rows], minor=False)
        axes.minorticks_off()
        axes.set(xlabel="training pairs", title=title)
        axes.grid(alpha=0.3)
    figure.axes[1].legend(fontsize="small")
    figure.savefig(out, dpi=110)


def main(argv: Sequence[str] | None = None) -> None:
    """Make what is missing, then draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of releases, tables and the picture")
    parser.add_argument("--captures", type=Path, required=True)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--captions", type=Path, required=True)
    parser.add_argument("--sizes", default="500,1000,2000", help="training pairs")
    parser.add_argument("--mismatch", default="0.4", help="share of captions shuffled")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--tokenizer", default="bert")
    parser.add_argument("--seeds", default="3")
    parser.add_argument("--set", action="append", default=list(SETTINGS), metavar="KEY=VALUE")
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = [int(size) for size in options.sizes.split(",")]
    draw({size: tabulate(options, size) for size in sizes}, options.out / "growth.png")
    print(options.out / "growth.png")


if __name__ == "__main__":
    main()
