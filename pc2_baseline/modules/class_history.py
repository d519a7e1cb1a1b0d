"""The history of each pair's pseudo-classes: does one of them come again and again?"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

TARGET_SHARES = 0.4, 0.9
"""Shares of consistent pairs that are aimed at, at the start and at the end of a training."""

RATE = 0.3 * 0.2
"""Step of the threshold for each unit of share that is missing."""


class ClassHistory:
    """Count how often one network gave each pair each pseudo-class.

    Args:
        pairs: Pairs of the training split.
        classes: Number of pseudo-classes.

    Attributes:
        counts: Counts of each pair, by pair_index.
        threshold: Lead from which on, exclusively, a pair is consistent.

    Source:
        PCSR (Liu et al., AAAI 2026): the pseudo-label consistency score, as in the authors' code.

    Differs:
        The authors' code counts every training step of the warm-up once and every dividing pass
        twice; here each dividing pass counts once.
    """

    def __init__(self, pairs: int, classes: int) -> None:
        self.counts = torch.zeros(pairs, classes, dtype=torch.int16)
        self.threshold = torch.zeros((), dtype=torch.float64)

    def add(self, predictions: Float[Tensor, "pairs classes"]) -> None:
        """Count each pair's likeliest pseudo-class once more."""
        self.counts[torch.arange(len(predictions)), predictions.argmax(1).cpu()] += 1

    def lead(self) -> Int[Tensor, " pairs"]:
        """Return by how many counts each pair's most frequent class leads the second."""
        first, second = self.counts.topk(2, dim=1).values.unbind(1)
        return first - second

    def is_consistent(self) -> Bool[Tensor, " pairs"]:
        """Return which pairs have a lead above the threshold."""
        return self.lead() > self.threshold

    def start_threshold(self) -> None:
        """Set the threshold to the mean lead."""
        self.threshold = self.lead().double().mean()

    def track_threshold(self, progress: float) -> None:
        r"""Move the threshold towards the share of consistent pairs that is aimed at.

        .. math:: \tau \leftarrow \tau - 0.06\,(\lambda^* - \lambda)

        The share aimed at, :math:`\lambda^*`, grows from 0.4 to 0.9; :math:`\lambda` is the share
        of pairs above the threshold now.

        Args:
            progress: Part of the training that is over, in [0, 1].
        """
        first, last = TARGET_SHARES
        missing = first + (last - first) * progress - float(self.is_consistent().double().mean())
        self.threshold = self.threshold - RATE * missing

    def state(self) -> dict[str, Tensor]:
        """Return counts and threshold, as stored."""
        return {"counts": self.counts.clone(), "threshold": self.threshold.clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        """Load what :meth:`state` returned."""
        self.counts, self.threshold = state["counts"].clone(), state["threshold"].clone()
