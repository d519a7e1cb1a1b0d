"""State of methods of several networks: the networks, their optimisers, and their statistics."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.one_network import make_learner
from pc2_baseline.modules.coteaching import (
    DIVISIONS,
    PEERS,
    DividedPairs,
    Rows,
    by_peer,
    dividing_batches,
    full_margin_loss,
    pair_losses,
    read_statistics,
    warm_up_batches,
)
from pc2_baseline.modules.division import assign_folds
from pc2_baseline.modules.learner import add_prefix, select_prefix, take_steps
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup, join_process_groups
from pc2_baseline.training.method import NETWORKS, STATISTICS, TRAINING, EpochOutputs, State


class Peers:
    """Networks with their optimisers, side by side; subclasses train them.

    ``make`` draws the network of a peer for the ranks that train it.

    Attributes:
        groups: The processes that train each peer.
        nets: The network of each peer.
        matching: The part of each network that encodes and scores; the network itself if it does
            nothing else.
    """

    nets: Sequence[nn.Module]
    optimiser = ""
    """Part of the names that an optimiser has in a checkpoint, after the peer's."""

    def __init__(
        self,
        names: Sequence[str],
        settings: Settings,
        device: torch.device,
        make: Callable[[ProcessGroup], nn.Module],
    ) -> None:
        self.peers = list(names)
        self.ensemble_size = len(self.peers)
        self.train = settings.train
        self.device = device
        self.groups = join_process_groups(len(self.peers))
        nets = []
        for peer, group in enumerate(self.groups.groups):
            seed_torch(self.train.seed, peer)
            nets.append(make(group).to(device))
        self.nets = nets
        self.matching = [
            net if isinstance(net, MatchingNetwork) else cast(MatchingNetwork, net.matching)
            for net in self.nets
        ]
        self.learners = [
            make_learner(net, matching, self.train)
            for net, matching in zip(self.nets, self.matching, strict=True)
        ]

    def begin(self, epoch: int, peer: int, rate: float) -> None:
        """Prepare a peer's epoch: the rate, training mode, and random draws of its own."""
        seed_torch(self.train.seed, len(self.peers) + peer, epoch)
        self.learners[peer].set_rate(rate)
        self.nets[peer].train()
        self.matching[peer].similarity.few_active = epoch >= self.train.warmup_epochs

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average the peers' similarity matrices."""
        return ensemble(self.similarities(split))

    def similarities(self, split: PairSet) -> list[Float[np.ndarray, "images captions"]]:
        """Score a split with each peer."""
        return self.groups.for_each_peer(lambda peer: similarity_matrix(self.matching[peer], split))

    def state_dict(self) -> State:
        """Return the networks and the optimisers of all peers."""
        state: State = {NETWORKS: {}, TRAINING: {}}
        learners = self.learners
        own = self.groups.for_each_peer(  # by whichever rank has trained the peer
            lambda peer: (learners[peer].network_state(), learners[peer].optimiser_state())
        )
        for peer, (network, optimiser) in zip(self.peers, own, strict=True):
            state[NETWORKS] |= add_prefix(peer, network)
            state[TRAINING] |= add_prefix(f"{peer}{self.optimiser}", optimiser)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load networks, and optimisers if they are there."""
        for peer, learner in zip(self.peers, self.learners, strict=True):
            learner.load_network(select_prefix(state[NETWORKS], peer))
            if TRAINING in state:
                learner.load_optimiser(select_prefix(state[TRAINING], f"{peer}{self.optimiser}"))


class CoTaught(Peers):
    """Two peers that divide the pairs for each other.

    Attributes:
        divided: Class of the statistics of a division.
        statistics: Those of each peer; empty before the first division.

    Source:
        Co-teaching (Han et al., NeurIPS 2018); with a division NCR (Huang et al., NeurIPS 2021).
    """

    optimiser = ".optimiser"
    divided: type[DividedPairs] = DividedPairs
    statistics: Sequence[DividedPairs] = ()

    def __init__(
        self, settings: Settings, device: torch.device, make: Callable[[ProcessGroup], nn.Module]
    ) -> None:
        super().__init__(PEERS, settings, device, make)

    def teacher(self, peer: int) -> DividedPairs:
        """Return the statistics that teach a peer: the other's."""
        return self.statistics[1 - peer]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs again."""
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._learn
        figures = self.groups.for_each_peer(lambda peer: learn(train, epoch, peer))
        return self.divided_anew(epoch, figures, lambda peer: self._divide(train, peer))

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch of the warm-up; return its figures."""
        raise NotImplementedError

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch by the other's division; return its figures."""
        raise NotImplementedError

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by their losses with a peer."""
        raise NotImplementedError

    def warm_up(
        self, train: PairSet, epoch: int, peer: int, loss: Callable[[Rows], Tensor]
    ) -> dict[str, float]:
        """Take a peer's steps of an epoch on all pairs, down a loss of each batch."""
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, peer)
        learner, name = self.learners[peer], PEERS[peer]
        return {"loss": take_steps(learner, batches, loss, epoch, name, "warm-up")}

    def losses(self, train: PairSet, peer: int, margin: float, size: int) -> np.ndarray:
        """Return each pair's mean-negative triplet loss with a peer, among ``size`` pairs."""
        batches = dividing_batches(len(train), size, self.train.seed)
        loss = partial(full_margin_loss, margin=margin)
        return pair_losses(self.matching[peer], train, batches, loss, f"divide {PEERS[peer]}")

    def divided_anew(
        self, epoch: int, figures: Sequence[dict[str, float]], divide: Callable[[int], DividedPairs]
    ) -> dict[str, float]:
        """Let each peer divide the pairs, if the epoch that just ended is judged.

        Return the figures for the log: those of each peer's training, and of the divisions.
        """
        if self.train.evaluates(epoch):
            self.statistics = self.groups.for_each_peer(divide)
            both = zip(figures, self.statistics, strict=True)
            figures = [own | divided.summary() for own, divided in both]
        return by_peer(figures)

    def state_dict(self) -> State:
        """Return networks, statistics and optimisers of both peers."""
        return super().state_dict() | {STATISTICS: self._tensors()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if state.get(STATISTICS):  # none before the first division
            stored = (select_prefix(state[STATISTICS], peer) for peer in PEERS)
            self.statistics = [read_statistics(self.divided, own) for own in stored]

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics and the mean clean probability, for ``divisions/``."""
        return {DIVISIONS: self._tensors()} if self.statistics else {}

    def _tensors(self) -> dict[str, Tensor]:
        """Return both peers' statistics under their names, and the mean clean probability."""
        statistics = [own.to_tensors() for own in self.statistics]
        state: dict[str, Tensor] = {}
        for peer, own in zip(PEERS, statistics, strict=False):  # none before the first division
            state |= add_prefix(peer, own)
        if statistics:
            state["clean_prob"] = torch.stack([own["clean_prob"] for own in statistics]).mean(0)
        return state


class CrossFitted(Peers):
    """K peers: each leaves one of K folds out of its training and alone judges the pairs in it.

    The division by their statistics, one for all peers, is kept by pair_index with the folds.

    Attributes:
        judged: How many epochs of the warm-up, its last ones, must be divided.
    """

    judged = 1

    def __init__(
        self,
        folds: int,
        settings: Settings,
        device: torch.device,
        make: Callable[[ProcessGroup], nn.Module],
    ) -> None:
        super().__init__([str(peer) for peer in range(folds)], settings, device, make)
        self.statistics: dict[str, Tensor] = {}

    def learn(
        self, train: PairSet, epoch: int, peer: int, outside: Bool[np.ndarray, " pairs"]
    ) -> float:
        """Train a peer for an epoch on pairs outside its fold; return the mean loss of a batch."""
        raise NotImplementedError

    def divide(self, train: PairSet, fold: Int[np.ndarray, " pairs"]) -> DividedPairs:
        """Divide the pairs by what the peer of each one's fold says of it."""
        raise NotImplementedError

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train every peer outside its fold for one epoch, then divide the pairs anew."""
        fold = assign_folds(train.image_of, train.captions, len(self.peers), self.train.seed)
        losses = self.groups.for_each_peer(
            lambda peer: self.learn(train, epoch, peer, fold != peer)
        )
        figures = {f"loss_{peer}": loss for peer, loss in zip(self.peers, losses, strict=True)}
        if not self.train.evaluates(epoch, self.judged):
            return figures
        own = self.divide(train, fold)
        self.statistics = own.to_tensors() | {"fold": torch.from_numpy(fold)}
        return {
            **figures,
            "held_out_loss": float(own.loss.mean()),
            "clean": float(own.division.is_clean.sum()),
        }

    def state_dict(self) -> State:
        """Return networks, optimisers and the division."""
        return super().state_dict() | {STATISTICS: self.statistics}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        self.statistics = dict(state.get(STATISTICS, {}))

    def epoch_outputs(self) -> EpochOutputs:
        """Return the division, the held-out statistics and the folds, for ``divisions/``."""
        return {DIVISIONS: self.statistics} if self.statistics else {}
