"""Parts a and b: single steps of a peer of PC², small against float64, and at NoW's size."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu import epochs
from benchmarks.gpu.machine import Check, float32_products, measure_ceilings
from benchmarks.gpu.report import Goal
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.methods.pc2.peers import PairStatistics, evaluate_pairs
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.seeds import repeat_exactly
from pc2_baseline.training.method import Sizes

KINDS = ("bf16", "tf32", "fp32")
"""The most wanted first."""

SMALL = [
    "model.embed_dim=256", "model.word_dim=64", "model.similarity_dim=64", "train.batch=32",
    "method.classes=16", "method.class_hidden=32",
]  # fmt: skip
SAME_DIRECTION = Goal(0.95)
"""Cosine of a whole step's gradients; a CPU's own bf16 has 0.974 in the first of the warm-up."""


GIB = Goal(12.0, at_least=False)
CLOSE, CLOSE_GRADIENT = Goal(1e-4, at_least=False), Goal(1e-3, at_least=False)


def divided(pairs: int) -> PairStatistics:
    """Call a share of the pairs clean by a draw, so that both ways have the same work."""
    is_clean = np.random.default_rng(0).permutation(pairs) < pairs / 2
    prob = np.where(is_clean, 0.9, 0.1)
    zeros = np.zeros(pairs, np.float32)
    return PairStatistics(zeros, Division(prob, is_clean), zeros, prob, zeros > 0)


class OnePeer(Pc2):
    """Train one of PC²'s two peers."""

    def learn(self, train: PairSet, epoch: int) -> float:
        """Train the first peer for an epoch and return its mean loss."""
        return self._learn(train, epoch, 0)["loss"]


class WidePairs(PairSet):
    """Pairs whose features are read in float64."""

    def image_batch(self, images: Any) -> Tensor:
        """Read some images by their row of ``regions``."""
        return super().image_batch(images).double()


def steps_of(settings: Settings, pairs: PairSet) -> tuple[OnePeer, dict[str, Callable[[], float]]]:
    """Make a method, and single steps of its first peer, which return their loss.

    The pairs are two batches; half of them are clean, by a draw.
    """
    method = OnePeer(settings, Sizes(len(pairs), epochs.FEATURES, epochs.VOCABULARY), pairs.device)
    method.statistics = [divided(len(pairs))] * 2
    batch = settings.train.batch
    one = replace(pairs, captions=pairs.captions[:batch], image_of=pairs.image_of[:batch])

    def divide() -> float:
        losses, _ = evaluate_pairs(method.nets[0], one, [np.arange(batch)], 0.2, "divide")
        return float(losses.mean())

    return method, {
        "warm-up": lambda: method.learn(one, 0),
        "clean": lambda: method.learn(pairs, 1),
        "noisy": lambda: method.learn(pairs, 2),
        "division": divide,
    }


@contextmanager
def computed(kind: str) -> Iterator[str]:
    """Compute in bf16, in float32 with TF32's products, or in float32; give ``model.precision``."""
    repeat_exactly(wanted=True)  # as the trainer does
    with float32_products(kind):
        yield "bf16" if kind == "bf16" else "fp32"


def small(check: Check) -> None:
    """Hold the first step of each phase, on the device, against float64 on the CPU."""
    more = [] if check.tiny else SMALL
    host = replace(check, device=torch.device("cpu"))
    for phase in ("warm-up", "clean", "noisy"):
        expected = first_step(host, phase, "float64", more)
        for kind in reversed(KINDS):
            label = f"{phase}, {kind}"
            check.attempt(label, partial(hold, check, phase, kind, more, expected))


def hold(
    check: Check, phase: str, kind: str, more: list[str], expected: tuple[float, Tensor]
) -> None:
    """Write down how far a step's loss and gradients are from the expected ones."""
    loss, gradient = first_step(check, phase, kind, more)
    apart = float((gradient - expected[1]).norm() / expected[1].norm())
    cosine = float(torch.cosine_similarity(gradient, expected[1], 0))
    goals = (CLOSE, CLOSE_GRADIENT) if kind == "fp32" else (None, None)
    label, loss = f"{phase}, {kind}", abs(loss / expected[0] - 1)
    check.add(f"{label}: relative difference of the loss", loss, "", goals[0])
    check.add(f"{label}: relative difference of gradients", apart, "", goals[1])
    check.add(f"{label}: cosine of gradients", cosine, "", SAME_DIRECTION)


def first_step(check: Check, phase: str, kind: str, more: list[str]) -> tuple[float, Tensor]:
    """Take one step from drawn weights; return its loss and the gradients, in float64."""
    with computed(kind) as precision:
        settings = epochs.settings_of(check, precision, ["model.dropout=0", *more])
        torch.manual_seed(0)
        count = 2 * settings.train.batch
        regions = torch.randn(count, 36, epochs.FEATURES).to(check.device)
        pairs = epochs.pair_set(replace(check, tiny=True), regions, count)  # short captions
        if kind == "float64":
            pairs = WidePairs(*(getattr(pairs, each.name) for each in fields(pairs)))
        method, steps = steps_of(settings, pairs)
        net = method.nets[0].double() if kind == "float64" else method.nets[0]
        loss = steps[phase]()
    found = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return loss, torch.cat([gradient.double().cpu().flatten() for gradient in found])


def at_size(check: Check) -> None:
    """Time each phase's step at NoW's size in each precision, and profile the largest."""
    ceilings = measure_ceilings(check, KINDS)
    count = 16 if check.tiny else 2 * 128
    regions = torch.empty(count, 36, epochs.FEATURES, device=check.device).normal_()
    pairs = epochs.pair_set(check, regions, count)
    operations: dict[str, float] = {}
    for kind in KINDS:
        with computed(kind) as precision:
            _, steps = steps_of(epochs.settings_of(check, precision, []), pairs)
            for phase, step in steps.items():
                label, ceiling = f"{kind}: {phase}", ceilings.flops[kind]
                if phase not in operations:
                    check.attempt(label, partial(count_operations, check, phase, step, operations))
                timed = partial(time_step, check, label, step, operations.get(phase, 0) / ceiling)
                check.attempt(label, timed)
            title = f"{kind}: a noisy step"
            check.attempt(title, partial(check.profile, title, steps["noisy"]))


def count_operations(
    check: Check, phase: str, step: Callable[[], float], operations: dict[str, float]
) -> None:
    """Count a step's operations in products; the step is the same in each precision."""
    with FlopCounterMode(display=False) as counter:
        step()
    operations[phase] = float(counter.get_total_flops())
    check.add(f"{phase}: operations", operations[phase] / 1e12, "TFLOP",
              note="of the products that PyTorch counts")  # fmt: skip


def time_step(check: Check, label: str, step: Callable[[], float], least_s: float) -> None:
    """Write down a step's seconds, memory, and share of the least that its products take."""
    check.forget_peak()
    seconds = check.median_s(step, 5)
    check.add(f"{label}, a step", seconds, "s")
    check.add(f"{label}, peak memory", check.peak_gib(), "GiB", GIB)
    check.add(f"{label}, of the product's ceiling", 100 * least_s / seconds, "%")
