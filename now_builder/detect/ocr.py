"""Lines of text read off screenshots with Tesseract; the tables that `ocr` writes."""

import csv
import hashlib
import io
import os
import re
import shutil
import threading
from collections.abc import Iterable
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
    complete_shards,
    read_captures,
    rows_path,
    stream_elements,
    stream_rows,
)
from now_builder.machine.tessdata import debian_package, find_tessdata
from now_builder.program.missing_package import install_extra
from now_builder.program.progress import track_progress

_SPARSE = 11
"""Tesseract's page segmentation for text that stands anywhere, in no order."""

CONFIDENCE = 60.0
"""Minimum confidence of a line, in per cent: smudges and pictures are below it."""

LANGUAGES = "chi_sim+eng"
"""Languages that detect reads, in Tesseract's names."""

_DPI = 192
"""Resolution of screenshots of two image px per CSS px."""

_IDEOGRAPH = "[\u2e80-\u9fff\uf900-\ufaff\uff00-\uffef]"
_GAP = re.compile(f"(?<={_IDEOGRAPH}) +(?={_IDEOGRAPH})")


class Recognizer:
    """Recognise the lines of a screenshot; may be called from many threads at once.

    Tesseract releases the GIL and uses one core a call. Each thread has an engine of its own, which
    is cleared after each page, so results do not depend on the pages before.

    Raises:
        ConfigError: If the wrapper or the data of a language are missing or do not work.
    """

    def __init__(self, languages: str) -> None:
        self._tesseract = _tesserocr()
        names = [name for name in languages.split("+") if name]
        folder = find_tessdata(names) if names else None
        if folder is None:
            lacking = [name for name in names if find_tessdata([name]) is None] or names
            packages = " ".join(map(debian_package, lacking))
            raise ConfigError(
                f"languages {languages!r}, joined by +: no folder has their .traineddata; "
                f"apt install {packages or 'tesseract-ocr-eng'}, or set TESSDATA_PREFIX to theirs"
            )
        self._folder, self._languages = folder, "+".join(names)
        self._engines = threading.local()
        self._engine()

    def __call__(self, capture: Capture) -> list[TextBox]:
        """Recognise the lines of a page's screenshot; its DOM is not used."""
        pixels = decode_screenshot(capture.screenshot, (WIDTH, HEIGHT), capture.key)
        engine = self._engine()
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

    def _engine(self) -> Any:
        if not hasattr(self._engines, "own"):
            try:
                self._engines.own = self._tesseract.PyTessBaseAPI(
                    path=str(self._folder),
                    lang=self._languages,
                    psm=_SPARSE,
                    oem=self._tesseract.OEM.LSTM_ONLY,
                )
            except RuntimeError as error:
                raise ConfigError(
                    f"languages {self._languages!r}: Tesseract cannot read their .traineddata "
                    f"in {self._folder} ({error})"
                ) from None
        return self._engines.own


def ocr_attributes(languages: str) -> dict[str, str]:
    """Return the attributes of the feature file that identify the recognition."""
    version = _tesserocr().tesseract_version().split()[1]
    return {"ocr": f"tesseract {version}, {languages}, from {CONFIDENCE:g} %"}


def _tesserocr() -> Any:
    try:
        import tesserocr
    except ImportError as error:
        raise ConfigError(
            f"OCR: tesserocr is missing ({error}); {install_extra('ocr')} "
            "and apt install tesseract-ocr-chi-sim tesseract-ocr-eng"
        ) from None
    return tesserocr


@dataclass(frozen=True, slots=True)
class ScreenTexts:
    """Outcome of ``ocr``: the table, the pages in it, and those with no text."""

    output: Path
    pages: int
    empty: int

    def __str__(self) -> str:
        return f"{self.output}: the text on {self.pages} screens, none on {self.empty}"


def read_screens(
    captures: Path, output: Path, languages: str, test_of: Path | None = None
) -> ScreenTexts:
    """Write what OCR reads on the screenshot of each page: key and ocr, lines from top to bottom.

    The rows of finished shards wait in ``OUTPUT.parts/`` until the table is written, each file
    named by a hash of what it was made of: a shard's rows, the keys that are read of them where
    not all are, and the recognition.

    Args:
        captures: Folder made by crawl.
        output: The table.
        languages: In Tesseract's names, such as ``chi_sim+eng``.
        test_of: Release whose test pairs' screenshots alone are read.

    Raises:
        ConfigError: If ``output`` is no ``.csv`` or a folder, or a language is missing.
        FormatError: If the captures cannot be read, no page was captured, or they are not those
            that the release was packaged from.
    """
    check_output(output, ".csv")
    if all(row.status != "ok" for row in stream_rows(captures)):
        raise FormatError(captures, "no row with status=ok, so there is nothing to read")
    read = Recognizer(languages)
    recognition = str(ocr_attributes(languages)).encode()
    wanted: dict[int, list[Screenshot]] = {}
    if test_of is not None:
        pairs = read_split_pairs(test_of, "test")
        if not pairs:
            raise FormatError(test_of, "no pair in test")
        for key, shot in sorted(find_screenshots(captures, pairs).items()):
            wanted.setdefault(int(key.partition("_")[0]), []).append(shot)
    parts = output.with_name(f"{output.name}.parts")
    tables = []

    def text_of(capture: Capture) -> tuple[str, str]:
        return capture.key, "\n".join(box.text for box in read(capture))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        shards = complete_shards(captures) if test_of is None else sorted(wanted)
        for shard in track_progress(shards, "ocr", "shard"):
            made_of = hashlib.sha256(recognition + rows_path(captures, shard).read_bytes())
            if test_of is None:
                pages = read_captures(captures, shards=[shard])
            else:
                made_of.update(str([shot.key for shot in wanted[shard]]).encode())
                pages = (Capture(shot.key, shot.read(), b"", []) for shot in wanted[shard])
            part = parts / f"{shard:05d}-{made_of.hexdigest()}.csv"
            if not part.exists():
                write_text(part, _lines(pool.map(text_of, pages)))
            tables.append(part.read_text(encoding="utf-8"))
    write_text(output, _lines([("key", "ocr")]) + "".join(tables))
    shutil.rmtree(parts, ignore_errors=True)
    rows = list(csv.reader(io.StringIO("".join(tables))))
    return ScreenTexts(output, len(rows), sum(not text for _, text in rows))


def read_elements(captures: Path, output: Path, test_of: Path | None = None) -> ScreenTexts:
    """Write the text of each first screen as the browser laid it out: key and text.

    It is what a reader could know who errs in no letter: the lines of the visible elements, in the
    order of the document.

    Args:
        captures: Folder made by crawl.
        output: The table.
        test_of: Release whose test pairs' pages alone are taken.

    Raises:
        ConfigError: If ``output`` is no ``.csv`` or a folder.
        FormatError: If the captures or the release cannot be read, or no page was captured.
    """
    check_output(output, ".csv")
    keys = {row.key for row in stream_rows(captures) if row.status == "ok"}
    if test_of is not None:
        keys = {pair.key for pair in read_split_pairs(test_of, "test")}
    if not keys:
        raise FormatError(test_of or captures, "no page to take the text of")
    shards = sorted({int(key.partition("_")[0]) for key in keys} & {*complete_shards(captures)})
    rows = [
        (key, "\n".join(one.text for one in elements if one.visible and one.text_box and one.text))
        for key, elements in stream_elements(captures, frozenset(keys), shards)
    ]
    if missing := keys - {key for key, _ in rows}:
        problem = f"no elements of {len(missing)} pages of {len(keys)}, such as {min(missing)}"
        raise FormatError(captures, f"{problem}; expected the captures of the release")
    write_text(output, _lines([("key", "text"), *rows]))
    return ScreenTexts(output, len(rows), sum(not text for _, text in rows))


def _lines(rows: Iterable[tuple[str, str]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()
