"""PC²'s released training against a plain loop over captions: CPU seconds by phase, and memory.

All ways start from the same weights and train on the same batches (no dropout, a random division),
so that their losses agree; the plain loop is ``benchmarks/plain/pc2.py`` in float32. Each way has
its own process, and they take turns phase by phase, so that other load on the machine slows all of
them. The table has the minimum CPU seconds of one peer over all rounds, and the range of speed-ups
over the loop. An epoch after the warm-up is a division, and for each batch a step on clean pairs
and one on noisy ones.

    python -m benchmarks.epoch                               # width 256, two rounds
    python -m benchmarks.epoch --width 1024 --pairs 256 --rounds 1
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.plain.pc2 import PlainPc2
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2.peers import PairStatistics
from pc2_baseline.methods.pc2.released import Pc2Released
from pc2_baseline.modules.division import Division
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.training.method import Sizes

PRECISIONS = {"plain": "fp32", "fp32": "fp32", "bf16": "bf16"}
PHASES = ("warm-up", "division", "clean", "clean and noisy")
FEATURES, VOCABULARY, CLEAN_SHARE, LONGEST = 768, 10_000, 0.5, 412
Figures = dict[str, dict[str, list[float]]]
"""CPU seconds of each round, by way and phase."""


class OnePeer(Pc2Released):
    """Train one of the two peers of PC²'s released method."""

    def learn(self, train: PairSet, epoch: int) -> float:
        """Train the first peer for an epoch and return its mean loss."""
        return self._learn(train, epoch, 0)["loss"]

    def divide(self, train: PairSet) -> float:
        """Divide the pairs by the first peer and return their mean loss."""
        return float(self.divide_pairs(train, 0, 0).loss.mean())


def draw_lengths(captions: int, seed: int = 0, mean: float = 54.0) -> list[int]:
    """Draw caption lengths in words, skewed like those of NoW's descriptions."""
    drawn = np.random.default_rng(seed).gamma(3.0, mean / 3, captions)
    return np.clip(np.round(drawn), 3, LONGEST).astype(int).tolist()


def draw_pairs(pairs: int) -> PairSet:
    """Draw features and captions."""
    rng = np.random.default_rng(1)
    captions = [rng.integers(4, VOCABULARY, length) for length in draw_lengths(pairs, 1, 49.0)]
    regions = rng.standard_normal((pairs, 36, FEATURES), dtype=np.float32)
    return PairSet(regions, captions, "drawn", torch.device("cpu"), np.arange(pairs))


def draw_division(pairs: int) -> PairStatistics:
    """Call a random share of the pairs clean, so that all ways have the same work."""
    is_clean = np.random.default_rng(0).permutation(pairs) < CLEAN_SHARE * pairs
    prob, zeros = np.where(is_clean, 0.9, 0.1), np.zeros(pairs, np.float32)
    return PairStatistics(zeros, Division(prob, is_clean), zeros, prob, zeros > 0)


def phases_of(way: str, options: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Return the function of each phase; it returns a value that is the same for all ways."""
    width, batch, pairs = options.width, options.batch, options.pairs
    overrides = [
        f"model.embed_dim={width}", "model.dropout=0", f"model.precision={PRECISIONS[way]}",
        f"train.batch={batch}", f"method.division_batch={batch}", "train.warmup_epochs=1",
        "train.epochs=2", "method.noisy_from_epoch=1", *options.set,
    ]  # fmt: skip
    settings, train = read_settings("pc2-released", overrides), draw_pairs(pairs)
    method = OnePeer(settings, Sizes(pairs, FEATURES, VOCABULARY), train.device)
    method.statistics = [draw_division(pairs)] * 2
    division = method.statistics[0].division
    if way != "plain":
        warm_up, clean, both = (partial(method.learn, train, epoch) for epoch in range(3))
        return dict(zip(PHASES, (warm_up, partial(method.divide, train), clean, both), strict=True))
    plain = PlainPc2(settings, method.nets[:1], pairs)
    plain.divisions = [(division, division.clean_prob)] * 2
    return {
        "warm-up": lambda: plain.warm_up(train, 0, 0),
        "division": lambda: float(plain.divide(train, 0, 0)[2].mean()),
        "clean": lambda: plain.co_teach(train, 1, 0),
        "clean and noisy": lambda: plain.co_teach(train, 2, 0),
    }


_PHASES: dict[str, Callable[[], float]] = {}
"""Phases of this process's way."""


def begin(way: str, options: argparse.Namespace) -> None:
    """Prepare a process for one way."""
    torch.set_num_threads(1)
    _PHASES.update(phases_of(way, options))


def run(phase: str, width: int) -> tuple[float, float, float]:
    """Run a phase; return its CPU seconds, its value and the process's peak memory in MiB."""
    begun = time.process_time()
    with fast_float32(width):
        value = _PHASES[phase]()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.process_time() - begun, value, peak


def measure(options: argparse.Namespace) -> tuple[Figures, dict[str, Any]]:
    """Run the ways by turns; return their seconds, peak memory and first loss."""
    spawn, ends = multiprocessing.get_context("spawn"), {}
    pools = {way: ProcessPoolExecutor(1, spawn, begin, (way, options)) for way in PRECISIONS}
    seconds: Figures = {way: {phase: [] for phase in PHASES} for way in PRECISIONS}
    for _ in range(options.rounds):
        for phase in PHASES:
            for way, pool in pools.items():
                cpu, value, peak = pool.submit(
                    run, phase, 0 if way == "plain" else options.width
                ).result()
                seconds[way][phase].append(cpu)
                ends[way] = peak, ends.get(way, (0, value))[1]
    return seconds, ends


def show(seconds: Figures, ends: dict[str, Any]) -> None:
    """Print a table of seconds, ratios, peaks and the loss of the warm-up."""
    seconds["fp32, division in bf16"] = seconds["fp32"] | {"division": seconds["bf16"]["division"]}
    ends["fp32, division in bf16"] = ends["fp32"]
    parts = {phase: [phase] for phase in PHASES} | {"epoch": ["division", "clean and noisy"]}
    print(f"| CPU s | {' | '.join(parts)} | MiB | loss of the warm-up |")
    print("|---" * (len(parts) + 3) + "|")
    for way, taken in seconds.items():
        cells = []
        for phases in parts.values():
            ours, theirs = (
                np.sum([times[phase] for phase in phases], 0) for times in (taken, seconds["plain"])
            )
            ratios = theirs / ours
            cells.append(f"{ours.min():.2f} ({ratios.min():.2f}–{ratios.max():.2f} ×)")
        peak, loss = ends[way]
        print(f"| {way} | {' | '.join(cells)} | {peak:.0f} | {loss:.4f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="PC²'s training against a plain loop.")
    parser.add_argument("--width", type=int, default=256, help="width of the embedding")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], help="setting of ours (repeatable)")
    options = parser.parse_args()
    show(*measure(options))


if __name__ == "__main__":
    main()
