"""What NCR and BiCro share: peers with frozen copies of each other, and losses by soft labels."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.method_section import CoTeachingSettings
from pc2_baseline.methods.networks import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.coteaching import (
    PEERS,
    DividedPairs,
    Rows,
    Triplet,
    clean_and_noisy_batches,
    dividing_batches,
    full_margin_loss,
    pair_losses,
)
from pc2_baseline.modules.division import require_clean
from pc2_baseline.modules.learner import Learner, Step
from pc2_baseline.modules.losses import soft_margin, triplet_hardest, triplet_mean
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes


class RelabellingSettings(CoTeachingSettings):
    """Settings shared by co-taught methods that learn noisy pairs by labels of their own."""

    steps: Literal["summed", "two"] = Field(
        "summed",
        description="One step down the summed loss of clean and noisy pairs, or one for each, as "
        "the released codes take.",
    )


Labels = tuple[Float[Tensor, " clean"], Float[Tensor, " noisy"]]


class Relabelling(CoTaught[MatchingNetwork, DividedPairs]):
    """Two peers, each with a frozen copy of the other that helps to label its pairs.

    Differs:
        In the released codes of NCR and BiCro the second peer of an epoch is labelled by the first
        as that epoch has already trained it; here both see the other as the last epoch left it, so
        that peers can be trained side by side.
    """

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(
            settings, device, lambda group: make_network(settings.model, sizes, group), DividedPairs
        )
        self.others = [
            make_network(settings.model, sizes, group).to(device).eval()
            for group in self.groups.groups
        ]

    def copy_others(self) -> None:
        """Copy the other peer's network to each peer."""
        states = self.groups.for_each_peer(lambda peer: self.learners[peer].network_state())
        for other, state in zip(self.others, reversed(states), strict=True):
            other.load_state_dict(state)

    def losses(self, train: PairSet, peer: int, margin: float, size: int) -> np.ndarray:
        """Return each pair's mean-negative triplet loss with a peer, among ``size`` pairs."""
        batches = dividing_batches(len(train), size, self.train.seed)
        loss = partial(full_margin_loss, margin=margin)
        return pair_losses(self.nets[peer], train, batches, loss, f"divide {PEERS[peer]}")


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
    own: Relabelling,
    method: RelabellingSettings,
    train: PairSet,
    epoch: int,
    peer: int,
    labelling: Labelling,
) -> dict[str, float]:
    """Train a peer on the pairs that the other calls clean, and on noisy ones beside them.

    Returns:
        Mean loss of a batch, and its noisy part, for the log.
    """
    since, name = epoch - own.train.warmup_epochs, PEERS[peer]
    triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
    division = own.teacher(peer).division
    require_clean(division)
    batches = clean_and_noisy_batches(
        division, own.train.batch, own.train.seed, epoch, peer,
        with_noisy=since >= method.noisy_from_epoch,
    )  # fmt: skip
    net, found = own.nets[peer], []
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
        take = _one_step if method.steps == "summed" else _two_steps
        order = sorted(losses, reverse=labelling.noisy_first)
        found.append(take(own.learners[peer], step, {kind: losses[kind] for kind in order}))
    mean, noisy_mean = np.mean(found, axis=0).tolist()
    return {"loss": mean, "loss_noisy": noisy_mean}


def labelled_loss(
    net: MatchingNetwork,
    method: RelabellingSettings,
    triplet: Triplet,
    batch: Batch,
    labels: Float[Tensor, " batch"],
    is_counted: Bool[Tensor, " batch"] | None = None,
) -> Float[Tensor, ""]:
    """Sum the triplet losses of pairs, with soft margins by their labels.

    Args:
        net: The network that learns.
        method: Margin and its base.
        triplet: Triplet loss of the epoch.
        batch: The pairs.
        labels: How far the halves of each pair belong together, in [0, 1].
        is_counted: Pairs that are not left out; default: all.
    """
    margins = soft_margin(labels, method.margin, method.margin_base)
    costs = triplet(net.score_batch(batch), margins)
    return (costs if is_counted is None else costs[is_counted]).sum()


def _one_step(
    learner: Learner, step: Step, losses: dict[str, Callable[[], Tensor]]
) -> tuple[float, float]:
    """Take one step down the summed loss; return it, and its noisy part."""
    clean = losses["clean"]()
    if "noisy" not in losses:
        return learner.step(clean, step), 0.0
    noisy = losses["noisy"]()
    step = replace(step, parts={"noisy": noisy.item()})
    return learner.step(clean + noisy, step), noisy.item()


def _two_steps(
    learner: Learner, step: Step, losses: dict[str, Callable[[], Tensor]]
) -> tuple[float, float]:
    """Take a step down each loss in turn; return the clean and the noisy one."""
    values = {kind: learner.step(loss(), step) for kind, loss in losses.items()}
    return values["clean"], values.get("noisy", 0.0)


def closeness(similarity: Float[Tensor, "batch batch"], margin: float) -> Float[Tensor, " batch"]:
    r"""By how much a pair is more similar than its negatives are on average, up to the margin.

    .. math:: s_i = [\alpha - \ell_i / 2]_0^\alpha

    with :math:`\ell_i` of :func:`~pc2_baseline.modules.losses.triplet_mean`.

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        margin: :math:`\alpha`, in units of similarity.

    Source:
        NCR (Huang et al., NeurIPS 2021), and its released code.
    """
    return (margin - full_margin_loss(similarity, margin) / 2).clamp(0, margin)


def anchors(values: Float[Tensor, " batch"]) -> Int[Tensor, " anchors"]:
    """Return the positions of the highest tenth of the values, and one more."""
    return values.topk(len(values) // 10 + 1).indices
