"""L2RM: mismatched pairs are rematched by optimal transport (Han et al., CVPR 2024)."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.l2rm import L2rmSettings
from pc2_baseline.methods.bases.one_network import OneNetwork
from pc2_baseline.modules.beta_mixture import divide_by_beta
from pc2_baseline.modules.contrastive import symmetric_cross_entropy
from pc2_baseline.modules.coteaching import (
    Rows,
    clean_and_noisy_batches,
    dividing_batches,
    warm_up_batches,
)
from pc2_baseline.modules.division import Division, require_clean
from pc2_baseline.modules.learner import Learner, Step, prefixed, rate, under
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.modules.transport import CostFunction, partial_plan, rematching
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State

_COST = "cost_function"
_COST_STREAM = 3


class L2rm(OneNetwork):
    """One network: clean pairs by triplets, noisy ones by the plan that rematches them.

    The warm-up learns all pairs by a symmetric cross-entropy. Every epoch ends with one evaluation
    pass, whose mean-negative triplet losses a beta mixture divides. After the warm-up each step
    takes a clean and a noisy batch: a small step of the cost function lowers the costs of some
    clean pairs; then the network takes one step down the clean batch's triplet loss and the
    divergence of the noisy batch's matches from the plan that the costs give.

    Args:
        settings: Settings of the run; the method section is :class:`L2rmSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Source:
        L2RM (Han et al., CVPR 2024) and its code.

    Differs:
        The authors' code puts the clean images that teach the cost function among those of a noisy
        batch; a cost depends on its own row of similarities alone, so here only theirs are
        computed. Smaller batches are kept instead of dropped. It lowers the learning rate to a
        tenth again each time that ``train.lr_drop_epoch`` has passed. For its mixture see
        :mod:`~pc2_baseline.modules.beta_mixture`.
    """

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, L2rmSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of l2rm")
        self.method = settings.method
        super().__init__(settings, sizes, device)
        largest = max(3, self.train.batch)  # batches of two may take a third pair
        self.cost = CostFunction(largest).to(device)
        self.cost_learner = Learner(self.cost, self.method.cost_lr, float("inf"), 0.0)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        factor = rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch)
        self.learner.set_rate(factor)
        self.cost_learner.set_rate(factor)
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._rematch
        loss = learn(train, epoch)
        losses = self._losses(train)
        division = divide_by_beta(losses)
        arrays = {
            "clean_prob": division.clean_prob, "is_clean": division.is_clean, "loss": losses,
        }  # fmt: skip
        self.statistics = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return {"loss": loss, "clean": float(division.is_clean.sum())}

    def state_dict(self) -> State:
        """Return the network, the optimisers, the cost function and the division."""
        state = super().state_dict()
        cost = self.cost_learner.network_state() | self.cost_learner.optimiser_state()
        return state | {TRAINING: state[TRAINING] | prefixed(_COST, cost)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its network alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            cost = under(state[TRAINING], _COST)
            self.cost_learner.load_network({key: cost[key] for key in cost if "/" not in key})
            self.cost_learner.load_optimiser(cost)

    def _warm_up(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch of the warm-up; return the mean loss of a batch."""

        def loss_of(rows: Rows) -> Float[Tensor, ""]:
            similarity = self.score(train, rows)
            return symmetric_cross_entropy(similarity, self.method.temperature).mean()

        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)
        return self.take_steps(epoch, [(rows,) for rows in batches], loss_of)

    def _rematch(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch after the warm-up; return the mean loss of a batch."""
        division = Division(
            self.statistics["clean_prob"].numpy(), self.statistics["is_clean"].numpy()
        )
        require_clean(division)
        hardest = epoch >= self.train.warmup_epochs + self.method.mean_epochs
        triplet = triplet_hardest if hardest else triplet_mean
        generator = stream(self.train.seed, epoch, 0, _COST_STREAM)

        def loss_of(clean: Rows, noisy: Rows) -> Float[Tensor, ""]:
            self._learn_cost(train, clean, epoch, generator)
            similarity = self.score(train, clean)
            margins = similarity.new_full((len(clean),), self.method.margin)
            loss = triplet(similarity, margins).sum()
            return loss + self._noisy_loss(train, noisy) if len(noisy) > 1 else loss

        batches = clean_and_noisy_batches(
            division, self.train.batch, self.train.seed, epoch, 0, with_noisy=True
        )
        return self.take_steps(epoch, batches, loss_of)

    def _noisy_loss(self, train: PairSet, noisy: Rows) -> Float[Tensor, ""]:
        """Compute how far the matches of noisy pairs are from the plan that rematches them."""
        similarity = self.score(train, noisy)
        with torch.no_grad():
            cost = self.cost(similarity)
            own = torch.eye(len(noisy), dtype=torch.bool, device=cost.device)
            allowed = ~own if self.method.mask_diagonal else None
            plan = partial_plan(cost, self.method.mass, self.method.regularisation, allowed)
        return rematching(similarity, plan, self.method.temperature).mean()

    def _learn_cost(
        self, train: PairSet, clean: Rows, epoch: int, generator: np.random.Generator
    ) -> None:
        """Take a step of the cost function alone, down the costs of some clean pairs."""
        most = max(1, int(self.method.cost_share * len(clean)))
        chosen = generator.permutation(len(clean))[: generator.integers(1, most, endpoint=True)]
        self.net.eval()
        with torch.no_grad():
            similarity = self.net.score(
                self.net.encode_images(train.image_batch(train.image_of[clean[chosen]])),
                self.net.encode_captions(*train.caption_batch(clean)),
            )
        self.net.train()
        own = torch.from_numpy(chosen).to(similarity.device)[:, None]
        costs = self.cost(similarity).gather(1, own)
        self.cost_learner.step(costs.sum(), Step(epoch, 0, None, clean[chosen]))

    @torch.no_grad()
    def _losses(self, train: PairSet) -> Float[np.ndarray, " pairs"]:
        """Return the mean-negative triplet loss of each pair, in evaluation mode."""
        self.net.eval()
        losses = np.zeros(len(train), dtype=np.float32)
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        for rows in bar(batches, "divide", len(batches)):
            similarity = self.score(train, rows)
            margins = similarity.new_full((len(rows),), self.method.margin)
            losses[rows] = triplet_mean(similarity, margins).float().cpu().numpy()
        return losses
