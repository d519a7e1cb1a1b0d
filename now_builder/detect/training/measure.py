"""Compute recall@36 and average precision of 36 regions per page on the labelled elements.

Source:
    COCO (Lin et al., ECCV 2014), as pycocotools computes it.

Differs:
    A page has 36 regions, whatever their scores, as in the feature file. COCO allows 100
    detections, so its figures would be higher.
"""

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Integer
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor
from torchvision.ops import box_iou

from now_builder.detect.base import Page
from now_builder.detect.labels.elements import Labels
from now_builder.detect.labels.mapping import DEFAULT
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import choose_device, find_weights, load_detector
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPage, read_pool
from now_builder.errors import FormatError
from now_builder.formats.features import REGIONS
from now_builder.formats.shard import Box
from now_builder.formats.split import Split
from now_builder.program.progress import track_progress

_FOUND = 0.5
_BATCH = 8


@dataclass(frozen=True, slots=True)
class Found:
    """Labels and regions of one page, with boxes in image px."""

    labels: Labels
    boxes: Float[np.ndarray, "n 4"]
    scores: Float[np.ndarray, " n"]
    classes: Integer[np.ndarray, " n"]


@dataclass(frozen=True, slots=True)
class Measures:
    """Figures over all labelled elements of several pages.

    Attributes:
        elements: Number of labelled elements.
        recall36: Share of elements with an IoU of 0.5 or more with one of the page's 36 regions.
        classified36: Share of elements whose best such region also has the element's class.
        ap: Average precision, the mean over IoUs of 0.5, 0.55 … 0.95 and the classes on the pages.
        ap50: Average precision at an IoU of 0.5; ``ap75`` at 0.75.
        classes: Elements, recall36, ap and ap50 of each class on the pages, by name.
    """

    pages: float
    elements: float
    recall36: float
    classified36: float
    ap: float
    ap50: float
    ap75: float
    classes: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Figures over all classes, for the weights' JSON."""
        return {name: value for name, value in asdict(self).items() if name != "classes"}

    def __str__(self) -> str:
        return (
            f"AP50 {self.ap50:.3f}, AP {self.ap:.3f}, recall@36 {self.recall36:.3f} (with the "
            f"right class {self.classified36:.3f}) of {self.elements:.0f} elements on "
            f"{self.pages:.0f} pages"
        )


def find(
    extractor: AptExtractor, pages: Sequence[TrainPage], screenshots: Screenshots
) -> list[Found]:
    """Find the regions of labelled pages in screenshots of the extractor's input size."""
    results = []
    for start in track_progress(range(0, len(pages), _BATCH), "measure", "step"):
        batch = pages[start : start + _BATCH]
        inputs = [Page(page.key, page.text_boxes) for page in batch]
        regions = extractor.extract(inputs, screenshots.read(batch))
        rows = zip(batch, regions.boxes, regions.scores, regions.classes, strict=True)
        results += [Found(page.labels, *row) for page, *row in rows]
    return results


def measure(found: Sequence[Found], names: Sequence[str]) -> Measures | None:
    """Compute all figures from the regions of pages; ``None`` if no element is labelled.

    Average precision is computed on boxes, scores and classes as they are stored. Regions without a
    class (grid windows) only count for recall; regions on an ignored element but on no labelled
    one do not count.
    """
    numbers = np.array([number for page in found for number in page.labels.classes], dtype=int)
    if not len(numbers):
        return None
    hits = np.concatenate([_hits(page) for page in found])
    precision = _precision(found, len(names))
    recall, classified = hits.mean(axis=0).tolist()
    classes = {
        names[number]: {
            "elements": float((numbers == number).sum()),
            "recall36": float(hits[numbers == number, 0].mean()),
            "ap": _mean(precision[:, :, number]),
            "ap50": _mean(precision[0, :, number]),
        }
        for number in np.unique(numbers).tolist()
    }
    average = {"ap": _mean(precision), "ap50": _mean(precision[0]), "ap75": _mean(precision[5])}
    counts = float(len(found)), float(len(numbers))
    return Measures(*counts, recall, classified, **average, classes=classes)


def _hits(page: Found) -> Bool[np.ndarray, "elements 2"]:
    """Return whether each element is found, and whether it is found with its class."""
    if not page.labels.boxes:
        return np.zeros((0, 2), dtype=bool)
    best, place = _overlap(page.labels.boxes, page.boxes).max(dim=1)
    hit = (best >= _FOUND).numpy()
    return np.stack([hit, hit & (page.classes[place.numpy()] == page.labels.classes)], axis=1)


def _overlap(labels: Sequence[Box], boxes: np.ndarray) -> Float[Tensor, "n m"]:
    labelled = torch.tensor(labels, dtype=torch.float32).reshape(-1, 4)
    overlap: Tensor = box_iou(labelled, torch.from_numpy(boxes))
    return overlap


def _mean(precision: Float[np.ndarray, "..."]) -> float:
    """Average the values except −1, which marks classes without elements."""
    return float(precision[precision > -1].mean())


def _precision(found: Sequence[Found], classes: int) -> Float[np.ndarray, "overlaps 101 classes"]:
    """Compute precision at each IoU, recall and class; −1 for classes without elements."""
    labels, regions = [], []
    for image, page in enumerate(found):
        for box, number in zip(page.labels.boxes, page.labels.classes, strict=True):
            labels.append(_annotation(image, box, number))
        for row in np.flatnonzero(_counts(page)):
            box, number = page.boxes[row].tolist(), int(page.classes[row])
            regions.append(_annotation(image, box, number, float(page.scores[row])))
    with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        data = [_coco(len(found), classes, rows) for rows in (labels, regions)]
        evaluation = COCOeval(*data, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.params.maxDets = [REGIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision: np.ndarray = evaluation.eval["precision"][..., 0, 0]
    return precision


def _counts(page: Found) -> Bool[np.ndarray, " n"]:
    """Return a mask of the regions with a class that do not lie only on an ignored element."""
    counted: np.ndarray = page.classes >= 0
    if page.labels.ignored:
        on_ignored = (_overlap(page.labels.ignored, page.boxes).amax(dim=0) > _FOUND).numpy()
        on_labelled = (_overlap(page.labels.boxes, page.boxes) >= _FOUND).any(dim=0).numpy()
        counted &= ~on_ignored | on_labelled
    return counted


def _annotation(
    image: int, box: Sequence[float], number: int, score: float = 1.0
) -> dict[str, Any]:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    return {
        "image_id": image, "category_id": number, "iscrowd": 0, "score": score,
        "bbox": [left, top, width, height], "area": width * height,
    }  # fmt: skip


def _coco(images: int, classes: int, rows: Sequence[dict[str, Any]]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [{"id": image} for image in range(images)],
        "categories": [{"id": number} for number in range(classes)],
        # Numbers start at 1, since 0 means no match in pycocotools.
        "annotations": [{**row, "id": number} for number, row in enumerate(rows, 1)],
    }
    coco.createIndex()
    return coco


@dataclass(frozen=True, slots=True)
class DetectorMeasures:
    """Figures of a detector on the labelled pages of a pool."""

    weights_sha256: str
    pool: str
    sites: int
    measured: Measures

    def __str__(self) -> str:
        """Return the figures over all classes, and a table by class."""
        table = pd.DataFrame(self.measured.classes).T.astype({"elements": int})
        classes = table.to_string(float_format="{:.3f}".format)
        return f"{self.pool} pool, {self.sites} sites: {self.measured}\n\n{classes}"


def measure_detector(
    captures: Path, weights: Path, pool: Split = "test", device: str = "auto", threads: int = 0
) -> DetectorMeasures:
    """Measure a detector on the pages of a pool.

    Raises:
        ConfigError: If the weights or the device are missing.
        FormatError: If captures or weights are damaged, or no page of the pool has labels.
    """
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    model, card = load_detector(find_weights(weights), choose_device(device))
    model.patches = None  # the figures need no features
    encoder = make_text_encoder(card.text_encoder, model.centre.device)
    pages = read_pool(captures, pool, card.mapping or DEFAULT)
    screenshots = Screenshots(model.config.input_size, 0, threads)
    measured = measure(find(AptExtractor(model, encoder, {}), pages, screenshots), card.classes)
    if measured is None:
        raise FormatError(captures, f"no page of the {pool} pool has labelled elements")
    sites = len({page.site for page in pages})
    return DetectorMeasures(card.weights_sha256, pool, sites, measured)
