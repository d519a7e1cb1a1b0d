"""Captures to a label folder: boxes as COCO JSON, statistics, and a report."""

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from now_builder import __version__
from now_builder.detect.labels.coco import CocoWriter, scratch
from now_builder.detect.labels.elements import DROPPED, IGNORED, PAGES_DROPPED, sift
from now_builder.detect.labels.mapping import DEFAULT, ClassMapping, read_mapping
from now_builder.detect.labels.report import Gallery, render_report
from now_builder.detect.settings import LabelSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import remove_leftovers, write_json, write_text
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    complete_shards,
    members_path,
    read_members,
    read_rows,
)
from now_builder.formats.split import SPLITS, SplitPlan, read_split
from now_builder.program.progress import watched

_FORMAT = "now-labels/1"


@dataclass(frozen=True, slots=True)
class LabelSummary:
    """What a run of ``label`` wrote."""

    labels: Path
    pages: int
    labelled: int
    boxes: int
    fresh: bool

    def __str__(self) -> str:
        """Return one line for the terminal."""
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

    Args:
        captures: The captures folder.
        labels: Folder to write; it is complete when it has ``labels.json``, written last.
        settings: Mapping, and what the report shows.
        force: Throw away what is there and start over.

    Raises:
        ConfigError: If the mapping is wrong, or what is there is of other captures or settings.
        FormatError: If the captures are missing or torn, or a file that is there is not ours.
    """
    mapping = read_mapping(settings.mapping) if settings.mapping else DEFAULT
    plan = read_split(captures / "split.toml")
    pages, inputs = _survey(captures, plan, mapping, settings)
    path = labels / "labels.json"
    if force:
        path.unlink(missing_ok=True)
    if path.exists():
        return _summarize(labels, inputs)
    if labels.exists() and not labels.is_dir():
        raise FormatError(labels, "found a file, expected a folder to write into")
    labels.mkdir(parents=True, exist_ok=True)
    remove_leftovers(labels)
    labeller = _Labeller(plan, mapping, settings)
    info = {
        "description": "Elements of captured pages, as the browser laid them out",
        "format": _FORMAT,
        "tool": f"now-builder {__version__}",
        "inputs": inputs,
    }
    with scratch(labels) as images, scratch(labels) as annotations:
        writer = CocoWriter(images, annotations, mapping)
        captured = _captured(captures)
        for each in watched(captured, "label", total=pages):
            labeller.take(*each, writer)
        found = labeller.statistics(inputs)
        write_text(labels / "report.html", render_report(found, labeller.gallery, mapping))
        write_json(labels / "statistics.json", found)
        writer.write(path, info)
    return LabelSummary(labels, pages, found["labelled"], found["boxes"], fresh=True)


def _survey(
    captures: Path, plan: SplitPlan, mapping: ClassMapping, settings: LabelSettings
) -> tuple[int, str]:
    """Count captured pages, and hash everything that the labels depend on."""
    shown = settings.model_dump_json(exclude={"mapping"})
    digest = hashlib.sha256(
        f"{_FORMAT}\t{__version__}\t{plan.model_dump_json()}\t{mapping.model_dump_json()}"
        f"\t{shown}\n".encode()
    )
    pages = 0
    if not captures.is_dir() or not complete_shards(captures):
        read_rows(captures)  # says what is missing
    for shard in complete_shards(captures):
        path = members_path(captures, shard)
        digest.update(f"{shard}\t{path.stat().st_size if path.exists() else -1}\n".encode())
        for row in read_rows(captures, shard):
            if row.status == "ok":
                pages += 1
                digest.update(f"{row.key}\t{row.site}\t{row.sha256}\t{row.load_state}\n".encode())
    if not pages:
        raise FormatError(captures, "no row with status=ok, so there is nothing to label")
    return pages, digest.hexdigest()


def _captured(captures: Path) -> Iterator[tuple[CaptureRow, Capture]]:
    """Stream the captured pages with their rows, shard by shard."""
    for shard in complete_shards(captures):
        rows = {row.key: row for row in read_rows(captures, shard) if row.status == "ok"}
        for capture in read_members(members_path(captures, shard)) if rows else ():
            if capture.key in rows:
                yield rows[capture.key], capture


class _Statistics(BaseModel):
    """What is read of a ``statistics.json``."""

    inputs: str
    pages: int
    labelled: int
    boxes: int


def _summarize(labels: Path, inputs: str) -> LabelSummary:
    path = labels / "statistics.json"
    try:
        found = _Statistics.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise FormatError(
            path, f"does not belong to the labels.json beside it ({error!s:.200}); --force redoes"
        ) from None
    if found.inputs != inputs:
        raise ConfigError(
            f"{labels}: made of other captures, mapping or settings; --force starts over"
        )
    return LabelSummary(labels, found.pages, found.labelled, found.boxes, fresh=False)


class _Labeller:
    """Label page after page, and count."""

    def __init__(self, plan: SplitPlan, mapping: ClassMapping, settings: LabelSettings) -> None:
        self._plan, self._mapping, self._settings = plan, mapping, settings
        self.gallery = Gallery(settings.pages, settings.seed)
        self._dropped: Counter[str] = Counter()
        self._pools: Counter[str] = Counter()
        self._classes: Counter[tuple[int, str]] = Counter()
        self._reasons: Counter[str] = Counter()
        self._elements = 0
        self._boxes_a_page: list[int] = []

    def take(self, row: CaptureRow, capture: Capture, writer: CocoWriter) -> None:
        """Label one page, or count why it has none."""
        if self._settings.settled_only and row.load_state == "partial":
            self._dropped["unsettled"] += 1
            return
        sifted = sift(capture.elements, self._mapping)
        if sifted.labels is None:
            self._dropped["wall"] += 1
            return
        self._elements += len(capture.elements)
        self._reasons += sifted.reasons
        if not sifted.labels.boxes:
            self._dropped["nothing"] += 1
            return
        pool = self._plan.pool_of(row.site, row.key)
        name = f"{row.key}.{capture.extension}"
        writer.add(name, sifted.labels, key=row.key, site=row.site, pool=pool)
        self._pools[pool] += 1
        self._boxes_a_page.append(len(sifted.labels.boxes))
        self._classes.update((number, pool) for number in sifted.labels.classes)
        self.gallery.offer(row, capture, sifted.labels)

    def statistics(self, inputs: str) -> dict[str, Any]:
        """Return the content of ``statistics.json``."""
        spread = sorted(self._boxes_a_page) or [0]
        labelled = len(self._boxes_a_page)
        return {
            "format": _FORMAT,
            "inputs": inputs,
            "pages": labelled + self._dropped.total(),
            "labelled": labelled,
            "labelled_by_pool": {pool: self._pools[pool] for pool in SPLITS},
            "pages_dropped": {reason: self._dropped[reason] for reason in PAGES_DROPPED},
            "boxes": sum(spread),
            "boxes_a_page": {
                "fewest": spread[0],
                "median": statistics.median(spread),
                "mean": round(statistics.mean(spread), 2),
                "most": spread[-1],
            },
            "boxes_by_class": {
                name: {pool: self._classes[number, pool] for pool in SPLITS}
                for number, name in enumerate(self._mapping.class_names)
            },
            "elements": self._elements,
            "elements_dropped": {reason: self._reasons[reason] for reason in DROPPED},
            "elements_ignored": {reason: self._reasons[reason] for reason in IGNORED},
        }
