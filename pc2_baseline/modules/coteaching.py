"""Co-teaching: two peers, each trained with the other's division of the pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pc2_baseline.data.pairs import PairSet, cut, cycle_batches
from pc2_baseline.modules.division import Division, PairValues
from pc2_baseline.modules.losses import triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar

PEERS = ("a", "b")
DIVISIONS = "divisions"
"""Folder of a run that keeps each epoch's pair statistics."""
TAUGHT = "taught"
"""Array of a division: the pairs that the method was told of, by which it is not judged."""

Divided = TypeVar("Divided", bound="DividedPairs")
Rows = Int[np.ndarray, " _"]
Triplet = Callable[..., PerPair]

NONE: Rows = np.array([], dtype=np.int64)
"""No pairs."""

ORDER, CLEAN, NOISY = range(3)
"""Parts of the names of random streams."""


@dataclass(frozen=True, slots=True)
class DividedPairs:
    """Statistics of all training pairs, from one peer at the end of an epoch.

    Attributes:
        loss: Mean-negative triplet loss of each pair.
        division: Division by the losses.
    """

    loss: PairValues
    division: Division

    def summary(self) -> dict[str, float]:
        """Return figures for the log."""
        return {
            "clean": float(self.division.is_clean.sum()), "pair_loss": float(self.loss.mean()),
        }  # fmt: skip

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name, as stored."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        division = own.pop("division")
        own |= {"clean_prob": division.clean_prob, "is_clean": division.is_clean}
        return {name: torch.from_numpy(value) for name, value in own.items()}


def read_statistics(kind: type[Divided], state: Mapping[str, Tensor]) -> Divided:
    """Read back, as a class of statistics, what their ``to_tensors`` returned."""
    names = {field.name for field in fields(kind)} - {"division"}
    division = Division(state["clean_prob"].numpy(), state["is_clean"].numpy())
    return kind(division=division, **{name: state[name].numpy() for name in names})


def by_peer(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return both peers' figures of an epoch by one name each, for the log."""
    return {
        f"{name}_{peer}": value
        for peer, own in zip(PEERS, figures, strict=True)
        for name, value in own.items()
    }


def warm_up_batches(pairs: int, size: int, seed: int, epoch: int, peer: int) -> list[Rows]:
    """Cut all pairs into shuffled batches, for an epoch of the warm-up."""
    return cut(np.arange(pairs), size, stream(seed, epoch, peer, CLEAN))


def mixed_batches(
    clean: Rows, others: Sequence[Rows], size: int, seed: int, epoch: int, peer: int
) -> list[tuple[Rows, ...]]:
    """Cut clean pairs into shuffled batches, each with a batch of every other kind.

    Pairs of another kind are shuffled and cut again if they are fewer than the clean ones.
    """
    batches = cut(clean, size, stream(seed, epoch, peer, CLEAN))
    beside = [
        cycle_batches(pairs, size, stream(seed, epoch, peer, NOISY + kind))
        for kind, pairs in enumerate(others)
    ]
    return [(rows, *(next(kind, NONE) for kind in beside)) for rows in batches]


def dividing_batches(pairs: int, size: int, seed: int) -> list[Rows]:
    """Cut all pairs into the batches of the dividing pass, in one order a run."""
    return cut(np.arange(pairs), size, stream(seed, pairs, ORDER))


def pair_losses(
    net: MatchingNetwork,
    train: PairSet,
    batches: Sequence[Rows],
    loss: Callable[[Block], PerPair],
    title: str,
) -> PairValues:
    """Compute the losses of pairs in evaluation mode, by pair_index.

    Each pair is compared with those of its batch; pairs in no batch have 0.
    """
    net.eval()
    with torch.inference_mode():
        found = [
            loss(net.score_batch(train.batch(rows))).float()
            for rows in bar(batches, title, len(batches))
        ]
    losses = np.zeros(len(train), dtype=np.float32)
    losses[np.concatenate(batches)] = torch.cat(found).cpu().numpy()
    return losses


def full_margin_loss(similarity: Block, margin: float) -> PerPair:
    """Compute mean-negative triplet losses, the margin of all pairs full: what divides them."""
    return triplet_mean(similarity, similarity.new_full((len(similarity),), margin))
