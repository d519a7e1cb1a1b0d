"""Callbacks of a training: divisions judged against a truth, and pictures."""

from pathlib import Path

import numpy as np

from pc2_baseline.analysis.truth import Truth, judged
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.training.checkpoint import CheckpointState
from pc2_baseline.training.method import EpochOutputs
from pc2_baseline.training.run_folder import CURVES, PICTURES


class DivisionJudge:
    """Compare each epoch's division with the truth; nothing learns from it.

    Args:
        truth: Known truth of the training pairs.
    """

    headline = "auroc"

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    def figures(self, outputs: EpochOutputs) -> dict[str, float]:
        """Return AUROC, precision and recall of the division; empty without one."""
        division = _division(outputs)
        return judged(division, self._truth) if division else {}


class PictureCallback:
    """Draw ``RUN/curves.png``, and each epoch's division where there is one.

    Args:
        run: The run folder.
        pairs: Pairs of the training split.
        warmup: Epochs of the warm-up.
        truth: Colours the pairs if given.
    """

    def __init__(self, run: Path, pairs: int, warmup: int, truth: Truth | None) -> None:
        self.name = f"pictures of {run}"
        self._run = run
        self._pairs = pairs
        self._warmup = warmup
        self._truth = truth

    def on_epoch_end(self, state: CheckpointState, outputs: EpochOutputs) -> None:
        """Draw the epoch that just ended."""
        from pc2_baseline.analysis.pictures import draw_curves, draw_division  # noqa: PLC0415 - seconds

        if division := _division(outputs):
            path = self._run / PICTURES / f"{state.epoch:05d}.png"
            draw_division(path, division, self._truth, f"Epoch {state.epoch + 1}")
        draw_curves(self._run / CURVES, state, self._pairs, self._warmup)

    def close(self) -> None:
        """Do nothing: no file stays open."""


def _division(outputs: EpochOutputs) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in outputs.get(DIVISIONS, {}).items()}
