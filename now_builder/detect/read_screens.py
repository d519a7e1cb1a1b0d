"""The text that OCR reads on each screenshot, as a table: what reading alone knows of a page."""

import csv
import hashlib
import io
import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from now_builder.detect.ocr import Recognizer, ocr_attributes
from now_builder.errors import FormatError
from now_builder.formats.io import check_output, write_text
from now_builder.formats.release import stream_pairs
from now_builder.formats.screenshots import Screenshot, find_screenshots
from now_builder.formats.shard import (
    Capture,
    complete_shards,
    read_captures,
    rows_path,
    stream_rows,
)
from now_builder.program.progress import watched

_READERS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class ScreenTexts:
    """Outcome of ``ocr``: the table, the pages in it, and those with no text."""

    output: Path
    pages: int
    empty: int

    def __str__(self) -> str:
        """Return one line for the terminal."""
        return f"{self.output}: the text on {self.pages} screenshots, none on {self.empty}"


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
    wanted = None if test_of is None else _test_screenshots(captures, test_of)
    parts = output.with_name(f"{output.name}.parts")
    tables = []

    def text_of(capture: Capture) -> tuple[str, str]:
        return capture.key, "\n".join(box.text for box in read(capture))

    with ThreadPoolExecutor(_READERS) as pool:
        shards = complete_shards(captures) if wanted is None else sorted(wanted)
        for shard in watched(shards, "ocr", "shard"):
            made_of = hashlib.sha256(recognition + rows_path(captures, shard).read_bytes())
            if wanted is None:
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


def _test_screenshots(captures: Path, release: Path) -> dict[int, list[Screenshot]]:
    """Find the screenshots of a release's test pairs, by shard."""
    pairs = [pair for pair in stream_pairs(release) if pair.split == "test"]
    if not pairs:
        raise FormatError(release, "no pair in test")
    found: dict[int, list[Screenshot]] = {}
    for key, shot in sorted(find_screenshots(captures, pairs).items()):
        found.setdefault(int(key.partition("_")[0]), []).append(shot)
    return found


def _lines(rows: Iterable[tuple[str, str]]) -> str:
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()
