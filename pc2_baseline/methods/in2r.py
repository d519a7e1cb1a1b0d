"""IN2R: intra-modal neighbour-aware noise rectification (Liu et al., ICML 2026)."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import gcd
from typing import Annotated, Literal, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.method_section import DivisionSettings, SoftmaxSettings, TripletSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.contrastive import symmetric_cross_entropy
from pc2_baseline.modules.coteaching import (
    NONE,
    PEERS,
    DividedPairs,
    Triplet,
    full_margin_loss,
    mixed_batches,
)
from pc2_baseline.modules.division import Division, divide, require_clean
from pc2_baseline.modules.learner import Step, add_prefix, mean_losses, select_prefix, stepped_rate
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.progress import bar, say
from pc2_baseline.training.method import TRAINING, Sizes, State

INTRA_WEIGHT = 0.5
"""Lambda: weight of the triplets within a modality, between two views of a sample under dropout.

The published figures have 0.5 according to the paper's table; its appendix says 0.1.
"""
HEADS = 4
_DROPOUT = 0.1
_LR_DECAY = 0.1
_MEMORY = "memory"

Memory = dict[str, Float[Tensor, "_ _"]]
"""Pooled vectors of pairs by side (``images``, ``captions``), oldest first; at first empty."""


class In2rSettings(TripletSettings, DivisionSettings, SoftmaxSettings):
    """IN2R (Liu et al., ICML 2026): targets of noisy pairs from their nearest clean neighbours."""

    neighbours: PositiveInt = Field(
        5, description="K: stored pairs that form the prototype of a noisy pair."
    )
    memory: Annotated[int, Field(ge=1)] = Field(
        65_536,
        description="M: maximum number of pairs in a network's memory; the oldest leave first.",
    )
    rectify_by: Literal["targets", "prototypes"] = Field(
        "targets",
        description="Target of a noisy image or caption: the matches of its prototype in the batch "
        "(the paper), or the prototype itself among those of the batch (the released code).",
    )

    @model_validator(mode="after")
    def _memory_holds_neighbours(self) -> "In2rSettings":
        if self.memory < self.neighbours:
            raise ValueError(
                f"memory is {self.memory}, expected {self.neighbours} (neighbours) or more"
            )
        return self


class GraphRefiner(nn.Module):
    """Combine several vectors into one: self-attention, then the mean.

    Source:
        IN2R (Liu et al., ICML 2026), eq. 7 to 9; heads, dropout and the unit length as in the
        authors' code.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, gcd(HEADS, width), batch_first=True)
        self.drop = nn.Dropout(_DROPOUT)
        self.norm = nn.LayerNorm(width)

    def forward(self, nodes: Float[Tensor, "batch nodes dim"]) -> Float[Tensor, "batch dim"]:
        """Return the prototypes, which have length 1."""
        refined = self.norm(nodes + self.drop(self.attend(nodes, nodes, nodes)[0]))
        return unit(refined.mean(1))


class In2rNetwork(nn.Module):
    """A matching network, and a refiner for training."""

    def __init__(self, matching: MatchingNetwork, width: int) -> None:
        super().__init__()
        self.matching = matching
        self.refiner = GraphRefiner(width)


class In2r(CoTaught):
    """Two co-taught peers; noisy pairs learn from prototypes made of clean neighbours.

    The warm-up learns all pairs with a symmetric cross-entropy. After it, a peer learns the pairs
    that the other calls clean with triplets on hardest negatives, across modalities and between two
    views within each. It stores the pooled vectors of the most certain of these pairs in its
    memory. For a noisy image, the nearest images in the other peer's memory are looked up, and a
    refiner combines their captions into a prototype of its caption; noisy captions have the
    prototype of an image in the same way.

    Both peers start with the same weights, so that they can search each other's memory. Prediction
    needs neither memories nor refiners. With any network, pooled vectors are compared by cosines;
    its own similarity is used in the warm-up, the triplets across modalities and the division.

    Source:
        IN2R (Liu et al., ICML 2026) and its code.

    Differs:
        See ``docs/departures.md``.
    """

    section = In2rSettings
    nets: Sequence[In2rNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(In2rSettings, settings.method)

        def make(group: ProcessGroup) -> In2rNetwork:
            matching = make_network(settings.model, sizes, group)
            return In2rNetwork(matching, settings.model.pooled_width)

        super().__init__(settings, device, make)
        self.nets[1].load_state_dict(self.nets[0].state_dict())
        self.memories: list[Memory] = [{}, {}]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs.

        Each peer searches the other's memory as it was at the end of the epoch before.
        """
        if epoch < self.train.warmup_epochs:
            return super().fit_epoch(train, epoch)
        learned = self.groups.for_each_peer(lambda peer: self._rectify(train, epoch, peer))
        figures, self.memories = [row for row, _ in learned], [memory for _, memory in learned]
        return self.finish_epoch(epoch, figures, lambda peer: self._divide(train, peer))

    def state_dict(self) -> State:
        """Return networks, statistics, optimisers and memories of both peers."""
        state = super().state_dict()
        for peer, memory in zip(PEERS, self.memories, strict=True):
            state[TRAINING] |= add_prefix(f"{peer}.{_MEMORY}", memory)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its networks."""
        super().load_state_dict(state)
        training = state.get(TRAINING, {})
        self.memories = [select_prefix(training, f"{peer}.{_MEMORY}") for peer in PEERS]

    def warm_up_loss(self, similarity: Block) -> Loss:
        """Return the loss of a batch of the warm-up (eq. 1)."""
        return symmetric_cross_entropy(similarity, self.method.temperature).mean()

    def _rectify(self, train: PairSet, epoch: int, peer: int) -> tuple[dict[str, float], Memory]:
        """Train a peer on clean and noisy pairs; return its figures and its new memory."""
        since, method, name = epoch - self.train.warmup_epochs, self.method, PEERS[peer]
        self.begin(epoch, peer, stepped_rate(since, self.train.lr_drop_epoch, _LR_DECAY))
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        division = self.teacher(peer).division
        require_clean(division)
        is_elite = elite(division)
        memory = {side: stored.to(self.device) for side, stored in self.memories[1 - peer].items()}
        size = len(memory["images"]) if memory else 0
        if since and size < method.neighbours:
            say(
                f"in2r: peer {name} skips the noisy pairs of epoch {epoch + 1}: the memory has "
                f"{size} pairs, method.neighbours is {method.neighbours}"
            )
        groups = division.clean, [division.noisy if size >= method.neighbours else NONE]
        batches = mixed_batches(*groups, self.train.batch, self.train.seed, epoch, peer)
        losses, parts = [], [self.memories[peer]]
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            loss, vectors = self._clean_loss(train.batch(clean), peer, triplet)
            places = torch.from_numpy(np.flatnonzero(is_elite[clean])).to(self.device)
            parts.append({side: pooled[places] for side, pooled in vectors.items()})
            rectified = loss.new_zeros(())
            if len(noisy) > 1:  # a single pair has no negative
                rectified = self._rectification_loss(train.batch(noisy), peer, memory)
            step = Step(epoch, number, name, np.append(clean, noisy), {"noisy": rectified.detach()})
            losses.append((self.learners[peer].step(loss + rectified, step), rectified.detach()))
        mean, noisy_mean = mean_losses(losses)
        return {"loss": mean, "loss_noisy": noisy_mean}, newest(parts, method.memory)

    def _clean_loss(self, batch: Batch, peer: int, triplet: Triplet) -> tuple[Loss, Memory]:
        """Return the loss of clean pairs (eq. 2 to 5) and their pooled vectors."""
        net, method = self.matching[peer], self.method
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        margins = images.pooled.new_full((len(images.pooled),), method.margin)
        costs = triplet(net.score(images, captions), margins)
        again = net.encode_images(batch.regions).pooled
        costs = costs + INTRA_WEIGHT * triplet(images.pooled @ again.T, margins)
        again = net.encode_captions(batch.tokens, batch.lengths).pooled
        costs = costs + INTRA_WEIGHT * triplet(captions.pooled @ again.T, margins)
        vectors = {"images": images.pooled.detach(), "captions": captions.pooled.detach()}
        return costs.sum(), vectors

    def _rectification_loss(self, batch: Batch, peer: int, memory: Memory) -> Loss:
        """Return the loss of noisy pairs, the mean of both directions (eq. 11)."""
        net, refiner = self.matching[peer], self.nets[peer].refiner
        images = net.encode_images(batch.regions).pooled
        captions = net.encode_captions(batch.tokens, batch.lengths).pooled
        nearest = partial(counterparts, number=self.method.neighbours)
        for_images = refiner(nearest(images, memory["images"], memory["captions"]))
        for_captions = refiner(nearest(captions, memory["captions"], memory["images"]))
        i2t, t2i = (images, captions, for_images), (captions, images, for_captions)
        return torch.stack([self._costs(*i2t), self._costs(*t2i)]).mean()

    def _costs(
        self,
        queries: Float[Tensor, "batch dim"],
        others: Float[Tensor, "batch dim"],
        prototypes: Float[Tensor, "batch dim"],
    ) -> PerPair:
        """Return the prototype-matching losses of queries among the other modality's samples."""
        temperature = self.method.temperature
        if self.method.rectify_by == "prototypes":
            return symmetric_cross_entropy(queries @ prototypes.T, temperature)
        targets = prototypes @ others.detach().T  # their gradient is the refiner's only
        return soft_target_costs(queries @ others.T, targets, temperature)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their mean-negative losses."""
        loss = partial(full_margin_loss, margin=self.method.margin)
        losses = self.losses(train, peer, loss, self.method.division_batch)
        return DividedPairs(losses, divide(losses, self.train.seed))


def elite(division: Division) -> Bool[np.ndarray, " pairs"]:
    """Select clean pairs to store: those with at least the mean clean probability."""
    clean_prob = division.clean_prob[division.is_clean]
    floor = min(clean_prob.mean(), clean_prob.max())  # the mean of equal values may round up
    return np.asarray(division.is_clean & (division.clean_prob >= floor))


def newest(stored: Sequence[Memory], size: int) -> Memory:
    """Return the last ``size`` pairs, on the CPU."""
    parts = [part for part in stored if part]
    sides = ("images", "captions")
    return {side: torch.cat([part[side].cpu() for part in parts])[-size:].clone() for side in sides}


def counterparts(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "pairs dim"],
    values: Float[Tensor, "pairs width"],
    number: int,
) -> Float[Tensor, "batch number width"]:
    """Return the values of the ``number`` keys with the highest cosine to each query."""
    return values[(queries.detach() @ keys.T).topk(number).indices]


def soft_target_costs(similarity: Block, targets: Block, temperature: float) -> PerPair:
    r"""Return the symmetric cross-entropy of each query's matches and its prototype's.

    .. math::
        -\sum_j (q_{ij} \log p_{ij} + p_{ij} \log q_{ij}),\quad
        p_i = \mathrm{softmax}(F_i / \tau),\ q_i = \mathrm{softmax}(W_i / \tau)

    Args:
        similarity: :math:`F`, similarities of queries (rows) with the other modality's samples.
        targets: :math:`W`, similarities of the queries' prototypes with the same samples.
        temperature: :math:`\tau`, in units of similarity.

    Source:
        IN2R (Liu et al., ICML 2026), eq. 1, 10 and 11, both weights 1.
    """
    p, q = (block.div(temperature).log_softmax(1) for block in (similarity, targets))
    return -(q.exp() * p + p.exp() * q).sum(1)
