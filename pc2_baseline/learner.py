"""A learner: one network, its optimiser, and their state as plain tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from now_builder.errors import TrainingError


class Learner:
    """Take optimiser steps on a network.

    Args:
        net: The network, on its device.
        lr: Adam's learning rate.
        clip: Largest gradient norm.
        weight_decay: Share by which weights shrink in a step, times the rate, apart from the
            gradient (Loshchilov and Hutter, ICLR 2019); 0 is plain Adam.
    """

    def __init__(self, net: nn.Module, lr: float, clip: float, weight_decay: float = 0.0) -> None:
        self.net = net
        self.lr = lr
        self.clip = clip
        self.weight_decay = weight_decay
        self.restart()

    def restart(self) -> None:
        """Forget the optimiser's moments."""
        self.optimiser = torch.optim.AdamW(
            self.net.parameters(), lr=self.lr, weight_decay=self.weight_decay
        )

    def set_rate(self, factor: float) -> None:
        """Learn at ``factor`` times the full rate from now on."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * factor

    def step(self, loss: Tensor, where: str) -> float:
        """Take one step down a loss.

        Args:
            loss: A scalar.
            where: Epoch and batch, for the message.

        Raises:
            TrainingError: If the loss or the gradient is not finite; nothing is changed then.
        """
        value = loss.item()
        if not torch.isfinite(loss):
            raise TrainingError(f"{where}: the loss is {value}; lower train.lr or train.clip")
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.clip)
        if not torch.isfinite(norm):
            raise TrainingError(f"{where}: the gradient norm is {norm.item()}; lower train.lr")
        self.optimiser.step()
        return value

    def network_state(self) -> dict[str, Tensor]:
        """Weights and buffers by name, on the CPU."""
        return {name: _stored(value) for name, value in self.net.state_dict().items()}

    def load_network(self, state: Mapping[str, Tensor]) -> None:
        """Take weights and buffers.

        Raises:
            ValueError: If names or shapes are not this network's.
        """
        try:
            self.net.load_state_dict(dict(state))
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    def optimiser_state(self) -> dict[str, Tensor]:
        """Adam's moments and step counts by ``parameter/name``, on the CPU."""
        return {
            f"{name}/{key}": _stored(value)
            for name, parameter in self.net.named_parameters()
            for key, value in self.optimiser.state[parameter].items()
        }

    def load_optimiser(self, state: Mapping[str, Tensor]) -> None:
        """Take Adam's moments and step counts."""
        for name, parameter in self.net.named_parameters():
            prefix = f"{name}/"
            self.optimiser.state[parameter] = {
                key.removeprefix(prefix): value.clone()
                if key == f"{prefix}step"
                else value.to(parameter.device, copy=True)
                for key, value in state.items()
                if key.startswith(prefix)
            }


def _stored(value: Tensor) -> Tensor:
    return value.detach().cpu().contiguous().clone()
