"""The peers of PC2: settings, prediction banks, and statistics of the pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor

from pc2_baseline.config import ModelSettings, Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import CoTeachingSettings, Share
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.pc2.network import FlatClassifier, Pc2Network, PooledClassifier
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.coteaching import PEERS, DividedPairs, Rows, full_margin_loss
from pc2_baseline.modules.division import THRESHOLD, PairValues, Scale
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State


class PseudoClassSettings(CoTeachingSettings):
    """Settings of all methods with pseudo-classes."""

    classes: Annotated[int, Field(ge=2)] = Field(128, description="Pseudo-classes K.")
    class_hidden: PositiveInt = Field(256, description="Hidden width of the pseudo-classifier.")
    lambda_entropy: NonNegativeFloat = Field(
        10.0, description="Weight of the entropy that spreads predictions over the classes."
    )


class Pc2CommonSettings(PseudoClassSettings):
    """Settings shared by PC2 and PCSR; each part of the paper can be turned off."""

    pseudo_classes: bool = Field(
        default=True, description="Learn pseudo-classes (P-Cls); without, search by embedding."
    )
    class_input: Literal["slots", "pooled"] = Field(
        "slots",
        description="Input of the pseudo-classifier: 36 vectors in their order, or the pooled one.",
    )
    relative_targets: bool = Field(
        default=False, description="Choose a caption's pseudo-class against the mean of its batch."
    )
    division_threshold: Share = Field(
        THRESHOLD,
        description="Tau of the division: clean probability above which a pair is clean. The paper "
        "has one tau for this and for oscillation_threshold.",
    )
    division_scale: Scale = Field(
        "linear",
        description="What the division's mixture is fitted to: the losses, or their logarithms. On "
        "a small release some high losses let it call nearly all pairs clean by the first.",
    )
    rectify: bool = Field(default=True, description="Rectify clean margins by oscillation (CR).")
    oscillation_threshold: Share = Field(
        0.5, description="Tau: stable posterior from which a clean pair is rectified."
    )
    pseudo_captions: bool = Field(
        default=True, description="Train on noisy pairs' pseudo-captions (P-Cap)."
    )
    search_by: Literal["prediction", "embedding"] = Field(
        "prediction",
        description="A pseudo-caption's clean image is the one with the most similar pseudo-class "
        "prediction, or pooled embedding.",
    )
    mismatch_threshold: Share = Field(
        0.0, description="Noisy pairs below this cosine are left out (PC2*: 0.5); 0: none."
    )
    lambda_noisy: NonNegativeFloat = Field(
        1.0,
        description="Weight of the noisy pairs' loss. At 1 pseudo-captions undo the division of a "
        "small release; 0.1 does not.",
    )
    lambda_pseudo: NonNegativeFloat = Field(1.0, description="Weight of the pseudo-class loss.")

    @property
    def classifier(self) -> "type[PooledClassifier]":
        """Class of the pseudo-classifier."""
        return FlatClassifier if self.class_input == "slots" else PooledClassifier

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Pc2CommonSettings":
        if not self.pseudo_classes and self.rectify:
            raise ValueError("rectify needs pseudo_classes: predictions are what oscillates")
        if not self.pseudo_classes and self.pseudo_captions and self.search_by != "embedding":
            raise ValueError('pseudo_captions without pseudo_classes need search_by = "embedding"')
        return self


class PredictionBank:
    """Predictions of one network for all pairs at the end of an epoch."""

    def __init__(self, pairs: int, classes: int) -> None:
        self.predictions = torch.zeros(pairs, classes, dtype=torch.float32)

    @property
    def written(self) -> Bool[Tensor, " pairs"]:
        """Entries that were written: those that are not zero."""
        return self.predictions.any(1)

    def write(self, predictions: Float[Tensor, "pairs classes"]) -> None:
        """Replace all entries: row ``pair_index`` is that pair's own prediction.

        Raises:
            ValueError: If the shape is not the bank's.
        """
        if predictions.shape != self.predictions.shape:
            raise ValueError(f"{predictions.shape}, expected {self.predictions.shape}")
        self.predictions = predictions.detach().cpu().float().clone()

    def write_rows(
        self, rows: Int[np.ndarray, " batch"], predictions: Float[Tensor, "batch classes"]
    ) -> None:
        """Replace some entries."""
        self.predictions[torch.from_numpy(rows)] = predictions.detach().cpu().float()


def oscillation(
    old: Float[Tensor, "pairs classes"], new: Float[Tensor, "pairs classes"]
) -> Float[Tensor, " pairs"]:
    r"""Compute the change of each prediction, :math:`D_{KL}(p^{(e-1)} \| p^{(e)})`, in nats.

    A zero among the new predictions counts as the smallest float32.
    """
    floor = torch.finfo(torch.float32).tiny
    old, new = old.double(), new.double()
    terms = torch.xlogy(old, old) - old * new.clamp(min=floor).log()
    return terms.sum(1).clamp(min=0.0).float()


@dataclass(frozen=True, slots=True)
class PairStatistics(DividedPairs):
    """Statistics of all training pairs, from one peer of PC2 at the end of an epoch.

    Attributes:
        oscillation: Change of the peer's pseudo-prediction; zeros in the first epoch.
        stable_prob: Posterior of little oscillation; zeros where it cannot be estimated.
        is_stable: Pairs whose margin it rectifies.
    """

    oscillation: PairValues
    stable_prob: PairValues
    is_stable: Bool[np.ndarray, " pairs"]


class Pc2Peers(CoTaught):
    """Two peers, each with a pseudo-classifier and a prediction bank."""

    nets: Sequence[Pc2Network]
    divided = PairStatistics
    statistics: Sequence[PairStatistics]

    def __init__(
        self,
        settings: Settings,
        sizes: Sizes,
        device: torch.device,
        method: PseudoClassSettings,
        classifier: type[PooledClassifier],
    ) -> None:
        make = partial(make_pc2_network, settings.model, sizes, method, classifier)
        super().__init__(settings, device, make)
        self.banks = [PredictionBank(sizes.pairs, method.classes) for _ in PEERS]

    def teacher(self, peer: int) -> PairStatistics:
        """Return the statistics that a peer trains with: the other's."""
        return self.statistics[1 - peer]

    def share_banks(self) -> None:
        """Share both peers' predictions with all processes."""
        predictions = self.groups.for_each_peer(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)

    def summary(self, peer: int) -> dict[str, float]:
        """Return figures of a peer's statistics and predictions, for the log."""
        statistics, classes = self.statistics[peer], self.banks[peer].predictions.argmax(1)
        return {
            **statistics.summary(),
            "oscillation": float(statistics.oscillation.mean()),
            "classes_used": float(len(torch.unique(classes))),
        }

    def state_dict(self) -> State:
        """Return networks, statistics, banks and optimisers of both peers."""
        state = super().state_dict()
        for peer, bank in zip(PEERS, self.banks, strict=True):
            state[TRAINING][f"{peer}.bank"] = bank.predictions
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            for peer, bank in zip(PEERS, self.banks, strict=True):
                bank.write(state[TRAINING][f"{peer}.bank"])


def make_pc2_network(
    model: ModelSettings,
    sizes: Sizes,
    method: PseudoClassSettings,
    classifier: type[PooledClassifier],
    group: ProcessGroup,
) -> Pc2Network:
    """Build a peer's network with random weights, those of the pseudo-classifier first."""
    classify = classifier(model.pooled_width, method.class_hidden, method.classes)
    return Pc2Network(make_network(model, sizes, group), classify, method.classes)


def evaluate_pairs(
    net: Pc2Network, train: PairSet, batches: Sequence[Rows], margin: float, title: str
) -> tuple[PairValues, Float[Tensor, "pairs classes"]]:
    """Evaluate each pair once, in evaluation mode.

    Each pair is compared with those of its batch.

    Returns:
        Mean-negative triplet losses, and the images' pseudo-class predictions on the CPU, both by
        pair_index.
    """
    net.eval()
    batch_losses, predicted = [], []
    with net.matching.dividing():
        for rows in bar(batches, title, len(batches)):
            pairs, _ = net.encode(train.batch(rows), len(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            batch_losses.append(full_margin_loss(similarity, margin))
            predicted.append(net.predict(pairs.images))
    # Copied once at the end, so that the host does not wait for the device in each batch.
    order = np.concatenate(batches)
    losses, predictions = np.zeros(len(train), np.float32), torch.zeros(len(train), net.classes)
    losses[order] = torch.cat(batch_losses).cpu().numpy()
    predictions[order] = torch.cat(predicted).cpu()
    return losses, predictions
