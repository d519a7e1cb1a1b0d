"""Soft labels: how far the halves of a pair belong together, as a network sees it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from pc2_baseline.modules.losses import triplet_mean

_TINY = 1e-12


def closeness(similarity: Float[Tensor, "batch batch"], margin: float) -> Float[Tensor, " batch"]:
    r"""By how much a pair is more similar than its negatives are on average, up to the margin.

    .. math:: s_i = [\alpha - \ell_i / 2]_0^\alpha

    with :math:`\ell_i` of :func:`~pc2_baseline.modules.losses.triplet_mean`.

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        margin: :math:`\alpha`, in units of similarity.

    Source:
        NCR (Huang et al., NeurIPS 2021), and its released code.
    """
    losses = triplet_mean(similarity, similarity.new_full((len(similarity),), margin))
    return (margin - losses / 2).clamp(0, margin)


def anchors(values: Float[Tensor, " batch"]) -> Int[Tensor, " anchors"]:
    """Return the positions of the highest tenth of the values, and one more."""
    return values.topk(len(values) // 10 + 1).indices


def predicted_labels(
    similarity: Float[Tensor, "batch batch"], margin: float
) -> Float[Tensor, " batch"]:
    """Predict the label of each pair of a batch: its closeness, in units of the batch's highest.

    The arguments are those of :func:`closeness`.

    Returns:
        In [0, 1]; 1 from the mean closeness of :func:`anchors` on.

    Source:
        NCR (Huang et al., NeurIPS 2021), adaptive prediction.
    """
    close = closeness(similarity, margin)
    return (close / close[anchors(close)].mean().clamp(min=_TINY)).clamp(max=1)


def cosines(
    rows: Float[Tensor, "rows dim"], columns: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """Return the cosine of each row with each column."""
    return functional.normalize(rows, dim=1) @ functional.normalize(columns, dim=1).T


def consistency(
    images: Float[Tensor, "batch anchors"], captions: Float[Tensor, "batch anchors"]
) -> Float[Tensor, " batch"]:
    r"""Compare how similar a pair's two halves are to the halves of the nearest clean pair.

    .. math::
        r_i = \frac{1}{2} \sum_{a} \frac{\min(x_{ia}, y_{ia})}{\max(x_{ia}, y_{ia})},\quad
        a \in \{\arg\max_a x_{ia}, \arg\max_a y_{ia}\}

    Args:
        images: :math:`x`, cosines of the images with those of clean pairs.
        captions: :math:`y`, cosines of the captions with those of the same pairs.

    Returns:
        In [0, 1]: 1 where both halves are as similar as each other.

    Source:
        BiCro (Yang et al., CVPR 2023), bidirectional similarity consistency.

    Differs:
        A ratio with a negative cosine is 0; the released code adds it as it is, then clips.
    """
    low = torch.minimum(images, captions).clamp(min=0)
    ratios = low / torch.maximum(images, captions).clamp(min=_TINY)
    nearest = torch.stack([images.argmax(1), captions.argmax(1)], 1)
    return ratios.gather(1, nearest).mean(1).clamp(max=1)
