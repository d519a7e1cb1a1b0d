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
"""Kinds of a pair: how many of the two peers call it clean."""

_HARD_ORDER = 3  # part of the stream's name


MINE_ALL_ABOVE = 0.85
"""Share of clean pairs above which every negative of clean and hard pairs is mined; up to it, only
those whose part of the target is at least the pairs' mean correspondence."""

LR_DECAY = 0.1
"""Factor of the learning rate each time ``train.lr_drop_epoch`` epochs have passed."""


class CreamSettings(NoisySettings, SoftmaxSettings):
    """CREAM (Ma et al., TIP 2024): clean, hard and noisy pairs by the agreement of two networks."""

    hard_from_epoch: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First epoch after the warm-up that trains on hard pairs (one network says "
        "clean, the other noisy), and that mines negatives of clean ones.",
    )


@dataclass(frozen=True, slots=True)
class Predicted(DividedPairs):
    """Statistics of all pairs, with how far a peer believes that their halves belong together."""

    prediction: PairValues


class Cream(CoTaught):
    """Two peers whose agreement makes a pair clean, hard or noisy, each kind with soft targets.

    Every epoch ends with one evaluation pass, in which each peer divides the pairs by their InfoNCE
    and predicts how far their halves belong together. After the warm-up both train on the same
    clean pairs (which both call clean), later on hard ones (on which they differ), last on noisy
    ones. A pair's target is its refined correspondence; the rest goes to negatives that look like
    it.

    Source:
        CREAM (Ma et al., TIP 2024); its formulas and schedule as in the authors' code.

    Differs:
        In the authors' code both networks predict anew in each step, among its batch; here once an
        epoch, in the dividing pass, so that within an epoch a peer needs nothing of the other. Its
        gradient flows into the mined targets; here they are constants. It goes on from the best
        epoch of the warm-up, judged on dev; here from the last one.
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
        """Train both peers for one epoch, then divide the pairs again."""
        each = self.groups.for_each_peer
        figures = by_peer(each(lambda peer: self._learn(train, epoch, peer)))
        if self.train.evaluates(epoch):
            self.statistics = each(lambda peer: self._divide(train, peer))
            kinds = self._kinds()
            for name, kind in (("clean", CLEAN), ("hard", HARD), ("noisy", NOISY)):
                figures[name] = float((kinds == kind).sum())
        return figures

    def correspondence(self, peer: int) -> PairValues:
        r"""Refine how far the halves of each pair belong together, for a peer to train with.

        .. math::
            y = w + (1 - w)\,p

        Here :math:`p` is the peer's own prediction, and :math:`w` the clean probability: of the
        other peer for clean pairs, the mean of both for hard ones. For noisy pairs :math:`y` is the
        mean of both predictions.
        """
        own, other, kinds = self.statistics[peer], self.statistics[1 - peer], self._kinds()
        mean_prob = (own.division.clean_prob + other.division.clean_prob) / 2
        clean_prob = np.where(kinds == CLEAN, other.division.clean_prob, mean_prob)
        refined = clean_prob + (1 - clean_prob) * own.prediction
        predicted = (own.prediction + other.prediction) / 2
        return np.asarray(np.where(kinds == NOISY, predicted, refined))

    def _kinds(self) -> Int[np.ndarray, " pairs"]:
        return np.asarray(np.sum([own.division.is_clean for own in self.statistics], axis=0))

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch; return the mean loss of a batch."""
        since = epoch - self.train.warmup_epochs
        drops = stepped_rate(max(since, 0), self.train.lr_drop_epoch, LR_DECAY)
        self.begin(epoch, peer, drops)
        net, learner, name = self.nets[peer], self.learners[peer], self.peers[peer]
        kinds, correspondence = np.full(len(train), CLEAN), np.ones(len(train))
        if since >= 0:
            kinds, correspondence = self._kinds(), self.correspondence(peer)
            require_clean(Division(correspondence, kinds == CLEAN))
        floors = self._mining_floors(kinds, correspondence, since)
        batches = self._batches(kinds, epoch, peer)
        losses = []
        for number, (kind, rows) in enumerate(bar(batches, f"train {name}", len(batches))):
            similarity = net.score_batch(train.batch(rows))
            own = torch.from_numpy(correspondence[rows]).float().to(train.device)
            targets = mined_targets(similarity, own, floors[kind])
            costs = soft_info_nce(similarity, self.method.temperature, *targets)
            losses.append(learner.step(costs.mean(), Step(epoch, number, name, rows)))
        return {"loss": float(np.mean(losses))}

    def _batches(
        self, kinds: Int[np.ndarray, " pairs"], epoch: int, peer: int
    ) -> list[tuple[int, Rows]]:
        """Follow each clean batch by one of hard and one of noisy pairs, once it is time.

        Hard pairs come once an epoch at most, noisy ones again and again. A pair alone, which has
        no negative, is left out.
        """
        since = epoch - self.train.warmup_epochs
        hard, noisy = NONE, NONE
        if since >= self.method.hard_from_epoch:
            hard = np.flatnonzero(kinds == HARD)
        if since >= self.method.noisy_from_epoch:
            noisy = np.flatnonzero(kinds == NOISY)
        size, seed = self.train.batch, self.train.seed
        hard_batches = cut(hard, size, stream(seed, epoch, peer, _HARD_ORDER))
        found: list[tuple[int, Rows]] = []
        clean = np.flatnonzero(kinds == CLEAN)
        for number, parts in enumerate(mixed_batches(clean, [noisy], size, seed, epoch, peer)):
            of_hard = hard_batches[number] if number < len(hard_batches) else NONE
            found += [(CLEAN, parts[0]), (HARD, of_hard), (NOISY, parts[1])]
        return [(kind, rows) for kind, rows in found if len(rows) > 1]

    def _mining_floors(
        self, kinds: Int[np.ndarray, " pairs"], correspondence: PairValues, since: int
    ) -> dict[int, float]:
        """Return for each kind of pair the smallest part of a target that a negative may have."""
        mean = float(correspondence.mean())
        if np.mean(kinds == CLEAN) > MINE_ALL_ABOVE:
            return {CLEAN: 0.0, HARD: 0.0, NOISY: mean}
        clean = mean if since >= self.method.hard_from_epoch else np.inf
        return {CLEAN: clean, HARD: mean, NOISY: mean}

    def _divide(self, train: PairSet, peer: int) -> Predicted:
        """Return a peer's division, losses and predictions of all pairs, in evaluation mode.

        The batches have one order a run, so a loss changes because the network did.
        """
        self.nets[peer].eval()
        found = []
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        with torch.inference_mode():
            for rows in bar(batches, f"divide {self.peers[peer]}", len(batches)):
                similarity = self.nets[peer].score_batch(train.batch(rows))
                logs = log_matches(similarity, self.method.temperature)
                found.append(torch.stack([way.diagonal() for way in logs]).float())
        own, order = torch.cat(found, 1).cpu(), np.concatenate(batches)
        losses, predictions = torch.zeros(len(train)), torch.zeros(len(train))
        losses[order], predictions[order] = -own.mean(0), own.exp().mean(0)
        division = divide(losses.numpy(), self.train.seed)
        return Predicted(losses.numpy(), division, predictions.numpy())


def mined_targets(similarity: Block, correspondence: PerPair, floor: float) -> tuple[Block, Block]:
    r"""Soft targets of a batch: each pair's correspondence, the rest for similar negatives.

    .. math::
        T_{ii} = y_i \qquad T_{ij} = (1 - y_i) \frac{S_{ij}}{\sum_{k \ne i} S_{ik}}

    Args:
        similarity: :math:`S`, rows images, columns captions; below 0 it counts as 0.
        correspondence: :math:`y` of each pair, in [0, 1].
        floor: Smaller parts of negatives are left out; the target then sums to less than 1.

    Returns:
        Targets by image, and by caption; both have images as rows. No gradient flows through them.
    """
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    others = similarity.detach().clamp(min=0.0).masked_fill(own, 0.0)
    left = 1 - correspondence
    by_image = left[:, None] * others / (others.sum(1, keepdim=True) + 1e-6)
    by_caption = left[None] * others / (others.sum(0, keepdim=True) + 1e-6)
    positive = torch.diag(correspondence)
    return (
        positive + by_image.masked_fill(by_image < floor, 0.0),
        positive + by_caption.masked_fill(by_caption < floor, 0.0),
    )
