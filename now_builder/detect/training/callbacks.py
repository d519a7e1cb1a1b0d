"""What is seen of a training while it runs: losses and measures of each epoch, and pictures."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_encoder import TextEncoder
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPage
from now_builder.detect.training.measure import find, measure
from now_builder.detect.training.pictures import draw_sheet
from now_builder.formats.io import replacing, write_text

Item = TypeVar("Item")
_MEASURED = 200
_SHOWN = 3


def history_path(weights: Path) -> Path:
    """The JSON lines beside weights: one an epoch."""
    return weights.with_suffix(".history.jsonl")


def pictures_path(weights: Path) -> Path:
    """The folder beside weights with a picture of each epoch that was measured."""
    return weights.with_suffix(".pictures")


class Watch:
    """Keeps the history of a training, and shows a model the held-out pages from time to time.

    Nothing here changes the training. What was told is part of the checkpoint, so that a training
    which is killed and goes on tells the same story, each epoch once.

    Args:
        weights: Of the training; history and pictures appear beside them.
        held_out: At most 200 of them, spread evenly, are measured, and three of those are drawn.
        names: Of the classes.
        encoder: Of the text boxes.
        screenshots: At the input's size.
    """

    def __init__(
        self,
        weights: Path,
        held_out: Sequence[TrainPage],
        names: Sequence[str],
        encoder: TextEncoder,
        screenshots: Screenshots,
    ) -> None:
        self._weights, self._names = weights, names
        self._encoder, self._screenshots = encoder, screenshots
        self._pages = _spread(held_out, _MEASURED)
        self._lines: list[dict[str, Any]] = []
        self._sums: dict[str, float] = {}
        self._steps = 0

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"lines": self._lines, "sums": self._sums, "steps": self._steps}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from a checkpoint, or from nothing."""
        if state is None:
            forget(self._weights)
        else:
            self._lines, self._sums, self._steps = state["lines"], state["sums"], state["steps"]

    def add(self, losses: dict[str, float]) -> None:
        """Take down the losses of a step."""
        self._steps += 1
        for name, value in losses.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def close(self, epoch: int, step: int, lr: float, model: AptDetector | None) -> None:
        """End an epoch: its mean losses, and, where a model is given, how good that is now.

        Args:
            epoch: Its number, from 1.
            step: Steps taken until now.
            lr: The highest learning rate in the last of them.
            model: What to measure; it stays as it is.
        """
        losses = {name: value / self._steps for name, value in self._sums.items()}
        line: dict[str, Any] = {"epoch": epoch, "step": step, "lr": lr, "losses": losses}
        if model is not None and self._pages:
            line.update(self._look(model, epoch))
        self._lines.append(line)
        self._sums, self._steps = {}, 0
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self._lines)
        write_text(history_path(self._weights), text)

    def _look(self, model: AptDetector, epoch: int) -> dict[str, Any]:
        model = copy.deepcopy(model)
        model.look = None  # describes features for export, and is fitted at the end
        found = find(AptExtractor(model, self._encoder, {}), self._pages, self._screenshots)
        shown = _spread(range(len(found)), _SHOWN)
        screens = self._screenshots.read([self._pages[row] for row in shown]).numpy()
        with replacing(pictures_path(self._weights) / f"epoch-{epoch:03d}.png") as temporary:
            sheet = draw_sheet(list(screens), [found[row] for row in shown], self._names)
            sheet.save(temporary, "PNG", compress_level=1)
        measures = measure(found, self._names)
        if measures is None:
            return {}
        return {"measured": measures.figures, "measured_by_class": measures.by_class}


def _spread(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Take at most ``count`` items at even distances: pages of a site stand beside each other."""
    return items[:: max(1, -(-len(items) // count))]


def forget(weights: Path) -> None:
    """Remove history and pictures."""
    history_path(weights).unlink(missing_ok=True)
    shutil.rmtree(pictures_path(weights), ignore_errors=True)
