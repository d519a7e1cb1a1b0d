"""RCL: a network learns from what does not match (Hu et al., TPAMI 2023)."""

import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.rcl import RclSettings
from pc2_baseline.methods.bases.one_network import OneNetwork
from pc2_baseline.modules.contrastive import complementary
from pc2_baseline.modules.coteaching import Rows, warm_up_batches
from pc2_baseline.modules.learner import rate
from pc2_baseline.training.method import Sizes


class Rcl(OneNetwork):
    """One network with the complementary contrastive loss on all pairs, which are not divided.

    Args:
        settings: Settings of the run; the method section is :class:`RclSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Source:
        RCL (Hu et al., TPAMI 2023), with its logarithmic loss.

    Differs:
        There is no warm-up: the epochs of ``train.warmup_epochs`` are like the others.
    """

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, RclSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of rcl")
        self.method = settings.method
        super().__init__(settings, sizes, device)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch on all pairs.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """

        def loss_of(rows: Rows) -> Float[Tensor, ""]:
            one_way = complementary(self.score(train, rows), self.method.temperature)
            return 2 * one_way.mean()

        self.learner.set_rate(rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)
        return {"loss": self.take_steps(epoch, [(rows,) for rows in batches], loss_of)}
