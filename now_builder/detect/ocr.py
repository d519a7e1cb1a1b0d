"""Lines of text read off screenshots with Tesseract, where a page has no DOM record."""

import re
import threading
from collections.abc import Iterator
from typing import Any

from now_builder.detect.base import TextBox
from now_builder.detect.pixels import decode_screenshot
from now_builder.errors import ConfigError
from now_builder.formats.shard import HEIGHT, WIDTH, Box, Capture
from now_builder.machine.tessdata import debian_package, find_tessdata
from now_builder.program.missing_package import install_extra

_SPARSE = 11
"""Tesseract's page segmentation for text that stands anywhere, in no order."""

CONFIDENCE = 60.0
"""Minimum confidence of a line, in per cent: smudges and pictures are below it."""

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
        lines = [
            TextBox(text, box, "ocr")
            for text, confidence, box in self._lines(engine)
            if text and confidence >= CONFIDENCE
        ]
        engine.Clear()
        return lines

    def _lines(self, engine: Any) -> Iterator[tuple[str, float, Box]]:
        level = self._tesseract.RIL.TEXTLINE
        place = engine.GetIterator()
        while place is not None and not place.Empty(level):
            left, top, right, bottom = place.BoundingBox(level)
            box = float(left), float(top), float(right), float(bottom)
            text = " ".join(place.GetUTF8Text(level).split())
            yield _GAP.sub("", text), float(place.Confidence(level)), box
            if not place.Next(level):
                return

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
