"""CREAM: consistency refining and mining (Ma et al., TIP 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Int
from pydantic import Field

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import NoisySettings, SoftmaxSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.contrastive import log_matches, soft_info_nce
from pc2_baseline.modules.coteaching import (
    NONE,
    DividedPairs,
    Rows,
    by_peer,
    dividing_batches,
    mixed_batches,
)
from pc2_baseline.modules.division import Division, PairValues, divide, require_clean
from pc2_baseline.modules.learner import Step, stepped_rate
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes

NOISY, HARD, CLEAN = range(3)
"""Group of a pair: the number of peers that call it clean."""
MINE_ALL_ABOVE = 0.85
"""Share of clean pairs above which all negatives of clean and hard pairs enter the targets; below,
only those whose part of the target is at least the mean correspondence."""
LR_DECAY = 0.1
"""Factor of the learning rate after every ``train.lr_drop_epoch`` epochs."""
_HARD_ORDER = 3  # last number in the name of the stream


class CreamSettings(NoisySettings, SoftmaxSettings):
    """CREAM (Ma et al., TIP 2024): clean, hard and noisy pairs by the agreement of two networks."""

    hard_from_epoch: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First epoch after the warm-up that trains on hard pairs (clean for one of the "
        "networks) and mines negatives of clean pairs.",
    )


@dataclass(frozen=True, slots=True)
class Predicted(DividedPairs):
    """Statistics of all pairs, with the matching probability that a peer predicts."""

    prediction: PairValues


class Cream(CoTaught):
    """Two peers divide the pairs into clean, hard and noisy ones and learn them with soft targets.

    Every epoch ends with one evaluation pass: each peer divides the pairs by their InfoNCE and
    predicts their correspondence. After the warm-up both peers train on the same clean pairs (both
    call them clean), later also on hard pairs (only one does), and last on noisy ones. The target
    of a pair is its refined correspondence; the remainder is shared among similar negatives.

    Source:
        CREAM (Ma et al., TIP 2024); formulas and schedule as in the authors' code.

    Differs:
        In the authors' code both networks predict in each step, within its batch; here once an
        epoch, in the dividing pass, so peers are independent within an epoch. Its gradient flows
        into the mined targets; here they are constants. After the warm-up it continues from the
        epoch with the best dev score; here from the last one.
    """

    section = CreamSettings
    nets: Sequence[MatchingNetwork]
    optimiser = ""
    divided = Predicted
    statistics: Sequence[Predicted] = ()

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(CreamSettings, settings.method)
        super().__init__(settings, device, partial(make_network, settings.model, sizes))

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs."""
        each = self.groups.for_each_peer
        figures = by_peer(each(lambda peer: self._learn(train, epoch, peer)))
        if self.train.evaluates(epoch):
            self.statistics = each(lambda peer: self._divide(train, peer))
            groups = self._groups()
            for name, group in (("clean", CLEAN), ("hard", HARD), ("noisy", NOISY)):
                figures[name] = float((groups == group).sum())
        return figures

    def correspondence(self, peer: int) -> PairValues:
        r"""Return the refined correspondence of each pair with which a peer trains.

        .. math::
            y = w + (1 - w)\,p

        :math:`p` is the peer's own prediction, :math:`w` the clean probability: the other peer's
        for clean pairs, the mean of both for hard ones. For noisy pairs :math:`y` is the mean of
        both predictions.
        """
        own, other, groups = self.statistics[peer], self.statistics[1 - peer], self._groups()
        mean_prob = (own.division.clean_prob + other.division.clean_prob) / 2
        clean_prob = np.where(groups == CLEAN, other.division.clean_prob, mean_prob)
        refined = clean_prob + (1 - clean_prob) * own.prediction
        predicted = (own.prediction + other.prediction) / 2
        return np.asarray(np.where(groups == NOISY, predicted, refined))

    def _groups(self) -> Int[np.ndarray, " pairs"]:
        return np.asarray(np.sum([peer.division.is_clean for peer in self.statistics], axis=0))

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch; return the mean loss of a batch."""
        since = epoch - self.train.warmup_epochs
        self.begin(epoch, peer, stepped_rate(max(since, 0), self.train.lr_drop_epoch, LR_DECAY))
        net, learner, name = self.nets[peer], self.learners[peer], self.peers[peer]
        groups, correspondence = np.full(len(train), CLEAN), np.ones(len(train))
        if since >= 0:
            groups, correspondence = self._groups(), self.correspondence(peer)
            require_clean(Division(correspondence, groups == CLEAN))
        floors = self._mining_floors(groups, correspondence, since)
        batches = self._batches(groups, epoch, peer)
        losses = []
        for number, (group, rows) in enumerate(bar(batches, f"train {name}", len(batches))):
            similarity = net.score_batch(train.batch(rows))
            labels = torch.from_numpy(correspondence[rows]).float().to(train.device)
            targets = mined_targets(similarity, labels, floors[group])
            costs = soft_info_nce(similarity, self.method.temperature, *targets)
            losses.append(learner.step(costs.mean(), Step(epoch, number, name, rows)))
        return {"loss": float(np.mean(losses))}

    def _batches(
        self, groups: Int[np.ndarray, " pairs"], epoch: int, peer: int
    ) -> list[tuple[int, Rows]]:
        """Return batches with their groups: after each clean one a hard and a noisy one.

        Hard and noisy pairs start at their epochs. An epoch has each hard pair at most once and
        repeats the noisy ones. Batches of a single pair, which has no negative, are left out.
        """
        since = epoch - self.train.warmup_epochs
        hard, noisy = NONE, NONE
        if since >= self.method.hard_from_epoch:
            hard = np.flatnonzero(groups == HARD)
        if since >= self.method.noisy_from_epoch:
            noisy = np.flatnonzero(groups == NOISY)
        size, seed = self.train.batch, self.train.seed
        hard_batches = cut(hard, size, stream(seed, epoch, peer, _HARD_ORDER))
        mixed = mixed_batches(np.flatnonzero(groups == CLEAN), [noisy], size, seed, epoch, peer)
        ordered: list[tuple[int, Rows]] = []
        for number, (clean_rows, noisy_rows) in enumerate(mixed):
            hard_rows = hard_batches[number] if number < len(hard_batches) else NONE
            ordered += [(CLEAN, clean_rows), (HARD, hard_rows), (NOISY, noisy_rows)]
        return [(group, rows) for group, rows in ordered if len(rows) > 1]

    def _mining_floors(
        self, groups: Int[np.ndarray, " pairs"], correspondence: PairValues, since: int
    ) -> dict[int, float]:
        """Return the minimum part of a target that a negative may have, by group of the pair."""
        mean = float(correspondence.mean())
        if np.mean(groups == CLEAN) > MINE_ALL_ABOVE:
            return {CLEAN: 0.0, HARD: 0.0, NOISY: mean}
        clean = mean if since >= self.method.hard_from_epoch else np.inf
        return {CLEAN: clean, HARD: mean, NOISY: mean}

    def _divide(self, train: PairSet, peer: int) -> Predicted:
        """Return a peer's division, losses and predictions of all pairs, in evaluation mode."""
        self.nets[peer].eval()
        by_batch = []
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        with self.nets[peer].dividing():
            for rows in bar(batches, f"divide {self.peers[peer]}", len(batches)):
                similarity = self.nets[peer].score_batch(train.batch(rows))
                logs = log_matches(similarity, self.method.temperature)
                by_batch.append(torch.stack([way.diagonal() for way in logs]).float())
        by_pair = torch.cat(by_batch, 1).cpu()
        values = np.zeros((2, len(train)), dtype=np.float32)
        values[:, np.concatenate(batches)] = torch.stack([-by_pair.mean(0), by_pair.exp().mean(0)])
        return Predicted(values[0], divide(values[0], self.train.seed), values[1])


def mined_targets(similarity: Block, correspondence: PerPair, floor: float) -> tuple[Block, Block]:
    r"""Return soft targets of a batch: correspondences, and the remainder for similar negatives.

    .. math::
        T_{ii} = y_i \qquad T_{ij} = (1 - y_i) \frac{S_{ij}}{\sum_{k \ne i} S_{ik}}

    Args:
        similarity: :math:`S`, rows images, columns captions; negative values count as 0.
        correspondence: :math:`y` of each pair, in [0, 1].
        floor: Minimum part of a negative; without smaller ones a target sums to less than 1.

    Returns:
        Targets by image and by caption, without gradient; both have images as rows.
    """
    diagonal = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    others = similarity.detach().clamp(min=0.0).masked_fill(diagonal, 0.0)
    remainder = 1 - correspondence
    by_image = remainder[:, None] * others / (others.sum(1, keepdim=True) + 1e-6)
    by_caption = remainder[None] * others / (others.sum(0, keepdim=True) + 1e-6)
    positive = torch.diag(correspondence)
    return (
        positive + by_image.masked_fill(by_image < floor, 0.0),
        positive + by_caption.masked_fill(by_caption < floor, 0.0),
    )
