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
"""Lambda 2: weight of the divergence that takes evidence from non-matches."""
LAMBDA_HINGE = 0.8
"""Lambda 1: weight of the hinge of clean pairs."""
FEWEST_NEGATIVES = 5
"""Mu: hardest negatives that count in the end."""


class DeclSettings(DivisionSettings):
    """DECL (Qin et al., ACM MM 2022): evidence of each match, as a Dirichlet distribution."""

    margin: PositiveFloat = Field(
        0.2, description="Margin of the hinge, in units of the logit's hyperbolic tangent."
    )
    temperature: PositiveFloat = Field(0.1, description="Tau: evidence is exp(tanh(logit) / tau).")
    hardening: NonNegativeFloat = Field(
        0.025, description="Eta: by how much fewer negatives count in the hinge with each step."
    )


class Decl(OneNetwork[DeclSettings]):
    """One network that learns how much evidence there is for each match of a batch.

    Of every pair it learns a Dirichlet distribution over the captions, and over the images, of the
    batch: for clean pairs that their own is right, for noisy ones that none is. A hinge of the
    clean pairs against their n hardest negatives is added; n falls with every step. A pair is clean
    if it was the likeliest match of its image in the dividing pass of the epoch before; in the
    warm-up all are.

    Source:
        DECL (Qin et al., ACM MM 2022), and its released code.

    Differs:
        Dividing batches have one order a run; in the released code a new one each epoch. A batch
        has at most as many negatives as there are: the code's n may count the pair itself.
    """

    section = DeclSettings

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew."""
        warmup = self.train.warmup_epochs
        self.begin(epoch, rate(epoch, warmup, self.train.lr_drop_epoch))
        everything = torch.ones(len(train), dtype=torch.bool)
        is_clean = everything if epoch < warmup else self.statistics["is_clean"]
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
        """Return how many hardest negatives count in a step, from 1, of a full batch."""
        method = self.method
        return max(int(self.train.batch - method.hardening * step), FEWEST_NEGATIVES)

    def _loss(self, logits: Block, clean: Tensor, negatives: int) -> Loss:
        """Mean evidential loss of all pairs, and the weighted sum of the clean pairs' hinges."""
        method = self.method
        found = evidence(logits, method.temperature)
        margins = logits.new_full((len(logits),), method.margin)
        hinges = triplet_top(logits.tanh(), margins, negatives)
        evidential = evidential_loss(found, clean, LAMBDA_KL).mean()
        return evidential + LAMBDA_HINGE * hinges.masked_fill(~clean, 0.0).sum()

    def _divide(self, train: PairSet) -> dict[str, Tensor]:
        """Call clean which pairs are the likeliest of their image, in evaluation mode.

        Returns:
            Probability of each pair's own match, whether it is the highest, and the evidential
            loss of the pair as a match.
        """
        self.net.eval()
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        with torch.inference_mode():
            judged = [self._judge(train, rows) for rows in bar(batches, "divide", len(batches))]
        back = torch.from_numpy(np.argsort(np.concatenate(batches)))  # each pair is there once
        return {name: torch.cat([own[name] for own in judged]).cpu()[back] for name in judged[0]}

    def _judge(self, train: PairSet, rows: Rows) -> dict[str, Tensor]:
        logits = self.net.score_batch(train.batch(rows), logits=True)
        found = evidence(logits, self.method.temperature)
        matches = match_probabilities(found)
        own = torch.arange(len(rows), device=matches.device)
        everything = torch.ones(len(rows), dtype=torch.bool, device=matches.device)
        return {
            "clean_prob": matches.diagonal(),
            "is_clean": matches.argmax(1) == own,
            # float32 loses a part of what log-gammas of sums up to e^10 leave of each other.
            "loss": evidential_loss(found.double(), everything, LAMBDA_KL).float(),
        }


def triplet_top(similarity: Block, margins: PerPair, negatives: int) -> PerPair:
    """Triplet loss of each pair, averaged over its hardest negatives in each direction.

    Source:
        DECL (Qin et al., ACM MM 2022), robust dynamic hinge loss.
    """
    number = min(negatives, len(similarity) - 1)
    i2t, t2i = triplet_costs(similarity, margins)
    return i2t.topk(number, 1).values.mean(1) + t2i.topk(number, 0).values.mean(0)


def evidence(logits: Block, temperature: float) -> Block:
    r"""Turn logits of similarities into evidence :math:`e = \exp(\tanh(r) / \tau)`.

    The evidence lies between :math:`e^{-1/\tau}` and its inverse.
    """
    return (logits.tanh() / temperature).exp()


def uniform_divergence(concentration: Float[Tensor, "rows classes"]) -> Float[Tensor, " rows"]:
    r"""Kullback-Leibler divergence of Dirichlet distributions from the uniform one, in nats.

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


def evidential_loss(evidence: Block, is_clean: Bool[Tensor, " batch"], weight: float) -> PerPair:
    """Sum each pair's :func:`dirichlet_loss` as an image and as a caption.

    Of pairs that are not clean every match is wrong.
    """
    target = torch.diag(is_clean.to(evidence))
    by_image = dirichlet_loss(evidence, target, weight)
    return by_image + dirichlet_loss(evidence.T, target, weight)


def match_probabilities(evidence: Block) -> Block:
    """Share the evidence of both directions out among the captions of a batch; rows sum to 1.

    Source:
        The released code of DECL (Qin et al., ACM MM 2022), whose sum of a matrix and its
        transpose adds image i with caption j to image j with caption i.
    """
    both = evidence + evidence.T
    return both / both.sum(1, keepdim=True)
