"""One run of a table, in a process of its own: trained, measured, and scored by the board."""

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from leaderboard.scoring.evaluate import read_inputs, score
from leaderboard.store.entries import write_result
from leaderboard.submission.archive import Compute, Submission, pack
from now_builder.config import Strict
from now_builder.errors import NowError
from now_builder.formats.io import sha256_of, write_text
from now_builder.formats.split import Split
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs.hubs import with_bank, without_hubs
from pc2_baseline.runs.open_run import open_run
from pc2_baseline.runs.predict import describe
from pc2_baseline.runs.side_by_side import end_with_parent, peak_memory
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.method import Ensemble, Method
from pc2_baseline.training.run_folder import BEST, LAST

WHOLE, ONE, TWO = "", ".one", ".two"
"""Endings of names of files after ``seed-N``: the whole method, one of its networks, or two."""

_PARTS = {ONE: 1, TWO: 2}
SPLIT: Split = "test"


class Assignment(Strict):
    """Message to the process of a run; ``title`` is the method's name on the board."""

    release: Path
    run: Path
    settings: Settings
    title: str
    threads: int


class Measured(Strict):
    """``seed-N.json``: figures of a finished run, the last of its files.

    Attributes:
        checkpoint: SHA-256 of ``best/state.json``, which identifies a training.
        rsum: rSum on the test split.
        dev_rsum: rSum on dev, by which the epoch was chosen.
        networks: Number of networks whose similarities are averaged.
        scored: Endings of the files that were scored, of :data:`WHOLE`, :data:`ONE`, :data:`TWO`.
        seconds: Time of all epochs, choosing the best one on dev included.
        memory_gb: Largest resident size of the process that ended the training, in GiB; ``None`` if
            it was ended before it could say.
        gpu_memory_gb: Largest size of its tensors on the GPU, in GiB; ``None`` without a GPU.
        auroc: AUROC of the best epoch's division, where the truth is known.
    """

    checkpoint: str
    rsum: float
    dev_rsum: float
    networks: int
    scored: tuple[str, ...]
    seconds: float
    memory_gb: float | None
    gpu_memory_gb: float | None
    auroc: float | None


def measure(job: Assignment) -> Measured:
    """Train a run, or go on with it; score its best epoch on the test split.

    Submissions, the board's results and, last, the record are written beside the run folder.
    """
    fresh = train(job.release, job.run, job.settings).fresh > 0
    memory = peak_memory() if fresh else 0
    gpu_memory = torch.cuda.max_memory_allocated() if fresh else 0  # 0 without a GPU
    networks, rsums = _score(job)
    last = read_state(job.run / LAST)
    record = Measured(
        checkpoint=sha256_of(job.run / BEST / STATE),
        rsum=rsums[WHOLE],
        dev_rsum=last.best_rsum,
        networks=networks,
        scored=tuple(rsums),
        seconds=sum(epoch.seconds for epoch in last.history),
        memory_gb=round(memory / 2**30, 3) or None,
        gpu_memory_gb=round(gpu_memory / 2**30, 3) or None,
        auroc=last.history[last.best_epoch].figures.get("auroc"),
    )
    write_text(_beside(job.run, ".json"), record.model_dump_json(indent=2) + "\n")
    return record


def by_networks(
    method: Method, split: PairSet
) -> Mapping[str, Float[np.ndarray, "images captions"]]:
    """Score a split with a method as it is, and with its first one or two networks.

    Matrices that would be the same as another are left out, and so are those of a method that is no
    :class:`~pc2_baseline.training.method.Ensemble`.
    """
    if not isinstance(method, Ensemble):
        return {WHOLE: method.similarity(split)}
    each = method.similarities(split)
    found = {WHOLE: ensemble(each)}
    if len(each) > 1:
        found[ONE] = each[0]
    if len(each) > 2:
        found[TWO] = ensemble(each[:2])
    return found


def _score(job: Assignment) -> tuple[int, dict[str, float]]:
    """Score a run as it is and by networks; return how many it has, and the rSum of each."""
    opened = open_run(job.run, release=job.release)
    with opened.open(SPLIT, whole=True) as pairs:
        whole = describe([opened], SPLIT, job.title)
        bank = opened.bank(SPLIT)
        sets = with_bank(pairs, bank) if bank else (pairs,)
        scored = [by_networks(opened.method, own) for own in sets]
    matrices = {
        ending: without_hubs(*(own[ending] for own in scored)) if bank else scored[0][ending]
        for ending in scored[0]
    }
    read, rsums = cache(read_inputs), {}
    for ending, similarity in matrices.items():
        submission = _beside(job.run, f"{ending}.zip")
        pack(submission, similarity, whole if ending == WHOLE else _part_of(whole, _PARTS[ending]))
        result = score(submission, job.release, read=read)
        write_result(_beside(job.run, f"{ending}.result.json"), result)
        rsums[ending] = result.rsum
    return opened.method.ensemble_size, rsums


def _part_of(whole: Submission, networks: int) -> Submission:
    """Describe what some of a method's networks do by themselves; their size is not known."""
    training = whole.training.model_copy(update={"ensemble_size": networks})
    return whole.model_copy(update={"training": training, "compute": Compute()})


def _beside(run: Path, ending: str) -> Path:
    return run.with_name(f"{run.name}{ending}")


def main() -> None:
    """Do what standard input says; a user's mistake ends in one line and exit code 1."""
    job = Assignment.model_validate_json(end_with_parent())
    torch.set_num_threads(job.threads)
    try:
        measure(job)
    except NowError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
