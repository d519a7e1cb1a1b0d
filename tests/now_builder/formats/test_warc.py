"""WARC: read back by another reader, with whole digests; exchanges come back as they were."""

import gzip
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from warcio.archiveiterator import ArchiveIterator
from warcio.checker import Checker

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.shard import Capture, CaptureRow, Exchange, write_shard
from now_builder.formats.warc import (
    cdxj_path,
    read_exchanges,
    warc_path,
    write_wacz,
    write_warc,
)

HTML = b"<html><title>\xd6\xd0\xce\xc4</title></html>"
PNG = b"\x89PNG\r\n\x1a\n picture"
AT = "2026-01-02T03:04:05.678+00:00"


def exchange(url: str, **changes) -> Exchange:
    told = Exchange(
        url, AT, "GET", (("User-Agent", "phone"), ("Accept", "text/html")), 200, "OK",
        (("Content-Type", "text/html; charset=gbk"), ("content-encoding", "gzip"),
         ("Content-Length", "17"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")),
    )  # fmt: skip
    return replace(told, **changes)


def page(number: int, *exchanges: Exchange) -> tuple[CaptureRow, Capture]:
    key, url = f"00003_{number:04d}", f"https://www.site.test:8443/a/?b=2&a={number}"
    row = CaptureRow(key, url, url, "site.test", "ok", final_url=url, fetched_at=AT, sha256="ab",
                     content_type="text/html", caption="标题", tool="noise-of-web/0")  # fmt: skip
    return row, Capture(key, PNG, HTML, [], exchanges)


def moved(to: str) -> Exchange:
    return exchange(
        "http://site.test/", status=302, reason="Found", answer=(("Location", to),), cut=True
    )


def two_pages() -> list[tuple[CaptureRow, Capture]]:
    first, second = page(0)[0].url, page(1)[0].url
    return [page(0, exchange(first)), page(1, moved(second), exchange(second, reason=""))]


def records(path: Path) -> list[tuple[str, str, dict[str, str], object, bytes]]:
    with path.open("rb") as file:
        return [
            (record.rec_type, record.rec_headers.get_header("WARC-Target-URI"),
             dict(record.rec_headers.headers), record.http_headers, record.content_stream().read())
            for record in ArchiveIterator(file, check_digests="raise")
        ]  # fmt: skip


def test_another_reader_finds_every_record_with_its_digests(tmp_path: Path) -> None:
    write_warc(tmp_path, 3, two_pages())
    found = records(warc_path(tmp_path, 3))
    url = page(1)[0].url
    each = ["response", "request", "resource", "metadata"]
    assert [kind for kind, *_ in found] == ["warcinfo", *each, "response", "request", *each]
    _, uri, headers, http, body = found[1]
    assert (uri, body) == (page(0)[0].url, HTML)
    assert headers["WARC-Date"] == "2026-01-02T03:04:05.678Z"
    assert http.get_statuscode() == "200"
    assert [value for name, value in http.headers if name == "Set-Cookie"] == ["a=1", "b=2"]
    assert http.get_header("Content-Length") == str(len(HTML))
    assert http.get_header("X-Crawler-content-encoding") == "gzip"
    assert http.get_header("Content-Encoding") is None
    request = found[2]
    assert request[3].protocol == "GET"
    assert request[3].statusline == "/a/?b=2&a=0 HTTP/1.1"
    assert request[3].headers[0] == ("Host", "www.site.test:8443")
    assert request[2]["WARC-Concurrent-To"] == headers["WARC-Record-ID"]
    hop, answer, shot, row = found[5], found[7], found[9], found[10]
    assert (hop[1], hop[4], hop[2]["WARC-Truncated"]) == ("http://site.test/", b"", "unspecified")
    assert hop[3].get_header("Location") == url
    assert (shot[1], shot[4]) == (f"urn:screenshot:{url}", PNG)
    assert shot[2]["Content-Type"] == "image/png"
    assert shot[2]["WARC-Concurrent-To"] == answer[2]["WARC-Record-ID"]
    assert row[2]["WARC-Refers-To"] == answer[2]["WARC-Record-ID"]
    assert json.loads(row[4])["caption"] == "标题"


def test_the_checker_of_the_library_has_nothing_to_say(tmp_path: Path, capsys) -> None:
    write_warc(tmp_path, 3, two_pages())
    checker = Checker(type("Command", (), {"inputs": [str(warc_path(tmp_path, 3))],
                                           "verbose": False})())  # fmt: skip
    checker.process_all()
    assert checker.exit_value == 0, capsys.readouterr().out


def test_exchanges_come_back_as_they_were(tmp_path: Path) -> None:
    pages = two_pages()
    write_warc(tmp_path, 3, pages)
    first = warc_path(tmp_path, 3).read_bytes()
    back = read_exchanges(tmp_path, 3)
    assert back == {
        row.key: tuple(replace(told, at=AT.replace("+00:00", "Z")) for told in capture.exchanges)
        for row, capture in pages
    }
    write_warc(tmp_path, 3, [(row, replace(shot, exchanges=back[row.key])) for row, shot in pages])
    assert warc_path(tmp_path, 3).read_bytes() == first


def test_a_page_whose_answer_is_not_known_has_its_source_as_a_resource(tmp_path: Path) -> None:
    write_warc(tmp_path, 3, [page(0), page(1, exchange(page(1)[0].url))])
    found = records(warc_path(tmp_path, 3))
    assert [kind for kind, *_ in found][1:4] == ["resource", "resource", "metadata"]
    assert found[1][4] == HTML
    assert read_exchanges(tmp_path, 3)["00003_0000"] == ()


def test_the_index_tells_where_each_record_stands(tmp_path: Path) -> None:
    write_warc(tmp_path, 3, two_pages())
    lines = cdxj_path(tmp_path, 3).read_text(encoding="utf-8").splitlines()
    assert lines == sorted(lines)
    assert len(lines) == 5
    line = next(line for line in lines if "a=1&b=2" in line)
    key, stamp, fields = line.split(" ", 2)
    assert (key, stamp) == ("test,site:8443)/a?a=1&b=2", "20260102030405")
    place = json.loads(fields)
    assert (place["mime"], place["status"]) == ("text/html", "200")
    content = warc_path(tmp_path, 3).read_bytes()
    start, length = int(place["offset"]), int(place["length"])
    (record,) = ArchiveIterator(io.BytesIO(content[start : start + length]))
    assert record.rec_headers.get_header("WARC-Target-URI") == place["url"]
    assert record.rec_headers.get_header("WARC-Payload-Digest") == place["digest"]


def test_no_warc_has_no_exchanges_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    assert read_exchanges(tmp_path, 3) == {}
    write_warc(tmp_path, 3, two_pages())
    whole = warc_path(tmp_path, 3).read_bytes()
    middle = len(whole) // 2
    damaged = whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle:])
    for torn in (b"no WARC at all, whatever it is called", b"", whole[:middle], damaged):
        warc_path(tmp_path, 3).write_bytes(torn)
        with pytest.raises(FormatError, match="not a readable WARC"):
            read_exchanges(tmp_path, 3)


@pytest.mark.parametrize(
    ("old", "new"), [(b"WARC-Target-URI", b"WARC-Nothing"), (b"type: response", b"type: resource")]
)
def test_a_record_that_lacks_what_it_needs_is_refused(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    write_warc(tmp_path, 3, two_pages())
    content = gzip.decompress(warc_path(tmp_path, 3).read_bytes())
    for there in (content.replace(old, new), content.replace(b"HTTP/1.1 200", b"")):
        warc_path(tmp_path, 3).write_bytes(gzip.compress(there))
        with pytest.raises(FormatError, match="not a readable WARC"):
            read_exchanges(tmp_path, 3)


def test_an_archive_of_a_part_says_so_and_none_is_made_of_a_torn_warc(tmp_path, caplog) -> None:
    for shard, pages in ((3, two_pages()), (4, [page(2, exchange(page(2)[0].url))]), (5, [])):
        write_shard(tmp_path, shard, [row for row, _ in pages], [shot for _, shot in pages])
        write_warc(tmp_path, shard, pages)
    assert write_wacz(tmp_path, tmp_path / "it.wacz") == 3
    assert not caplog.messages
    warc_path(tmp_path, 3).unlink()
    assert write_wacz(tmp_path, tmp_path / "it.wacz") == 1
    told = "wacz: left out 2 pages of shards without a WARC (no 00003.warc.gz)"
    assert caplog.messages == [told]
    (tmp_path / "it.wacz").unlink()
    whole = warc_path(tmp_path, 4).read_bytes()
    last = whole.rindex(b"\x1f\x8b")  # the metadata of the last page
    for size in (0, len(whole) // 2, last, len(whole) - 9):
        warc_path(tmp_path, 4).write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"00004\.warc\.gz: not a whole WARC by 00004\.cdxj"):
            write_wacz(tmp_path, tmp_path / "it.wacz")
    warc_path(tmp_path, 4).write_bytes(whole)
    cdxj_path(tmp_path, 4).write_bytes(b"")
    with pytest.raises(FormatError, match=r"not a whole WARC by 00004\.cdxj"):
        write_wacz(tmp_path, tmp_path / "it.wacz")
    with pytest.raises(ConfigError, match=r"expected a name that ends in \.wacz"):
        write_wacz(tmp_path, warc_path(tmp_path, 4))
    assert warc_path(tmp_path, 4).read_bytes() == whole
    assert not (tmp_path / "it.wacz").exists()
