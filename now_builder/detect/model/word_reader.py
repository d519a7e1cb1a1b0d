"""Read the words on a screenshot: a small network finds letters and names them."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation

from now_builder.detect.pixels import window_means
from now_builder.formats import word_vectors

DOWN, ACROSS = 8, 2
"""Height and width of a map's cell, in px."""
TAPS = (-14, -11, -8, -6, -4, -2, -1, 0, 1, 2, 4, 6, 8, 11, 14)
"""Offsets, in cells of the same row, of the cells that a letter is read from."""

_WIDTHS = (24, 40, 56, 112)
_HIDDEN = 512
_CONTRAST = 25
"""Side, in px, of the window around a pixel that gives the mean and deviation of its contrast."""
_FLOOR = 0.03
"""Constant added to deviations, of values in [0, 1], so that flat areas stay flat."""
EDITION = "3"
"""Attribute ``words_edition`` of feature files; change it when pages are read differently."""
SCALES = (1, 2)
"""Scale factors of pages; fonts of 10 to 20 px are read at each scale."""
EVERY = 3
"""Step between the cells of a row that are read; a letter covers several cells."""
_CHUNK, _MULTIPLE = 4096, 256
"""Maximum batch size in cells; batches are padded to a multiple of the second number."""
_NAMED = 1024
"""Maximum letters that are named at once."""
_LEAST = 0.3
"""Minimum cosine of a letter; below it nothing is read."""
_SURE = 0.4
"""Cosine above which a letter of an alphabet is not compared with other characters."""
_SAME = 0.7
"""Cosine of neighbouring cells above which the second continues the first one's letter."""
_ALPHABETS = (
    (0x30, 0x250), (0x370, 0x530), (0x5D0, 0x5EB), (0x620, 0x64B), (0x904, 0x93A),
    (0xE01, 0xE2F), (0x1EA0, 0x1EFA), (0x3041, 0x30FF),
)  # fmt: skip
"""Code points of Latin, Greek, Cyrillic, Hebrew, Arabic, Devanagari, Thai and Japanese letters."""
_CHARSETS = (("gb2312", 0xB0, 0xD8), ("euc_jp", 0xB0, 0xD0), ("big5", 0xA4, 0xC7),
             ("euc_kr", 0xB0, 0xC9))  # fmt: skip
"""Encodings, and their lead bytes of common Chinese characters and Korean syllables."""
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff]+")


@lru_cache(maxsize=1)
def readable_letters() -> tuple[str, int]:
    """Return all letters that a reader can name, alphabets first, and the number of these."""
    alphabets = {chr(code).casefold() for begin, end in _ALPHABETS for code in range(begin, end)}
    others = {
        bytes([lead, trail]).decode(encoding, errors="replace")
        for encoding, begin, end in _CHARSETS
        for lead in range(begin, end)
        for trail in range(0x40, 0xFF)
    }

    def ordered(letters: Iterable[str]) -> str:
        return "".join(sorted(each for each in letters if len(each) == 1 and each.isalnum()))

    first = ordered(alphabets)
    return first + ordered(others - alphabets), len(first)


class WordReader(nn.Module):
    """Find the letters on a page, name them and return a sketch of the text that they form.

    The network sees the local contrast of a page. Convolutions compute a map with a cell for each
    8 × 2 px. A cell with a positive logit contains a letter. Two further layers turn such a cell
    and its neighbours in the row into the letter's vector
    (:func:`~now_builder.formats.word_vectors.unit_vector`), and the nearest vector of a single
    letter names it.

    Source:
        Words embedded by their letters from pixels: PHOCNet (Sudholt and Fink, ICFHR 2016);
        regions near the text that they show: RegionCLIP (Zhong et al., CVPR 2022).

    Differs:
        APT reads nothing: its text comes from an OCR engine and tunes the prompts alone.
    """

    table: Tensor

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
        vectors = np.stack([*map(word_vectors.letter_vector, readable_letters()[0])])
        self.register_buffer("table", torch.from_numpy(vectors), persistent=False)

    def maps(
        self, pages: Float[Tensor, "n 1 height width"], every: int = 1
    ) -> tuple[Float[Tensor, "n channels rows columns"], Float[Tensor, "n rows seen"]]:
        """Compute the map of each page of grey values, and the logits of a letter in its cells.

        Logits are computed for the first cell of each row and for each ``every``-th after it.
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
        """Return a row of the page's sketch for each of its regions, in their order.

        Regions do not change the sketch; those beyond 36 get its first rows again.
        """
        rows = [
            np.resize(word_vectors.text_sketch(text), (len(boxes), word_vectors.WIDTH))
            for text, boxes in zip(self.read_texts(screenshots), regions, strict=True)
        ]
        return torch.from_numpy(np.concatenate(rows)).to(screenshots.device)

    @torch.no_grad()
    def read_texts(self, screenshots: UInt8[Tensor, "n 3 height width"]) -> list[str]:
        """Return the letters on each page as they stand, line by line, without spaces.

        A letter is repeated if several of its cells are read, and narrow letters may be missing.
        """
        vectors, counts = [], []
        for _, maps, shown in self.see(screenshots):
            cells = [letters(page) for page in shown]
            vectors.append(self._read_all(maps, cells))
            counts += [len(row) for row, _ in cells]
        named = torch.from_numpy(self.name_letters(torch.cat(vectors)))
        texts = ["".join(map(_name, part.tolist())) for part in torch.split(named, counts)]
        pages = len(screenshots)
        texts = ["".join(texts[page::pages]) for page in range(pages)]  # of both scales
        return [_RIGHT_TO_LEFT.sub(lambda run: run[0][::-1], text) for text in texts]

    def name_letters(self, vectors: Float[Tensor, "cells 256"]) -> Int64[np.ndarray, " cells"]:
        """Return the number of the letter whose vector is nearest to each; -1 for none.

        Cells that continue the letter of the cell before, in reading order, get its number.
        """
        differs = torch.ones(len(vectors), dtype=torch.bool, device=vectors.device)
        differs[1:] = (vectors[1:] * vectors[:-1]).sum(1) < _SAME
        vectors, alphabets = vectors[differs].to(self.table.dtype), readable_letters()[1]
        named = np.empty(len(vectors), dtype=np.int64)
        for start in range(0, len(vectors), _NAMED):
            part = vectors[start : start + _NAMED]
            number, cosine = _nearest(part, self.table[:alphabets])
            unsure = np.flatnonzero(cosine < _SURE)
            other, others = _nearest(part[unsure], self.table[alphabets:])
            better = others > cosine[unsure]
            number[unsure[better]] = other[better] + alphabets
            cosine[unsure[better]] = others[better]
            named[start : start + _NAMED] = np.where(cosine < _LEAST, -1, number)
        rows: np.ndarray = named[differs.cpu().numpy().cumsum() - 1]
        return rows

    def see(
        self, screenshots: UInt8[Tensor, "n 3 height width"]
    ) -> list[tuple[int, Float[Tensor, "n channels _ _"], Bool[Tensor, "n _ _"]]]:
        """Return each scale, the pages' maps, and a mask of the cells to read, of every third."""
        grey = screenshots.float().mean(dim=1, keepdim=True) / 255
        maps, logits = zip(
            *(self.maps(_shrink(grey, scale), EVERY) for scale in SCALES), strict=True
        )
        return list(zip(SCALES, maps, surest(logits), strict=True))

    def _read_all(
        self, maps: Tensor, cells: Sequence[tuple[Tensor, Tensor]]
    ) -> Float[Tensor, "all 256"]:
        """Read cells of each page, rows and columns, in batches of few sizes.

        A CPU's library compiles a kernel for each size and caches a thousand of them.
        """
        counts = torch.tensor([len(row) for row, _ in cells], device=maps.device)
        page, count = torch.repeat_interleave(counts), int(counts.sum())
        row, column = (torch.cat(part) for part in zip(*cells, strict=True))
        places = [F.pad(part, (0, -count % _MULTIPLE)) for part in (page, row, column)]
        vectors = [
            self.read(maps, (places[0][part], places[1][part], places[2][part]))
            for part in (slice(at, at + _CHUNK) for at in range(0, count, _CHUNK))
        ]
        return torch.cat([maps.new_zeros(0, word_vectors.WIDTH, dtype=torch.float32), *vectors])[
            :count
        ]


def _name(number: int) -> str:
    return readable_letters()[0][number] if number >= 0 else ""


def _nearest(
    vectors: Float[Tensor, "cells 256"], table: Float[Tensor, "letters 256"]
) -> tuple[Int64[np.ndarray, " cells"], Float[np.ndarray, " cells"]]:
    """Return the row of a table with the largest product with each vector, and the product.

    NumPy's ``argmax`` is three times as fast as PyTorch's on a CPU.
    """
    products = (vectors @ table.T).float().cpu().numpy()
    number = products.argmax(axis=1)
    return number, products[np.arange(len(number)), number]


def surest(logits: Sequence[Float[Tensor, "n _ _"]]) -> list[Bool[Tensor, "n _ _"]]:
    """Return a mask, for each scale, of the cells that contain a letter and exceed their rivals.

    The rivals are the cells above and below, and the cell of another scale at the same place. So a
    letter is read in the row of its middle, and at the scale that brings it to the trained size.
    """
    shown = []
    for cells in map(Tensor.float, logits):
        padded = F.pad(cells, (0, 0, 1, 1), value=-torch.inf)
        others = [
            F.adaptive_max_pool2d(other.float(), cells.shape[1:])
            for other in logits
            if other.shape != cells.shape
        ]
        rivals = torch.stack([padded[:, :-2], padded[:, 2:], *others]).amax(dim=0)
        shown.append((cells > 0) & (cells >= rivals))
    return shown


def letters(
    shown: Bool[Tensor, "rows seen"],
) -> tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"]]:
    """Return row and column of the cells to read, from a mask of every third cell."""
    row, column = torch.nonzero(shown, as_tuple=True)
    return row, column * EVERY


def local_contrast(pages: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Return the distance of each pixel from the mean of its window, in standard deviations."""
    centred = pages - _box_mean(pages)
    deviation = _box_mean(centred.square()).clamp_(min=0).sqrt_().add_(_FLOOR)
    return centred.div_(deviation)


def _box_mean(values: Float[Tensor, "n 1 h w"]) -> Float[Tensor, "n 1 h w"]:
    """Average over windows around each pixel, with edges repeated, by two running sums."""
    half = _CONTRAST // 2
    for dim, padding in ((2, (0, 0, half + 1, half)), (3, (half + 1, half, 0, 0))):
        length = values.shape[dim]
        sums = F.pad(values, padding, mode="replicate").cumsum(dim)
        values = sums.narrow(dim, _CONTRAST, length) - sums.narrow(dim, 0, length)
        values.div_(_CONTRAST)
    return values


def _shrink(pages: Float[Tensor, "n 1 h w"], scale: int) -> Float[Tensor, "n 1 i j"]:
    """Shrink pages, then pad them at the bottom and right to a whole number of cells."""
    shrunk = window_means(pages, scale, scale)
    down, across = -shrunk.shape[2] % DOWN, -shrunk.shape[3] % ACROSS
    return F.pad(shrunk, (0, across, 0, down), mode="replicate") if down or across else shrunk
