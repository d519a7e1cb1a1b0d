"""Label captured pages and write the boxes as COCO JSON."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder import __version__
from now_builder.detect.labels.elements import Labels, label
from now_builder.detect.labels.mapping import DEFAULT, GROUP_OF, IGNORE, ClassMapping, read_mapping
from now_builder.detect.settings import LabelSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import atomic_write, remove_leftovers
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    complete_shards,
    members_path,
    read_captures,
    stream_rows,
)
from now_builder.formats.split import SplitPlan, read_split
from now_builder.program.progress import track_progress

_FORMAT = "now-labels/1"


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """Counts of a run of ``label``; ``fresh`` is false if the labels existed already."""

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
    """Label all captured pages; complete labels of the same input are kept.

    Raises:
        ConfigError: If the mapping is wrong, or existing labels are of other captures or settings.
        FormatError: If the captures are missing or damaged, or an existing file is not of labels.
    """
    mapping = read_mapping(settings.mapping) if settings.mapping else DEFAULT
    plan = read_split(captures / "split.toml")
    sites, inputs = _survey(captures, plan, mapping)
    path = labels / "labels.json"
    if force:
        path.unlink(missing_ok=True)
    if path.exists():
        return _summarize(path, inputs)
    if labels.exists() and not labels.is_dir():
        raise FormatError(labels, "found a file, expected a folder")
    labels.mkdir(parents=True, exist_ok=True)
    remove_leftovers(labels)
    images: list[str] = []
    rows = boxes = 0
    # Annotations are collected on disk, in a nameless file that no killed process leaves behind.
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=labels) as annotations:
        captured = (page for page in read_captures(captures) if page.key in sites)
        for capture in track_progress(captured, "label", total=len(sites)):
            page_labels = label(capture.elements, mapping)
            if page_labels is None or not page_labels.boxes:
                continue
            key, site, number = capture.key, sites[capture.key], len(images) + 1
            image = {
                "id": number, "file_name": f"{key}.{capture.extension}", "width": WIDTH,
                "height": HEIGHT, "key": key, "site": site, "pool": plan.pool_of(site, key),
            }  # fmt: skip
            images.append(_line(image))
            boxes += len(page_labels.boxes)
            for row in _annotations(page_labels, len(mapping.classes) + 1):
                rows += 1
                content = _line({"id": rows, "image_id": number, **row})
                annotations.write(f",\n{content}" if rows > 1 else content)
        summary = LabelSummary(labels, len(sites), len(images), boxes, fresh=True)
        info = {
            "description": "Elements of captured pages, as the browser laid them out",
            "format": _FORMAT, "tool": f"now-builder {__version__}", "inputs": inputs,
            "pages": summary.pages, "labelled": summary.labelled, "boxes": summary.boxes,
        }  # fmt: skip
        categories = [
            {"id": place, "name": name, "name_zh": chinese,
             "supercategory": GROUP_OF.get(name, "element")}
            for place, (name, chinese) in enumerate([*mapping.classes, (IGNORE, "忽略")], 1)
        ]  # fmt: skip
        annotations.seek(0)
        with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            file.write(f'{{\n"info": {_line(info)},\n"categories": {_line(categories)},\n')
            file.write('"images": [\n' + ",\n".join(images) + '\n],\n"annotations": [\n')
            shutil.copyfileobj(annotations, file)
            file.write("\n]\n}\n")
    return summary


def _annotations(labels: Labels, ignore: int) -> Iterator[dict[str, Any]]:
    """Yield category, box and area of each label; ignored boxes have the category ``ignore``."""
    classed = [(box, number + 1) for box, number in zip(labels.boxes, labels.classes, strict=True)]
    for box, category in [*classed, *((box, ignore) for box in labels.ignored)]:
        left, top, right, bottom = box
        width, height = round(right - left, 2), round(bottom - top, 2)
        yield {
            "category_id": category,
            "bbox": [round(left, 2), round(top, 2), width, height],
            "area": round(width * height, 2),
            "iscrowd": int(category == ignore),
        }


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _survey(captures: Path, plan: SplitPlan, mapping: ClassMapping) -> tuple[dict[str, str], str]:
    """Return the site of each captured page, and a hash of all inputs of the labels."""
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


def _summarize(path: Path, inputs: str) -> LabelSummary:
    """Summarize complete labels from the second line of their file, which may be large."""
    try:
        with path.open(encoding="utf-8") as file:
            head = [file.readline() for _ in range(2)][1]
        info = json.loads("{" + head.rstrip(",\n") + "}")["info"]
        old_inputs, counts = info["inputs"], (info["pages"], info["labelled"], info["boxes"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        problem = f"not written by label ({error!s:.200}). Give --force to replace it"
        raise FormatError(path, problem) from None
    if old_inputs != inputs:
        problem = "made from other captures, mapping or settings. Give --force to start over"
        raise ConfigError(f"{path.parent}: {problem}")
    return LabelSummary(path.parent, *counts, fresh=False)
