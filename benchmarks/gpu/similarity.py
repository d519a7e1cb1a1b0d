"""Part c: a block of SGR, forward and backward, against the loop over captions in fp32."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.machine import Ceilings, Check, measure_ceilings
from benchmarks.gpu.report import Goal
from benchmarks.sgr import LAYERS, SIZES, Size, lengths_of, make, operations, plain_loop

BATCH = 128
LOOP = "loop, fp32"
WAYS = (("ours, fp32", False), ("ours, bf16", False), (LOOP, True))
"""Name with the precision, and whether by the loop."""

FASTER, FASTER_ALIKE, GIB = Goal(8.0), Goal(4.0), Goal(12.0, at_least=False)
CLOSE, CLOSE_GRADIENT = Goal(1e-4, at_least=False), Goal(1e-3, at_least=False)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one way of scoring takes, forward and backward.

    Attributes:
        scores: And ``gradient`` of the regions, to compare ways by.
    """

    seconds: float
    gib: float
    scores: torch.Tensor
    gradient: torch.Tensor


def run(check: Check) -> None:
    """Run all ways at NoW's lengths and write down times, memory, rates and differences."""
    ceilings = measure_ceilings(check)
    size = replace(SIZES["now"], batch=BATCH, device=str(check.device))
    if check.tiny:
        size = replace(size, batch=4, dim=16, node=8, mean_words=6, longest=10)
    taken: dict[str, Taken] = {}
    for way, looped in WAYS:
        found = take(check, size, way[-4:], looped=looped)
        if found is None:
            check.add(f"{way}, step", None, "s", note="out of the device's memory")
            continue
        taken[way] = found
        check.add(f"{way}, step", found.seconds, "s", note=f"batch {size.batch}")
        check.add(
            f"{way}, peak memory", found.gib, "GiB", None if looped else GIB,
            note="of the tensors" if check.device.type == "cuda" else "of the process so far",
        )  # fmt: skip
        rates(check, way, size, found.seconds, ceilings)
    ratios(check, taken)


def take(check: Check, size: Size, precision: str, *, looped: bool) -> Taken | None:
    """Time one way; nothing if it does not fit."""
    check.forget_peak()
    try:
        step, outcome = steps(size, precision, looped=looped)
        seconds = check.median_s(step, 3 if looped else 10, warm=1 if looped else 3)
        return Taken(seconds, check.peak_gib(), *outcome())
    except torch.OutOfMemoryError:
        return None


def steps(
    size: Size, precision: str, *, looped: bool
) -> tuple[Callable[[], None], Callable[[], tuple[torch.Tensor, torch.Tensor]]]:
    """Make a step forward and backward, and a look at what its last call came to."""
    net, images, captions = make(size, precision)
    score = plain_loop if looped else type(net).__call__
    kept: list[torch.Tensor] = []

    def step() -> None:
        images.regions.grad = captions.words.grad = None
        net.zero_grad()
        kept.clear()
        scores = score(net, images, captions)
        scores.float().square().sum().backward()
        kept.append(scores.detach())

    def outcome() -> tuple[torch.Tensor, torch.Tensor]:
        return kept[0].float().cpu(), images.regions.grad.cpu()

    return step, outcome


def rates(check: Check, label: str, size: Size, seconds: float, ceilings: Ceilings) -> None:
    """Write down what a way achieves of what the device can: operations, and bytes."""
    kind = label[-4:]
    rate, moved = operations(size) / seconds, least_bytes(size, kind) / seconds
    check.add(f"{label}, operations", rate / 1e12, "TFLOP/s", note="of the loop's products")
    check.add(f"{label}, of the product's ceiling", 100 * rate / ceilings.flops[kind], "%")
    check.add(f"{label}, of the copy's ceiling", 100 * moved / ceilings.bytes, "%",
              note="of bytes that no way of making all nodes can avoid")  # fmt: skip


def least_bytes(size: Size, precision: str) -> float:
    """Count bytes to and from memory if nodes are made layer by layer, forward and backward.

    Forward, each layer reads nodes and writes nodes; backward reads the nodes and the gradient of
    those above, and writes that of those below. What has the width of a word is taken to stay in
    the chip. All else is small.
    """
    cells = size.batch * sum(length + 1 for length in lengths_of(size)) * size.node
    return 5.0 * (1 + LAYERS) * cells * (2 if precision == "bf16" else 4)


def ratios(check: Check, taken: dict[str, Taken]) -> None:
    """Hold ours against the loop, and against its results."""
    loop = taken.get(LOOP)
    if loop is None:
        return
    for way, faster, close, close_gradient in (
        ("ours, fp32", FASTER_ALIKE, CLOSE, CLOSE_GRADIENT), ("ours, bf16", FASTER, None, None),
    ):  # fmt: skip
        ours = taken.get(way)
        if ours is None:
            continue
        check.add(f"{way}, to the loop", loop.seconds / ours.seconds, "× as fast", faster)
        apart = float((ours.scores - loop.scores).abs().max())
        check.add(f"{way}, largest difference of scores", apart, "", close)
        gradient = float((ours.gradient - loop.gradient).norm() / loop.gradient.norm())
        check.add(f"{way}, relative difference of gradients", gradient, "", close_gradient)
