"""Train, measure and score one run of a table."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import score
from leaderboard.store.entries import write_result
from leaderboard.submission.archive import pack
from now_builder.config import Strict
from now_builder.formats.io import sha256_of, write_text
from now_builder.formats.split import Split
from pc2_baseline.analysis.truth import report
from pc2_baseline.config import Settings
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs.open_run import open_run, with_bank, without_hubs
from pc2_baseline.runs.predict import describe
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.method import Ensemble
from pc2_baseline.training.run_folder import BEST, LAST

SPLIT: Split = "test"


def with_seed(settings: Settings, seed: int) -> Settings:
    """Return the same settings with another seed."""
    return settings.model_copy(update={"train": settings.train.model_copy(update={"seed": seed})})


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a table, in the folder ``OUT/TRACK/METHOD/seed-N``."""

    folder: Path
    settings: Settings = field(compare=False)

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.settings.train.seed

    @property
    def row(self) -> tuple[str, str]:
        """Track and method."""
        return self.folder.parts[-3], self.folder.parts[-2]

    @property
    def name(self) -> str:
        """Name in messages."""
        return "/".join(self.folder.parts[-3:])


class Measured(Strict):
    """``seed-N.json``: figures of a finished run, the last of its files.

    Attributes:
        checkpoint: SHA-256 of ``best/state.json``, which identifies a training.
        rsum: rSum on the test split.
        dev_rsum: rSum on dev, which chose the epoch.
        networks: Number of networks whose similarities are averaged.
        one_network_rsum: rSum of the first network alone.
        two_networks_rsum: rSum of the first two networks; ``None`` for a method of one.
        seconds: Time of all epochs, evaluation on dev included.
        memory_gb: Peak resident size of the training process, in GiB; ``None`` if unknown.
        gpu_memory_gb: Peak size of its tensors on the GPU, in GiB; ``None`` without a GPU.
        auroc: AUROC of the best epoch's division, if the truth is known.
        once_auroc: The same on captions that stand once on their site.
        counted_auroc: AUROC of counting on the same pairs, by name of
            :data:`~pc2_baseline.analysis.counting.REFERENCES`.
    """

    checkpoint: str
    rsum: float
    dev_rsum: float
    networks: int
    one_network_rsum: float
    two_networks_rsum: float | None
    seconds: float
    memory_gb: float | None
    gpu_memory_gb: float | None
    auroc: float | None
    once_auroc: float | None = None
    counted_auroc: dict[str, float] = Field(default_factory=dict)


def measure(release: Path, run: Path, settings: Settings, title: str) -> Measured:
    """Train or resume a run, and score its best epoch on the test split.

    The submission, the board's result and, last, the record are written next to the run folder.
    ``title`` is the method's name on the board.
    """
    _reset_peak_memory()
    fresh = train(release, run, settings).fresh > 0
    memory = _peak_memory() if fresh else 0
    gpu_memory = torch.cuda.max_memory_allocated() if fresh else 0  # 0 without a GPU
    opened = open_run(run, release=release)
    about, bank, method = describe([opened], SPLIT, title), opened.bank(SPLIT), opened.method
    with opened.open(SPLIT, whole=True) as pairs:
        several = isinstance(method, Ensemble)
        scored = [
            method.similarities(part) if isinstance(method, Ensemble) else [method.similarity(part)]
            for part in (with_bank(pairs, bank) if bank else (pairs,))
        ]
        owner = pairs.image_of

    def combined(networks: int) -> Float[np.ndarray, "images captions"]:
        """Return the mean similarity of the first networks, hubs corrected."""
        means = [ensemble(each[:networks]) if several else each[0] for each in scored]
        return without_hubs(*means) if bank else means[0]

    rsums = {n: recalls(combined(n), owner).rsum for n in (1, 2) if n <= len(scored[0])}
    pack(sibling(run, ".zip"), combined(len(scored[0])), about)
    result = score(sibling(run, ".zip"), release)
    write_result(sibling(run, ".result.json"), result)
    last = read_state(run / LAST)
    auroc = last.history[last.best_epoch].figures.get("auroc")
    counted = None if auroc is None else report(run, opened.record, release, None).counted
    record = Measured(
        checkpoint=sha256_of(run / BEST / STATE),
        rsum=result.rsum,
        dev_rsum=last.best_rsum,
        networks=method.ensemble_size,
        one_network_rsum=rsums[1],
        two_networks_rsum=rsums.get(2),
        seconds=sum(epoch.seconds for epoch in last.history),
        memory_gb=round(memory / 2**30, 3) or None,
        gpu_memory_gb=round(gpu_memory / 2**30, 3) or None,
        auroc=auroc,
        once_auroc=counted.once_auroc.get("clean_prob") if counted else None,
        counted_auroc=counted.auroc if counted else {},
    )
    write_text(sibling(run, ".json"), record.model_dump_json(indent=2) + "\n")
    return record


def sibling(run: Path, ending: str) -> Path:
    """Return a path next to a run folder that begins with its name."""
    return run.with_name(f"{run.name}{ending}")


def _peak_memory() -> int:
    """Return the largest resident size of this process since the last reset, in bytes.

    On Linux, ``getrusage`` includes memory that the parent held before the process began.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return getrusage(RUSAGE_SELF).ru_maxrss
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _reset_peak_memory() -> None:
    """Reset peak memory, so that earlier runs in this process do not count."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    reset = Path("/proc/self/clear_refs")
    if os.access(reset, os.W_OK):
        reset.write_text("5")
