"""The stage ``train``: from a release and settings to a run."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from now_builder.errors import TrainingError
from now_builder.formats.io import sha256_of
from now_builder.formats.noise import describe
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline import process_groups
from pc2_baseline.analysis.truth import Truth, quality, truth_of
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, open_split
from pc2_baseline.data.readers import DataIdentity, Reader, check_layout, identify, make_reader
from pc2_baseline.method_section import MethodSettings
from pc2_baseline.methods import make_method
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.reading import fit_word_sides, texts_read, whiten_once
from pc2_baseline.modules.seeds import repeat_exactly
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.progress import say
from pc2_baseline.training.checkpoint import STATE, CheckpointState, read_state
from pc2_baseline.training.method import EpochOutputs, Sizes
from pc2_baseline.training.run_folder import (
    CURVES,
    LAST,
    PICTURES,
    TENSORBOARD,
    ReleaseRecord,
    RunRecord,
    pick_device,
    read_run,
    start_run,
)
from pc2_baseline.training.tensorboard import TensorBoardCallback
from pc2_baseline.training.trainer import Callback, Trained, Trainer, follow, locked, tidy

FEWEST_PAIRS = 4


def train(
    release: Path | str, run: Path | str, settings: Settings, *, force: bool = False
) -> Trained:
    """Train a method on a release, or go on where an earlier call was stopped.

    A finished run is left as it is, and its features are not even opened.

    Args:
        release: Ours, the authors' archive, or a data set of the field.
        run: The run folder.
        settings: All settings of the run.
        force: Start over.

    Raises:
        ConfigError: If ``run`` holds another run, a device is missing, or the settings ask for a
            truth or weights that are not known.
        FormatError: If the release cannot be read.
        TrainingError: If there are too few pairs, or the training breaks down.
    """
    release, run = Path(release), Path(run)
    process_groups.start(settings.train.device)
    device = pick_device(settings.train.device)
    check_layout(release, settings.data)
    reader = make_reader(release, settings.data, settings.model)
    identity = identify(reader, reads=settings.reads)
    if not force and (state := finished(run, identity, settings)):
        if process_groups.is_first():
            tidy(run)
            follow(run, state)
        early = ", stopped early" if state.stopped else ""
        say(f"{run}: done, {state.epoch + 1} epochs{early}; --force starts over")
        return Trained.of(state, 0)
    if settings.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    repeat_exactly(settings.train.deterministic)
    backends: Any = torch.backends
    for kind in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        kind.fp32_precision = "tf32" if settings.train.tf32 else "ieee"
    with (
        fast_float32(settings.model.embed_dim),
        open_split(reader, "train", device) as opened,
        open_split(reader, "dev", device) as opened_dev,
    ):
        _check_sizes(release, opened, opened_dev)
        pairs, dev = (texts_read(split, settings) for split in (opened, opened_dev))
        record = _run_record(reader, identity, pairs, settings)
        named, taught_by_it = settings.data.truth, bool(settings.method.takes_matched)
        truth = truth_of(record, release, named, pairs.matched, both=not taught_by_it)
        taught = _with_truth(pairs, truth, settings.method)
        with locked(run):
            if process_groups.is_first():
                start_run(run, record, force=force)
                if len(pairs) < settings.train.batch:
                    say(
                        f"train has {len(pairs)} pairs, fewer than train.batch = "
                        f"{settings.train.batch}: one batch of {len(pairs)} an epoch"
                    )
            process_groups.wait()
            method = make_method(settings, _sizes(record, pairs), device)
            told = truth if truth and truth.has_both else None
            judge = partial(judge_division, told, settings.division_threshold) if told else None
            trainer = Trainer(run, record, method, judge, _callbacks(run, record, truth))
            gib = settings.data.memory_gb
            return trainer.fit(whiten_once(method, taught, gib), whiten_once(method, dev, gib))


def finished(run: Path, identity: DataIdentity, settings: Settings) -> CheckpointState | None:
    """Return the last checkpoint of a run of these data and settings if nothing is left to do."""
    if not (run / "run.toml").exists() or not (run / LAST / STATE).exists():
        return None
    record = read_run(run)
    if record.settings != settings or record.release.difference(identity):
        return None
    known, data = record.release, settings.data
    files = ((known.noise and known.noise.sha256, data.noise_file),
             (known.truth_sha256, data.truth))  # fmt: skip
    if any(sha256 and file and sha256 != sha256_of(file) for sha256, file in files):
        return None
    state = read_state(run / LAST)
    return state if state.stopped or state.epoch + 1 >= settings.train.total_epochs else None


def _run_record(
    reader: Reader, identity: DataIdentity, pairs: PairSet, settings: Settings
) -> RunRecord:
    noise_file = settings.data.noise_file
    truth = settings.data.truth if settings.method.takes_matched else None
    release = ReleaseRecord(
        path=reader.release.resolve(),
        fingerprints=identity.fingerprints,
        features_sha256=identity.features_sha256,
        pairs=len(pairs),
        features=pairs.features,
        vocabulary=reader.vocabulary.idx,
        vocabulary_sha256=identity.vocabulary_sha256,
        texts_sha256=identity.texts_sha256,
        encoder_sha256=identity.encoder_sha256,
        texts=len(pairs.captions[0]) - WIDTH if settings.model.text_encoder else 0,
        page_texts=0 if pairs.page_texts is None else pairs.page_texts.shape[1],
        noise=noise_file and describe(noise_file, pairs.image_of, pairs.images),
        truth_sha256=truth and sha256_of(truth),
    )
    return RunRecord(release=release, settings=settings)


def _sizes(record: RunRecord, pairs: PairSet) -> Sizes:
    """Return the sizes of a method, with the words of the training split if its network reads."""
    sizes = record.release.sizes
    if record.settings.model.similarity != "reading":
        return sizes
    return replace(sizes, words=fit_word_sides(pairs))


def _with_truth(pairs: PairSet, truth: Truth | None, method: MethodSettings) -> PairSet:
    """Add the truth to the pairs of a method that is taught by it; write a line."""
    if not method.takes_matched:
        return pairs
    known = pairs if truth is None else replace(pairs, matched=truth.matched)
    matched = len(known.matched_rows())
    if matched < FEWEST_PAIRS:
        raise TrainingError(f"{matched} training pairs match, expected at least {FEWEST_PAIRS}")
    say(
        f"{method.takes_matched} the {matched} of {len(pairs)} pairs that the truth calls matched, "
        "so the truth is part of this training"
    )
    return known


def _callbacks(run: Path, record: RunRecord, truth: Truth | None) -> list[Callback]:
    train, pairs = record.settings.train, record.release.pairs
    callbacks: list[Callback] = []
    if train.tensorboard:
        callbacks.append(TensorBoardCallback(run / TENSORBOARD, pairs))
    if train.pictures:
        callbacks.append(PictureCallback(run, record, truth))
    return callbacks


def _check_sizes(release: Path, pairs: PairSet, dev: PairSet) -> None:
    if len(pairs) < FEWEST_PAIRS:
        raise TrainingError(
            f"{release}: {len(pairs)} training pairs, expected at least {FEWEST_PAIRS}"
        )
    if pairs.features != dev.features:
        raise TrainingError(
            f"{release}: regions of width {pairs.features} in train and {dev.features} in dev"
        )


def judge_division(truth: Truth, threshold: float, outputs: EpochOutputs) -> dict[str, float]:
    """Compare an epoch's division with the truth, for the log; nothing learns from it.

    Returns:
        AUROC, precision and recall; nothing without a division, or if the method was told of all
        known pairs of a kind.
    """
    division = _division(outputs)
    known = truth.without_taught(division)
    if not division or not known.has_both:
        return {}
    found = quality(0, division, known, threshold)
    figures = {
        "auroc": found.auroc,
        "clean_precision": found.precision,
        "clean_recall": found.recall,
    }
    return {name: value for name, value in figures.items() if value is not None}


class PictureCallback:
    """Draw ``RUN/curves.png``, and each epoch's division where there is one.

    A truth colours the pairs; the end of the warm-up is marked.
    """

    def __init__(self, run: Path, record: RunRecord, truth: Truth | None) -> None:
        self.name = f"pictures of {run}"
        self._run = run
        self._pairs = record.release.pairs
        self._warmup = record.settings.train.warmup_epochs
        self._how = record.settings.division_threshold, record.settings.division_scale
        self._truth = truth

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Draw the epoch that just ended."""
        from pc2_baseline.analysis.pictures import draw_curves, draw_division

        if division := _division(outputs):
            path = self._run / PICTURES / f"{state.epoch:05d}.png"
            title = f"Epoch {state.epoch + 1}"
            draw_division(path, division, self._truth, title, *self._how)
        draw_curves(self._run / CURVES, state, self._pairs, self._warmup)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _division(outputs: EpochOutputs) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in outputs.get(DIVISIONS, {}).items()}
