"""Read lines of text from screenshots with Tesseract; write the tables of ``ocr``."""

import csv
import hashlib
import io
import os
import re
import shutil
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder.detect.base import TextBox
from now_builder.detect.pixels import decode_screenshot
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import check_output, write_text
from now_builder.formats.release import read_split_pairs
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    complete_shards,
    read_captures,
    rows_path,
    stream_elements,
    stream_rows,
)
from now_builder.machine.tessdata import debian_package, find_tessdata
from now_builder.program.missing_package import install_extra
from now_builder.program.progress import track_progress

_SPARSE = 11  # Tesseract's page segmentation mode for text anywhere, in any order

CONFIDENCE = 60.0
"""Minimum confidence of a line in per cent; pictures misread as text have less."""

LANGUAGES = "chi_sim+eng"
"""Languages for ``detect``, in Tesseract's names."""

AUTO = "auto"
"""Value of ``languages`` for :func:`languages_of_page`."""

_NAMES: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", (
    "ar:ara bg:bul ca:cat cs:ces da:dan de:deu el:ell en:eng es:spa et:est fa:fas fi:fin fr:fra "
    "he:heb hi:hin hr:hrv hu:hun id:ind it:ita ja:jpn ko:kor lt:lit lv:lav nb:nor nl:nld nn:nor "
    "no:nor pl:pol pt:por ro:ron ru:rus sk:slk sl:slv sr:srp sv:swe th:tha tr:tur uk:ukr vi:vie "
    "zh:chi_sim"
)))  # fmt: skip
"""Tesseract's names of languages by primary tag."""
_TRADITIONAL = re.compile(r"zh[-_](?:\w+[-_])?(?:hant|tw|hk|mo)\b", re.IGNORECASE)

_DPI = 192  # Resolution of screenshots of two image px per CSS px

_IDEOGRAPH = "[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]"
_GAP = re.compile(f"(?<={_IDEOGRAPH}) +(?={_IDEOGRAPH})")


def languages_of_page(row: CaptureRow) -> str:
    """Choose the languages of a page, in Tesseract's names.

    They are English and the language detected from caption and title, else the declared one;
    Chinese is traditional if the page declares so. Without either, they are :data:`LANGUAGES`.
    """
    declared = row.lang_declared or ""
    primary = re.split("[-_]", declared)[0].lower()
    name = _NAMES.get(row.lang or "") or _NAMES.get(primary)
    if name is None:
        return LANGUAGES
    if name == "chi_sim" and _TRADITIONAL.match(declared):
        name = "chi_tra"
    return name if name == "eng" else f"{name}+eng"


class Recognizer:
    """Recognise the lines of a screenshot; thread-safe.

    Tesseract releases the GIL and uses one core per call. Each thread has its own engines, which
    are cleared after each page, so results do not depend on earlier pages.

    Args:
        languages: Languages in Tesseract's names, joined by ``+``.
        by_key: Other languages for some pages, by key.

    Raises:
        ConfigError: If tesserocr or the data of a language are missing or unusable.
    """

    def __init__(self, languages: str, by_key: Mapping[str, str] | None = None) -> None:
        self._tesseract = _tesserocr()
        self._languages, self._by_key = languages, by_key or {}
        joined = "+".join(sorted({languages, *self._by_key.values()}))
        names = [*dict.fromkeys(name for name in joined.split("+") if name)]
        folder = find_tessdata(names) if names else None
        if folder is None:
            missing = [name for name in names if find_tessdata([name]) is None] or names
            packages = " ".join(map(debian_package, missing))
            raise ConfigError(
                f"languages {joined!r}, joined by +: no folder with their .traineddata found. "
                f"apt install {packages or 'tesseract-ocr-eng'}, or set TESSDATA_PREFIX"
            )
        self._folder, self._engines = folder, threading.local()
        self._engine(languages)

    def __call__(self, capture: Capture) -> list[TextBox]:
        """Recognise the lines of a page's screenshot; its DOM is not used."""
        pixels = decode_screenshot(capture.screenshot, (WIDTH, HEIGHT), capture.key)
        engine = self._engine(self._by_key.get(capture.key, self._languages))
        engine.SetImageBytes(pixels.transpose(1, 2, 0).tobytes(), WIDTH, HEIGHT, 3, 3 * WIDTH)
        engine.SetSourceResolution(_DPI)
        engine.Recognize()
        level, lines = self._tesseract.RIL.TEXTLINE, []
        place = engine.GetIterator()
        more = place is not None and not place.Empty(level)
        while more:
            left, top, right, bottom = map(float, place.BoundingBox(level))
            text = _GAP.sub("", " ".join(place.GetUTF8Text(level).split()))
            if text and place.Confidence(level) >= CONFIDENCE:
                lines.append(TextBox(text, (left, top, right, bottom), "ocr"))
            more = place.Next(level) and not place.Empty(level)
        engine.Clear()
        return lines

    def _engine(self, languages: str) -> Any:
        engines = vars(self._engines)
        if languages not in engines:
            try:
                engines[languages] = self._tesseract.PyTessBaseAPI(
                    path=str(self._folder),
                    lang="+".join(filter(None, languages.split("+"))),
                    psm=_SPARSE,
                    oem=self._tesseract.OEM.LSTM_ONLY,
                )
            except RuntimeError as error:
                raise ConfigError(
                    f"languages {languages!r}: Tesseract cannot read their .traineddata "
                    f"in {self._folder} ({error})"
                ) from None
        return engines[languages]


def ocr_attributes(languages: str) -> dict[str, str]:
    """Return the attributes of a feature file that identify the text recognition."""
    version = _tesserocr().tesseract_version().split()[1]
    return {"ocr": f"tesseract {version}, {languages}, from {CONFIDENCE:g} %"}


def _tesserocr() -> Any:
    try:
        import tesserocr
    except ImportError as error:
        raise ConfigError(
            f"OCR: tesserocr is missing ({error}). Run: {install_extra('ocr')} "
            "and apt install tesseract-ocr-chi-sim tesseract-ocr-eng"
        ) from None
    return tesserocr


@dataclass(frozen=True, slots=True)
class ScreenTexts:
    """Result of ``ocr``: the table, its number of pages, and the number of pages without text."""

    output: Path
    pages: int
    empty: int

    def __str__(self) -> str:
        return f"{self.output}: text of {self.pages} screens, {self.empty} of them without any"


def read_screens(
    captures: Path, output: Path, languages: str, test_of: Path | None = None
) -> ScreenTexts:
    """Write a table of the text that OCR reads on each screenshot: key and ocr.

    Finished shards are kept in ``OUTPUT.parts/`` until the table is written. Each file is named by
    a hash of its inputs: the shard's rows, the selected keys if any, version and languages.

    Args:
        captures: Folder made by crawl.
        output: The table.
        languages: In Tesseract's names, such as ``chi_sim+eng``; :data:`AUTO`: those of each page.
        test_of: Release whose test pairs' screenshots are read; default: all screenshots.

    Raises:
        ConfigError: If ``output`` is not a ``.csv`` file, or a language is missing.
        FormatError: If the captures cannot be read, no page was captured, or the release was
            packaged from other captures.
    """
    check_output(output, ".csv")
    by_key = {row.key: languages_of_page(row) for row in stream_rows(captures)
              if row.status == "ok"}  # fmt: skip
    if not by_key:
        raise FormatError(captures, "no row with status=ok, so there are no pages to read")
    shots: dict[int, list[Screenshot]] = {}
    if test_of is not None:
        pairs = read_split_pairs(test_of, "test")
        if not pairs:
            raise FormatError(test_of, "no test pairs")
        for key, shot in sorted(find_screenshots(captures, pairs).items()):
            shots.setdefault(int(key.partition("_")[0]), []).append(shot)
        by_key = {pair.key: by_key[pair.key] for pair in pairs}
    is_auto = languages == AUTO
    read = Recognizer(min(by_key.values()), by_key) if is_auto else Recognizer(languages)
    recognition = str(ocr_attributes(languages)).encode()
    parts = output.with_name(f"{output.name}.parts")
    tables = []

    def text_of(capture: Capture) -> tuple[str, str]:
        return capture.key, " ".join(box.text for box in read(capture))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        shards = complete_shards(captures) if test_of is None else sorted(shots)
        for shard in track_progress(shards, "ocr", "shard"):
            inputs = hashlib.sha256(recognition + rows_path(captures, shard).read_bytes())
            if test_of is None:
                pages = read_captures(captures, shards=[shard])
            else:
                inputs.update(str([shot.key for shot in shots[shard]]).encode())
                pages = (Capture(shot.key, shot.read(), b"", []) for shot in shots[shard])
            part = parts / f"{shard:05d}-{inputs.hexdigest()}.csv"
            if not part.exists():
                write_text(part, _lines(pool.map(text_of, pages)))
            tables.append(part.read_text(encoding="utf-8"))
    write_text(output, _lines([("key", "ocr")]) + "".join(tables))
    shutil.rmtree(parts, ignore_errors=True)
    rows = list(csv.reader(io.StringIO("".join(tables))))
    return ScreenTexts(output, len(rows), sum(not text for _, text in rows))


def read_elements(captures: Path, output: Path, test_of: Path | None = None) -> ScreenTexts:
    """Write a table of the text that the browser laid out on each first screen: key and text.

    OCR without errors would read this text. It contains visible elements in document order.

    Args:
        captures: Folder made by crawl.
        output: The table.
        test_of: Release whose test pairs' pages are used; default: all pages.

    Raises:
        ConfigError: If ``output`` is not a ``.csv`` file.
        FormatError: If the captures or the release cannot be read, or no page was captured.
    """
    check_output(output, ".csv")
    keys = {row.key for row in stream_rows(captures) if row.status == "ok"}
    if test_of is not None:
        keys = {pair.key for pair in read_split_pairs(test_of, "test")}
    if not keys:
        raise FormatError(test_of or captures, "no page with text")
    shards = sorted({int(key.partition("_")[0]) for key in keys} & {*complete_shards(captures)})
    rows = [
        (key, " ".join(one.text for one in elements if one.visible and one.text_box and one.text))
        for key, elements in stream_elements(captures, frozenset(keys), shards)
    ]
    if missing := keys - {key for key, _ in rows}:
        problem = f"no elements of {len(missing)} of {len(keys)} pages, such as {min(missing)}"
        raise FormatError(captures, f"{problem}. Give the captures of the release")
    write_text(output, _lines([("key", "text"), *rows]))
    return ScreenTexts(output, len(rows), sum(not text for _, text in rows))


def _lines(rows: Iterable[tuple[str, str]]) -> str:
    table = io.StringIO()
    # On one line, since a line of a page may look like a record after a quote that nobody closed.
    one_line = ((key, " ".join(text.split())) for key, text in rows)
    csv.writer(table, lineterminator="\n").writerows(one_line)
    return table.getvalue()
