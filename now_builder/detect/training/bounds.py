"""Measure a detector on a pool, and beside it an upper and a lower bound."""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page
from now_builder.detect.labels.mapping import DEFAULT
from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_boxes import page_text
from now_builder.detect.model.text_encoder import TextEncoder, make_text_encoder
from now_builder.detect.model.weights import choose_device, find_weights, load_detector
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.regions.sources import DomBoxes
from now_builder.detect.training.data import Screenshots, TrainPage, read_pool
from now_builder.detect.training.measure import ClassifiedBoxes, Extract, Measures, find, measure
from now_builder.errors import FormatError
from now_builder.formats.features import REGIONS
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.formats.split import Split


@dataclass(frozen=True, slots=True)
class Bounds:
    """Figures on one pool, by source of boxes; the detector classifies all of them.

    Upper bound: ``dom``, the boxes that the browser laid out. Lower bound: ``random``, 36 boxes at
    random places with sizes of the train pool's labels.
    """

    weights_sha256: str
    pool: str
    pages: int
    sites: int
    sources: dict[str, Measures]

    def __str__(self) -> str:
        """Return tables for the terminal: over all classes, then AP50 and recall@36 of each."""
        names = list(self.sources)
        first = next(iter(self.sources.values()))
        counts = f"{self.pages} pages of {self.sites} sites of the {self.pool} pool"
        lines = [
            f"{counts}, {first.elements:.0f} labelled elements",
            "",
            _row("all classes", ["AP50", "recall@36", "right class", "AP75", "AP"]),
        ]
        for name, found in self.sources.items():
            values = [found.ap50, found.recall36, found.classified36, found.ap75, found.ap]
            lines.append(_row(name, [f"{value:.3f}" for value in values]))
        for title, field in (("AP50", "ap50"), ("recall@36", "recall36")):
            lines += ["", _row(title, ["elements", *names])]
            for kind, figures in first.classes.items():
                values = [getattr(self.sources[name].classes[kind], field) for name in names]
                said = [f"{figures.elements:.0f}", *(f"{value:.3f}" for value in values)]
                lines.append(_row(kind, said))
        return "\n".join(lines)


def _row(name: str, values: Sequence[str]) -> str:
    return f"{name:16}" + "".join(f"{value:>12}" for value in values)


def measure_detector(
    captures: Path,
    weights: Path,
    pool: Split = "test",
    *,
    seed: int = 0,
    device: str = "auto",
    threads: int = 0,
) -> Bounds:
    """Measure a detector and its bounds on the pages of a pool.

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
    maps = lru_cache(1)(model.maps)  # the same for all four sources
    model.maps = maps  # type: ignore[method-assign]
    mapping = card.mapping or DEFAULT
    pages = _labelled(captures, pool, read_pool(captures, pool, mapping)[0])
    learned = _labelled(captures, "train", read_pool(captures, "train", mapping)[0])
    encoder = make_text_encoder(card.text_encoder, place)
    random = RandomBoxes(learned, seed)
    extractors: dict[str, Extract] = {
        "detector": AptExtractor(model, encoder, {}).extract,
        "dom": AptExtractor(model, encoder, {}, DomBoxes()).extract,
        "grid": partial(_classify, model, encoder, lambda _: geometry.windows((WIDTH, HEIGHT))),
        "random": partial(_classify, model, encoder, random.of),
    }
    screenshots = Screenshots(model.config.input_size, 0, threads)  # each is read once
    found = find(list(extractors.values()), pages, screenshots)
    measured = {
        name: figures
        for name, its in zip(extractors, found, strict=True)
        if (figures := measure(its, card.classes)) is not None
    }
    sites = len({page.site for page in pages})
    return Bounds(card.weights_sha256, pool, len(pages), sites, measured)


def _labelled(captures: Path, pool: str, pages: list[TrainPage]) -> list[TrainPage]:
    if not pages:
        raise FormatError(captures, f"no page of the {pool} pool has labelled elements")
    return pages


class RandomBoxes:
    """Boxes with sizes of labelled elements at places that are all equally likely, in image px."""

    def __init__(self, pages: Sequence[TrainPage], seed: int) -> None:
        boxes = torch.tensor([box for page in pages for box in page.labels.boxes])
        self._sizes = boxes[:, 2:] - boxes[:, :2]
        self._seed = seed

    def of(self, page: Page) -> Float[Tensor, "36 4"]:
        """Draw the boxes of a page."""
        digest = hashlib.sha256(f"{self._seed}\n{page.key}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        chosen = torch.randint(len(self._sizes), (REGIONS,), generator=generator)
        size = self._sizes[chosen]
        space = torch.tensor([float(WIDTH), float(HEIGHT)]) - size
        corner = torch.rand(REGIONS, 2, generator=generator) * space
        return torch.cat([corner, corner + size], dim=1)


@torch.inference_mode()
def _classify(
    model: AptDetector,
    encoder: TextEncoder,
    boxes_of: Callable[[Page], Tensor],
    pages: Sequence[Page],
    screenshots: UInt8[Tensor, "pages 3 height width"],
) -> ClassifiedBoxes:
    """Classify given boxes, neither moved nor dropped, by the probability of the best class."""
    device, size = model.centre.device, model.config.input_size
    factors = torch.tensor([size[0] / WIDTH, size[1] / HEIGHT]).repeat(2)
    given = [boxes_of(page) for page in pages]
    regions = [(boxes * factors).to(device) for boxes in given]
    pooled = model.pool(model.maps(screenshots.to(device)), regions).float()
    text = page_text(encoder, pages, regions, size)
    logits = model.classify(model.projection(pooled), text, torch.cat(regions))
    best, classes = logits.softmax(dim=1)[:, :-1].max(dim=1)
    shape = (len(pages), REGIONS)
    return ClassifiedBoxes(
        torch.stack(given).numpy(),
        best.reshape(shape).cpu().numpy(),
        classes.reshape(shape).cpu().numpy(),
    )
