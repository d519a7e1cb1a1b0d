"""Contrastive baseline and RCL: one network, a softmax loss, all pairs treated as matched."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import complementary, contrastive_loss
from pc2_baseline.modules.coteaching import warm_up_batches
from pc2_baseline.modules.learner import rate
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss
from pc2_baseline.training.method import Sizes


class ContrastiveSettings(SoftmaxSettings):
    """One network and a softmax loss; all pairs are treated as matched."""

    loss: Literal["info_nce", "complementary", "gce"] = Field(
        "info_nce",
        description="Loss: InfoNCE, or a robust loss, where a mismatched pair costs little: "
        "complementary contrastive (RCL) or generalised cross-entropy (gce).",
    )


class Contrastive(OneNetwork[ContrastiveSettings]):
    """One network; a softmax loss compares each pair with its batch, in both directions.

    Epochs of the warm-up are like the others; the learning rate drops ``train.lr_drop_epoch``
    epochs after it.

    Source:
        CLIP (Radford et al., ICML 2021) for the loss; with the pooled network a dual encoder like
        VSE-infinity (Chen et al., CVPR 2021).
    """

    section = ContrastiveSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.loss = contrastive_loss(self.method.loss, self.method.temperature)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        loss = self.take_steps(
            train, batches, lambda similarity: self.loss(similarity).mean(), epoch
        )
        return {"loss": loss}


class RclSettings(SoftmaxSettings):
    """RCL (Hu et al., TPAMI 2023): the complementary contrastive loss."""


class Rcl(OneNetwork[RclSettings]):
    """One network with the complementary contrastive loss on all pairs; no division.

    Source:
        RCL (Hu et al., TPAMI 2023), with its logarithmic loss.

    Differs:
        There is no warm-up: epochs of ``train.warmup_epochs`` are like the others.
    """

    section = RclSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch on all pairs."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(similarity: Block) -> Loss:
            return 2 * complementary(similarity, self.method.temperature).mean()  # both directions

        return {"loss": self.take_steps(train, batches, loss, epoch)}
