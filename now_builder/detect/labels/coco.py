"""Labelled screenshots as COCO JSON: written from our captures, read from any source."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from now_builder.detect.labels.elements import Labels
from now_builder.detect.labels.mapping import IGNORE, ClassMapping, group_of
from now_builder.errors import FormatError
from now_builder.formats.io import replacing
from now_builder.formats.shard import HEIGHT, WIDTH, Box

_SLACK = 1.0
"""Image px by which a box may exceed its image, since others round; it is clipped."""


@dataclass(frozen=True, slots=True)
class CocoPage:
    """One labelled image.

    Attributes:
        file_name: Path of the image, relative to its folder.
        boxes: Left, top, right, bottom, in px of the image.
        classes: Index into the categories, one per box.
        ignored: Boxes that are neither a class nor background.
        site: Host name of the page; empty where it is not known.
    """

    file_name: str
    width: int
    height: int
    boxes: list[Box]
    classes: list[int]
    ignored: list[Box]
    site: str = ""


@dataclass(frozen=True, slots=True)
class CocoData:
    """Content of a COCO file: category names in the order of their ids, and the images.

    Attributes:
        classes: Name and Chinese name of each category; the name twice where there is only one.
        pages: Images with their boxes.
    """

    classes: tuple[tuple[str, str], ...]
    pages: list[CocoPage]

    @property
    def categories(self) -> tuple[str, ...]:
        """The names alone."""
        return tuple(name for name, _ in self.classes)


class _Loose(BaseModel):
    """Strict about known fields; other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)


class _Image(_Loose):
    id: int
    file_name: str = Field(min_length=1)
    width: int = Field(gt=0, le=100_000)
    height: int = Field(gt=0, le=100_000)
    site: str = ""


class _Category(_Loose):
    id: int
    name: str = Field(min_length=1)
    name_zh: str = ""


class _Annotation(_Loose):
    id: int
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]
    iscrowd: Literal[0, 1] = 0


class _File(_Loose):
    images: list[_Image]
    categories: list[_Category]
    annotations: list[_Annotation]


def read_coco(path: Path) -> CocoData:
    """Read the boxes of any COCO detection file; ``iscrowd`` and category ``ignore`` are ignored.

    Raises:
        FormatError: If it is missing or not COCO, an id is missing, unknown or there twice, or a
            box is not finite, has no area, or stands out of its image.
    """
    try:
        file = _File.model_validate_json(path.read_bytes())
    except OSError as error:
        raise FormatError(path, f"not a readable file ({error.strerror})") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'file'}: {item['msg']} "
            f"(found {item['input']!r:.80})"
            for item in error.errors(include_url=False)[:3]
        )
        raise FormatError(path, f"not COCO: {problems}") from None
    return _checked(path, file)


def to_classes(data: CocoData, mapping: ClassMapping) -> CocoData:
    """Map foreign categories to the classes of a mapping; boxes of others become ignored."""
    numbers = {name: number for number, name in enumerate(mapping.class_names)}
    mapped = [numbers.get(mapping.foreign(name)) for name in data.categories]
    return CocoData(mapping.classes, [_renumbered(page, mapped) for page in data.pages])


def _renumbered(page: CocoPage, mapped: Sequence[int | None]) -> CocoPage:
    boxes: list[Box] = []
    classes: list[int] = []
    ignored = list(page.ignored)
    for box, old in zip(page.boxes, page.classes, strict=True):
        new = mapped[old]
        if new is None:
            ignored.append(box)
        else:
            boxes.append(box)
            classes.append(new)
    return replace(page, boxes=boxes, classes=classes, ignored=ignored)


def _checked(path: Path, file: _File) -> CocoData:
    categories = [item for _, item in sorted(_by_id(path, "categories", file.categories).items())]
    named = tuple(
        (item.name, item.name_zh or item.name) for item in categories if item.name != IGNORE
    )
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(path, f"categories: name {twice!r:.80} is there twice")
    number = {name: place for place, name in enumerate(names)}
    classes = {item.id: number.get(item.name) for item in categories}
    images = _by_id(path, "images", file.images)
    pages = {
        item.id: CocoPage(item.file_name, item.width, item.height, [], [], [], item.site)
        for item in images.values()
    }
    for place, item in enumerate(_by_id(path, "annotations", file.annotations).values()):
        field = f"annotations.{place}"
        for name, found, known in (
            ("image_id", item.image_id, images),
            ("category_id", item.category_id, classes),
        ):
            if found not in known:
                raise FormatError(path, f"{field}.{name}: found {found!r:.40}, expected a known id")
        page, kind = pages[item.image_id], classes[item.category_id]
        box = _corners(path, field, item, page)
        if item.iscrowd or kind is None:
            page.ignored.append(box)
        else:
            page.boxes.append(box)
            page.classes.append(kind)
    return CocoData(named, list(pages.values()))


Numbered = TypeVar("Numbered", _Image, _Category, _Annotation)


def _by_id(path: Path, field: str, items: Sequence[Numbered]) -> dict[int, Numbered]:
    found: dict[int, Numbered] = {}
    for place, item in enumerate(items):
        if item.id in found:
            raise FormatError(
                path, f"{field}.{place}.id: found {item.id!r:.40} twice, expected ids of their own"
            )
        found[item.id] = item
    return found


def _corners(path: Path, field: str, item: _Annotation, page: CocoPage) -> Box:
    left, top, width, height = item.bbox
    right, bottom = left + width, top + height
    low, wide, high = -_SLACK, page.width + _SLACK, page.height + _SLACK
    if width <= 0 or height <= 0:
        raise FormatError(
            path, f"{field}.bbox: found {item.bbox!r:.80}, expected width, height > 0"
        )
    cut = (max(left, 0.0), max(top, 0.0), min(right, page.width), min(bottom, page.height))
    outside = left < low or top < low or right > wide or bottom > high
    if outside or cut[0] >= cut[2] or cut[1] >= cut[3]:
        raise FormatError(
            path,
            f"{field}.bbox: found {item.bbox!r:.80}, expected a box inside the image of "
            f"{page.width} x {page.height}",
        )
    return float(cut[0]), float(cut[1]), float(cut[2]), float(cut[3])


class CocoWriter:
    """Write a COCO file page by page: images and annotations wait on disk, not in memory.

    Args:
        images: Open, empty text file for the images.
        annotations: Open, empty text file for the annotations.
        mapping: Mapping whose classes become the categories, and after them ``ignore``.

    Attributes:
        pages: Number of pages written.
        labelled: Number of their boxes that have a class.
    """

    def __init__(self, images: IO[str], annotations: IO[str], mapping: ClassMapping) -> None:
        self._images, self._annotations = images, annotations
        self._classes = (*mapping.classes, (IGNORE, "忽略"))
        self.pages = self.labelled = self._boxes = 0

    def add(self, file_name: str, labels: Labels, **more: str) -> None:
        """Append a page of the screen's size; ``more`` are further fields of the image."""
        self.pages += 1
        image = {"id": self.pages, "file_name": file_name, "width": WIDTH, "height": HEIGHT}
        self._images.write(",\n" * (self.pages > 1) + _line({**image, **more}))
        for box, number in zip(labels.boxes, labels.classes, strict=True):
            self._annotate(box, number + 1, crowd=0)
        self.labelled += len(labels.boxes)
        for box in labels.ignored:
            self._annotate(box, len(self._classes), crowd=1)

    def _annotate(self, box: Box, category: int, crowd: int) -> None:
        self._boxes += 1
        width, height = round(box[2] - box[0], 2), round(box[3] - box[1], 2)
        annotation = {
            "id": self._boxes,
            "image_id": self.pages,
            "category_id": category,
            "bbox": [round(box[0], 2), round(box[1], 2), width, height],
            "area": round(width * height, 2),
            "iscrowd": crowd,
        }
        self._annotations.write(",\n" * (self._boxes > 1) + _line(annotation))

    def write(self, path: Path, info: dict[str, Any]) -> None:
        """Write the whole file atomically."""
        categories = [
            {"id": place, "name": name, "name_zh": chinese, "supercategory": group_of(name)}
            for place, (name, chinese) in enumerate(self._classes, 1)
        ]
        with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(f'{{\n"info": {_line(info)},\n"categories": {_line(categories)},\n')
            for name, part in (("images", self._images), ("annotations", self._annotations)):
                part.seek(0)
                file.write(f'"{name}": [\n')
                shutil.copyfileobj(part, file)
                file.write("\n],\n" if name == "images" else "\n]\n}\n")


def scratch(folder: Path) -> IO[str]:
    """Open a text file without a name, so that a killed process leaves nothing behind."""
    return tempfile.TemporaryFile("w+", encoding="utf-8", dir=folder)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
