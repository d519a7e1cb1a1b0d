"""PCSR: pseudo-label consistency-guided sample refinement (Liu et al., AAAI 2026)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.pcsr import PcsrSettings
from pc2_baseline.methods.bases.co_taught import CoTaught, Kind
from pc2_baseline.modules.class_history import ClassHistory
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.modules.coteaching import (
    DIVISIONS,
    NONE,
    PEERS,
    PairStatistics,
    PeerEpoch,
    Rows,
    batches_beside,
)
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.learner import Step, prefixed, under
from pc2_baseline.modules.losses import robust_class_loss
from pc2_baseline.modules.pc2_network import Encoded
from pc2_baseline.networks.codes import ImageCodes
from pc2_baseline.training.method import EpochOutputs, Sizes, State

_HISTORY = "history"


class Pcsr(CoTaught):
    """PC2's peers, which tell noisy pairs apart by how often their pseudo-class came again.

    A noisy pair whose image is given one pseudo-class again and again is refinable: its image
    learns from a pseudo-caption, as in PC2. The others are ambiguous: their images are matched with
    soft margins and classified by a loss that forgives wrong classes. The warm-up is InfoNCE alone;
    after it come three stages: clean pairs, refinable ones beside them, ambiguous ones, too.

    Args:
        settings: Settings of the run; the method section is :class:`PcsrSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Attributes:
        histories: Pseudo-classes that each peer gave the pairs; as divisions they are crossed, so
            that a peer trains on what the other calls refinable.

    Source:
        PCSR (Liu et al., AAAI 2026); what it does not say itself as in PC2 (Duan et al., ACM MM
        2024). Formulas and stages as in the authors' code.

    Differs:
        The authors' code is a fork of that of PC2 and shares what departs from PC2's paper there
        (see :class:`~pc2_baseline.methods.pc2_released.Pc2Released`); here these parts are as in
        PC2's paper, and the losses of all kinds are one sum. In it, ambiguous images are matched
        with pseudo-captions, too: ``ambiguous_captions = "pseudo"``.
    """

    method: PcsrSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, PcsrSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of pcsr")
        super().__init__(settings, sizes, device)
        self.needed_divisions = self.train.warmup_epochs  # a history has all predictions
        self.histories = [ClassHistory(sizes.pairs, self.method.classes) for _ in PEERS]
        self.robust_loss = partial(robust_class_loss, power=self.method.gce_power)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        figures = super().fit_epoch(train, epoch)
        states = self.groups.for_each_peer(lambda peer: self.histories[peer].state())
        for history, state in zip(self.histories, states, strict=True):
            history.load(state)
        kinds = zip(PEERS, self.histories, self.statistics, strict=True)
        return figures | {
            f"refinable_{name}": float(np.sum(~own.division.is_clean & _consistent(history)))
            for name, history, own in kinds
        }

    def state_dict(self) -> State:
        """Return networks, statistics, banks, histories and optimisers of both peers."""
        state = super().state_dict()
        for name, history in zip(PEERS, self.histories, strict=True):
            state["training"] |= prefixed(f"{name}.{_HISTORY}", history.state())
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if "training" in state:
            for name, history in zip(PEERS, self.histories, strict=True):
                history.load(under(state["training"], f"{name}.{_HISTORY}"))

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

    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer, divide them, and add to its history."""
        statistics = super().divide_pairs(train, epoch, peer)
        history = self.histories[peer]
        history.add(self.banks[peer].predictions)
        tracked = self.method.consistency_threshold == "tracked"
        if not tracked or epoch < self.train.warmup_epochs:
            history.start_threshold()
        if tracked:
            history.track_threshold((epoch + 1) / self.train.total_epochs)
        return statistics

    def noisy_loss(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded, _: Int[Tensor, " noisy"]
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with their pseudo-captions."""
        return self.pseudo_caption_loss(own, noisy, *self.search_batch(own, noisy, pairs))

    def kinds(self, peer: int, division: Division, kept: Mapping[str, Tensor]) -> list[Kind]:
        """Say how a peer learns which pairs: clean, refinable and ambiguous ones."""
        clean, refinable = super().kinds(peer, division, kept)
        noisy = division.noisy
        consistent = kept[f"{PEERS[1 - peer]}.is_consistent"].numpy()[noisy]
        ambiguous = Kind(
            "ambiguous",
            noisy[~consistent],
            self.method.lambda_ambiguous,
            by_pseudo_captions=self.method.ambiguous_captions == "pseudo",
        )
        return [clean, replace(refinable, name="refinable", rows=noisy[consistent]), ambiguous]

    def _warm_up_loss(self, peer: int, _: Rows, pairs: Encoded) -> Float[Tensor, ""]:
        """InfoNCE alone: the pseudo-classifier does not learn yet."""
        similarity = self.nets[peer].matching.score(pairs.images, pairs.captions)
        return info_nce(similarity, self.method.temperature).mean()

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, ...]]:
        """Cut the pairs into batches of clean, refinable and ambiguous ones, by the stage."""
        since, noisy = epoch - self.train.warmup_epochs, division.noisy
        consistent = _consistent(self.histories[1 - peer])[noisy]
        refinable, ambiguous = NONE, NONE
        if self.method.pseudo_captions and since >= self.method.noisy_from_epoch:
            refinable = noisy[consistent]
        if since >= self.method.ambiguous_from_epoch:
            ambiguous = noisy[~consistent]
        others = [refinable, ambiguous]
        return batches_beside(
            division.clean, others, self.train.batch, self.train.seed, epoch, peer
        )

    def _take_step(self, own: PeerEpoch, rows: tuple[Rows, ...], step: Step) -> tuple[float, float]:
        """Take one step down the sum of the losses of all kinds, whose images are encoded together.

        Returns:
            The loss, and its refinable part.
        """
        clean, refinable, ambiguous = rows
        whole = np.append(clean, ambiguous)
        pairs, images, lengths = own.net.encode_split(own.train, whole, refinable)
        clean_pairs, ambiguous_pairs = pairs[: len(clean)], pairs[len(clean) :]
        refined = unclear = torch.zeros((), device=self.device)
        if len(refinable):
            refined = self.noisy_loss(own, images, clean_pairs, lengths)
        if len(ambiguous):
            unclear = self._ambiguous_loss(own, ambiguous_pairs, clean_pairs, ambiguous)
        step = replace(step, parts={"refinable": refined.item(), "ambiguous": unclear.item()})
        total = self._clean_loss(own, clean_pairs, clean) + self.method.lambda_noisy * refined
        loss = own.learner.step(total + self.method.lambda_ambiguous * unclear, step)
        return loss, refined.item()

    def _ambiguous_loss(
        self, own: PeerEpoch, pairs: Encoded, clean: Encoded, rows: Rows
    ) -> Float[Tensor, ""]:
        """Triplet loss with soft margins, and class terms with the generalised cross-entropy."""
        if self.method.ambiguous_captions == "pseudo":
            matching = self.noisy_loss(own, pairs.images, clean, pairs.captions.lengths)
        else:
            matching = self._matching_loss(own, pairs, rows)
        return matching + self._class_terms(own.net, pairs, self.robust_loss)


def _consistent(history: ClassHistory) -> np.ndarray:
    return history.is_consistent().numpy()
