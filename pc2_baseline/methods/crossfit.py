"""Cross-fit division: a network that did not train on a pair decides whether it is clean."""

from collections.abc import Callable, Sequence
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
    """Cross-fit division: a network that did not train on a pair decides whether it is clean."""

    loss: Literal["triplet", "info_nce", "complementary", "gce"] = Field(
        "triplet",
        description="Loss: triplets with soft margins from the clean probabilities, divided by a "
        "triplet loss; or a softmax loss weighted by them, divided by InfoNCE.",
    )


class CrossFit(CrossFitted):
    """K peers: each trains without one of K folds, and its losses divide the pairs of that fold.

    The warm-up trains each peer on all pairs outside its fold. Every epoch ends with one evaluation
    pass: the peer of a fold computes the losses of its pairs, with negatives from the same fold,
    and each fold has its own mixture. After the warm-up a peer trains on the clean pairs outside
    its fold, with soft margins from their clean probabilities. All peers share the division; their
    similarities are averaged. An epoch costs K - 1 epochs of one network and one evaluation.

    With a softmax loss (``method.loss``) there are no margins: a clean pair's loss is multiplied by
    its clean probability, and the statistic is InfoNCE for all these losses.

    Note:
        Pairs with the same caption are in one fold: a peer that has learned a site's slogan on
        other pages would call it matched on every page. Other things that the pages of a site
        share, such as look and words, are in all folds.

    Source:
        Our own method; ``docs/departures.md`` names the works it builds on, and its differences
        from PC2 and NCR.
    """

    section = CrossFitSettings
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = method = cast(CrossFitSettings, settings.method)
        make = partial(make_network, settings.model, sizes)
        super().__init__(method.folds, settings, device, make)
        self.softmax_loss: Callable[[Block], PerPair] | None = None
        self.statistic = partial(full_margin_loss, margin=method.margin)
        if method.loss != "triplet":
            self.softmax_loss = contrastive_loss(method.loss, method.temperature)
            self.statistic = partial(info_nce, temperature=method.temperature)

    def learn(
        self, train: PairSet, epoch: int, peer: int, outside: Bool[np.ndarray, " pairs"]
    ) -> float:
        """Train a peer for an epoch on pairs outside its fold; return the mean loss of a batch."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        hardest = epoch - self.train.warmup_epochs >= self.method.mean_epochs
        certain = np.ones(len(train))
        net, division = self.nets[peer], Division(certain, certain > 0)
        if epoch >= self.train.warmup_epochs:
            division = read_statistics(DividedPairs, self.statistics).division
        require_clean(Division(division.clean_prob[outside], division.is_clean[outside]))

        def loss(rows: Rows) -> Loss:
            similarity = net.score_batch(train.batch(rows))
            clean_prob = torch.from_numpy(division.clean_prob[rows]).float().to(train.device)
            return self._loss(similarity, clean_prob, hardest=hardest)

        rows = np.flatnonzero(division.is_clean & outside)
        batches = cut(rows, self.train.batch, stream(self.train.seed, epoch, peer))
        return take_steps(self.learners[peer], batches, loss, epoch, self.peers[peer])

    def divide(self, train: PairSet, fold: Int[np.ndarray, " pairs"]) -> DividedPairs:
        """Divide the pairs of each fold by their losses with its peer, in evaluation mode."""

        def losses(peer: int) -> PairValues:
            rows, size = np.flatnonzero(fold == peer), self.method.division_batch
            order = dividing_batches(len(rows), size, self.train.seed)
            batches = [rows[places] for places in order]
            title = f"divide {self.peers[peer]}"
            return pair_losses(self.nets[peer], train, batches, self.statistic, title)

        held_out = np.sum(self.groups.for_each_peer(losses), 0)  # 0 for pairs of other folds
        return DividedPairs(held_out, divide_by_fold(held_out, fold, self.train.seed))

    def _loss(self, similarity: Block, clean_prob: PerPair, *, hardest: bool) -> Loss:
        """Return the loss of a batch: the sum of triplets, or the mean weighted softmax loss."""
        if self.softmax_loss is not None:
            return (clean_prob * self.softmax_loss(similarity)).mean()
        margins = soft_margin(clean_prob, self.method.margin, self.method.margin_base)
        return (triplet_hardest if hardest else triplet_mean)(similarity, margins).sum()
