"""PCSR: pseudo-label consistency-guided sample refinement (Liu et al., AAAI 2026), built on PC2."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeFloat, model_validator
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.pc2.network import Encoded, PeerEpoch
from pc2_baseline.methods.pc2.paper import class_terms, co_divide, peer_epoch, score_with_noisy
from pc2_baseline.methods.pc2.peers import PairStatistics, Pc2CommonSettings, Pc2Peers
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.modules.coteaching import DIVISIONS, NONE, PEERS, Rows, by_peer, mixed_batches
from pc2_baseline.modules.division import Division, require_clean
from pc2_baseline.modules.learner import Step, add_prefix, mean_losses, rate, select_prefix
from pc2_baseline.modules.losses import soft_margin, triplet_hardest, triplet_mean
from pc2_baseline.networks.encoders import Block, Loss
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, EpochOutputs, Sizes, State

_HISTORY = "history"

TARGET_SHARES = 0.4, 0.9
"""Target shares of consistent pairs, at the start and at the end of a training."""

RATE = 0.3 * 0.2
"""Step of the threshold per unit of missing share."""

GCE_POWER = 0.7
"""Power of the generalised cross-entropy of ambiguous pairs."""


class PcsrSettings(Pc2CommonSettings, SoftmaxSettings):
    """PCSR (Liu et al., AAAI 2026): noisy pairs are refinable or ambiguous, by their history."""

    classes: Annotated[int, Field(ge=2)] = Field(256, description="Pseudo-classes K.")
    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        25,
        description="First epoch after the warm-up that trains on refinable pairs (noisy ones of a "
        "consistent pseudo-class), with pseudo-captions.",
    )
    ambiguous_from_epoch: Annotated[int, Field(ge=0)] = Field(
        40, description="First epoch after the warm-up that trains on ambiguous pairs, too."
    )
    lambda_ambiguous: NonNegativeFloat = Field(
        1.0, description="Weight of the ambiguous pairs' loss."
    )

    @model_validator(mode="after")
    def _has_classes(self) -> "PcsrSettings":
        if not self.pseudo_classes:
            raise ValueError("pcsr needs pseudo_classes: their history divides the noisy pairs")
        return self


class Pcsr(Pc2Peers):
    """PC2's peers, which split noisy pairs by the consistency of their pseudo-class.

    A noisy pair whose image often has the same pseudo-class is refinable: its image trains on a
    pseudo-caption, as in PC2. The others are ambiguous: their images are matched with soft margins
    and classified by a loss that tolerates wrong classes. The warm-up is InfoNCE alone; three
    stages follow: clean pairs, then refinable ones with them, then also ambiguous ones.

    Attributes:
        histories: Pseudo-classes that each peer gave the pairs; a peer trains on the pairs that
            the other peer's history calls refinable.

    Source:
        PCSR (Liu et al., AAAI 2026), completed by PC2 (Duan et al., ACM MM 2024). Formulas and
        stages as in the authors' code.

    Differs:
        The authors' code is a fork of that of PC2 with the same departures from PC2's paper (see
        :class:`~pc2_baseline.methods.pc2.released.Pc2Released`); here these parts follow the
        paper, and the losses of all kinds are added. Their code matches ambiguous images with
        pseudo-captions, too.
    """

    section = PcsrSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(PcsrSettings, settings.method)
        super().__init__(settings, sizes, device, self.method, self.method.classifier)
        self.histories = [ClassHistory(sizes.pairs, self.method.classes) for _ in PEERS]
        self.robust_loss = partial(robust_class_loss, power=GCE_POWER)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs: a history needs every epoch."""
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        self.statistics = each(lambda peer: self.divide_pairs(train, epoch, peer))
        self.share_banks()
        states = each(lambda peer: self.histories[peer].state())
        for history, state in zip(self.histories, states, strict=True):
            history.load(state)
        for peer, (statistics, history) in enumerate(
            zip(self.statistics, self.histories, strict=True)
        ):
            refinable = ~statistics.division.is_clean & history.is_consistent().numpy()
            figures[peer] |= self.summary(peer) | {"refinable": float(refinable.sum())}
        return by_peer(figures)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch; in the warm-up the pseudo-classifier does not learn."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        if epoch >= self.train.warmup_epochs:
            return self._co_teach(train, epoch, peer)
        temperature, net = self.method.temperature, self.matching[peer]
        return self.warm_up(
            train, epoch, peer,
            lambda rows: info_nce(net.score_batch(train.batch(rows)), temperature).mean(),
        )  # fmt: skip

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train on clean, refinable and ambiguous pairs, depending on the stage."""
        since, name = epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < self.method.mean_epochs else triplet_hardest
        setup = peer_epoch(self, train, peer, triplet)
        require_clean(setup.division)
        batches = self._batches(setup.division, epoch, peer)
        losses = []
        for number, rows in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, np.concatenate(rows))
            clean, refinable, ambiguous = rows
            batch = train.batch(np.concatenate([clean, ambiguous, refinable]))
            losses.append(self.training_step(setup, batch, rows, step))
        loss, refined = mean_losses(losses)
        return {"loss": loss, "loss_noisy": refined}

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, ...]]:
        """Cut the pairs into clean, refinable and ambiguous batches, depending on the stage."""
        since, train = epoch - self.train.warmup_epochs, self.train
        # The other peer's history, like its division.
        is_consistent = self.histories[1 - peer].is_consistent().numpy()[division.noisy]
        refinable, ambiguous = division.noisy[is_consistent], division.noisy[~is_consistent]
        if not self.method.pseudo_captions or since < self.method.noisy_from_epoch:
            refinable = NONE
        if since < self.method.ambiguous_from_epoch:
            ambiguous = NONE
        others = [refinable, ambiguous]
        return mixed_batches(division.clean, others, train.batch, train.seed, epoch, peer)

    def training_step(
        self, setup: PeerEpoch, batch: Batch, rows: tuple[Rows, ...], step: Step
    ) -> tuple[float, Loss]:
        """Take one step down the sum of all losses, encoding all images at once.

        ``batch`` contains the clean, then the ambiguous, then the refinable pairs of ``rows``.
        """
        method = self.method
        clean, refinable, ambiguous = rows
        pairs, images = setup.net.encode(batch, len(clean) + len(ambiguous))
        clean_pairs, ambiguous_pairs = pairs[: len(clean)], pairs[len(clean) :]
        refined = unclear = torch.zeros((), device=self.device)
        if len(refinable):
            similarity, refined = score_with_noisy(method, setup, clean_pairs, images)
        else:
            similarity = setup.net.matching.score(clean_pairs.images, clean_pairs.captions)
        if len(ambiguous):
            unclear = self.ambiguous_loss(setup, ambiguous_pairs, ambiguous)
        step = replace(step, parts={"refinable": refined.detach(), "ambiguous": unclear.detach()})
        loss = self._matching_loss(setup, similarity, clean)
        loss = loss + class_terms(setup.net, clean_pairs, method)
        loss = loss + method.lambda_noisy * refined + method.lambda_ambiguous * unclear
        return setup.learner.step(loss, step), refined.detach()

    def ambiguous_loss(self, setup: PeerEpoch, pairs: Encoded, rows: Rows) -> Loss:
        """Return the triplet loss with soft margins, plus class terms with a robust loss."""
        similarity = setup.net.matching.score(pairs.images, pairs.captions)
        return self._matching_loss(setup, similarity, rows) + class_terms(
            setup.net, pairs, self.method, self.robust_loss
        )

    def _matching_loss(self, setup: PeerEpoch, similarity: Block, rows: Rows) -> Loss:
        """Sum the triplet losses of pairs, with soft margins by their correspondence."""
        margins = soft_margin(setup.labels(rows), self.method.margin, self.method.margin_base)
        return setup.triplet(similarity, margins).sum()

    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Divide the pairs as PC2 does, and update the history and its threshold."""
        statistics = co_divide(self, self.method, train, peer)
        history = self.histories[peer]
        history.add(self.banks[peer].predictions)
        if epoch < self.train.warmup_epochs:
            history.start_threshold()
        history.track_threshold((epoch + 1) / self.train.total_epochs)
        return statistics

    def state_dict(self) -> State:
        """Return networks, statistics, banks, histories and optimisers of both peers."""
        state = super().state_dict()
        for name, history in zip(PEERS, self.histories, strict=True):
            state[TRAINING] |= add_prefix(f"{name}.{_HISTORY}", history.state())
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            for name, history in zip(PEERS, self.histories, strict=True):
                history.load(select_prefix(state[TRAINING], f"{name}.{_HISTORY}"))

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics and which pairs are consistent, for ``divisions/``."""
        outputs = super().epoch_outputs()
        if not outputs:
            return outputs
        consistent = {
            f"{name}.is_consistent": history.is_consistent()
            for name, history in zip(PEERS, self.histories, strict=True)
        }
        return {DIVISIONS: {**outputs[DIVISIONS], **consistent}}


def robust_class_loss(
    image_logits: Float[Tensor, "batch classes"], target: Int[Tensor, " batch"], power: float
) -> Loss:
    r"""Generalised cross-entropy of the images' predictions with pseudo-classes.

    .. math:: \frac{1}{B} \sum_i \frac{1 - p_{i, t_i}^q}{q}

    At a power :math:`q` near 0 it is the cross-entropy, at 1 the mean absolute error.

    Source:
        Zhang and Sabuncu, NeurIPS 2018, eq. 6; on pseudo-classes PCSR (Liu et al., AAAI 2026).
    """
    chosen = image_logits.log_softmax(1).gather(1, target[:, None])
    return ((1 - (power * chosen).exp()) / power).mean()


class ClassHistory:
    """How often one network gave each pair each pseudo-class.

    Attributes:
        threshold: Lead above which a pair is consistent.

    Differs:
        The authors' code counts every training step of the warm-up once and every dividing pass
        twice; here each dividing pass counts once.
    """

    def __init__(self, pairs: int, classes: int) -> None:
        self.counts = torch.zeros(pairs, classes, dtype=torch.int16)
        self.threshold = torch.zeros((), dtype=torch.float64)

    def add(self, predictions: Float[Tensor, "pairs classes"]) -> None:
        """Increment the count of each pair's likeliest pseudo-class."""
        self.counts[torch.arange(len(predictions)), predictions.argmax(1).cpu()] += 1

    def lead(self) -> Int[Tensor, " pairs"]:
        """Return each pair's count of its most frequent class minus that of the second."""
        first, second = self.counts.topk(2, dim=1).values.unbind(1)
        return first - second

    def is_consistent(self) -> Bool[Tensor, " pairs"]:
        """Return which pairs have a lead above the threshold."""
        return self.lead() > self.threshold

    def start_threshold(self) -> None:
        """Set the threshold to the mean lead."""
        self.threshold = self.lead().double().mean()

    def track_threshold(self, progress: float) -> None:
        r"""Move the threshold towards the target share of consistent pairs.

        .. math:: \tau \leftarrow \tau - 0.06\,(\lambda^* - \lambda)

        The target share :math:`\lambda^*` grows from 0.4 to 0.9; :math:`\lambda` is the share of
        pairs above the present threshold.
        """
        first, last = TARGET_SHARES
        missing = first + (last - first) * progress - float(self.is_consistent().double().mean())
        self.threshold = self.threshold - RATE * missing

    def state(self) -> dict[str, Tensor]:
        """Return counts and threshold, as stored."""
        return {"counts": self.counts.clone(), "threshold": self.threshold.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Load a state returned by :meth:`state`."""
        self.counts, self.threshold = state["counts"].clone(), state["threshold"].clone()
