"""Co-teaching: two peers, each trained with the other's division of the pairs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.data.pairs import PairSet, cut, endless
from pc2_baseline.modules.bank import PredictionBank
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Learner, Step
from pc2_baseline.modules.losses import triplet_mean
from pc2_baseline.modules.pc2_network import Pc2Network
from pc2_baseline.modules.pseudo_caption import rectified
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import stream
from pc2_baseline.process_groups import ProcessGroups
from pc2_baseline.progress import bar

PEERS = ("a", "b")
DIVISIONS = "divisions"
"""Folder of a run that keeps each epoch's pair statistics."""

_STATISTICS = "beliefs"  # the group's name in checkpoints

Rows = Int[np.ndarray, " _"]
Triplet = Callable[..., Float[Tensor, " batch"]]

_ORDER, _CLEAN, _NOISY = range(3)


@dataclass(frozen=True, slots=True)
class PairStatistics:
    """What one peer computes for all training pairs at the end of an epoch.

    Attributes:
        loss: Mean-negative triplet loss of each pair.
        division: Division by the losses.
        oscillation: How far the peer's pseudo-prediction moved; zeros in the first epoch.
        stable_prob: Posterior of little oscillation; zeros where it cannot be estimated.
        is_stable: Pairs whose margin is rectified by it.
    """

    loss: Float[np.ndarray, " pairs"]
    division: Division
    oscillation: Float[np.ndarray, " pairs"]
    stable_prob: Float[np.ndarray, " pairs"]
    is_stable: Bool[np.ndarray, " pairs"]

    def to_tensors(self) -> dict[str, Tensor]:
        """Return the statistics by name, as stored."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        division = own.pop("division")
        own |= {"clean_prob": division.clean_prob, "is_clean": division.is_clean}
        return {name: torch.from_numpy(value) for name, value in own.items()}

    @classmethod
    def from_tensors(cls, state: Mapping[str, Tensor]) -> "PairStatistics":
        """Read back what :meth:`to_tensors` returned."""
        values = {name: value.numpy() for name, value in state.items()}
        division = Division(values.pop("clean_prob"), values.pop("is_clean"))
        return cls(division=division, **values)


@dataclass(frozen=True)
class PeerEpoch:
    """What one peer trains with in one epoch after the warm-up.

    Attributes:
        train: The training split.
        net: Network of the peer.
        learner: Takes its steps.
        bank: Its predictions.
        triplet: Triplet loss of the epoch.
        division: Division of the *other* peer.
        correspondence: Correspondence of each pair, for the margins of clean ones.
    """

    train: PairSet
    net: Pc2Network
    learner: Learner
    bank: PredictionBank
    triplet: Triplet
    division: Division
    correspondence: Float[np.ndarray, " pairs"]

    @cached_property
    def clean_predictions(self) -> Float[Tensor, "clean classes"]:
        """The bank's predictions of the clean pairs, on the device of the batches."""
        return self.bank.predictions[self.division.clean].to(self.train.device)


class Peers:
    """Two networks, each with its optimiser, prediction bank and pair statistics.

    Args:
        nets: Network of each peer.
        learners: Learner of each network.
        banks: Prediction bank of each peer.
        groups: Processes that train each peer.
    """

    def __init__(
        self,
        nets: Sequence[Pc2Network],
        learners: Sequence[Learner],
        banks: Sequence[PredictionBank],
        groups: ProcessGroups,
    ) -> None:
        self.nets = nets
        self.learners = learners
        self.banks = banks
        self.statistics: list[PairStatistics] = []
        self._groups = groups

    def run_epoch(
        self,
        learn: Callable[[int], dict[str, float]],
        evaluate: Callable[[int], PairStatistics],
    ) -> dict[str, float]:
        """Train both peers, then compute both peers' statistics, and return all figures.

        Args:
            learn: Trains a peer and returns its figures.
            evaluate: Computes the statistics of a peer.
        """
        figures = self._groups.for_each_peer(learn)
        self.statistics = self._groups.for_each_peer(evaluate)
        predictions = self._groups.for_each_peer(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)
        return {
            f"{name}_{peer}": value
            for peer, own, statistics, bank in zip(
                PEERS, figures, self.statistics, self.banks, strict=True
            )
            for name, value in {**own, **_summary(statistics, bank)}.items()
        }

    def epoch(self, train: PairSet, peer: int, triplet: Triplet) -> PeerEpoch:
        """Return what a peer trains with after the warm-up: the division is the other's.

        Args:
            train: The training split.
            peer: The peer to train.
            triplet: Triplet loss of the epoch.
        """
        other = self.statistics[1 - peer]
        division = other.division
        correspondence = rectified(division.clean_prob, other.stable_prob, other.is_stable)
        own = self.nets[peer], self.learners[peer], self.banks[peer]
        return PeerEpoch(train, *own, triplet, division, correspondence)

    def warm_up(
        self, peer: int, epoch: int, batches: Sequence[Rows], loss_of: Callable[[Rows], Tensor]
    ) -> dict[str, float]:
        """Take one step of a peer for each batch and return the mean loss."""
        losses = []
        for number, rows in enumerate(bar(batches, f"warm-up {PEERS[peer]}", len(batches))):
            step = Step(epoch, number, PEERS[peer], rows)
            losses.append(self.learners[peer].step(loss_of(rows), step))
        return {"loss": float(np.mean(losses))}

    def co_teach(
        self,
        peer: int,
        epoch: int,
        batches: Sequence[tuple[Rows, Rows]],
        take_step: Callable[[Rows, Rows, Step], tuple[float, float]],
    ) -> dict[str, float]:
        """Call ``take_step`` with each pair of a clean and a noisy batch.

        Args:
            peer: Which peer is trained.
            epoch: From 0.
            batches: Clean and noisy pairs.
            take_step: Trains on a pair of batches; returns the loss and its noisy part.

        Returns:
            The means of both.
        """
        steps = enumerate(bar(batches, f"co-teach {PEERS[peer]}", len(batches)))
        found = [
            take_step(clean, noisy, Step(epoch, number, PEERS[peer], np.append(clean, noisy)))
            for number, (clean, noisy) in steps
        ]
        loss, noisy_loss = np.mean(found, axis=0).tolist()
        return {"loss": loss, "loss_noisy": noisy_loss}

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average both peers' similarity matrices."""
        return ensemble(
            self._groups.for_each_peer(
                lambda peer: similarity_matrix(self.nets[peer].matching, split)
            )
        )

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return networks, optimisers, banks and statistics as tensors by group."""
        state: dict[str, dict[str, Tensor]] = {"networks": {}, _STATISTICS: {}, "training": {}}
        own = self._groups.for_each_peer(
            lambda peer: (
                self.learners[peer].network_state(),
                self.learners[peer].optimiser_state(),
            )
        )
        for peer, (network, optimiser), bank in zip(PEERS, own, self.banks, strict=True):
            _prefixed(state["networks"], peer, network)
            _prefixed(state["training"], f"{peer}.optimiser", optimiser)
            state["training"][f"{peer}.bank"] = bank.predictions
        state[_STATISTICS] = self._statistics_state()
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        for peer, learner, bank in zip(PEERS, self.learners, self.banks, strict=True):
            learner.load_network(_under(state["networks"], peer))
            if "training" in state:
                learner.load_optimiser(_under(state["training"], f"{peer}.optimiser"))
                bank.write(state["training"][f"{peer}.bank"])
        if _STATISTICS in state:
            own = (_under(state[_STATISTICS], peer) for peer in PEERS)
            self.statistics = [PairStatistics.from_tensors(tensors) for tensors in own]

    def epoch_outputs(self) -> dict[str, dict[str, Tensor]]:
        """Return both peers' statistics and the mean clean probability, for ``divisions/``."""
        return {DIVISIONS: self._statistics_state()} if self.statistics else {}

    def _statistics_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for peer, statistics in zip(PEERS, self.statistics, strict=False):
            _prefixed(state, peer, statistics.to_tensors())
        if self.statistics:
            mean = np.mean([own.division.clean_prob for own in self.statistics], axis=0)
            state["clean_prob"] = torch.from_numpy(mean)
        return state


def warm_up_batches(pairs: int, size: int, seed: int, epoch: int, peer: int) -> list[Rows]:
    """Cut all pairs into shuffled batches, for an epoch of the warm-up."""
    return cut(np.arange(pairs), size, stream(seed, epoch, peer, _CLEAN))


def clean_and_noisy_batches(
    division: Division, size: int, seed: int, epoch: int, peer: int, *, with_noisy: bool
) -> list[tuple[Rows, Rows]]:
    """Pair each clean batch with as many noisy pairs, or fewer where there are fewer."""
    clean = cut(division.clean, size, stream(seed, epoch, peer, _CLEAN))
    noisy = endless(division.noisy, size, stream(seed, epoch, peer, _NOISY))
    none = np.array([], dtype=np.int64)
    return [(rows, next(noisy, none) if with_noisy else none) for rows in clean]


def dividing_batches(pairs: int, size: int, seed: int, *epoch: int) -> list[Rows]:
    """Cut all pairs into the batches of the dividing pass: one order a run, or one an epoch.

    Args:
        pairs: Pairs of the split.
        size: Largest batch.
        seed: Seed of the run.
        epoch: If given, the order is that epoch's own.
    """
    return cut(np.arange(pairs), size, stream(seed, pairs, _ORDER, *epoch))


@torch.no_grad()
def evaluate_pairs(
    net: Pc2Network, train: PairSet, batches: Sequence[Rows], margin: float, title: str
) -> tuple[Float[np.ndarray, " pairs"], Float[Tensor, "pairs classes"]]:
    """Compute each pair's loss and its image's pseudo-class prediction, in evaluation mode.

    Args:
        net: Network of a peer.
        train: The training split.
        batches: Batches in which each pair is once.
        margin: Triplet margin.
        title: Title of the progress bar.

    Returns:
        Mean-negative triplet losses, and predictions on the CPU, both by pair_index.
    """
    net.eval()
    losses = np.zeros(len(train), dtype=np.float32)
    predictions = torch.zeros(len(train), net.classes)
    for rows in bar(batches, title, len(batches)):
        pairs = net.encode(train.batch(rows))
        similarity = net.matching.score(pairs.images, pairs.captions)
        margins = similarity.new_full((len(rows),), margin, dtype=torch.float32)
        losses[rows] = triplet_mean(similarity, margins).cpu().numpy()
        predictions[rows] = net.predict(pairs.images).cpu()
    return losses, predictions


def _summary(statistics: PairStatistics, bank: PredictionBank) -> dict[str, float]:
    return {
        "clean": float(statistics.division.is_clean.sum()),
        "pair_loss": float(statistics.loss.mean()),
        "oscillation": float(statistics.oscillation.mean()),
        "classes_used": float(len(torch.unique(bank.predictions.argmax(1)))),
    }


def _prefixed(into: dict[str, Tensor], prefix: str, state: Mapping[str, Tensor]) -> None:
    into.update({f"{prefix}.{name}": value for name, value in state.items()})


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in state.items()
        if name.startswith(f"{prefix}.")
    }
