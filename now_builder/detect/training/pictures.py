"""Draw pages with their labels beside the same pages with the regions of a detector."""

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from now_builder.detect.labels.report import IGNORED_COLOUR, colour
from now_builder.detect.training.measure import Found
from now_builder.formats.shard import HEIGHT, WIDTH, Box

_SIZE = (WIDTH // 2, HEIGHT // 2)
_BEST = 20


def draw_sheet(
    screens: Sequence[UInt8[np.ndarray, "3 height width"]],
    found: Sequence[Found],
    names: Sequence[str],
) -> Image.Image:
    """Draw pages in a row, each twice: with its labels, and with its 20 best regions."""
    sheet = Image.new("RGB", (2 * len(found) * _SIZE[0], _SIZE[1]))
    for column, (screen, page) in enumerate(zip(screens, found, strict=True)):
        plain = Image.fromarray(screen.transpose(1, 2, 0)).resize(_SIZE)
        labels = plain.copy()
        _draw(labels, ((box, IGNORED_COLOUR, "") for box in page.labels.ignored))
        pairs = zip(page.labels.boxes, page.labels.classes, strict=True)
        _draw(labels, ((box, colour(kind), names[kind]) for box, kind in pairs))
        rows = [row for row in np.argsort(-page.scores, kind="stable") if page.classes[row] >= 0]
        _draw(plain, (_region(page, int(row), names) for row in reversed(rows[:_BEST])))
        sheet.paste(labels, (2 * column * _SIZE[0], 0))
        sheet.paste(plain, ((2 * column + 1) * _SIZE[0], 0))
    return sheet


def _region(page: Found, row: int, names: Sequence[str]) -> tuple[Box, str, str]:
    left, top, right, bottom = page.boxes[row].tolist()
    kind = int(page.classes[row])
    said = f"{names[kind]} {page.scores[row]:.2f}"
    return (left, top, right, bottom), colour(kind), said


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
