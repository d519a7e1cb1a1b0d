"""Batches of canvases: their pixels varied, and which letters are to be read where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from now_builder.detect.model.word_reader import ACROSS, DOWN
from now_builder.detect.training.words.drawing import HEIGHT, WIDTH, Canvas, Letter
from now_builder.formats.word_vectors import Unit

ROWS, COLUMNS = HEIGHT // DOWN, WIDTH // ACROSS

Cells = tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"], Int64[Tensor, " cells"]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Canvases to learn from.

    Attributes:
        pixels: Grey values in [0, 1].
        shown: 1 where a cell shows a letter that is to be read, 0 where it shows none, and −1 where
            that does not matter: near the letters, and in text that is too large or too small.
        cells: Canvas, row and column of the letters that are read.
        units: Those letters.
    """

    pixels: Float[Tensor, "n 1 height width"]
    shown: Float[Tensor, "n rows columns"]
    cells: Cells
    units: list[Unit]


def make_batch(
    canvases: Sequence[Canvas], draws: np.random.Generator, most: int, *, varied: bool
) -> Batch:
    """Prepare canvases.

    Args:
        canvases: Drawn canvases.
        draws: What everything random is drawn from.
        most: Letters of a canvas that are read at most; which ones is random.
        varied: Whether pixels are inverted, faded, blurred or made noisy at random.
    """
    pixels = np.stack([canvas.pixels for canvas in canvases]).astype(np.float32) / 255
    if varied:
        for page in pixels:
            _vary(page, draws)
    shown = np.zeros((len(canvases), ROWS, COLUMNS), dtype=np.float32)
    cells: list[tuple[int, int, int]] = []
    units: list[Unit] = []
    for number, canvas in enumerate(canvases):
        for left, top, right, bottom in canvas.text:
            down = slice(max(0, int(top // DOWN)), int(bottom // DOWN) + 1)
            shown[number, down, max(0, int(left / ACROSS)) : int(right / ACROSS) + 1] = -1
        found = [(place, letter) for letter in canvas.letters if (place := _place(letter))]
        for (row, first, last), _ in found:
            shown[number, row, first:last] = 1
        if len(found) > most:
            found = [found[i] for i in draws.choice(len(found), most, replace=False)]
        for (row, first, last), letter in found:
            cells.append((number, row, int(draws.integers(first, last))))
            units.append(letter.unit)
    where = torch.tensor(cells, dtype=torch.int64).reshape(-1, 3)
    return Batch(
        torch.from_numpy(pixels.clip(0, 1))[:, None],
        torch.from_numpy(shown),
        (where[:, 0], where[:, 1], where[:, 2]),
        units,
    )


def _place(letter: Letter) -> tuple[int, int, int] | None:
    """Return the row of a letter and the columns that it covers, unless it is cut off."""
    if letter.left < 0 or letter.right > WIDTH or not 2 <= letter.centre <= HEIGHT - 2:
        return None
    first = round(letter.left / ACROSS)
    last = min(COLUMNS, max(round(letter.right / ACROSS), first + 1))
    return (int(letter.centre // DOWN), first, last) if last > first else None


def _vary(page: Float[np.ndarray, "height width"], draws: np.random.Generator) -> None:
    """Change the pixels of a page in place."""
    if draws.random() < 0.35:
        page[:] = 1 - page
    contrast = draws.uniform(0.6, 1)
    page[:] = (page - 0.5) * contrast + 0.5 + draws.uniform(-0.2, 0.2) * (1 - contrast)
    if draws.random() < 0.25:
        page += draws.standard_normal(page.shape, dtype=np.float32) * draws.uniform(0, 0.03)
    if draws.random() < 0.2:
        around = page[:-2, 1:-1] + page[2:, 1:-1] + page[1:-1, :-2] + page[1:-1, 2:]
        page[1:-1, 1:-1] = (2 * page[1:-1, 1:-1] + around) / 6
