"""What every method offers the trainer: one epoch at a time, never a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pc2_baseline.config import ModelSettings, TrainSettings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.modules.image import ImageEncoder
from pc2_baseline.modules.learner import Learner
from pc2_baseline.modules.network import MatchingNetwork
from pc2_baseline.modules.similarity import Room, SafSimilarity, SgrSimilarity, Similarity
from pc2_baseline.modules.text import CaptionEncoder
from pc2_baseline.training.process_groups import ALONE, Team

State = dict[str, dict[str, Tensor]]
"""Tensors by group: ``networks`` (what prediction needs), ``beliefs``, ``training``."""

RATE_AFTER_DROP = 0.1


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a method must know of the data before it sees any.

    Attributes:
        pairs: Of the training split.
        features: Width of a region.
        vocabulary: Number of tokens.
    """

    pairs: int
    features: int
    vocabulary: int


@runtime_checkable
class Method(Protocol):
    """A way to learn from pairs of which some are mismatched.

    Attributes:
        ensemble_size: Networks whose similarities are averaged.
    """

    ensemble_size: int

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Learn for one epoch and give figures for the log.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.

        Raises:
            TrainingError: If a loss is not finite or the pairs cannot be divided.
        """

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""

    def state_dict(self) -> State:
        """Everything that a later epoch or a prediction hangs on, on the CPU."""

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take a state back; with the group ``networks`` alone, enough to predict."""


def make_network(model: ModelSettings, sizes: Sizes, team: Team = ALONE) -> MatchingNetwork:
    """Build the network of a run's settings, freshly drawn.

    Args:
        model: Settings.
        sizes: Of the data.
        team: Ranks that train it together.
    """
    net = MatchingNetwork(
        ImageEncoder(sizes.features, model.embed_dim, model.dropout, model.feature_dropout),
        CaptionEncoder(
            sizes.vocabulary, model.word_dim, model.embed_dim, model.dropout, model.word_dropout
        ),
        _make_similarity(model),
    )
    net.similarity.team = team
    return net


def make_learner(net: nn.Module, matching: MatchingNetwork, train: TrainSettings) -> Learner:
    """Build the learner of a network, of which ``matching`` is the part that scores."""
    return Learner(net, train.lr, train.clip, train.weight_decay, matching.similarity)


def _make_similarity(model: ModelSettings) -> Similarity:
    room = Room(model.chunk_mb, model.keep_mb, model.precision)
    if model.similarity == "saf":
        return SafSimilarity(model.embed_dim, model.similarity_dim, room)
    return SgrSimilarity(model.embed_dim, model.similarity_dim, model.graph_layers, room)


def rate(epoch: int, warmup: int, drop: int) -> float:
    """Factor of the learning rate: full, then a tenth ``drop`` epochs after the warm-up."""
    return RATE_AFTER_DROP if epoch - warmup >= drop else 1.0


def device_of(net: torch.nn.Module) -> torch.device:
    """Where a network lives."""
    return next(net.parameters()).device
