"""The contrastive baseline and RCL: one network, a softmax loss, every pair taken as matched."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import complementary, contrastive_loss
from pc2_baseline.modules.coteaching import Rows, warm_up_batches
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Loss
from pc2_baseline.training.method import Sizes


class ContrastiveSettings(SoftmaxSettings):
    """One network and a softmax loss: every pair is taken as matched."""

    loss: Literal["info_nce", "complementary", "gce"] = Field(
        "info_nce",
        description="InfoNCE; or a robust loss, by which a pair that does not fit costs little: "
        "complementary contrastive (RCL), or generalised cross-entropy.",
    )


class Contrastive(OneNetwork[ContrastiveSettings]):
    """One network and a softmax loss: each pair against all others of its batch, both ways.

    Epochs of the warm-up are like the others: the drop of the rate is counted from its end.

    Source:
        CLIP (Radford et al., ICML 2021) for the loss; with the pooled network a dual encoder, as
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

        def loss(rows: Rows) -> Loss:
            return self.loss(self.net.score_batch(train.batch(rows))).mean()

        return {"loss": take_steps(self.learner, batches, loss, epoch)}


class RclSettings(SoftmaxSettings):
    """RCL (Hu et al., TPAMI 2023): the complementary contrastive loss."""


class Rcl(OneNetwork[RclSettings]):
    """One network with the complementary contrastive loss on all pairs, which are not divided.

    Source:
        RCL (Hu et al., TPAMI 2023), with its logarithmic loss.

    Differs:
        There is no warm-up: the epochs of ``train.warmup_epochs`` are like the others.
    """

    section = RclSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch on all pairs."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(rows: Rows) -> Loss:
            similarity = self.net.score_batch(train.batch(rows))
            return 2 * complementary(similarity, self.method.temperature).mean()  # both ways

        return {"loss": take_steps(self.learner, batches, loss, epoch)}
