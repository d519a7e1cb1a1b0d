"""Measure a word reader on captured pages, whose DOM tells their text: see README.md here."""

import argparse
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.model.weights import find_weights, load_detector
from now_builder.detect.model.word_reader import ACROSS, DOWN, WordReader, letters
from now_builder.detect.pixels import decode_screenshot
from now_builder.errors import ConfigError, NowError
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Element,
    read_captures,
    read_rows,
)
from now_builder.formats.word_vectors import count_units, letter_vector, spans, unit_vector
from now_builder.program.command_line import set_up_logging
from now_builder.program.progress import Progress
from pc2_baseline.networks.reading import fit_whitening

SIZES = (8, 11, 14, 18, 22, 28, 40, 60)
"""Limits of the font sizes, in px of the reader's page, by which figures are told."""
_SCREEN = (WIDTH // 2, HEIGHT // 2)
_PER_SITE = 6
"""Pages of a site and script, at most."""
_PER_PAGE = 60
_LINE = 1.33
"""Height of a line's box in font sizes: fonts that browsers take have 1.15 to 1.45."""
_HALVED = 22
"""Font size, in px, from which letters are counted on the page of half the size."""
_DRIFT = 2.0
"""How many letters' widths from its expected place a letter is looked for."""


@dataclass(frozen=True, slots=True)
class Line:
    """A string on a page in one line.

    Attributes:
        box: In px of the reader's page.
        size: Estimated font size, in px of that page.
    """

    text: str
    script: str
    box: tuple[float, float, float, float]
    size: float


@dataclass(slots=True)
class Tally:
    """Sums over the lines of one script and size.

    Attributes:
        cosine: Of what was read in each line's box and its text's letters, summed.
        right: Letters that were read at their place, in order, of ``letters``.
    """

    lines: int = 0
    cosine: float = 0.0
    right: int = 0
    letters: int = 0

    def __str__(self) -> str:
        share = self.right / max(1, self.letters)
        return f"{self.cosine / max(1, self.lines):.3f} | {share:.3f} | {self.lines}"


def script_of(text: str) -> str:
    """Return the script of most letters of a text, as Unicode names it; empty without letters."""
    names = (unicodedata.name(each, "").split(" ")[0] for each in text if each.isalpha())
    counted = Counter({"HIRAGANA": "KANA", "KATAKANA": "KANA"}.get(name, name) for name in names)
    if counted["KANA"] * 4 > counted.total():  # Japanese mixes both
        return "KANA"
    return counted.most_common(1)[0][0] if counted else ""


def lines_of(elements: Sequence[Element]) -> Iterator[Line]:
    """Yield the whole, visible lines of text that are an element's only text."""
    inside = {element.parent for element in elements if element.text.strip()}
    for number, element in enumerate(elements):
        box, text = element.text_box, unicodedata.normalize("NFC", element.text.strip())
        script = script_of(text)
        shown = element.visible and element.visible_fraction >= 0.99
        if not (shown and box and script and len(text) < 190) or number in inside:
            continue
        left, top, right, bottom = (edge / 2 for edge in box)
        size = (bottom - top) / _LINE
        if size <= 0 or min(left, top) < 0 or right > _SCREEN[0] or bottom > _SCREEN[1]:
            continue
        expected = sum(map(_width, text)) * size
        if 0.6 <= (right - left) / max(1.0, expected) <= 1.7:
            yield Line(text, script, (left, top, right, bottom), size)


def _width(letter: str) -> float:
    """Return about how wide a letter is, in font sizes."""
    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0.0
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    return 0.3 if letter in " ilIjtf.,:;'|!()[]-·" else 0.56


class Reading:
    """A reader on a page, and the alphabet of letters that may be told apart."""

    def __init__(self, reader: WordReader, alphabet: Sequence[str]) -> None:
        self.reader, self.alphabet = reader, list(alphabet)
        self._table = torch.from_numpy(np.stack([letter_vector(each) for each in alphabet]))

    def sums(
        self, page: Tensor, lines: Sequence[Line]
    ) -> tuple[Float[Tensor, "lines 256"], Float[Tensor, " 256"]]:
        """Return what is read in the box of each line, and on the whole page, as detect does."""
        boxes = torch.tensor([*(line.box for line in lines), (0.0, 0.0, *map(float, _SCREEN))])
        read = self.reader(page[None], [boxes])
        return read[:-1], read[-1]

    def right(self, page: Tensor, lines: Sequence[Line]) -> list[tuple[int, int]]:
        """Return how many letters of each line were read at their place, and how many there are."""
        found: dict[int, tuple[int, int]] = {}
        for scale, maps, shown in self.reader.see(page[None]):
            row, column = letters(shown[0])
            down, across = (row + 0.5) * DOWN * scale, (column + 0.5) * ACROSS * scale
            chosen = [
                number for number, line in enumerate(lines) if (line.size >= _HALVED) == (scale > 1)
            ]
            for number in chosen:
                left, top, right, bottom = lines[number].box
                inside = (down >= top) & (down < bottom) & (across >= left) & (across < right)
                order = across[inside].argsort()
                cells = row[inside][order], column[inside][order]
                if not len(order):  # no letter is seen there
                    found[number] = matched(lines[number].text, [])
                    continue
                said = self.reader.read(maps, (torch.zeros_like(cells[0]), *cells))
                spelled = [self.alphabet[at] for at in (said @ self._table.T).argmax(1).tolist()]
                places = ((across[inside][order] - left) / (right - left)).tolist()
                found[number] = matched(lines[number].text, list(zip(places, spelled, strict=True)))
        return [found[number] for number in range(len(lines))]


def matched(text: str, said: Sequence[tuple[float, str]]) -> tuple[int, int]:
    """Count the letters of a line that were read near their place, in order, each cell once."""
    widths = np.cumsum([0.0, *map(_width, text)]) / max(1e-6, sum(map(_width, text)))
    wanted = [
        (float(widths[place] + widths[place + 1]) / 2, unit[1]) for place, unit in spans(text)
    ]
    if unicodedata.bidirectional(next(each for each in text if each.isalpha())) in ("R", "AL"):
        wanted = [(1 - place, letter) for place, letter in reversed(wanted)]
    near = _DRIFT / max(1, len(text))
    best = [0] * (len(said) + 1)
    for place, letter in wanted:
        above = 0
        for column, (at, spelled) in enumerate(said, 1):
            hit = above + 1 if spelled == letter and abs(at - place) <= near else 0
            above = best[column]
            best[column] = max(best[column], best[column - 1], hit)
    return best[-1], len(wanted)


def choose(rows: Sequence[CaptureRow], count: int) -> list[CaptureRow]:
    """Choose pages of all scripts: of each site and script a few, rare scripts first."""
    taken: Counter[tuple[str, str]] = Counter()
    by_script: defaultdict[str, list[CaptureRow]] = defaultdict(list)
    order = np.random.default_rng(0).permutation(len(rows))
    for row in (rows[i] for i in order):
        script = script_of(row.caption or "")
        if row.status == "ok" and script and taken[row.site, script] < _PER_SITE:
            taken[row.site, script] += 1
            by_script[script].append(row)
    chosen: list[CaptureRow] = []
    for place in range(max(map(len, by_script.values()), default=0)):
        chosen += [group[place] for group in by_script.values() if place < len(group)]
    return chosen[:count]


def measure(captures: Path, reading: Reading, count: int) -> None:
    """Print the tables of lines by script and size, and of retrieval by script."""
    rows = {row.key: row for row in choose(read_rows(captures), count)}
    tallies: defaultdict[tuple[str, str], Tally] = defaultdict(Tally)
    pages: list[Tensor] = []
    used: list[CaptureRow] = []
    with Progress("measure-pages", len(rows)) as progress:
        for capture in read_captures(captures):
            if capture.key in rows:
                pages.append(_measure_page(capture, reading, tallies))
                used.append(rows[capture.key])
                progress.add()
    print("\n| script | size, px | cosine | letters right | lines |\n|---|---|---|---|---|")
    for (script, size), tally in sorted(tallies.items()):
        if tally.lines >= 20:
            print(f"| {script} | {size} | {tally} |")
    print("\n| script | R@1 | R@10 | rSum | pages |\n|---|---|---|---|---|")
    for script, figures in retrieval(torch.stack(pages), used).items():
        print(f"| {script} | " + " | ".join(f"{value:.1f}" for value in figures) + " |")


def _measure_page(
    capture: Capture, reading: Reading, tallies: Mapping[tuple[str, str], Tally]
) -> Tensor:
    lines = list(lines_of(capture.elements))[:_PER_PAGE]
    page = torch.from_numpy(decode_screenshot(capture.screenshot, _SCREEN, capture.key))
    sums, whole = reading.sums(page, lines)
    for line, read, (right, total) in zip(lines, sums, reading.right(page, lines), strict=True):
        goal = torch.from_numpy(_letters(line.text))
        cosine = float(torch.nn.functional.cosine_similarity(read, goal, dim=0))
        for size in (_size(line.size), "all"):
            tally = tallies[line.script, size]
            tally.lines += 1
            tally.cosine += cosine
            tally.right += right
            tally.letters += total
    return whole


def _size(size: float) -> str:
    limits = (0, *SIZES, 999)
    place = int(np.searchsorted(limits, size, side="right"))
    return f"{limits[place - 1]:02}-{limits[place]}"


def _letters(text: str) -> Float[np.ndarray, " 256"]:
    counted = count_units(text)
    total = sum(count * unit_vector(unit) for unit, count in counted.items())
    return np.asarray(total, dtype=np.float32)


def retrieval(
    pages: Float[Tensor, "pages 256"], rows: Sequence[CaptureRow]
) -> dict[str, tuple[float, float, float, float]]:
    """Return R@1, R@10 and rSum of each script's pages and captions among those of all scripts.

    Both sides are evened out by the pages and captions of every second site; the others count.
    """
    sites = sorted({row.site for row in rows})
    fitted = torch.tensor([sites.index(row.site) % 2 == 0 for row in rows])
    said = torch.from_numpy(np.stack([_letters(row.caption or "") for row in rows])).double()
    read = pages.double() / (pages.norm(dim=1, keepdim=True) + 24)
    of_pages, of_said = fit_whitening([read[fitted]]), fit_whitening([said[fitted]])
    cosines = of_pages(read[~fitted]) @ of_said(said[~fitted]).T
    scripts = [
        script_of(row.caption or "") for row, fit in zip(rows, fitted, strict=True) if not fit
    ]
    ranks = [(each > each.diagonal()[:, None]).sum(1) for each in (cosines, cosines.T.contiguous())]
    found = {}
    for script in ("all", *sorted(set(scripts))):
        own = torch.tensor([script in ("all", each) for each in scripts])
        if int(own.sum()) >= 8:
            recalls = [
                [100 * float((rank[own] < limit).double().mean()) for limit in (1, 5, 10)]
                for rank in ranks
            ]
            first, _, tenth = np.mean(recalls, axis=0)
            found[script] = (float(first), float(tenth), float(np.sum(recalls)), float(own.sum()))
    return found


def main(given: Sequence[str] | None = None) -> None:
    """Measure and print; a user's mistake is one line and exit status 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("captures", type=Path, help="Folder made by crawl.")
    parser.add_argument("--weights", type=Path, help="Detector that reads; default: tiny-web.")
    parser.add_argument("--pages", type=int, default=1000, help="Pages, as many of each script.")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads.")
    options = parser.parse_args(given)
    try:
        set_up_logging()
        torch.set_num_threads(options.threads)
        weights = find_weights(options.weights)
        detector, _ = load_detector(weights, torch.device("cpu"))
        reader = detector.eval().patches.words if detector.patches else None
        if reader is None:
            raise ConfigError(f"{weights}: has no word reader")
        from recipes.words.lexicon import read_lexicon
        from recipes.words.train_words import letter_table

        reading = Reading(reader, list(letter_table(read_lexicon())[0]))
        with torch.inference_mode():
            measure(options.captures, reading, options.pages)
    except NowError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
