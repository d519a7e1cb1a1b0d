"""Bases of methods of several networks: co-taught peers, and peers with a fold each."""

from collections.abc import Callable, Mapping, Sequence
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
    pair_losses,
    read_statistics,
    warm_up_batches,
)
from pc2_baseline.modules.division import assign_folds
from pc2_baseline.modules.learner import add_prefix, select_prefix, take_steps
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup, join_process_groups
from pc2_baseline.training.method import NETWORKS, STATISTICS, TRAINING, EpochOutputs, State


class Peers:
    """Hold several networks with their optimisers; subclasses train them.

    ``make`` builds a network with random weights for the ranks that train it.

    Attributes:
        optimiser: Suffix of the peer's name in the names of its optimiser in checkpoints.
        groups: Processes that train each peer.
        nets: Network of each peer.
        matching: Part of each network that encodes and scores; often the whole network.
    """

    nets: Sequence[nn.Module]
    optimiser = ""

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
        """Start an epoch of a peer: set the learning rate, the random streams and training mode."""
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
        learners, each = self.learners, self.groups.for_each_peer  # a rank may train one peer alone
        networks = each(lambda peer: learners[peer].network_state())
        optimisers = each(lambda peer: learners[peer].optimiser_state())
        for peer, network, optimiser in zip(self.peers, networks, optimisers, strict=True):
            state[NETWORKS] |= add_prefix(peer, network)
            state[TRAINING] |= add_prefix(f"{peer}{self.optimiser}", optimiser)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its networks."""
        for peer, learner in zip(self.peers, self.learners, strict=True):
            learner.load_network(select_prefix(state[NETWORKS], peer))
            if TRAINING in state:
                learner.load_optimiser(select_prefix(state[TRAINING], f"{peer}{self.optimiser}"))


class CoTaught(Peers):
    """Two peers, each taught by the other's division of the pairs.

    Attributes:
        divided: Class of the statistics of a division.
        statistics: Statistics of each peer; empty before the first division.

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
        """Return the statistics of the other peer, which teach this one."""
        return self.statistics[1 - peer]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs."""
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._learn
        figures = self.groups.for_each_peer(lambda peer: learn(train, epoch, peer))
        return self.finish_epoch(epoch, figures, lambda peer: self._divide(train, peer))

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch of the warm-up; return its figures."""
        self.begin(epoch, peer, 1.0)
        net = self.matching[peer]

        def loss(rows: Rows) -> Loss:
            return self.warm_up_loss(net.score_batch(train.batch(rows)))

        return self.warm_up(train, epoch, peer, loss)

    def warm_up_loss(self, similarity: Block) -> Loss:
        """Return the loss of a batch of the warm-up."""
        raise NotImplementedError

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch with the other's division; return its figures."""
        raise NotImplementedError

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by the losses that a peer gives them."""
        raise NotImplementedError

    def warm_up(
        self, train: PairSet, epoch: int, peer: int, loss: Callable[[Rows], Tensor]
    ) -> dict[str, float]:
        """Take the steps of a peer on all pairs, down a loss of each batch."""
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, peer)
        learner, name = self.learners[peer], PEERS[peer]
        return {"loss": take_steps(learner, batches, loss, epoch, name, "warm-up")}

    def losses(
        self, train: PairSet, peer: int, loss: Callable[[Block], PerPair], size: int
    ) -> np.ndarray:
        """Return the loss of each pair with a peer, among up to ``size`` pairs."""
        batches = dividing_batches(len(train), size, self.train.seed)
        return pair_losses(self.matching[peer], train, batches, loss, f"divide {PEERS[peer]}")

    def finish_epoch(
        self, epoch: int, figures: Sequence[dict[str, float]], divide: Callable[[int], DividedPairs]
    ) -> dict[str, float]:
        """Divide the pairs with each peer if the epoch is evaluated.

        Return the figures of the training and of the divisions for the log.
        """
        if self.train.evaluates(epoch):
            self.statistics = self.groups.for_each_peer(divide)
            both = zip(figures, self.statistics, strict=True)
            figures = [trained | divided.summary() for trained, divided in both]
        return by_peer(figures)

    def state_dict(self) -> State:
        """Return networks, statistics and optimisers of both peers."""
        return super().state_dict() | {STATISTICS: self._tensors()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its networks."""
        super().load_state_dict(state)
        if state.get(STATISTICS):  # none before the first division
            stored = [select_prefix(state[STATISTICS], peer) for peer in PEERS]
            self.statistics = [read_statistics(self.divided, tensors) for tensors in stored]

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics and the mean clean probability, for ``divisions/``."""
        return {DIVISIONS: self._tensors()} if self.statistics else {}

    def _tensors(self) -> dict[str, Tensor]:
        """Return both peers' statistics under their names, and the mean clean probability."""
        if not self.statistics:
            return {}
        first, second = (divided.to_tensors() for divided in self.statistics)
        mean = torch.stack([first["clean_prob"], second["clean_prob"]]).mean(0)
        return add_prefix(PEERS[0], first) | add_prefix(PEERS[1], second) | {"clean_prob": mean}


class CrossFitted(Peers):
    """K peers: each trains without one of K folds and computes the statistics of its pairs.

    All peers share the division, which is kept by pair_index with the folds.

    Attributes:
        judged: Number of epochs at the end of the warm-up that are always divided.
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
        """Divide the pairs by the statistics from the peer of each pair's fold."""
        raise NotImplementedError

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train every peer outside its fold for one epoch, then divide the pairs."""
        fold = assign_folds(train.image_of, train.captions, len(self.peers), self.train.seed)
        losses = self.groups.for_each_peer(
            lambda peer: self.learn(train, epoch, peer, fold != peer)
        )
        figures = {f"loss_{peer}": loss for peer, loss in zip(self.peers, losses, strict=True)}
        if not self.train.evaluates(epoch, self.judged):
            return figures
        divided = self.divide(train, fold)
        self.statistics = divided.to_tensors() | {"fold": torch.from_numpy(fold)}
        summary = divided.summary()
        return {**figures, "held_out_loss": summary["pair_loss"], "clean": summary["clean"]}

    def state_dict(self) -> State:
        """Return networks, optimisers and the division."""
        return super().state_dict() | {STATISTICS: self.statistics}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its networks."""
        super().load_state_dict(state)
        self.statistics = dict(state.get(STATISTICS, {}))

    def epoch_outputs(self) -> EpochOutputs:
        """Return the division, the held-out statistics and the folds, for ``divisions/``."""
        return {DIVISIONS: self.statistics} if self.statistics else {}
