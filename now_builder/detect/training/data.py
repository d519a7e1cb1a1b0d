"""Read training pages from captures, with pixels on demand, and augment them."""

import hashlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torchvision.ops import box_area

from now_builder.detect.base import TextBox
from now_builder.detect.boxes import clip
from now_builder.detect.labels.elements import SMALLEST, Labels, label
from now_builder.detect.labels.mapping import DEFAULT, ClassMapping
from now_builder.detect.model.text_encoder import TextEncoder, dom_text_boxes, embed_text_boxes
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
from now_builder.program.progress import track_progress

_SHARE = 0.5  # Share of the pages that are shrunk or magnified
_VISIBLE = 0.6  # Minimum share of an element on the screen
_HIDDEN = 0.4
"""Share of text boxes hidden in training, so that the detector also works without text."""


@dataclass(frozen=True, slots=True)
class TrainPage:
    """One labelled page.

    Attributes:
        key: Key of the capture.
        site: Host name.
        place: Place of the screenshot on disk.
        labels: Labels in px of a 720 x 1280 screen.
    """

    key: str
    site: str
    place: ScreenshotPlace
    labels: Labels
    text_boxes: list[TextBox]


@dataclass(frozen=True, slots=True)
class TrainPages:
    """The train pool, divided by site into pages to learn from and held-out pages."""

    learn: list[TrainPage]
    held_out: list[TrainPage]
    mapping: ClassMapping = DEFAULT

    @property
    def fingerprint(self) -> str:
        """Hash of keys and labels, which identifies the data of a checkpoint."""
        lines = [f"{page.key}\t{page.labels}\n" for page in [*self.learn, *self.held_out]]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_train_pages(
    captures: Path, held_out: float, mapping: ClassMapping = DEFAULT, also: Sequence[Path] = ()
) -> TrainPages:
    """Read the labelled pages in the train pools of captures folders.

    ``held_out`` is the share of the pool's sites that is held out, at least one unless it is 0; of
    a single site it is a share of the pages. Hosts of one registrable domain are one site.

    Raises:
        TrainingError: If there are fewer than two pages.
    """
    folders = (captures, *also)
    pages = [page for folder in folders for page in read_pool(folder, "train", mapping)]
    if len(pages) < 2:
        problem = f"{len(pages)} pages of the train pool have labelled elements"
        raise TrainingError(f"{captures}: {problem}, expected at least two")
    return TrainPages(*hold_out(pages, held_out), mapping)


def hold_out(pages: Sequence[TrainPage], share: float) -> tuple[list[TrainPage], list[TrainPage]]:
    """Divide pages by registrable domain, or by page if there is only one domain."""
    names = [registrable_domain(page.site) for page in pages]
    if len(set(names)) == 1:
        names = [page.key for page in pages]
    order = sorted(set(names), key=lambda name: hashlib.sha256(name.encode()).digest())
    count = min(max(1, round(share * len(order))), len(order) - 1) if share else 0
    aside, named = set(order[:count]), list(zip(pages, names, strict=True))
    learn = [page for page, name in named if name not in aside]
    return learn, [page for page, name in named if name in aside]


def read_pool(captures: Path, pool: Split, mapping: ClassMapping = DEFAULT) -> list[TrainPage]:
    """Read the labelled pages of a pool."""
    pages: list[TrainPage] = []
    plan = read_split(captures / "split.toml")
    for shard in track_progress(complete_shards(captures), f"read the {pool} pool", "shard"):
        sites = {
            row.key: row.site
            for row in read_rows(captures, shard)
            if row.status == "ok" and plan.pool_of(row.site, row.key) == pool
        }
        places = locate_screenshots(captures, shard)
        others = frozenset(places.keys() - sites.keys())
        for capture in read_members(members_path(captures, shard), others):
            labels, key = label(capture.elements, mapping), capture.key
            if labels is not None and labels.boxes:
                texts = dom_text_boxes(capture.elements)
                pages.append(TrainPage(key, sites[key], places[key], labels, texts))
    return pages


class Screenshots:
    """Decode screenshots to one size, and cache them in limited memory."""

    def __init__(self, size: tuple[int, int], cache_mib: int, threads: int) -> None:
        self._size = size
        self._free_bytes = cache_mib * 2**20
        self._kept: dict[ScreenshotPlace, np.ndarray] = {}
        self._pool = ThreadPoolExecutor(threads)

    def read(self, pages: Sequence[TrainPage]) -> UInt8[Tensor, "pages 3 height width"]:
        """Return the screenshots of pages."""
        return to_batch(list(self._pool.map(self._one, pages)))

    def _one(self, page: TrainPage) -> UInt8[np.ndarray, "3 height width"]:
        if page.place in self._kept:
            return self._kept[page.place]
        name = f"{page.place.path}:{page.key}"
        image = decode_screenshot(read_place(page.place), self._size, name)
        if self._free_bytes >= image.nbytes:
            self._free_bytes -= image.nbytes
            self._kept[page.place] = image
        return image


def to_targets(
    page: TrainPage, size: tuple[int, int], encoder: TextEncoder, generator: torch.Generator
) -> Targets:
    """Scale a page's labels to input px, and embed its text boxes except hidden ones."""
    scale = (size[0] / WIDTH, size[1] / HEIGHT)
    factors = torch.tensor([*scale, *scale])
    bare, *draws = torch.rand(len(page.text_boxes) + 1, generator=generator).tolist()
    hidden = 1.0 if bare < 0.1 else _HIDDEN  # one page in ten has no text at all
    seen = [box for box, draw in zip(page.text_boxes, draws, strict=True) if draw >= hidden]
    boxes, ignored = (
        torch.tensor(part, dtype=torch.float32).reshape(-1, 4) * factors
        for part in (page.labels.boxes, page.labels.ignored)
    )
    classes = torch.tensor(page.labels.classes, dtype=torch.int64)
    return Targets(boxes, classes, ignored, *embed_text_boxes(encoder, seen, scale))


def recolour(
    pixels: Float[Tensor, "n 3 h w"], generator: torch.Generator
) -> Float[Tensor, "n 3 h w"]:
    """Change the gain of each channel, and brightness and contrast, a little.

    Stronger changes (swapped channels, inversion, grey) teach the embedding to ignore colour, and
    with it much of a picture's content. Flips would turn text into another script.
    """

    def draw(low: float, high: float) -> Tensor:
        values = low + (high - low) * torch.rand(len(pixels), generator=generator)
        return values.view(-1, 1, 1, 1).to(pixels.device)

    gain = torch.cat([draw(0.85, 1.15) for _ in range(3)], dim=1)
    contrast, brightness = draw(0.8, 1.2), draw(-0.1, 0.1)
    gained = pixels * gain
    mean = gained.mean(dim=(1, 2, 3), keepdim=True)
    return ((gained - mean) * contrast + mean + brightness).clamp(0, 1)


def jitter(
    boxes: Float[Tensor, "n 4"], size: tuple[int, int], generator: torch.Generator
) -> Float[Tensor, "n 4"]:
    """Move each edge by up to a tenth of the box's side."""
    side = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    draws = torch.rand(boxes.shape, generator=generator).to(boxes.device)
    return clip(boxes + (draws - 0.5) * 0.2 * side, size)


def zoom(
    pixels: Float[Tensor, "n 3 h w"],
    targets: Sequence[Targets],
    largest: float,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "n 3 h w"], list[Targets]]:
    """Shrink or magnify half of the pages by a random factor, at a random place of the screen.

    The factor is log-uniform between ``1 / largest`` and the square root of ``largest``, since
    pages made for wide screens appear shrunk. The space around a shrunk page repeats its edges.
    Elements with less than 60 % on the screen, or too small to be labelled, are ignored; strings
    with less than 60 % are dropped.
    """
    height, width = pixels.shape[2:]
    screen = torch.tensor([float(width), float(height)])
    draws = torch.rand(len(pixels), 4, generator=generator)
    factors = torch.exp((1.5 * draws[:, 0] - 1) * math.log(largest))
    factors = torch.where(draws[:, 1] < _SHARE, factors, torch.ones_like(factors))
    shifts = draws[:, 2:] * (1 - factors[:, None]) * screen
    off_centre = shifts / screen + (factors[:, None] - 1) / 2
    affine = torch.zeros(len(pixels), 2, 3)
    affine[:, 0, 0] = affine[:, 1, 1] = 1 / factors
    affine[:, :, 2] = -2 * off_centre / factors[:, None]
    grid = F.affine_grid(affine, list(pixels.shape), align_corners=False).to(pixels)
    moved = F.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
    places = zip(targets, factors.tolist(), shifts.to(pixels.device), strict=True)
    return moved, [_moved(page, factor, shift, (width, height)) for page, factor, shift in places]


def _moved(page: Targets, factor: float, shift: Tensor, size: tuple[int, int]) -> Targets:
    """Scale and shift the boxes of a page; drop those off the screen or too small."""
    corner = shift.new_tensor(size).repeat(2)
    smallest = SMALLEST / WIDTH * size[0]

    def move(boxes: Float[Tensor, "n 4"]) -> tuple[Float[Tensor, "n 4"], Bool[Tensor, " n"]]:
        whole = boxes * factor + shift.repeat(2)
        seen = torch.minimum(whole.clamp(min=0), corner)
        return seen, box_area(seen) >= _VISIBLE * box_area(whole).clamp(min=1e-6)

    boxes, stays = move(page.boxes)
    stays &= (boxes[:, 2:] - boxes[:, :2]).amin(dim=1) >= smallest
    texts, read = move(page.texts)
    ignored = torch.cat([move(page.ignored)[0], boxes[~stays]])
    ignored = ignored[box_area(ignored) > 0]
    return Targets(boxes[stays], page.classes[stays], ignored, texts[read], page.vectors[read])
