"""DECL: deep evidential learning with noisy correspondence (Qin et al., ACM MM 2022)."""

from itertools import count

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import DivisionSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.coteaching import Rows, dividing_batches
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.modules.losses import triplet_costs
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.progress import bar

LAMBDA_KL = 0.1
"""Lambda 2: weight of the divergence that removes evidence from non-matches."""
LAMBDA_HINGE = 0.8
"""Lambda 1: weight of the hinge loss of clean pairs."""
FEWEST_NEGATIVES = 5
"""Mu: minimum number of hardest negatives in the hinge loss."""


class DeclSettings(DivisionSettings):
    """DECL (Qin et al., ACM MM 2022): evidence of matches as Dirichlet distributions."""

    margin: PositiveFloat = Field(
        0.2, description="Margin of the hinge loss, in units of the logit's hyperbolic tangent."
    )
    temperature: PositiveFloat = Field(0.1, description="Tau: evidence is exp(tanh(logit) / tau).")
    hardening: NonNegativeFloat = Field(
        0.025,
        description="Eta: decrease in the number of negatives of the hinge loss at each step.",
    )


class Decl(OneNetwork[DeclSettings]):
    """One network that learns the evidence for each match in a batch.

    For each image it learns a Dirichlet distribution over the captions of the batch, and for each
    caption one over the images: the target is the pair's own match for clean pairs, and no match
    for noisy ones. A hinge loss of the clean pairs against their n hardest negatives is added; n
    decreases with every step. A pair is clean if it was the most probable match of its image in
    the last dividing pass; in the warm-up all pairs are clean.

    Source:
        DECL (Qin et al., ACM MM 2022), and its released code.

    Differs:
        Batches of the dividing pass have the same order in every epoch; the released code shuffles
        them. n is at most the number of negatives; the code's n may include the pair itself.
    """

    section = DeclSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs."""
        warmup = self.train.warmup_epochs
        self.begin(epoch, rate(epoch, warmup, self.train.lr_drop_epoch))
        is_clean = torch.ones(len(train), dtype=torch.bool)
        if epoch >= warmup:
            is_clean = self.statistics["is_clean"]
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        steps = count(epoch * len(batches) + 1)

        def loss(rows: Rows) -> Loss:
            clean = is_clean[torch.from_numpy(rows)].to(train.device)
            logits = self.net.score_batch(train.batch(rows), logits=True)
            return self._loss(logits, clean, self.negatives(next(steps)))

        figures = {"loss": take_steps(self.learner, batches, loss, epoch)}
        if self.train.evaluates(epoch):
            self.statistics = self._divide(train)
            figures["clean"] = float(self.statistics["is_clean"].sum())
        return figures

    def negatives(self, step: int) -> int:
        """Return the number of hardest negatives in a step, from 1, of a full batch."""
        return max(int(self.train.batch - self.method.hardening * step), FEWEST_NEGATIVES)

    def _loss(self, logits: Block, clean: Tensor, negatives: int) -> Loss:
        """Return the mean evidential loss of all pairs plus the weighted hinges of clean pairs."""
        method = self.method
        margins = logits.new_full((len(logits),), method.margin)
        hinges = triplet_top(logits.tanh(), margins, negatives)
        evidential = evidential_loss(evidence(logits, method.temperature), clean, LAMBDA_KL).mean()
        return evidential + LAMBDA_HINGE * hinges.masked_fill(~clean, 0.0).sum()

    def _divide(self, train: PairSet) -> dict[str, Tensor]:
        """Divide the pairs in evaluation mode: clean ones are the most probable of their image.

        Returns:
            Probability of each pair's match, whether it is the highest of its image, and the
            evidential loss of the pair if it is treated as clean.
        """
        self.net.eval()
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        with self.net.dividing():
            parts = [self._statistics(train, rows) for rows in bar(batches, "divide", len(batches))]
        by_pair = torch.from_numpy(np.argsort(np.concatenate(batches)))  # each pair is in one batch
        return {name: torch.cat([part[name] for part in parts]).cpu()[by_pair] for name in parts[0]}

    def _statistics(self, train: PairSet, rows: Rows) -> dict[str, Tensor]:
        logits = self.net.score_batch(train.batch(rows), logits=True)
        evidences = evidence(logits, self.method.temperature)
        matches = match_probabilities(evidences)
        places = torch.arange(len(rows), device=matches.device)
        return {
            "clean_prob": matches.diagonal(),
            "is_clean": matches.argmax(1) == places,
            # In float32 the differences of log-gammas of sums up to e^10 lose digits.
            "loss": evidential_loss(evidences.double(), places >= 0, LAMBDA_KL).float(),
        }


def triplet_top(similarity: Block, margins: PerPair, negatives: int) -> PerPair:
    """Return the triplet loss of each pair, averaged over its hardest negatives.

    Source:
        DECL (Qin et al., ACM MM 2022), robust dynamic hinge loss.
    """
    number = min(negatives, len(similarity) - 1)
    i2t, t2i = triplet_costs(similarity, margins)
    return i2t.topk(number, 1).values.mean(1) + t2i.topk(number, 0).values.mean(0)


def evidence(logits: Block, temperature: float) -> Block:
    r"""Return the evidence :math:`e = \exp(\tanh(r) / \tau)` for logits :math:`r`."""
    return (logits.tanh() / temperature).exp()


def uniform_divergence(concentration: Float[Tensor, "rows classes"]) -> Float[Tensor, " rows"]:
    r"""Return the KL divergence of Dirichlet distributions from the uniform one, in nats.

    .. math::
        \ln\Gamma(S) - \ln\Gamma(K) - \sum_j \ln\Gamma(\alpha_j)
        + \sum_j (\alpha_j - 1)(\psi(\alpha_j) - \psi(S)),\quad S = \sum_j \alpha_j
    """
    total = concentration.sum(1)
    classes = total.new_tensor(float(concentration.shape[1]))
    log_norm = torch.lgamma(total) - torch.lgamma(concentration).sum(1) - torch.lgamma(classes)
    logs = torch.digamma(concentration) - torch.digamma(total)[:, None]
    return log_norm + ((concentration - 1) * logs).sum(1)


def dirichlet_loss(
    evidence: Float[Tensor, "rows classes"], target: Float[Tensor, "rows classes"], weight: float
) -> Float[Tensor, " rows"]:
    r"""Return the regularised expected squared error of Dirichlet distributions.

    .. math::
        \sum_j (y_j - \alpha_j / S)^2 + \sum_j \frac{\alpha_j (S - \alpha_j)}{S^2 (S + 1)}
        + \lambda\, KL(\tilde\alpha),\quad
        \alpha = e + 1,\ \tilde\alpha = e (1 - y) + 1

    Args:
        evidence: :math:`e \ge 0`, one distribution a row.
        target: :math:`y`: one-hot, or zeros if no class is right.
        weight: :math:`\lambda` of :func:`uniform_divergence`.

    Source:
        Sensoy et al., NeurIPS 2018, eq. 5; DECL (Qin et al., ACM MM 2022).
    """
    concentration = evidence + 1
    total = concentration.sum(1, keepdim=True)
    error = (target - concentration / total).square().sum(1)
    variance = (concentration * (total - concentration) / (total.square() * (total + 1))).sum(1)
    return error + variance + weight * uniform_divergence(evidence * (1 - target) + 1)


def evidential_loss(evidence: Block, is_clean: Bool[Tensor, " batch"], weight: float) -> PerPair:
    """Return the :func:`dirichlet_loss` of each pair's image plus its caption's.

    Pairs that are not clean have no right match.
    """
    target = torch.diag(is_clean.to(evidence))
    by_image = dirichlet_loss(evidence, target, weight)
    return by_image + dirichlet_loss(evidence.T, target, weight)


def match_probabilities(evidence: Block) -> Block:
    """Return the probability of each caption of a batch for each image; rows sum to 1.

    Source:
        The released code of DECL (Qin et al., ACM MM 2022). It adds the matrix to its transpose:
        the evidence of image i for caption j to that of image j for caption i.
    """
    both = evidence + evidence.T
    return both / both.sum(1, keepdim=True)
