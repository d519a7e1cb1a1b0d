"""Tune the small presets on pooled networks: each choice alone, then those that helped together.

Every method gets as many runs: its preset, five variants, and the variants that raised the dev rSum
by more than :data:`NOISE` put together. What counts is the mean over all releases given. Test is
never scored. Tune with a seed and a draw of noise that no table uses. Finished runs are kept, and
what is there is not done again.

    pc2-baseline make-noise RELEASE noise-100.npy --mismatch 0.4 --protocol captions --seed 100
    python benchmarks/grids/tune.py OUT --on RELEASE noise-100.npy --on DEMO_RELEASE --seed 100
"""

import argparse
import sys
from pathlib import Path

import torch

from now_builder.config import Strict
from now_builder.formats.io import write_json
from pc2_baseline.config import Settings, read_settings
from pc2_baseline.runs.train import train

NOISE = 3.0
"""Points of rSum below which a gain of one run is taken for chance."""
NETWORKS = ["model.similarity=pooled", "model.word_dropout=0.3"]
SHORT = "train.warmup_epochs=5"
SLOW, LARGE = "train.lr=1e-3", "train.batch=32"
SOFT = [f"method.temperature={value}" for value in (0.1, 0.2)]
VARIANTS = {
    "sgr-demo": [SHORT, SLOW, LARGE, "method.margin=0.1", "method.margin=0.5"],
    "ncr-demo": [SHORT, SLOW, LARGE, "method.margin=0.5", "method.noisy_from_epoch=99"],
    "bicro-demo": [SHORT, LARGE, "method.margin=0.5", "method.warmup_share=0.6",
                   "method.mismatch_threshold=0.5"],
    "l2rm-demo": [SHORT, SLOW, LARGE, "method.margin=0.5", "method.temperature=0.2"],
    "pc2-pooled-demo": ["train.warmup_epochs=6", LARGE, "method.margin=0.5",
                        "method.lambda_noisy=0.1", "method.rectify=false"],
    "decl-demo": [SHORT, SLOW, "train.batch=64", "method.temperature=0.2",
                  "method.temperature=0.4"],
    "rcl-demo": [LARGE, SLOW, "train.epochs=4", *SOFT],
    "crcl-demo": [LARGE, SLOW, "method.complementary_weight=1", *SOFT],
    "cream-demo": [SHORT, SLOW, "train.batch=64", *SOFT],
    "gsc-demo": [SLOW, "train.batch=64", "train.epochs=8", *SOFT],
    "pcsr-demo": [SHORT, SLOW, "train.batch=64", *SOFT],
    "crossfit-pooled-demo": [SLOW, "train.batch=64", "train.epochs=12", "method.temperature=0.1",
                             "method.temperature=0.4"],
    "contrastive-demo": [SLOW, "train.batch=64", "train.epochs=12", "method.temperature=0.1",
                         "method.temperature=0.4"],
}  # fmt: skip


class Tried(Strict):
    """What one variant came to on the dev of each release, at its best epoch."""

    changes: list[str]
    dev: list[float]
    epoch: list[int]

    @property
    def mean(self) -> float:
        """Mean dev rSum of the releases."""
        return sum(self.dev) / len(self.dev)


def attempt(options: argparse.Namespace, preset: str, changes: list[str], folder: Path) -> Tried:
    """Train one variant on each release, unless it was before."""
    noted = folder / "tried.json"
    if noted.exists():
        tried = Tried.model_validate_json(noted.read_bytes())
        if tried.changes == changes and len(tried.dev) == len(options.on):
            return tried
    runs = [
        train(release, folder / str(number), _settings(options, preset, changes, *noise))
        for number, (release, *noise) in enumerate(options.on)
    ]
    tried = Tried(
        changes=changes,
        dev=[run.best_rsum for run in runs],
        epoch=[run.best_epoch for run in runs],
    )
    write_json(noted, tried.model_dump())
    return tried


def _settings(
    options: argparse.Namespace, preset: str, changes: list[str], noise: Path | None = None
) -> Settings:
    run = [f"train.seed={options.seed}", "train.device=cpu", "train.pictures=false"]
    if noise is not None:
        run.append(f"data.noise_file={noise.absolute()}")
    return read_settings(preset, [*NETWORKS, *changes, *run])


def tune(options: argparse.Namespace, preset: str) -> list[Tried]:
    """Try a preset, its variants, and those that helped together; of one setting the best value."""
    variants = VARIANTS[preset]
    tries = [
        attempt(options, preset, changes, options.out / preset / str(number))
        for number, changes in enumerate([[], *([variant] for variant in variants)])
    ]
    helped: dict[str, Tried] = {}
    for tried in sorted(tries[1:], key=lambda each: each.mean):
        if tried.mean > tries[0].mean + NOISE:
            helped[tried.changes[0].partition("=")[0]] = tried
    if len(helped) > 1:
        together = sorted(change for tried in helped.values() for change in tried.changes)
        tries.append(attempt(options, preset, together, options.out / preset / "together"))
    return tries


def main() -> None:
    """Take the options, tune, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the runs")
    parser.add_argument(
        "--on",
        type=Path,
        nargs="+",
        action="append",
        required=True,
        metavar="RELEASE [NOISE]",
        help="a release, and a noise file of make-noise",
    )
    parser.add_argument("--seed", type=int, default=100, help="of the training")
    parser.add_argument("--presets", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)  # so small a network gains nothing from more
    print("| preset | change | mean dev rSum | dev rSum of each | epochs |\n|---|---|--:|--:|--:|")
    for preset in options.presets:
        tries = tune(options, preset)
        best = max(tries, key=lambda tried: tried.mean)
        for tried in tries:
            changes = ", ".join(tried.changes) or "as it is"
            figure = f"**{tried.mean:.1f}**" if tried is best else f"{tried.mean:.1f}"
            each = ", ".join(f"{dev:.1f}" for dev in tried.dev)
            epochs = ", ".join(map(str, tried.epoch))
            print(f"| {preset} | {changes} | {figure} | {each} | {epochs} |", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
