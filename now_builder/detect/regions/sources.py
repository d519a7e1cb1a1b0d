"""Where regions come from: the model itself, the page's DOM, or a detector of others."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page, Proposals
from now_builder.detect.model.apt import PROPOSALS, AptDetector
from now_builder.formats.shard import HEIGHT, WIDTH


@dataclass(frozen=True, slots=True)
class View:
    """A batch of pages as a source of regions sees it, all on the detector's device.

    Attributes:
        pages: What is known of each.
        screenshots: RGB, at the extractor's ``input_size``.
        maps: Their C4 maps.
        size: Width and height of the detector's input, px: what boxes are to be given in.
        room: How many of a source's boxes a page will be embedded; more are of no use.
    """

    pages: Sequence[Page]
    screenshots: UInt8[Tensor, "n 3 h w"]
    maps: Float[Tensor, "n c i j"]
    size: tuple[int, int]
    room: int = PROPOSALS


@runtime_checkable
class RegionSource(Protocol):
    """Anything that finds boxes on pages, which the detector then embeds and classifies."""

    @property
    def kind(self) -> str:
        """What ``/source`` says of its rows: one of ``formats.features.SOURCES``."""
        ...

    def propose(self, view: View) -> list[Proposals]:
        """Find the boxes of each page, in detector input px, inside the screen, best first.

        There may be any number; where there are few, the detector's own proposals follow.
        """
        ...


class OwnProposals:
    """The detector's own region proposals; their boxes are regressed later."""

    kind = "detector"

    def __init__(self, model: AptDetector) -> None:
        self._model = model

    def propose(self, view: View) -> list[Proposals]:
        """Give the boxes of each page."""
        return self._model.propose(view.maps, view.room)


class DomBoxes:
    """The elements that the browser laid out: exact boxes, all equally likely."""

    kind = "dom"

    def propose(self, view: View) -> list[Proposals]:
        """Give the boxes of each page."""
        device = view.maps.device
        factors = torch.tensor([view.size[0] / WIDTH, view.size[1] / HEIGHT]).repeat(2)
        found = []
        for page in view.pages:
            boxes = torch.tensor(page.boxes, dtype=torch.float32).reshape(-1, 4) * factors
            boxes = geometry.clip(boxes, view.size).to(device)
            found.append(Proposals(boxes, boxes.new_ones(len(boxes))))
        return found


class ExternalBoxes:
    """What another detector finds, of any class, from a score on.

    Args:
        detector: Gives boxes, in shares of width and height, and scores of a batch of screenshots.
        least: Boxes that score lower are left out.
    """

    kind = "external"

    def __init__(
        self, detector: Callable[[Tensor], tuple[Tensor, Tensor]], least: float = 0.0
    ) -> None:
        self._detector = detector
        self._least = least

    def propose(self, view: View) -> list[Proposals]:
        """Give the boxes of each page."""
        boxes, scores = self._detector(view.screenshots)
        boxes = boxes * boxes.new_tensor(view.size).repeat(2)
        return [self._best(*page, view.size) for page in zip(boxes, scores, strict=True)]

    def _best(
        self, boxes: Float[Tensor, "all 4"], scores: Float[Tensor, " all"], size: tuple[int, int]
    ) -> Proposals:
        kept = (scores >= self._least) & boxes.isfinite().all(dim=1)
        scores, order = scores[kept].sort(descending=True, stable=True)
        return Proposals(geometry.clip(boxes[kept][order], size), scores)
