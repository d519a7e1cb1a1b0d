"""Base of NCR and BiCro: peers with frozen copies of each other, and losses by soft labels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    """Settings shared by co-taught methods that learn noisy pairs by labels of their own."""

    steps: Literal["summed", "two"] = Field(
        "summed",
        description="One step down the summed loss of clean and noisy pairs, or one for each, as "
        "the released codes take.",
    )


Own = TypeVar("Own", bound=RelabellingSettings)
Labels = tuple[Float[Tensor, " clean"], Float[Tensor, " noisy"]]


class Relabelling(CoTaught, Generic[Own]):
    """Two peers, each with a frozen copy of the other that helps to label its pairs.

    Differs:
        In the released codes of NCR and BiCro the second peer of an epoch is labelled by the first
        as that epoch has already trained it; here both see the other as the last epoch left it, so
        that peers can be trained side by side.
    """

    section: type[Own]
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(Own, settings.method)
        make = partial(make_network, settings.model, sizes)
        super().__init__(settings, device, make)
        self.others = [make(group).to(device).eval() for group in self.groups.groups]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs anew."""
        if epoch >= self.train.warmup_epochs:
            states = self.groups.for_each_peer(lambda peer: self.learners[peer].network_state())
            for other, state in zip(self.others, reversed(states), strict=True):
                load_learned(other, state)
        return super().fit_epoch(train, epoch)


@dataclass(frozen=True, slots=True)
class Labelling:
    """How a method labels the pairs of a peer.

    Attributes:
        labels_of: Estimates the labels of clean and noisy pairs, with the network in evaluation
            mode and without gradients.
        threshold: Label below which a noisy pair is left out.
        noisy_first: Whether the noisy step comes first, where each kind of pairs has its own.
    """

    labels_of: Callable[[Rows, Rows], Labels]
    threshold: float = 0.0
    noisy_first: bool = False


def learn_labelled(
    own: Relabelling[Own], train: PairSet, epoch: int, peer: int, labelling: Labelling
) -> dict[str, float]:
    """Train a peer on the pairs that the other calls clean, and on noisy ones next to them."""
    since, name, method = epoch - own.train.warmup_epochs, PEERS[peer], own.method
    own.begin(epoch, peer, rate(epoch, own.train.warmup_epochs, own.train.lr_drop_epoch))
    triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
    division = own.teacher(peer).division
    require_clean(division)
    noisy = division.noisy if since >= method.noisy_from_epoch else NONE
    kinds = division.clean, [noisy]
    batches = mixed_batches(*kinds, own.train.batch, own.train.seed, epoch, peer)
    net, learner, found = own.nets[peer], own.learners[peer], []
    for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
        step = Step(epoch, number, name, np.append(clean, noisy))
        counted = noisy if len(noisy) > 1 else noisy[:0]  # one pair alone has no negative
        net.eval()
        with torch.no_grad():
            clean_labels, noisy_labels = labelling.labels_of(clean, counted)
        net.train()
        loss = partial(labelled_loss, net, method, triplet)
        losses = {"clean": partial(loss, train.batch(clean), clean_labels)}
        if len(counted):
            is_counted = noisy_labels >= labelling.threshold
            losses["noisy"] = partial(loss, train.batch(counted), noisy_labels, is_counted)
        if method.steps == "two":
            order = sorted(losses, reverse=labelling.noisy_first)
            values: dict[str, float | Tensor] = {
                kind: learner.step(losses[kind](), step) for kind in order
            }
        else:
            terms = {kind: term() for kind, term in losses.items()}
            values = {kind: term.detach() for kind, term in terms.items() if kind != "clean"}
            step = replace(step, parts=dict(values))
            values["clean"] = learner.step(torch.stack(list(terms.values())).sum(), step)
        found.append((values["clean"], values.get("noisy", 0.0)))
    mean, noisy_mean = mean_losses(found)
    return {"loss": mean, "loss_noisy": noisy_mean}


def labelled_loss(
    net: MatchingNetwork,
    method: RelabellingSettings,
    triplet: Triplet,
    batch: Batch,
    labels: PerPair,
    is_counted: Bool[Tensor, " batch"] | None = None,
) -> Loss:
    """Sum the triplet losses of pairs, with soft margins by their labels."""
    margins = soft_margin(labels, method.margin, method.margin_base)
    similarity = net.score_batch(batch)
    costs = triplet(similarity, margins)
    return (costs if is_counted is None else costs.masked_fill(~is_counted, 0.0)).sum()


def closeness(similarity: Block, margin: float) -> PerPair:
    r"""Return by how much a pair is more similar than its negatives on average, up to the margin.

    .. math:: s_i = [\alpha - \ell_i / 2]_0^\alpha

    with :math:`\ell_i` of :func:`~pc2_baseline.modules.losses.triplet_mean`.

    Source:
        NCR (Huang et al., NeurIPS 2021), and its released code.
    """
    return (margin - full_margin_loss(similarity, margin) / 2).clamp(0, margin)


def anchors(values: PerPair) -> Int[Tensor, " anchors"]:
    """Return the positions of the highest tenth of the values, and one more."""
    return values.topk(len(values) // 10 + 1).indices
