"""A grid of runs: rows of settings, each with some seeds, a folder for each run."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pc2_baseline.config import Settings
from pc2_baseline.runs.series import seed_folder, with_seed


@dataclass(frozen=True, slots=True)
class GridRun:
    """One run of a grid: a row, whose name may hold slashes, with a seed, in ``OUT/ROW/seed-N``."""

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


def grid(out: Path, rows: Iterable[tuple[str, Settings]], seeds: Sequence[int]) -> list[GridRun]:
    """Return the runs of all rows, row by row."""
    return [
        GridRun(row, seed, out / row / seed_folder(seed), with_seed(settings, seed))
        for row, settings in rows
        for seed in seeds
    ]
