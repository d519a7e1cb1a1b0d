"""Draw small screens of words in many scripts, fonts and sizes; make training batches of them."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from now_builder.detect.model.word_reader import ACROSS, DOWN
from now_builder.formats.word_vectors import Unit, is_unspaced, spans
from recipes.words.lexicon import Font, Lexicon

WIDTH, HEIGHT = 320, 96
ROWS, COLUMNS = HEIGHT // DOWN, WIDTH // ACROSS
SIZES = (10.0, 20.5)
"""Font sizes, in px, that the reader learns; others are read on a page of another scale."""

_SCALE = 2
"""Factor by which words are drawn larger than they are shown, as on a phone."""
_RIGHT_TO_LEFT = frozenset({"ar", "ckb", "fa", "he", "ps", "sd", "ug", "ur", "yi"})
_SHARES = {"latin": 0.32, "en": 0.12, "zh": 0.24, "ja": 0.12, "ko": 0.09, "cyrillic": 0.07}
"""Share of lines of each kind; the rest is of any other language."""
_LATIN = "it en de nl es sk fr pl cs pt da ro is tr bs sv hr sl fi az id hu et ca gl lt lv nb vi af"
_CYRILLIC = "ru uk bg mk sr be kk"


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter on a canvas.

    Attributes:
        unit: The letter among its neighbours.
        left: Left end, in px.
        right: Right end, in px.
        centre: Middle of its line from the top, in px.
    """

    unit: Unit
    left: float
    right: float
    centre: float


@dataclass(frozen=True, slots=True)
class Canvas:
    """A drawn piece of a screen.

    Attributes:
        pixels: Grey values.
        letters: Letters to be read.
        text: Boxes of all text, of any size, in px: left, top, right, bottom.
    """

    pixels: UInt8[np.ndarray, "height width"]
    letters: list[Letter] = field(default_factory=list)
    text: list[tuple[float, float, float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Canvases to learn from.

    Attributes:
        pixels: Grey values in [0, 1].
        shown: 1 where a cell shows a letter that is to be read, 0 where it shows none, and −1 where
            it does not count: near the letters, and in text that is too large or too small.
        cells: Canvas, row and column of the letters that are read.
        units: Those letters.
    """

    pixels: Float[Tensor, "n 1 height width"]
    shown: Float[Tensor, "n rows columns"]
    cells: tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"], Int64[Tensor, " cells"]]
    units: list[Unit]


class Writer:
    """Draw canvases of random lines.

    Args:
        lexicon: Words by language.
        fonts: Fonts by language.
    """

    def __init__(self, lexicon: Lexicon, fonts: Mapping[str, Sequence[Font]]) -> None:
        self._fonts = fonts
        self._words = {
            language: (words, list(accumulate(weights)))
            for language, (words, weights) in lexicon.items()
            if language in fonts
        }
        kinds = {"latin": _LATIN.split(), "cyrillic": _CYRILLIC.split()}
        known = {name: kinds.get(name, [name]) for name in _SHARES}
        grouped = {language for group in known.values() for language in group}
        known["other"] = sorted(set(self._words) - grouped)
        self._kinds = {
            kind: [language for language in group if language in self._words]
            for kind, group in known.items()
        }
        self._kinds = {kind: group for kind, group in self._kinds.items() if group}
        rest = 1 - sum(_SHARES.values())
        self._shares = [_SHARES.get(kind, rest) for kind in self._kinds]
        self._letters = {
            language: sorted({letter for word in words for letter in word})
            for language, (words, _) in self._words.items()
        }

    def draw(self, seed: int) -> Canvas:
        """Draw a canvas; the same for the same seed, fonts and words."""
        draws = random.Random(seed)
        back, ink = _colours(draws)
        page = _Page(_background(draws, back), ink)
        top = draws.uniform(-6, 10)
        while top < HEIGHT - 6:
            top = self._paragraph(draws, page, top) + draws.uniform(2, 14)
        pixels = np.asarray(page.image.reduce(_SCALE), dtype=np.uint8)
        return Canvas(pixels, page.letters, page.text)

    def _paragraph(self, draws: random.Random, page: "_Page", top: float) -> float:
        """Write one to four lines of one language and font; return where the next one begins."""
        kind = draws.choices(list(self._kinds), self._shares)[0]
        language = draws.choice(self._kinds[kind])
        size = _size(draws)
        font = _load(draws.choice(self._fonts[language]), round(size * _SCALE))
        left = draws.uniform(-20, 30) if draws.random() < 0.8 else draws.uniform(30, WIDTH * 0.6)
        leading = size * draws.uniform(1.15, 1.8)
        for _ in range(1 if draws.random() < 0.5 else draws.randint(2, 4)):
            if top > HEIGHT - 4:
                break
            across = left
            for _ in range(draws.randint(1, 9)):
                if across > WIDTH:
                    break
                text = self._text(draws, language)
                across += page.write(text, across, top, font, size, language)
                across += _gap(draws, size, unspaced=is_unspaced(text[0]))
            top += leading
        return top

    def _text(self, draws: random.Random, language: str) -> str:
        if draws.random() < 0.05:
            return _number(draws)
        if language not in {"ja", "zh"}:
            if language != "en" and draws.random() < 0.06:
                language = "en"
            word = self._word(draws, language)
            if draws.random() < 0.22:
                word = _change(draws, word, self._letters[language])
            return _case(draws, word)[:22]
        if draws.random() < 0.06:
            return _case(draws, self._word(draws, "en"))
        parts = [self._unspaced(draws, language) for _ in range(draws.randint(1, 5))]
        return "".join(parts)[: draws.randint(3, 14)]

    def _unspaced(self, draws: random.Random, language: str) -> str:
        if draws.random() < 0.6:
            return self._word(draws, language)
        letters = _characters()[language]
        return "".join(draws.choice(letters) for _ in range(draws.randint(1, 4)))

    def _word(self, draws: random.Random, language: str) -> str:
        words, weights = self._words[language]
        return draws.choices(words, cum_weights=weights)[0]


class _Page:
    """A canvas that is being drawn."""

    def __init__(self, image: Image.Image, ink: int) -> None:
        self.image, self._ink = image, ink
        self._pen = ImageDraw.Draw(image)
        self.letters: list[Letter] = []
        self.text: list[tuple[float, float, float, float]] = []

    def write(
        self,
        text: str,
        left: float,
        top: float,
        font: ImageFont.FreeTypeFont,
        size: float,
        language: str,
    ) -> float:
        """Write a text without spaces; return its width in px."""
        self._pen.text((left * _SCALE, top * _SCALE), text, font=font, fill=self._ink, anchor="la")
        ascent, descent = (part / _SCALE for part in font.getmetrics())
        width = font.getlength(text) / _SCALE
        self.text.append((left, top, left + width, top + ascent + descent))
        if SIZES[0] <= size <= SIZES[1]:
            centre = top + ascent - 0.36 * size
            for place, unit in spans(text):
                begin, end = (font.getlength(text[:to]) / _SCALE for to in (place, place + 1))
                if language in _RIGHT_TO_LEFT:
                    begin, end = width - end, width - begin
                if end - begin > 1:  # no mark that stands above another letter
                    self.letters.append(Letter(unit, left + begin, left + end, centre))
        return width


def make_batch(
    canvases: Sequence[Canvas], draws: np.random.Generator, limit: int, *, varied: bool
) -> Batch:
    """Prepare canvases.

    Args:
        canvases: Drawn canvases.
        draws: Source of randomness.
        limit: Maximum letters of a canvas that are read, chosen at random.
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
        placed = [(place, letter) for letter in canvas.letters if (place := _place(letter))]
        for (row, first, last), _ in placed:
            shown[number, row, first:last] = 1
        if len(placed) > limit:
            placed = [placed[i] for i in draws.choice(len(placed), limit, replace=False)]
        for (row, first, last), letter in placed:
            cells.append((number, row, int(draws.integers(first, last))))
            units.append(letter.unit)
    at = torch.tensor(cells, dtype=torch.int64).reshape(-1, 3)
    grey = torch.from_numpy(pixels.clip(0, 1))[:, None]
    return Batch(grey, torch.from_numpy(shown), (at[:, 0], at[:, 1], at[:, 2]), units)


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


def _colours(draws: random.Random) -> tuple[int, int]:
    """Return grey values of a background and of an ink that can be told from it."""
    back = draws.choice([255, 255, 255, 250, 245, draws.randint(200, 255), draws.randint(0, 60),
                         draws.randint(0, 255)])  # fmt: skip
    inks: list[int] = [0, 20, 50, 80, 120, 255, draws.randint(0, 255)]
    return back, draws.choice([ink for ink in inks if abs(ink - back) > 70])


def _background(draws: random.Random, back: int) -> Image.Image:
    """Draw a background: plain, or with a slope of light, or with spots."""
    width, height = WIDTH * _SCALE, HEIGHT * _SCALE
    if draws.random() >= 0.12:
        return Image.new("L", (width, height), back)
    slope: np.ndarray = np.full((height, width), float(back))
    slope += np.linspace(0, draws.uniform(-50, 50), width)
    slope += np.linspace(0, draws.uniform(-50, 50), height)[:, None]
    if draws.random() < 0.5:
        spots = np.array([draws.uniform(-40, 40) for _ in range(480)], dtype=np.float32)
        slope += np.asarray(Image.fromarray(spots.reshape(12, 40)).resize((width, height)))
    return Image.fromarray(slope.clip(0, 255).astype(np.uint8))


def _size(draws: random.Random) -> float:
    """Draw a font size, mostly one that is to be read."""
    kind = draws.random()
    if kind < 0.88:
        return draws.triangular(SIZES[0], SIZES[1] - 0.5, 15)
    return draws.uniform(SIZES[1], 36) if kind < 0.95 else draws.uniform(5, SIZES[0] - 1)


def _gap(draws: random.Random, size: float, *, unspaced: bool) -> float:
    if not unspaced:
        return size * draws.uniform(0.22, 0.4)
    return 0.0 if draws.random() < 0.5 else size * draws.uniform(0.3, 1)


def _number(draws: random.Random) -> str:
    """Draw a year, a count, a date or a price."""
    makers: list[Callable[[], str]] = [
        lambda: str(draws.randint(1990, 2029)),
        lambda: str(draws.randint(0, 10 ** draws.randint(1, 5))),
        lambda: f"{draws.randint(1, 31):02}{draws.choice('-./:')}{draws.randint(1, 12):02}",
        lambda: f"{draws.randint(0, 999)}.{draws.randint(0, 99):02}",
    ]
    return draws.choice(makers)()


def _case(draws: random.Random, word: str) -> str:
    kind = draws.random()
    return word.capitalize() if kind < 0.35 else word.upper() if kind < 0.45 else word


def _change(draws: random.Random, word: str, letters: Sequence[str]) -> str:
    """Change one to three letters of a word, so that words cannot be known by heart."""
    spelled = list(word)
    for _ in range(draws.randint(1, 3)):
        place, kind = draws.randrange(len(spelled)), draws.random()
        if kind < 0.5:
            spelled[place] = draws.choice(letters)
        elif kind < 0.75:
            spelled.insert(place, draws.choice(letters))
        elif len(spelled) > 2:
            del spelled[place]
    return "".join(spelled)


@lru_cache(maxsize=1)
def _characters() -> Mapping[str, Sequence[str]]:
    """Return the characters of everyday use: of JIS level 1 with kana, and of GB 2312 level 1."""
    kana = [chr(code) for code in (*range(0x3041, 0x3094), *range(0x30A1, 0x30F5))]
    return {
        "ja": [*kana * 8, *_two_bytes("euc_jp", 0xB0, 0xCF)],
        "zh": _two_bytes("gb2312", 0xB0, 0xD7),
    }


def _two_bytes(encoding: str, first: int, last: int) -> list[str]:
    pairs = (bytes([high, low]) for high in range(first, last + 1) for low in range(0xA1, 0xFF))
    return list("".join(pair.decode(encoding, errors="ignore") for pair in pairs))


@lru_cache(maxsize=400)
def _load(font: Font, size: int) -> ImageFont.FreeTypeFont:
    path, number = font
    return ImageFont.truetype(path, size, index=number)
