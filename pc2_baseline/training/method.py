"""The interface between a method and the trainer: one epoch at a time, never a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.networks.reading import WordSides

NETWORKS, STATISTICS, TRAINING = "networks", "statistics", "training"
"""Groups of a state: for prediction, statistics of the pairs, and for further training only."""

State = dict[str, dict[str, Tensor]]
"""Tensors by group; every method has :data:`NETWORKS` and :data:`TRAINING`, and may have others."""

EpochOutputs = Mapping[str, Mapping[str, Tensor]]
"""Tensors of one epoch on the CPU, by the run's subfolder that stores a file per epoch."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Input sizes of a method.

    Attributes:
        pairs: Number of training pairs.
        features: Width of a region in a batch.
        vocabulary: Number of tokens.
        words: Words of the data, to train a network that reads; a loaded one has them in its state.
    """

    pairs: int
    features: int
    vocabulary: int
    words: WordSides | None = None


@runtime_checkable
class Method(Protocol):
    """A method that learns from pairs where some are mismatched.

    Its class is called with the settings of the run, the :class:`Sizes` of the data and the device
    of its networks, which it initialises. A method of this package has the class of its settings as
    ``section``.

    Attributes:
        ensemble_size: Number of networks whose similarities are averaged.
    """

    ensemble_size: int

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch and return figures for the log.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.

        Raises:
            TrainingError: If a loss is not finite or the pairs cannot be divided.
        """

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""

    def state_dict(self) -> State:
        """Return all tensors that a later epoch or a prediction needs, on the CPU."""

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state; the group :data:`NETWORKS` alone is enough to predict."""

    def epoch_outputs(self) -> EpochOutputs:
        """Return the tensors of the last epoch that the run stores; may be empty.

        The tensors ``{folder: {name: tensor}}`` are written to ``RUN/folder/00005.safetensors``
        and handed to the judge and the callbacks.
        """


@runtime_checkable
class Ensemble(Protocol):
    """A :class:`Method` of several networks, which can also score with each of them.

    Its ``similarity`` is the :func:`~pc2_baseline.modules.retrieval.ensemble` of these matrices.
    """

    def similarities(self, split: PairSet) -> list[Float[np.ndarray, "images captions"]]:
        """Score every image of a split against every caption with each network, in their order."""
