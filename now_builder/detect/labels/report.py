"""The report of labels: statistics, and some pages with their boxes."""

import base64
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from now_builder.detect.labels.elements import DROPPED, IGNORED, PAGES_DROPPED, Labels
from now_builder.detect.labels.mapping import ClassMapping
from now_builder.formats.shard import HEIGHT, WIDTH, Box, Capture, CaptureRow, open_screenshot
from now_builder.program.html import template_environment

_THUMBNAIL = (WIDTH // 2, HEIGHT // 2)
IGNORED_COLOUR = "#888"


@dataclass(frozen=True, slots=True)
class Shown:
    """A page in the report.

    Attributes:
        picture: Thumbnail of its screenshot: a JPEG, base64.
    """

    key: str
    url: str
    picture: str
    labels: Labels


@dataclass(slots=True)
class Gallery:
    """A random sample of a stream of pages, which does not depend on their order."""

    size: int
    seed: int
    _kept: dict[str, Shown] = field(default_factory=dict)

    def offer(self, row: CaptureRow, capture: Capture, labels: Labels) -> None:
        """Keep a page if its hash is among the lowest so far; only then is its thumbnail made."""
        rank = hashlib.sha256(f"{self.seed}\n{row.key}".encode()).hexdigest()
        if len(self._kept) >= self.size and rank >= max(self._kept, default=""):
            return
        self._kept[rank] = Shown(row.key, row.url, _thumbnail(capture), labels)
        if len(self._kept) > self.size:
            del self._kept[max(self._kept)]

    def pages(self) -> list[Shown]:
        """Return the sample in the order of the keys."""
        return sorted(self._kept.values(), key=lambda page: page.key)


def render_report(statistics: Mapping[str, Any], gallery: Gallery, mapping: ClassMapping) -> str:
    """Render one HTML page that loads nothing from elsewhere."""
    environment = template_environment("now_builder.detect.labels")
    return environment.get_template("labels.html.j2").render(
        found=statistics,
        why={**DROPPED, **IGNORED, **PAGES_DROPPED},
        classes=[(name, zh, colour(place)) for place, (name, zh) in enumerate(mapping.classes)],
        pages=[(page, _outlines(page.labels, mapping)) for page in gallery.pages()],
        width=WIDTH,
        height=HEIGHT,
        ignored_colour=IGNORED_COLOUR,
    )


def _outlines(labels: Labels, mapping: ClassMapping) -> list[tuple[Box, str, str]]:
    """Return box, colour and name of what is drawn, the ignored boxes below the others."""
    names = mapping.class_names
    return [
        *((_sized(box), IGNORED_COLOUR, "ignored") for box in labels.ignored),
        *(
            (_sized(box), colour(number), names[number])
            for box, number in zip(labels.boxes, labels.classes, strict=True)
        ),
    ]


def _sized(box: Box) -> Box:
    """Return left, top, width and height."""
    return box[0], box[1], round(box[2] - box[0], 2), round(box[3] - box[1], 2)


def colour(number: int) -> str:
    """Return the colour of a class, as CSS and Pillow read it; neighbours differ in hue."""
    return f"hsl({number * 137.508 % 360:.0f}, 90%, {(38, 50)[number % 2]}%)"


def _thumbnail(capture: Capture) -> str:
    whole = open_screenshot(capture.screenshot, capture.key)
    small = whole.resize(_THUMBNAIL, Image.Resampling.BOX)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=70)
    return base64.b64encode(buffer.getvalue()).decode()
