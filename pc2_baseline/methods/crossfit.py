"""Cross-fit division: every pair is judged by a network that did not train on it."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from pydantic import Field

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import CrossFittedSettings, SoftmaxSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CrossFitted
from pc2_baseline.modules.contrastive import contrastive_loss, info_nce
from pc2_baseline.modules.coteaching import (
    DividedPairs,
    Rows,
    dividing_batches,
    full_margin_loss,
    pair_losses,
    read_statistics,
)
from pc2_baseline.modules.division import Division, PairValues, divide_by_fold, require_clean
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.modules.losses import soft_margin, triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.training.method import Sizes


class CrossFitSettings(CrossFittedSettings, SoftmaxSettings):
    """Cross-fit division: a pair is judged by a network that did not train on it."""

    loss: Literal["triplet", "info_nce", "complementary", "gce"] = Field(
        "triplet",
        description="Triplets with soft margins by the clean probabilities, with a triplet loss as "
        "the statistic; or a softmax loss, which they weigh, with InfoNCE as the statistic.",
    )


class CrossFit(CrossFitted):
    """K peers: each leaves one of K folds out of its training and alone judges the pairs in it.

    The warm-up trains each peer on all pairs outside its fold. Every epoch ends with one evaluation
    pass: the peer of a fold computes the losses of the fold's pairs, with negatives from the same
    fold, and a mixture of the fold's own divides them. After the warm-up a peer trains on the clean
    pairs outside its fold, with soft margins by their clean probabilities. All peers share the
    division; their similarities are averaged.

    With a softmax loss (``method.loss``) there are no margins: a clean pair's loss is multiplied by
    its clean probability, and the mixture is over InfoNCE, whichever loss the peers learn by.

    An epoch takes K - 1 times the steps of one network on all pairs, and one evaluation of them.

    Note:
        Pairs with the same caption are in one fold: a peer that has learned a site's slogan on
        other pages of the site would call it matched wherever it stands. What pages of a site share
        besides, look and words, is in all folds.

    Source:
        A method of our own; ``docs/departures.md`` names the works that it stands on, and how it
        differs from PC2 and NCR.
    """

    section = CrossFitSettings
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = own = cast(CrossFitSettings, settings.method)
        super().__init__(own.folds, settings, device, partial(make_network, settings.model, sizes))
        self.contrast = (
            None if own.loss == "triplet" else contrastive_loss(own.loss, own.temperature)
        )

    def learn(
        self, train: PairSet, epoch: int, peer: int, outside: Bool[np.ndarray, " pairs"]
    ) -> float:
        """Train a peer for an epoch on pairs outside its fold; return the mean loss of a batch."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        hardest = epoch - self.train.warmup_epochs >= self.method.mean_epochs
        net, division = self.nets[peer], self._division(len(train), epoch)
        require_clean(Division(division.clean_prob[outside], division.is_clean[outside]))

        def loss(rows: Rows) -> Loss:
            similarity = net.score_batch(train.batch(rows))
            clean_prob = torch.from_numpy(division.clean_prob[rows]).float().to(train.device)
            return self._loss(similarity, clean_prob, hardest=hardest)

        rows = np.flatnonzero(division.is_clean & outside)
        batches = cut(rows, self.train.batch, stream(self.train.seed, epoch, peer))
        return take_steps(self.learners[peer], batches, loss, epoch, self.peers[peer])

    def divide(self, train: PairSet, fold: Int[np.ndarray, " pairs"]) -> DividedPairs:
        """Divide the pairs of each fold by a mixture of its own."""
        held_out = np.sum(self.groups.for_each_peer(
            lambda peer: self._held_out_losses(train, peer, np.flatnonzero(fold == peer))
        ), 0)  # fmt: skip
        return DividedPairs(held_out, divide_by_fold(held_out, fold, self.train.seed))

    def _loss(self, similarity: Block, clean_prob: PerPair, *, hardest: bool) -> Loss:
        """Return the loss of a batch: triplets summed, or a softmax loss weighed and averaged."""
        if self.contrast is not None:
            return (clean_prob * self.contrast(similarity)).mean()
        margins = soft_margin(clean_prob, self.method.margin, self.method.margin_base)
        return (triplet_hardest if hardest else triplet_mean)(similarity, margins).sum()

    def _statistic(self, similarity: Block) -> PerPair:
        """Return the statistic that divides the pairs: low for pairs that fit well."""
        if self.contrast is not None:
            return info_nce(similarity, self.method.temperature)
        return full_margin_loss(similarity, self.method.margin)

    def _division(self, pairs: int, epoch: int) -> Division:
        """Return the division to train on: in the warm-up every pair is certainly clean."""
        if epoch < self.train.warmup_epochs:
            return Division(np.ones(pairs), np.ones(pairs, dtype=bool))
        return read_statistics(DividedPairs, self.statistics).division

    def _held_out_losses(
        self, train: PairSet, peer: int, own: Int[np.ndarray, " fold"]
    ) -> PairValues:
        """Return a peer's statistics of the pairs of its fold, in evaluation mode.

        The batches have one order a run, so a loss changes because the network did. Pairs of other
        folds have 0.
        """
        places = dividing_batches(len(own), self.method.division_batch, self.train.seed)
        batches = [own[place] for place in places]
        title = f"divide {self.peers[peer]}"
        return pair_losses(self.nets[peer], train, batches, self._statistic, title)
