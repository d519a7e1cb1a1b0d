"""How well regions find the labelled elements of pages: recall@36."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torchvision.ops import box_iou

from now_builder.detect.base import Detector, Page
from now_builder.detect.data import Screenshots, TrainPage


@dataclass(frozen=True, slots=True)
class Recall:
    """Figures over all labelled elements of some pages.

    Attributes:
        pages: How many pages; ``elements``: how many labelled elements.
        recall36: Share of elements that one of the page's 36 regions overlaps by 0.5 or more.
        classified36: Share whose best such region also has the element's class.
    """

    pages: float
    elements: float
    recall36: float
    classified36: float

    @property
    def figures(self) -> dict[str, float]:
        """Plain numbers, for the weights' JSON."""
        return {name: getattr(self, name) for name in self.__slots__}

    def __str__(self) -> str:
        """One line for the terminal."""
        return (
            f"recall@36 {self.recall36:.3f} (with the right class {self.classified36:.3f}) of "
            f"{self.elements:.0f} elements on {self.pages:.0f} held-out pages"
        )


def measure_recall(
    detector: Detector, pages: Sequence[TrainPage], screenshots: Screenshots, batch: int = 8
) -> Recall | None:
    """Run a detector over labelled pages; ``None`` if there is none.

    Args:
        detector: What to measure.
        pages: With labels.
        screenshots: Where their pixels come from.
        batch: Pages at a time.
    """
    found = right = elements = 0
    for start in range(0, len(pages), batch):
        some = pages[start : start + batch]
        regions = detector.extract(
            [Page(page.key, page.text_boxes) for page in some], screenshots.read(some)
        )
        for row, page in enumerate(some):
            boxes = torch.from_numpy(regions.boxes[row])
            overlap = box_iou(torch.tensor(page.labels.boxes), boxes)
            best, place = overlap.max(dim=1)
            hit = best >= 0.5
            classes = torch.from_numpy(regions.classes[row]).long()[place]
            found += int(hit.sum())
            right += int((hit & (classes == torch.tensor(page.labels.classes))).sum())
            elements += len(page.labels.boxes)
    if not elements:
        return None
    return Recall(float(len(pages)), float(elements), found / elements, right / elements)
