"""Base of PC2, its released code and PCSR: two peers with banks, and their statistics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor

from pc2_baseline.config import ModelSettings, Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import CoTeachingSettings, Share
from pc2_baseline.methods.networks import make_network, pooled_width
from pc2_baseline.methods.pc2.bank import PredictionBank
from pc2_baseline.methods.pc2.pseudo_class import Classifier, Pc2Network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.coteaching import PEERS, DividedPairs, Rows, Triplet, full_margin_loss
from pc2_baseline.modules.division import THRESHOLD, Division, Scale
from pc2_baseline.modules.learner import Learner
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State


class PseudoClassSettings(CoTeachingSettings):
    """Settings of all methods that learn pseudo-classes."""

    classes: Annotated[int, Field(ge=2)] = Field(128, description="Pseudo-classes K.")
    class_hidden: PositiveInt = Field(256, description="Hidden width of the pseudo-classifier.")
    lambda_entropy: NonNegativeFloat = Field(
        10.0, description="Weight of the entropy that spreads predictions over the classes."
    )


class Pc2CommonSettings(PseudoClassSettings):
    """Settings shared by PC2 and PCSR; each part of the paper can be left out."""

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

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Pc2CommonSettings":
        if not self.pseudo_classes and self.rectify:
            raise ValueError("rectify needs pseudo_classes: predictions are what oscillates")
        if not self.pseudo_classes and self.pseudo_captions and self.search_by != "embedding":
            raise ValueError('pseudo_captions without pseudo_classes need search_by = "embedding"')
        return self


@dataclass(frozen=True, slots=True)
class PairStatistics(DividedPairs):
    """Statistics of all training pairs, from one peer of PC2 at the end of an epoch.

    Attributes:
        oscillation: How far the peer's pseudo-prediction moved; zeros in the first epoch.
        stable_prob: Posterior of little oscillation; zeros where it cannot be estimated.
        is_stable: Pairs whose margin is rectified by it.
    """

    oscillation: Float[np.ndarray, " pairs"]
    stable_prob: Float[np.ndarray, " pairs"]
    is_stable: Bool[np.ndarray, " pairs"]


@dataclass(frozen=True)
class PeerEpoch:
    """Network, data and division of one peer in one epoch after the warm-up.

    Attributes:
        division: Division of the *other* peer.
        correspondence: Correspondence of each pair, for the margins of clean ones.
    """

    train: PairSet
    net: Pc2Network
    learner: Learner
    bank: PredictionBank
    triplet: Triplet
    division: Division
    correspondence: Float[np.ndarray, " pairs"]

    def clean_labels(self, rows: Rows) -> Float[Tensor, " rows"]:
        """Return the correspondence of some pairs, on the device of the batches."""
        return torch.from_numpy(self.correspondence[rows]).float().to(self.train.device)

    def score(
        self,
        images: ImageCodes,
        captions: CaptionCodes,
        column: Int[Tensor, " images"] | None = None,
    ) -> Float[Tensor, "images images"]:
        """Score images with captions, each image's own in ``column``, for the triplet loss."""
        similarity = self.net.matching.score(images, captions)
        return similarity if column is None else similarity[:, column]

    @cached_property
    def clean_predictions(self) -> Float[Tensor, "clean classes"]:
        """The bank's predictions of the clean pairs, on the device of the batches."""
        return self.bank.predictions[self.division.clean].to(self.train.device)


class Pc2Peers(CoTaught[Pc2Network, PairStatistics]):
    """Two peers, each with a pseudo-classifier and a prediction bank."""

    def __init__(
        self,
        settings: Settings,
        sizes: Sizes,
        device: torch.device,
        method: PseudoClassSettings,
        classifier: type[Classifier],
    ) -> None:
        make = partial(make_pc2_network, settings.model, sizes, method, classifier)
        super().__init__(settings, device, make, PairStatistics)
        self.banks = [PredictionBank(sizes.pairs, method.classes) for _ in PEERS]

    def share_banks(self) -> None:
        """Share both peers' predictions with all processes."""
        predictions = self.groups.for_each_peer(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)

    def summary(self, peer: int) -> dict[str, float]:
        """Return figures of a peer's statistics and predictions, for the log."""
        own, classes = self.statistics[peer], self.banks[peer].predictions.argmax(1)
        return {
            **own.summary(),
            "oscillation": float(own.oscillation.mean()),
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
    classifier: type[Classifier],
    group: ProcessGroup,
) -> Pc2Network:
    """Build a peer's network, freshly drawn: the pseudo-classifier first."""
    classify = classifier(pooled_width(model), method.class_hidden, method.classes)
    return Pc2Network(make_network(model, sizes, group), classify, method.classes)


def evaluate_pairs(
    net: Pc2Network, train: PairSet, batches: Sequence[Rows], margin: float, title: str
) -> tuple[Float[np.ndarray, " pairs"], Float[Tensor, "pairs classes"]]:
    """Evaluate each pair once, in evaluation mode.

    Each pair is compared with those of its batch.

    Returns:
        Mean-negative triplet losses, and the images' pseudo-class predictions on the CPU, both by
        pair_index.
    """
    net.eval()
    own, predicted = [], []
    with net.matching.dividing():
        for rows in bar(batches, title, len(batches)):
            pairs = net.encode(train.batch(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            own.append(full_margin_loss(similarity, margin))
            predicted.append(net.predict(pairs.images))
    # Copied once, at the end: else the host would wait for the device in each batch.
    order = np.concatenate(batches)
    losses, predictions = np.zeros(len(train), np.float32), torch.zeros(len(train), net.classes)
    losses[order] = torch.cat(own).cpu().numpy()
    predictions[order] = torch.cat(predicted).cpu()
    return losses, predictions
