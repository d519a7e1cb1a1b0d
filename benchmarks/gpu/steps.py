"""Parts a and b: single steps of a peer of PC², small against float64, and at NoW's size."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks.epoch import draw_lengths
from benchmarks.gpu import epochs
from benchmarks.gpu.machine import Check, float32_products
from benchmarks.gpu.report import Goal, Report
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.pc2.network import find_pseudo_captions
from pc2_baseline.methods.pc2.paper import Pc2
from pc2_baseline.methods.pc2.peers import PairStatistics, evaluate_pairs
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.seeds import repeat_exactly
from pc2_baseline.networks import ragged
from pc2_baseline.training.method import Sizes

KINDS = ("bf16", "tf32", "fp32")
"""Precisions, the most important first."""

SMALL = [
    "model.embed_dim=256", "model.word_dim=64", "model.similarity_dim=64", "train.batch=32",
    "method.classes=16", "method.class_hidden=32",
]  # fmt: skip
SAME_DIRECTION = Goal(0.95)
"""Minimum cosine of a step's gradients; bf16 on a CPU has 0.974 in the first warm-up step."""

GIB = Goal(12.0, at_least=False)
LIMITS = {
    "bf16": {"warm-up": 0.150, "noisy": 0.150, "division": 0.045},
    "bf16 and TF32": {"warm-up": 0.105, "noisy": 0.110, "division": 0.030},
}
"""Maximum seconds of a step without padding, for trainings of three and of two hours."""
CLOSE, CLOSE_GRADIENT = Goal(1e-4, at_least=False), Goal(1e-3, at_least=False)


def divided(pairs: int) -> PairStatistics:
    """Call half of the pairs clean at random, so that both ways have the same work."""
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
    """Return a method and single steps of its first peer; each step returns its loss.

    The pairs are two batches; a random half of them is clean.
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
    """Compute in bf16, TF32 or float32; yield the value of ``model.precision``."""
    repeat_exactly(wanted=True)  # like the trainer
    with float32_products("tf32" if "tf32" in kind.lower() else "fp32"):
        yield "bf16" if kind.startswith("bf16") else "fp32"


def small(check: Check) -> None:
    """Compare the first step of each phase, on the device, with float64 on the CPU."""
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
    """Record how far a step's loss and gradients are from the expected ones."""
    loss, gradient = first_step(check, phase, kind, more)
    apart = float((gradient - expected[1]).norm() / expected[1].norm())
    cosine = float(torch.cosine_similarity(gradient, expected[1], 0))
    goals = (CLOSE, CLOSE_GRADIENT) if kind == "fp32" else (None, None)
    label, loss = f"{phase}, {kind}", abs(loss / expected[0] - 1)
    check.add(f"{label}: relative difference of the loss", loss, "", goals[0])
    check.add(f"{label}: relative difference of gradients", apart, "", goals[1])
    check.add(f"{label}: cosine of gradients", cosine, "", SAME_DIRECTION)


def first_step(check: Check, phase: str, kind: str, more: list[str]) -> tuple[float, Tensor]:
    """Take one step from random weights; return its loss and gradients, in float64."""
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
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    return loss, torch.cat([gradient.double().cpu().flatten() for gradient in gradients])


def at_size(check: Check) -> None:
    """Time each phase's step at NoW's size, without padding and in chunks, and its parts."""
    count = 16 if check.tiny else 2 * 128
    regions = torch.empty(count, 36, epochs.FEATURES, device=check.device).normal_()
    pairs = epochs.pair_set(check, regions, count)
    for mode, limits in LIMITS.items():
        with computed(mode) as precision:
            _, steps = steps_of(epochs.settings_of(check, precision, []), pairs)
            for block in ("without padding", "in chunks"):
                chunked = patch.object(ragged, "fits", lambda *_: False)
                with nullcontext() if block == "without padding" else chunked:
                    for phase, limit in limits.items():
                        goal = Goal(limit, at_least=False) if block == "without padding" else None
                        timed = partial(time_step, check, f"{mode}: {phase} {block}", steps[phase])
                        check.attempt(f"{mode}: {phase} {block}", partial(timed, goal))
            for phase in limits:
                title = f"{mode}: a step of {phase}"
                check.attempt(title, partial(check.profile, title, steps[phase]))
    check.attempt("attention", partial(time_attention, check))
    check.attempt("choices", partial(compare_choices, check, pairs))
    check.attempt("both peers", partial(time_both_peers, check), needed_s=60)


def time_step(check: Check, label: str, step: Callable[[], float], goal: Goal | None) -> None:
    """Record a step's seconds and memory."""
    check.forget_peak()
    check.add(f"{label}, a step", check.median_s(step, 20), "s", goal)
    check.add(f"{label}, peak memory", check.peak_gib(), "GiB", GIB)


def time_attention(check: Check) -> None:
    """Time a layer's attention over 16,384 sequences of any length, forward and backward."""
    images, node = (2, 8) if check.tiny else (128, 256)
    lengths = torch.tensor(draw_lengths(images))
    words = torch.empty(images, int(lengths.max()), 1, device=check.device)
    layout = ragged.lay_out(lengths, images, words)
    rows = images * (int(lengths.sum()) + images)
    kind = torch.float32 if check.device.type == "cpu" else torch.bfloat16
    asking, nodes, gradient = torch.randn(3, rows, node, device=check.device, dtype=kind)
    mixed, kept = ragged._attend(asking, nodes, layout.each)  # noqa: SLF001
    given = layout.each, gradient, asking, nodes, mixed, *kept
    for repeats in (False, True):
        repeat_exactly(wanted=repeats)
        note = "repeats exactly" if repeats else "need not repeat"
        work = partial(ragged._attend, asking, nodes, layout.each)  # noqa: SLF001
        back = partial(ragged._attend_backward, *given)  # noqa: SLF001
        for name, one, ms in (("forward", work, 1.0), ("backward", back, 3.0)):
            goal = Goal(ms, at_least=False)
            label = f"attention, {rows} nodes, {name}, {note}"
            check.add(label, 1000 * check.median_s(one, 20), "ms", goal)


def compare_choices(check: Check, pairs: PairSet) -> None:
    """Record for how many images TF32 chooses another pseudo-caption, after 200 steps."""
    with computed("bf16") as precision:
        method, steps = steps_of(epochs.settings_of(check, precision, []), pairs)
        for _ in range(2 if check.tiny else 200):
            steps["warm-up"]()
    net, half, chosen = method.nets[0].eval(), len(pairs) // 2, []
    regions = pairs.image_batch(np.arange(len(pairs)))
    for mode in LIMITS:
        with computed(mode), torch.inference_mode():
            predictions = net.predict(net.matching.encode_images(regions))
            chosen.append(find_pseudo_captions(predictions[half:], predictions[:half]).chosen)
    changed = float((chosen[0] != chosen[1]).float().mean())
    check.add("pseudo-captions that TF32 changes", 100 * changed, "%", note="after 200 steps")


def time_both_peers(check: Check) -> None:
    """Time 24 warm-up steps of a peer, alone and with the other in a second process."""
    spawn, seconds = get_context("spawn"), []
    for count in (1, 2):
        barrier, queue = spawn.Barrier(count), spawn.Queue()
        inputs = str(check.device), check.tiny, barrier, queue
        peers = [spawn.Process(target=one_peer, args=inputs) for _ in range(count)]
        for peer in peers:
            peer.start()
        seconds.append(max(queue.get(timeout=120) for _ in peers))
        for peer in peers:
            peer.join()
        check.add(f"24 warm-up steps of {count} peer at once", seconds[-1], "s")
    ratio = seconds[1] / seconds[0]
    check.add("two peers at once, against one", ratio, "×", Goal(1.33, at_least=False))


def one_peer(device: str, tiny: bool, barrier: Any, queue: Any) -> None:  # noqa: FBT001
    """Take the steps of a peer once all peers are ready, and send the seconds."""
    on = torch.device(device)
    check = Check("b", on, tiny, Report(Path(tempfile.mkdtemp())), "", 0.0, 0.0)
    with computed("bf16") as precision:
        settings = epochs.settings_of(check, precision, [])
        count = 2 * settings.train.batch
        regions = torch.empty(count, 36, epochs.FEATURES, device=on).normal_()
        _, steps = steps_of(settings, epochs.pair_set(check, regions, count))
        steps["warm-up"]()
        barrier.wait()
        begun = time.perf_counter()
        for _ in range(1 if tiny else 24):
            steps["warm-up"]()
        check.synchronize()
        queue.put(time.perf_counter() - begun)
