"""The epoch loop of a run: validation, selection, checkpoints, resuming."""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int
from safetensors.torch import save_file

from now_builder.errors import TrainingError
from now_builder.formats.io import (
    atomic_write,
    lock_folder,
    remove_leftovers,
    write_json,
    write_text,
)
from pc2_baseline import process_groups
from pc2_baseline.config import TrainSettings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.readers import make_reader
from pc2_baseline.modules.learner import BrokenStepError
from pc2_baseline.modules.retrieval import scores as all_scores
from pc2_baseline.progress import Clock, say
from pc2_baseline.training.checkpoint import (
    STATE,
    CheckpointState,
    EpochRecord,
    copy_checkpoint,
    load_checkpoint,
    read_state,
    remove_unnamed,
    write_checkpoint,
)
from pc2_baseline.training.method import TRAINING, EpochOutputs, Method
from pc2_baseline.training.run_folder import BEST, FAILURE, LAST, LOG, RunRecord

Judge = Callable[[EpochOutputs], dict[str, float]]
"""Computes figures of an epoch for the log; the first one is also in the progress line."""


@runtime_checkable
class Callback(Protocol):
    """Shows the epochs of a training without influencing it; ``name`` is for messages."""

    name: str

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Show the epoch that just ended."""

    def close(self) -> None:
        """Close open files."""


@dataclass(frozen=True, slots=True)
class Trained:
    """Outcome of a training.

    Attributes:
        epochs: Number of epochs of the run.
        best_epoch: The epoch selected on dev.
        best_rsum: Dev rSum of that epoch.
        best_dev: Dev recalls of that epoch in percent, and ``rsum``.
        stopped: Whether training stopped early.
        fresh: Number of epochs that this call trained.
    """

    epochs: int
    best_epoch: int
    best_rsum: float
    best_dev: dict[str, float]
    stopped: bool
    fresh: int

    def in_words(self) -> str:
        """Return a line for the terminal."""
        best = f"best epoch {self.best_epoch + 1} with dev rSum {self.best_rsum:.1f}"
        return f"{self.epochs} epochs, {best}"

    @classmethod
    def of(cls, state: CheckpointState, fresh: int) -> "Trained":
        """Summarise a checkpoint."""
        best = state.history[state.best_epoch].dev
        return cls(state.epoch + 1, state.best_epoch, state.best_rsum, best, state.stopped, fresh)


@contextmanager
def lock_run(run: Path) -> Iterator[None]:
    """Lock the run folder against a second training.

    Raises:
        ConfigError: If another command has locked it.
    """
    with lock_folder(run) if process_groups.is_first() else nullcontext():
        yield


class Trainer:
    """Train a method epoch by epoch in an open run folder, from its last checkpoint on."""

    def __init__(
        self,
        run: Path,
        record: RunRecord,
        method: Method,
        judge: Judge | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.run = run
        self.record = record
        self.train = record.settings.train
        self.method = method
        self.judge = judge
        self.callbacks = list(callbacks) if process_groups.is_first() else []
        self.state: CheckpointState | None = None

    def fit(self, pairs: PairSet, dev: PairSet) -> Trained:
        """Train the remaining epochs.

        Raises:
            TrainingError: If a step fails, a similarity is not finite, or there are no epochs.
        """
        first, total = self._resume(), self.train.total_epochs
        clock = Clock(first, total)
        with ExitStack() as stack:
            for callback in self.callbacks:
                stack.callback(callback.close)
            for epoch in range(first, total):
                figures = self._fit_epoch(pairs, epoch)
                scores = self._scores(dev, epoch)
                outputs = self.method.epoch_outputs()
                judged = self.judge(outputs) if self.judge else {}
                seconds, left = clock.lap(epoch)
                record = EpochRecord(
                    epoch=epoch, seconds=seconds, dev=scores, figures={**figures, **judged}
                )
                state = next_state(self.state, record, self.train)
                self._show(state, outputs)  # before the checkpoint, so that none is lost
                self.state = self._save(state, outputs)
                say(f"{self._line(state, len(pairs), judged)}, {left} left")
                if state.stopped:
                    patience = f"{self.train.patience} epochs (train.patience)"
                    say(f"stopped early: no better dev rSum in {patience}")
                    break
        if self.state is None:
            raise TrainingError(f"{self.run}: no epochs to train")
        return Trained.of(self.state, self.state.epoch + 1 - first)

    def _scores(self, dev: PairSet, epoch: int) -> dict[str, float]:
        """Score dev; return nothing for a warm-up epoch that is not evaluated."""
        if not self.train.evaluates(epoch):
            return {}
        return dev_scores(self.method.similarity(dev), dev.image_of, epoch)

    def _line(self, state: CheckpointState, pairs: int, judged: dict[str, float]) -> str:
        record = state.history[-1]
        line = f"epoch {record.epoch + 1}/{self.train.total_epochs}: {record.seconds:.1f} s"
        line += f", {pairs / record.seconds:.0f} pairs/s"
        if record.dev:
            line += f", dev rSum {record.dev['rsum']:.1f}"
            line += f" (best {state.best_rsum:.1f} at {state.best_epoch + 1})"
        for name in list(judged)[:1]:
            line += f", {name.upper()} {judged[name]:.3f}"
        return line

    def _show(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Call each callback; report and remove one that fails."""
        for callback in list(self.callbacks):
            try:
                callback.on_epoch_end(state, outputs)
            except Exception as error:  # noqa: BLE001 - a failed picture must not stop it
                reason = str(error).partition("\n")[0]
                say(f"{callback.name}: disabled ({type(error).__name__}: {reason})")
                self.callbacks.remove(callback)

    def _fit_epoch(self, pairs: PairSet, epoch: int) -> dict[str, float]:
        """Train for an epoch; if a step fails, write its pairs to ``failure.json``."""
        try:
            return self.method.fit_epoch(pairs, epoch)
        except BrokenStepError as error:
            path = self.run / FAILURE
            write_json(path, self._described(error))
            raise TrainingError(f"{error}; its pairs are in {path}") from None

    def _described(self, error: BrokenStepError) -> dict[str, object]:
        step, release = error.step, self.record.release
        reader = make_reader(release.path, self.record.settings.data)
        keys = reader.pair_names(release.pairs)["key"]
        rows = [int(row) for row in step.pair_index]
        return {
            "problem": error.problem,
            "epoch": step.epoch,
            "batch": step.batch,
            "peer": step.peer,
            "loss": _number(error.loss),
            "parts": {name: _number(float(value)) for name, value in step.parts.items()},
            "pair_index": rows,
            "keys": [keys[row] for row in rows],
        }

    def _resume(self) -> int:
        """Load the last checkpoint, complete an interrupted save, and return the next epoch."""
        remove_temporary_files(self.run)
        last = self.run / LAST
        if not (last / STATE).exists():
            return 0
        self.state = read_state(last)
        load_checkpoint(self.method, last)
        if process_groups.is_first():
            sync_run(self.run, self.state)
        total = self.train.total_epochs
        say(f"{self.run}: resuming after epoch {self.state.epoch + 1} of {total}")
        return self.state.epoch + 1

    def _save(self, state: CheckpointState, outputs: EpochOutputs) -> CheckpointState:
        """Write the outputs, then ``last/``, which commits the epoch, then ``best/`` and log."""
        tensors = self.method.state_dict()
        if not process_groups.is_first():
            return state
        for folder, values in outputs.items():
            path = self.run / folder / f"{state.epoch:05d}.safetensors"
            with atomic_write(path) as temporary:
                save_file(dict(values), temporary)
        state = write_checkpoint(self.run / LAST, state, tensors)
        sync_run(self.run, state)
        (self.run / FAILURE).unlink(missing_ok=True)
        return state


def _number(value: float) -> float | str:
    """Return a value for JSON, as text if it is not finite."""
    return value if math.isfinite(value) else str(value)


def next_state(
    before: CheckpointState | None, record: EpochRecord, train: TrainSettings
) -> CheckpointState:
    """Add an epoch to the history; update the best epoch and stop early if it is time.

    Source:
        ``train.select_from_epoch``: PC2's released code forgets its best epoch at the 25th.
    """
    late = train.warmup_epochs + train.select_from_epoch
    start = late if train.select_from_epoch else 0  # by default the warm-up may be the best, too
    # The new epoch is the best unless an earlier one has a higher rSum. Two kinds of earlier epochs
    # do not count: unscored ones, and, once the selection has started, those from before its start.
    # Until then there is a best epoch, too, to predict with.
    best_epoch, best_rsum = record.epoch, record.dev.get("rsum", 0.0)
    unjudged = before is not None and not before.history[before.best_epoch].dev
    too_early = before is not None and before.best_epoch < start <= record.epoch
    if before is not None and not (too_early or unjudged) and best_rsum <= before.best_rsum:
        best_epoch, best_rsum = before.best_epoch, before.best_rsum
    # Patience counts from the start of the selection: epochs before cannot be selected.
    waited = record.epoch - max(best_epoch, late - 1)
    return CheckpointState(
        epoch=record.epoch,
        best_epoch=best_epoch,
        best_rsum=best_rsum,
        # The last epoch is the end anyway, not an early stop.
        stopped=0 < train.patience <= waited and record.epoch + 1 < train.total_epochs,
        history=[*(before.history if before else []), record],
    )


def remove_temporary_files(run: Path) -> None:
    """Remove the temporary files that a kill left in a run."""
    for folder in (run, *filter(Path.is_dir, run.iterdir())):
        remove_leftovers(folder)


def sync_run(run: Path, state: CheckpointState) -> None:
    """Update ``best/`` and ``log.jsonl`` to the last checkpoint, and clean up ``last/``."""
    remove_unnamed(run / LAST, state)
    if state.best_epoch == state.epoch:
        copy_checkpoint(run / LAST, run / BEST, leave_out={TRAINING})
    lines = [json.dumps(record.model_dump(mode="json")) for record in state.history]
    write_text(run / LOG, "\n".join(lines) + "\n")


def dev_scores(
    similarity: Float[np.ndarray, "images captions"],
    owner: Int[np.ndarray, " captions"],
    epoch: int,
) -> dict[str, float]:
    """Compute recalls of the dev split in percent and their sum, with the board's own function.

    Raises:
        TrainingError: If a similarity is not finite.
    """
    if not np.isfinite(similarity).all():
        raise TrainingError(f"epoch {epoch}: similarities of dev that are not finite")
    return all_scores(similarity, owner)
