"""Losses as pure functions: triplets with a margin for each query, soft margins, pseudo-classes."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from pc2_baseline.networks.encoders import Block, Loss, PerPair

MarginAxis = Literal["query", "image", "caption"]


def soft_margin(correspondence: PerPair, margin: float, base: float = 10.0) -> PerPair:
    r"""Shrink the triplet margin of each pair; the lower its correspondence, the smaller.

    .. math:: \hat\alpha_i = \frac{m^{\hat y_i} - 1}{m - 1}\,\alpha

    Args:
        correspondence: :math:`\hat y`, the estimated correspondence, in [0, 1].
        margin: :math:`\alpha`, in units of similarity.
        base: :math:`m > 1`; the larger, the smaller the margins of uncertain pairs.

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
        negatives: True where a caption (column) is a negative of an image (row), and the reverse;
            default: off the diagonal.
        axis: Source of a cell's margin: the query, or in both directions the image or the caption.

    Returns:
        Costs i2t, to reduce over columns, and costs t2i, to reduce over rows.
    """
    positive = similarity.diagonal()
    of_image, of_caption = margins[:, None], margins[None]
    i2t_margins = of_caption if axis == "caption" else of_image
    t2i_margins = of_image if axis == "image" else of_caption
    i2t = functional.relu(i2t_margins + similarity - positive[:, None])
    t2i = functional.relu(t2i_margins + similarity - positive[None])
    if negatives is None:
        negatives = ~torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    return i2t.masked_fill(~negatives, 0.0), t2i.masked_fill(~negatives, 0.0)


def triplet_mean(
    similarity: Block,
    margins: PerPair,
    negatives: Bool[Tensor, "batch batch"] | None = None,
    axis: MarginAxis = "query",
) -> PerPair:
    """Triplet loss of each pair, averaged over the batch in each direction.

    The arguments are those of :func:`triplet_costs`.

    Source:
        NCR (Huang et al., NeurIPS 2021); the mean includes the pair itself, with cost zero.
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
    """Choose for each row the pseudo-class with the highest probability relative to its batch.

    A class that has the same high probability in all rows is not chosen for all of them, so a
    classifier that starts with one dominant class still tells captions apart.

    Differs:
        Not in PC2; the centring is DINO's (Caron et al., ICCV 2021).
    """
    predictions = logits.log_softmax(1)
    mean = predictions.logsumexp(0)  # log of the mean probability, plus a constant
    return (predictions - mean).argmax(1)


def pseudo_class_loss(
    image_logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"]
) -> Loss:
    """Cross-entropy between the images' predictions and the pseudo-classes of their captions."""
    return functional.cross_entropy(image_logits, target)


def batch_entropy(predictions: Float[Tensor, "batch classes"]) -> Loss:
    r"""Entropy :math:`H(\bar p)` of the mean prediction of a batch, in nats; to be *maximised*.

    Source:
        SCAN (Van Gansbeke et al., ECCV 2020), which PC2 cites for L^ent.

    Differs:
        PC2 adds +λ·H to a loss that is minimised, which would put all images into one class. The
        authors' code maximises each image's own entropy, which keeps predictions near uniform.
    """
    mean = predictions.mean(0)
    return -torch.xlogy(mean, mean).sum()


def mean_entropy(
    image_logits: Float[Tensor, "batch classes"], caption_logits: Float[Tensor, "batch classes"]
) -> Loss:
    """Average the entropies :func:`batch_entropy` of the images and of the captions of a batch."""
    entropies = [batch_entropy(logits.softmax(1)) for logits in (image_logits, caption_logits)]
    return (entropies[0] + entropies[1]) / 2
