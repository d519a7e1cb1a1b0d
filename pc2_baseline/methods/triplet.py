"""One network of any kind that takes every pair as matched: SGR, SAF, SCAN, IMRAM, VSRN."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_settings.triplet import OneNetworkSettings
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.learner import Step, rate
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.modules.seeds import seed_torch, stream
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State


class Triplet:
    """One network; mean negatives in the warm-up and a while after, then hardest negatives.

    Args:
        settings: Settings of the run; the method section is :class:`OneNetworkSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Source:
        VSE++ (Faghri et al., BMVC 2018) for the loss, which SGRAF (Diao et al., AAAI 2021), SCAN
        (Lee et al., ECCV 2018), IMRAM (Chen et al., CVPR 2020) and VSRN (Li et al., ICCV 2019)
        share; each is a kind of network (``model.similarity``).

    Differs:
        The warm-up with mean negatives is that of NCR's SGR*; without it (``method.warm_up``),
        hardest negatives collapse on noisy pairs. SGR-C of NCR's tables is trained on the matched
        pairs alone (``method.matched_only``). VSRN's second loss, of a decoder that writes the
        caption from the regions, is left out.
    """

    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, OneNetworkSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of triplet")
        self.method = settings.method
        self.train = settings.train
        seed_torch(self.train.seed, 0)
        self.net = make_network(settings.model, sizes, join_process_groups(1).groups[0]).to(device)
        self.learner = make_learner(self.net, self.net, self.train)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        seed_torch(self.train.seed, 2, epoch)
        softened = self.train.warmup_epochs + self.method.mean_epochs
        hardest = self.method.warm_up == "hardest" or epoch >= softened
        triplet = triplet_hardest if hardest else triplet_mean
        self.learner.set_rate(rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        self.net.train()
        pairs = train.matched_rows() if self.method.matched_only else np.arange(len(train))
        batches = cut(pairs, self.train.batch, stream(self.train.seed, epoch))
        losses = []
        for number, rows in enumerate(bar(batches, "train", len(batches))):
            similarity = self.net.score_batch(train.batch(rows))
            costs = triplet(similarity, similarity.new_full((len(rows),), self.method.margin))
            losses.append(self.learner.step(costs.sum(), Step(epoch, number, None, rows)))
        return {"loss": float(np.mean(losses))}

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""
        return similarity_matrix(self.net, split)

    def state_dict(self) -> State:
        """Return the network and its optimiser."""
        return {
            "networks": self.learner.network_state(),
            "training": self.learner.optimiser_state(),
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its network alone."""
        self.learner.load_network(state["networks"])
        if "training" in state:
            self.learner.load_optimiser(state["training"])

    def epoch_outputs(self) -> EpochOutputs:
        """Return nothing: no statistic of the pairs is kept."""
        return {}
