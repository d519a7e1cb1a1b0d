"""Losses as pure functions: triplets with a margin per query, soft margin, pseudo-classes."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional


def soft_margin(
    correspondence: Float[Tensor, " batch"], margin: float, base: float = 10.0
) -> Float[Tensor, " batch"]:
    r"""Shrink the triplet margin of a pair by how little its halves correspond.

    .. math:: \hat\alpha_i = \frac{m^{\hat y_i} - 1}{m - 1}\,\alpha

    Args:
        correspondence: :math:`\hat y`, the estimated correspondence, in [0, 1].
        margin: :math:`\alpha`, in units of similarity.
        base: :math:`m > 1`; a larger base forgives half-certain pairs less.

    Raises:
        ValueError: If ``base`` is not greater than 1.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 5 and 8; NCR (Huang et al., NeurIPS 2021).
    """
    if base <= 1:
        raise ValueError(f"base is {base}, expected more than 1")
    return (base**correspondence - 1) / (base - 1) * margin


def others(batch: int, device: torch.device) -> Bool[Tensor, "batch batch"]:
    """Take every other pair of the batch as a negative."""
    return ~torch.eye(batch, dtype=torch.bool, device=device)


def triplet_costs(
    similarity: Float[Tensor, "batch batch"],
    margins: Float[Tensor, " batch"],
    negatives: Bool[Tensor, "batch batch"],
) -> tuple[Float[Tensor, "batch batch"], Float[Tensor, "batch batch"]]:
    r"""Hinge costs of both directions, each with the margin of the query.

    .. math::
        c^{i2t}_{ij} = [m_i + S_{ij} - S_{ii}]_+ \quad
        c^{t2i}_{ij} = [m_j + S_{ij} - S_{jj}]_+

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        margins: :math:`m`, of each pair.
        negatives: Which caption (column) is a negative of which image (row), and the reverse.

    Returns:
        Costs to be reduced over columns (i2t) and over rows (t2i).

    Differs:
        The authors' code broadcasts the margins along one axis for both directions.
    """
    positive = similarity.diagonal()
    i2t = functional.relu(margins[:, None] + similarity - positive[:, None])
    t2i = functional.relu(margins[None] + similarity - positive[None])
    return i2t.masked_fill(~negatives, 0.0), t2i.masked_fill(~negatives, 0.0)


def triplet_mean(
    similarity: Float[Tensor, "batch batch"], margin: float
) -> Float[Tensor, " batch"]:
    """Triplet loss of each pair, its negatives averaged: the warm-up and the dividing statistic.

    Args:
        similarity: Rows images, columns captions.
        margin: The same for all pairs.

    Source:
        NCR (Huang et al., NeurIPS 2021); the mean counts the pair itself, with cost zero.
    """
    batch = len(similarity)
    margins = similarity.new_full((batch,), margin)
    i2t, t2i = triplet_costs(similarity, margins, others(batch, similarity.device))
    return i2t.mean(1) + t2i.mean(0)


def triplet_hardest(
    similarity: Float[Tensor, "batch batch"],
    margins: Float[Tensor, " batch"],
    negatives: Bool[Tensor, "batch batch"] | None = None,
) -> Float[Tensor, " batch"]:
    """Triplet loss of each pair against its hardest negative in each direction.

    Args:
        similarity: Rows images, columns captions.
        margins: Of each pair.
        negatives: Default: every other pair.

    Source:
        VSE++ (Faghri et al., BMVC 2018); with soft margins NCR and PC2, eq. 5.
    """
    mask = others(len(similarity), similarity.device) if negatives is None else negatives
    i2t, t2i = triplet_costs(similarity, margins, mask)
    return i2t.amax(1) + t2i.amax(0)


def pseudo_class_loss(
    image_logits: Float[Tensor, "batch classes"], caption_logits: Float[Tensor, "batch classes"]
) -> Float[Tensor, ""]:
    """Cross-entropy of an image's prediction with its caption's likeliest pseudo-class.

    Args:
        image_logits: Of the images.
        caption_logits: Of their captions; no gradient flows through the choice.

    Source:
        PC2 (Duan et al., ACM MM 2024), L^pse.
    """
    target: Int[Tensor, " batch"] = caption_logits.argmax(1)
    return functional.cross_entropy(image_logits, target)


def batch_entropy(predictions: Float[Tensor, "batch classes"]) -> Float[Tensor, ""]:
    r"""Entropy :math:`H(\bar p)` of the mean prediction of a batch, in nats; to be *maximised*.

    Args:
        predictions: Rows sum to 1.

    Source:
        SCAN (Van Gansbeke et al., ECCV 2020), which PC2 cites for L^ent.

    Differs:
        PC2 adds +λ·H to a loss that is minimised, which would collapse all images into one class;
        the authors' code maximises each image's own entropy, which keeps predictions near uniform.
    """
    mean = predictions.mean(0)
    return -torch.xlogy(mean, mean).sum()
