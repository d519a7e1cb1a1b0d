"""Pages to train on: labels and text boxes from captures, pixels on demand."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from now_builder.detect.base import Page, TextBox
from now_builder.detect.labels.elements import Labels, label
from now_builder.detect.labels.mapping import DEFAULT, ClassMapping
from now_builder.detect.model.text_boxes import dom_text_boxes, embed_text_boxes
from now_builder.detect.model.text_encoder import TextEncoder
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.training.losses import Targets
from now_builder.errors import TrainingError
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    ScreenshotPlace,
    complete_shards,
    locate_screenshots,
    members_path,
    read_members,
    read_place,
    read_rows,
)
from now_builder.formats.split import Split, read_split, registrable_domain
from now_builder.program.progress import watched

_HIDDEN = 0.4
"""Share of text boxes hidden in training, so that the detector can do without."""


@dataclass(frozen=True, slots=True)
class TrainPage:
    """One labelled page.

    Attributes:
        key: Key of the capture.
        site: Host name.
        place: Where the screenshot lies on disk.
        labels: In px of a screen of 720 x 1280.
    """

    key: str
    site: str
    place: ScreenshotPlace
    labels: Labels
    text_boxes: list[TextBox]

    @property
    def known(self) -> Page:
        """The page as detectors take it: its strings, and the boxes that the browser laid out."""
        return Page(self.key, self.text_boxes, [*self.labels.boxes, *self.labels.ignored])


@dataclass(frozen=True, slots=True)
class TrainPages:
    """The train pool, divided by site into pages to learn from and held-out pages.

    Attributes:
        held_out: Pages of other sites (of the same train pool), to measure on.
        dialog_pages: Number of pages left out because a dialog covers them.
    """

    learn: list[TrainPage]
    held_out: list[TrainPage]
    dialog_pages: int
    mapping: ClassMapping = DEFAULT

    @property
    def fingerprint(self) -> str:
        """Hash of the keys and labels, to check that a checkpoint is of the same data."""
        digest = hashlib.sha256()
        for page in [*self.learn, *self.held_out]:
            digest.update(f"{page.key}\t{page.labels}\n".encode())
        return digest.hexdigest()


def read_train_pages(
    captures: Path, held_out: float, mapping: ClassMapping = DEFAULT, also: Sequence[Path] = ()
) -> TrainPages:
    """Read labels and text boxes of all pages with labels in the train pool of captures folders.

    ``held_out`` is the share of the pool's sites that is held out, at least one unless it is 0;
    where all pages are of one site it is a share of the pages. Hosts of one registrable domain are
    one site.

    Raises:
        TrainingError: If fewer than two pages are left.
    """
    pages: list[TrainPage] = []
    dialog_pages = 0
    for folder in (captures, *also):
        more, covered = read_pool(folder, "train", mapping)
        pages, dialog_pages = pages + more, dialog_pages + covered
    if len(pages) < 2:
        raise TrainingError(
            f"{captures}: {len(pages)} pages of the train pool have labelled elements; "
            "a detector needs two or more"
        )
    learn, aside = hold_out(pages, held_out)
    return TrainPages(learn, aside, dialog_pages, mapping)


def hold_out(pages: Sequence[TrainPage], share: float) -> tuple[list[TrainPage], list[TrainPage]]:
    """Divide pages by registrable domain, or, where all are of one, by page."""
    names = [registrable_domain(page.site) for page in pages]
    if len(set(names)) == 1:
        names = [page.key for page in pages]
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    count = min(max(1, round(share * len(order))), len(order) - 1) if share else 0
    aside = set(order[:count])
    parts: tuple[list[TrainPage], list[TrainPage]] = ([], [])
    for page, name in zip(pages, names, strict=True):
        parts[name in aside].append(page)
    return parts


def read_pool(
    captures: Path, pool: Split, mapping: ClassMapping = DEFAULT
) -> tuple[list[TrainPage], int]:
    """Read the pages of a pool that have labels, and count those behind a wall."""
    pages: list[TrainPage] = []
    dialog_pages = 0
    plan = read_split(captures / "split.toml")
    for shard in watched(complete_shards(captures), f"read the {pool} pool", "shard"):
        rows = {
            row.key: row
            for row in read_rows(captures, shard)
            if row.status == "ok" and plan.pool_of(row.site, row.key) == pool
        }
        places = locate_screenshots(captures, shard)
        for capture in read_members(members_path(captures, shard), frozenset(places) - set(rows)):
            labels = label(capture.elements, mapping)
            dialog_pages += labels is None
            if labels is not None and labels.boxes:
                texts, key = dom_text_boxes(capture.elements), capture.key
                pages.append(TrainPage(key, rows[key].site, places[key], labels, texts))
    return pages, dialog_pages


class Screenshots:
    """Decoded screenshots of one size, cached in memory as far as they fit."""

    def __init__(self, size: tuple[int, int], cache_mib: int, threads: int) -> None:
        self._size = size
        self._free_bytes = cache_mib * 2**20
        self._kept: dict[ScreenshotPlace, np.ndarray] = {}
        self._pool = ThreadPoolExecutor(threads)

    def read(self, pages: Sequence[TrainPage]) -> UInt8[Tensor, "pages 3 height width"]:
        """Return the screenshots of some pages."""
        return to_batch(list(self._pool.map(self._one, pages)))

    def _one(self, page: TrainPage) -> UInt8[np.ndarray, "3 height width"]:
        kept = self._kept.get(page.place)
        if kept is not None:
            return kept
        name = f"{page.place.path}:{page.key}"
        image = decode_screenshot(read_place(page.place), self._size, name)
        if self._free_bytes >= image.nbytes:
            self._free_bytes -= image.nbytes
            self._kept[page.place] = image
        return image


def to_targets(
    page: TrainPage, size: tuple[int, int], encoder: TextEncoder, generator: torch.Generator
) -> Targets:
    """Scale a page's labels to input px and embed the text boxes that are not hidden."""
    scale = (size[0] / WIDTH, size[1] / HEIGHT)
    factors = torch.tensor([*scale, *scale])
    draws = torch.rand(len(page.text_boxes) + 1, generator=generator).tolist()
    bare = draws[0] < 0.1  # one page in ten has no text at all
    boxes = zip(page.text_boxes, draws[1:], strict=True)
    seen = [box for box, draw in boxes if not bare and draw >= _HIDDEN]
    texts, vectors = embed_text_boxes(encoder, seen, scale)
    return Targets(
        boxes=torch.tensor(page.labels.boxes, dtype=torch.float32).reshape(-1, 4) * factors,
        classes=torch.tensor(page.labels.classes, dtype=torch.int64),
        ignored=torch.tensor(page.labels.ignored, dtype=torch.float32).reshape(-1, 4) * factors,
        texts=texts,
        vectors=vectors,
    )
