"""History of a training: losses of each epoch, figures on held-out pages, and pictures of them."""

import copy
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate
from torchvision.utils import draw_bounding_boxes, make_grid

from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_encoder import TextEncoder
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPages
from now_builder.detect.training.measure import Found, find, measure
from now_builder.formats.io import replacing, write_text
from now_builder.formats.shard import HEIGHT, WIDTH

Item = TypeVar("Item")
_MEASURED = 200
_DRAWN = 3
_BEST = 20


def history_path(weights: Path) -> Path:
    """Return the path of the history next to weights: JSON lines, one an epoch."""
    return weights.with_suffix(".history.jsonl")


def pictures_path(weights: Path) -> Path:
    """Return the folder next to weights with a picture of each epoch that was measured."""
    return weights.with_suffix(".pictures")


def remove_history(weights: Path) -> None:
    """Remove history and pictures."""
    history_path(weights).unlink(missing_ok=True)
    shutil.rmtree(pictures_path(weights), ignore_errors=True)


class History:
    """Record losses, figures on held-out pages and pictures while a training runs.

    Nothing here changes the training. The records are part of the checkpoint, so a training that
    was killed and resumed has the same history as one that never stopped, each epoch once.
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
        rows = _spread(range(len(found)), _DRAWN)
        screens = self._screenshots.read([self._pages[row] for row in rows])
        panels = draw_panels(screens, [found[row] for row in rows], self._names)
        sheet = make_grid(panels, nrow=len(panels), padding=8, pad_value=255)
        with replacing(pictures_path(self._weights) / f"epoch-{epoch:03d}.png") as temporary:
            image = Image.fromarray(sheet.permute(1, 2, 0).numpy())
            image.save(temporary, "PNG", compress_level=1)
        measures = measure(found, self._names)
        if measures is None:
            return {}
        return {"measured": measures.figures, "measured_by_class": measures.classes}


def _spread(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Take at most ``count`` items at even distances, as pages of a site follow each other."""
    return items[:: max(1, -(-len(items) // count))]


def draw_panels(
    screens: UInt8[Tensor, "pages 3 height width"], found: Sequence[Found], names: Sequence[str]
) -> list[UInt8[Tensor, "3 640 360"]]:
    """Draw each page twice: with its labels, and with the 20 best regions of the detector."""
    panels = []
    for screen, page in zip(interpolate(screens, (HEIGHT // 2, WIDTH // 2)), found, strict=True):
        labels = page.labels
        named = [names[kind] for kind in labels.classes] + [""] * len(labels.ignored)
        colours = [_colour(kind) for kind in labels.classes] + ["#888"] * len(labels.ignored)
        panels.append(_draw(screen, [*labels.boxes, *labels.ignored], named, colours))
        classified = np.flatnonzero(page.classes >= 0)
        best = classified[np.argsort(-page.scores[classified], kind="stable")][:_BEST][::-1]
        kinds = page.classes[best].tolist()
        pairs = zip(kinds, page.scores[best], strict=True)
        said = [f"{names[kind]} {score:.2f}" for kind, score in pairs]
        panels.append(_draw(screen, page.boxes[best].tolist(), said, list(map(_colour, kinds))))
    return panels


def _draw(screen: Tensor, boxes: Sequence[Any], names: list[str], colours: list[str]) -> Tensor:
    if not boxes:
        return screen
    halved = torch.tensor(boxes) / 2
    found: Tensor = draw_bounding_boxes(screen, halved, names, colours, width=2)
    return found


def _colour(kind: int) -> str:
    """Return the colour of a class; neighbours differ in hue."""
    return f"hsl({kind * 137.508 % 360:.0f}, 90%, {(38, 50)[kind % 2]}%)"
