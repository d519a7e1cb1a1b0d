"""Predict the operations, memory and hours of a training on a GPU, without one.

    python -m benchmarks.gpu.count --config pc2-paper --gpu h100 --set model.precision=bf16

A few steps of each phase run on shapes alone. Each operation takes the longer of its products at
70 % of the data sheet's rate and its bytes at 80 %, plus 45 µs: for ten of twelve steps of PC² that
were timed on an H100 the prediction is within a fifth. Mixtures are not counted.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from functools import cache, partial
from io import StringIO
from typing import Any
from unittest.mock import patch
from warnings import catch_warnings
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.nn import functional
from torch.nn.utils import clip_grad
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from benchmarks.gpu.machine import float32_products
from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import Settings, read_settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods import make_method
from pc2_baseline.training.method import Sizes

FAKE = torch.device("meta")
"""Device that stands for a GPU: its tensors have shapes but no values."""

_aten = torch.ops.aten
_to_copy, _item, _unique = _aten._to_copy, _aten._local_scalar_dense, _aten._unique2  # noqa: SLF001
_backward = _aten._efficient_attention_backward  # noqa: SLF001
_OF_SEQUENCES = {
    getattr(_aten, f"_{kind}_attention_{way}"): products
    for kind in ("flash", "efficient")
    for way, products in (("forward", 2), ("backward", 5))
}
"""Number of products of attention over sequences of any length."""
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
Kind = torch.dtype | str | None
"""Type of a product's factors, or ``tf32``."""
_MOST_KNOWN = 2**22
"""Maximum elements of a tensor whose values are computed."""


@contextmanager
def fake_gpu() -> Iterator["FakeDevice"]:
    """Make PyTorch treat :data:`FAKE` as a GPU, with fused optimisers and GRU kernels."""
    supported = lambda: [FAKE.type, "cpu"]  # noqa: E731
    name = "_get_fused_kernels_supported_devices"
    with (
        FakeDevice() as device,
        patch.object(optimizer, name, supported),
        patch.object(clip_grad, "_has_foreach_support", lambda *_: True),
        patch.object(torch._VF, "gru", partial(_gru, device)),  # noqa: SLF001
    ):
        yield device


def _gru(device: "FakeDevice", words: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Imitate the products, memory and gradients of a GRU of one layer.

    The sequence of steps counts as reading the state's weights at each step, forward and backward.
    """
    weights = next(each for each in rest if isinstance(each, list))
    steps = len(rest[0]) * (1 + torch.is_grad_enabled())
    device.work[None, 0, steps * sum(own.nbytes for own in weights[1::4])] += 1
    states = []
    for start in range(0, len(weights), 4):
        of_words, of_state, *biases = weights[start : start + 4]
        gates = functional.linear(words, of_words, biases[0])
        hidden = functional.linear(gates[..., : of_state.shape[1]], of_state, biases[1])
        states.append((gates * hidden).tanh()[..., : of_state.shape[1]])
    last = torch.stack([state.flatten(1)[:, : state.shape[-1]] for state in states])
    return torch.cat(states, -1), last


class FakeDevice(TorchDispatchMode):
    """Run PyTorch code on :data:`FAKE` as if it were a GPU, and count its work.

    Integers sent by the host, and values that depend on them alone, are computed. Other values that
    the host reads are invented: 1 for a number, all rows for a mask, low and high values in turn
    for a copy, and as nonzero cells of a matrix the diagonal and the cells next to it, as with a
    hinge on hardest negatives.

    Attributes:
        every_cell: Pretend that all cells of a matrix are nonzero.
        work: How often an operation ran, by type and operations of its product, and bytes.
        live: Bytes of all live tensors of this device.
        peak: Maximum of ``live``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.every_cell = False
        self.work: Counter[tuple[Kind, int, int]] = Counter()
        self.live = self.peak = 0
        self._twins = WeakIdKeyDictionary()  # by storage: its values, if known

    def restart(self) -> None:
        """Reset the counts; live tensors stay counted."""
        self.work.clear()
        self.peak = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Check an operation, run it, and count it."""
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        fake = [tensor for tensor in given if tensor.device == FAKE]
        if fake and func in _INDEXING:
            args = (args[0], self._without_masks(args[1]), *args[2:])
            given = _tensors((args, kwargs))
        read = self._read(func, args, kwargs) if fake else None
        if read is not None:
            return read
        found = NotImplemented
        if _is_composite(func):
            with self:  # count its parts, as in inference mode
                found = func.decompose(*args, **kwargs)
        if found is NotImplemented:
            if func is _backward.default:  # on shapes alone PyTorch's takes one argument too few
                found = tuple(torch.empty_like(own) for own in args[1:4])
            else:
                found = func(*args, **kwargs)
            made = [tensor for tensor in _tensors(found) if tensor.device == FAKE]
            self._count(func, args, kwargs, (given, made, found))
            self._follow(func, args, kwargs, (given, made))
        return found

    def _read(  # noqa: PLR0911 - one for each operation
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the value that the host reads from the GPU; ``None`` if it reads nothing."""
        first = args[0]
        if func is _item.default:
            known = self._twin(first)
            return torch.ones((), dtype=first.dtype).item() if known is None else known.item()
        if func is _to_copy.default and torch.device(kwargs.get("device") or FAKE) != FAKE:
            return func(self._numbers(first), **kwargs)
        if func is _aten.copy_.default and first.device != FAKE:
            return func(first, self._numbers(args[1]), *args[2:], **kwargs)
        if func is _aten.nonzero.default:
            return self._send(self._cells(first))
        if func is _aten.count_nonzero.default:
            return self._send(torch.tensor(len(self._cells(first))))
        if func is _unique.default:
            known = self._twin(first)
            values = torch.arange(first.numel()) if known is None else known
            return tuple(map(self._send, func(values, *args[1:], **kwargs)))
        return None

    def _without_masks(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replace masks by their places; a GPU's host waits for these."""
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool:
                found.append(index)
                continue
            found += [self._send(places.contiguous()) for places in self._cells(index).unbind(1)]
        return found

    def _cells(self, tensor: Tensor) -> Tensor:
        """Return the places of nonzero values, invented if the values are unknown."""
        known = self._twin(tensor)
        if known is not None:
            return known.nonzero()
        if tensor.dim() != 2 or self.every_cell:
            return torch.ones(tensor.shape, dtype=torch.bool).nonzero()
        rows, columns = tensor.shape
        near = torch.arange(rows)[:, None] + torch.arange(min(columns, 3))
        places = torch.stack([torch.arange(rows)[:, None].expand_as(near), near % columns], -1)
        return places.flatten(0, 1)

    def _numbers(self, tensor: Tensor) -> Tensor:
        """Return the values of a tensor that the host copies."""
        known = self._twin(tensor)
        if known is not None:
            return known
        numbers = torch.arange(tensor.numel())
        if tensor.is_floating_point():
            numbers = 0.2 + 0.6 * (numbers % 2) + torch.linspace(0, 0.01, len(numbers))
        elif tensor.dtype == torch.bool:
            numbers = numbers % 2
        return numbers.to(tensor.dtype).view(tensor.shape)

    def _send(self, numbers: Tensor) -> Tensor:
        """Return known values as a tensor of the GPU."""
        sent = numbers.to(FAKE)
        self._hold(sent, numbers)
        return sent

    def _hold(self, tensor: Tensor, numbers: Tensor | None = None) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._twins:
            size = storage.nbytes()
            self.live += size
            self.peak = max(self.peak, self.live)
            finalize(storage, self._release, size).atexit = False
        known = None
        if numbers is not None:
            known = torch.zeros(storage.nbytes() // tensor.itemsize, dtype=tensor.dtype)
            _laid(known, tensor).copy_(numbers)
        self._twins[storage] = known

    def _release(self, size: int) -> None:
        self.live -= size

    def _twin(self, tensor: Tensor) -> Tensor | None:
        """Return the known values of a tensor, or a tensor of the host itself."""
        if tensor.device != FAKE:
            return tensor
        known = self._twins.get(tensor.untyped_storage())
        return None if known is None or known.dtype != tensor.dtype else _laid(known, tensor)

    def _count(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Register new storages and count an operation."""
        given, made, found = results
        old = {tensor.untyped_storage()._cdata for tensor in given}  # noqa: SLF001
        new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in old]  # noqa: SLF001
        for tensor in new:
            self._hold(tensor)
        if not made or not (new or func._schema.is_mutable):  # noqa: SLF001 - a view costs nothing
            return
        counted = flop_registry.get(func._overloadpacket)  # noqa: SLF001
        if func._overloadpacket in _OF_SEQUENCES:  # noqa: SLF001 - PyTorch assumes the longest
            asks, keys = (
                self._twin(own).diff().long() for own in given if own.dtype == torch.int32
            )
            products = _OF_SEQUENCES[func._overloadpacket]  # noqa: SLF001
            flops = 2 * products * int((asks * keys).sum()) * given[0].shape[-1]
        else:
            flops = counted(*args, **kwargs, out_val=found) if counted else 0
        moved = sum(tensor.nbytes for tensor in (*given, *made) if tensor.device == FAKE)
        kind: Kind = given[0].dtype if flops else None
        if kind == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
            kind = "tf32"
        self.work[kind, flops, moved] += 1

    def _follow(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Compute values that follow from known ones."""
        given, made = results
        small = all(not t.is_floating_point() and t.numel() <= _MOST_KNOWN for t in made)
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        known = not drawn and all(self._twin(tensor) is not None for tensor in given)
        if made and small and known:
            on_host = {**kwargs, "device": "cpu"} if "device" in kwargs else kwargs
            twins = tree_map_only(Tensor, self._twin, (args, on_host))
            for tensor, numbers in zip(made, _tensors(func(*twins[0], **twins[1])), strict=True):
                if self._twin(tensor) is None:
                    self._hold(tensor, numbers)
        elif func._schema.is_mutable:  # noqa: SLF001
            for tensor in made:
                if tensor.untyped_storage() in self._twins:
                    self._twins[tensor.untyped_storage()] = None


@cache
def _is_composite(func: Any) -> bool:
    """Return whether an operation can be decomposed into others."""
    key = DispatchKey.CompositeImplicitAutograd
    return bool(func.has_kernel_for_dispatch_key(key))


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors among an operation's inputs or outputs: faster than pytree."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for branch in tree for tensor in _tensors(branch)]


def _laid(flat: Tensor, like: Tensor) -> Tensor:
    return flat.as_strided(like.shape, like.stride(), like.storage_offset())


GPUS = {
    "h100": (67.0, 495.0, 989.0, 3.35),
    "h200": (67.0, 495.0, 989.0, 4.8),
}
"""Data sheets: dense TFLOP/s in float32, TF32 and bfloat16, and TB/s of memory."""
_BATCHES = 4
_FROM = ("noisy_from_epoch", "ambiguous_from_epoch", "hard_from_epoch")
_FEATURES, _VOCABULARY, _DEV = 768, 30_000, 1000
Work = Mapping[tuple[Kind, int, int], float | int]


def seconds_of(work: Work, gpu: str) -> float:
    """Return the time of some work; each operation is bound by arithmetic or by memory."""
    fp32, in_tf32, bf16, memory = GPUS[gpu]
    rates = {torch.float32: fp32, "tf32": in_tf32, torch.bfloat16: bf16}
    found = 0.0
    for (kind, flops, moved), times in work.items():
        rate = rates.get(kind or torch.float32, fp32 / 2)
        found += times * (max(moved / (0.8e12 * memory), flops / (0.7e12 * rate)) + 45e-6)
    return found


def flops_of(work: Work) -> float:
    """Return the arithmetic operations of some work's products."""
    return float(sum(flops * times for (_, flops, _), times in work.items()))


def operations_of(steps: Sequence[Work]) -> float:
    """Return the mean number of operations per step, or of a pass over all batches."""
    return float(sum(sum(work.values()) for work in steps) / len(steps))


def pairs_of(count: int, settings: Settings) -> PairSet:
    """Make pairs on the fake device, with captions of NoW's lengths, 54 tokens on average."""
    draw = np.random.default_rng(0)
    lengths = np.clip(np.round(draw.gamma(3.0, 18.0, count)), 3, 412).astype(int) + 2
    captions = [draw.integers(4, _VOCABULARY, length) for length in lengths]
    if settings.reads:
        captions = list(draw.normal(size=(count, WIDTH)).astype(np.float32))
    regions, own = torch.empty(count, 36, _FEATURES, device=FAKE), np.arange(count)
    return PairSet(regions, captions, "counted", FAKE, own, own >= 0)


def count_steps(settings: Settings, device: FakeDevice) -> dict[str, tuple[list[Work], int, int]]:
    """Run an epoch of each kind on a few batches.

    Returns:
        By phase: the work of each step (or of all peers' division, of the blocks of dev), the
        peak memory in bytes, and the number of epochs in a training.

    Raises:
        ConfigError: If the method trains on the CPU.
    """
    train, noisy_from = settings.train, getattr(settings.method, "noisy_from_epoch", None)
    clean = train.epochs if noisy_from is None else min(noisy_from, train.epochs)
    kinds = {"warm-up": train.warmup_epochs, "clean": clean, "noisy": train.epochs - clean}
    first = {name: 1 for name in _FROM if hasattr(settings.method, name)} | {"mean_epochs": 0}
    short = settings.model_copy(update={
        "method": settings.method.model_copy(update={**first, "schedules": ()}),
        "train": train.model_copy(update={"warmup_epochs": 1, "epochs": 2}),
    })  # fmt: skip
    pairs = pairs_of(_BATCHES * train.batch, settings)
    method: Any = make_method(short, Sizes(len(pairs), _FEATURES, _VOCABULARY), FAKE)
    learners = getattr(method, "learners", None) or [getattr(method, "learner", None)]
    if learners == [None]:
        raise ConfigError(f"method {settings.method.name}: it trains on the CPU, whatever the GPU")
    found: dict[str, tuple[list[Work], int, int]] = {}
    judged = sum(train.evaluates(epoch) for epoch in range(train.total_epochs))
    for number, (name, epochs) in enumerate(kinds.items()):
        if not epochs:
            continue
        steps: list[Work] = []
        peaks: list[int] = []

        def note(*_: object, steps: list[Work] = steps, peaks: list[int] = peaks) -> None:
            steps.append(Counter(device.work))
            peaks.append(device.peak)
            device.restart()

        device.every_cell = not number  # at first all negatives break the margin
        hooks = [own.optimiser.register_step_post_hook(note) for own in learners]
        device.restart()
        method.fit_epoch(pairs, number)
        for hook in hooks:
            hook.remove()
        found[name] = steps, max(peaks), epochs
        if flops_of(device.work):
            found["division"] = [Counter(device.work)], device.peak, judged
    device.restart()
    method.similarity(pairs_of(256, settings))
    found["dev"] = [Counter(device.work)], device.peak, judged
    return found


def hours_of(
    counted: dict[str, tuple[list[Work], int, int]],
    settings: Settings,
    gpu: str,
    pairs: int,
    clean_share: float,
) -> dict[str, float]:
    """Project the hours of each phase over all pairs, with a share of clean ones."""
    epoch, hours = pairs / (_BATCHES * settings.train.batch), {}
    most = max(len(steps) for steps, *_ in counted.values())
    for name, (steps, _, epochs) in counted.items():
        share = 2 * clean_share if 1 < len(steps) < most else 1.0  # half of these pairs are clean
        of_dev = (_DEV / 256) ** 2
        seconds = sum(seconds_of(work, gpu) for work in steps)
        hours[name] = seconds * epochs * share * (of_dev if name == "dev" else epoch) / 3600
    return hours


def main() -> None:
    """Print a line for each phase, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="pc2-paper")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--gpu", choices=GPUS, default="h100")
    parser.add_argument("--pairs", type=int, default=98_000)
    parser.add_argument("--clean", type=float, default=0.7)
    options = parser.parse_args()
    settings = read_settings(options.config, options.set)
    quiet = redirect_stderr(StringIO()), catch_warnings(action="ignore")
    precision = "tf32" if settings.train.tf32 else "fp32"
    with quiet[0], quiet[1], float32_products(precision), fake_gpu() as device:
        counted = count_steps(settings, device)
    hours = hours_of(counted, settings, options.gpu, options.pairs, options.clean)
    print(f"{'phase':10}{'epochs':>7}{'operations':>11}{'TFLOP':>10}{'hours':>8}{'GiB':>7}")
    for name, (steps, peak, epochs) in counted.items():
        flops = sum(map(flops_of, steps)) / len(steps) / 1e12
        count = operations_of(steps)
        print(f"{name:10}{epochs:7}{count:11.0f}{flops:10.4g}{hours[name]:8.2f}{peak / 2**30:7.1f}")
    print(f"{sum(hours.values()):.1f} h on one {options.gpu}, {options.pairs:,} pairs")


if __name__ == "__main__":
    main()
