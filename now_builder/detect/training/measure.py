"""Recall@36 and average precision of 36 regions a page against the labelled elements.

Source:
    COCO (Lin et al., ECCV 2014), as pycocotools computes it.

Differs:
    A page has 36 regions, whatever their scores, as in the feature file.
    COCO allows 100 detections, so these figures are lower than those of all of its detections.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Integer
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor
from torchvision.ops import box_iou

from now_builder.detect.base import Page
from now_builder.detect.labels.elements import Labels
from now_builder.detect.training.data import Screenshots, TrainPage
from now_builder.formats.features import REGIONS, FeatureBatch
from now_builder.program.progress import Progress

_FOUND = 0.5


@dataclass(frozen=True, slots=True)
class ClassifiedBoxes:
    """Boxes in image px with the classes and scores of a detector, but without features."""

    boxes: Float[np.ndarray, "pages 36 4"]
    scores: Float[np.ndarray, "pages 36"]
    classes: Integer[np.ndarray, "pages 36"]


Extract = Callable[[Sequence[Page], Tensor], FeatureBatch | ClassifiedBoxes]
"""Finds 36 regions a page in screenshots, as the method ``extract`` of every detector does."""


@dataclass(frozen=True, slots=True)
class Found:
    """The regions of one page beside its labels, boxes in image px."""

    labels: Labels
    boxes: Float[np.ndarray, "n 4"]
    scores: Float[np.ndarray, " n"]
    classes: Integer[np.ndarray, " n"]


@dataclass(frozen=True, slots=True)
class ClassMeasures:
    """Figures of one class, as in :class:`Measures`."""

    elements: float
    recall36: float
    ap: float
    ap50: float


@dataclass(frozen=True, slots=True)
class Measures:
    """Figures over all labelled elements of some pages.

    Attributes:
        elements: Number of labelled elements.
        recall36: Share of elements that one of the page's 36 regions overlaps by 0.5 or more.
        classified36: Share of elements whose best such region also has the element's class.
        ap: Average precision, the mean over overlaps of 0.5, 0.55 … 0.95 and over the classes that
            the pages show.
        ap50: Average precision at an overlap of 0.5; ``ap75`` at 0.75.
        classes: Figures of each class that the pages show, by name.
    """

    pages: float
    elements: float
    recall36: float
    classified36: float
    ap: float
    ap50: float
    ap75: float
    classes: dict[str, ClassMeasures] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Plain numbers over all classes, for the weights' JSON."""
        return {name: value for name, value in asdict(self).items() if name != "classes"}

    @property
    def by_class(self) -> dict[str, dict[str, float]]:
        """Plain numbers of each class, for the weights' JSON."""
        found: dict[str, dict[str, float]] = asdict(self)["classes"]
        return found

    def __str__(self) -> str:
        return (
            f"AP50 {self.ap50:.3f}, AP {self.ap:.3f}, recall@36 {self.recall36:.3f} (with the "
            f"right class {self.classified36:.3f}) of {self.elements:.0f} elements on "
            f"{self.pages:.0f} held-out pages"
        )


def find(
    extractors: Sequence[Extract],
    pages: Sequence[TrainPage],
    screenshots: Screenshots,
    batch: int = 8,
) -> list[list[Found]]:
    """Find the regions of labelled pages in screenshots of the detector's input size.

    Returns:
        For each extractor the regions of each page.
    """
    found: list[list[Found]] = [[] for _ in extractors]
    with Progress("measure", len(pages)) as progress:
        for start in range(0, len(pages), batch):
            some = pages[start : start + batch]
            known, pixels = [page.known for page in some], screenshots.read(some)
            for extract, its in zip(extractors, found, strict=True):
                regions = extract(known, pixels)
                rows = zip(some, regions.boxes, regions.scores, regions.classes, strict=True)
                its += [Found(page.labels, *row) for page, *row in rows]
            progress.add(len(some))
    return found


def measure(found: Sequence[Found], names: Sequence[str]) -> Measures | None:
    """Compute all figures from the regions of some pages; ``None`` if no element is labelled.

    Average precision is computed on the regions' boxes, scores and classes as they are stored.
    Regions without a class (windows of the grid) count for recall alone; regions on an ignored
    element and on no labelled one count neither for nor against.
    """
    numbers = np.array([number for page in found for number in page.labels.classes], dtype=int)
    if not len(numbers):
        return None
    hits = np.concatenate([_hits(page) for page in found])
    precision = _precision(found, len(names))
    recall, classified = hits.mean(axis=0).tolist()
    classes = {
        names[number]: ClassMeasures(
            elements=float((numbers == number).sum()),
            recall36=float(hits[numbers == number, 0].mean()),
            ap=_mean(precision[:, :, number]),
            ap50=_mean(precision[0, :, number]),
        )
        for number in sorted(set(numbers.tolist()))
    }
    return Measures(
        pages=float(len(found)),
        elements=float(len(numbers)),
        recall36=recall,
        classified36=classified,
        ap=_mean(precision),
        ap50=_mean(precision[0]),
        ap75=_mean(precision[5]),
        classes=classes,
    )


def _hits(page: Found) -> Bool[np.ndarray, "elements 2"]:
    """Return of each element whether it is found, and whether it is found with its class."""
    if not len(page.labels.boxes):
        return np.zeros((0, 2), dtype=bool)
    best, place = _overlap(page.labels.boxes, page.boxes).max(dim=1)
    right = page.classes[place.numpy()] == np.array(page.labels.classes)
    hit = (best >= _FOUND).numpy()
    return np.stack([hit, hit & right], axis=1)


def _overlap(labels: Sequence[Sequence[float]], boxes: np.ndarray) -> Float[Tensor, "n m"]:
    wanted = torch.tensor(labels, dtype=torch.float32).reshape(-1, 4)
    overlap: Tensor = box_iou(wanted, torch.from_numpy(boxes))
    return overlap


def _mean(precision: Float[np.ndarray, "..."]) -> float:
    """Average the values that are not marked as undefined by −1."""
    defined = precision[precision > -1]
    return float(defined.mean()) if defined.size else 0.0


def _precision(found: Sequence[Found], classes: int) -> Float[np.ndarray, "overlaps 101 classes"]:
    """Compute precision at each overlap, recall and class; −1 for classes without an element."""
    with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        labels = [zip(page.labels.boxes, page.labels.classes, strict=True) for page in found]
        truth = _coco(classes, [[_annotation(*each) for each in page] for page in labels])
        guess = _coco(classes, [list(_guesses(page)) for page in found])
        evaluation = COCOeval(truth, guess, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.params.maxDets = [REGIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision: np.ndarray = evaluation.eval["precision"][..., 0, 0]
    return precision


def _guesses(page: Found) -> Iterator[dict[str, Any]]:
    counted = page.classes >= 0
    if page.labels.ignored:
        on_ignored = _overlap(page.labels.ignored, page.boxes).amax(dim=0) > _FOUND
        on_labelled = torch.zeros(len(page.boxes), dtype=torch.bool)
        if page.labels.boxes:
            on_labelled = _overlap(page.labels.boxes, page.boxes).amax(dim=0) >= _FOUND
        counted &= (~on_ignored | on_labelled).numpy()
    for row in np.flatnonzero(counted):
        box = page.boxes[row].tolist()
        yield {**_annotation(box, int(page.classes[row])), "score": float(page.scores[row])}


def _annotation(box: Sequence[float], kind: int) -> dict[str, Any]:
    left, top, right, bottom = box
    size = [right - left, bottom - top]
    area = size[0] * size[1]
    return {"bbox": [left, top, *size], "category_id": kind, "area": area, "iscrowd": 0}


def _coco(classes: int, pages: Sequence[Sequence[dict[str, Any]]]) -> COCO:
    coco = COCO()
    rows = [{**row, "image_id": image} for image, page in enumerate(pages) for row in page]
    coco.dataset = {
        "images": [{"id": image} for image in range(len(pages))],
        "categories": [{"id": kind} for kind in range(classes)],
        # Numbers start at 1: pycocotools takes 0 for no match.
        "annotations": [{**row, "id": number} for number, row in enumerate(rows, 1)],
    }
    coco.createIndex()
    return coco
