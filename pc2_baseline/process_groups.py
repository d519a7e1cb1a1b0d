"""Train in several processes: peers in parallel, a peer's similarity block split by columns.

``torchrun`` starts them; in a single process, every function here does nothing. All ranks of a
group have the same network, batches and random numbers, so that encoders give the same embeddings
everywhere; each scores its share of the captions against all images, and the shares are gathered.
Hardest negatives are therefore those of the whole batch.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.autograd import Function

from now_builder.errors import ConfigError

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks that train one network together.

    Attributes:
        part: Index of this rank's share of the captions of a block.
        parts: Number of shares.
        group: Their ``torch.distributed`` group; ``None`` for a group of one.
        leader: Rank that sends the result to the other groups.
    """

    part: int = 0
    parts: int = 1
    group: Any = None
    leader: int = 0

    def share(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs, equal on all ranks, so that gradients are summed over the ranks."""
        if self.parts == 1:
            return inputs
        shared: tuple[Tensor, ...] = _Share.apply(self.group, *inputs)
        return shared

    def gather(self, own: Float[Tensor, "rows share"], columns: int) -> Float[Tensor, "rows all"]:
        """Gather all shares: share ``p`` holds columns ``p``, ``p + parts`` and so on."""
        if self.parts == 1:
            return own
        gathered: Tensor = _Gather.apply(self, own, columns)
        return gathered

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients of parameters that act only on a rank's share."""
        listed = list(parameters)
        if self.parts == 1 or not listed:
            return
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in listed]
        for parameter, values in zip(listed, _summed(gradients, self.group), strict=True):
            parameter.grad = values.clone()


ALONE = ProcessGroup()


@dataclass(frozen=True, slots=True)
class ProcessGroups:
    """Peers that this rank trains, and the ranks of each peer.

    Attributes:
        mine: Peers of this rank.
        groups: Group of ranks that trains each peer.
        control: Group of all ranks for messages on the CPU; ``None`` when alone.
    """

    mine: tuple[int, ...]
    groups: tuple[ProcessGroup, ...]
    control: Any = None

    def for_each_peer(self, make: Callable[[int], Value]) -> list[Value]:
        """Call ``make`` for each of this rank's peers and receive the other peers' results."""
        made = {peer: make(peer) for peer in self.mine}
        if len(self.mine) == len(self.groups):
            return list(made.values())  # every rank has made all of them itself
        results = []
        for peer, group in enumerate(self.groups):
            box: list[Any] = [made[peer] if dist.get_rank() == group.leader else None]
            dist.broadcast_object_list(box, src=group.leader, group=self.control)
            results.append(made.get(peer, box[0]))
        return results


def join_process_groups(peers: int) -> ProcessGroups:
    """Assign ranks to peers: equal shares if possible, else all ranks to every peer.

    Raises:
        ConfigError: If processes share one GPU and are not as many as the peers.
    """
    everyone = tuple(range(peers))
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return ProcessGroups(everyone, (ALONE,) * peers)
    rank, size = dist.get_rank(), dist.get_world_size()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if size != peers and on_gpu and dist.get_backend() == "gloo":
        raise ConfigError(f"torchrun: {size} processes on one GPU, expected {peers}, one per peer")
    control = dist.new_group(backend="gloo")
    if size % peers:
        joint = ProcessGroup(rank, size, dist.group.WORLD)
        return ProcessGroups(everyone, (joint,) * peers, control)
    share = size // peers
    groups = []
    for peer in everyone:
        ranks = list(range(peer * share, (peer + 1) * share))
        group = dist.new_group(ranks)
        part = ranks.index(rank) if rank in ranks else 0
        groups.append(ProcessGroup(part, share, group, ranks[0]))
    mine = tuple(peer for peer in everyone if rank // share == peer)
    return ProcessGroups(mine, tuple(groups), control)


def start(device: str) -> None:
    """Connect the processes if ``torchrun`` started several.

    Processes that share a machine's only GPU use Gloo, as NCCL does not support that.

    Raises:
        ConfigError: If this machine has several GPUs, but fewer than processes.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        return
    on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
    gpus = torch.cuda.device_count() if on_gpu else 0
    local = int(os.environ["LOCAL_RANK"]) if on_gpu else 0
    if on_gpu and gpus != 1 and local >= gpus:
        problem = f"process {local + 1} on this machine, which has {gpus} GPUs"
        raise ConfigError(f"torchrun: {problem}; lower --nproc-per-node")
    if on_gpu:
        torch.cuda.set_device(local_gpu())
    crowded = gpus < int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    dist.init_process_group("gloo" if crowded or not on_gpu else "nccl")


def local_gpu() -> int:
    """Return the number of this process's GPU: the only one, or that of its rank."""
    return int(os.environ.get("LOCAL_RANK", "0")) % max(1, torch.cuda.device_count())


def is_first() -> bool:
    """Return whether this process is the one that writes files and messages."""
    return not dist.is_initialized() or dist.get_rank() == 0


def wait() -> None:
    """Wait until every process has reached this call."""
    if dist.is_initialized():
        dist.barrier()


def _summed(tensors: Sequence[Tensor], group: Any) -> list[Tensor]:
    """Sum tensors over the ranks of a group, in one message."""
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, group: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(value.view_as(value) for value in inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_summed(gradients, ctx.group)


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, group: ProcessGroup, own: Tensor, columns: int) -> Tensor:
        ctx.group = group
        widest = -(-columns // group.parts)
        padded = own.new_zeros(len(own), widest)
        padded[:, : own.shape[1]] = own
        parts = [torch.empty_like(padded) for _ in range(group.parts)]
        dist.all_gather(parts, padded, group=group.group)
        return torch.stack(parts, 2).flatten(1)[:, :columns]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None]:
        return None, gradient[:, ctx.group.part :: ctx.group.parts].contiguous(), None
