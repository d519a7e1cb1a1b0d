"""Two peers that are taught by each other's division: epochs, statistics and state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pc2_baseline.config import ModelSettings, Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.base import CoTeachingSettings
from pc2_baseline.methods.networks import make_learner
from pc2_baseline.modules.coteaching import (
    DIVISIONS,
    PEERS,
    Divided,
    Rows,
    Triplet,
    clean_and_noisy_batches,
    read_statistics,
    warm_up_batches,
)
from pc2_baseline.modules.division import Division, require_clean
from pc2_baseline.modules.learner import Step, peer_states, prefixed, rate, under
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup, join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State

_STATISTICS = "beliefs"  # the group's name in checkpoints

Net = TypeVar("Net", bound=nn.Module)
TakeStep = Callable[[tuple[Rows, ...], Step], tuple[float, float]]
"""Take a step on a batch in parts by kind, the clean one first; return the loss, and its noisy
part."""


class TwoPeers(ABC, Generic[Net, Divided]):
    """Two networks, each with its optimiser and statistics of the pairs.

    The warm-up takes all pairs. Every epoch ends with a dividing pass of each peer; after the
    warm-up each peer is taught by the other's division. A subclass says what is learned of a
    batch, and how the pairs are divided.

    Args:
        settings: Settings of the run; the method section is a :class:`CoTeachingSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        Co-teaching (Han et al., NeurIPS 2018); with a division NCR (Huang et al., NeurIPS 2021).
    """

    ensemble_size = len(PEERS)
    method: CoTeachingSettings
    divided: type[Divided]
    """Class of the statistics."""
    with_noisy = True
    """Whether noisy pairs are learned at all."""
    needed_divisions = 1
    """Epochs of the warm-up, its last ones, whose divisions a later epoch depends on."""

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.train = settings.train
        self.device = device
        self.groups = join_process_groups(len(PEERS))
        self.nets: list[Net] = []
        for peer, group in enumerate(self.groups.groups):
            seed_torch(self.train.seed, peer)
            self.nets.append(self.make_net(settings.model, sizes, group).to(device))
        self.learners = [make_learner(net, self.matching(net), self.train) for net in self.nets]
        self.statistics: list[Divided] = []

    @abstractmethod
    def make_net(self, model: ModelSettings, sizes: Sizes, group: ProcessGroup) -> Net:
        """Build the network of a peer, freshly drawn, for the ranks that train it."""

    @abstractmethod
    def matching(self, net: Net) -> MatchingNetwork:
        """Return the part of a peer's network that encodes and scores."""

    @abstractmethod
    def warm_up_loss(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, ""]:
        """Compute the loss of a batch of the warm-up."""

    @abstractmethod
    def teaching(self, train: PairSet, peer: int, triplet: Triplet) -> TakeStep:
        """Prepare a peer's epoch after the warm-up; return what takes its steps.

        Args:
            train: The training split.
            peer: The peer to train.
            triplet: Triplet loss of the epoch.
        """

    @abstractmethod
    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> Divided:
        """Evaluate all pairs once with a peer and divide them."""

    def exchange(self) -> None:
        """Exchange what the peers keep besides their statistics."""

    def summary(self, peer: int) -> dict[str, float]:
        """Return figures of a peer's statistics, for the log."""
        own = self.statistics[peer]
        return {"clean": float(own.division.is_clean.sum()), "pair_loss": float(own.loss.mean())}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        divides = self.train.judges(epoch, self.needed_divisions)
        if divides:
            self.statistics = each(lambda peer: self.divide_pairs(train, epoch, peer))
        self.exchange()
        return {
            f"{name}_{letter}": value
            for peer, letter in enumerate(PEERS)
            for name, value in {**figures[peer], **(self.summary(peer) if divides else {})}.items()
        }

    def teacher(self, peer: int) -> Divided:
        """Return the statistics that teach a peer: the other's."""
        return self.statistics[1 - peer]

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average the peers' similarity matrices."""
        return ensemble(self.similarities(split))

    def similarities(self, split: PairSet) -> list[Float[np.ndarray, "images captions"]]:
        """Score a split with each peer."""
        return self.groups.for_each_peer(
            lambda peer: similarity_matrix(self.matching(self.nets[peer]), split)
        )

    def state_dict(self) -> State:
        """Return networks, statistics and optimisers of both peers."""
        networks: dict[str, Tensor] = {}
        training: dict[str, Tensor] = {}
        own = peer_states(self.learners, self.groups)
        for peer, (network, optimiser) in zip(PEERS, own, strict=True):
            networks |= prefixed(peer, network)
            training |= prefixed(f"{peer}.optimiser", optimiser)
        return {"networks": networks, _STATISTICS: self._statistics_state(), "training": training}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        for peer, learner in zip(PEERS, self.learners, strict=True):
            learner.load_network(under(state["networks"], peer))
            if "training" in state:
                learner.load_optimiser(under(state["training"], f"{peer}.optimiser"))
        if state.get(_STATISTICS):  # none before the first division
            own = (under(state[_STATISTICS], peer) for peer in PEERS)
            self.statistics = [read_statistics(self.divided, tensors) for tensors in own]

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics and the mean clean probability, for ``divisions/``."""
        return {DIVISIONS: self._statistics_state()} if self.statistics else {}

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch; its random draws are independent of the other's."""
        seed_torch(self.train.seed, len(PEERS) + peer, epoch)
        self.learners[peer].set_rate(self._rate(epoch))
        self.nets[peer].train()
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._co_teach
        return learn(train, epoch, peer)

    def _rate(self, epoch: int) -> float:
        """Return the factor of the learning rate in an epoch."""
        return rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Take one step for each batch of all pairs."""
        name, losses = PEERS[peer], []
        batches = self._warm_up_batches(len(train), epoch, peer)
        for number, rows in enumerate(bar(batches, f"warm-up {name}", len(batches))):
            loss = self.warm_up_loss(train, peer, rows)
            losses.append(self.learners[peer].step(loss, Step(epoch, number, name, rows)))
        return {"loss": float(np.mean(losses))}

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Take a step for each batch of clean pairs, with as many noisy ones once it is time."""
        since, name = epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < self.method.mean_epochs else triplet_hardest
        division = self.teacher(peer).division
        require_clean(division)
        take_step = self.teaching(train, peer, triplet)
        batches = self._batches(division, epoch, peer)
        found = []
        for number, rows in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            found.append(take_step(rows, Step(epoch, number, name, np.concatenate(rows))))
        loss, noisy_loss = np.mean(found, axis=0).tolist()
        return {"loss": loss, "loss_noisy": noisy_loss}

    def _warm_up_batches(self, pairs: int, epoch: int, peer: int) -> list[Rows]:
        """Cut all pairs into batches, for an epoch of the warm-up."""
        return warm_up_batches(pairs, self.train.batch, self.train.seed, epoch, peer)

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, ...]]:
        """Cut the pairs of an epoch into batches, each in parts by kind, the clean one first."""
        since = epoch - self.train.warmup_epochs
        return clean_and_noisy_batches(
            division, self.train.batch, self.train.seed, epoch, peer,
            with_noisy=self.with_noisy and since >= self.method.noisy_from_epoch,
        )  # fmt: skip

    def _statistics_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for peer, statistics in zip(PEERS, self.statistics, strict=False):
            state |= prefixed(peer, statistics.to_tensors())
        if self.statistics:
            mean = np.mean([own.division.clean_prob for own in self.statistics], axis=0)
            state["clean_prob"] = torch.from_numpy(mean)
        return state
