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
"""Folder of a run with the pair statistics of each epoch."""
TAUGHT = "taught"
"""Array of a division: pairs whose labels were given to the method; excluded from evaluation."""

Divided = TypeVar("Divided", bound="DividedPairs")
Rows = Int[np.ndarray, " _"]
Triplet = Callable[..., PerPair]

NONE: Rows = np.array([], dtype=np.int64)
"""Empty batch."""

ORDER, CLEAN, NOISY = range(3)
"""Last part of the name of a random stream: see :func:`~pc2_baseline.modules.seeds.stream`."""


@dataclass(frozen=True, slots=True)
class DividedPairs:
    """Statistics of all training pairs, from one peer at the end of an epoch.

    Attributes:
        loss: Loss of each pair, by default the mean-negative triplet loss; low for matched pairs.
        division: Clean and noisy pairs, by these losses.
    """

    loss: PairValues
    division: Division

    def summary(self) -> dict[str, float]:
        """Return the number of clean pairs and the mean loss, for the log."""
        clean = float(self.division.is_clean.sum())
        return {"clean": clean, "pair_loss": float(self.loss.mean())}

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name, as stored in checkpoints and ``divisions/``."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)}
        division = arrays.pop("division")
        arrays |= {"clean_prob": division.clean_prob, "is_clean": division.is_clean}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def read_statistics(row: type[Divided], state: Mapping[str, Tensor]) -> Divided:
    """Build statistics of a class from the tensors of its ``to_tensors``."""
    names = {field.name for field in fields(row)} - {"division"}
    division = Division(state["clean_prob"].numpy(), state["is_clean"].numpy())
    return row(division=division, **{name: state[name].numpy() for name in names})


def by_peer(figures: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Join both peers' figures of an epoch for the log, with the peer as suffix of the names."""
    both = zip(PEERS, figures, strict=True)
    return {f"{name}_{peer}": value for peer, row in both for name, value in row.items()}


def warm_up_batches(pairs: int, size: int, seed: int, epoch: int, peer: int) -> list[Rows]:
    """Cut all pairs into shuffled batches for an epoch of the warm-up."""
    return cut(np.arange(pairs), size, stream(seed, epoch, peer, CLEAN))


def mixed_batches(
    clean: Rows, others: Sequence[Rows], size: int, seed: int, epoch: int, peer: int
) -> list[tuple[Rows, ...]]:
    """Cut clean pairs into shuffled batches and add to each a batch of each group of other pairs.

    A group with fewer pairs than the clean ones is shuffled and repeated.
    """
    batches = cut(clean, size, stream(seed, epoch, peer, CLEAN))
    cycles = [
        cycle_batches(pairs, size, stream(seed, epoch, peer, NOISY + number))
        for number, pairs in enumerate(others)
    ]
    return [(rows, *(next(cycle, NONE) for cycle in cycles)) for rows in batches]


def dividing_batches(pairs: int, size: int, seed: int) -> list[Rows]:
    """Cut all pairs into the batches of the dividing pass, in the same order in every epoch."""
    return cut(np.arange(pairs), size, stream(seed, pairs, ORDER))


def pair_losses(
    net: MatchingNetwork,
    train: PairSet,
    batches: Sequence[Rows],
    loss: Callable[[Block], PerPair],
    title: str,
) -> PairValues:
    """Compute the loss of each pair within its batch, in evaluation mode, by pair_index.

    Pairs in no batch have 0.
    """
    net.eval()
    with net.dividing():
        by_batch = [
            loss(net.score_batch(train.batch(rows))).float()
            for rows in bar(batches, title, len(batches))
        ]
    losses = np.zeros(len(train), dtype=np.float32)
    losses[np.concatenate(batches)] = torch.cat(by_batch).cpu().numpy()
    return losses


def full_margin_loss(similarity: Block, margin: float) -> PerPair:
    """Compute mean-negative triplet losses with the same margin for all pairs."""
    return triplet_mean(similarity, similarity.new_full((len(similarity),), margin))
