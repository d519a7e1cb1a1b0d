"""Partial optimal transport between the images and the captions of a batch, as L2RM rematches."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from pc2_baseline.modules.contrastive import log_matches

_FLOOR = 1e-10
_ITERATIONS = 1000


def sinkhorn(
    cost: Float[Tensor, "*batches rows columns"],
    row_mass: Float[Tensor, " rows"],
    column_mass: Float[Tensor, " columns"],
    regularisation: float,
    allowed: Bool[Tensor, "rows columns"] | None = None,
    tolerance: float = 1e-6,
) -> Float[Tensor, "*batches rows columns"]:
    r"""Solve optimal transport with entropic regularisation by Sinkhorn's iterations.

    .. math::
        \min_\pi \sum_{ij} \pi_{ij} C_{ij} + \varepsilon \sum_{ij} \pi_{ij} \log \pi_{ij},
        \quad \pi 1 = p,\ \pi^\top 1 = q

    The iterations are done on logarithms and in float64, so that no small ``regularisation``
    underflows.

    Args:
        cost: One problem, or several at once.
        row_mass: :math:`p`, above 0.
        column_mass: :math:`q`, above 0, with the same sum.
        regularisation: :math:`\varepsilon`, in units of cost.
        allowed: Cells that may hold mass; the others are 0 in the plan. Default: all.
        tolerance: Stop where the masses of the rows of no plan are off by more, in sum,
            or after 1000 iterations.

    Returns:
        The plans, in float64. The masses of their columns are exact, those of their rows are to
        the tolerance where it was reached.

    Raises:
        ValueError: If the masses differ in sum, or a row or column may hold none.

    Source:
        Cuturi, NeurIPS 2013; on logarithms Peyré and Cuturi, Computational Optimal Transport, 4.4.
    """
    p, q = row_mass.double(), column_mass.double()
    if not torch.isclose(p.sum(), q.sum()):
        raise ValueError(f"masses of rows {p.sum():.6g}, of columns {q.sum():.6g}: not the same")
    kernel = -cost.double() / regularisation
    if allowed is not None:
        if not (allowed.any(0).all() and allowed.any(1).all()):
            raise ValueError("a row or column with no allowed cell, expected one in each at least")
        kernel = kernel.masked_fill(~allowed, -torch.inf)
    of_rows, of_columns = torch.zeros_like(kernel[..., 0]), torch.zeros_like(kernel[..., 0, :])
    for _ in range(_ITERATIONS):
        before = of_rows
        of_rows = p.log() - (kernel + of_columns[..., None, :]).logsumexp(-1)
        of_columns = q.log() - (kernel + of_rows[..., None]).logsumexp(-2)
        off = (p * (before - of_rows).expm1().abs()).sum(-1)
        if bool((off <= tolerance).all()):
            break
    return (kernel + of_rows[..., None] + of_columns[..., None, :]).exp()


def partial_plan(
    cost: Float[Tensor, "*batches images captions"],
    mass: float,
    regularisation: float,
    allowed: Bool[Tensor, "images captions"] | None = None,
) -> Float[Tensor, "*batches images captions"]:
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
        both meet. What a whole row or column costs more changes no plan, so here a dummy costs
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


def rematching(
    similarity: Float[Tensor, "batch batch"], plan: Float[Tensor, "batch batch"], temperature: float
) -> Float[Tensor, " batch"]:
    r"""Divergence of each image's and each caption's matches from a plan, the mean of both KL.

    .. math::
        \tfrac12 \sum_{\text{both ways}}
        \big[\mathrm{KL}(\hat\pi \| P) + \mathrm{KL}(P \| \hat\pi)\big]
        = \tfrac12 \sum_{\text{both ways}} \sum_j (\hat\pi_{ij} - P_{ij})
        (\log \hat\pi_{ij} - \log P_{ij})

    Args:
        similarity: Rows images, columns captions.
        plan: What is moved from which image to which caption; scaled here to sum to 1 for each
            image, and for each caption the other way, with a floor of 1e-10 before that.
        temperature: As for :func:`~pc2_baseline.modules.contrastive.log_matches`, which makes P.

    Source:
        L2RM (Han et al., CVPR 2024).
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

    Args:
        size: Largest number of captions.

    Source:
        L2RM (Han et al., CVPR 2024) and its code.

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
