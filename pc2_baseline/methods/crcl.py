"""CRCL: active complementary learning with self-refined confidences (Qin et al., NeurIPS 2023)."""

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from now_builder.errors import ConfigError
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import info_nce, log_matches, matching_probability
from pc2_baseline.modules.coteaching import Rows, warm_up_batches
from pc2_baseline.modules.learner import rate, take_steps
from pc2_baseline.networks.encoders import Block, Loss, PerPair
from pc2_baseline.training.method import Sizes

MOMENTUM = 0.8
"""Weight of a pair's old confidence in an epoch's update."""
THRESHOLD = 0.1
"""Minimum confidence; lower ones become 0."""
COMPLEMENTARY_WEIGHT = 5.0
"""Lambda: weight of the complementary loss relative to the active one."""


class CrclSettings(SoftmaxSettings):
    """CRCL (Qin et al., NeurIPS 2023): active complementary loss, self-refined confidences."""

    schedules: tuple[PositiveInt, ...] = Field(
        (5, 5, 5),
        description="Epochs of each schedule but the last. Each starts with a new network, "
        "keeps the confidences, and first trains for train.warmup_epochs epochs, which are not "
        "counted here, without updating them. The last schedule has the rest of train.epochs.",
    )


def active_complementary(
    similarity: Block, confidence: PerPair, temperature: float, weight: float
) -> PerPair:
    r"""Active complementary loss of each pair, the sum of both directions.

    .. math::
        -y_i \log P_{ii} +
        \lambda\,\frac{\sum_{j \ne i} \tan P_{ij}}{\big(\sum_j \tan P_{ij}\big)^{1 - y_i}}

    The active term weights the pair by its confidence. The complementary one only pushes the other
    pairs away; it is the smaller, the lower the confidence.

    ``confidence`` is :math:`y`, in [0, 1]; ``weight`` is :math:`\lambda`.
    """
    by_image, by_caption = log_matches(similarity, temperature)
    costs = 2 * confidence * info_nce(similarity, temperature)
    for logs in (by_image, by_caption.T):
        tangents = logs.exp().tan()
        others = tangents.sum(1) - tangents.diagonal()
        costs = costs + weight * others / tangents.sum(1) ** (1 - confidence)
    return costs


class Crcl(OneNetwork[CrclSettings]):
    """One network that weights each pair by its confidence in it.

    In each epoch the confidence of a pair moves towards its matching probability in the batch, the
    mean of both directions. The training has several schedules. Each starts with a new network and
    the last confidences, and does not update these in its first ``train.warmup_epochs`` epochs. In
    the first schedule all pairs start with confidence 1, and the last of these epochs sets the
    confidences to the probabilities.

    Source:
        CRCL (Qin et al., NeurIPS 2023) and its code.

    Differs:
        The authors' code lowers the learning rate to a tenth after every ``train.lr_drop_epoch``
        epochs, and selects on dev but also scores test during training.
    """

    section = CrclSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        frozen = settings.train.warmup_epochs
        self.starts = [0]
        for epochs in self.method.schedules:
            self.starts.append(self.starts[-1] + frozen + epochs)
        least = self.starts[-1] + 1
        if settings.train.epochs < least:
            raise ConfigError(
                f"train.epochs = {settings.train.epochs}, expected {least} or more for "
                f"method.schedules = {list(self.method.schedules)} and the last one, each with "
                f"train.warmup_epochs = {frozen}"
            )
        self._keep(torch.ones(sizes.pairs), torch.zeros(sizes.pairs))

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch on all pairs and refine their confidences."""
        method, warmup = self.method, self.train.warmup_epochs
        schedule = sum(epoch >= start for start in self.starts) - 1
        since = epoch - self.starts[schedule]
        if schedule and not since:
            self.draw(schedule)
        self.begin(epoch, rate(since, warmup, self.train.lr_drop_epoch))
        sets_confidence = schedule == 0 and since == warmup - 1
        old = self.statistics["clean_prob"]
        new, losses = [], []
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)

        def loss(rows: Rows) -> Loss:
            similarity = self.net.score_batch(train.batch(rows))
            matching = matching_probability(similarity.detach(), method.temperature)
            confidence = old[rows].to(matching.device)
            if since >= warmup:
                confidence = refined(confidence, matching, MOMENTUM, THRESHOLD)
            new.append(matching if sets_confidence else confidence)
            losses.append(info_nce(similarity.detach(), method.temperature))
            return active_complementary(
                similarity, confidence, method.temperature, COMPLEMENTARY_WEIGHT
            ).mean()

        mean = take_steps(self.learner, batches, loss, epoch)
        by_pair = torch.zeros(2, len(train))
        by_pair[:, np.concatenate(batches)] = torch.stack([torch.cat(new), torch.cat(losses)]).cpu()
        self._keep(*by_pair)
        return {"loss": mean, "confidence": float(by_pair[0].mean())}

    def _keep(self, confidence: Float[Tensor, " pairs"], loss: Float[Tensor, " pairs"]) -> None:
        """Store confidences and unweighted InfoNCE losses; pairs with a confidence are clean."""
        is_clean = confidence >= THRESHOLD
        self.statistics = {"clean_prob": confidence, "is_clean": is_clean, "loss": loss}


def refined(confidence: PerPair, matching: PerPair, momentum: float, threshold: float) -> PerPair:
    """Move confidences towards the matching probabilities; set those below a threshold to 0."""
    moved = momentum * confidence + (1 - momentum) * matching
    return moved.masked_fill(moved < threshold, 0.0)
