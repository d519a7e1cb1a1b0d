"""L2RM: rematching of noisy pairs by optimal transport (Han et al., CVPR 2024)."""

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
from pc2_baseline.modules.learner import Learner, Step, add_prefix, rate, select_prefix
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State

COST_LR = 2e-6
"""Learning rate of the cost function; it drops with ``train.lr``."""
COST_SHARE = 0.1
"""Maximum share of a clean batch in a step of the cost function."""
MASS = 0.1
"""Rho: share of the mass of a noisy batch that is rematched."""
_COST = "cost_function"
_COST_STREAM = 3
_FLOOR = 1e-10
_ITERATIONS = 1000
_TOLERANCE = 1e-6


class L2rmSettings(TripletSettings, DivisionSettings, SoftmaxSettings):
    """L2RM (Han et al., CVPR 2024): rematching of noisy pairs by partial optimal transport."""

    regularisation: PositiveFloat = Field(
        0.07,
        description="Entropic regularisation of the transport, in units of cost; Flickr30K: 0.01.",
    )
    mask_diagonal: bool = Field(
        default=True,
        description="Forbid to rematch an image with its own caption; false if most noisy pairs may"
        " be matched (CC152K in the released code).",
    )


class L2rm(OneNetwork[L2rmSettings]):
    """One network: clean pairs learn with triplets, noisy ones with a plan that rematches them.

    The warm-up learns all pairs with a symmetric cross-entropy. Every epoch ends with one
    evaluation pass; a beta mixture divides the pairs by their mean-negative triplet losses. After
    the warm-up each step has a clean and a noisy batch. First a step of the cost function lowers
    the costs of some clean pairs. Then the network takes a step down the clean batch's triplet loss
    plus the divergence between the noisy batch's matches and its optimal plan.

    Source:
        L2RM (Han et al., CVPR 2024) and its code.

    Differs:
        The authors' code mixes the clean images that train the cost function with a noisy batch; a
        cost depends only on its own row of similarities, so here only these rows are computed. It
        drops smaller batches, which are kept here, and lowers the learning rate to a tenth after
        every ``train.lr_drop_epoch`` epochs. For its mixture see
        :mod:`~pc2_baseline.modules.division`.
    """

    section = L2rmSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        largest = max(3, self.train.batch)  # batches of two may get a third pair
        self.cost = CostFunction(largest).to(device)
        self.cost_learner = Learner(self.cost, COST_LR, float("inf"), 0.0)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs by their mean-negative triplet losses."""
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
        """Load a state, or only its network."""
        super().load_state_dict(state)
        if TRAINING in state:
            cost = select_prefix(state[TRAINING], _COST)
            self.cost_learner.load_network({key: cost[key] for key in cost if "/" not in key})
            self.cost_learner.load_optimiser(cost)

    def _warm_up(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch of the warm-up; return the mean loss of a batch."""
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(similarity: Block) -> Loss:
            return symmetric_cross_entropy(similarity, self.method.temperature).mean()

        return self.take_steps(train, batches, loss, epoch)

    def _rematch(self, train: PairSet, epoch: int) -> float:
        """Train for an epoch after the warm-up; return the mean loss of a batch."""
        division = read_statistics(DividedPairs, self.statistics).division
        require_clean(division)
        hardest = epoch >= self.train.warmup_epochs + self.method.mean_epochs
        triplet = triplet_hardest if hardest else triplet_mean
        generator = stream(self.train.seed, epoch, 0, _COST_STREAM)
        size, seed = self.train.batch, self.train.seed
        batches = mixed_batches(division.clean, [division.noisy], size, seed, epoch, 0)
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
        """Return the divergence between the matches of noisy pairs and their optimal plan."""
        similarity = self.net.score_batch(train.batch(noisy))
        with torch.no_grad():
            cost = self.cost(similarity)
            diagonal = torch.eye(len(noisy), dtype=torch.bool, device=cost.device)
            allowed = ~diagonal if self.method.mask_diagonal else None
            plan = partial_plan(cost, MASS, self.method.regularisation, allowed)
        return rematching(similarity, plan, self.method.temperature).mean()

    def _learn_cost(
        self, train: PairSet, clean: Rows, epoch: int, generator: np.random.Generator
    ) -> None:
        """Take a step of the cost function down the costs of some clean pairs."""
        limit = max(1, int(COST_SHARE * len(clean)))
        places = generator.permutation(len(clean))[: generator.integers(1, limit, endpoint=True)]
        self.net.eval()
        with torch.no_grad():
            similarity = self.net.score(
                self.net.encode_images(train.image_batch(train.image_of[clean[places]])),
                self.net.encode_captions(*train.caption_batch(clean)),
            )
        self.net.train()
        columns = torch.from_numpy(places).to(similarity.device)[:, None]
        costs = self.cost(similarity).gather(1, columns)
        self.cost_learner.step(costs.sum(), Step(epoch, 0, None, clean[places]))


def sinkhorn(
    cost: Float[Tensor, "rows columns"],
    row_mass: Float[Tensor, " rows"],
    column_mass: Float[Tensor, " columns"],
    regularisation: float,
    allowed: Bool[Tensor, "rows columns"] | None = None,
) -> Float[Tensor, "rows columns"]:
    r"""Solve optimal transport with entropic regularisation by Sinkhorn iterations.

    .. math::
        \min_\pi \sum_{ij} \pi_{ij} C_{ij} + \varepsilon \sum_{ij} \pi_{ij} \log \pi_{ij},
        \quad \pi 1 = p,\ \pi^\top 1 = q

    The iterations use logarithms in float64, so that a small ``regularisation`` does not underflow.

    Args:
        cost: Cost of each cell.
        row_mass: :math:`p`, above 0.
        column_mass: :math:`q`, above 0, with the same sum as :math:`p`.
        regularisation: :math:`\varepsilon`, in units of cost.
        allowed: Cells that may have mass, at least one in each row and column; default: all.

    Returns:
        The plan, in float64. Its columns have exactly their masses. Over its rows the error is at
        most 1e-6 in total, unless 1000 iterations are not enough.

    Source:
        Cuturi, NeurIPS 2013; on logarithms Peyré and Cuturi, Computational Optimal Transport, 4.4.
    """
    p, q = row_mass.double(), column_mass.double()
    kernel = -cost.double() / regularisation
    if allowed is not None:
        kernel = kernel.masked_fill(~allowed, -torch.inf)
    u, v = torch.zeros_like(kernel[..., 0]), torch.zeros_like(kernel[..., 0, :])
    for _ in range(_ITERATIONS):
        before = u
        u = p.log() - (kernel + v[..., None, :]).logsumexp(-1)
        v = q.log() - (kernel + u[..., None]).logsumexp(-2)
        error = (p * (before - u).expm1().abs()).sum(-1)
        if bool((error <= _TOLERANCE).all()):
            break
    return (kernel + u[..., None] + v[..., None, :]).exp()


def partial_plan(
    cost: Float[Tensor, "images captions"],
    mass: float,
    regularisation: float,
    allowed: Bool[Tensor, "images captions"] | None = None,
) -> Float[Tensor, "images captions"]:
    r"""Return the plan that moves a share of the mass of the images to captions at the lowest cost.

    Each of n images has mass 1/n, each of m captions can receive 1/m. A dummy caption receives the
    mass that images keep, :math:`1 - \rho`, and a dummy image sends the mass that captions lack.
    The result is the plan of this complete transport without its last row and column.

    Args:
        cost: 0 or more.
        mass: :math:`\rho`, share of the mass to move, in (0, 1).
        regularisation: As for :func:`sinkhorn`.
        allowed: As for :func:`sinkhorn`.

    Returns:
        The plan. It sums to ``mass``, or slightly more if ``regularisation`` is not small relative
        to the highest cost.

    Source:
        L2RM (Han et al., CVPR 2024); dummies as in Chapel et al., NeurIPS 2020.

    Differs:
        In the authors' code a dummy costs :math:`\xi = 100 \max C`, and both dummies together
        :math:`2\xi + \max C`. A constant that is added to a row or column does not change the plan,
        so here these costs are 0 and :math:`\max C`: the same plan without large numbers.
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
    r"""Return the divergence between each pair's matches and a plan, the mean of both directions.

    .. math::
        \tfrac12 \sum_{\text{both ways}}
        \big[\mathrm{KL}(\hat\pi \| P) + \mathrm{KL}(P \| \hat\pi)\big]
        = \tfrac12 \sum_{\text{both ways}} \sum_j (\hat\pi_{ij} - P_{ij})
        (\log \hat\pi_{ij} - \log P_{ij})

    Args:
        similarity: Rows images, columns captions.
        plan: Mass moved from each image to each caption. With a floor of 1e-10, it is scaled to sum
            to 1 for each image, and in the other direction for each caption.
        temperature: As for :func:`~pc2_baseline.modules.contrastive.log_matches`, which gives P.
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

    Its initial value is :math:`\max(1 - S,\ 0)`.

    Differs:
        The authors drop smaller batches; here n captions use the first n rows and columns.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(-torch.eye(size))
        self.bias = nn.Parameter(torch.ones(size))

    def forward(
        self, similarity: Float[Tensor, "images captions"]
    ) -> Float[Tensor, "images captions"]:
        """Return the cost of each cell."""
        count = similarity.shape[1]
        weight, bias = self.weight[:count, :count], self.bias[:count]
        return functional.relu(functional.linear(similarity, weight, bias))
