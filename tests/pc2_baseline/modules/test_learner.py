"""Steps of an optimiser that is kept and loaded."""

import numpy as np
import pytest
import torch
from torch import nn

from pc2_baseline.modules.learner import Learner, Step, take_steps


def test_a_gradient_is_no_longer_than_the_clip():
    net = nn.Linear(3, 2)
    for clip, expected in ((0.01, 0.01), (float("inf"), None)):
        loss = net(torch.ones(2, 3)).square().sum()
        own = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
        length = nn.utils.get_total_norm(own).item()
        assert length > 0.01
        Learner(net, 1e-3, clip, 0.0).step(loss, Step(0, 0, None, np.arange(2)))
        kept = [one.grad for one in net.parameters() if one.grad is not None]
        taken = nn.utils.get_total_norm(kept).item()
        assert taken == pytest.approx(expected or length, rel=1e-3)


class Noting(Learner):
    """Note the loss of each step, and what the step says of itself."""

    def step(self, loss: torch.Tensor, step: Step) -> float:
        value = super().step(loss, step)
        noted.append((value, str(step), step.pair_index.tolist()))
        return value


noted: list[tuple[float, str, list[int]]] = []


def test_steps_are_taken_down_each_batchs_loss_in_turn_and_averaged():
    """The loss of a batch is that of the network as the steps before it left it."""
    net = nn.Linear(1, 1)
    nn.init.ones_(net.weight)

    def loss(rows):
        return (net.weight.square() * len(rows) + 3).sum()

    batches = [np.array([0, 1]), np.array([2, 3])]
    mean = take_steps(Noting(net, 0.1, 2.0, 0.0), batches, loss, 5, "b", "warm-up")
    (first, *one), (second, *two) = noted
    assert mean == (first + second) / 2
    assert second < first
    assert one == ["epoch 5, batch 0, peer b", [0, 1]]
    assert two == ["epoch 5, batch 1, peer b", [2, 3]]
