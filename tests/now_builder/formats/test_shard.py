"""Captures: round trips of plan, rows and members, and archives that must be refused."""

import gzip
import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from now_builder.errors import FormatError
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    complete_shards,
    members_path,
    open_screenshot,
    read_captures,
    read_members,
    read_plan,
    read_rows,
    read_texts,
    rows_path,
    to_members,
    write_plan,
    write_shard,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PNG = b"\x89PNG\r\n\x1a\n picture"
WEBP = b"RIFF\x00\x00\x00\x00WEBP picture"


def capture(key: str, **changes) -> Capture:
    elements = [
        Element((0.0, 0.0, 720.0, 1280.0), "body"),
        Element(
            (8.5, 20.0, 300.0, 44.0), "a", "link", "网站 <b>", (8.5, 20.0, 90.0, 44.0), parent=0
        ),
    ]
    return replace(Capture(key, PNG, b"<html>\xb2\xe2</html>", elements), **changes)


def row(key: str, **changes) -> CaptureRow:
    url = f"http://site.test/{key}"
    return replace(CaptureRow(key, url, url, "site.test", "ok", caption="a"), **changes)


def test_captures_from_before_a_column_was_added_still_read(tmp_path: Path) -> None:
    rows = [row("00000_0000"), row("00000_0001", status="failed", error="timeout")]
    write_shard(tmp_path, 0, rows, [capture("00000_0000")])
    path = rows_path(tmp_path, 0)
    late = ["overlays", "charset_browser", "ink", "ink_middle"]
    pq.write_table(pq.read_table(path).drop_columns(late), path)
    assert read_rows(tmp_path) == rows


def test_captions_are_read_without_other_columns(tmp_path: Path) -> None:
    texts = {"00000_0000": "一", "00000_0001": None, "00000_0002": "", "00000_0003": "two"}
    rows = [row(key, caption=text) for key, text in texts.items()]
    rows += [row("00000_0004", status="failed", caption="never")]
    write_shard(tmp_path, 0, rows, [])
    path = rows_path(tmp_path, 0)
    pq.write_table(pq.read_table(path).drop_columns(["title", "overlays"]), path)
    site = rows[0].site
    assert read_texts(tmp_path, 0) == [("00000_0000", site, "一"), ("00000_0003", site, "two")]
    pq.write_table(pq.read_table(path).drop_columns(["site"]), path)
    refused(lambda: read_texts(tmp_path, 0), path, "missing columns ['site']")


def write(captures: Path, keys: list[str]) -> Path:
    captures.mkdir(exist_ok=True)
    write_shard(captures, 0, [row(key) for key in keys], [capture(key) for key in keys])
    return members_path(captures, 0)


@settings(max_examples=15)
@given(
    caption=st.none() | TEXT,
    url=TEXT,
    redirects=st.lists(TEXT, max_size=3),
    status=st.sampled_from(["ok", "duplicate", "refused", "failed"]),
    http_status=st.none() | st.integers(100, 599),
    elapsed=st.floats(0, 100),
)
def test_a_row_survives_its_parquet(tmp_path_factory, **drawn) -> None:
    captures = tmp_path_factory.mktemp("rows")
    drawn["elapsed_s"] = drawn.pop("elapsed")
    expected = row("00000_0000", **drawn)
    write_shard(captures, 0, [expected], [])
    assert read_rows(captures) == [expected]


@settings(max_examples=15)
@given(
    html=st.binary(max_size=60),
    texts=st.lists(TEXT, max_size=4),
    picture=st.sampled_from([PNG, WEBP]),
    left=st.floats(0, 720),
)
def test_a_capture_survives_its_tar(
    tmp_path_factory, html: bytes, texts: list[str], picture: bytes, left: float
) -> None:
    captures = tmp_path_factory.mktemp("members")
    elements = [Element((left, 0.0, 720.0, 9.5), "p", text=text, parent=-1) for text in texts]
    expected = capture("00000_0000", html=html, elements=elements, screenshot=picture)
    write_shard(captures, 0, [row(expected.key)], [expected])
    assert list(read_captures(captures)) == [expected]


def test_the_same_shard_is_the_same_bytes_whatever_its_folder_is_called(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "one", ["00000_0000", "00000_0001"])
    for two in map(Path, ("crawl-2026-11-27T12:00", "~", "file:v1", "lat\udce9")):
        write(two, ["00000_0000", "00000_0001"])
        for path in (members_path, rows_path):
            assert path(tmp_path / "one", 0).read_bytes() == path(two, 0).read_bytes()
        assert read_rows(two) == read_rows(tmp_path / "one")


def test_only_numbered_parquets_are_shards(tmp_path: Path) -> None:
    write(tmp_path / "c", ["00000_0000"])
    write_plan(tmp_path / "c", [])
    (tmp_path / "c" / "²³.parquet").write_bytes(b"")
    (tmp_path / "c" / ".00001.parquet.77.tmp").write_bytes(b"")
    assert complete_shards(tmp_path / "c") == [0]


MEND = "delete 00000.tar and 00000.parquet and crawl again"


def refused(reading, path: Path, *words: str) -> None:
    with pytest.raises(FormatError) as caught:
        list(reading())
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_missing_things_are_named(tmp_path: Path) -> None:
    refused(lambda: read_rows(tmp_path / "none"), tmp_path / "none", "crawl")
    refused(lambda: read_rows(tmp_path), tmp_path, "no complete shard")
    refused(lambda: read_plan(tmp_path), tmp_path, "no plan.parquet")
    write(tmp_path / "c", ["00000_0000"]).unlink()
    tar = members_path(tmp_path / "c", 0)
    refused(lambda: read_captures(tmp_path / "c"), tar, "no such tar", MEND)


def test_system_errors_are_not_reported_as_damage(tmp_path: Path) -> None:
    for path in (rows_path(tmp_path, 0), members_path(tmp_path, 0)):
        path.mkdir()
        with pytest.raises(FormatError, match=r"cannot be read \(.*directory((?!delete).)*$"):
            list((read_rows if path.suffix == ".parquet" else read_captures)(tmp_path))


def test_a_torn_tar_is_one_line(tmp_path: Path) -> None:
    tar = write(tmp_path / "c", ["00000_0000", "00000_0001"])
    content = tar.read_bytes().rstrip(b"\0")
    for share in (0.05, 0.4, 0.6):
        tar.write_bytes(content[: int(share * len(content))])
        refused(lambda: read_members(tar), tar, MEND)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_torn_parquet_is_one_line(tmp_path: Path, share: float) -> None:
    write(tmp_path / "c", ["00000_0000"])
    path = rows_path(tmp_path / "c", 0)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(lambda: read_rows(tmp_path / "c"), path, "parquet", MEND)
    refused(lambda: read_texts(tmp_path / "c", 0), path, "parquet", MEND)


def test_rows_of_other_types_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "c", ["00000_0000"])
    path = rows_path(tmp_path / "c", 0)
    whole = pq.read_table(path)
    for column, values, word in (
        ("url", pa.array([None], pa.string()), "empty cells"),
        ("attempts", pa.array(["many"]), "type"),
        ("redirects", pa.array([7]), "type"),
    ):
        table = whole.set_column(whole.column_names.index(column), column, values)
        pq.write_table(table.replace_schema_metadata(whole.schema.metadata), path)
        refused(lambda: read_rows(tmp_path / "c"), path, word)


def tar_with(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def members_of(**changes: bytes) -> list[tuple[tarfile.TarInfo, bytes]]:
    found = dict(to_members(capture("00000_0000")))
    for name, content in changes.items():
        found[f"00000_0000.{name.replace('_', '.')}"] = content
    return [(tarfile.TarInfo(name), content) for name, content in found.items() if content]


DAMAGED = [
    ({"html_gz": b"not gzip"}, "gzip"),
    ({"html_gz": gzip.compress(b"x" * 1000)[:-9]}, "cut off"),
    ({"html_gz": b""}, "expected png or webp"),
    ({"png": b""}, "expected png or webp"),
    ({"elements_json": b"{"}, "elements.json"),
    ({"elements_json": b"[" * 100_000}, "elements.json"),
    ({"elements_json": b'{"format": "now-elements/9", "elements": []}'}, "now-elements/1"),
    ({"elements_json": b'{"format": "now-elements/1", "elements": [{}]}'}, "elements.json"),
    ({"elements_json": b'{"format": "now-elements/1", "elements": [7]}'}, "elements.json"),
    ({"elements_json": b'{"format": "now-elements/1", "elements": '
      b'[{"box": [1, 2], "tag": "a"}]}'}, "elements.json"),
    ({"elements_json": b'{"format": "now-elements/1", "elements": '
      b'[{"box": [1, 2, 3, 4], "tag": "a", "surprise": 1}]}'}, "elements.json"),
    ({"elements_json": b'{"format": "now-elements/1", "elements": '
      b'[{"box": [1, 2, 3, 1%s], "tag": "a"}]}' % (b"0" * 400)}, "elements.json"),
]  # fmt: skip


def test_damaged_members_are_one_line(tmp_path: Path) -> None:
    for changes, word in DAMAGED:
        tar = tar_with(tmp_path / "00000.tar", members_of(**changes))
        refused(lambda tar=tar: read_members(tar), tar, word)


def test_a_picture_that_breaks_while_it_is_decoded_is_one_line() -> None:
    file = io.BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG")
    torn = file.getvalue()[:33] + b"\0\0\0\0IDAT\x35\xaf\x06\x1e" + bytes(12)  # without data
    with pytest.raises(FormatError, match=r"^a\.png: not a readable picture"):
        open_screenshot(torn, "a.png")


def test_pictures_of_other_formats_than_screenshots_have_are_not_opened() -> None:
    for kind in ("WEBP", "BMP", "GIF"):
        file = io.BytesIO()
        Image.new("RGB", (2, 3)).save(file, kind)
        if kind == "WEBP":
            assert open_screenshot(file.getvalue(), "a").size == (2, 3)
        else:
            with pytest.raises(FormatError, match="not a picture, expected PNG, WebP or JPEG"):
                open_screenshot(file.getvalue(), "a")


def test_a_page_that_unpacks_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("now_builder.formats.shard._MEMBER", 2**20)
    bomb = gzip.compress(bytes(2**20 + 1), compresslevel=1)
    tar = tar_with(tmp_path / "00000.tar", members_of(html_gz=bomb))
    refused(lambda: read_members(tar), tar, "more than")


def test_a_member_that_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE):
        info = tarfile.TarInfo("00000_0000.png")
        info.type, info.linkname = kind, "/etc/hostname"
        tar = tar_with(tmp_path / "00000.tar", [(info, b"")])
        refused(lambda tar=tar: read_members(tar), tar, "plain file")


def test_a_member_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("00000_0000.png")
    info.size = 2**42
    path = tmp_path / "00000.tar"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(lambda: read_members(path), path)


def test_elements_are_stored_as_the_format_says(tmp_path: Path) -> None:
    members = dict(to_members(capture("00000_0000")))
    tree = json.loads(members["00000_0000.elements.json"])
    assert tree["format"] == "now-elements/1"
    assert (tree["width"], tree["height"]) == (720, 1280)
    assert tree["elements"][1]["box"] == [8.5, 20.0, 300.0, 44.0]
    assert gzip.decompress(members["00000_0000.html.gz"]) == b"<html>\xb2\xe2</html>"
