"""One network of any kind that takes every pair as matched: SGR, SAF, SCAN, IMRAM, MaxSim, VSRN."""

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import TripletSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Loss


class OneNetworkSettings(TripletSettings):
    """Triplets of one network, of any kind: every pair is taken as matched."""

    warm_up: Literal["mean", "hardest"] = Field(
        "mean",
        description="Negatives of the warm-up: their mean, as NCR's SGR*, or the hardest, as SGR "
        "itself, which collapses on noisy pairs.",
    )
    matched_only: bool = Field(
        default=False,
        description="Train on the pairs that data.truth or data.noise_file calls matched, and on "
        "no others (SGR-C): a bound to compare with, for the truth is part of the training.",
    )

    @property
    def takes_matched(self) -> str:
        """What is done with pairs that are known to match."""
        return "method.matched_only: trains on" if self.matched_only else ""

    @model_validator(mode="after")
    def _negatives_never_soften(self) -> "OneNetworkSettings":
        if self.warm_up == "hardest" and self.mean_epochs:
            raise ValueError(
                f'mean_epochs is {self.mean_epochs}, expected 0 with warm_up = "hardest"'
            )
        return self


class Triplet(OneNetwork[OneNetworkSettings]):
    """One network; mean negatives in the warm-up and a while after, then hardest negatives.

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

    section = OneNetworkSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch."""
        self.begin(epoch, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        softened = self.train.warmup_epochs + self.method.mean_epochs
        hardest = self.method.warm_up == "hardest" or epoch >= softened
        triplet = triplet_hardest if hardest else triplet_mean
        pairs = train.matched_rows() if self.method.matched_only else np.arange(len(train))
        batches = cut(pairs, self.train.batch, stream(self.train.seed, epoch))

        def loss(rows: Rows) -> Loss:
            similarity = self.net.score_batch(train.batch(rows))
            margins = similarity.new_full((len(rows),), self.method.margin)
            return triplet(similarity, margins).sum()

        return {"loss": take_steps(self.learner, batches, loss, epoch)}
