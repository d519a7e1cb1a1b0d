"""The life of a run: epochs, validation, selection, checkpoints; it knows no method."""

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file

from now_builder.errors import TrainingError
from now_builder.formats.io import (
    remove_leftovers,
    replacing,
    sha256_of,
    write_json,
    write_text,
)
from now_builder.formats.noise import describe
from now_builder.formats.split import Split
from pc2_baseline.analysis.truth import Truth, judged, pair_names, read_truth
from pc2_baseline.config import Settings, TrainSettings
from pc2_baseline.data.pairs import PairSet, open_pairs, read_vocabulary
from pc2_baseline.methods import METHODS, Method, Sizes
from pc2_baseline.methods.base import State
from pc2_baseline.modules.learner import BrokenStepError
from pc2_baseline.modules.onednn_products import fast_float32
from pc2_baseline.modules.retrieval import scores as all_scores
from pc2_baseline.training import process_groups as parallel
from pc2_baseline.training.callbacks import Watch
from pc2_baseline.training.checkpoint import (
    STATE,
    CheckpointState,
    EpochRecord,
    copy_checkpoint,
    read_state,
    read_tensors,
    write_checkpoint,
)
from pc2_baseline.training.progress import Clock, say
from pc2_baseline.training.run_folder import (
    BEST,
    DIVISIONS,
    FAILURE,
    LAST,
    LOG,
    PICTURES,
    ReleaseRecord,
    RunRecord,
    fingerprints,
    hash_of_vocabulary,
    pick_device,
    read_run,
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
        best_dev: Its recalls in percent, and ``rsum``.
        stopped: Whether it ended early, for want of a better epoch.
        fresh: How many epochs this call added.
    """

    epochs: int
    best_epoch: int
    best_rsum: float
    best_dev: dict[str, float]
    stopped: bool
    fresh: int

    def as_json(self) -> dict[str, Any]:
        """Give plain values."""
        return asdict(self)

    @classmethod
    def by(cls, state: CheckpointState, fresh: int) -> "Trained":
        """Tell what a checkpoint has come to."""
        best = state.history[state.best_epoch].dev
        return cls(state.epoch + 1, state.best_epoch, state.best_rsum, best, state.stopped, fresh)


def train(release: Path, run: Path, settings: Settings, *, force: bool = False) -> Trained:
    """Train a method on a release, or go on where an earlier call was stopped.

    A run that is done is left as it is, and its features are not even opened.

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
    parallel.start(settings.train.device)
    device = pick_device(settings.train.device)
    prints = fingerprints(release, settings.data)
    if not force and (state := _finished(run, prints, settings)):
        if parallel.is_first():
            _follow(run, state)
        early = ", stopped early" if state.stopped else ""
        say(f"{run}: done, {state.epoch + 1} epochs{early}; --force starts over")
        return Trained.by(state, 0)
    _make_deterministic(on=settings.train.deterministic)
    with (
        fast_float32(),
        open_pairs(release, "train", settings.data, device) as pairs,
        open_pairs(release, "dev", settings.data, device) as dev,
    ):
        _check_sizes(release, pairs, dev)
        vocabulary = read_vocabulary(release, settings.data)
        record = RunRecord(
            release=ReleaseRecord(
                path=release.resolve(),
                fingerprints=prints,
                pairs=len(pairs),
                features=pairs.features,
                vocabulary=vocabulary.idx,
                vocabulary_sha256=hash_of_vocabulary(vocabulary),
                noise=settings.data.noise_file
                and describe(settings.data.noise_file, pairs.image_of, pairs.images),
            ),
            settings=settings,
        )
        truth = _truth(record, pairs)
        with _alone(run):
            if parallel.is_first():
                start_run(run, record, force=force)
                _tell_batch(len(pairs), settings.train.batch)
            parallel.wait()
            return _Training(run, record, make_method(record, device), truth).go(pairs, dev)


def _finished(run: Path, prints: dict[Split, str], settings: Settings) -> CheckpointState | None:
    """Give the last checkpoint of a run that has nothing left to do."""
    if not (run / "run.toml").exists() or not (run / LAST / STATE).exists():
        return None
    record = read_run(run)
    if record.settings != settings or record.release.fingerprints != prints:
        return None
    noise, file = record.release.noise, settings.data.noise_file
    if noise and file and noise.sha256 != sha256_of(file):
        return None
    state = read_state(run / LAST)
    return state if state.stopped or state.epoch + 1 >= _total(settings.train) else None


def _total(train: TrainSettings) -> int:
    return train.warmup_epochs + train.epochs


def _truth(record: RunRecord, pairs: PairSet) -> Truth | None:
    """Read what is known of the training pairs, to judge divisions by; nothing learns from it."""
    data = record.settings.data
    if data.truth is not None:
        return read_truth(data.truth, pair_names(record.release.path, data, len(pairs)))
    if pairs.matched is None or pairs.matched.all() or not pairs.matched.any():
        return None
    return Truth(pairs.matched, np.ones(len(pairs), dtype=bool))


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
    if not parallel.is_first():
        yield
        return
    run.mkdir(parents=True, exist_ok=True)
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

    def __init__(self, run: Path, record: RunRecord, method: Method, truth: Truth | None) -> None:
        self.run = run
        self.record = record
        self.train = record.settings.train
        self.method = method
        self.truth = truth
        self.state: CheckpointState | None = None

    def go(self, pairs: PairSet, dev: PairSet) -> Trained:
        """Run the epochs that are missing."""
        first, total = self._resume(), _total(self.train)
        clock = Clock(first, total)
        with closing(self._watch(first)) as watch:
            for epoch in range(first, total):
                figures = self._fit(pairs, epoch)
                scores = dev_scores(self.method.similarity(dev), dev.image_of, epoch)
                tensors = self.method.state_dict()
                beliefs = {
                    name: value.numpy() for name, value in tensors.get("beliefs", {}).items()
                }
                if self.truth is not None and beliefs:
                    figures = {**figures, **judged(beliefs, self.truth)}
                seconds, left = clock.lap(epoch)
                record = EpochRecord(epoch=epoch, seconds=seconds, dev=scores, figures=figures)
                state = next_state(self.state, record, self.train)
                watch.epoch(state, beliefs)  # before the epoch counts, so that none is missing
                self.state = self._save(state, tensors)
                auroc = f", AUROC {figures['auroc']:.3f}" if "auroc" in figures else ""
                say(
                    f"epoch {epoch + 1}/{total}: {seconds:.1f} s, "
                    f"{len(pairs) / seconds:.0f} pairs/s, dev rSum {scores['rsum']:.1f} "
                    f"(best {state.best_rsum:.1f} at {state.best_epoch + 1}){auroc}, {left} left"
                )
                if state.stopped:
                    say(
                        f"stopped early: no better dev rSum in {self.train.patience} epochs "
                        "(train.patience)"
                    )
                    break
        if self.state is None:
            raise TrainingError(f"{self.run}: no epochs to train")
        return Trained.by(self.state, self.state.epoch + 1 - first)

    def _watch(self, first: int) -> Watch:
        """Show epochs, in the process that writes."""
        quiet = {} if parallel.is_first() else {"tensorboard": False, "pictures": False}
        train = self.train.model_copy(update=quiet)
        return Watch(self.run, self.record.release.pairs, train, self.truth, first)

    def _fit(self, pairs: PairSet, epoch: int) -> dict[str, float]:
        """Learn for an epoch; where a step breaks down, keep what a user needs to look into it."""
        try:
            return self.method.fit_epoch(pairs, epoch)
        except BrokenStepError as error:
            path = self.run / FAILURE
            write_json(path, self._described(error))
            raise TrainingError(f"{error}; its pairs are in {path}") from None

    def _described(self, error: BrokenStepError) -> dict[str, object]:
        step = error.step
        release = self.record.release
        keys = pair_names(release.path, self.record.settings.data, release.pairs)["key"]
        rows = [int(row) for row in step.pair_index]
        return {
            "problem": error.problem,
            "epoch": step.epoch,
            "batch": step.batch,
            "peer": step.peer,
            "loss": _number(error.loss),
            "parts": {name: _number(value) for name, value in step.parts.items()},
            "pair_index": rows,
            "keys": [keys[row] for row in rows],
        }

    def _resume(self) -> int:
        """Take up the last checkpoint, mend what a kill left undone, give the next epoch."""
        for folder in (self.run, self.run / DIVISIONS, self.run / PICTURES):
            remove_leftovers(folder)
        last = self.run / LAST
        if not (last / STATE).exists():
            return 0
        self.state = read_state(last)
        self.method.load_state_dict(read_tensors(last))
        if parallel.is_first():
            _follow(self.run, self.state)
        say(f"{self.run}: going on after epoch {self.state.epoch + 1} of {_total(self.train)}")
        return self.state.epoch + 1

    def _save(self, state: CheckpointState, tensors: State) -> CheckpointState:
        """Write ``last/``, which commits the epoch, then all that follows from it."""
        if not parallel.is_first():
            return state
        if tensors.get("beliefs"):
            with replacing(self.run / DIVISIONS / f"{state.epoch:05d}.safetensors") as temporary:
                save_file(tensors["beliefs"], temporary)
        state = write_checkpoint(self.run / LAST, state, tensors)
        _follow(self.run, state)
        (self.run / FAILURE).unlink(missing_ok=True)
        return state


def _number(value: float) -> float | str:
    """JSON has no word for what is not finite."""
    return value if math.isfinite(value) else str(value)


def next_state(
    before: CheckpointState | None, record: EpochRecord, train: TrainSettings
) -> CheckpointState:
    """Add an epoch to the history: is it the best, and is it the last?

    Args:
        before: Of the epoch before.
        record: Of the new epoch.
        train: How to select and when to stop.

    Source:
        ``train.select_from_epoch``: PC2's released code forgets its best epoch at the 25th.
    """
    late = train.warmup_epochs + train.select_from_epoch
    start = late if train.select_from_epoch else 0
    best_epoch, best_rsum = record.epoch, record.dev["rsum"]
    too_early = before is not None and before.best_epoch < start <= record.epoch
    if before is not None and not too_early and best_rsum <= before.best_rsum:
        best_epoch, best_rsum = before.best_epoch, before.best_rsum
    waited = record.epoch - max(best_epoch, late - 1)
    return CheckpointState(
        epoch=record.epoch,
        best_epoch=best_epoch,
        best_rsum=best_rsum,
        stopped=0 < train.patience <= waited and record.epoch + 1 < _total(train),
        history=[*(before.history if before else []), record],
    )


def _follow(run: Path, state: CheckpointState) -> None:
    """Bring ``best/`` and ``log.jsonl`` up to the last checkpoint."""
    if state.best_epoch == state.epoch:
        copy_checkpoint(run / LAST, run / BEST, {"networks", "beliefs"})
    lines = [json.dumps(record.model_dump(mode="json")) for record in state.history]
    write_text(run / LOG, "\n".join(lines) + "\n")


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
