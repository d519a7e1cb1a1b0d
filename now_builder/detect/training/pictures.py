"""Draw pages with their labels beside the same pages with the regions of a detector."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from now_builder.detect.training.measure import Found
from now_builder.formats.shard import HEIGHT, WIDTH, Box

_SIZE = (WIDTH // 2, HEIGHT // 2)
_BEST = 20
_TITLE, _GAP, _BETWEEN_PAGES = 28, 8, 28
_IGNORED = "#888"


def draw_sheet(
    screens: Sequence[UInt8[np.ndarray, "3 height width"]],
    found: Sequence[Found],
    names: Sequence[str],
) -> Image.Image:
    """Draw pages in a row, each twice under a title: its labels, and its 20 best regions."""
    width, height = _SIZE
    step = 2 * width + _GAP + _BETWEEN_PAGES
    sheet = Image.new("RGB", (step * len(found) - _BETWEEN_PAGES, _TITLE + height), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for number, (screen, page) in enumerate(zip(screens, found, strict=True)):
        plain = Image.fromarray(screen.transpose(1, 2, 0)).resize(_SIZE)
        titles = f"Page {number + 1}: labels", f"Page {number + 1}: detector, {_BEST} best regions"
        for side, (title, panel) in enumerate(
            zip(titles, _panels(plain, page, names), strict=True)
        ):
            left = step * number + (width + _GAP) * side
            pen.text((left + 2, 6), title, fill="black", font=font)
            sheet.paste(panel, (left, _TITLE))
    return sheet


def _panels(
    plain: Image.Image, page: Found, names: Sequence[str]
) -> tuple[Image.Image, Image.Image]:
    labels = plain.copy()
    _draw(labels, ((box, _IGNORED, "") for box in page.labels.ignored))
    pairs = zip(page.labels.boxes, page.labels.classes, strict=True)
    _draw(labels, ((box, _colour(kind), names[kind]) for box, kind in pairs))
    rows = [row for row in np.argsort(-page.scores, kind="stable") if page.classes[row] >= 0]
    _draw(plain, (_region(page, int(row), names) for row in reversed(rows[:_BEST])))
    return labels, plain


def _region(page: Found, row: int, names: Sequence[str]) -> tuple[Box, str, str]:
    left, top, right, bottom = page.boxes[row].tolist()
    kind = int(page.classes[row])
    said = f"{names[kind]} {page.scores[row]:.2f}"
    return (left, top, right, bottom), _colour(kind), said


def _colour(kind: int) -> str:
    """Return the colour of a class; neighbours differ in hue."""
    return f"hsl({kind * 137.508 % 360:.0f}, 90%, {(38, 50)[kind % 2]}%)"


def _draw(image: Image.Image, boxes: Iterable[tuple[Box, str, str]]) -> None:
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(10)
    across, down = image.width / WIDTH, image.height / HEIGHT
    for (left, top, right, bottom), ink, said in boxes:
        corner = (left * across, top * down)
        pen.rectangle([*corner, right * across, bottom * down], outline=ink, width=2)
        if said:
            pen.rectangle(pen.textbbox(corner, said, font=font), fill=ink)
            pen.text(corner, said, fill="white", font=font)
