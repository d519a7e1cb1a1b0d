"""PC2 against plain SGR, and its parts left out one by one, on planted releases of known truth.

Every method has the same network, epochs and rates (the preset pc2-planted); each run selects its
epoch on dev and scores test once. PC2 averages two networks, so SGR is also given with two: the
mean of the similarities of two seeds. Runs are kept in a folder, and what is there is not done
again; stop and start as you like.

    python benchmarks/grids/planted.py --folder /where/runs/stand
    python benchmarks/grids/planted.py --folder /others --plan topics=16 details=1 --mismatch 0.6
    python benchmarks/grids/planted.py --quick
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from leaderboard.metrics import recalls
from now_builder.config import Strict, build, with_overrides
from now_builder.formats.io import replacing, write_json
from pc2_baseline.analysis.truth import report
from pc2_baseline.config import Plan, Settings, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.methods.triplet import OneNetworkSettings
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.train import train
from pc2_baseline.training.run_folder import read_run

PRESET = "pc2-planted"
PLAN = {"test": 480}  # a gallery in which the methods can be told apart
QUICK = {"train": 64, "dev": 16, "test": 16}
QUICK_SETS = ["train.warmup_epochs=2", "train.epochs=1"]

NO_CAPTIONS = ["method.pseudo_captions=false"]
NO_RECTIFYING = ["method.rectify=false"]
NO_CLASSES = ["method.pseudo_classes=false", *NO_RECTIFYING]
FULL = "PC2"
ROWS = {
    FULL: [],
    "without CR": NO_RECTIFYING,
    "without P-Cap": NO_CAPTIONS,
    "P-Cls only": [*NO_RECTIFYING, *NO_CAPTIONS],
    "P-Cap by embedding only": [*NO_CLASSES, 'method.search_by="embedding"'],
    "none (division only)": [*NO_CLASSES, *NO_CAPTIONS],
}
MEAN_SGR = "SGR, mean negatives"
BASELINE = "SGR"
TWO_SEEDS = ", two seeds"
SECOND_SEED = 1000


@dataclass(frozen=True, slots=True)
class Cell:
    """One release, and the methods' settings on it."""

    folder: Path
    plan: Plan
    sets: list[str]

    @property
    def release(self) -> Path:
        """Where it is planted."""
        return self.folder / f"mismatch-{self.plan.mismatch:g}-seed-{self.plan.seed}"


class Result(Strict):
    """What one run came to: rSum of dev and test at the selected epoch, AUROC there."""

    epoch: int
    dev: float
    test: float
    auroc: float | None


def settings_of(cell: Cell, row: str, seed: int) -> Settings:
    """Return the settings of a row: those of PC2 with parts off, or SGR's with all else equal."""
    settings = read_settings(
        PRESET, [*cell.sets, *ROWS.get(row, []), f"train.seed={seed}", "train.device=cpu"]
    )
    if row in ROWS:
        return settings
    mean = settings.train.epochs if row == MEAN_SGR else settings.method.mean_epochs
    method = OneNetworkSettings(margin=settings.method.margin, mean_epochs=mean)
    return settings.model_copy(update={"method": method})


def run_of(cell: Cell, row: str, seed: int) -> Path:
    """Train, score test at the selected epoch, and keep the result; give the run's folder."""
    name = "".join(letter if letter.isalnum() else "-" for letter in row.lower())
    run = cell.release.with_name(f"{cell.release.name}-runs") / f"{name}-{seed}"
    settings = settings_of(cell, row, seed)
    if (run / "result.json").exists() and read_run(run).settings == settings:
        return run
    sys.stderr.write(f"{run}\n")
    done = train(cell.release, run, settings)
    matrix = similarity(run, "test", device="cpu")
    with replacing(run / "test.npy") as temporary, temporary.open("wb") as file:
        np.save(file, matrix)
    auroc = None
    if row in ROWS:
        truth = cell.release / "truth.csv"
        auroc = report(run, read_run(run), cell.release, truth).best.auroc
    result = Result(
        epoch=done.best_epoch, dev=done.best_rsum, test=recalls(matrix).rsum, auroc=auroc
    )
    write_json(run / "result.json", result.model_dump())
    return run


def measured(cell: Cell) -> dict[str, Result]:
    """Do every row on one release."""
    plant(cell.release, cell.plan)
    seed = cell.plan.seed
    found = {}
    for row in (BASELINE, MEAN_SGR):
        runs = [run_of(cell, row, one) for one in (seed, seed + SECOND_SEED)]
        found[row] = result_of(runs[0])
        both = ensemble([np.load(run / "test.npy") for run in runs])
        found[row + TWO_SEEDS] = found[row].model_copy(update={"test": recalls(both).rsum})
    return found | {row: result_of(run_of(cell, row, seed)) for row in ROWS}


def result_of(run: Path) -> Result:
    """Read what a run came to."""
    return Result.model_validate_json((run / "result.json").read_bytes())


def in_words(figures: list[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds."""
    spread = f" ± {statistics.stdev(figures):.{digits}f}" if len(figures) > 1 else ""
    return f"{statistics.mean(figures):.{digits}f}{spread}"


def gain(ours: list[float], theirs: list[float]) -> str:
    """Mean gain on the same releases, with its 95 % interval (Student's t)."""
    gains = [a - b for a, b in zip(ours, theirs, strict=True)]
    if len(gains) < 2:
        return f"{gains[0]:+.1f}"
    half = stats.t.ppf(0.975, len(gains) - 1) * stats.sem(gains)
    return f"{statistics.mean(gains):+.1f} ± {half:.1f}"


def table(results: dict[float, list[dict[str, Result]]]) -> str:
    """Lay out test rSum by row and mismatch; then gains; then the divisions' AUROC."""
    head = ["| |", *(f" {mismatch:g} |" for mismatch in results)]
    rule = "|---|" + "---|" * len(results)
    rows = next(iter(results.values()))[0]

    def lines(title: str, names: Iterable[str], cell: Callable[[str, float], str]) -> list[str]:
        body = [
            "".join([f"| {name} |", *(f" {cell(name, mismatch)} |" for mismatch in results)])
            for name in names
        ]
        return [title, "", "".join(head), rule, *body, ""]

    def tests(name: str, mismatch: float) -> list[float]:
        return [found[name].test for found in results[mismatch]]

    def aurocs(name: str, mismatch: float) -> list[float]:
        return [found[name].auroc or 0.0 for found in results[mismatch]]

    return "\n".join(
        [
            *lines("Test rSum, mean ± sd", rows, lambda name, at: in_words(tests(name, at), 1)),
            *lines(
                "Gain of PC2, mean and 95 % interval, over",
                [name for name in rows if name != FULL],
                lambda name, at: gain(tests(FULL, at), tests(name, at)),
            ),
            *lines(
                "AUROC of the clean probability",
                ROWS,
                lambda name, at: in_words(aurocs(name, at), 3),
            ),
        ]
    )


def cells(options: argparse.Namespace, folder: Path) -> dict[float, list[Cell]]:
    """Plan the releases: by mismatch, one a seed."""
    plan = with_overrides(QUICK if options.quick else PLAN, options.plan)
    sets = [*options.set, *(QUICK_SETS if options.quick else [])]
    return {
        mismatch: [
            Cell(folder, build(Plan, plan | {"mismatch": mismatch, "seed": seed}, "--plan"), sets)
            for seed in options.seeds
        ]
        for mismatch in options.mismatch
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="PC2 and its parts against SGR.")
    parser.add_argument("--folder", type=Path, help="Of the runs; default: a temporary one.")
    parser.add_argument("--mismatch", type=float, nargs="+", default=[0.2, 0.4, 0.6, 0.7])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="Of all rows.")
    parser.add_argument("--plan", nargs="+", default=[], metavar="KEY=VALUE", help="Of releases.")
    parser.add_argument("--quick", action="store_true", help="One small release, two epochs.")
    options = parser.parse_args()
    if options.quick:
        options.mismatch, options.seeds = [0.4], [0]
    torch.set_num_threads(1)  # so small a network gains nothing from more
    with tempfile.TemporaryDirectory() as temporary:
        planned = cells(options, options.folder or Path(temporary))
        results = {mismatch: [measured(cell) for cell in row] for mismatch, row in planned.items()}
    print(table(results))


if __name__ == "__main__":
    main()
