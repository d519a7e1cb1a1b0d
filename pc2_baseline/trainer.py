"""The life of a run: epochs, validation, selection, checkpoints; it knows no method."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file

from now_builder.errors import TrainingError
from now_builder.formats.atomic import replacing, write_text
from pc2_baseline.checkpoint import (
    CheckpointState,
    EpochRecord,
    copy_checkpoint,
    read_state,
    read_tensors,
    write_checkpoint,
)
from pc2_baseline.config import Settings
from pc2_baseline.data import PairSet, open_pairs, read_vocabulary
from pc2_baseline.methods import METHODS, Method, Sizes
from pc2_baseline.noise import describe
from pc2_baseline.progress import Clock, say
from pc2_baseline.retrieval import scores as all_scores
from pc2_baseline.run import (
    BEST,
    DIVISIONS,
    LAST,
    ReleaseRecord,
    RunRecord,
    fingerprints,
    pick_device,
    start_run,
)

FEWEST_PAIRS = 4


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training came to.

    Attributes:
        epochs: That the run now has.
        best_epoch: The epoch selected, on dev alone.
        best_rsum: Its dev rSum.
        fresh: How many epochs this call added.
    """

    epochs: int
    best_epoch: int
    best_rsum: float
    fresh: int


def train(release: Path, run: Path, settings: Settings, *, force: bool = False) -> Trained:
    """Train a method on a release, or go on where an earlier call was stopped.

    Args:
        release: Ours, or the authors' archive.
        run: The run folder.
        settings: All of them.
        force: Start over.

    Raises:
        ConfigError: If ``run`` holds another run, or a device is missing.
        FormatError: If the release cannot be read.
        TrainingError: If there are too few pairs, or the training breaks down.
    """
    device = pick_device(settings.train.device)
    _make_deterministic(on=settings.train.deterministic)
    with (
        open_pairs(release, "train", settings.data, device) as pairs,
        open_pairs(release, "dev", settings.data, device) as dev,
    ):
        _check_sizes(release, pairs, dev)
        record = RunRecord(
            release=ReleaseRecord(
                path=release.resolve(),
                fingerprints=fingerprints(release, settings.data),
                pairs=len(pairs),
                features=pairs.features,
                vocabulary=read_vocabulary(release, settings.data).idx,
                noise=settings.data.noise_file
                and describe(settings.data.noise_file, pairs.image_of, pairs.images),
            ),
            settings=settings,
        )
        run.mkdir(parents=True, exist_ok=True)
        with _alone(run):
            start_run(run, record, force=force)
            _tell_batch(len(pairs), settings.train.batch)
            return _Training(run, make_method(record, device), settings).go(pairs, dev)


def make_method(record: RunRecord, device: torch.device) -> Method:
    """Build the method of a run, freshly drawn."""
    sizes = Sizes(record.release.pairs, record.release.features, record.release.vocabulary)
    method: Method = METHODS[record.settings.method.name](record.settings, sizes, device)
    return method


def _make_deterministic(*, on: bool) -> None:
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)


def _check_sizes(release: Path, pairs: PairSet, dev: PairSet) -> None:
    if len(pairs) < FEWEST_PAIRS:
        raise TrainingError(
            f"{release}: {len(pairs)} training pairs, expected at least {FEWEST_PAIRS}"
        )
    if pairs.features != dev.features:
        raise TrainingError(
            f"{release}: regions of width {pairs.features} in train and {dev.features} in dev"
        )


def _tell_batch(pairs: int, batch: int) -> None:
    if pairs < batch:
        say(
            f"train has {pairs} pairs, fewer than train.batch = {batch}: "
            f"one batch of {pairs} an epoch"
        )


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Hold the run folder, so that two trainings never write to it at once."""
    descriptor = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrainingError(f"{run}: another training is writing to this folder") from None
    else:
        yield
    finally:
        os.close(descriptor)


class _Training:
    """One call of :func:`train` on an open run folder."""

    def __init__(self, run: Path, method: Method, settings: Settings) -> None:
        self.run = run
        self.method = method
        self.total = settings.train.warmup_epochs + settings.train.epochs
        self.state: CheckpointState | None = None

    def go(self, pairs: PairSet, dev: PairSet) -> Trained:
        """Run the epochs that are missing."""
        first = self._resume()
        if first >= self.total:
            say(f"{self.run}: done, {first} epochs; --force starts over")
        clock = Clock(first, self.total)
        for epoch in range(first, self.total):
            figures = self.method.fit_epoch(pairs, epoch)
            scores = dev_scores(self.method.similarity(dev), dev.image_of, epoch)
            seconds, left = clock.lap(epoch)
            record = EpochRecord(epoch=epoch, seconds=seconds, dev=scores, figures=figures)
            state = self._save(record)
            say(
                f"epoch {epoch + 1}/{self.total}: {seconds:.1f} s, "
                f"{len(pairs) / seconds:.0f} pairs/s, dev rSum {scores['rsum']:.1f} "
                f"(best {state.best_rsum:.1f} at {state.best_epoch + 1}), {left} left"
            )
        if self.state is None:
            raise TrainingError(f"{self.run}: no epochs to train")
        return Trained(
            self.state.epoch + 1, self.state.best_epoch, self.state.best_rsum, self.total - first
        )

    def _resume(self) -> int:
        """Take up the last checkpoint, mend what a kill left undone, give the next epoch."""
        last = self.run / LAST
        if not (last / "state.json").exists():
            return 0
        self.state = read_state(last)
        self.method.load_state_dict(read_tensors(last))
        self._follow(self.state)
        if self.state.epoch + 1 < self.total:
            say(f"{self.run}: going on after epoch {self.state.epoch + 1} of {self.total}")
        return self.state.epoch + 1

    def _save(self, record: EpochRecord) -> CheckpointState:
        """Write ``last/``, which commits the epoch, then all that follows from it."""
        before = self.state
        rsum = record.dev["rsum"]
        better = before is None or rsum > before.best_rsum
        state = CheckpointState(
            epoch=record.epoch,
            best_epoch=record.epoch if better or before is None else before.best_epoch,
            best_rsum=rsum if better or before is None else before.best_rsum,
            history=[*(before.history if before else []), record],
        )
        tensors = self.method.state_dict()
        if tensors.get("beliefs"):
            with replacing(self.run / DIVISIONS / f"{record.epoch:05d}.safetensors") as temporary:
                save_file(tensors["beliefs"], temporary)
        self.state = write_checkpoint(self.run / LAST, state, tensors)
        self._follow(self.state)
        return self.state

    def _follow(self, state: CheckpointState) -> None:
        """Bring ``best/`` and ``log.jsonl`` up to the last checkpoint."""
        if state.best_epoch == state.epoch:
            copy_checkpoint(self.run / LAST, self.run / BEST, {"networks", "beliefs"})
        lines = [json.dumps(record.model_dump(mode="json")) for record in state.history]
        write_text(self.run / "log.jsonl", "\n".join(lines) + "\n")


def dev_scores(
    similarity: Float[np.ndarray, "images captions"],
    owner: Int[np.ndarray, " captions"],
    epoch: int,
) -> dict[str, float]:
    """Recalls of the dev split in percent, and their sum, with the board's own function.

    Raises:
        TrainingError: If a similarity is not finite.
    """
    if not np.isfinite(similarity).all():
        raise TrainingError(f"epoch {epoch}: similarities of dev that are not finite")
    return all_scores(similarity, owner)
