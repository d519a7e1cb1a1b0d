"""Sources of regions: the model itself, the page's DOM, or an external detector."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page, Proposals
from now_builder.detect.model.apt import PROPOSALS, AptDetector
from now_builder.detect.model.proposals import PageMaps
from now_builder.formats.shard import HEIGHT, WIDTH


@dataclass(frozen=True, slots=True)
class PageBatch:
    """A batch of pages as a source of regions takes it, all on the detector's device.

    Attributes:
        pages: What is known of each page.
        screenshots: RGB screenshots of the extractor's ``input_size``.
        maps: Feature maps of the screenshots.
        size: Width and height, in px, of the detector's input, in which boxes are returned.
        limit: Number of boxes a page that will be embedded; a source need not return more.
    """

    pages: Sequence[Page]
    screenshots: UInt8[Tensor, "n 3 h w"]
    maps: PageMaps
    size: tuple[int, int]
    limit: int = PROPOSALS


@runtime_checkable
class RegionSource(Protocol):
    """A source of boxes, which the detector then embeds and classifies."""

    @property
    def kind(self) -> str:
        """Value of ``/source`` of its rows: one of ``formats.features.SOURCES``."""
        ...

    def propose(self, batch: PageBatch) -> list[Proposals]:
        """Find the boxes of each page, in detector input px, inside the screen, best first.

        There may be any number; after too few, the detector's own proposals follow.
        """
        ...


class OwnProposals:
    """The detector's own region proposals; their boxes are regressed later."""

    kind = "detector"

    def __init__(self, model: AptDetector) -> None:
        self._model = model

    def propose(self, batch: PageBatch) -> list[Proposals]:
        """Return the boxes of each page."""
        return self._model.propose(batch.maps, batch.limit)


class DomBoxes:
    """The elements that the browser laid out: exact boxes, all with score 1."""

    kind = "dom"

    def propose(self, batch: PageBatch) -> list[Proposals]:
        """Return the boxes of each page."""
        device = batch.screenshots.device
        factors = torch.tensor([batch.size[0] / WIDTH, batch.size[1] / HEIGHT]).repeat(2)
        found = []
        for page in batch.pages:
            boxes = torch.tensor(page.boxes, dtype=torch.float32).reshape(-1, 4) * factors
            boxes = geometry.clip(boxes, batch.size).to(device)
            found.append(Proposals(boxes, boxes.new_ones(len(boxes))))
        return found


class ExternalBoxes:
    """The boxes of another detector, of any class, from a score on.

    Args:
        detector: Returns boxes, in shares of width and height, and scores of some screenshots.
        least: Least score of the boxes that are kept.
    """

    kind = "external"

    def __init__(
        self, detector: Callable[[Tensor], tuple[Tensor, Tensor]], least: float = 0.0
    ) -> None:
        self._detector, self._least = detector, least

    def propose(self, batch: PageBatch) -> list[Proposals]:
        """Return the boxes of each page."""
        boxes, scores = self._detector(batch.screenshots)
        boxes = boxes * boxes.new_tensor(batch.size).repeat(2)
        return [self._best(*page, batch.size) for page in zip(boxes, scores, strict=True)]

    def _best(
        self, boxes: Float[Tensor, "all 4"], scores: Float[Tensor, " all"], size: tuple[int, int]
    ) -> Proposals:
        kept = (scores >= self._least) & boxes.isfinite().all(dim=1)
        scores, order = scores[kept].sort(descending=True, stable=True)
        return Proposals(geometry.clip(boxes[kept][order], size), scores)
