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
from pc2_baseline.modules.coteaching import NONE, PEERS, DividedPairs, Rows, Triplet, mixed_batches
from pc2_baseline.modules.division import Division, divide, require_clean
from pc2_baseline.modules.learner import Step, add_prefix, mean_losses, select_prefix, stepped_rate
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.progress import bar, say
from pc2_baseline.training.method import TRAINING, Sizes, State

HEADS = 4
_DROPOUT = 0.1
_LR_DECAY = 0.1
_MEMORY = "memory"

Memory = dict[str, Float[Tensor, "_ _"]]
"""Pooled vectors of pairs, oldest first: ``images`` and ``captions``; empty at first."""


INTRA_WEIGHT = 0.5
"""Lambda: weight of the triplets of two views (by dropout) of each image, and of each caption.

The paper's table says that the published figures have it, its appendix says 0.1.
"""


class In2rSettings(TripletSettings, DivisionSettings, SoftmaxSettings):
    """IN2R (Liu et al., ICML 2026): targets of noisy pairs made of their neighbours' halves."""

    neighbours: PositiveInt = Field(
        5, description="K: remembered pairs that a noisy pair's prototype is made of."
    )
    memory: Annotated[int, Field(ge=1)] = Field(
        65_536, description="M: pairs that a network's memory holds; the oldest leave first."
    )
    rectify_by: Literal["targets", "prototypes"] = Field(
        "targets",
        description="What a noisy pair's half learns: to find what its prototype finds among the "
        "batch's other halves (the paper), or to find its prototype among those of the batch (the "
        "released code).",
    )

    @model_validator(mode="after")
    def _memory_holds_neighbours(self) -> "In2rSettings":
        if self.memory < self.neighbours:
            raise ValueError(
                f"memory is {self.memory}, expected neighbours, {self.neighbours}, or more"
            )
        return self


class GraphRefiner(nn.Module):
    """Make one vector of several: each attends to all, then their mean.

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
        """Return the prototypes, of length 1."""
        refined = self.norm(nodes + self.drop(self.attend(nodes, nodes, nodes)[0]))
        return unit(refined.mean(1))


class In2rNetwork(nn.Module):
    """A matching network, and the refiner that only training needs."""

    def __init__(self, matching: MatchingNetwork, width: int) -> None:
        super().__init__()
        self.matching = matching
        self.refiner = GraphRefiner(width)


class In2r(CoTaught):
    """Co-taught peers; noisy halves learn from prototypes made of remembered clean neighbours.

    The warm-up learns all pairs by a symmetric cross-entropy. After it, a peer learns the pairs
    that the other calls clean by triplets on hardest negatives, between the modalities and between
    two views within each; and it remembers pooled vectors of the surest of them. A noisy image is
    looked up among the images that the other peer remembers; of the captions of the nearest, a
    refiner makes a prototype of the caption that it should have. Noisy captions are treated alike.

    Both peers start with the same weights, so that one can look up in the memory of the other.
    Memories and refiners are not needed to predict. Pooled vectors are compared by their cosines
    whatever the network, its own similarity in the warm-up, in the triplets between the modalities
    and in the division.

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
        """Train both peers for one epoch, then divide the pairs again.

        Each looks up what the other remembered at the end of the epoch before.
        """
        if epoch < self.train.warmup_epochs:
            return super().fit_epoch(train, epoch)
        learned = self.groups.for_each_peer(lambda peer: self._rectify(train, epoch, peer))
        self.memories = [memory for _, memory in learned]
        figures = [own for own, _ in learned]
        return self.divided_anew(epoch, figures, lambda peer: self._divide(train, peer))

    def state_dict(self) -> State:
        """Return networks, statistics, optimisers and memories of both peers."""
        state = super().state_dict()
        for peer, memory in zip(PEERS, self.memories, strict=True):
            state[TRAINING] |= add_prefix(f"{peer}.{_MEMORY}", memory)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        kept = state.get(TRAINING, {})
        self.memories = [select_prefix(kept, f"{peer}.{_MEMORY}") for peer in PEERS]

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch on all pairs, by eq. 1."""
        self.begin(epoch, peer, 1.0)
        temperature, net = self.method.temperature, self.matching[peer]

        def loss(rows: Rows) -> Loss:
            similarity = net.score_batch(train.batch(rows))
            return symmetric_cross_entropy(similarity, temperature).mean()

        return self.warm_up(train, epoch, peer, loss)

    def _rectify(self, train: PairSet, epoch: int, peer: int) -> tuple[dict[str, float], Memory]:
        """Train a peer on clean and noisy pairs; also return what it remembers from now on."""
        since, method, name = epoch - self.train.warmup_epochs, self.method, PEERS[peer]
        self.begin(epoch, peer, stepped_rate(since, self.train.lr_drop_epoch, _LR_DECAY))
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        division = self.teacher(peer).division
        require_clean(division)
        is_elite = elite(division)
        known = {side: own.to(self.device) for side, own in self.memories[1 - peer].items()}
        remembered = len(known["images"]) if known else 0
        if since and remembered < method.neighbours:
            say(
                f"in2r: {remembered} pairs are remembered, fewer than method.neighbours = "
                f"{method.neighbours}, so peer {name} learns no noisy pair in epoch {epoch + 1}"
            )
        kinds = division.clean, [division.noisy if remembered >= method.neighbours else NONE]
        batches = mixed_batches(*kinds, self.train.batch, self.train.seed, epoch, peer)
        found, stored = [], [self.memories[peer]]
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            loss, vectors = self._clean_loss(train.batch(clean), peer, triplet)
            chosen = torch.from_numpy(np.flatnonzero(is_elite[clean])).to(self.device)
            stored.append({side: own[chosen] for side, own in vectors.items()})
            rectified = loss.new_zeros(())
            if len(noisy) > 1:  # one pair alone has no negative
                rectified = self._rectification_loss(train.batch(noisy), peer, known)
            step = Step(epoch, number, name, np.append(clean, noisy), {"noisy": rectified.detach()})
            found.append((self.learners[peer].step(loss + rectified, step), rectified.detach()))
        mean, noisy_mean = mean_losses(found)
        return {"loss": mean, "loss_noisy": noisy_mean}, newest(stored, method.memory)

    def _clean_loss(self, batch: Batch, peer: int, triplet: Triplet) -> tuple[Loss, Memory]:
        """Return the loss of clean pairs (eq. 2 to 5), and their pooled vectors."""
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

    def _rectification_loss(self, batch: Batch, peer: int, known: Memory) -> Loss:
        """Return the loss of noisy pairs, the mean of both directions (eq. 11)."""
        net, refiner = self.matching[peer], self.nets[peer].refiner
        images = net.encode_images(batch.regions).pooled
        captions = net.encode_captions(batch.tokens, batch.lengths).pooled
        nearest = partial(counterparts, number=self.method.neighbours)
        of_images = refiner(nearest(images, known["images"], known["captions"]))
        of_captions = refiner(nearest(captions, known["captions"], known["images"]))
        costs = self._costs(images, captions, of_images), self._costs(captions, images, of_captions)
        return torch.stack(costs).mean()

    def _costs(
        self,
        queries: Float[Tensor, "batch dim"],
        others: Float[Tensor, "batch dim"],
        prototypes: Float[Tensor, "batch dim"],
    ) -> PerPair:
        """Return what it costs that halves do not find what their prototypes stand for."""
        temperature = self.method.temperature
        if self.method.rectify_by == "prototypes":
            return symmetric_cross_entropy(queries @ prototypes.T, temperature)
        wanted = prototypes @ others.detach().T  # a target teaches the refiner alone
        return soft_target_costs(queries @ others.T, wanted, temperature)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their mean-negative losses."""
        losses = self.losses(train, peer, self.method.margin, self.method.division_batch)
        return DividedPairs(losses, divide(losses, self.train.seed))


def elite(division: Division) -> Bool[np.ndarray, " pairs"]:
    """Return which clean pairs are remembered: those as sure as the clean ones are on average."""
    clean_prob = division.clean_prob[division.is_clean]
    floor = min(clean_prob.mean(), clean_prob.max())  # a mean of equal values may round up
    return np.asarray(division.is_clean & (division.clean_prob >= floor))


def newest(stored: Sequence[Memory], size: int) -> Memory:
    """Return the last ``size`` of what was stored, on the CPU."""
    parts = [part for part in stored if part]
    sides = ("images", "captions")
    return {side: torch.cat([own[side].cpu() for own in parts])[-size:].clone() for side in sides}


def counterparts(
    queries: Float[Tensor, "batch dim"],
    keys: Float[Tensor, "pairs dim"],
    values: Float[Tensor, "pairs width"],
    number: int,
) -> Float[Tensor, "batch number width"]:
    """Return the other halves of the pairs whose one half is nearest to each query, by cosine."""
    return values[(queries.detach() @ keys.T).topk(number).indices]


def soft_target_costs(found: Block, wanted: Block, temperature: float) -> PerPair:
    r"""Cross-entropies, both ways, of what halves find among a batch and what they should find.

    .. math::
        -\sum_j (q_{ij} \log p_{ij} + p_{ij} \log q_{ij}),\quad
        p_i = \mathrm{softmax}(F_i / \tau),\ q_i = \mathrm{softmax}(W_i / \tau)

    Args:
        found: :math:`F`, similarities of one half of each pair (rows) with the other halves.
        wanted: :math:`W`, those of the prototypes of the other half with the same.
        temperature: :math:`\tau`, in units of similarity.

    Source:
        IN2R (Liu et al., ICML 2026), eq. 1, 10 and 11, both weights 1.
    """
    logs, targets = (matrix.div(temperature).log_softmax(1) for matrix in (found, wanted))
    return -(targets.exp() * logs + logs.exp() * targets).sum(1)
