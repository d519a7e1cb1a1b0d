"""MSCN: meta similarity correction network (Han et al., CVPR 2023)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeFloat
from torch import Tensor, nn
from torch.nn import functional

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut, cycle_batches
from pc2_baseline.method_section import TripletSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.coteaching import (
    CLEAN,
    PEERS,
    TAUGHT,
    DividedPairs,
    Rows,
    full_margin_loss,
)
from pc2_baseline.modules.division import (
    Division,
    PairValues,
    by_posterior,
    moments,
    posterior_from,
    require_clean,
    scaled,
)
from pc2_baseline.modules.learner import (
    Learner,
    Step,
    add_prefix,
    mean_losses,
    select_prefix,
    stepped_rate,
    take_steps,
)
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.retrieval import BLOCK
from pc2_baseline.modules.seeds import seed_torch, stream
from pc2_baseline.networks.encoders import Block, CaptionCodes, ImageCodes, Loss, PerPair
from pc2_baseline.networks.sgr import NodeSettings, Similarity
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.process_groups import ALONE, ProcessGroup
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, EpochOutputs, Sizes, State

HIDDEN = 64
_EDGE = 1e-3
_FEWEST_META = 2
_HEAD = "similarity.evaluate."
_LR_DECAY = 0.1
_META = 3  # part of the streams' names
_META_OPTIMISER = "meta_optimiser"
_SHIFT = 1e-3
_TINY = 1e-12


class MscnSettings(TripletSettings):
    """MSCN (Han et al., CVPR 2023): a last layer taught by pairs that are known to match."""

    meta_share: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.02,
        description="Largest share of the training pairs that is the meta set: drawn from those "
        "that data.truth, or data.noise_file, calls matched, and not learned otherwise.",
    )
    meta_lr: NonNegativeFloat = Field(
        17e-6, description="Adam's learning rate of the last layer after the warm-up."
    )

    @property
    def takes_matched(self) -> str:
        """What is done with pairs that are known to match."""
        return "method mscn: takes its meta set from"


@dataclass(frozen=True, slots=True)
class MetaPairs:
    """Images with captions that match, and as many that do not.

    Attributes:
        images: Rows of the images.
        captions: Rows of the captions.
        labels: 1 where they match, else 0.
    """

    images: Int[np.ndarray, " pairs"]
    captions: Int[np.ndarray, " pairs"]
    labels: PairValues

    def __getitem__(self, place: Rows) -> "MetaPairs":
        """Return some of them."""
        return MetaPairs(self.images[place], self.captions[place], self.labels[place])


class Mscn(CoTaught):
    r"""Co-taught peers whose last layer is a small network that a meta set corrects.

    The meta net :math:`\Theta` makes a similarity of the vector that SGR or SAF makes of a pair.
    The meta set are pairs that are known to match, with as many random mismatches, drawn anew each
    epoch. The warm-up learns all other pairs. After it, each step on pairs that the other peer
    calls clean, with the margins of :func:`meta_margins`, is preceded by one of the meta net alone,
    down the cross-entropy of the meta set at the network :math:`W` as it would be after the step:

    .. math::
        \hat W(\Theta) = W - \eta \nabla_W L(W, \Theta),\quad
        \Theta \leftarrow \Theta - \nabla_\Theta \mathrm{BCE}(\hat W(\Theta), \Theta)

    A mixture of two beta distributions, begun as those of the meta set's matches and mismatches,
    divides the pairs by their similarities. Noisy pairs are left out.

    Attributes:
        statistics: What each peer's division saw; ``loss`` is one minus the similarity.

    Source:
        MSCN (Han et al., CVPR 2023) and its code, which the steps and the schedule are from.

    Differs:
        Its code differentiates through the step; here the mixed second derivative is a central
        difference along the meta gradient of :math:`W` (as in DARTS, Liu et al., ICLR 2019), with
        the same dropout at both ends. The meta set comes from the training pairs that a truth
        calls matched. In the warm-up one norm clips both parts. Margins in the code belong to
        the negative caption in one direction; here a margin is the query's. The second peer divides
        before it learns from the first's division, so that both can be trained side by side. All
        similarities outside [0.001, 0.999], not 0 and 1 alone, count as its ends in the mixture.
        Clean is the component with the higher mean similarity, in the code the one that began as
        the matches, whichever mean it ends with; see ``docs/departures.md``.
    """

    section = MscnSettings
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(MscnSettings, settings.method)
        self._is_meta, self._epoch = torch.zeros(sizes.pairs, dtype=torch.bool), 0

        def make(model: NodeSettings, group: ProcessGroup) -> MatchingNetwork:
            net = make_network(model, sizes, group)
            net.similarity.evaluate = meta_net(model.similarity_dim)
            return net

        model = cast(NodeSettings, settings.model)
        super().__init__(settings, device, partial(make, model))
        exact = model.model_copy(update={"precision": "fp32"})  # a difference is taken
        self.aheads = [make(exact, group).to(device) for group in self.groups.groups]
        self.meta_learners = [
            Learner(_evaluate(net), self.method.meta_lr, float("inf"), 0.0) for net in self.nets
        ]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs again."""
        self._is_meta[torch.from_numpy(self.meta_rows(train))] = True
        self._epoch = epoch
        return super().fit_epoch(train, epoch)

    def epoch_outputs(self) -> EpochOutputs:
        """Return the divisions, and which pairs are the meta set, by which none is judged."""
        found = super().epoch_outputs()
        return {name: {**tensors, TAUGHT: self._is_meta} for name, tensors in found.items()}

    def state_dict(self) -> State:
        """Return networks, statistics and all optimisers of both peers."""
        state = super().state_dict()
        own = self.groups.for_each_peer(lambda peer: self.meta_learners[peer].optimiser_state())
        for name, held in zip(PEERS, own, strict=True):
            state[TRAINING] |= add_prefix(f"{name}.{_META_OPTIMISER}", held)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            for name, learner in zip(PEERS, self.meta_learners, strict=True):
                learner.load_optimiser(select_prefix(state[TRAINING], f"{name}.{_META_OPTIMISER}"))

    def meta_rows(self, train: PairSet) -> Rows:
        """Return the matching pairs of the meta set, the same in every epoch."""
        matched = stream(self.train.seed, _META).permutation(train.matched_rows())
        return np.sort(matched[: max(_FEWEST_META, int(self.method.meta_share * len(train)))])

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Learn all pairs but the meta set, in batches of twice the size, with mean negatives."""
        self.begin(epoch, peer, 1.0)
        net, margin, seed = self.nets[peer], self.method.margin, self.train.seed
        pairs = np.setdiff1d(np.arange(len(train)), self.meta_rows(train))
        batches = cut(pairs, 2 * self.train.batch, stream(seed, epoch, peer, CLEAN))

        def loss(rows: Rows) -> Loss:
            return full_margin_loss(net.score_batch(train.batch(rows)), margin).sum()

        return {
            "loss": take_steps(self.learners[peer], batches, loss, epoch, PEERS[peer], "warm-up")
        }

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Learn the pairs that the other peer calls clean, the meta net beforehand."""
        since, name, seed = epoch - self.train.warmup_epochs, PEERS[peer], self.train.seed
        learner = self.learners[peer]
        if not since:
            learner.restart()
        factor = stepped_rate(since, self.train.lr_drop_epoch, _LR_DECAY)
        self.begin(epoch, peer, factor)
        self.meta_learners[peer].set_rate(factor)
        kept, meta = self.teacher(peer).division, self.meta_rows(train)
        is_learned = kept.is_clean.copy()
        is_learned[meta] = False
        require_clean(Division(kept.clean_prob, is_learned))
        batches = cut(
            np.flatnonzero(is_learned), self.train.batch, stream(seed, epoch, peer, CLEAN)
        )
        draw = stream(seed, epoch, peer, _META)
        asked = draw_meta_pairs(train, meta, draw)
        places = cycle_batches(np.arange(len(asked.labels)), self.train.batch, draw)
        losses = []
        for number, rows in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, rows)
            meta_loss = self._correct(train, step, peer, asked[next(places)])
            similarity = self.nets[peer].score_batch(train.batch(rows))
            loss = self._loss(similarity, since)
            with held(_evaluate(self.nets[peer])):
                losses.append((learner.step(loss, step), meta_loss))
        mean, meta_mean = mean_losses(losses)
        return {"loss": mean, "meta_loss": meta_mean}

    def _loss(self, similarity: Block, since: int) -> Loss:
        """Return the loss of clean pairs, from whose margins nothing is learned."""
        margins = meta_margins(similarity.detach().diagonal(), self.method.margin)
        triplet = triplet_hardest if since >= self.method.mean_epochs else triplet_mean
        return triplet(similarity, margins).sum()

    def _correct(self, train: PairSet, step: Step, peer: int, asked: MetaPairs) -> float:
        """Take a step of the meta net alone, down the meta loss one step ahead; return that."""
        net, ahead, learner = self.nets[peer], self.aheads[peer], self.learners[peer]
        batch, since = train.batch(step.pair_index), step.epoch - self.train.warmup_epochs

        def codes() -> tuple[ImageCodes, CaptionCodes]:
            seed_torch(self.train.seed, len(PEERS) + peer, step.epoch, step.batch)  # one dropout
            captions = ahead.encode_captions(batch.tokens, batch.lengths)
            return ahead.encode_images(batch.regions), captions

        def meta_loss() -> Loss:
            labels = torch.from_numpy(asked.labels).to(self.device, torch.float32)
            logits = score_meta_pairs(ahead, train, asked)
            return functional.binary_cross_entropy_with_logits(logits, labels)

        lr = learner.optimiser.param_groups[0]["lr"]
        loss = partial(self._loss, since=since)
        value, gradients = meta_gradients((net, ahead), lr, codes, loss, meta_loss)
        parts = zip(_evaluate(net).parameters(), gradients, strict=True)
        slope = torch.stack([(own * gradient).sum() for own, gradient in parts]).sum()
        return self.meta_learners[peer].step(value + slope - slope.detach(), step)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of betas, begun as those of the meta set."""
        draw = stream(self.train.seed, self._epoch, peer, _META)
        asked = draw_meta_pairs(train, self.meta_rows(train), draw)
        own = MetaPairs(train.image_of, np.arange(len(train)), np.ones(len(train)))
        losses, known = (self._losses(train, peer, pairs) for pairs in (own, asked))
        return DividedPairs(losses, divide_by_known(losses, known, asked.labels))

    def _losses(self, train: PairSet, peer: int, pairs: MetaPairs) -> PairValues:
        """Return one less the similarity of pairs, in evaluation mode."""
        net, blocks = self.nets[peer], cut(np.arange(len(pairs.labels)), BLOCK)
        net.eval()
        with torch.inference_mode():
            logits = [
                score_meta_pairs(net, train, pairs[rows])
                for rows in bar(blocks, f"divide {PEERS[peer]}", len(blocks))
            ]
        losses: np.ndarray = torch.cat(logits).float().neg().sigmoid().cpu().numpy()
        return losses


def meta_net(width: int) -> nn.Sequential:
    """Build what makes a logit of the vector of a pair."""
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def meta_margins(similarity: PerPair, margin: float) -> PerPair:
    r"""Return the margins of pairs by their similarities :math:`p`, in [0, 1].

    .. math:: \hat\alpha = \frac{p^2}{p^2 + (1 - p)^2}\,\alpha
    """
    squares, others = similarity.square(), (1 - similarity).square()
    return squares / (squares + others) * margin


def draw_meta_pairs(train: PairSet, rows: Rows, generator: np.random.Generator) -> MetaPairs:
    """Put beside matching pairs as many random captions, each with a random image but its own."""
    captions = generator.choice(len(train), len(rows), replace=False)
    away = generator.integers(1, train.images, len(rows))
    images = (train.image_of[captions] + away) % train.images
    labels = np.repeat([1.0, 0.0], len(rows))
    return MetaPairs(np.append(train.image_of[rows], images), np.append(rows, captions), labels)


def score_meta_pairs(
    net: MatchingNetwork, train: PairSet, pairs: MetaPairs
) -> Float[Tensor, " pairs"]:
    """Return the logit of each image with its caption."""
    images = net.encode_images(train.image_batch(pairs.images))
    captions = net.encode_captions(*train.caption_batch(pairs.captions))
    return cast(Similarity, net.similarity).score_own(images, captions)


@torch.no_grad()
def vectors(
    similarity: Similarity, images: ImageCodes, captions: CaptionCodes
) -> Float[Tensor, "images captions node"]:
    """Return the vector of each pair of a block that its logit is made of."""
    found: list[Tensor] = []
    hook = similarity.evaluate.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    group, similarity.group = similarity.group, ALONE  # all of the block on each rank
    try:
        similarity(images, captions)
    finally:
        hook.remove()
        similarity.group = group
    order = torch.argsort(captions.lengths, stable=True)
    return torch.cat(found, 1)[:, torch.argsort(order).to(found[0].device)]


def meta_gradients(
    nets: tuple[MatchingNetwork, MatchingNetwork],
    lr: float,
    encode: Callable[[], tuple[ImageCodes, CaptionCodes]],
    loss: Callable[[Tensor], Tensor],
    meta_loss: Callable[[], Tensor],
) -> tuple[Loss, list[Tensor]]:
    r"""Return the meta loss one step ahead, and its gradient by the weights of the meta net.

    .. math::
        \nabla_\Theta M(W - \eta \nabla_W L, \Theta) = \partial_\Theta M
        - \eta\, \partial_\Theta \sum_{ij} \frac{\partial L}{\partial v_{ij}} \dot v_{ij},
        \quad \dot v = \frac{v(W + \epsilon m) - v(W - \epsilon m)}{2 \epsilon},
        \ m = \partial_W M

    The meta net makes similarities of the vectors :math:`v` of pairs. A difference of these, which
    have no jumps, is smooth where one of gradients is not: the loss, and the meta net, have kinks.

    Args:
        nets: The network, which stays as it is, and one built alike, which takes the step.
        lr: :math:`\eta`.
        encode: Encodes the pairs of :math:`L` by the second network, with the same dropout.
        loss: Returns :math:`L` by similarities.
        meta_loss: Returns :math:`M` of the second network.
    """
    net, ahead = nets
    ahead.load_state_dict(net.state_dict())
    ahead.train()
    ahead.similarity.few_active = net.similarity.few_active
    start, moving = (
        [own for name, own in each.named_parameters() if not name.startswith(_HEAD)]
        for each in nets
    )
    head, group = _evaluate(ahead), ahead.similarity.group
    similarity = ahead.score(*encode())
    scores = similarity.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(loss(scores), scores)
    ahead.zero_grad()
    similarity.backward(slopes)  # type: ignore[no-untyped-call]
    group.sum_gradients(ahead.shared_parameters())
    _move(moving, start, [_gradient(own) for own in moving], -lr)
    value = meta_loss()
    ahead.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    uphill, direct = ([_gradient(own) for own in each] for each in (moving, head.parameters()))
    length = torch.stack([own.norm() for own in uphill]).norm().clamp(min=_TINY)
    ends = []
    for way in (_SHIFT, -_SHIFT):
        _move(moving, start, uphill, way / length)
        ends.append(vectors(cast(Similarity, ahead.similarity), *encode()))
    middle, along = (ends[0] + ends[1]) / 2, (ends[0] - ends[1]) * (length / (2 * _SHIFT))
    middle.requires_grad_()
    plane = (slopes * head(middle).squeeze(-1).sigmoid()).sum()
    (steep,) = torch.autograd.grad(plane, middle, create_graph=True)
    through = torch.autograd.grad(
        (steep * along).sum(), list(head.parameters()), materialize_grads=True
    )
    return value.detach(), [own - lr * other for own, other in zip(direct, through, strict=True)]


def divide_by_known(
    losses: PairValues, known: Float[np.ndarray, " known"], labels: Float[np.ndarray, " known"]
) -> Division:
    """Divide pairs by a mixture of two betas, begun as those of pairs that are known.

    Args:
        losses: One less the similarity of each pair.
        known: The same of pairs that are known.
        labels: 1 where these match, else 0.
    """
    scaled(losses)  # refuses losses that are not finite, or all the same
    inside, own = (
        np.clip(values.astype(np.float64), _EDGE, 1 - _EDGE) for values in (losses, known)
    )
    shapes = np.array([moments(own[labels == label]) for label in (1, 0)])
    return by_posterior(posterior_from(inside, shapes), losses)


@contextmanager
def held(module: nn.Module) -> Iterator[None]:
    """Keep a module as it is while others take a step: its gradients are dropped."""

    def drop(parameter: Tensor) -> None:
        parameter.grad = None

    hooks = [
        own.register_post_accumulate_grad_hook(drop)  # type: ignore[no-untyped-call]
        for own in module.parameters()
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _evaluate(net: MatchingNetwork) -> nn.Module:
    return cast(nn.Module, net.similarity.evaluate)


@torch.no_grad()
def _move(
    moving: Sequence[Tensor], start: Sequence[Tensor], way: Sequence[Tensor], by: float | Tensor
) -> None:
    """Put parameters ``by`` times a way from where they started."""
    for own, origin, direction in zip(moving, start, way, strict=True):
        own.copy_(origin + by * direction)


def _gradient(parameter: Tensor) -> Tensor:
    found = parameter.grad
    return torch.zeros_like(parameter) if found is None else found.clone()
