"""Base of methods of one network: the network, its optimiser, and statistics of the pairs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pc2_baseline.config import ModelSettings, Settings, TrainSettings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import MethodSettings
from pc2_baseline.modules.coteaching import DIVISIONS, Rows
from pc2_baseline.modules.learner import Learner, take_steps
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.networks.encoders import Block, Loss
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ALONE, ProcessGroup, join_process_groups
from pc2_baseline.training.method import NETWORKS, STATISTICS, TRAINING, EpochOutputs, Sizes, State

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


def make_network(
    model: ModelSettings, sizes: Sizes, group: ProcessGroup = ALONE
) -> MatchingNetwork:
    """Build a network with random weights; the ranks of ``group`` train it together."""
    net: MatchingNetwork = model.build(sizes.features, sizes.vocabulary, sizes.words, group)
    net.similarity.group = group
    return net


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network; ``matching`` is the part of it that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching)


class OneNetwork(Generic[SettingsT]):
    """Hold a network, its optimiser and statistics of the pairs; subclasses train the network.

    Attributes:
        statistics: Last statistics of the pairs, by name and pair_index; empty if the method has
            none. ``clean_prob`` and ``is_clean`` are those of a division.
    """

    section: type[SettingsT]
    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(SettingsT, settings.method)
        self.train = settings.train
        self.model = settings.model
        self.sizes = sizes
        self.device = device
        self.group = join_process_groups(1).groups[0]
        self.statistics: dict[str, Tensor] = {}
        self.draw(0)

    def draw(self, number: int) -> None:
        """Draw new random weights, the same for the same ``number``, and reset the optimiser."""
        seed_torch(self.train.seed, 0, *([number] if number else []))
        self.net = make_network(self.model, self.sizes, self.group).to(self.device)
        self.learner = make_learner(self.net, self.net, self.train)

    def begin(self, epoch: int, rate: float) -> None:
        """Start an epoch: set the learning rate, the random streams and training mode."""
        self.learner.set_rate(rate)
        seed_torch(self.train.seed, 2, epoch)
        self.net.train()
        self.net.similarity.few_active = epoch >= self.train.warmup_epochs

    def take_steps(
        self, train: PairSet, batches: Sequence[Rows], loss: Callable[[Block], Loss], epoch: int
    ) -> float:
        """Take a step down a loss of each batch's similarities; return the mean loss."""

        def batch_loss(rows: Rows) -> Loss:
            return loss(self.net.score_batch(train.batch(rows)))

        return take_steps(self.learner, batches, batch_loss, epoch)

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""
        return similarity_matrix(self.net, split)

    def state_dict(self) -> State:
        """Return the network, its optimiser and the statistics."""
        state = {NETWORKS: self.learner.network_state(), TRAINING: self.learner.optimiser_state()}
        return state | ({STATISTICS: self.statistics} if self.statistics else {})

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its network."""
        self.learner.load_network(state[NETWORKS])
        if TRAINING in state:
            self.learner.load_optimiser(state[TRAINING])
        self.statistics = dict(state.get(STATISTICS, {}))

    def epoch_outputs(self) -> EpochOutputs:
        """Return the statistics, for ``divisions/``."""
        return {DIVISIONS: self.statistics} if self.statistics else {}
