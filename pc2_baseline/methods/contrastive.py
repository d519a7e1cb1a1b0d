"""The contrastive baseline: one network, a softmax loss, every pair taken as matched."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_settings.contrastive import ContrastiveSettings
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.contrastive import contrastive_loss
from pc2_baseline.modules.learner import Step, rate
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.modules.seeds import seed_torch, stream
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State


class Contrastive:
    """One network and a softmax loss: each pair against all others of its batch, both ways.

    The warm-up is an epoch like the others: it only says from when on the rate's drop counts.

    Args:
        settings: Settings of the run; the method section is :class:`ContrastiveSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Source:
        CLIP (Radford et al., ICML 2021) for the loss; with the pooled network a dual encoder, as
        VSE-infinity (Chen et al., CVPR 2021).
    """

    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, ContrastiveSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of contrastive")
        method = settings.method
        self.loss = contrastive_loss(method.loss, method.temperature, method.power)
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
        self.learner.set_rate(rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        self.net.train()
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        losses = []
        for number, rows in enumerate(bar(batches, "train", len(batches))):
            batch = train.batch(rows)
            similarity = self.net.score(
                self.net.encode_images(batch.regions),
                self.net.encode_captions(batch.tokens, batch.lengths),
            )
            losses.append(
                self.learner.step(self.loss(similarity).mean(), Step(epoch, number, None, rows))
            )
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
