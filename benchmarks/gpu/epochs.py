"""Part d: epochs of PC² at NoW's size on random features, and the hours of a full run."""

import importlib.util
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.epoch import draw_lengths
from benchmarks.gpu.machine import Check, float32_products
from benchmarks.gpu.report import Goal
from pc2_baseline.config import Settings, read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2 import paper
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.methods.pc2.peers import PairStatistics
from pc2_baseline.modules.coteaching import PEERS
from pc2_baseline.modules.division import Division, clean_posterior, divide
from pc2_baseline.modules.seeds import repeat_exactly
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.training.method import Sizes

PAIRS, DEV, FEATURES, VOCABULARY = 98_000, 1_000, 768, 30_000
CLEAN_SHARE = 0.7
NEEDED_S = 40.0
"""Minimum time left in seconds to begin the second mode."""

HOURS = Goal(2.0, at_least=False)
PHASES = ("warm-up", "clean", "noisy")
MODES = ("bf16", "bf16 and TF32")
"""Precisions, the most important first."""
TINY = [
    "model.embed_dim=16", "model.word_dim=8", "model.similarity_dim=8", "method.classes=4",
    "method.class_hidden=8", "train.batch=8", "method.division_batch=8",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the data and of the measured part.

    Attributes:
        images: Images with features on the device; pairs are drawn from them.
        pairs: Pairs of the shortened epoch that is timed.
        dev: Pairs scored after an epoch.
    """

    images: int
    pairs: int
    dev: int


class TimedPc2(Pc2):
    """PC² that records how long its peers train and divide."""

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.taken: dict[str, list[float]] = {name: [] for name in (*PHASES, "division")}

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        with self._noted(PHASES[epoch]):
            return super()._learn(train, epoch, peer)

    def divide_pairs(self, train: PairSet, peer: int) -> PairStatistics:
        """Divide the pairs and record the time."""
        with self._noted("division"):
            return super().divide_pairs(train, peer)

    @contextmanager
    def _noted(self, phase: str) -> Iterator[None]:
        _wait(self.device)
        begun = time.perf_counter()
        yield
        _wait(self.device)
        self.taken[phase].append(time.perf_counter() - begun)


def run(check: Check) -> None:
    """Make the features, time the mixture and the epochs, and project a full run."""
    scale = Scale(64, 16, 8) if check.tiny else Scale(PAIRS, 24 * 128, DEV)
    check.add("clean pairs, as planted", 100 * CLEAN_SHARE, "%", note="the mixture is timed apart")
    mixture = time_mixture(check, 200 if check.tiny else PAIRS)
    held = torch.empty(scale.images, 36, FEATURES, device=check.device).normal_()
    check.add("features", held.nbytes / 2**30, "GiB", note=f"{scale.images} images, float32")
    repeat_exactly(wanted=True)  # as the trainer does
    for mode in MODES:
        work = partial(time_mode, check, scale, held, mode, mixture)
        with fast_float32(1024), float32_products("tf32" if "TF32" in mode else "fp32"):
            check.attempt(mode, work, 0.0 if mode == MODES[0] else NEEDED_S)


def time_mixture(check: Check, pairs: int) -> float:
    """Time the two mixtures of a peer's epoch, of losses and of oscillations."""
    if importlib.util.find_spec("sklearn") is None:
        check.add("mixtures of a peer's epoch", None, "s", note="scikit-learn is not installed")
        return 0.0
    draw = np.random.default_rng(0)
    clean = draw.random(pairs) < CLEAN_SHARE
    losses = draw.normal(np.where(clean, 0.1, 0.4), 0.08).astype(np.float32)
    divide(losses[:100], 0)
    begun = time.perf_counter()
    divide(losses, 0)
    clean_posterior(losses, 0)
    seconds = time.perf_counter() - begun
    check.add("mixtures of a peer's epoch", seconds, "s", note=f"{pairs} pairs, on the CPU")
    return seconds


def settings_of(check: Check, precision: str, more: Sequence[str]) -> Settings:
    """Return the preset's settings with one epoch of each kind."""
    return read_settings("pc2-paper", [
        "train.warmup_epochs=1", "train.epochs=2", "method.noisy_from_epoch=1",
        f"model.precision={precision}", *(TINY if check.tiny else []), *more,
    ])  # fmt: skip


def time_mode(check: Check, scale: Scale, regions: Any, label: str, mixture: float) -> None:
    """Run some batches of each kind of epoch, and project the full run."""
    pairs = scale.pairs
    settings = settings_of(check, "bf16", [])
    check.forget_peak()
    batch = settings.train.batch
    few = pair_set(check, regions, min(2 * batch, pairs))
    fit(settings, few, check)  # one-time set-up
    train = pair_set(check, regions, pairs)
    method = fit(settings, train, check)
    batches = pairs / batch
    steps = {name: batches if name in {"warm-up", "division"} else batches * CLEAN_SHARE
             for name in method.taken}  # fmt: skip
    each = {name: float(np.mean(spent)) / steps[name] for name, spent in method.taken.items()}
    for name, seconds in each.items():
        note = f"mean of {len(method.taken[name])} × {steps[name]:.0f} batches of {batch}"
        check.add(f"{label}: {name}, a batch", seconds, "s", note=note)
    dev = pair_set(check, regions[: scale.dev], scale.dev)  # all images of a split are scored
    _wait(check.device)
    begun = time.perf_counter()
    method.similarity(dev)
    scored = time.perf_counter() - begun
    check.add(f"{label}: scoring dev", scored, "s", note=f"{len(dev)} × {len(dev)}, both peers")
    check.add(f"{label}: peak memory", check.peak_gib(), "GiB")
    project(check, label, each, scored, mixture)


def fit(settings: Settings, train: PairSet, check: Check) -> TimedPc2:
    """Run an epoch of each kind, with planted divisions."""
    sizes = Sizes(len(train), FEATURES, VOCABULARY)
    method = TimedPc2(settings, sizes, check.device)
    with patch.object(paper, "divide", planted), patch.object(paper, "clean_posterior", certain):
        for epoch in range(len(PHASES)):
            method.fit_epoch(train, epoch)
    return method


def certain(losses: np.ndarray, _: int) -> np.ndarray:
    """Call every pair certainly stable."""
    return np.ones_like(losses)


def planted(losses: np.ndarray, seed: int, *_: object) -> Division:
    """Divide the pairs at random, so that the work of an epoch is known."""
    order = np.random.default_rng(seed).permutation(len(losses))
    is_clean = order < round(CLEAN_SHARE * len(losses))
    return Division(np.where(is_clean, 0.9, 0.1), is_clean)


def pair_set(check: Check, regions: Any, pairs: int) -> PairSet:
    """Make pairs of random images, with captions of NoW's lengths."""
    draw = np.random.default_rng(1)
    lengths = draw_lengths(pairs, mean=6.0 if check.tiny else 54.0)
    captions = [draw.integers(4, VOCABULARY, length + 2) for length in lengths]
    image_of = draw.choice(len(regions), pairs, replace=False)
    return PairSet(regions, captions, "made up", check.device, image_of, image_of >= 0)


def project(
    check: Check, label: str, each: dict[str, float], scored: float, mixture: float
) -> None:
    """Compute the hours of the preset's warm-up and noisy epochs over all pairs."""
    preset = read_settings("pc2-paper", [])
    warm, later = preset.train.warmup_epochs, preset.train.epochs
    batches = PAIRS / preset.train.batch
    hours = {}
    for share in (CLEAN_SHARE, 0.99):
        apart = len(PEERS) * (batches * each["division"] + mixture) + scored
        first = len(PEERS) * batches * each["warm-up"] + apart
        second = len(PEERS) * batches * share * each["noisy"] + apart
        hours[share] = (warm * first + later * second) / 3600
    note = f"{warm} + {later} epochs of {PAIRS} pairs, {100 * CLEAN_SHARE:.0f} % of them clean"
    check.add(f"{label}: projected full run", hours[CLEAN_SHARE], "h", HOURS, note)
    check.add(f"{label}: projected full run, 99 % clean", hours[0.99], "h",
              note="as long as it can take")  # fmt: skip


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
