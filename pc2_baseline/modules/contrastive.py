"""Softmax losses of pairs among a block of similarities, in both directions."""

from collections.abc import Callable
from functools import partial
from math import log

import torch

from pc2_baseline.networks.encoders import Block, PerPair

GCE_POWER = 0.7
"""Exponent q of the generalised cross-entropy, as in the experiments of Zhang and Sabuncu."""
_LOG_ZERO = log(1e-7)


def log_matches(similarity: Block, temperature: float) -> tuple[Block, Block]:
    r"""Log-probability of each caption given an image, and of each image given a caption.

    .. math:: \log P_{ij},\ P_{i\cdot} = \mathrm{softmax}(S_{i\cdot} / \tau)

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        temperature: :math:`\tau`, in units of similarity.

    Returns:
        Log-probabilities by image (rows sum to 1) and by caption (columns sum to 1). Both have
        images as rows.
    """
    scaled = similarity / temperature
    return scaled.log_softmax(1), scaled.log_softmax(0)


def matching_probability(similarity: Block, temperature: float) -> PerPair:
    """Probability of each pair among those of its batch, the mean of both directions.

    The arguments are those of :func:`log_matches`.
    """
    by_image, by_caption = log_matches(similarity, temperature)
    return ((by_image.exp() + by_caption.exp()) / 2).diagonal()


def info_nce(similarity: Block, temperature: float) -> PerPair:
    r"""InfoNCE of each pair, the mean of both directions, in nats.

    The arguments are those of :func:`log_matches`.

    Source:
        van den Oord et al., 2018; both ways as in CLIP (Radford et al., ICML 2021).
    """
    by_image, by_caption = log_matches(similarity, temperature)
    return -(by_image.diagonal() + by_caption.diagonal()) / 2


def soft_info_nce(
    similarity: Block, temperature: float, by_image: Block, by_caption: Block
) -> PerPair:
    r"""InfoNCE of each pair with soft targets, the mean of both directions, in nats.

    .. math:: -\sum_j T_{ij} \log P_{ij}

    ``by_image`` is :math:`T`, the target of each caption (column) for each image (row); rows need
    not sum to 1. ``by_caption`` has the targets of each caption in a column.

    Source:
        CREAM (Ma et al., TIP 2024).

    Differs:
        The authors' code adds both directions.
    """
    image_logs, caption_logs = log_matches(similarity, temperature)
    return -((by_image * image_logs).sum(1) + (by_caption * caption_logs).sum(0)) / 2


def complementary(similarity: Block, temperature: float) -> PerPair:
    r"""Complementary contrastive loss of each pair, the mean of both directions.

    .. math:: -\sum_{j \ne i} \log(1 - P_{ij})

    The probability of the pair itself enters only through those of the others, so a mismatched
    pair costs little. The arguments are those of :func:`log_matches`.

    Source:
        RCL (Hu et al., TPAMI 2023).
    """
    diagonal = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    by_image, by_caption = log_matches(similarity, temperature)
    both = _log_complement(by_image) + _log_complement(by_caption.T)
    return -both.masked_fill(diagonal, 0.0).sum(1) / 2


def _log_complement(logs: Block) -> Block:
    """Return log(1 - P) for rows of log P, also exact if one P rounds to 1."""
    top = logs.argmax(1, keepdim=True)  # every other P is at most 1/2
    others = logs.scatter(1, top, torch.finfo(logs.dtype).min)
    return torch.log1p(-others.exp()).scatter(1, top, others.logsumexp(1, keepdim=True))


def generalised_cross_entropy(similarity: Block, temperature: float, power: float) -> PerPair:
    r"""Generalised cross-entropy of each pair, the mean of both directions.

    .. math:: (1 - P_{ii}^q) / q

    ``power`` is :math:`q`, in (0, 1]: near 0 the loss is InfoNCE, at 1 the mean absolute error.

    Source:
        Zhang and Sabuncu, NeurIPS 2018, eq. 6.
    """
    by_image, by_caption = log_matches(similarity, temperature)
    logs = torch.stack([by_image.diagonal(), by_caption.diagonal()])
    return ((1 - (power * logs).exp()) / power).mean(0)


def symmetric_cross_entropy(similarity: Block, temperature: float) -> PerPair:
    r"""InfoNCE of each pair plus the reverse cross-entropy, the mean of both directions.

    .. math:: -\log P_{ii} - \sum_j P_{ij} \log I_{ij} = -\log P_{ii} - A (1 - P_{ii})

    :math:`A = \log 10^{-7}` stands for :math:`\log 0`. The arguments are those of
    :func:`log_matches`.

    Source:
        Wang et al., ICCV 2019, eq. 7, with both weights 1; used with this :math:`A` in the warm-up
        of L2RM (Han et al., CVPR 2024).
    """
    missed = generalised_cross_entropy(similarity, temperature, 1.0)
    return info_nce(similarity, temperature) - _LOG_ZERO * missed


def contrastive_loss(name: str, temperature: float) -> Callable[[Block], PerPair]:
    """Return the loss with this name as a function of the similarities."""
    losses: dict[str, Callable[..., PerPair]] = {
        "info_nce": info_nce, "complementary": complementary,
        "gce": partial(generalised_cross_entropy, power=GCE_POWER),
    }  # fmt: skip
    return partial(losses[name], temperature=temperature)
