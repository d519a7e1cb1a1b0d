"""A table of the text on each screenshot."""

import csv
import io
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest
from PIL import Image

from now_builder.detect import ocr
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.release import Pair, write_pairs
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    Planned,
    read_captures,
    read_rows,
    write_plan,
    write_shard,
)
from now_builder.formats.tables import read_records
from tests.now_builder.detect.test_ocr import CHINESE, ENGLISH, picture

LINES = {"00000_0000": [ENGLISH, CHINESE], "00000_0001": [], "00001_0000": ["Weather, today"]}


@pytest.fixture
def captures(tmp_path):
    folder = tmp_path / "captures"
    folder.mkdir()
    plan = []
    for key in LINES:
        url = f"http://site{key}.test/"
        plan.append(Planned(key, int(key[:5]), url, url, f"site{key}.test"))
    write_plan(folder, plan)
    for shard in (0, 1):
        own = [line for line in plan if line.shard == shard]
        rows = [CaptureRow(line.key, line.url, line.url_canonical, line.site, "ok") for line in own]
        write_shard(
            folder, shard, rows, (Capture(line.key, shot(line.key), b"", []) for line in own)
        )
    return folder


def shot(key):
    lines = [(text, (40, 200 + 200 * place), 36, "black") for place, text in enumerate(LINES[key])]
    file = io.BytesIO()
    image: Image.Image = picture(*lines)[0]
    image.save(file, "PNG", compress_level=1)
    return file.getvalue()


@contextmanager
def stopped_in_the_second_shard(monkeypatch):
    """Let a run be stopped there, and tell the keys that were read."""
    seen = []

    class Stopped(ocr.Recognizer):
        def __call__(self, capture):
            seen.append(capture.key)
            if capture.key.startswith("00001"):
                raise KeyboardInterrupt
            return super().__call__(capture)

    with monkeypatch.context() as patch:
        patch.setattr(ocr, "Recognizer", Stopped)
        with pytest.raises(KeyboardInterrupt):
            yield seen


def test_it_holds_what_each_page_shows_and_goes_on_after_a_stop(captures, tmp_path, monkeypatch):
    out = tmp_path / "read.csv"
    with stopped_in_the_second_shard(monkeypatch):
        ocr.read_screens(captures, out, "chi_sim+eng")
    assert not out.exists()

    class Late(ocr.Recognizer):
        def __call__(self, capture):
            assert capture.key.startswith("00001"), "the first shard was read before"
            return super().__call__(capture)

    monkeypatch.setattr(ocr, "Recognizer", Late)
    other = shutil.copytree(captures, tmp_path / "other")
    first = [replace(row, fetched_at="2026") for row in read_rows(other, 0)]
    write_shard(other, 0, first, read_captures(other, shards=[0]))
    with pytest.raises(AssertionError, match="the first shard was read before"):
        ocr.read_screens(other, out, "chi_sim+eng")
    found = ocr.read_screens(captures, out, "chi_sim+eng")
    assert (found.pages, found.empty) == (3, 1)
    rows = {
        row["key"]: row["ocr"]
        for row in csv.DictReader(io.StringIO(out.read_text(encoding="utf-8")))
    }
    assert rows == {key: " ".join(lines) for key, lines in LINES.items()}
    assert not out.with_name("read.csv.parts").exists()


def release_of(folder, *keys, split="test"):
    folder.mkdir()
    pairs = [
        Pair(key, split, place, f"http://{site}/", site, "a", None, None, None, "")
        for place, (key, site) in enumerate((key, f"site{key}.test") for key in keys)
    ]
    write_pairs(folder / "pairs.parquet", pairs)
    return folder


def test_of_a_release_the_test_pairs_alone_are_read(captures, tmp_path, monkeypatch):
    out, release = tmp_path / "read.csv", release_of(tmp_path / "r", "00000_0000", "00001_0000")

    with stopped_in_the_second_shard(monkeypatch) as seen:
        ocr.read_screens(captures, out, "eng", release)
    assert "00000_0001" not in seen
    assert ocr.read_screens(captures, out, "eng").pages == 3, "also what was left out"
    for languages in ("eng", "auto"):
        found = ocr.read_screens(captures, out, languages, release)
        assert (found.pages, found.empty) == (2, 0)
    keys = [row[0] for row in csv.reader(out.read_text().splitlines())]
    assert keys == ["key", "00000_0000", "00001_0000"]


def test_of_a_release_of_other_pages_nothing_is_read(captures, tmp_path):
    for name, split, problem in (
        ("7", "test", "no screenshot of 1 of 1"),
        ("0", "dev", "no test pairs"),
    ):
        release = release_of(tmp_path / name, f"00000_000{name}", split=split)
        with pytest.raises(FormatError, match=problem):
            ocr.read_screens(captures, tmp_path / "read.csv", "eng", release)
    assert not (tmp_path / "read.csv").exists()


def test_another_output_than_a_table_is_refused(captures, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    for name, problem in (("read.txt", "expected the name of a .csv"), ("folder.csv", "a folder")):
        with pytest.raises(ConfigError, match=rf"{name}: {problem}"):
            ocr.read_screens(captures, tmp_path / name, "no language")
    with pytest.raises(ConfigError, match=r"^languages 'eng,chi_sim', joined by"):
        ocr.read_screens(captures, tmp_path / "read.csv", "eng,chi_sim")


def test_a_folder_without_captures_leaves_the_table_that_stands(captures, tmp_path):
    out = tmp_path / "read.csv"
    out.write_text("of before")
    (empty := tmp_path / "empty").mkdir()
    failed = [replace(row, status="failed") for row in read_rows(captures)]
    write_shard(refused := tmp_path / "refused", 0, failed, [])
    folders = {tmp_path / "none": "no such captures", empty: "no complete", refused: "no row with"}
    for folder, problem in folders.items():
        with pytest.raises(FormatError, match=problem):
            ocr.read_screens(folder, out, "eng")
    assert out.read_text() == "of before"


def test_the_text_of_elements_is_what_the_browser_showed(captures, tmp_path):
    box = (0.0, 0.0, 9.0, 9.0)
    shown = [
        Element(box, "h1", text="Tea", text_box=box),
        Element(box, "p", text="00000_0001, te", text_box=box),
        Element(box, "p", text="hidden", text_box=box, visible=False), Element(box, "img"),
    ]  # fmt: skip
    rows = read_rows(captures, 0)
    elements = {"00000_0000": shown, "00000_0001": []}
    write_shard(
        captures, 0, rows, (Capture(row.key, shot(row.key), b"", elements[row.key]) for row in rows)
    )
    done = ocr.read_elements(captures, tmp_path / "text.csv")
    assert (done.pages, done.empty) == (3, 2)
    content = (tmp_path / "text.csv").read_bytes()  # the second text looks like a row
    table = [cells for _, cells in read_records(tmp_path / "text.csv", content)]
    assert table[:3] == [["key", "text"], ["00000_0000", "Tea 00000_0001, te"], ["00000_0001", ""]]
    release = tmp_path / "release"
    release.mkdir()
    pairs = [Pair("00007_0000", "test", 0, "u", "s", "c", None, None, None, "")]
    write_pairs(release / "pairs.parquet", pairs)
    with pytest.raises(FormatError, match="no elements of 1 of 1 pages, such as 00007_0000"):
        ocr.read_elements(captures, tmp_path / "text.csv", release)
