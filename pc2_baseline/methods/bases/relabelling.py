"""Two peers that learn clean and noisy pairs by soft labels that networks estimate."""

from abc import abstractmethod
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import ModelSettings, Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.base import RelabellingSettings
from pc2_baseline.methods.bases.two_peers import TakeStep, TwoPeers
from pc2_baseline.methods.networks import make_network
from pc2_baseline.modules.coteaching import (
    PEERS,
    DividedPairs,
    Rows,
    Triplet,
    dividing_batches,
    full_margin_loss,
    pair_losses,
)
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Step
from pc2_baseline.modules.losses import soft_margin
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.training.method import Sizes

Kind = Literal["clean", "noisy"]
Labels = tuple[Float[Tensor, " clean"], Float[Tensor, " noisy"]]


class Relabelling(TwoPeers[MatchingNetwork, DividedPairs]):
    """Two peers, each with a frozen copy of the other, that learn all pairs with soft margins.

    A subclass says how the labels of clean and noisy pairs are estimated, and by which mixture the
    losses are divided.

    Args:
        settings: Settings of the run; the method section is a :class:`RelabellingSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Differs:
        In the released codes of NCR and BiCro the second peer of an epoch is labelled by the first
        as that epoch has already trained it; here both see the other as the last epoch left it, so
        that peers can be trained side by side.
    """

    method: RelabellingSettings
    divided = DividedPairs
    order: tuple[Kind, Kind] = ("clean", "noisy")
    """Order of the steps, where each kind of pairs has its own."""
    label_threshold = 0.0
    """Label below which a noisy pair is left out."""

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.others = [
            make_network(settings.model, sizes, group).to(device).eval()
            for group in self.groups.groups
        ]

    def make_net(self, model: ModelSettings, sizes: Sizes, group: ProcessGroup) -> MatchingNetwork:
        """Build the network of a peer, freshly drawn."""
        return make_network(model, sizes, group)

    def matching(self, net: MatchingNetwork) -> MatchingNetwork:
        """Return the network itself."""
        return net

    @abstractmethod
    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Estimate the labels that a peer learns a batch by.

        Args:
            train: The training split.
            peer: The peer to train; its network is in evaluation mode.
            clean: Clean pairs.
            noisy: Noisy pairs; none, or two and more.
        """

    @abstractmethod
    def divide(self, losses: Float[np.ndarray, " pairs"]) -> Division:
        """Divide the pairs by their losses."""

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        if epoch >= self.train.warmup_epochs:
            each = self.groups.for_each_peer
            states = each(lambda peer: self.learners[peer].network_state())
            for other, state in zip(self.others, reversed(states), strict=True):
                other.load_state_dict(state)
        return super().fit_epoch(train, epoch)

    def warm_up_loss(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, ""]:
        """Compute the triplet loss with mean negatives and one margin."""
        return self._warm_up_costs(train, peer, rows).sum()

    def teaching(self, train: PairSet, peer: int, triplet: Triplet) -> TakeStep:
        """Return what takes the steps of a peer's epoch after the warm-up."""
        return partial(self._take_step, train, peer, triplet)

    def divide_pairs(self, train: PairSet, _: int, peer: int) -> DividedPairs:
        """Evaluate all pairs once with a peer and divide them."""
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        title = f"divide {PEERS[peer]}"
        loss = partial(full_margin_loss, margin=self.method.margin)
        losses = pair_losses(self.nets[peer], train, batches, loss, title)
        return DividedPairs(losses, self.divide(losses))

    def _warm_up_costs(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, " batch"]:
        similarity = self.nets[peer].score_batch(train.batch(rows))
        return full_margin_loss(similarity, self.method.margin)

    def _take_step(
        self, train: PairSet, peer: int, triplet: Triplet, rows: tuple[Rows, ...], step: Step
    ) -> tuple[float, float]:
        """Take one step down the summed loss, or one for each kind of pairs.

        Returns:
            The loss, and its noisy part.
        """
        clean, noisy = rows
        noisy = noisy if len(noisy) > 1 else noisy[:0]  # one pair alone has no negative
        net, learner = self.nets[peer].eval(), self.learners[peer]
        with torch.no_grad():
            clean_labels, noisy_labels = self.labels(train, peer, clean, noisy)
        net.train()
        loss = partial(self._loss, train, net, triplet)
        losses = {
            "clean": partial(loss, clean, clean_labels, 0.0),
            "noisy": partial(loss, noisy, noisy_labels, self.label_threshold),
        }
        if not len(noisy):
            return learner.step(losses["clean"](), step), 0.0
        if self.method.steps == "two":
            values = {kind: learner.step(losses[kind](), step) for kind in self.order}
            return values["clean"], values["noisy"]
        clean_loss, noisy_loss = losses["clean"](), losses["noisy"]()
        step = replace(step, parts={"noisy": noisy_loss.item()})
        return learner.step(clean_loss + noisy_loss, step), noisy_loss.item()

    def _loss(
        self,
        train: PairSet,
        net: MatchingNetwork,
        triplet: Triplet,
        rows: Rows,
        labels: Float[Tensor, " batch"],
        threshold: float,
    ) -> Float[Tensor, ""]:
        """Sum the triplet losses of the pairs whose label is high enough, with soft margins."""
        similarity = net.score_batch(train.batch(rows))
        margins = soft_margin(labels, self.method.margin, self.method.margin_base)
        return triplet(similarity, margins)[labels >= threshold].sum()
