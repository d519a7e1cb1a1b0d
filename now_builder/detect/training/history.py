"""Record the history of a training: losses, figures on held-out pages, and their pictures."""

import copy
import json
import shutil
from collections import Counter
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

from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.learner import Learner, learning_rate
from now_builder.detect.training.measure import Found, find, measure
from now_builder.formats.io import atomic_write, write_text
from now_builder.formats.shard import HEIGHT, WIDTH

Item = TypeVar("Item")
_EPOCHS = 12  # Maximum number of evenly spaced epochs that are measured; the last is measured too
_MEASURED = 200
_DRAWN = 3
_BEST = 20


def history_path(weights: Path) -> Path:
    """Return the path of the history next to weights: a JSON line per epoch."""
    return weights.with_suffix(".history.jsonl")


def pictures_path(weights: Path) -> Path:
    """Return the folder next to weights with a picture of each measured epoch."""
    return weights.with_suffix(".pictures")


def remove_history(weights: Path) -> None:
    """Remove history and pictures."""
    history_path(weights).unlink(missing_ok=True)
    shutil.rmtree(pictures_path(weights), ignore_errors=True)


class History:
    """Record losses, figures on held-out pages and pictures while a training runs.

    It does not change the training. ``state`` is part of the checkpoint, so a resumed training
    records each epoch once.
    """

    def __init__(self, weights: Path, learner: Learner) -> None:
        self._weights, self._learner = weights, learner
        self._pages = _spread(learner.pages.held_out, _MEASURED)
        self.state: dict[str, Any] = {"lines": [], "sums": Counter(), "steps": 0}

    def record(self, losses: dict[str, float]) -> None:
        """Record the losses of a step, and the epoch if the step ends it or the training."""
        self.state["sums"].update(losses)
        self.state["steps"] += 1
        step, total = self._learner.step, self._learner.recipe.steps
        batch, pages = self._learner.recipe.batch, len(self._learner.pages.learn)
        before, now = (step - 1) * batch // pages, step * batch // pages
        if now == before and step < total:
            return
        epoch, epochs = max(now, before + 1), -(-total * batch // pages)
        means = {name: value / self.state["steps"] for name, value in self.state["sums"].items()}
        rate = learning_rate(self._learner.recipe, step - 1)
        line: dict[str, Any] = {"epoch": epoch, "step": step, "lr": rate, "losses": means}
        if self._pages and (step == total or epoch % -(-epochs // _EPOCHS) == 0):
            line |= self._measure(epoch)
        self.state["lines"].append(line)
        self.state |= {"sums": Counter(), "steps": 0}
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self.state["lines"])
        write_text(history_path(self._weights), text)

    def _measure(self, epoch: int) -> dict[str, Any]:
        """Measure the model on held-out pages and draw some of them."""
        model = copy.deepcopy(self._learner.final)
        model.patches = None  # fitted at the end; the figures need no stored features
        names, screenshots = self._learner.pages.mapping.class_names, self._learner.screenshots
        results = find(AptExtractor(model, self._learner.encoder, {}), self._pages, screenshots)
        screens = screenshots.read(_spread(self._pages, _DRAWN))
        panels = draw_panels(screens, _spread(results, _DRAWN), names)
        sheet = make_grid(panels, nrow=len(panels), padding=8, pad_value=255)
        with atomic_write(pictures_path(self._weights) / f"epoch-{epoch:03d}.png") as temporary:
            image = Image.fromarray(sheet.permute(1, 2, 0).numpy())
            image.save(temporary, "PNG", compress_level=1)
        measures = measure(results, names)
        if measures is None:
            return {}
        return {"measured": measures.figures, "measured_by_class": measures.classes}


def _spread(items: Sequence[Item], count: int) -> Sequence[Item]:
    """Return at most ``count`` evenly spaced items, since pages of a site are neighbours."""
    return items[:: max(1, -(-len(items) // count))]


def draw_panels(
    screens: UInt8[Tensor, "pages 3 height width"], found: Sequence[Found], names: Sequence[str]
) -> list[UInt8[Tensor, "3 640 360"]]:
    """Draw each page twice: with its labels, and with the detector's 20 best regions."""
    panels = []
    for screen, page in zip(interpolate(screens, (HEIGHT // 2, WIDTH // 2)), found, strict=True):
        ranked = np.argsort(-page.scores, kind="stable")
        best = ranked[page.classes[ranked] >= 0][:_BEST]
        scored = zip(page.classes[best], page.scores[best], strict=True)
        for boxes, texts in (
            (np.array(page.labels.boxes), [names[number] for number in page.labels.classes]),
            (page.boxes[best], [f"{names[number]} {score:.2f}" for number, score in scored]),
        ):
            halved = torch.from_numpy(boxes.reshape(-1, 4)) / 2
            panels.append(draw_bounding_boxes(screen, halved, texts) if texts else screen)
    return panels
