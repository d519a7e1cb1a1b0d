"""One network of any kind that takes every pair as matched: SGR, SAF, SCAN, IMRAM, VSRN."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_settings.triplet import OneNetworkSettings
from pc2_baseline.methods.bases.one_network import OneNetwork
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.learner import rate
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.training.method import Sizes


class Triplet(OneNetwork):
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

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, OneNetworkSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of triplet")
        self.method = settings.method
        super().__init__(settings, sizes, device)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        softened = self.train.warmup_epochs + self.method.mean_epochs
        hardest = self.method.warm_up == "hardest" or epoch >= softened
        triplet = triplet_hardest if hardest else triplet_mean

        def loss_of(rows: Rows) -> Float[Tensor, ""]:
            similarity = self.score(train, rows)
            return triplet(similarity, similarity.new_full((len(rows),), self.method.margin)).sum()

        self.learner.set_rate(rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        pairs = train.matched_rows() if self.method.matched_only else np.arange(len(train))
        batches = cut(pairs, self.train.batch, stream(self.train.seed, epoch))
        return {"loss": self.take_steps(epoch, [(rows,) for rows in batches], loss_of)}
