"""Several seeds of one training: ordinary runs side by side, and their mean and spread."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from now_builder.errors import ConfigError
from now_builder.formats.io import remove_leftovers, write_json
from pc2_baseline.config import Settings
from pc2_baseline.process_groups import is_first
from pc2_baseline.progress import say
from pc2_baseline.runs.train import train
from pc2_baseline.training.trainer import Trained


@dataclass(frozen=True, slots=True)
class MeanStd:
    """Mean and standard deviation (over n - 1; none for a single seed) of a figure over seeds."""

    mean: float
    sd: float | None
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> "MeanStd":
        """Summarise one value or more."""
        return cls(fmean(values), stdev(values) if len(values) > 1 else None, list(values))

    def __str__(self) -> str:
        """Return ``mean ± sd`` to one decimal."""
        return f"{self.mean:.1f}" if self.sd is None else f"{self.mean:.1f} ± {self.sd:.1f}"


@dataclass(frozen=True, slots=True)
class Series:
    """Outcome of training with several seeds; dev recalls are those of the best epochs."""

    seeds: list[int]
    runs: list[Trained]
    dev: dict[str, MeanStd]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "seeds": self.seeds,
            "dev": {name: asdict(spread) for name, spread in self.dev.items()},
            "runs": [
                {"folder": seed_folder(seed), **asdict(trained)}
                for seed, trained in zip(self.seeds, self.runs, strict=True)
            ],
        }

    def __str__(self) -> str:
        """Return a line for the terminal, rSum first."""
        names = ", ".join(f"{name} {spread}" for name, spread in self.dev.items())
        return f"{len(self.seeds)} seeds, dev {names}"


def read_seeds(text: str, overrides: Sequence[str] = ()) -> list[int]:
    """Read seeds such as ``0,1,2``.

    Raises:
        ConfigError: If a seed is not a number, or is given twice, or among the settings too.
    """
    if any(one.partition("=")[0].strip() == "train.seed" for one in overrides):
        raise ConfigError(f"train.seed is set, but --seeds {text} says which seeds")
    if not re.fullmatch(r"\s*\d{1,9}\s*(,\s*\d{1,9}\s*)*", text):
        raise ConfigError(f"--seeds {text}: expected numbers with commas between, such as 0,1,2")
    seeds = [int(part) for part in text.split(",")]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {text}: a seed is given twice")
    return seeds


def seed_folder(seed: int) -> str:
    """Return the name of the folder of a seed's run."""
    return f"seed-{seed}"


def with_seed(settings: Settings, seed: int) -> Settings:
    """Return the same settings with another seed."""
    return settings.model_copy(update={"train": settings.train.model_copy(update={"seed": seed})})


@dataclass(frozen=True, slots=True)
class GridRun:
    """A run of a row of settings, whose name may hold slashes, with a seed: ``OUT/ROW/seed-N``."""

    row: str
    seed: int
    folder: Path
    settings: Settings

    @property
    def name(self) -> str:
        """Name in messages."""
        return f"{self.row}/{self.folder.name}"

    def beside(self, ending: str) -> Path:
        """Return a path beside the folder that begins with its name."""
        return self.folder.with_name(f"{self.folder.name}{ending}")


def train_seeds(
    release: Path, folder: Path, settings: Settings, seeds: Sequence[int], *, force: bool = False
) -> Series:
    """Train with each seed in ``folder/seed-N``; seeds that are done are not trained again.

    ``folder/seeds.json`` then has their scores.

    Raises:
        ConfigError: If ``folder`` is itself a run.
    """
    if (folder / "run.toml").exists():
        raise ConfigError(f"{folder}: a single run; give --seeds a folder of its own")
    remove_leftovers(folder)
    runs = []
    for seed in seeds:
        say(f"seed {seed}:")
        run = folder / seed_folder(seed)
        runs.append(train(release, run, with_seed(settings, seed), force=force))
    dev = {
        name: MeanStd.of([trained.best_dev[name] for trained in runs]) for name in runs[0].best_dev
    }
    series = Series(list(seeds), runs, dev)
    if is_first():
        write_json(folder / "seeds.json", series.as_json())
    return series
