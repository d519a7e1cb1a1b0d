"""Recall@36 and average precision of 36 regions a page against the labelled elements.

Source:
    COCO (Lin et al., ECCV 2014), as pycocotools computes it.

Differs:
    A page has 36 regions, whatever their scores, as in the feature file.
    COCO allows 100 detections, so these figures are lower than those of all of its detections.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

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
from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_encoder import TextEncoder, make_text_encoder, page_text
from now_builder.detect.model.weights import choose_device, find_weights, load_detector
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.training.data import Screenshots, TrainPage, read_pool
from now_builder.errors import FormatError
from now_builder.formats.features import REGIONS, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.formats.split import Split
from now_builder.program.progress import Progress

_FOUND = 0.5


class ClassifiedBoxes(NamedTuple):
    """Boxes in image px with the classes and scores of a detector, but without features."""

    boxes: Float[np.ndarray, "pages 36 4"]
    scores: Float[np.ndarray, "pages 36"]
    classes: Integer[np.ndarray, "pages 36"]


Extract = Callable[[Sequence[Page], Tensor], FeatureBatch | ClassifiedBoxes]
"""Finds 36 regions a page in screenshots, as the method ``extract`` of every detector does."""


@dataclass(frozen=True, slots=True)
class Found:
    """The labels of one page and the regions found on it, boxes in image px."""

    labels: Labels
    boxes: Float[np.ndarray, "n 4"]
    scores: Float[np.ndarray, " n"]
    classes: Integer[np.ndarray, " n"]


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
        classes: Elements, recall36, ap and ap50 of each class that the pages show, by name.
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
        """Plain numbers over all classes, for the weights' JSON."""
        return {name: value for name, value in asdict(self).items() if name != "classes"}

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
    """Find the regions of labelled pages by each extractor, in screenshots of its input size."""
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
        names[number]: {
            "elements": float((numbers == number).sum()),
            "recall36": float(hits[numbers == number, 0].mean()),
            "ap": _mean(precision[:, :, number]),
            "ap50": _mean(precision[0, :, number]),
        }
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
    labels, guesses = [], []
    for image, page in enumerate(found):
        pairs = zip(page.labels.boxes, page.labels.classes, strict=True)
        labels += [_annotation(image, box, kind) for box, kind in pairs]
        guesses += list(_guesses(image, page))
    with redirect_stdout(io.StringIO()):  # pycocotools prints its progress
        data = [_coco(len(found), classes, rows) for rows in (labels, guesses)]
        evaluation = COCOeval(*data, "bbox")
        evaluation.params.areaRng, evaluation.params.areaRngLbl = [[0.0, 1e10]], ["all"]
        evaluation.params.maxDets = [REGIONS]
        evaluation.evaluate()
        evaluation.accumulate()
    precision: np.ndarray = evaluation.eval["precision"][..., 0, 0]
    return precision


def _guesses(image: int, page: Found) -> Iterator[dict[str, Any]]:
    counted = page.classes >= 0
    if page.labels.ignored:
        on_ignored = _overlap(page.labels.ignored, page.boxes).amax(dim=0) > _FOUND
        on_labelled = torch.zeros(len(page.boxes), dtype=torch.bool)
        if page.labels.boxes:
            on_labelled = _overlap(page.labels.boxes, page.boxes).amax(dim=0) >= _FOUND
        counted &= (~on_ignored | on_labelled).numpy()
    for row in np.flatnonzero(counted):
        box, kind = page.boxes[row].tolist(), int(page.classes[row])
        yield {**_annotation(image, box, kind), "score": float(page.scores[row])}


def _annotation(image: int, box: Sequence[float], kind: int) -> dict[str, Any]:
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    edges = {"bbox": [left, top, width, height], "area": width * height}
    return {"image_id": image, "category_id": kind, "iscrowd": 0, **edges}


def _coco(images: int, classes: int, rows: Sequence[dict[str, Any]]) -> COCO:
    coco = COCO()
    coco.dataset = {
        "images": [{"id": image} for image in range(images)],
        "categories": [{"id": kind} for kind in range(classes)],
        # Numbers start at 1: pycocotools takes 0 for no match.
        "annotations": [{**row, "id": number} for number, row in enumerate(rows, 1)],
    }
    coco.createIndex()
    return coco


@dataclass(frozen=True, slots=True)
class DetectorMeasures:
    """Figures on one pool by source of boxes; the detector classifies all of them.

    Upper bound: ``dom``, the boxes that the browser laid out. Lower bound: ``random``, 36 boxes at
    random places with sizes of the train pool's labels.
    """

    weights_sha256: str
    pool: str
    pages: int
    sites: int
    sources: dict[str, Measures]

    def __str__(self) -> str:
        """Return tables for the terminal: all classes, then AP50 and recall@36 of each."""
        figures = pd.DataFrame({name: found.figures for name, found in self.sources.items()}).T
        tables = [figures[["ap50", "recall36", "classified36", "ap75", "ap"]]]
        for figure in ("ap50", "recall36"):
            by_class = {
                name: {kind: each[figure] for kind, each in found.classes.items()}
                for name, found in self.sources.items()
            }
            tables.append(pd.DataFrame(by_class).rename_axis(figure))
        pool = f"{self.pages} pages of {self.sites} sites of the {self.pool} pool"
        texts = [table.to_string(float_format="{:.3f}".format) for table in tables]
        counts = f"{pool}, {figures['elements'].iloc[0]:.0f} labelled elements"
        return "\n\n".join([counts, *texts])


def measure_detector(
    captures: Path, weights: Path, pool: Split = "test", device: str = "auto", threads: int = 0
) -> DetectorMeasures:
    """Measure a detector on the pages of a pool, between DOM boxes and random ones.

    Raises:
        ConfigError: If the weights or the device are missing.
        FormatError: If captures or weights are torn, or no page of the pool or of the train pool
            has labelled elements.
    """
    threads = threads or os.cpu_count() or 1
    torch.set_num_threads(threads)
    place = choose_device(device)
    model, card = load_detector(find_weights(weights), place)
    model.patches = None  # the measure reads no features
    model.maps = lru_cache(1)(model.maps)  # type: ignore[method-assign] # the same for all sources
    pools: dict[str, list[TrainPage]] = {}
    for name in (pool, "train"):
        pools[name], _ = read_pool(captures, name, card.mapping or DEFAULT)
        if not pools[name]:
            raise FormatError(captures, f"no page of the {name} pool has labelled elements")
    encoder = make_text_encoder(card.text_encoder, place)
    boxes_of = partial(random_boxes, label_sizes(pools["train"]))
    extractors: dict[str, Extract] = {
        "detector": AptExtractor(model, encoder, {}).extract,
        "dom": AptExtractor(model, encoder, {}, dom=True).extract,
        "random": partial(_classify, model, encoder, boxes_of),
    }
    screenshots = Screenshots(model.config.input_size, 0, threads)
    found = find(list(extractors.values()), pools[pool], screenshots)
    measured = [measure(its, card.classes) for its in found]
    sources = {name: each for name, each in zip(extractors, measured, strict=True) if each}
    sites = len({page.site for page in pools[pool]})
    return DetectorMeasures(card.weights_sha256, pool, len(pools[pool]), sites, sources)


def label_sizes(pages: Sequence[TrainPage]) -> Float[Tensor, "labels 2"]:
    """Return width and height of the labelled elements of some pages."""
    boxes = torch.tensor([box for page in pages for box in page.labels.boxes])
    return boxes[:, 2:] - boxes[:, :2]


def random_boxes(sizes: Float[Tensor, "labels 2"], key: str) -> Float[Tensor, "36 4"]:
    """Draw 36 boxes of a page with some of the sizes, at places that are all equally likely."""
    digest = hashlib.sha256(f"0\n{key}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    size = sizes[torch.randint(len(sizes), (REGIONS,), generator=generator)]
    space = torch.tensor([float(WIDTH), float(HEIGHT)]) - size
    corner = torch.rand(REGIONS, 2, generator=generator) * space
    return torch.cat([corner, corner + size], dim=1)


@torch.inference_mode()
def _classify(
    model: AptDetector,
    encoder: TextEncoder,
    boxes_of: Callable[[str], Tensor],
    pages: Sequence[Page],
    screenshots: Tensor,
) -> ClassifiedBoxes:
    """Classify 36 boxes of each page, neither moved nor dropped, by the best class."""
    device, size = model.centre.device, model.config.input_size
    factors = torch.tensor([size[0] / WIDTH, size[1] / HEIGHT]).repeat(2)
    boxes = torch.stack([boxes_of(page.key) for page in pages])
    regions = list((boxes * factors).to(device))
    pooled = model.pool(model.maps(screenshots.to(device)), regions).float()
    text = page_text(encoder, pages, regions, size)
    logits = model.classify(model.projection(pooled), text, torch.cat(regions))
    best, classes = (each.reshape(boxes.shape[:2]) for each in logits.softmax(1)[:, :-1].max(1))
    return ClassifiedBoxes(boxes.numpy(), best.cpu().numpy(), classes.cpu().numpy())
