"""Callbacks of a training: its history by epoch, figures on held-out pages, and pictures."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_encoder import TextEncoder
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPages
from now_builder.detect.training.measure import find, measure
from now_builder.detect.training.pictures import draw_sheet
from now_builder.formats.io import replacing, write_text

Item = TypeVar("Item")
_MEASURED = 200
_DRAWN = 3


def history_path(weights: Path) -> Path:
    """Return the path of the history beside weights: JSON lines, one an epoch."""
    return weights.with_suffix(".history.jsonl")


def pictures_path(weights: Path) -> Path:
    """Return the folder beside weights with a picture of each epoch that was measured."""
    return weights.with_suffix(".pictures")


class History:
    """Record losses, figures on held-out pages and pictures while a training runs.

    Nothing here changes the training. The records are part of the checkpoint, so a training that
    was killed and goes on has the same history as one that never stopped, each epoch once.
    """

    def __init__(
        self, weights: Path, pages: TrainPages, encoder: TextEncoder, screenshots: Screenshots
    ) -> None:
        self._weights, self._names = weights, pages.mapping.class_names
        self._encoder, self._screenshots = encoder, screenshots
        self._pages = _spread(pages.held_out, _MEASURED)
        self._lines: list[dict[str, Any]] = []
        self._sums: dict[str, float] = {}
        self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the records for a checkpoint."""
        return {"lines": self._lines, "sums": self._sums, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._lines, self._sums, self._steps = state["lines"], state["sums"], state["steps"]

    def on_step_end(self, losses: dict[str, float]) -> None:
        """Record the losses of a step."""
        self._steps += 1
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def on_epoch_end(self, epoch: int, step: int, lr: float, model: AptDetector | None) -> None:
        """Write the mean losses of an epoch and, where a model is given, its figures."""
        losses = {name: value / self._steps for name, value in self._sums.items()}
        line: dict[str, Any] = {"epoch": epoch, "step": step, "lr": lr, "losses": losses}
        if model is not None and self._pages:
            line.update(self._measure(model, epoch))
        self._lines.append(line)
        self._sums, self._steps = {}, 0
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self._lines)
        write_text(history_path(self._weights), text)

    def _measure(self, model: AptDetector, epoch: int) -> dict[str, Any]:
        """Measure a model on held-out pages and draw some of them."""
        model = copy.deepcopy(model)
        model.patches = None  # describes features for export, and is fitted at the end
        extract = AptExtractor(model, self._encoder, {}).extract
        [found] = find([extract], self._pages, self._screenshots)
        drawn = _spread(range(len(found)), _DRAWN)
        screens = self._screenshots.read([self._pages[row] for row in drawn]).numpy()
        with replacing(pictures_path(self._weights) / f"epoch-{epoch:03d}.png") as temporary:
            sheet = draw_sheet(list(screens), [found[row] for row in drawn], self._names)
            sheet.save(temporary, "PNG", compress_level=1)
        measures = measure(found, self._names)
        if measures is None:
            return {}
        return {"measured": measures.figures, "measured_by_class": measures.by_class}


def _spread(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Take at most ``count`` items at even distances, as pages of a site follow each other."""
    return items[:: max(1, -(-len(items) // count))]


def remove_history(weights: Path) -> None:
    """Remove history and pictures."""
    history_path(weights).unlink(missing_ok=True)
    shutil.rmtree(pictures_path(weights), ignore_errors=True)
