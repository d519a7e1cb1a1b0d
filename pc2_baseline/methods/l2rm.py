"""L2RM: mismatched pairs are rematched by optimal transport (Han et al., CVPR 2024)."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import DivisionSettings, SoftmaxSettings, TripletSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import log_matches, symmetric_cross_entropy
from pc2_baseline.modules.coteaching import (
    DividedPairs,
    Rows,
    dividing_batches,
    full_margin_loss,
    mixed_batches,
    pair_losses,
    read_statistics,
    warm_up_batches,
)
from pc2_baseline.modules.division import divide_by_beta, require_clean
from pc2_baseline.modules.learner import Learner, Step, add_prefix, rate, select_prefix, take_steps
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State

COST_SHARE = 0.1
"""Largest share of a clean batch that a step of the cost function takes."""
_COST = "cost_function"
_COST_STREAM = 3
_FLOOR = 1e-10
_ITERATIONS = 1000
_TOLERANCE = 1e-6


MASS = 0.1
"""Rho: share of a noisy batch that is rematched."""
COST_LR = 2e-6
"""Adam's learning rate of the cost function; it drops as ``train.lr`` does."""


class L2rmSettings(TripletSettings, DivisionSettings, SoftmaxSettings):
    """L2RM (Han et al., CVPR 2024): noisy pairs are rematched by partial optimal transport."""

    regularisation: PositiveFloat = Field(
        0.07,
        description="Entropic regularisation of the transport, in units of cost; Flickr30K: 0.01.",
    )
    mask_diagonal: bool = Field(
        default=True,
        description="Never rematch an image with the caption that it came with; false where most "
        "noisy pairs may be matched after all, as on CC152K in the released code.",
    )


class L2rm(OneNetwork[L2rmSettings]):
    """One network: clean pairs by triplets, noisy ones by the plan that rematches them.

    The warm-up learns all pairs by a symmetric cross-entropy. Every epoch ends with one evaluation
    pass, whose mean-negative triplet losses a beta mixture divides. After the warm-up each step
    takes a clean and a noisy batch: a small step of the cost function lowers the costs of some
    clean pairs; then the network takes one step down the clean batch's triplet loss and the
    divergence of the noisy batch's matches from the plan that the costs give.

    Source:
        L2RM (Han et al., CVPR 2024) and its code.

    Differs:
        The authors' code puts the clean images that teach the cost function among those of a noisy
        batch; a cost depends on its own row of similarities alone, so here only theirs are
        computed. Smaller batches are kept instead of dropped. It lowers the learning rate to a
        tenth again each time that ``train.lr_drop_epoch`` has passed. For its mixture see
        :mod:`~pc2_baseline.modules.division`.
    """

    section = L2rmSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        largest = max(3, self.train.batch)  # batches of two may take a third pair
        self.cost = CostFunction(largest).to(device)
        self.cost_learner = Learner(self.cost, COST_LR, float("inf"), 0.0)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew by their mean-negative triplet loss."""
        factor = rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch)
        self.begin(epoch, factor)
        self.cost_learner.set_rate(factor)
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._rematch
        loss = learn(train, epoch)
        if not self.train.evaluates(epoch):
            return {"loss": loss}
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        full = partial(full_margin_loss, margin=self.method.margin)
        losses = pair_losses(self.net, train, batches, full, "divide")
        self.statistics = DividedPairs(losses, divide_by_beta(losses)).to_tensors()
        return {"loss": loss, "clean": float(self.statistics["is_clean"].sum())}

    def state_dict(self) -> State:
        """Return the network, the optimisers, the cost function and the division."""
        state = super().state_dict()
        cost = self.cost_learner.network_state() | self.cost_learner.optimiser_state()
        return state | {TRAINING: state[TRAINING] | add_prefix(_COST, cost)}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its network alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            cost = select_prefix(state[TRAINING], _COST)
            self.cost_learner.load_network({key: cost[key] for key in cost if "/" not in key})
            self.cost_learner.load_optimiser(cost)

    def _warm_up(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch of the warm-up; return the mean loss of a batch."""
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(rows: Rows) -> Loss:
            similarity = self.net.score_batch(train.batch(rows))
            return symmetric_cross_entropy(similarity, self.method.temperature).mean()

        return take_steps(self.learner, batches, loss, epoch)

    def _rematch(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch after the warm-up; return the mean loss of a batch."""
        division = read_statistics(DividedPairs, self.statistics).division
        require_clean(division)
        hardest = epoch >= self.train.warmup_epochs + self.method.mean_epochs
        triplet = triplet_hardest if hardest else triplet_mean
        generator = stream(self.train.seed, epoch, 0, _COST_STREAM)
        kinds = division.clean, [division.noisy]
        batches = mixed_batches(*kinds, self.train.batch, self.train.seed, epoch, 0)
        losses = []
        for number, (clean, noisy) in enumerate(bar(batches, "train", len(batches))):
            self._learn_cost(train, clean, epoch, generator)
            similarity = self.net.score_batch(train.batch(clean))
            margins = similarity.new_full((len(clean),), self.method.margin)
            loss = triplet(similarity, margins).sum()
            if len(noisy) > 1:
                loss = loss + self._noisy_loss(train, noisy)
            step = Step(epoch, number, None, np.append(clean, noisy))
            losses.append(self.learner.step(loss, step))
        return float(np.mean(losses))

    def _noisy_loss(self, train: PairSet, noisy: Rows) -> Loss:
        """Compute how far the matches of noisy pairs are from the plan that rematches them."""
        similarity = self.net.score_batch(train.batch(noisy))
        with torch.no_grad():
            cost = self.cost(similarity)
            own = torch.eye(len(noisy), dtype=torch.bool, device=cost.device)
            allowed = ~own if self.method.mask_diagonal else None
            plan = partial_plan(cost, MASS, self.method.regularisation, allowed)
        return rematching(similarity, plan, self.method.temperature).mean()

    def _learn_cost(
        self, train: PairSet, clean: Rows, epoch: int, generator: np.random.Generator
    ) -> None:
        """Take a step of the cost function alone, down the costs of some clean pairs."""
        most = max(1, int(COST_SHARE * len(clean)))
        chosen = generator.permutation(len(clean))[: generator.integers(1, most, endpoint=True)]
        self.net.eval()
        with torch.no_grad():
            similarity = self.net.score(
                self.net.encode_images(train.image_batch(train.image_of[clean[chosen]])),
                self.net.encode_captions(*train.caption_batch(clean)),
            )
        self.net.train()
        own = torch.from_numpy(chosen).to(similarity.device)[:, None]
        costs = self.cost(similarity).gather(1, own)
        self.cost_learner.step(costs.sum(), Step(epoch, 0, None, clean[chosen]))


def sinkhorn(
    cost: Float[Tensor, "rows columns"],
    row_mass: Float[Tensor, " rows"],
    column_mass: Float[Tensor, " columns"],
    regularisation: float,
    allowed: Bool[Tensor, "rows columns"] | None = None,
) -> Float[Tensor, "rows columns"]:
    r"""Solve optimal transport with entropic regularisation by Sinkhorn's iterations.

    .. math::
        \min_\pi \sum_{ij} \pi_{ij} C_{ij} + \varepsilon \sum_{ij} \pi_{ij} \log \pi_{ij},
        \quad \pi 1 = p,\ \pi^\top 1 = q

    The iterations are done on logarithms and in float64, so that no small ``regularisation``
    underflows.

    Args:
        cost: Cost of each cell.
        row_mass: :math:`p`, above 0.
        column_mass: :math:`q`, above 0, with the same sum.
        regularisation: :math:`\varepsilon`, in units of cost.
        allowed: Cells that may hold mass, one at least in each row and column; the others are 0 in
            the plan. Default: all.

    Returns:
        The plan, in float64. The masses of its columns are exact, those of its rows are off by no
        more than 1e-6, in sum, unless 1000 iterations were not enough.

    Source:
        Cuturi, NeurIPS 2013; on logarithms Peyré and Cuturi, Computational Optimal Transport, 4.4.
    """
    p, q = row_mass.double(), column_mass.double()
    kernel = -cost.double() / regularisation
    if allowed is not None:
        kernel = kernel.masked_fill(~allowed, -torch.inf)
    of_rows, of_columns = torch.zeros_like(kernel[..., 0]), torch.zeros_like(kernel[..., 0, :])
    for _ in range(_ITERATIONS):
        before = of_rows
        of_rows = p.log() - (kernel + of_columns[..., None, :]).logsumexp(-1)
        of_columns = q.log() - (kernel + of_rows[..., None]).logsumexp(-2)
        off = (p * (before - of_rows).expm1().abs()).sum(-1)
        if bool((off <= _TOLERANCE).all()):
            break
    return (kernel + of_rows[..., None] + of_columns[..., None, :]).exp()


def partial_plan(
    cost: Float[Tensor, "images captions"],
    mass: float,
    regularisation: float,
    allowed: Bool[Tensor, "images captions"] | None = None,
) -> Float[Tensor, "images captions"]:
    r"""Move a share of the mass of the images to the captions at the lowest cost.

    Each of n images has 1/n of the mass and each of m captions takes 1/m. A dummy caption takes
    what the images keep, :math:`1 - \rho`, and a dummy image sends what the captions go without,
    so the plan is that of a whole transport without its last row and column.

    Args:
        cost: 0 or more.
        mass: :math:`\rho`, share of the mass that is moved, between 0 and 1.
        regularisation: As for :func:`sinkhorn`.
        allowed: As for :func:`sinkhorn`.

    Returns:
        The plan. It sums to ``mass``, and to a trace more where ``regularisation`` is not small
        against the highest cost.

    Source:
        L2RM (Han et al., CVPR 2024); dummies as in Chapel et al., NeurIPS 2020.

    Differs:
        In the authors' code a dummy costs :math:`\xi = 100 \max C`, and :math:`2\xi + \max C` where
        both meet. A constant added to a whole row or column changes no plan, so here a dummy costs
        nothing, and :math:`\max C` where both meet: the same plan without the large numbers.
    """
    images, captions = cost.shape[-2:]
    padded = functional.pad(cost.double(), (0, 1, 0, 1))
    padded[..., -1, -1] = cost.amax((-2, -1))
    kept = cost.new_tensor([1 - mass], dtype=torch.float64)
    masses = [torch.cat([kept.new_full((count,), 1 / count), kept]) for count in (images, captions)]
    if allowed is not None:
        allowed = functional.pad(allowed, (0, 1, 0, 1), value=True)
    plan = sinkhorn(padded, masses[0], masses[1], regularisation, allowed)
    return plan[..., :-1, :-1].to(cost.dtype)


def rematching(similarity: Block, plan: Block, temperature: float) -> PerPair:
    r"""Divergence of each image's and each caption's matches from a plan, the mean of both KL.

    .. math::
        \tfrac12 \sum_{\text{both ways}}
        \big[\mathrm{KL}(\hat\pi \| P) + \mathrm{KL}(P \| \hat\pi)\big]
        = \tfrac12 \sum_{\text{both ways}} \sum_j (\hat\pi_{ij} - P_{ij})
        (\log \hat\pi_{ij} - \log P_{ij})

    Args:
        similarity: Rows images, columns captions.
        plan: Mass that is moved from each image to each caption; scaled here to sum to 1 for each
            image, and for each caption the other way, with a floor of 1e-10 before that.
        temperature: As for :func:`~pc2_baseline.modules.contrastive.log_matches`, which makes P.
    """
    by_image, by_caption = log_matches(similarity, temperature)
    floored = plan.clamp(min=_FLOOR)
    gaps = []
    for axis, logs in ((1, by_image), (0, by_caption)):
        target = floored / floored.sum(axis, keepdim=True)
        gaps.append(((target - logs.exp()) * (target.log() - logs)).sum(axis))
    return (gaps[0] + gaps[1]) / 2


class CostFunction(nn.Module):
    r"""Learned cost of moving an image to a caption, from all similarities of the image.

    .. math:: C = \max(S W^\top + b,\ 0)

    It starts as :math:`1 - S`, cut at 0.

    Differs:
        The authors drop smaller batches; here one of n captions uses the first n rows and columns.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-torch.eye(size))
        self.bias = nn.Parameter(torch.ones(size))

    def forward(
        self, similarity: Float[Tensor, "images captions"]
    ) -> Float[Tensor, "images captions"]:
        """Compute the cost of each cell."""
        count = similarity.shape[1]
        weight, bias = self.weight[:count, :count], self.bias[:count]
        return functional.relu(functional.linear(similarity, weight, bias))
