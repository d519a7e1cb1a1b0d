"""The prediction bank: each pair's last pseudo-class prediction, by pair_index."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class PredictionBank:
    """Hold the predictions that one network made for all pairs at the end of an epoch."""

    def __init__(self, pairs: int, classes: int) -> None:
        self.predictions = torch.zeros(pairs, classes, dtype=torch.float32)

    @property
    def written(self) -> Bool[Tensor, " pairs"]:
        """Entries that were written: a prediction sums to 1."""
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
    r"""Compute how far each prediction moved: :math:`D_{KL}(p^{(e-1)} \| p^{(e)})`, in nats.

    A zero among the new predictions counts as the smallest float32.
    """
    floor = torch.finfo(torch.float32).tiny
    old, new = old.double(), new.double()
    terms = torch.xlogy(old, old) - old * new.clamp(min=floor).log()
    return terms.sum(1).clamp(min=0.0).float()
