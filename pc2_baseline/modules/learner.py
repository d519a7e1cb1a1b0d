"""A learner: one network, its optimiser, and their state as tensors."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn

from now_builder.errors import TrainingError
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a training, named in the message if it fails.

    Attributes:
        epoch: From 0.
        batch: From 0.
        peer: Peer whose network is trained, if there are several.
        pair_index: Training pairs of the batch.
        parts: Terms of the loss by name, for the report of a failure; may be on the device.
    """

    epoch: int
    batch: int
    peer: str | None
    pair_index: Int[np.ndarray, " batch"]
    parts: Mapping[str, float | Tensor] = field(default_factory=dict)

    def __str__(self) -> str:
        """Name the epoch, the batch and the peer."""
        where = f"epoch {self.epoch}, batch {self.batch}"
        return f"{where}, peer {self.peer}" if self.peer else where


class BrokenStepError(TrainingError):
    """A step whose loss or gradient is not finite."""

    def __init__(self, step: Step, problem: str, loss: float) -> None:
        super().__init__(f"{step}: {problem}")
        self.step = step
        self.problem = problem
        self.loss = loss


def mean_losses(losses: Sequence[Sequence[float | Tensor]]) -> list[float]:
    """Return the mean of each loss; only here are tensors read, so that no step waits for them."""
    read = [[float(value) for value in step] for step in losses]
    return [float(mean) for mean in np.mean(read, axis=0)]


def rate(epoch: int, warmup: int, drop: int) -> float:
    """Return the factor of the learning rate: 1, and a tenth ``drop`` epochs after the warm-up."""
    return 0.1 if epoch - warmup >= drop else 1.0


def stepped_rate(epoch: int, every: int, factor: float) -> float:
    """Return the factor of the learning rate: 1, times ``factor`` for each drop so far."""
    return factor ** (epoch // every)


class Learner:
    """Take optimiser steps on a network.

    Args:
        net: The network, on its device.
        lr: Adam's learning rate.
        clip: Maximum gradient norm.
        weight_decay: Weight decay of AdamW (Loshchilov and Hutter, ICLR 2019); 0: Adam.
        matching: The part of the network whose work a process group shares, if any.
    """

    def __init__(
        self,
        net: nn.Module,
        lr: float,
        clip: float,
        weight_decay: float,
        matching: MatchingNetwork | None = None,
    ) -> None:
        self.net = net
        self.matching = matching
        self.lr = lr
        self.clip = clip
        self.weight_decay = weight_decay
        self.restart()

    def restart(self) -> None:
        """Reset the optimiser's moments."""
        self.optimiser = torch.optim.AdamW(
            self.net.parameters(), lr=self.lr, weight_decay=self.weight_decay, fused=True
        )

    def set_rate(self, factor: float) -> None:
        """Set the learning rate to ``factor`` times the full one."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * factor

    def step(self, loss: Tensor, step: Step) -> float:
        """Take one step down a loss.

        Raises:
            BrokenStepError: If the loss or the gradient is not finite; weights do not change then.
        """
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.matching is not None and self.matching.similarity.group.parts > 1:
            self.matching.similarity.group.sum_gradients(self.matching.shared_parameters())
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        # Both in one copy: the only time in a step that the host waits for the device's results.
        value, length = torch.stack([loss.detach(), norm]).tolist()
        if not isfinite(value):
            raise BrokenStepError(step, f"the loss is {value}; lower train.lr or train.clip", value)
        if not isfinite(length):
            raise BrokenStepError(step, f"the gradient norm is {length}; lower train.lr", value)
        self.optimiser.step()
        return float(value)

    def network_state(self) -> dict[str, Tensor]:
        """Return weights and buffers by name, on the CPU, without frozen weights."""
        frozen = _frozen(self.net)
        state = self.net.state_dict().items()
        return {name: _stored(value) for name, value in state if name not in frozen}

    def load_network(self, state: Mapping[str, Tensor]) -> None:
        """Load what :meth:`network_state` returned."""
        load_learned(self.net, state)

    def optimiser_state(self) -> dict[str, Tensor]:
        """Return Adam's moments and step counts by ``parameter/name``, on the CPU."""
        return {
            f"{name}/{key}": _stored(value)
            for name, parameter in self.net.named_parameters()
            for key, value in self.optimiser.state[parameter].items()
        }

    def load_optimiser(self, state: Mapping[str, Tensor]) -> None:
        """Load Adam's moments and step counts onto the weights' device, as fused steps require."""
        for name, parameter in self.net.named_parameters():
            prefix = f"{name}/"
            self.optimiser.state[parameter] = {
                key.removeprefix(prefix): value.to(parameter.device, copy=True)
                for key, value in state.items()
                if key.startswith(prefix)
            }


def take_steps(
    learner: Learner,
    batches: Sequence[Int[np.ndarray, " _"]],
    loss: Callable[[Int[np.ndarray, " _"]], Tensor],
    epoch: int,
    peer: str | None = None,
    title: str = "train",
) -> float:
    """Take a step down the loss of each batch of pairs, and return the mean loss."""
    shown = bar(batches, f"{title} {peer or ''}".rstrip(), len(batches))
    losses = [
        learner.step(loss(rows), Step(epoch, number, peer, rows))
        for number, rows in enumerate(shown)
    ]
    return float(np.mean(losses))


def load_learned(net: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a :meth:`Learner.network_state`."""
    held = net.state_dict()
    frozen = {name: held[name] for name in _frozen(net)}
    try:
        net.load_state_dict({**frozen, **state})
    except RuntimeError as error:
        raise ValueError(str(error)) from None


def _frozen(net: nn.Module) -> set[str]:
    return {name for name, weight in net.named_parameters() if not weight.requires_grad}


def _stored(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()


def add_prefix(prefix: str, state: Mapping[str, Value]) -> dict[str, Value]:
    """Add ``prefix.`` to the names of a state."""
    return {f"{prefix}.{name}": value for name, value in state.items()}


def select_prefix(state: Mapping[str, Value], prefix: str) -> dict[str, Value]:
    """Return the values of one prefix, without it; the inverse of :func:`add_prefix`."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in state.items()
        if name.startswith(f"{prefix}.")
    }
