"""Steps of an optimiser that is kept and loaded."""

import numpy as np
import torch
from torch import nn

from pc2_baseline.modules.learner import Learner, Step

META = torch.device("meta")


def stepped(net: nn.Module) -> Learner:
    learner = Learner(net, 1e-3, 2.0, 0.0)
    learner.step(net(torch.ones(2, 3)).square().mean(), Step(0, 0, None, np.arange(2)))
    return learner


def test_a_loaded_optimiser_lies_where_the_weights_do():
    """Fused Adam refuses a step count on another device than its weight."""
    state = stepped(nn.Linear(3, 2)).optimiser_state()
    assert {name.partition("/")[2] for name in state} == {"step", "exp_avg", "exp_avg_sq"}
    elsewhere = Learner(nn.Linear(3, 2, device=META), 1e-3, 2.0, 0.0)
    elsewhere.load_optimiser(state)
    for parameter in elsewhere.net.parameters():
        own = elsewhere.optimiser.state[parameter]
        assert {name: value.device for name, value in own.items()} == dict.fromkeys(own, META)
        assert own.keys() == {"step", "exp_avg", "exp_avg_sq"}
