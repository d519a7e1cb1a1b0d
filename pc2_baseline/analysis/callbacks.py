"""Callbacks of a training: divisions judged against a truth, and pictures."""

from pathlib import Path

import numpy as np

from pc2_baseline.analysis.truth import Truth, quality
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs
from pc2_baseline.training.run_folder import CURVES, PICTURES


def judge_division(truth: Truth, outputs: EpochOutputs) -> dict[str, float]:
    """Compare an epoch's division with the truth, for the log; nothing learns from it.

    Returns:
        AUROC, precision and recall; nothing without a division.
    """
    division = _division(outputs)
    if not division:
        return {}
    found = quality(0, division, truth)
    figures = {
        "auroc": found.auroc,
        "clean_precision": found.precision,
        "clean_recall": found.recall,
    }
    return {name: value for name, value in figures.items() if value is not None}


class PictureCallback:
    """Draw ``RUN/curves.png``, and each epoch's division where there is one.

    A truth colours the pairs; the end of the warm-up is marked.
    """

    def __init__(self, run: Path, pairs: int, warmup: int, truth: Truth | None) -> None:
        self.name = f"pictures of {run}"
        self._run = run
        self._pairs = pairs
        self._warmup = warmup
        self._truth = truth

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Draw the epoch that just ended."""
        from pc2_baseline.analysis.pictures import draw_curves, draw_division

        if division := _division(outputs):
            path = self._run / PICTURES / f"{state.epoch:05d}.png"
            draw_division(path, division, self._truth, f"Epoch {state.epoch + 1}")
        draw_curves(self._run / CURVES, state, self._pairs, self._warmup)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _division(outputs: EpochOutputs) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in outputs.get(DIVISIONS, {}).items()}
