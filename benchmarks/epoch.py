"""Whole epochs of PC²'s released method against a plain trainer with the loop over captions.

Both start from the same weights and take the same batches in the same order (dropout off, pairs
divided by a draw), so that their losses agree; the plain trainer is ``benchmarks/plain/pc2.py`` in
float32. Each way has a process of its own, for its peak memory, and they take turns phase by phase,
so that other load on the machine meets all of them. Printed are seconds of one peer, and ratios to
the plain trainer's.

    python -m benchmarks.epoch                          # the demo's size, widths 256 and 1,024
    python -m benchmarks.epoch --size 1024 --threads 2 --repeat 2
    python -m benchmarks.epoch --size 256 --set model.keep_mb=512
"""

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from benchmarks.plain.pc2 import PlainPc2
from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2.peers import PairStatistics
from pc2_baseline.methods.pc2.released import Pc2Released
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.networks.onednn_products import fast_float32
from pc2_baseline.training.method import Sizes

WAYS = ("plain", "ours, fp32", "ours, bf16")
PHASES = ("warm-up", "division", "clean", "noisy", "dev")
FEATURES, VOCABULARY, CLEAN_SHARE = 768, 10_000, 0.5


@dataclass(frozen=True)
class Size:
    """What is trained: widths, batch, pairs of the splits, and words a caption."""

    dim: int
    word: int
    node: int
    layers: int
    batch: int
    pairs: int
    dev: int
    mean_words: float
    longest: int

    def overrides(self) -> list[str]:
        """Return the settings, dropout off."""
        return [
            f"model.embed_dim={self.dim}", f"model.word_dim={self.word}", "model.dropout=0",
            f"model.similarity_dim={self.node}", f"model.graph_layers={self.layers}",
            f"train.batch={self.batch}", f"method.division_batch={self.batch}",
            "train.warmup_epochs=1", "train.epochs=2", "method.noisy_from_epoch=1",
        ]  # fmt: skip


SIZES = {
    "demo": Size(64, 64, 64, 2, batch=16, pairs=320, dev=64, mean_words=18, longest=26),
    "256": Size(256, 300, 256, 3, batch=64, pairs=128, dev=64, mean_words=49, longest=412),
    "1024": Size(1024, 300, 256, 3, batch=64, pairs=128, dev=64, mean_words=49, longest=412),
}


class OnePeer(Pc2Released):
    """Train one of the two peers of PC²'s released method."""

    def learn(self, train: PairSet, epoch: int) -> float:
        """Train the first peer for an epoch and return its mean loss."""
        return self._learn(train, epoch, 0)["loss"]


def draw(size: Size, pairs: int, seed: int) -> PairSet:
    """Draw features and captions of skewed lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(np.round(rng.gamma(3.0, size.mean_words / 3, pairs)), 3, size.longest)
    captions = [rng.integers(4, VOCABULARY, int(length)) for length in lengths]
    regions = rng.standard_normal((pairs, 36, FEATURES), dtype=np.float32)
    return PairSet(regions, captions, "drawn", torch.device("cpu"), np.arange(pairs))


def divided(pairs: int) -> PairStatistics:
    """Call a share of the pairs clean by a draw, so that both ways have the same work."""
    is_clean = np.random.default_rng(0).permutation(pairs) < CLEAN_SHARE * pairs
    prob = np.where(is_clean, 0.9, 0.1)
    zeros = np.zeros(pairs, np.float32)
    return PairStatistics(zeros, Division(prob, is_clean), zeros, prob, zeros > 0)


def phases_of(way: str, size: Size, overrides: list[str]) -> dict[str, Callable[[], float]]:
    """Return what each phase of a way does; each returns a value that the ways agree in."""
    precision = "bf16" if way.endswith("bf16") else "fp32"
    given = [*size.overrides(), f"model.precision={precision}", *overrides]
    settings = read_settings("pc2-released", given)
    train, dev = draw(size, size.pairs, 1), draw(size, size.dev, 2)
    method = OnePeer(settings, Sizes(size.pairs, FEATURES, VOCABULARY), train.device)
    method.statistics = [divided(size.pairs)] * 2
    if way == "plain":
        plain = PlainPc2(settings, method.nets[:1], size.pairs)
        division = method.statistics[0].division
        plain.divisions = [(division, division.clean_prob)] * 2
        return {
            "warm-up": lambda: plain.warm_up(train, 0, 0),
            "division": lambda: float(plain.divide(train, 0, 0)[2].mean()),
            "clean": lambda: plain.co_teach(train, 1, 0),
            "noisy": lambda: plain.co_teach(train, 2, 0),
            "dev": lambda: float(plain.similarity(dev).mean()),
        }
    net = method.nets[0].matching
    return {
        "warm-up": lambda: method.learn(train, 0),
        "division": lambda: float(method.divide_pairs(train, 0, 0).loss.mean()),
        "clean": lambda: method.learn(train, 1),
        "noisy": lambda: method.learn(train, 2),
        "dev": lambda: float((1 / (1 + np.exp(-similarity_matrix(net, dev)))).mean()),
    }


def work(way: str, size: Size, options: argparse.Namespace, pipe: Connection) -> None:
    """Do a phase whenever its name comes; send its seconds, its value and the peak so far."""
    torch.set_num_threads(options.threads)
    phases = phases_of(way, size, options.set)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipe.send(None)
    while name := pipe.recv():
        begun = time.perf_counter(), time.process_time()
        if way == "plain":
            value = phases[name]()
        else:
            with fast_float32(size.dim):
                value = phases[name]()
        wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        pipe.send({"wall": wall, "cpu": cpu, "value": value, "mib": peak})


def measure(size: Size, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Let the ways take turns, phase by phase; return the least seconds of each, and the peaks."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for way in WAYS:
        pipes[way], theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(way, size, options, theirs)))
        processes[-1].start()
        pipes[way].recv()
    found: dict[str, dict[str, Any]] = {way: {} for way in WAYS}
    for _ in range(options.repeat):
        for phase in PHASES:
            for way, pipe in pipes.items():
                pipe.send(phase)
                told = pipe.recv()
                own = found[way].setdefault(phase, told)
                for clock in ("wall", "cpu"):
                    own[clock] = min(own[clock], told[clock])
                found[way]["mib"] = told["mib"]
    for pipe, process in zip(pipes.values(), processes, strict=True):
        pipe.send("")
        process.join()
    return found


def show(name: str, found: dict[str, dict[str, Any]], clock: str, threads: int) -> None:
    """Print a table of seconds, ratios, peaks and values."""
    plain = found["plain"]
    seconds = {way: [own[phase][clock] for phase in PHASES] for way, own in found.items()}
    print(f"\n{name}, {threads} thread(s), {clock} seconds of one peer", flush=True)
    print(
        f"| way | {' | '.join(PHASES)} | all | faster | MiB | less memory | loss of the warm-up |"
    )
    print("|---" * (len(PHASES) + 6) + "|")
    for way, own in found.items():
        each = " | ".join(
            f"{mine:.2f} ({theirs / mine:.2f} ×)"
            for mine, theirs in zip(seconds[way], seconds["plain"], strict=True)
        )
        whole = sum(seconds[way])
        print(
            f"| {way} | {each} | {whole:.2f} | {sum(seconds['plain']) / whole:.2f} × | "
            f"{own['mib']:.0f} | {plain['mib'] / max(own['mib'], 1):.1f} × | "
            f"{own['warm-up']['value']:.4f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Epochs of the trainer against a plain one.")
    parser.add_argument("--size", choices=[*SIZES, "all"], default="all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--set", action="append", default=[], help="a setting of ours")
    options = parser.parse_args()
    for name in SIZES if options.size == "all" else [options.size]:
        changes = {
            key: getattr(options, key) for key in ("batch", "pairs") if getattr(options, key)
        }
        size = replace(SIZES[name], **changes)
        show(f"{name}: {size}", measure(size, options), options.clock, options.threads)


if __name__ == "__main__":
    main()
