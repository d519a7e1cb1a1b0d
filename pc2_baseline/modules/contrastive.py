"""Softmax losses over a block of similarities: each pair against all others, both ways."""

from collections.abc import Callable
from functools import partial
from math import log

import torch

from pc2_baseline.networks.encoders import Block, PerPair

GCE_POWER = 0.7
"""Exponent q of the generalised cross-entropy, as in the experiments of Zhang and Sabuncu."""

_LOG_ZERO = log(1e-7)


def log_matches(similarity: Block, temperature: float) -> tuple[Block, Block]:
    r"""Log-probabilities that an image and a caption belong together, among those of the batch.

    .. math:: \log P_{ij},\ P_{i\cdot} = \mathrm{softmax}(S_{i\cdot} / \tau)

    Args:
        similarity: Rows images, columns captions, the pairs on the diagonal.
        temperature: :math:`\tau`, in units of similarity.

    Returns:
        By image, with rows that sum to 1 in probability; and by caption, with such columns. Both
        have images as rows.
    """
    scaled = similarity / temperature
    return scaled.log_softmax(1), scaled.log_softmax(0)


def matching_probability(similarity: Block, temperature: float) -> PerPair:
    """Mean probability of each pair over both directions, among the pairs of a batch.

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

    ``by_image`` is :math:`T`: how far each caption (column) belongs to each image (row), with rows
    that need not sum to 1; ``by_caption`` is the same with a column for each caption.

    Source:
        CREAM (Ma et al., TIP 2024).

    Differs:
        The authors' code takes the sum of both directions.
    """
    image_logs, caption_logs = log_matches(similarity, temperature)
    return -((by_image * image_logs).sum(1) + (by_caption * caption_logs).sum(0)) / 2


def complementary(similarity: Block, temperature: float) -> PerPair:
    r"""Complementary contrastive loss of each pair, the mean of both directions.

    .. math:: -\sum_{j \ne i} \log(1 - P_{ij})

    A pair's own probability is in it by way of the others' alone, so a mismatched pair costs
    little. The arguments are those of :func:`log_matches`.

    Source:
        RCL (Hu et al., TPAMI 2023).
    """
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    by_image, by_caption = log_matches(similarity, temperature)
    both = _log_complement(by_image) + _log_complement(by_caption.T)
    return -both.masked_fill(own, 0.0).sum(1) / 2


def _log_complement(logs: Block) -> Block:
    """Return log(1 - P) of each row's log P, exact also where one P is 1 but for rounding."""
    top = logs.argmax(1, keepdim=True)  # no other P is above a half
    others = logs.scatter(1, top, torch.finfo(logs.dtype).min)
    return torch.log1p(-others.exp()).scatter(1, top, others.logsumexp(1, keepdim=True))


def generalised_cross_entropy(similarity: Block, temperature: float, power: float) -> PerPair:
    r"""Generalised cross-entropy of each pair, the mean of both directions.

    .. math:: (1 - P_{ii}^q) / q

    At a power :math:`q`, above 0 and at most 1, near 0 it is InfoNCE, at 1 the mean absolute error.

    Source:
        Zhang and Sabuncu, NeurIPS 2018, eq. 6.
    """
    by_image, by_caption = log_matches(similarity, temperature)
    own = torch.stack([by_image.diagonal(), by_caption.diagonal()])
    return ((1 - (power * own).exp()) / power).mean(0)


def symmetric_cross_entropy(similarity: Block, temperature: float) -> PerPair:
    r"""InfoNCE of each pair and the cross-entropy the other way round, the mean of both directions.

    .. math:: -\log P_{ii} - \sum_j P_{ij} \log I_{ij} = -\log P_{ii} - A (1 - P_{ii})

    :math:`A = \log 10^{-7}` stands for :math:`\log 0`. The arguments are those of
    :func:`log_matches`.

    Source:
        Wang et al., ICCV 2019, eq. 7, with both weights 1; L2RM (Han et al., CVPR 2024) takes it
        for its warm-up, with this :math:`A`.
    """
    missed = generalised_cross_entropy(similarity, temperature, 1.0)
    return info_nce(similarity, temperature) - _LOG_ZERO * missed


def contrastive_loss(name: str, temperature: float) -> Callable[[Block], PerPair]:
    """Return the loss of a name, as a function of the similarities alone."""
    losses: dict[str, Callable[..., PerPair]] = {
        "info_nce": info_nce, "complementary": complementary,
        "gce": partial(generalised_cross_entropy, power=GCE_POWER),
    }  # fmt: skip
    return partial(losses[name], temperature=temperature)
