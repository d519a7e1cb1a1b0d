"""Networks trained side by side, each with its learner: what methods of several peers share."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.learner import peer_states, prefixed, under
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.training.method import Sizes


class Peers:
    """Matching networks with their learners; their similarities are averaged.

    Args:
        names: Name of each peer, in messages and checkpoints.
        settings: Settings of the run.
        sizes: Sizes of the data.
        device: Device of the networks.

    Attributes:
        groups: The processes that train each peer.
    """

    def __init__(
        self, names: Sequence[str], settings: Settings, sizes: Sizes, device: torch.device
    ) -> None:
        self.peers = list(names)
        self.ensemble_size = len(self.peers)
        self.train = settings.train
        self.groups = join_process_groups(len(self.peers))
        self.nets = []
        for peer, group in enumerate(self.groups.groups):
            seed_torch(self.train.seed, peer)
            self.nets.append(make_network(settings.model, sizes, group).to(device))
        self.learners = [make_learner(net, net, self.train) for net in self.nets]

    def seed(self, peer: int, epoch: int) -> None:
        """Start a peer's random draws of an epoch, independent of the others'."""
        seed_torch(self.train.seed, len(self.peers) + peer, epoch)

    def score(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, "batch batch"]:
        """Score images and captions of some pairs with a peer."""
        return self.nets[peer].score_batch(train.batch(rows))

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average the peers' similarity matrices."""
        return ensemble(self.similarities(split))

    def similarities(self, split: PairSet) -> list[Float[np.ndarray, "images captions"]]:
        """Score a split with each peer."""
        return self.groups.for_each_peer(lambda peer: similarity_matrix(self.nets[peer], split))

    def peer_states(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the networks and the optimisers of all peers."""
        networks: dict[str, Tensor] = {}
        training: dict[str, Tensor] = {}
        own = peer_states(self.learners, self.groups)
        for peer, (network, optimiser) in zip(self.peers, own, strict=True):
            networks |= prefixed(peer, network)
            training |= prefixed(peer, optimiser)
        return networks, training

    def load_peers(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load networks, and optimisers if they are there."""
        for peer, learner in zip(self.peers, self.learners, strict=True):
            learner.load_network(under(state["networks"], peer))
            if "training" in state:
                learner.load_optimiser(under(state["training"], peer))
