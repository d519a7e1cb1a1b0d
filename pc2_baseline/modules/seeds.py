"""Random streams, each derived from the seed of a run and a few numbers; none is stored."""

from typing import Any

import numpy as np
import torch


def stream(*name: int) -> np.random.Generator:
    """Return the generator of a stream; the same name gives the same draws."""
    return np.random.default_rng(np.random.SeedSequence(name))


def seed_torch(*name: int) -> None:
    """Seed PyTorch's generators (weights, dropout) for a stream."""
    torch.manual_seed(int(np.random.SeedSequence(name).generate_state(1, np.uint64)[0] >> 1))


def repeat_exactly(wanted: bool) -> None:  # noqa: FBT001 - the setting's value
    """Allow only deterministic operations in PyTorch, or all."""
    torch.use_deterministic_algorithms(wanted)
    # By default PyTorch then also fills uninitialised memory, which costs time.
    untyped: Any = torch.utils.deterministic
    untyped.fill_uninitialized_memory = False
