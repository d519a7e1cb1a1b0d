"""Base of NCR and BiCro: peers with frozen copies of each other, and losses with soft labels."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, Literal, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.method_section import CoTeachingSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.coteaching import (
    NONE,
    PEERS,
    Rows,
    Triplet,
    full_margin_loss,
    mixed_batches,
)
from pc2_baseline.modules.division import require_clean
from pc2_baseline.modules.learner import Step, load_learned, mean_losses, rate
from pc2_baseline.modules.losses import soft_margin, triplet_hardest, triplet_mean
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes


class RelabellingSettings(CoTeachingSettings):
    """Settings shared by co-taught methods that estimate soft labels of the pairs."""

    steps: Literal["summed", "two"] = Field(
        "summed",
        description="One step on the summed loss of clean and noisy pairs, or two steps, one for "
        "each (the released codes).",
    )


SettingsT = TypeVar("SettingsT", bound=RelabellingSettings)
Labels = tuple[Float[Tensor, " clean"], Float[Tensor, " noisy"]]


class Relabelling(CoTaught, Generic[SettingsT]):
    """Two peers, each with a frozen copy of the other that helps to estimate soft labels.

    Differs:
        In the released codes of NCR and BiCro the second peer is labelled by the first after its
        training in the same epoch. Here each is labelled by the other as it was at the end of the
        epoch before, so peers can be trained in parallel.
    """

    section: type[SettingsT]
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(SettingsT, settings.method)
        make = partial(make_network, settings.model, sizes)
        super().__init__(settings, device, make)
        self.others = [make(group).to(device).eval() for group in self.groups.groups]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Copy each peer, train both for one epoch, then divide the pairs."""
        if epoch >= self.train.warmup_epochs:
            states = self.groups.for_each_peer(lambda peer: self.learners[peer].network_state())
            for other, state in zip(self.others, reversed(states), strict=True):
                load_learned(other, state)
        return super().fit_epoch(train, epoch)

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Estimate the labels of clean and noisy pairs; the networks are in evaluation mode."""
        raise NotImplementedError

    def learn_labelled(
        self,
        train: PairSet,
        epoch: int,
        peer: int,
        threshold: float = 0.0,
        *,
        noisy_first: bool = False,
    ) -> dict[str, float]:
        """Train a peer on the pairs that the other calls clean, and on batches of noisy pairs.

        Args:
            train: Training pairs.
            epoch: Epoch, from 0.
            peer: Peer to train.
            threshold: Noisy pairs with a lower label are left out.
            noisy_first: Whether the noisy step is the first one with ``method.steps = "two"``.
        """
        since, name, method = epoch - self.train.warmup_epochs, PEERS[peer], self.method
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        division = self.teacher(peer).division
        require_clean(division)
        noisy = division.noisy if since >= method.noisy_from_epoch else NONE
        size, seed = self.train.batch, self.train.seed
        batches = mixed_batches(division.clean, [noisy], size, seed, epoch, peer)
        net, learner, losses = self.nets[peer], self.learners[peer], []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, np.append(clean, noisy))
            learned = noisy if len(noisy) > 1 else NONE  # a single pair has no negative
            net.eval()
            with torch.no_grad():
                clean_labels, noisy_labels = self.labels(train, peer, clean, learned)
            net.train()
            loss = partial(labelled_loss, net, method, triplet)
            terms = {"clean": partial(loss, train.batch(clean), clean_labels)}
            if len(learned):
                is_counted = noisy_labels >= threshold
                terms["noisy"] = partial(loss, train.batch(learned), noisy_labels, is_counted)
            values: dict[str, float | Tensor] = {"noisy": 0.0}
            if method.steps == "two":
                for term in sorted(terms, reverse=noisy_first):
                    values[term] = learner.step(terms[term](), step)
            else:
                costs = {term: compute() for term, compute in terms.items()}
                parts = {term: cost.detach() for term, cost in costs.items() if term != "clean"}
                total = torch.stack(list(costs.values())).sum()
                values |= parts | {"clean": learner.step(total, replace(step, parts=parts))}
            losses.append((values["clean"], values["noisy"]))
        mean, noisy_mean = mean_losses(losses)
        return {"loss": mean, "loss_noisy": noisy_mean}


def labelled_loss(
    net: MatchingNetwork,
    method: RelabellingSettings,
    triplet: Triplet,
    batch: Batch,
    labels: PerPair,
    is_counted: Bool[Tensor, " batch"] | None = None,
) -> Loss:
    """Sum the triplet losses of pairs, with soft margins from their labels."""
    margins = soft_margin(labels, method.margin, method.margin_base)
    similarity = net.score_batch(batch)
    costs = triplet(similarity, margins)
    return (costs if is_counted is None else costs.masked_fill(~is_counted, 0.0)).sum()


def closeness(similarity: Block, margin: float) -> PerPair:
    r"""Return the mean lead of each pair over its negatives in similarity, at most the margin.

    .. math:: s_i = [\alpha - \ell_i / 2]_0^\alpha

    :math:`\ell` is :func:`~pc2_baseline.modules.losses.triplet_mean`, :math:`\alpha` the margin.

    Source:
        NCR (Huang et al., NeurIPS 2021), and its released code.
    """
    return (margin - full_margin_loss(similarity, margin) / 2).clamp(0, margin)


def anchors(values: PerPair) -> Int[Tensor, " anchors"]:
    """Return the positions of the ``len(values) // 10 + 1`` highest values."""
    return values.topk(len(values) // 10 + 1).indices
