"""Pages of a web archive: as they were on the web, from the archive alone, failures as rows."""

import base64
import gzip
import hashlib
import shutil
import signal
import zipfile
from functools import partial
from pathlib import Path

import pytest

from now_builder.crawl.archive import Archive, NotArchived, read_pages
from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.errors import FormatError
from now_builder.formats.shard import CaptureRow, read_captures, read_rows
from now_builder.formats.warc import warc_path, write_wacz

from . import crawls
from .archives import AT, Record, write_archive
from .awkward import _png, page, response
from .sites import Sites

HTML = "text/html; charset=utf-8"
STYLE = "h1 { background: #b02 url(/red.png); color: #fff }"
PARTS = '<link rel="stylesheet" href="http://static.test/style.css"><script src="/say.js"></script>'
FRAME = '<iframe src="http://other.test/inside" style="width:300px;height:80px"></iframe>'
WEB: dict[str, bytes] = {
    "a.test/": response(200, HTML, page("a page with parts", f"<h1>Hello</h1>{FRAME}", PARTS)),
    "static.test/style.css": response(200, "text/css", STYLE.encode()),
    "static.test/red.png": response(200, "image/png", _png()),
    "a.test/say.js": response(
        200, "text/javascript", b"fetch('/said?b=2&a=1').then(x => x.text())"
        b".then(x => document.querySelector('h1').append(x))"
    ),
    "a.test/said?b=2&a=1": response(200, "text/plain", b" said"),
    "other.test/inside": response(200, HTML, b"<p>inside a frame"),
    "b.test/old": response(302, HTML, b"", "Location: http://b.test/new"),
    "b.test/new": response(
        200, HTML, gzip.compress(page("packed and moved")), "Content-Encoding: gzip"
    ),
    "c.test/": b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"%x\r\n%s\r\n0\r\n\r\n" % (len(page("in chunks")), page("in chunks")),
}  # fmt: skip
PAGES = ["http://a.test/", "http://b.test/old", "http://c.test/"]
SETTINGS = CrawlSettings(page_timeout_s=30.0)


def recorded(web: dict[str, bytes], scheme: str = "http") -> list[Record]:
    return [
        Record(f"{scheme}://{where}", answer.replace(b"http://", f"{scheme}://".encode()))
        for where, answer in web.items()
    ]


def visit(listed: Path, captures: Path, **changes: object) -> dict[str, CaptureRow]:
    crawl(listed, captures, SETTINGS.model_copy(update=changes))
    return {row.url: row for row in read_rows(captures)}


@pytest.mark.browser
def test_an_archived_page_is_captured_as_it_was_on_the_web(tmp_path: Path) -> None:
    with Sites(WEB) as server:
        settings = crawls.settings_for(server, page_timeout_s=30.0, warc=True)
        crawl(crawls.write_list(tmp_path, PAGES), tmp_path / "live", settings)
    live = read_rows(tmp_path / "live")
    assert [row.caption for row in live if row.status == "ok"]
    plain = visit(write_archive(tmp_path / "plain.wacz", recorded(WEB), PAGES), tmp_path / "plain")
    secure_pages = [url.replace("http:", "https:") for url in PAGES]
    secure = write_archive(tmp_path / "secure.wacz", recorded(WEB, "https"), secure_pages)
    secured = visit(secure, tmp_path / "secure")
    same = ("status", "caption", "title", "sha256", "http_status", "load_state")
    for row in live:
        for again in (plain[row.url], secured[row.url.replace("http:", "https:")]):
            assert [getattr(again, name) for name in same] == [getattr(row, name) for name in same]
            assert (again.not_archived, row.not_archived, again.robots) == (0, None, "none")
        assert plain[row.url].html_sha256 == row.html_sha256
        assert (plain[row.url].redirects, plain[row.url].final_url) == (
            row.redirects,
            row.final_url,
        )
    texts = [one.text for shot in read_captures(tmp_path / "secure") for one in shot.elements]
    assert "Hello said" in " ".join(texts)
    assert write_wacz(tmp_path / "live", tmp_path / "own.wacz") == 3
    first = (tmp_path / "own.wacz").read_bytes()
    assert write_wacz(tmp_path / "live", tmp_path / "own.wacz") == 3
    assert (tmp_path / "own.wacz").read_bytes() == first
    own = visit(tmp_path / "own.wacz", tmp_path / "own")
    assert [own[row.url].html_sha256 for row in live] == [row.html_sha256 for row in live]
    assert own["http://a.test/"].not_archived == 3  # a WARC of ours has main documents alone


def digest_of(body: bytes) -> str:
    return "sha1:" + base64.b32encode(hashlib.sha1(body, usedforsecurity=False).digest()).decode()


ROBOTS = response(200, "text/plain", b"User-agent: *\nDisallow: /hidden\n")
POST = (
    "<script>new WebSocket('ws://a.test/x'); new WebSocket('wss://a.test/x');"
    "fetch('/api', {method: 'POST', body: 'x'.repeat(9999)})</script>"
)
LACKING = page("lacking", '<img src=/gone.png><img src="https://away.test/x.png">', POST)
ODD = [
    *recorded({
        "a.test/": response(200, HTML, LACKING),
        "a.test/api": response(200, "text/plain", b"only asked by GET"),
        "a.test/robots.txt": ROBOTS,
        "a.test/hidden": response(200, HTML, page("hidden")),
        "a.test/away": response(302, HTML, b"", "Location: http://gone.test/x"),
        "a.test/self": response(302, HTML, b"", "Location: https://a.test/self"),
        "a.test/busy": response(503, HTML, page("busy"), "Retry-After: 60"),
        "a.test/error": response(500, HTML, page("broken")),
        "a.test/proxy": response(407, HTML, page("who?"), "Proxy-Authenticate: Basic realm=x"),
        "a.test/large": response(200, HTML, gzip.compress(bytes(90_000_000)),
                                 "Content-Encoding: gzip"),
        "www.a.test/Sorted?b=2&a=1": response(200, HTML, page("nearly the same")),
        "a.test/kept": response(200, HTML, page("first"), "Content-Type: text/plain"),
        "a.test/cut": response(200, HTML, page("cut")),
        "a.test/changed": response(200, HTML, page("changed")),
        "a.test/nowhere": response(200, HTML, page("nowhere")),
        "a.test/elsewhere": response(200, HTML, page("elsewhere")),
    }),
    Record("http://a.test/post", response(200, HTML, page("by POST")), row={"method": "POST"}),
    Record("http://a.test/again", b"", "2025-01-01T00:00:00Z", "revisit",
           {"WARC-Refers-To-Target-URI": "http://a.test/kept", "WARC-Refers-To-Date": AT,
            "WARC-Payload-Digest": digest_of(page("first"))}),
    Record("http://a.test/lost", b"", kind="revisit", headers={"WARC-Refers-To-Date": "never"}),
    Record("http://a.test/other", response(200, HTML, page("other")), row={"offset": 0}),
    Record("http://a.test/source", page("only its source"), kind="resource"),
]  # fmt: skip
for one in ODD:
    one.row |= {
        "http://a.test/cut": {"length": "300"},
        "http://a.test/nowhere": {"filename": "other.warc.gz"},
        "http://a.test/elsewhere": {"offset": str(1 << 40)},
    }.get(one.url, {})
    if one.url.endswith("/changed"):
        one.headers = {"WARC-Payload-Digest": "sha1:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}
OUTCOMES = {
    "http://a.test/": (None, 4),
    "http://a.test/hidden": ("robots", None),
    "http://a.test/away": ("not_archived: http://gone.test/x: the archive has no answer", 1),
    "http://a.test/self": ("not_archived: https://a.test/self: the archive has no answer", 1),
    "http://a.test/busy": ("http_503", 0),
    "http://a.test/error": ("http_500", 0),
    "http://a.test/proxy": ("not_archived: http://a.test/proxy: its status is '407'", 1),
    "http://a.test/large": ("too_large: http://a.test/large: its body has more than 64000000", 0),
    "https://a.test/sorted?a=1&b=2": (None, 0),
    "http://a.test/cut": ("not_archived: http://a.test/cut: its record is", 1),
    "http://a.test/changed": ("not_archived: http://a.test/changed: its record is damaged", 1),
    "http://a.test/nowhere": ("not_archived: .*lacks the record in other.warc.gz at ", 1),
    "http://a.test/elsewhere": ("not_archived: .*lacks the record in rec.warc.gz at 1099", 1),
    "http://a.test/post": ("not_archived", 1),
    "http://a.test/again": (None, 0),
    "http://a.test/lost": ("not_archived: .*lacks the record that an identical", 1),
    "http://a.test/other": ("not_archived: .*the index leads to a record of http://a.test/$", 1),
    "http://a.test/source": (None, 0),
    "http://never.test/": ("never: never.test is on the list", None),
}


@pytest.mark.browser
def test_what_the_archive_lacks_is_a_row_and_nobody_is_asked(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "odd.wacz", ODD, list(OUTCOMES))
    (tmp_path / "never.txt").write_text("never.test\n", "utf-8")
    with Sites({}) as server:
        resolve = {"resolve": server.resolve, "allow_private": True}
        rows = visit(archive, tmp_path / "captures", never=tmp_path / "never.txt", **resolve)
        assert not server.hits
    for url, (problem, count) in OUTCOMES.items():
        row = rows[url]
        if problem is None:
            assert row.status == "ok", row
        else:
            with pytest.raises(AssertionError, match=problem):
                raise AssertionError(f"{row.error}: {row.error_message}")
        assert row.not_archived == count, row
    again = rows["http://a.test/again"]
    assert (again.caption, again.content_type) == ("first", "text/html")


@pytest.mark.browser
def test_a_list_of_ones_own_is_visited_in_an_archive(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "all.wacz", recorded(WEB))
    (tmp_path / "some.txt").write_text("c.test\nhttp://none.test/\n", "utf-8")
    rows = visit(tmp_path / "some.txt", tmp_path / "captures", archive=archive)
    assert rows["c.test"].caption == "in chunks"
    assert rows["http://none.test/"].error == "not_archived"


@pytest.mark.browser
def test_a_killed_crawl_of_an_archive_goes_on(tmp_path: Path) -> None:
    web = {f"site{n % 5}.test/{n}": response(200, HTML, page(f"page {n}")) for n in range(24)}
    archive = write_archive(tmp_path / "many.wacz", recorded(web))
    visit(archive, tmp_path / "whole")
    captures = tmp_path / "killed"
    process = crawls.start(archive, captures, SETTINGS)
    crawls.wait_until(lambda: crawls.done(captures) >= 5, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = crawls.done(captures)
    visit(archive, captures)
    assert 5 <= kept < 24
    assert crawls.outcome(captures) == crawls.outcome(tmp_path / "whole")


def test_the_answers_to_a_page_are_those_of_its_time(tmp_path: Path) -> None:
    times = ["2020-01-01T00:00:00Z", "2023-12-31T23:59:59Z", "2024-01-05T00:00:00Z"]
    records = [
        Record("http://a.test/", response(200, HTML, at.encode()), at) for at in times
    ] + [Record("http://a.test/", response(404, HTML, b"gone"), "2025-01-01T00:00:00Z"),
         Record("http://b.test/", response(200, HTML, b"b"), "2024-01-01T00:00:00Z")]  # fmt: skip
    archive = Archive(write_archive(tmp_path / "times.wacz", records))
    find = partial(archive.answer, "http://a.test/", most=10**6)
    assert find(None).body == times[2].encode()
    assert find(archive.answer("http://b.test/", None, 10**6).at).body == times[1].encode()
    with pytest.raises(NotArchived, match="more than 3 bytes"):
        archive.answer("http://a.test/", None, 3)
    archive.close()


def test_an_archive_of_the_wacz_library_is_read(tmp_path: Path) -> None:
    """Made by ``wacz create`` 0.6.0 of the pages of :data:`WEB`, over ``https``."""
    made = Path(__file__).with_name("made-by-wacz.wacz")
    assert read_pages(made) == [url.replace("http:", "https:") for url in PAGES]
    archive = Archive(made)
    for record in recorded(WEB, "https"):
        found = archive.answer(record.url, None, 10**6)
        head, _, body = record.answer.partition(b"\r\n\r\n")
        assert found.status == int(head.split(b" ")[1])
        if b"Encoding" not in head:
            assert found.body == body
    archive.close()


def test_an_index_that_is_not_packed_and_several_lists_of_pages_are_read(tmp_path: Path) -> None:
    packed = write_archive(tmp_path / "packed.wacz", recorded(WEB), PAGES)
    with zipfile.ZipFile(packed) as file:
        index = gzip.decompress(file.read("indexes/index.cdx.gz"))
    plain = write_archive(
        tmp_path / "plain.wacz", recorded(WEB), PAGES[:1],
        **{"indexes/index.cdx.gz": None, "indexes/index.idx": None,
           "indexes/1.cdxj": index[:200].rpartition(b"\n")[0], "indexes/2.cdx": b"!CDXJ\n" + index,
           "pages/extraPages.jsonl": b'{"url": "http://b.test/old"}\n'},
    )  # fmt: skip
    assert read_pages(plain) == PAGES[:2]
    archive = Archive(plain)
    assert archive.answer(PAGES[1], None, 99).status == 302
    archive.close()


def deflated(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def bomb(path: Path) -> None:
    write_archive(path, [], PAGES, **{"indexes/index.cdx.gz": gzip.compress(bytes(10**8))})


CHANGED = {
    "no zip": (lambda path: path.write_bytes(b"WARC/1.1 and so on"), "not a readable WACZ"),
    "cut off": (cut, "not a readable WACZ"),
    "missing": (lambda path: path.unlink(), "no such archive"),
    "repacked": (deflated, r"archive/rec\.warc\.gz is packed or encrypted"),
    "bomb": (bomb, r"index\.cdx\.gz, line 1: longer than"),
}
MEMBERS = {
    "pages/pages.jsonl": [
        (None, "lists no pages in pages/pages.jsonl; give a list of URLs, and this file as"),
        (b'{"format": "json-pages-1.0"}\n', "lists no pages"),
        (b'{"url": "http://a.test/"}\n{"url": "htt', r"pages\.jsonl, line 2: no page with a url"),
        (b"[1]\n", r"pages\.jsonl, line 1: no page with a url"),
    ],
    "indexes/index.cdx.gz": [
        (None, r"no indexes/\*\.cdx"),
        (gzip.compress(b"\n" * 9999)[:-9], "not a readable WACZ"),
        (gzip.compress(b'test,a)/ 2024 {"url": "http'), r"index\.cdx\.gz, line 1: no line of an"),
        (gzip.compress(b'test,a)/ 20240506070809 {"url": "http://a.test/", "offset": 0}'),
         r"line 1: no line of an index \(KeyError\('filename'\)\)"),
    ],
    "archive/rec.warc.gz": [(None, r"found no archive/\*\.warc\.gz")],
}  # fmt: skip


def refused(path: Path, captures: Path, found: str) -> None:
    with pytest.raises(FormatError, match=found) as caught:
        crawl(path, captures, SETTINGS)
    assert "\n" not in str(caught.value)
    assert not captures.exists()


@pytest.mark.parametrize("name", CHANGED)
def test_what_is_no_whole_archive_is_refused_before_anything_is_written(tmp_path, name) -> None:
    path = write_archive(tmp_path / "it.wacz", recorded(WEB), PAGES)
    change, found = CHANGED[name]
    change(path)
    refused(path, tmp_path / "captures", found)


@pytest.mark.parametrize("member", MEMBERS)
def test_a_damaged_member_of_an_archive_is_named(tmp_path: Path, member: str) -> None:
    for content, found in MEMBERS[member]:
        path = write_archive(tmp_path / "it.wacz", recorded(WEB), PAGES, **{member: content})
        refused(path, tmp_path / "captures", found)


def test_captures_without_a_warc_close_into_no_archive(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "captures", ignore_errors=True)
    (tmp_path / "captures").mkdir()
    with pytest.raises(FormatError, match=r"no complete shard has a WARC \(00000\.warc\.gz\)"):
        write_wacz(tmp_path / "captures", tmp_path / "own.wacz")
    assert not warc_path(tmp_path / "captures", 0).exists()
    assert not (tmp_path / "own.wacz").exists()
