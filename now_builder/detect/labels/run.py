"""Captures to a label folder: boxes as COCO JSON."""

import hashlib
import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from now_builder import __version__
from now_builder.detect.labels.elements import Labels, label
from now_builder.detect.labels.mapping import DEFAULT, IGNORE, ClassMapping, group_of, read_mapping
from now_builder.detect.settings import LabelSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import remove_leftovers, replacing
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Box,
    complete_shards,
    members_path,
    read_captures,
    stream_rows,
)
from now_builder.formats.split import SplitPlan, read_split
from now_builder.program.progress import watched

_FORMAT = "now-labels/1"


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """Counts of a run of ``label``; ``fresh`` is false where the labels were there already."""

    labels: Path
    pages: int
    labelled: int
    boxes: int
    fresh: bool

    def __str__(self) -> str:
        return (
            f"{self.labels}: {self.boxes} boxes on {self.labelled} of {self.pages} pages"
            f"{'' if self.fresh else ' (unchanged)'}"
        )


def label_captures(
    captures: Path,
    labels: Path,
    settings: LabelSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> LabelSummary:
    """Label all captured pages; complete labels of the same input are left as they are.

    Raises:
        ConfigError: If the mapping is wrong, or existing labels are of other captures or settings.
        FormatError: If the captures are missing or torn, or a file that is there is not ours.
    """
    mapping = read_mapping(settings.mapping) if settings.mapping else DEFAULT
    plan = read_split(captures / "split.toml")
    sites, inputs = _survey(captures, plan, mapping)
    path = labels / "labels.json"
    if force:
        path.unlink(missing_ok=True)
    if path.exists():
        return _summarize(labels, inputs)
    if labels.exists() and not labels.is_dir():
        raise FormatError(labels, "found a file, expected a folder to write into")
    labels.mkdir(parents=True, exist_ok=True)
    remove_leftovers(labels)
    with CocoWriter(labels, mapping) as writer:
        captured = (page for page in read_captures(captures) if page.key in sites)
        for capture in watched(captured, "label", total=len(sites)):
            found = label(capture.elements, mapping)
            if found is not None and found.boxes:
                key, site = capture.key, sites[capture.key]
                pool = plan.pool_of(site, key)
                writer.add(f"{key}.{capture.extension}", found, key=key, site=site, pool=pool)
        info = _Info(inputs=inputs, pages=len(sites), labelled=writer.pages, boxes=writer.labelled)
        about = {
            "description": "Elements of captured pages, as the browser laid them out",
            "format": _FORMAT,
            "tool": f"now-builder {__version__}",
        }
        writer.write(path, about | info.model_dump())
    return LabelSummary(labels, info.pages, info.labelled, info.boxes, fresh=True)


class CocoWriter(ExitStack):
    """Write a COCO file page by page: images and annotations wait on disk, not in memory.

    Args:
        folder: Folder for the temporary files, which have no names: a killed process leaves none.
        mapping: Mapping whose classes become the categories, and after them ``ignore``.

    Attributes:
        pages: Number of pages written.
        labelled: Number of their boxes that have a class.
    """

    def __init__(self, folder: Path, mapping: ClassMapping) -> None:
        super().__init__()
        open_ = partial(tempfile.TemporaryFile, "w+", encoding="utf-8", dir=folder)
        self._images, self._annotations = (self.enter_context(open_()) for _ in range(2))
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
            file.write(f'{{\n"info": {_line(info)},\n"categories": {_line(categories)}')
            for name, part in (("images", self._images), ("annotations", self._annotations)):
                part.seek(0)
                file.write(f',\n"{name}": [\n')
                shutil.copyfileobj(part, file)
                file.write("\n]")
            file.write("\n}\n")


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _survey(captures: Path, plan: SplitPlan, mapping: ClassMapping) -> tuple[dict[str, str], str]:
    """Return the site of each captured page, and a hash of all that the labels depend on."""
    settings = f"{plan.model_dump_json()}\t{mapping.model_dump_json()}"
    digest = hashlib.sha256(f"{_FORMAT}\t{__version__}\t{settings}\n".encode())
    sites = {}
    for row in stream_rows(captures):
        if row.status == "ok":
            sites[row.key] = row.site
            digest.update(f"{row.key}\t{row.site}\t{row.sha256}\t{row.load_state}\n".encode())
    if not sites:
        raise FormatError(captures, "no row with status=ok, so there is nothing to label")
    for shard in complete_shards(captures):
        path = members_path(captures, shard)
        digest.update(f"{shard}\t{path.stat().st_size if path.exists() else -1}\n".encode())
    return sites, digest.hexdigest()


class _Info(BaseModel):
    """Fields of ``info`` in a ``labels.json`` that a second run reads."""

    inputs: str
    pages: int
    labelled: int
    boxes: int


def _summarize(labels: Path, inputs: str) -> LabelSummary:
    path = labels / "labels.json"
    try:
        with path.open(encoding="utf-8") as file:  # the second line alone: the file may be large
            head = [file.readline() for _ in range(2)][1]
        info = _Info.model_validate(json.loads("{" + head.rstrip(",\n") + "}")["info"])
    except (OSError, KeyError, ValueError, ValidationError) as error:
        raise FormatError(path, f"not written by label ({error!s:.200}); --force redoes") from None
    if info.inputs != inputs:
        raise ConfigError(
            f"{labels}: made of other captures, mapping or settings; --force starts over"
        )
    return LabelSummary(labels, info.pages, info.labelled, info.boxes, fresh=False)
