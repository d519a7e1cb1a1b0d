"""Random streams, each named by a run's seed and a few numbers, so that none needs storing."""

from typing import Any

import numpy as np
import torch


def stream(*name: int) -> np.random.Generator:
    """Return the generator of a named stream: the same name, the same draws."""
    return np.random.default_rng(np.random.SeedSequence(name))


def seed_torch(*name: int) -> None:
    """Start PyTorch's own generators (weights, dropout) on a named stream."""
    torch.manual_seed(int(np.random.SeedSequence(name).generate_state(1, np.uint64)[0] >> 1))


def repeat_exactly(wanted: bool) -> None:  # noqa: FBT001 - the setting's value
    """Let PyTorch take only operations that give the same numbers each time, or any."""
    torch.use_deterministic_algorithms(wanted)
    # It would also fill all memory that is not yet written: a fault's symptom, and time.
    untyped: Any = torch.utils.deterministic
    untyped.fill_uninitialized_memory = False
