"""One network of any kind, all pairs treated as matched: SGR, SAF, SCAN, IMRAM, MaxSim, VSRN."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import TripletSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.learner import rate
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss


class OneNetworkSettings(TripletSettings):
    """One network of any kind and a triplet loss; all pairs are treated as matched."""

    warm_up: Literal["mean", "hardest"] = Field(
        "mean",
        description="Negatives of the warm-up: their mean (SGR* in NCR), or the hardest (SGR): on "
        "noisy pairs training then collapses.",
    )
    matched_only: bool = Field(
        default=False,
        description="Train only on the pairs that data.truth or data.noise_file calls matched "
        "(SGR-C): an upper bound to compare with, as the training uses the truth.",
    )

    @property
    def takes_matched(self) -> str:
        """Use of pairs that are known to match, for a message."""
        return "method.matched_only: trains on" if self.matched_only else ""

    @model_validator(mode="after")
    def _negatives_never_soften(self) -> "OneNetworkSettings":
        if self.warm_up == "hardest" and self.mean_epochs:
            raise ValueError(
                f'mean_epochs is {self.mean_epochs}, expected 0 with warm_up = "hardest"'
            )
        return self


class Triplet(OneNetwork[OneNetworkSettings]):
    """One network: mean negatives in the warm-up and ``method.mean_epochs``, then hardest ones.

    Source:
        VSE++ (Faghri et al., BMVC 2018) for the loss. SGRAF (Diao et al., AAAI 2021), SCAN (Lee et
        al., ECCV 2018), IMRAM (Chen et al., CVPR 2020) and VSRN (Li et al., ICCV 2019) use it too;
        select their networks with ``model.similarity``.

    Differs:
        The warm-up with mean negatives is that of SGR* in NCR; without it (``method.warm_up``),
        training collapses on noisy pairs. SGR-C in NCR's tables is trained only on matched pairs
        (``method.matched_only``). VSRN's second loss, of a decoder that writes the caption from the
        regions, is left out.
    """

    section = OneNetworkSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        mean_until = self.train.warmup_epochs + self.method.mean_epochs
        hardest = self.method.warm_up == "hardest" or epoch >= mean_until
        triplet = triplet_hardest if hardest else triplet_mean
        pairs = train.matched_rows() if self.method.matched_only else np.arange(len(train))
        batches = cut(pairs, self.train.batch, stream(self.train.seed, epoch))

        def loss(similarity: Block) -> Loss:
            margins = similarity.new_full((len(similarity),), self.method.margin)
            return triplet(similarity, margins).sum()

        return {"loss": self.take_steps(train, batches, loss, epoch)}
