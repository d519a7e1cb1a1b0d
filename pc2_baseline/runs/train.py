"""Train a run on a release."""

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from now_builder.errors import TrainingError
from now_builder.formats.benchmarks import PRECOMP
from now_builder.formats.io import sha256_of
from now_builder.formats.noise import describe
from now_builder.formats.release import read_manifest, region_attributes
from now_builder.formats.word_vectors import read_columns
from pc2_baseline import process_groups
from pc2_baseline.analysis.truth import Truth, quality, truth_of
from pc2_baseline.config import DEFAULT_PRESET, Settings, read_settings
from pc2_baseline.data.pairs import PairSet, open_split
from pc2_baseline.data.readers import (
    DataIdentity,
    Reader,
    check_layout,
    identify,
    make_reader,
    tracks_of,
)
from pc2_baseline.method_section import MethodSettings
from pc2_baseline.methods import make_method
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.reading import cache_whitened, fit_word_sides, with_texts_read
from pc2_baseline.modules.seeds import repeat_exactly
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.progress import say
from pc2_baseline.training.checkpoint import STATE, CheckpointState, read_state
from pc2_baseline.training.method import EpochOutputs
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
from pc2_baseline.training.trainer import (
    Callback,
    Trained,
    Trainer,
    lock_run,
    remove_temporary_files,
    sync_run,
)

FEWEST_PAIRS = 4


def train(
    release: Path | str, run: Path | str, settings: Settings, *, force: bool = False
) -> Trained:
    """Train a method on a release, or resume an interrupted run; a finished one is not changed.

    Args:
        release: Release of ``package``, the authors' archive, or a ``*_precomp`` data set.
        run: The run folder.
        settings: All settings of the run.
        force: Start over.

    Raises:
        ConfigError: If ``run`` contains another run, a device is missing, or the settings need a
            truth or weights that are missing.
        FormatError: If the release cannot be read.
        TrainingError: If there are too few pairs, or training fails.
    """
    release, run = Path(release), Path(run)
    process_groups.start(settings.train.device)
    device = pick_device(settings.train.device)
    check_layout(release, settings.data)
    reader = make_reader(release, settings.data, settings.model)
    identity = identify(reader, reads=settings.reads)
    if not force and (state := finished(run, identity, settings)):
        if process_groups.is_first():
            remove_temporary_files(run)
            sync_run(run, state)
        early = ", stopped early" if state.stopped else ""
        say(f"{run}: done, {state.epoch + 1} epochs{early}; --force starts over")
        return Trained.of(state, 0)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    repeat_exactly(wanted=True)
    backends: Any = torch.backends
    for backend in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        backend.fp32_precision = "tf32" if settings.train.tf32 else "ieee"
    with (
        fast_float32(settings.model.product_width),
        open_split(reader, "train", device) as opened,
        open_split(reader, "dev", device) as opened_dev,
    ):
        if len(opened) < FEWEST_PAIRS:
            problem = f"{len(opened)} training pairs, expected at least {FEWEST_PAIRS}"
            raise TrainingError(f"{release}: {problem}")
        if opened.features != opened_dev.features:
            widths = f"{opened.features} in train and {opened_dev.features} in dev"
            raise TrainingError(f"{release}: regions of width {widths}")
        pairs, dev = (with_texts_read(split, settings) for split in (opened, opened_dev))
        record = _run_record(reader, identity, pairs, settings, device.type)
        named, taught_by_it = settings.data.truth, bool(settings.method.takes_matched)
        truth = truth_of(record, release, named, pairs.matched, both=not taught_by_it)
        taught = _with_truth(pairs, truth, settings.method)
        with lock_run(run):
            if process_groups.is_first():
                start_run(run, record, force=force)
                if len(pairs) < settings.train.batch:
                    say(
                        f"train has {len(pairs)} pairs, fewer than train.batch = "
                        f"{settings.train.batch}: one batch of {len(pairs)} per epoch"
                    )
            process_groups.wait()
            resolved = read_run(run).resolved
            words = fit_word_sides(pairs) if settings.model.similarity == "reading" else None
            method = make_method(resolved, replace(record.release.sizes, words=words), device)
            threshold = settings.division_threshold
            both = truth if truth and truth.has_both else None
            judge = partial(judge_division, both, threshold) if both else None
            callbacks: list[Callback] = []
            if settings.train.tensorboard:
                callbacks.append(TensorBoardCallback(run / TENSORBOARD, len(pairs)))
            if settings.train.pictures:
                callbacks.append(PictureCallback(run, record, truth))
            trainer = Trainer(run, record, method, judge, callbacks)
            gib = settings.data.memory_gb
            return trainer.fit(
                cache_whitened(method, taught, gib), cache_whitened(method, dev, gib)
            )


def finished(run: Path, identity: DataIdentity, settings: Settings) -> CheckpointState | None:
    """Return a run's last checkpoint if it is finished and has these data and settings."""
    if not (run / "run.toml").exists() or not (run / LAST / STATE).exists():
        return None
    record = read_run(run)
    if record.settings != settings or record.release.difference(identity):
        return None
    release, data = record.release, settings.data
    files = ((release.noise and release.noise.sha256, data.noise_file),
             (release.truth_sha256, data.truth))  # fmt: skip
    if any(sha256 and file and sha256 != sha256_of(file) for sha256, file in files):
        return None
    state = read_state(run / LAST)
    return state if state.stopped or state.epoch + 1 >= settings.train.total_epochs else None


def _run_record(
    reader: Reader, identity: DataIdentity, pairs: PairSet, settings: Settings, device: str
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
        noise=noise_file and describe(noise_file, pairs.image_of, pairs.images),
        truth_sha256=truth and sha256_of(truth),
    )
    precision = settings.model.precision_of_division(device)
    return RunRecord(division_precision=precision, release=release, settings=settings)


def _with_truth(pairs: PairSet, truth: Truth | None, method: MethodSettings) -> PairSet:
    """Add the truth to the pairs of a method that trains on it; log the number of matches."""
    if not method.takes_matched:
        return pairs
    labelled = pairs if truth is None else replace(pairs, matched=truth.matched)
    matched = len(labelled.matched_rows())
    if matched < FEWEST_PAIRS:
        raise TrainingError(f"{matched} training pairs match, expected at least {FEWEST_PAIRS}")
    say(
        f"{method.takes_matched} the {matched} of {len(pairs)} pairs that the truth calls matched, "
        "so the truth is part of this training"
    )
    return labelled


def judge_division(truth: Truth, threshold: float, outputs: EpochOutputs) -> dict[str, float]:
    """Compare an epoch's division with the truth, for the log alone.

    Returns:
        AUROC, precision and recall; empty without a division, or if the method was given all known
        pairs that match, or all that do not.
    """
    division = _division(outputs)
    hidden = truth.without_taught(division)
    if not division or not hidden.has_both:
        return {}
    best = quality(0, division, hidden, threshold)
    figures = {"auroc": best.auroc, "clean_precision": best.precision, "clean_recall": best.recall}
    return {name: value for name, value in figures.items() if value is not None}


class PictureCallback:
    """Draw ``RUN/curves.png`` and each epoch's division, its pairs coloured by a truth."""

    def __init__(self, run: Path, record: RunRecord, truth: Truth | None) -> None:
        self.name = f"pictures of {run}"
        self._run, self._record, self._truth = run, record, truth

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Draw the epoch that just ended."""
        from pc2_baseline.analysis.pictures import draw_curves, draw_division

        settings, pairs = self._record.settings, self._record.release.pairs
        if division := _division(outputs):
            path, title = (
                self._run / PICTURES / f"{state.epoch:05d}.png",
                f"Epoch {state.epoch + 1}",
            )
            how = settings.division_threshold, settings.division_scale
            draw_division(path, division, self._truth, title, *how)
        draw_curves(self._run / CURVES, state, pairs, settings.train.warmup_epochs)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _division(outputs: EpochOutputs) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in outputs.get(DIVISIONS, {}).items()}


SMALL_PRESET = "crossfit-pooled"
"""Default preset, with its section ``demo``, below :data:`FEW_PAIRS` training pairs."""

FEW_PAIRS = 10_000
"""Number of training pairs below which the paper's method memorises mismatched pairs."""


def default_preset(release: Path, overrides: list[str]) -> tuple[str, list[str], str | None]:
    """Return the arguments of :func:`~pc2_baseline.config.read_settings` that fit a release.

    Data sets without a manifest, such as the authors' archive, use the paper's preset. For a small
    release whose detector reads, the network starts from the words on the pages. The user's
    overrides come last.
    """
    if not (release / "manifest.json").exists():
        return DEFAULT_PRESET, overrides, None
    manifest = read_manifest(release)
    if manifest.counts.get("train", 0) >= FEW_PAIRS:
        return DEFAULT_PRESET, overrides, None
    track = [] if "bert" in manifest.tracks else [f'data.tokenizer="{manifest.tracks[0]}"']
    reads = read_columns(region_attributes(release, "train")) is not None
    network = ['model.similarity="reading"'] if reads else []
    return SMALL_PRESET, [*track, *network, *overrides], "demo"


def with_only_track(
    release: Path, config: str | None, overrides: list[str], on: str | None = None
) -> list[str]:
    """Add an override for the only track of a release, unless the user sets a track; log it."""
    data, tracks = read_settings(config, overrides, on).data, tracks_of(release)
    chosen = any(override.partition("=")[0].strip() == "data.tokenizer" for override in overrides)
    if chosen or data.name in PRECOMP or len(tracks) != 1 or data.tokenizer in tracks:
        return overrides
    say(f"{release}: track {tracks[0]}, the only one, instead of {data.tokenizer}")
    return [*overrides, f'data.tokenizer="{tracks[0]}"']
