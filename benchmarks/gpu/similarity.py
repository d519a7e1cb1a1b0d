"""Part 2: a block of SGR and of SAF, forward and backward, against the loop over captions."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from benchmarks.gpu.machine import Ceilings, Check, measure_ceilings
from benchmarks.gpu.report import Goal
from benchmarks.sgr import LAYERS, SIZES, Size, lengths_of, make, operations, plain_loop

BATCH = 128
PAPER_DIM = 2048
"""Width of a word in the paper; the released code and other work have the 1,024 of ``SIZES``."""

WAYS = ((False, "fp32"), (False, "bf16"), (True, "fp32"), (True, "bf16"))
"""Whether by the loop, and the precision."""

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
    """Measure both kinds at both lengths, then SGR at the paper's width, then a profile."""
    ceilings = measure_ceilings(check)
    for label, size in sizes(check).items():
        compare(check, label, size, ceilings, WAYS)
    label, size = next(iter(sizes(check).items()))
    for precision in ("fp32", "bf16"):
        step, _ = steps(size, precision, looped=False)
        step()
        check.profile(f"{label}, ours in {precision}: a step", step)


def one_loop(check: Check) -> None:
    """Measure the size that goals are for, against the loop in fp32 alone: part c."""
    label, size = next(iter(sizes(check).items()))
    compare(check, label, size, measure_ceilings(check), WAYS[:3])


def sizes(check: Check) -> dict[str, Size]:
    """List what is measured; the first is the one that goals are for."""
    device = str(check.device)
    if check.tiny:
        tiny = Size(batch=4, dim=16, node=8, mean_words=6, longest=10, device=device)
        return {"SGR, tiny": tiny, "SAF, tiny": replace(tiny, kind="saf")}
    found = {}
    for kind in ("sgr", "saf"):
        for name, said in (("now", "NoW's lengths"), ("flickr", "Flickr30K's lengths")):
            size = replace(SIZES[name], batch=BATCH, device=device, kind=kind)
            found[f"{kind.upper()}, {said}"] = size
    wide = replace(SIZES["now"], batch=BATCH, device=device, dim=PAPER_DIM)
    return {**found, f"SGR, NoW's lengths, width {PAPER_DIM}": wide}


def compare(
    check: Check, label: str, size: Size, ceilings: Ceilings, ways: Sequence[tuple[bool, str]]
) -> None:
    """Run ways of one size and write down times, memory, rates and differences."""
    taken: dict[str, Taken] = {}
    for looped, precision in ways:
        way = f"{'loop' if looped else 'ours'}, {precision}"
        found = take(check, size, precision, looped=looped)
        if found is None:
            check.add(f"{label}: {way}, step", None, "s", note="out of the device's memory")
            continue
        taken[way] = found
        check.add(f"{label}: {way}, step", found.seconds, "s", note=f"batch {size.batch}")
        check.add(
            f"{label}: {way}, peak memory", found.gib, "GiB", None if looped else GIB,
            note="of the tensors" if check.device.type == "cuda" else "of the process so far",
        )  # fmt: skip
        rates(check, f"{label}: {way}", size, found.seconds, ceilings)
    ratios(check, label, taken)


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
    net, images, captions = make(size, "fp32" if looped else precision)
    score = plain_loop if looped else type(net).__call__
    halved = looped and precision == "bf16"
    kept: list[torch.Tensor] = []

    def step() -> None:
        images.regions.grad = captions.words.grad = None
        net.zero_grad()
        kept.clear()
        device = images.regions.device.type
        with torch.autocast(device, torch.bfloat16) if halved else nullcontext():
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
    layers = 1 + (LAYERS if size.kind == "sgr" else 1)
    return 5.0 * layers * cells * (2 if precision == "bf16" else 4)


def ratios(check: Check, label: str, taken: dict[str, Taken]) -> None:
    """Hold ours against the loop, and in float32 against its results."""
    loop, half = taken.get("loop, fp32"), taken.get("loop, bf16")
    ours, ours_half = taken.get("ours, fp32"), taken.get("ours, bf16")
    judged = label.startswith("SGR")
    for name, slow, fast, goal in (
        ("ours in bf16 to the fp32 loop", loop, ours_half, FASTER),
        ("ours to the loop, both fp32", loop, ours, FASTER_ALIKE),
        ("ours to the loop, both bf16", half, ours_half, FASTER_ALIKE),
    ):
        if slow and fast:
            times = slow.seconds / fast.seconds
            check.add(f"{label}: {name}", times, "× as fast", goal if judged else None)
    if loop is None:
        return
    for name, other, close, close_gradient in (
        ("ours, fp32", ours, CLOSE, CLOSE_GRADIENT), ("ours, bf16", ours_half, None, None),
        ("loop, bf16", half, None, None),
    ):  # fmt: skip
        if other is None:
            continue
        apart = float((other.scores - loop.scores).abs().max())
        check.add(f"{label}: {name}, largest difference of scores", apart, "", close)
        gradient = float((other.gradient - loop.gradient).norm() / loop.gradient.norm())
        check.add(f"{label}: {name}, relative difference of gradients", gradient, "",
                  close_gradient)  # fmt: skip
