"""A GPU that is not there: code for one runs on shapes alone, and what it does is counted."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch
from weakref import finalize

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.nn import functional
from torch.optim import optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

FAKE = torch.device("meta")
"""The device that stands for a GPU: its tensors have shapes, and no numbers."""

_aten = torch.ops.aten
_to_copy, _item, _unique = _aten._to_copy, _aten._local_scalar_dense, _aten._unique2  # noqa: SLF001
_TAKES_BOTH = {_to_copy.default, _aten.copy_.default, _aten._pack_padded_sequence.default}  # noqa: SLF001
_INDEXING = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default}
_MOST_KNOWN = 2**22
"""Numbers of the largest tensor that is computed for real."""


@contextmanager
def fake_gpu() -> Iterator["FakeDevice"]:
    """Let PyTorch take :data:`FAKE` for a GPU, which has fused optimisers and whole GRUs."""
    supported = lambda: [FAKE.type, "cpu"]  # noqa: E731
    name = "_get_fused_kernels_supported_devices"
    with (
        patch.object(optimizer, name, supported),
        patch.object(torch._VF, "gru", _gru),  # noqa: SLF001
        FakeDevice() as device,
    ):
        yield device


def _gru(words: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Take the products, memory and gradients of a GRU of one layer, without its order in time."""
    weights = next(each for each in rest if isinstance(each, list))
    states = []
    for start in range(0, len(weights), 4):
        of_words, of_state, *biases = weights[start : start + 4]
        gates = functional.linear(words, of_words, biases[0])
        hidden = functional.linear(gates[..., : of_state.shape[1]], of_state, biases[1])
        states.append((gates * hidden).tanh()[..., : of_state.shape[1]])
    last = torch.stack([state.flatten(1)[:, : state.shape[-1]] for state in states])
    return torch.cat(states, -1), last


class MixedDevicesError(RuntimeError):
    """Tensors of the host and of the GPU met in one operation."""


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Run PyTorch code on :data:`FAKE` as if it were a GPU, and count what it does there.

    Integers that the host has sent, and what follows from them alone, are computed for real beside
    the shapes. What else the host reads is made up: 1 for a number, all rows for a mask, rows that
    are all different, low and high in turn for a copy of others, and for the cells of a matrix that
    are not zero the diagonal and the cells beside it, as a hinge on hardest negatives leaves them.

    Attributes:
        every_cell: Make up that all cells of a matrix are not zero.
        synchronisations: How often the host waited for the GPU, by operation and place.
        work: How often an operation ran, by type of its product, operations of that, and bytes.
        live: Bytes that are held of what was made here.
        peak: The most that were held at once.

    Raises:
        MixedDevicesError: If an operation gets tensors of both devices.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.every_cell = False
        self.synchronisations: Counter[str] = Counter()
        self.work: Counter[tuple[torch.dtype | None, int, int]] = Counter()
        self.live = self.peak = 0
        self._twins = WeakIdKeyDictionary()  # by storage: its numbers, where they are known

    def restart(self) -> None:
        """Count anew; what is held stays held."""
        self.synchronisations.clear()
        self.work.clear()
        self.peak = self.live

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Check an operation, run it, and count it."""
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        fake = [tensor for tensor in given if tensor.device == FAKE]
        if fake and func not in _TAKES_BOTH and any(t.device != FAKE and t.dim() for t in given):
            raise MixedDevicesError(f"{func} in {_place()}: tensors of the host and of the GPU")
        if fake and func in _INDEXING:
            args = (args[0], self._without_masks(args[1]), *args[2:])
            given = _tensors((args, kwargs))
        read = self._read(func, args, kwargs) if fake else None
        if read is not None:
            return read
        found = NotImplemented
        if _is_composite(func):
            with self:  # its parts, as inference mode has them
                found = func.decompose(*args, **kwargs)
        if found is NotImplemented:
            found = func(*args, **kwargs)
            made = [tensor for tensor in _tensors(found) if tensor.device == FAKE]
            self._count(func, args, kwargs, (given, made, found))
            self._follow(func, args, kwargs, (given, made))
        return found

    def _read(  # noqa: PLR0911 - one for each operation
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what the host gets from the GPU, after waiting for it; nothing if it asks not."""
        first = args[0]
        if func is _item.default:
            self._wait("item")
            known = self._twin(first)
            return torch.ones((), dtype=first.dtype).item() if known is None else known.item()
        if func is _to_copy.default and torch.device(kwargs.get("device") or FAKE) != FAKE:
            self._wait("copy")
            return func(self._numbers(first), **kwargs)
        if func is _aten.copy_.default and first.device != FAKE:
            self._wait("copy")
            return func(first, self._numbers(args[1]), *args[2:], **kwargs)
        if func is _aten.nonzero.default:
            self._wait("nonzero")
            return self._send(self._cells(first))
        if func is _aten.count_nonzero.default:
            return self._send(torch.tensor(len(self._cells(first))))
        if func is _unique.default:
            self._wait("unique")
            known = self._twin(first)
            values = torch.arange(first.numel()) if known is None else known
            return tuple(map(self._send, func(values, *args[1:], **kwargs)))
        if func is _aten.bincount.default:
            self._wait("bincount")
            return self._send(func(self._numbers(first), *args[1:], **kwargs))
        if func.name() == "torchvision::nms":
            self._wait("nms")
            return self._send(torch.arange(len(first)))
        return None

    def _wait(self, operation: str) -> None:
        self.synchronisations[f"{operation} in {_place()}"] += 1

    def _without_masks(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Replace masks by the places that they mark, which the host has to wait for."""
        found: list[Tensor | None] = []
        for index in indices:
            if index is None or index.dtype != torch.bool:
                found.append(index)
                continue
            self._wait("mask")
            found += [self._send(places.contiguous()) for places in self._cells(index).unbind(1)]
        return found

    def _cells(self, tensor: Tensor) -> Tensor:
        """Return the places of what is not zero, made up where it is not known."""
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
        """Return a tensor as the host copies it."""
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
        """Return known numbers as a tensor of the GPU."""
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
        """Return the numbers of a tensor, if they are known, or the tensor if it is the host's."""
        if tensor.device != FAKE:
            return tensor
        known = self._twins.get(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return None if known is None or known.dtype != tensor.dtype else _laid(known, tensor)

    def _count(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Hold the storages that are new, and note what an operation took."""
        given, made, found = results
        old = {tensor.untyped_storage()._cdata for tensor in given}  # noqa: SLF001
        new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in old]  # noqa: SLF001
        for tensor in new:
            self._hold(tensor)
        if not made or not (new or func._schema.is_mutable):  # noqa: SLF001 - a view costs nothing
            return
        counted = flop_registry.get(func._overloadpacket)  # noqa: SLF001
        flops = counted(*args, **kwargs, out_val=found) if counted else 0
        moved = sum(tensor.nbytes for tensor in (*given, *made) if tensor.device == FAKE)
        self.work[given[0].dtype if flops else None, flops, moved] += 1

    def _follow(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Compute numbers that are known for real."""
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
    """Whether an operation can be made of others."""
    key = DispatchKey.CompositeImplicitAutograd
    return bool(func.has_kernel_for_dispatch_key(key))


def _tensors(tree: Any) -> list[Tensor]:
    """Return the tensors of what an operation takes or returns: several times as fast as pytree."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, list | tuple):
        return []
    return [tensor for branch in tree for tensor in _tensors(branch)]


def _laid(flat: Tensor, like: Tensor) -> Tensor:
    return flat.as_strided(like.shape, like.stride(), like.storage_offset())


def _place() -> str:
    """Name the function of this project that called an operation."""
    frame = sys._getframe(1)  # noqa: SLF001 - the standard library's own way
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.startswith(("pc2_baseline", "now_builder")) and module != __name__:
            return f"{module.rpartition('.')[2]}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "a caller"
