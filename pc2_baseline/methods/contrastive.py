"""The contrastive baseline: one network, a softmax loss, every pair taken as matched."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_settings.contrastive import ContrastiveSettings
from pc2_baseline.methods.bases.one_network import OneNetwork
from pc2_baseline.modules.contrastive import contrastive_loss
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.learner import rate
from pc2_baseline.modules.seeds import stream
from pc2_baseline.training.method import Sizes


class Contrastive(OneNetwork):
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

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, ContrastiveSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of contrastive")
        method = settings.method
        self.loss = contrastive_loss(method.loss, method.temperature, method.power)
        super().__init__(settings, sizes, device)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """

        def loss_of(rows: Rows) -> Float[Tensor, ""]:
            return self.loss(self.score(train, rows)).mean()

        self.learner.set_rate(rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        return {"loss": self.take_steps(epoch, [(rows,) for rows in batches], loss_of)}
