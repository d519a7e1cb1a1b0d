"""One network: its steps, its state, and what it last computed of each pair."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.coteaching import DIVISIONS, Rows
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import NETWORKS, TRAINING, EpochOutputs, Sizes, State

_STATISTICS = "beliefs"  # the group's name in checkpoints


class OneNetwork(ABC):
    """A network with its optimiser, and statistics of the pairs; a subclass says how it learns.

    Args:
        settings: Settings of the run.
        sizes: Sizes of the data.
        device: Device of the network.

    Attributes:
        statistics: What the method last computed of each pair, by name and pair_index; empty if
            it keeps nothing. Those of a division are ``clean_prob`` and ``is_clean``.
    """

    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.train = settings.train
        self.model = settings.model
        self.sizes = sizes
        self.device = device
        self.group = join_process_groups(1).groups[0]
        self.statistics: dict[str, Tensor] = {}
        self.draw(0)

    @abstractmethod
    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """

    def draw(self, number: int) -> None:
        """Draw the network anew and forget the optimiser's moments.

        Args:
            number: How often it has been drawn before.
        """
        seed_torch(self.train.seed, 0, *([number] if number else []))
        self.net = make_network(self.model, self.sizes, self.group).to(self.device)
        self.learner = make_learner(self.net, self.net, self.train)

    def take_steps(
        self, epoch: int, batches: Sequence[tuple[Rows, ...]], loss_of: Callable[..., Tensor]
    ) -> float:
        """Take one step for each batch; the random draws are those of the epoch.

        Args:
            epoch: From 0.
            batches: Rows of the training pairs of each batch, in one part or more.
            loss_of: Computes the loss of a batch from the rows of its parts.

        Returns:
            Mean loss of a batch.
        """
        seed_torch(self.train.seed, 2, epoch)
        self.net.train()
        losses = []
        for number, parts in enumerate(bar(batches, "train", len(batches))):
            step = Step(epoch, number, None, np.concatenate(parts))
            losses.append(self.learner.step(loss_of(*parts), step))
        return float(np.mean(losses))

    def score(
        self, train: PairSet, rows: Rows, *, logits: bool = False
    ) -> Float[Tensor, "batch batch"]:
        """Score the images of some pairs against their captions."""
        return self.net.score_batch(train.batch(rows), logits=logits)

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""
        return similarity_matrix(self.net, split)

    def state_dict(self) -> State:
        """Return the network, its optimiser and the statistics."""
        state = {
            NETWORKS: self.learner.network_state(),
            TRAINING: self.learner.optimiser_state(),
        }
        return state | ({_STATISTICS: self.statistics} if self.statistics else {})

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its network alone."""
        self.learner.load_network(state[NETWORKS])
        if TRAINING in state:
            self.learner.load_optimiser(state[TRAINING])
        self.statistics = dict(state.get(_STATISTICS, {}))

    def epoch_outputs(self) -> EpochOutputs:
        """Return the statistics, for ``divisions/``."""
        return {DIVISIONS: self.statistics} if self.statistics else {}
