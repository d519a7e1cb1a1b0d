"""Evidence of matches: Dirichlet distributions over a batch, and their loss."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def evidence(
    logits: Float[Tensor, "batch batch"], temperature: float
) -> Float[Tensor, "batch batch"]:
    r"""Turn logits of similarities into evidence :math:`e = \exp(\tanh(r) / \tau)`.

    Args:
        logits: :math:`r`, rows images, columns captions.
        temperature: :math:`\tau`; the evidence lies between :math:`e^{-1/\tau}` and its inverse.

    Source:
        DECL (Qin et al., ACM MM 2022).
    """
    return (logits.tanh() / temperature).exp()


def uniform_divergence(concentration: Float[Tensor, "rows classes"]) -> Float[Tensor, " rows"]:
    r"""Kullback-Leibler divergence of Dirichlet distributions from the uniform one, in nats.

    .. math::
        \ln\Gamma(S) - \ln\Gamma(K) - \sum_j \ln\Gamma(\alpha_j)
        + \sum_j (\alpha_j - 1)(\psi(\alpha_j) - \psi(S)),\quad S = \sum_j \alpha_j

    Args:
        concentration: :math:`\alpha > 0`, a distribution a row.
    """
    total = concentration.sum(1)
    classes = total.new_tensor(float(concentration.shape[1]))
    log_norm = torch.lgamma(total) - torch.lgamma(concentration).sum(1) - torch.lgamma(classes)
    logs = torch.digamma(concentration) - torch.digamma(total)[:, None]
    return log_norm + ((concentration - 1) * logs).sum(1)


def dirichlet_loss(
    evidence: Float[Tensor, "rows classes"], target: Float[Tensor, "rows classes"], weight: float
) -> Float[Tensor, " rows"]:
    r"""Expected squared error of a Dirichlet distribution, and what pulls it to the uniform one.

    .. math::
        \sum_j (y_j - \alpha_j / S)^2 + \sum_j \frac{\alpha_j (S - \alpha_j)}{S^2 (S + 1)}
        + \lambda\, KL(\tilde\alpha),\quad
        \alpha = e + 1,\ \tilde\alpha = e (1 - y) + 1

    Args:
        evidence: :math:`e \ge 0`, a distribution a row.
        target: :math:`y`: one-hot, or all zero where no class is right.
        weight: :math:`\lambda` of :func:`uniform_divergence`.

    Source:
        Sensoy et al., NeurIPS 2018, eq. 5; DECL (Qin et al., ACM MM 2022).
    """
    concentration = evidence + 1
    total = concentration.sum(1, keepdim=True)
    error = (target - concentration / total).square().sum(1)
    variance = (concentration * (total - concentration) / (total.square() * (total + 1))).sum(1)
    return error + variance + weight * uniform_divergence(evidence * (1 - target) + 1)


def evidential_loss(
    evidence: Float[Tensor, "batch batch"], is_clean: Bool[Tensor, " batch"], weight: float
) -> Float[Tensor, " batch"]:
    """Sum each pair's :func:`dirichlet_loss` as an image and as a caption.

    Args:
        evidence: Rows images, columns captions, the pairs on the diagonal.
        is_clean: Pairs that are a match; of the others every match is wrong.
        weight: As for :func:`dirichlet_loss`.

    Source:
        DECL (Qin et al., ACM MM 2022).
    """
    target = torch.diag(is_clean.to(evidence))
    by_image = dirichlet_loss(evidence, target, weight)
    return by_image + dirichlet_loss(evidence.T, target, weight)


def match_probabilities(evidence: Float[Tensor, "batch batch"]) -> Float[Tensor, "batch batch"]:
    """Share the evidence of both directions out among the captions of a batch; rows sum to 1.

    Source:
        The released code of DECL (Qin et al., ACM MM 2022), whose sum of a matrix and its
        transpose adds image i with caption j to image j with caption i.
    """
    both = evidence + evidence.T
    return both / both.sum(1, keepdim=True)
