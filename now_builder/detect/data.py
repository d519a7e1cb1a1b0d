"""Pages to train on: labels and text boxes from captures of the train pool, pixels on demand."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from now_builder.detect.base import TextBox
from now_builder.detect.labels import Labels, label
from now_builder.detect.losses import Targets
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.text import TextEncoder
from now_builder.detect.text_boxes import dom_text_boxes, embed_text_boxes
from now_builder.errors import TrainingError
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Place,
    complete_shards,
    locate_screenshots,
    members_path,
    read_members,
    read_place,
    read_rows,
)
from now_builder.formats.split import read_split


@dataclass(frozen=True, slots=True)
class TrainPage:
    """One page of the train pool."""

    key: str
    site: str
    place: Place
    labels: Labels
    text_boxes: list[TextBox]


@dataclass(frozen=True, slots=True)
class TrainPages:
    """The train pool, cut by site into what is learned from and what is held out.

    Attributes:
        learn: Pages to learn from.
        held_out: Pages of other sites (of the same train pool), to measure on.
        walls: Pages left out because a dialog covers them.
    """

    learn: list[TrainPage]
    held_out: list[TrainPage]
    walls: int

    @property
    def fingerprint(self) -> str:
        """Hash of the keys and labels, to tell whether a checkpoint is of the same data."""
        digest = hashlib.sha256()
        for page in [*self.learn, *self.held_out]:
            digest.update(f"{page.key}\t{page.labels}\n".encode())
        return digest.hexdigest()


def read_train_pages(captures: Path, held_out: float) -> TrainPages:
    """Read labels and text boxes of all pages of the train pool that have labels.

    Args:
        captures: The captures folder.
        held_out: Share of the pool's sites kept aside, at least one unless it is 0; of its pages
            where all are of one site.

    Raises:
        TrainingError: If fewer than two pages are left.
    """
    plan = read_split(captures / "split.toml")
    pages: list[TrainPage] = []
    walls = 0
    for shard in complete_shards(captures):
        rows = {
            row.key: row
            for row in read_rows(captures, shard)
            if row.status == "ok" and plan.pool_of(row.site, row.key) == "train"
        }
        places = locate_screenshots(captures, shard)
        for capture in read_members(members_path(captures, shard), frozenset(places) - set(rows)):
            labels = label(capture.elements)
            walls += labels is None
            if labels is not None and labels.boxes:
                texts = dom_text_boxes(capture.elements)
                site = rows[capture.key].site
                page = TrainPage(capture.key, site, places[capture.key], labels, texts)
                pages.append(page)
    if len(pages) < 2:
        raise TrainingError(
            f"{captures}: {len(pages)} pages of the train pool have labelled elements; "
            "a detector needs two or more"
        )
    return _cut(pages, held_out, walls)


def _cut(pages: Sequence[TrainPage], share: float, walls: int) -> TrainPages:
    by_page = len({page.site for page in pages}) == 1
    names = [page.key if by_page else page.site for page in pages]
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    count = min(max(1, round(share * len(order))), len(order) - 1) if share else 0
    aside = set(order[:count])
    return TrainPages(
        [page for page, name in zip(pages, names, strict=True) if name not in aside],
        [page for page, name in zip(pages, names, strict=True) if name in aside],
        walls,
    )


class Screenshots:
    """Decoded screenshots at input size, kept in memory as far as they fit.

    Args:
        size: Width and height, px.
        cache_mib: Memory for them.
        threads: Decoding threads.
    """

    def __init__(self, size: tuple[int, int], cache_mib: int, threads: int) -> None:
        self._size = size
        self._room = cache_mib * 2**20
        self._kept: dict[str, np.ndarray] = {}
        self._pool = ThreadPoolExecutor(threads)

    def read(self, pages: Sequence[TrainPage]) -> UInt8[Tensor, "pages 3 height width"]:
        """Give the screenshots of some pages."""
        return to_batch(list(self._pool.map(self._one, pages)))

    def _one(self, page: TrainPage) -> UInt8[np.ndarray, "3 height width"]:
        kept = self._kept.get(page.key)
        if kept is not None:
            return kept
        name = f"{page.place.path}:{page.key}"
        image = decode_screenshot(read_place(page.place), self._size, name)
        if self._room >= image.nbytes:
            self._room -= image.nbytes
            self._kept[page.key] = image
        return image


def to_targets(
    page: TrainPage,
    size: tuple[int, int],
    encoder: TextEncoder,
    hidden: float,
    generator: torch.Generator,
) -> Targets:
    """Bring a page's labels to input px and embed the text boxes that are not hidden.

    Args:
        page: The page.
        size: Width and height of the input, px.
        encoder: Frozen.
        hidden: Share of text boxes to hide; one page in ten loses all of them where it is not 0.
        generator: The source of randomness.
    """
    scale = (size[0] / WIDTH, size[1] / HEIGHT)
    factors = torch.tensor([*scale, *scale])
    draws = torch.rand(len(page.text_boxes) + 1, generator=generator).tolist()
    bare = hidden > 0 and draws[0] < 0.1
    seen = [
        box
        for box, draw in zip(page.text_boxes, draws[1:], strict=True)
        if not bare and draw >= hidden
    ]
    texts, vectors = embed_text_boxes(encoder, seen, scale)
    return Targets(
        boxes=torch.tensor(page.labels.boxes, dtype=torch.float32).reshape(-1, 4) * factors,
        classes=torch.tensor(page.labels.classes, dtype=torch.int64),
        ignored=torch.tensor(page.labels.ignored, dtype=torch.float32).reshape(-1, 4) * factors,
        texts=texts,
        vectors=vectors,
    )
