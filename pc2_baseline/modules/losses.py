"""Losses as pure functions: triplets with a margin per query, soft margin, pseudo-classes."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from pc2_baseline.networks.encoders import Block, Loss, PerPair

MarginAxis = Literal["query", "image", "caption"]


def soft_margin(correspondence: PerPair, margin: float, base: float = 10.0) -> PerPair:
    r"""Shrink the triplet margin of a pair by how little its halves correspond.

    .. math:: \hat\alpha_i = \frac{m^{\hat y_i} - 1}{m - 1}\,\alpha

    Args:
        correspondence: :math:`\hat y`, the estimated correspondence, in [0, 1].
        margin: :math:`\alpha`, in units of similarity.
        base: :math:`m > 1`; a larger base forgives half-certain pairs less.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 5 and 8; NCR (Huang et al., NeurIPS 2021).
    """
    return (base**correspondence - 1) / (base - 1) * margin


def triplet_costs(
    similarity: Block,
    margins: PerPair,
    negatives: Bool[Tensor, "batch batch"] | None = None,
    axis: MarginAxis = "query",
) -> tuple[Block, Block]:
    r"""Hinge costs of both directions, each with the margin of the query.

    .. math::
        c^{i2t}_{ij} = [m_i + S_{ij} - S_{ii}]_+ \quad
        c^{t2i}_{ij} = [m_j + S_{ij} - S_{jj}]_+

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        margins: :math:`m`, margin of each pair.
        negatives: Which caption (column) is a negative of which image (row), and the reverse;
            default: every other pair.
        axis: Pair whose margin a cell has: the query, or in both directions the image or caption.

    Returns:
        Costs to be reduced over columns (i2t) and over rows (t2i).
    """
    positive = similarity.diagonal()
    of_image, of_caption = margins[:, None], margins[None]
    i2t_margins = of_caption if axis == "caption" else of_image
    t2i_margins = of_image if axis == "image" else of_caption
    i2t = functional.relu(i2t_margins + similarity - positive[:, None])
    t2i = functional.relu(t2i_margins + similarity - positive[None])
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    free = own if negatives is None else ~negatives
    return i2t.masked_fill(free, 0.0), t2i.masked_fill(free, 0.0)


def triplet_mean(
    similarity: Block,
    margins: PerPair,
    negatives: Bool[Tensor, "batch batch"] | None = None,
    axis: MarginAxis = "query",
) -> PerPair:
    """Triplet loss of each pair, its negatives averaged: the warm-up and the dividing statistic.

    The arguments are those of :func:`triplet_costs`.

    Source:
        NCR (Huang et al., NeurIPS 2021); the mean counts the pair itself, with cost zero.
    """
    i2t, t2i = triplet_costs(similarity, margins, negatives, axis)
    return i2t.mean(1) + t2i.mean(0)


def triplet_hardest(
    similarity: Block,
    margins: PerPair,
    negatives: Bool[Tensor, "batch batch"] | None = None,
    axis: MarginAxis = "query",
) -> PerPair:
    """Triplet loss of each pair against its hardest negative in each direction.

    The arguments are those of :func:`triplet_costs`.

    Source:
        VSE++ (Faghri et al., BMVC 2018); with soft margins NCR and PC2, eq. 5.
    """
    i2t, t2i = triplet_costs(similarity, margins, negatives, axis)
    return i2t.amax(1) + t2i.amax(0)


def relatively_likeliest(logits: Float[Tensor, "batch classes"]) -> Int[Tensor, " batch"]:
    """Choose for each prediction the pseudo-class that it favours most against its batch.

    A class that all predictions favour alike tells nothing of any of them; here it counts for
    nothing, so that a classifier that starts with one such class still tells captions apart.

    Differs:
        Not in PC2; the centring is DINO's (Caron et al., ICCV 2021).
    """
    predictions = logits.log_softmax(1)
    mean = predictions.logsumexp(0)  # of probabilities, but for a constant; finite
    return (predictions - mean).argmax(1)


def pseudo_class_loss(
    image_logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]
) -> Loss:
    """Cross-entropy of the images' predictions with the pseudo-classes of their captions."""
    return functional.cross_entropy(image_logits, target)


def batch_entropy(predictions: Float[Tensor, "batch classes"]) -> Loss:
    r"""Entropy :math:`H(\bar p)` of the mean prediction of a batch, in nats; to be *maximised*.

    Source:
        SCAN (Van Gansbeke et al., ECCV 2020), which PC2 cites for L^ent.

    Differs:
        PC2 adds +λ·H to a loss that is minimised, which would collapse all images into one class;
        the authors' code maximises each image's own entropy, which keeps predictions near uniform.
    """
    mean = predictions.mean(0)
    return -torch.xlogy(mean, mean).sum()


def mean_entropy(
    image_logits: Float[Tensor, "batch classes"], caption_logits: Float[Tensor, "batch classes"]
) -> Loss:
    """Average the entropies :func:`batch_entropy` of the images and of the captions of a batch."""
    images, captions = (batch_entropy(own.softmax(1)) for own in (image_logits, caption_logits))
    return (images + captions) / 2
