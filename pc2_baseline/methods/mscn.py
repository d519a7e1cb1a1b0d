"""MSCN: meta similarity correction network (Han et al., CVPR 2023)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
_META = 3  # last number in the names of streams
_META_OPTIMISER = "meta_optimiser"
_SHIFT = 1e-3
_TINY = 1e-12


class MscnSettings(TripletSettings):
    """MSCN (Han et al., CVPR 2023): a meta net trained on pairs that are known to match."""

    meta_share: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.02,
        description="Maximum share of the training pairs in the meta set. Its pairs are drawn from "
        "those that data.truth or data.noise_file calls matched, and are not learned otherwise.",
    )
    meta_lr: NonNegativeFloat = Field(
        17e-6, description="Learning rate of the meta net (the last layer) after the warm-up."
    )

    @property
    def takes_matched(self) -> str:
        """Use of pairs that are known to match, for a message."""
        return "method mscn: takes its meta set from"


@dataclass(frozen=True, slots=True)
class MetaPairs:
    """Rows of images and of captions, and labels: 1 for matches, 0 for mismatches."""

    images: Int[np.ndarray, " pairs"]
    captions: Int[np.ndarray, " pairs"]
    labels: PairValues

    def __getitem__(self, places: Rows) -> "MetaPairs":
        """Return a subset."""
        return MetaPairs(self.images[places], self.captions[places], self.labels[places])


class Mscn(CoTaught):
    r"""Two co-taught peers; a meta set corrects a small network that is their last layer.

    The meta net :math:`\Theta` computes the similarity of a pair from its vector in SGR or SAF. The
    meta set has pairs that are known to match, and the same number of random mismatches, drawn in
    each epoch. The warm-up learns all other pairs. After it, a peer learns the pairs that the other
    calls clean, with the margins of :func:`meta_margins`. Before each such step the meta net takes
    one, down the cross-entropy of the meta set with the network :math:`W` as it would be after the
    step:

    .. math::
        \hat W(\Theta) = W - \eta \nabla_W L(W, \Theta),\quad
        \Theta \leftarrow \Theta - \nabla_\Theta \mathrm{BCE}(\hat W(\Theta), \Theta)

    A mixture of two beta distributions divides the pairs by their similarities. It starts from the
    distributions of the meta set's matches and mismatches. Noisy pairs are left out.

    Attributes:
        statistics: Statistics of each peer; ``loss`` is one minus the similarity.

    Source:
        MSCN (Han et al., CVPR 2023) and its code, for the steps and the schedule.

    Differs:
        The authors' code differentiates through the step; here the mixed second derivative is a
        central difference along the meta gradient of :math:`W` (as in DARTS, Liu et al., ICLR
        2019), with the same dropout at both ends. The meta set comes from training pairs that a
        truth calls matched. In the warm-up one norm clips both parts. Margins in the code are those
        of the negative caption in one direction; here a margin is the query's. The second peer
        divides before it learns from the first's division, so peers can be trained in parallel.
        In the mixture, similarities are clipped to [0.001, 0.999]; the code only replaces 0 and 1.
        The clean component is the one with the higher mean similarity; in the code it is the one
        that started from the matches; see ``docs/departures.md``.
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
        exact = model.model_copy(update={"precision": "fp32"})  # for finite differences
        self.aheads = [make(exact, group).to(device) for group in self.groups.groups]
        self.meta_learners = [
            Learner(_meta_net(net), self.method.meta_lr, float("inf"), 0.0) for net in self.nets
        ]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs."""
        self._is_meta[torch.from_numpy(self.meta_rows(train))] = True
        self._epoch = epoch
        return super().fit_epoch(train, epoch)

    def epoch_outputs(self) -> EpochOutputs:
        """Return the divisions, and the meta set to exclude from their evaluation."""
        outputs = super().epoch_outputs()
        return {name: {**tensors, TAUGHT: self._is_meta} for name, tensors in outputs.items()}

    def state_dict(self) -> State:
        """Return networks, statistics and all optimisers of both peers."""
        state = super().state_dict()
        states = self.groups.for_each_peer(lambda peer: self.meta_learners[peer].optimiser_state())
        for name, tensors in zip(PEERS, states, strict=True):
            state[TRAINING] |= add_prefix(f"{name}.{_META_OPTIMISER}", tensors)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its networks."""
        super().load_state_dict(state)
        if TRAINING in state:
            for name, learner in zip(PEERS, self.meta_learners, strict=True):
                learner.load_optimiser(select_prefix(state[TRAINING], f"{name}.{_META_OPTIMISER}"))

    def meta_rows(self, train: PairSet) -> Rows:
        """Return the matched pairs of the meta set, the same in every epoch."""
        matched = stream(self.train.seed, _META).permutation(train.matched_rows())
        return np.sort(matched[: max(_FEWEST_META, int(self.method.meta_share * len(train)))])

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train on all pairs but the meta set, in batches of double size, with mean negatives."""
        self.begin(epoch, peer, 1.0)
        net, margin, seed = self.nets[peer], self.method.margin, self.train.seed
        pairs = np.setdiff1d(np.arange(len(train)), self.meta_rows(train))
        batches = cut(pairs, 2 * self.train.batch, stream(seed, epoch, peer, CLEAN))

        def loss(rows: Rows) -> Loss:
            return full_margin_loss(net.score_batch(train.batch(rows)), margin).sum()

        learner, name = self.learners[peer], PEERS[peer]
        return {"loss": take_steps(learner, batches, loss, epoch, name, "warm-up")}

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train on the other peer's clean pairs; before each step, correct the meta net."""
        since, name, seed = epoch - self.train.warmup_epochs, PEERS[peer], self.train.seed
        learner = self.learners[peer]
        if not since:
            learner.restart()
        factor = stepped_rate(since, self.train.lr_drop_epoch, _LR_DECAY)
        self.begin(epoch, peer, factor)
        self.meta_learners[peer].set_rate(factor)
        division, meta_rows = self.teacher(peer).division, self.meta_rows(train)
        is_learned = division.is_clean.copy()
        is_learned[meta_rows] = False
        require_clean(Division(division.clean_prob, is_learned))
        learned, size = np.flatnonzero(is_learned), self.train.batch
        batches = cut(learned, size, stream(seed, epoch, peer, CLEAN))
        draw = stream(seed, epoch, peer, _META)
        meta_pairs = draw_meta_pairs(train, meta_rows, draw)
        places = cycle_batches(np.arange(len(meta_pairs.labels)), size, draw)
        losses = []
        for number, rows in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, rows)
            meta_loss = self._correct(train, step, peer, meta_pairs[next(places)])
            similarity = self.nets[peer].score_batch(train.batch(rows))
            loss = self._loss(similarity, since)
            with without_gradients(_meta_net(self.nets[peer])):
                losses.append((learner.step(loss, step), meta_loss))
        mean, meta_mean = mean_losses(losses)
        return {"loss": mean, "meta_loss": meta_mean}

    def _loss(self, similarity: Block, since: int) -> Loss:
        """Return the loss of clean pairs; their margins have no gradient."""
        margins = meta_margins(similarity.detach().diagonal(), self.method.margin)
        triplet = triplet_hardest if since >= self.method.mean_epochs else triplet_mean
        return triplet(similarity, margins).sum()

    def _correct(self, train: PairSet, step: Step, peer: int, meta_pairs: MetaPairs) -> float:
        """Take a step of the meta net down the meta loss one step ahead; return this loss."""
        net, ahead, learner = self.nets[peer], self.aheads[peer], self.learners[peer]
        batch, since = train.batch(step.pair_index), step.epoch - self.train.warmup_epochs

        def codes() -> tuple[ImageCodes, CaptionCodes]:
            seed_torch(self.train.seed, len(PEERS) + peer, step.epoch, step.batch)  # same dropout
            captions = ahead.encode_captions(batch.tokens, batch.lengths)
            return ahead.encode_images(batch.regions), captions

        def meta_loss() -> Loss:
            labels = torch.from_numpy(meta_pairs.labels).to(self.device, torch.float32)
            logits = score_meta_pairs(ahead, train, meta_pairs)
            return functional.binary_cross_entropy_with_logits(logits, labels)

        lr = learner.optimiser.param_groups[0]["lr"]
        loss = partial(self._loss, since=since)
        value, gradients = meta_gradients((net, ahead), lr, codes, loss, meta_loss)
        both = zip(_meta_net(net).parameters(), gradients, strict=True)
        slope = torch.stack([(weight * gradient).sum() for weight, gradient in both]).sum()
        return self.meta_learners[peer].step(value + slope - slope.detach(), step)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of betas that starts from those of the meta set."""
        draw = stream(self.train.seed, self._epoch, peer, _META)
        meta_pairs = draw_meta_pairs(train, self.meta_rows(train), draw)
        all_pairs = MetaPairs(train.image_of, np.arange(len(train)), np.ones(len(train)))
        losses, meta = (self._distances(train, peer, pairs) for pairs in (all_pairs, meta_pairs))
        return DividedPairs(losses, divide_by_known(losses, meta, meta_pairs.labels))

    def _distances(self, train: PairSet, peer: int, pairs: MetaPairs) -> PairValues:
        """Return one minus the similarity of each pair, in evaluation mode."""
        net, blocks = self.nets[peer], cut(np.arange(len(pairs.labels)), BLOCK)
        net.eval()
        with torch.inference_mode():
            logits = [
                score_meta_pairs(net, train, pairs[rows])
                for rows in bar(blocks, f"divide {PEERS[peer]}", len(blocks))
            ]
        distances: np.ndarray = torch.cat(logits).float().neg().sigmoid().cpu().numpy()
        return distances


def meta_net(width: int) -> nn.Sequential:
    """Build the network that computes the logit of a pair from its vector."""
    return nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def meta_margins(similarity: PerPair, margin: float) -> PerPair:
    r"""Return the margins of pairs with similarities :math:`p`, in [0, 1].

    .. math:: \hat\alpha = \frac{p^2}{p^2 + (1 - p)^2}\,\alpha
    """
    squares, others = similarity.square(), (1 - similarity).square()
    return squares / (squares + others) * margin


def draw_meta_pairs(train: PairSet, rows: Rows, generator: np.random.Generator) -> MetaPairs:
    """Return matched pairs, then as many random captions, each with the image of another pair."""
    captions = generator.choice(len(train), len(rows), replace=False)
    offsets = generator.integers(1, train.images, len(rows))
    images = (train.image_of[captions] + offsets) % train.images
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
def pair_vectors(
    similarity: Similarity, images: ImageCodes, captions: CaptionCodes
) -> Float[Tensor, "images captions node"]:
    """Return the vector of each pair of a block: the input of the meta net."""
    chunks: list[Tensor] = []
    group, similarity.group = similarity.group, ALONE  # the complete block on each rank
    try:
        with similarity.evaluate.register_forward_pre_hook(lambda _, args: chunks.append(args[0])):
            similarity(images, captions)
    finally:
        similarity.group = group
    order = torch.argsort(captions.lengths, stable=True)
    return torch.cat(chunks, 1)[:, torch.argsort(order).to(chunks[0].device)]


def meta_gradients(
    nets: tuple[MatchingNetwork, MatchingNetwork],
    lr: float,
    encode: Callable[[], tuple[ImageCodes, CaptionCodes]],
    loss: Callable[[Tensor], Tensor],
    meta_loss: Callable[[], Tensor],
) -> tuple[Loss, list[Tensor]]:
    r"""Return the meta loss one step ahead and its gradient with respect to the meta net.

    .. math::
        \nabla_\Theta M(W - \eta \nabla_W L, \Theta) = \partial_\Theta M
        - \eta\, \partial_\Theta \sum_{ij} \frac{\partial L}{\partial v_{ij}} \dot v_{ij},
        \quad \dot v = \frac{v(W + \epsilon m) - v(W - \epsilon m)}{2 \epsilon},
        \ m = \partial_W M

    The meta net computes similarities from the vectors :math:`v` of pairs. The difference is taken
    of these vectors, which are smooth in :math:`W`; the gradients of the loss and of the meta net
    have jumps.

    Args:
        nets: Network, which does not change, and a second one, which takes the step.
        lr: :math:`\eta`.
        encode: Encodes the pairs of :math:`L` with the second network and the same dropout.
        loss: Returns :math:`L` from similarities.
        meta_loss: Returns :math:`M` of the second network.
    """
    net, ahead = nets
    ahead.load_state_dict(net.state_dict())
    ahead.train()
    ahead.similarity.few_active = net.similarity.few_active
    start, moving = (
        [weight for name, weight in each.named_parameters() if not name.startswith(_HEAD)]
        for each in nets
    )
    head, group = _meta_net(ahead), ahead.similarity.group
    similarity = ahead.score(*encode())
    scores = similarity.detach().requires_grad_()
    (slopes,) = torch.autograd.grad(loss(scores), scores)
    ahead.zero_grad()
    similarity.backward(slopes)  # type: ignore[no-untyped-call]
    group.sum_gradients(ahead.shared_parameters())
    _move(moving, start, [_gradient(weight) for weight in moving], -lr)
    value = meta_loss()
    ahead.zero_grad()
    value.backward()  # type: ignore[no-untyped-call]
    uphill, direct = ([_gradient(one) for one in each] for each in (moving, head.parameters()))
    length = torch.stack([gradient.norm() for gradient in uphill]).norm().clamp(min=_TINY)
    ends = []
    for shift in (_SHIFT, -_SHIFT):
        _move(moving, start, uphill, shift / length)
        ends.append(pair_vectors(cast(Similarity, ahead.similarity), *encode()))
    middle, along = (ends[0] + ends[1]) / 2, (ends[0] - ends[1]) * (length / (2 * _SHIFT))
    middle.requires_grad_()
    plane = (slopes * head(middle).squeeze(-1).sigmoid()).sum()
    (steep,) = torch.autograd.grad(plane, middle, create_graph=True)
    through = torch.autograd.grad(
        (steep * along).sum(), list(head.parameters()), materialize_grads=True
    )
    return value.detach(), [one - lr * other for one, other in zip(direct, through, strict=True)]


def divide_by_known(
    losses: PairValues, meta: Float[np.ndarray, " meta"], labels: Float[np.ndarray, " meta"]
) -> Division:
    """Divide pairs by a mixture of two betas that starts from those of the meta set.

    Args:
        losses: One minus the similarity of each pair.
        meta: One minus the similarity of each pair of the meta set.
        labels: 1 for matches of the meta set, 0 for mismatches.
    """
    scaled(losses)  # fails if losses are not finite, or all equal
    values, starts = (np.clip(part.astype(np.float64), _EDGE, 1 - _EDGE) for part in (losses, meta))
    shapes = np.array([moments(starts[labels == label]) for label in (1, 0)])
    return by_posterior(posterior_from(values, shapes), losses)


@contextmanager
def without_gradients(module: nn.Module) -> Iterator[None]:
    """Drop the gradients of a module, so that a step does not change it."""

    def drop(weight: Tensor) -> None:
        weight.grad = None

    with ExitStack() as hooks:
        for weight in module.parameters():
            hooks.enter_context(weight.register_post_accumulate_grad_hook(drop))  # type: ignore[no-untyped-call]
        yield


def _meta_net(net: MatchingNetwork) -> nn.Module:
    return cast(nn.Module, net.similarity.evaluate)


@torch.no_grad()
def _move(
    moving: Sequence[Tensor],
    start: Sequence[Tensor],
    direction: Sequence[Tensor],
    by: float | Tensor,
) -> None:
    """Set weights to their start plus ``by`` times a direction."""
    for weight, origin, step in zip(moving, start, direction, strict=True):
        weight.copy_(origin + by * step)


def _gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
