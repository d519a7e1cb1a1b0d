"""Sources of regions other than the model itself: the page's DOM, or an external detector."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page, Proposals
from now_builder.formats.shard import HEIGHT, WIDTH


@runtime_checkable
class RegionSource(Protocol):
    """A source of boxes, which the detector then embeds and classifies."""

    @property
    def kind(self) -> str:
        """Value of ``/source`` of its rows: one of ``formats.features.SOURCES``."""
        ...

    def propose(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "n 3 h w"], size: tuple[int, int]
    ) -> list[Proposals]:
        """Find boxes in px of a screen of ``size``, inside it, best first.

        There may be any number; the detector's own proposals follow where there are too few.
        """
        ...


class DomBoxes:
    """The elements that the browser laid out: exact boxes, all with score 1."""

    kind = "dom"

    def propose(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "n 3 h w"], size: tuple[int, int]
    ) -> list[Proposals]:
        """Return the boxes of each page."""
        factors = torch.tensor([size[0] / WIDTH, size[1] / HEIGHT]).repeat(2)
        found = []
        for page in pages:
            boxes = torch.tensor(page.boxes, dtype=torch.float32).reshape(-1, 4) * factors
            boxes = geometry.clip(boxes, size).to(screenshots.device)
            found.append(Proposals(boxes, boxes.new_ones(len(boxes))))
        return found


class ExternalBoxes:
    """The boxes of another detector, of any class, from a score on.

    Args:
        detector: Returns boxes, in shares of width and height, and scores of some screenshots.
        least: Minimum score of the boxes that are kept.
    """

    kind = "external"

    def __init__(
        self, detector: Callable[[Tensor], tuple[Tensor, Tensor]], least: float = 0.0
    ) -> None:
        self._detector, self._least = detector, least

    def propose(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "n 3 h w"], size: tuple[int, int]
    ) -> list[Proposals]:
        """Return the boxes of each page."""
        del pages  # pixels alone
        boxes, scores = self._detector(screenshots)
        boxes = boxes * boxes.new_tensor(size).repeat(2)
        return [self._best(*page, size) for page in zip(boxes, scores, strict=True)]

    def _best(
        self, boxes: Float[Tensor, "all 4"], scores: Float[Tensor, " all"], size: tuple[int, int]
    ) -> Proposals:
        kept = (scores >= self._least) & boxes.isfinite().all(dim=1)
        scores, order = scores[kept].sort(descending=True, stable=True)
        return Proposals(geometry.clip(boxes[kept][order], size), scores)
