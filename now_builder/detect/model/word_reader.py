"""Read the words on a screenshot: vectors of the letters that a small network sees, by region."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from now_builder.detect.pixels import window_means
from now_builder.formats import word_vectors

DOWN, ACROSS = 8, 2
"""Pixels of a map's cell, from the top and from the left."""
TAPS = (-14, -11, -8, -6, -4, -2, -1, 0, 1, 2, 4, 6, 8, 11, 14)
"""Cells of its row that a letter is read from, seen from its own."""

_WIDTHS = (24, 40, 56, 112)
_HIDDEN = 512
_CONTRAST = 25
"""Side of the window, in px, by whose mean and deviation a pixel is seen."""
_FLOOR = 0.03
"""Added to deviations, of values in [0, 1], so that flat areas stay flat."""
EDITION = "2"
"""Attribute ``words_edition`` of feature files: another way to read gets another."""
SCALES = (1, 2)
"""How many times pages are shrunk: fonts of 10 to 20 px are read at each scale."""
EVERY = 3
"""Of so many cells of a row one is read: a letter covers several."""
_WEIGHT = EVERY / 2
"""Weight of a cell that is read, so that sums are those of every second one."""
_CHUNK, _FEWEST = 4096, 256
"""Cells that are read at once: at most, and of what their number is a multiple."""


class WordReader(nn.Module):
    """Map the places of letters on a page, and return a vector for each letter.

    A page is seen by its local contrast. Convolutions make a map with a cell for each 8 × 2 px; a
    letter is where a cell's logit is positive, and two further layers turn such a cell and its
    neighbours in the row into the vector of the letter there
    (:func:`~now_builder.formats.word_vectors.unit_vector`).

    Source:
        Words embedded by their letters from pixels: PHOCNet (Sudholt and Fink, ICFHR 2016);
        regions near the text that they show: RegionCLIP (Zhong et al., CVPR 2022).

    Differs:
        APT reads nothing: its text comes from an OCR engine and tunes the prompts alone.
    """

    def __init__(self) -> None:
        super().__init__()
        first, second, third, width = _WIDTHS
        self.trunk = nn.Sequential(
            *Conv2dNormActivation(1, first, 5, (2, 2), 2),
            *Conv2dNormActivation(first, second, 3, (2, 1), 1),
            *Conv2dNormActivation(second, third, 3, (1, 1), 1),
            *Conv2dNormActivation(third, width, (4, 3), (2, 1), 1),
            *Conv2dNormActivation(width, width, (1, 3), (1, 1), (0, 1)),
        )
        self.gate = nn.Conv2d(width, 1, (3, 5), padding=(1, 2))
        self.enter = nn.Sequential(
            nn.Linear(width * len(TAPS), _HIDDEN), nn.LayerNorm(_HIDDEN), nn.ReLU()
        )
        self.think = nn.Sequential(nn.Linear(_HIDDEN, _HIDDEN), nn.LayerNorm(_HIDDEN), nn.ReLU())
        self.say = nn.Linear(_HIDDEN, word_vectors.WIDTH)

    def maps(
        self, pages: Float[Tensor, "n 1 height width"], every: int = 1
    ) -> tuple[Float[Tensor, "n channels rows columns"], Float[Tensor, "n rows seen"]]:
        """Compute the map of each page of grey values, and the logits of a letter in its cells.

        Of each row the logits of the first cell and of each ``every``-th after it are computed.
        """
        seen = local_contrast(pages).contiguous(memory_format=torch.channels_last)
        maps = self.trunk(seen.to(self.gate.weight.dtype))
        gate, padding = self.gate, (1, 2)
        return maps, F.conv2d(maps, gate.weight, gate.bias, (1, every), padding)[:, 0]

    def read(
        self,
        maps: Float[Tensor, "n channels rows columns"],
        cells: tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"], Int64[Tensor, " cells"]],
    ) -> Float[Tensor, "cells 256"]:
        """Return the unit vector of the letter in each of some cells: page, row and column."""
        page, row, column = cells
        left, right = -TAPS[0], TAPS[-1]
        wide = F.pad(maps.permute(0, 2, 3, 1), (0, 0, left, right))
        first = (page * wide.shape[1] + row) * wide.shape[2] + left + column
        places = first[:, None] + torch.tensor(TAPS, device=maps.device)
        around = wide.flatten(0, 2).index_select(0, places.flatten())
        entered = self.enter(around.reshape(len(row), -1).to(self.say.weight.dtype))
        return F.normalize(self.say(entered + self.think(entered)).float(), dim=1)

    @torch.no_grad()
    def forward(
        self,
        screenshots: UInt8[Tensor, "n 3 height width"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> Float[Tensor, "all 256"]:
        """Sum the vectors of the letters in each region; zero where there are none."""
        sums = [boxes.new_zeros(len(boxes), word_vectors.WIDTH) for boxes in regions]
        for scale, maps, shown in self.see(screenshots):
            seen = [_seen(boxes, page, scale) for boxes, page in zip(regions, shown, strict=True)]
            vectors = self._read_all(maps, [cells for cells, _ in seen])
            for number, (_, inside) in enumerate(seen):
                sums[number] += inside.to(vectors[number].dtype) @ vectors[number]
        return torch.cat(sums) * _WEIGHT

    def see(
        self, screenshots: UInt8[Tensor, "n 3 height width"]
    ) -> list[tuple[int, Float[Tensor, "n channels _ _"], Bool[Tensor, "n _ _"]]]:
        """Return each scale, the pages' maps, and which of every third cell are to be read."""
        grey = screenshots.float().mean(dim=1, keepdim=True) / 255
        maps, logits = zip(
            *(self.maps(_shrink(grey, scale), EVERY) for scale in SCALES), strict=True
        )
        return list(zip(SCALES, maps, surest(logits), strict=True))

    def _read_all(self, maps: Tensor, cells: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """Read cells of each page, rows and columns, in batches of few sizes.

        A CPU's library makes a kernel for each size and keeps a thousand of them.
        """
        counts = [len(row) for row, _ in cells]
        count = sum(counts)
        page = torch.repeat_interleave(torch.tensor(counts, device=maps.device))
        row, column = (torch.cat(part) for part in zip(*cells, strict=True))
        places = [F.pad(part, (0, -count % _FEWEST)) for part in (page, row, column)]
        read = [
            self.read(maps, (places[0][part], places[1][part], places[2][part]))
            for part in (slice(at, at + _CHUNK) for at in range(0, count, _CHUNK))
        ]
        found = torch.cat([maps.new_zeros(0, word_vectors.WIDTH, dtype=torch.float32), *read])
        return list(torch.split(found[:count], counts))


def surest(logits: Sequence[Float[Tensor, "n _ _"]]) -> list[Bool[Tensor, "n _ _"]]:
    """Return which cells of each scale show a letter, more surely than its rivals do.

    Those are the cells above and below, and the one of another scale at the same place: a letter
    is read where its middle is, and at the scale at which it has the size that was learned.
    """
    shown = []
    for own in map(Tensor.float, logits):
        beside = F.pad(own, (0, 0, 1, 1), value=-torch.inf)
        others = [
            F.adaptive_max_pool2d(other.float(), own.shape[1:])
            for other in logits
            if other.shape != own.shape
        ]
        rivals = torch.stack([beside[:, :-2], beside[:, 2:], *others]).amax(dim=0)
        shown.append((own > 0) & (own >= rivals))
    return shown


def letters(
    shown: Bool[Tensor, "rows seen"],
) -> tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"]]:
    """Return row and column of the cells to read, of every third."""
    row, column = torch.nonzero(shown, as_tuple=True)
    return row, column * EVERY


def local_contrast(pages: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Return how many deviations each pixel is from the mean of its surroundings."""
    centred = pages - _box_mean(pages)
    deviation = _box_mean(centred.square()).clamp_(min=0).sqrt_().add_(_FLOOR)
    return centred.div_(deviation)


def _box_mean(values: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Average over windows around each pixel, edges repeated: two running sums."""
    half = _CONTRAST // 2
    for dim, padding in ((2, (0, 0, half + 1, half)), (3, (half + 1, half, 0, 0))):
        length = values.shape[dim]
        sums = F.pad(values, padding, mode="replicate").cumsum(dim)
        values = sums.narrow(dim, _CONTRAST, length) - sums.narrow(dim, 0, length)
        values.div_(_CONTRAST)
    return values


def _shrink(pages: Float[Tensor, "n 1 h w"], scale: int) -> Float[Tensor, "n 1 i j"]:
    """Shrink pages, then fill them at the bottom and right to a whole number of cells."""
    shrunk = window_means(pages, scale, scale)
    down, across = -shrunk.shape[2] % DOWN, -shrunk.shape[3] % ACROSS
    return F.pad(shrunk, (0, across, 0, down), mode="replicate") if down or across else shrunk


def _seen(boxes: Tensor, shown: Tensor, scale: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return row and column of a page's cells whose centre is in a box, and in which boxes."""
    row, column = letters(shown)
    down = row * DOWN * scale + DOWN * scale / 2
    across = column * ACROSS * scale + ACROSS * scale / 2
    centre = torch.stack([across, down])
    begin, end = boxes[:, :2, None], boxes[:, 2:, None]
    inside = ((centre >= begin) & (centre < end)).all(dim=1)
    wanted = inside.any(dim=0)
    return (row[wanted], column[wanted]), inside[:, wanted]
