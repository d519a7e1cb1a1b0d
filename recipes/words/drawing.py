"""Draw small screens of words in many scripts, fonts and sizes, and batch them for training."""

import random
import unicodedata
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
SIZES = (10.0, 24.5)
"""Font sizes, in px, that the reader learns at one scale of the page."""
UNCLEAR = (8.0, 29.0)
"""Minimum and maximum font size of text, in px."""

_SCALE = 2
"""Pixel ratio: words are drawn larger and scaled down, as on a phone."""
_RIGHT_TO_LEFT = frozenset({"ar", "ckb", "fa", "he", "lrc", "mzn", "ps", "sd", "ug", "ur", "yi"})
_LATIN = "it de nl es sk fr pl cs pt da ro is tr bs sv hr sl fi az id hu et ca gl lt lv nb vi af"
_GROUPS = {
    "latin": (0.24, _LATIN),
    "en": (0.1, "en"),
    "zh": (0.22, "zh"),
    "ja": (0.1, "ja"),
    "ko": (0.09, "ko"),
    "cyrillic": (0.07, "ru uk bg mk sr be kk"),
    "arabic": (0.06, "ar ar ar fa fa ur ckb ps"),
    "hebrew": (0.02, "he"),
    "thai": (0.04, "th"),
    "greek": (0.02, "el"),
    "devanagari": (0.02, "hi hi mr ne"),
}  # fmt: skip
"""Share of lines and languages of each group; the rest is in other languages."""
_NEARLY = 1.5
"""Px from the border of two rows within which the middle of a letter counts as in both."""
_JOINER = "\u200d"
_ALEF = frozenset("اأإآ")


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter with its neighbours on a canvas: its ends and the middle of its line, in px."""

    unit: Unit
    left: float
    right: float
    centre: float


@dataclass(frozen=True, slots=True)
class Canvas:
    """A drawn piece of a screen.

    Attributes:
        pixels: Grey values.
        letters: Letters to read.
        unclear: Boxes (left, top, right, bottom, in px) of text that may be read or not: cut off,
            or nearly of a size to read.
    """

    pixels: UInt8[np.ndarray, "height width"]
    letters: list[Letter] = field(default_factory=list)
    unclear: list[tuple[float, float, float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Canvases for training.

    Attributes:
        pixels: Grey values in [0, 1].
        shown: 1 for cells with a letter to read, 0 for others, −1 for ignored ones: unclear text,
            and the row next to a letter near its border.
        cells: Canvas, row and column of the letters to read.
        units: Those letters.
    """

    pixels: Float[Tensor, "n 1 height width"]
    shown: Float[Tensor, "n rows columns"]
    cells: tuple[Int64[Tensor, " cells"], Int64[Tensor, " cells"], Int64[Tensor, " cells"]]
    units: list[Unit]


class Writer:
    """Draw canvases of random lines with a language's words and fonts."""

    def __init__(self, lexicon: Lexicon, fonts: Mapping[str, Sequence[Font]]) -> None:
        self._fonts, self._latin = fonts, frozenset(fonts["en"])
        self._words = {
            language: (words, list(accumulate(weights)))
            for language, (words, weights) in lexicon.items()
            if language in fonts
        }
        groups = {name: languages.split() for name, (_, languages) in _GROUPS.items()}
        grouped = {language for group in groups.values() for language in group}
        groups["other"] = sorted(set(self._words) - grouped)
        drawn = {
            name: [one for one in group if one in self._words] for name, group in groups.items()
        }
        self._groups = {name: group for name, group in drawn.items() if group}
        rest = 1 - sum(share for share, _ in _GROUPS.values())
        self._shares = [_GROUPS.get(name, (rest, ""))[0] for name in self._groups]
        self._letters = {
            language: sorted({letter for word in words for letter in word if letter.isalnum()})
            for language, (words, _) in self._words.items()
        }

    def draw(self, seed: int) -> Canvas:
        """Draw a canvas; equal seeds, fonts and words give equal canvases."""
        draws = random.Random(seed)
        back, ink = _colours(draws)
        page = _Page(_background(draws, back), ink)
        top = draws.uniform(-6, 10)
        while top < HEIGHT - 6:
            if draws.random() < 0.12:
                top = page.picture(draws, top)
            top = self._paragraph(draws, page, top) + draws.uniform(2, 14)
        pixels = np.asarray(page.image.reduce(_SCALE), dtype=np.uint8)
        return Canvas(pixels, page.letters, page.unclear)

    def _paragraph(self, draws: random.Random, page: "_Page", top: float) -> float:
        """Write one to four lines of one language and font; return where the next one begins."""
        group = draws.choices(list(self._groups), self._shares)[0]
        language = draws.choice(self._groups[group])
        size = _size(draws)
        chosen, latin = (draws.choice(self._fonts[each]) for each in (language, "en"))
        font = _load(chosen, round(size * _SCALE))
        left = draws.uniform(-20, 30) if draws.random() < 0.8 else draws.uniform(30, WIDTH * 0.6)
        leading = size * draws.uniform(1.15, 1.8)
        lines = 1 if draws.random() < 0.5 else draws.randint(2, 4)
        style = _Style(font, size, language)
        if chosen not in self._latin:  # another font for letters that it lacks, as in browsers
            style.latin = _load(latin, round(size * _SCALE))
        if draws.random() < 0.15:
            page.panel(draws, left, top, lines * leading + size * 0.5)
        if group not in ("arabic", "devanagari", "thai", "other") and draws.random() < 0.08:
            style.spacing = size * draws.uniform(0.03, 0.2)
        if draws.random() < 0.08:
            style.underline = max(1, round(size * _SCALE / 16))
        for _ in range(lines):
            if top > HEIGHT - 4:
                break
            across, justified = left, draws.uniform(0.7, 2) if draws.random() < 0.2 else 1
            for _ in range(draws.randint(1, 9)):
                if across > WIDTH:
                    break
                text = self._text(draws, language)
                across += page.write(_punctuated(draws, text), across, top, style)
                across += justified * _gap(draws, size, unspaced=is_unspaced(text[0]))
            top += leading
        page.ink = page.own_ink
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
            return _shortened(_case(draws, word), 22)
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


@dataclass(slots=True)
class _Style:
    """Look of the words of a paragraph."""

    font: ImageFont.FreeTypeFont
    size: float
    language: str
    latin: ImageFont.FreeTypeFont | None = None  # of Latin letters and digits, if font has none
    spacing: float = 0.0  # after each letter, in px
    underline: int = 0


class _Page:
    """A canvas that is being drawn."""

    def __init__(self, image: Image.Image, ink: int) -> None:
        self.image, self.ink, self.own_ink = image, ink, ink
        self._pen = ImageDraw.Draw(image)
        self.letters: list[Letter] = []
        self.unclear: list[tuple[float, float, float, float]] = []

    def picture(self, draws: random.Random, top: float) -> float:
        """Draw spots, shapes and edges without letters; return their lower end."""
        left, height = draws.uniform(-20, WIDTH - 20), draws.uniform(8, 60)
        width = height * draws.uniform(0.7, 5)
        box = [round(edge * _SCALE) for edge in (left, top, left + width, top + height)]
        size = (max(4, box[2] - box[0]), max(4, box[3] - box[1]))
        cells = (draws.randint(2, 24), draws.randint(2, 12))
        spots = np.array([draws.randrange(256) for _ in range(cells[0] * cells[1])], dtype=np.uint8)
        texture = Image.fromarray(spots.reshape(cells[1], cells[0]))
        how = Image.Resampling.BICUBIC if draws.random() < 0.8 else Image.Resampling.NEAREST
        if draws.random() < 0.6:
            self.image.paste(texture.resize(size, how), (box[0], box[1]))
        for _ in range(draws.randint(0, 6)):
            points = [
                (draws.uniform(box[0], box[2]), draws.uniform(box[1], box[3]))
                for _ in range(draws.randint(2, 4))
            ]
            shape, grey = draws.random(), draws.randrange(256)
            if shape < 0.4:
                self._pen.line(points, fill=grey, width=draws.randint(1, 8))
            elif shape < 0.7 and len(points) > 2:
                self._pen.polygon(points, fill=grey)
            else:
                radius = draws.uniform(2, size[1] / 2)
                self._pen.circle(points[0], radius, outline=grey, width=draws.randint(1, 6))
        return top + height

    def panel(self, draws: random.Random, left: float, top: float, height: float) -> None:
        """Draw a filled or framed area behind the next lines, like a button or a box on a page."""
        back, self.ink = _colours(draws)
        around = draws.uniform(2, 12)
        right = left + draws.uniform(60, 280)
        sides = (left - around, top - around / 2, right, top + height + around / 2)
        self._pen.rounded_rectangle(
            [edge * _SCALE for edge in sides],
            radius=draws.choice([0, 0, 8, 16]),
            fill=back,
            outline=draws.choice([None, self.ink]),
        )

    def write(self, text: str, left: float, top: float, style: _Style) -> float:
        """Write a text without spaces; return its width in px."""
        plain = any(letter.isascii() and letter.isalnum() for letter in text)
        font, size = (style.latin if plain and style.latin else style.font), style.size
        ends = [end + place * style.spacing for place, end in enumerate(_ends(text, font))]
        width, (ascent, descent) = ends[-1], (part / _SCALE for part in font.getmetrics())
        pieces = zip(ends, text, strict=False) if style.spacing else [(0.0, text)]
        for shift, piece in pieces:
            place = ((left + shift) * _SCALE, top * _SCALE)
            self._pen.text(place, piece, font=font, fill=self.ink, anchor="la")
        if style.underline:
            below = (top + ascent) * _SCALE + style.underline
            ends_px = (left * _SCALE, below, (left + width) * _SCALE, below)
            self._pen.line(ends_px, fill=self.ink, width=style.underline)
        box = (left, top, left + width, top + ascent + descent)
        cut = min(left, top) < 0 or box[2] > WIDTH or box[3] > HEIGHT
        readable = SIZES[0] <= size <= SIZES[1]
        if UNCLEAR[0] <= size <= UNCLEAR[1] and (cut or not readable):
            self.unclear.append(box)
        if readable:
            self._place(text, ends, left, top + ascent - 0.36 * size, style.language)
        return width

    def _place(
        self, text: str, ends: Sequence[float], left: float, centre: float, language: str
    ) -> None:
        """Record the position of each letter of a text with the signs on it."""
        for place, unit in spans(text):
            after = place + 1
            while after < len(text) and unicodedata.category(text[after])[0] == "M":
                after += 1
            begin, end = ends[place], ends[after]
            if language in _RIGHT_TO_LEFT and unit[1].isalpha():
                begin, end = ends[-1] - end, ends[-1] - begin
            if end - begin > 1:
                self.letters.append(Letter(unit, left + begin, left + end, centre))


def _ends(text: str, font: ImageFont.FreeTypeFont) -> list[float]:
    """Return 0 and the end of each letter of a text, in px from its beginning.

    Arabic letters have their width within the word; those of a ligature share its width.
    """
    joined = any("\u0600" <= letter <= "\u08ff" for letter in text)
    ends = [0.0]
    for count in range(1, len(text) + 1):
        inside = joined and count < len(text) and text[count].isalpha()
        ends.append(font.getlength(text[:count] + _JOINER * inside) / _SCALE)
    for place in range(1, len(ends) - 1):
        if joined and text[place - 1] == "ل" and text[place] in _ALEF:
            ends[place] = (ends[place - 1] + ends[place + 1]) / 2
    return ends


def make_batch(
    canvases: Sequence[Canvas], draws: np.random.Generator, limit: int, *, varied: bool
) -> Batch:
    """Batch canvases with at most ``limit`` random letters to read of each.

    ``varied`` inverts, fades, blurs pixels or adds noise at random.
    """
    pixels = np.stack([canvas.pixels for canvas in canvases]).astype(np.float32) / 255
    if varied:
        for page in pixels:
            _vary(page, draws)
    shown = np.zeros((len(canvases), ROWS, COLUMNS), dtype=np.float32)
    cells: list[tuple[int, int, int]] = []
    units: list[Unit] = []
    for number, canvas in enumerate(canvases):
        for left, top, right, bottom in canvas.unclear:
            down = slice(max(0, int(top // DOWN)), max(0, int(bottom // DOWN) + 1))
            shown[number, down, max(0, int(left / ACROSS)) : max(0, int(right / ACROSS) + 1)] = -1
        placed = [(place, letter) for letter in canvas.letters if (place := _place(letter))]
        for (_, first, last), letter in placed:
            near = _near_row(letter.centre)
            if near in range(ROWS):
                shown[number, near, first:last] = -1
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
    """Return the row and columns of a letter; ``None`` if it is cut off."""
    if letter.left < 0 or letter.right > WIDTH or not 2 <= letter.centre <= HEIGHT - 2:
        return None
    first = round(letter.left / ACROSS)
    last = min(COLUMNS, max(round(letter.right / ACROSS), first + 1))
    return (int(letter.centre // DOWN), first, last) if last > first else None


def _near_row(centre: float) -> int:
    """Return the neighbouring row if the middle of a letter is near its border, else −1."""
    row, inside = divmod(centre, DOWN)
    if min(inside, DOWN - inside) >= _NEARLY:
        return -1
    return int(row) + (1 if inside > DOWN / 2 else -1)


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
    """Return grey values of a background and of an ink with enough contrast."""
    back = draws.choice([255, 255, 255, 250, 245, draws.randint(200, 255), draws.randint(0, 60),
                         draws.randint(0, 255)])  # fmt: skip
    inks: list[int] = [0, 20, 50, 80, 120, 255, draws.randint(0, 255)]
    return back, draws.choice([ink for ink in inks if abs(ink - back) > 70])


def _background(draws: random.Random, back: int) -> Image.Image:
    """Draw a background: plain, with a gradient, or with spots."""
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
    """Draw a font size, mostly one to read."""
    chance = draws.random()
    if chance < 0.8:
        return draws.triangular(SIZES[0], SIZES[1], 14.5)
    return draws.uniform(SIZES[1], 70) if chance < 0.91 else draws.uniform(4, SIZES[0])


def _gap(draws: random.Random, size: float, *, unspaced: bool) -> float:
    if not unspaced:
        return size * draws.uniform(0.22, 0.4)
    return 0.0 if draws.random() < 0.5 else size * draws.uniform(0.3, 1)


def _punctuated(draws: random.Random, text: str) -> str:
    """Add a sign before or after some texts."""
    chance = draws.random()
    after, before = (",,,...:;!?)»", "(«-–•#")
    if is_unspaced(text[0]):
        after, before = ("，。、：！？）」", "（「《·")
    if chance < 0.13:
        return text + draws.choice(after)
    return draws.choice(before) + text if chance < 0.16 else text


def _shortened(word: str, count: int) -> str:
    """Cut a word, but never between a letter and a sign on it."""
    while count < len(word) and unicodedata.category(word[count])[0] == "M":
        count += 1
    return word[:count]


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
    chance = draws.random()
    return word.capitalize() if chance < 0.35 else word.upper() if chance < 0.45 else word


def _change(draws: random.Random, word: str, letters: Sequence[str]) -> str:
    """Change one to three letters of a word, so that words cannot be memorised."""
    spelled = list(word)
    for _ in range(draws.randint(1, 3)):
        place, chance = draws.randrange(len(spelled)), draws.random()
        if chance < 0.5:
            spelled[place] = draws.choice(letters)
        elif chance < 0.75:
            spelled.insert(place, draws.choice(letters))
        elif len(spelled) > 2:
            del spelled[place]
    return "".join(spelled)


@lru_cache(maxsize=1)
def _characters() -> Mapping[str, Sequence[str]]:
    """Return the common characters: JIS level 1 with kana, and GB 2312 level 1."""
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
