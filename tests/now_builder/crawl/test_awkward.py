"""A local server of awkward pages: each ends as a row with its reason, within its time."""

import json
import sys
import time
from pathlib import Path

import psutil
import pytest

from now_builder.crawl.run import crawl
from now_builder.formats.shard import CaptureRow, read_captures, read_rows
from now_builder.package.flags import flags_of

from .awkward import AWKWARD, BREAD, GBK, PAGES, TEA, UNDECLARED, Awkward
from .crawls import settings_for, write_list

pytestmark = [pytest.mark.browser]

TIMEOUT_S = 12.0

OWN = (
    "/plain /none /reloads /offers /alert /unload /popups /font /css "
    "/dead /computes /leaves /image /animated /deep /picture /tampered"
)
"""Pages that are captured with their own description."""

CAPTIONS: dict[str, str | None] = {
    **{path: AWKWARD[path].get("description") for path in OWN.split()},
    **dict.fromkeys(("/redirect", "/refresh", "/moves", "/app-or-page"), "a plain page"),
    **dict.fromkeys(("/utf-8", "/utf-8-late", "/utf-8-unseen"), TEA),
    **dict.fromkeys(("/gbk", "/gzip"), "北京最好吃的餐厅推荐，全家人都喜欢"),
    **{f"/views{route}": f"view {route}" for route in ("#/a", "#!b")},
    "/299": "a success without a name",
    "/og": "for sharing",
    "/script": "put there by a script",
    "/slow": "slow but fine",
    "/filled": "filled in",
    "/sandboxed": "without scripts",
    "/truncated": "cut off",
    "/drip": "drips",
    "/windows-1250": BREAD,
    "/utf-8-script": "tea",
    "/utf-8-damaged": "Чай и коф\ufffd из дальних стран",
    "/ascii": "plain",
    "/untyped": "no content type",
    "/chunked": "in chunks",
}
ERRORS = {
    "http_404": "/404", "http_500": "/500", "http_401": "/401", "not_html": "/204 /pdf /json",
    "download": "/download /octets", "no_body": "/app", "redirect_loop": "/loop /spin",
    "timeout": "/silent", "too_large": "/endless /bomb", "renderer_hung": "/alerts /forever",
    "net_error": "/reset /long-header /to-file", "dns_error": "/to-nowhere",
    "robots": "/hidden",
}  # fmt: skip
"""Paths by the error of their pages."""

EXPECTED: dict[str, tuple[str, str | None, str | None]] = {
    path: ("ok", None, caption) for path, caption in CAPTIONS.items()
} | {
    path: ("refused" if error == "robots" else "failed", error, None)
    for error, paths in ERRORS.items()
    for path in paths.split()
}
PARTIAL = {
    "/font", "/css", "/dead", "/computes", "/image", "/animated", "/truncated", "/drip",
}  # fmt: skip


@pytest.fixture(scope="module")
def crawled(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, dict[str, CaptureRow], Awkward]:
    folder = tmp_path_factory.mktemp("awkward")
    with Awkward() as server:
        lines = [server.url(path) for path in EXPECTED]
        lines += ["http://nowhere.invalid/", "not a url", "ftp://site.test/x"]
        settings = settings_for(
            server,
            page_timeout_s=TIMEOUT_S,
            settle_s=6.0,  # three other workers share the cores
            max_bytes=20_000_000,
            concurrency=4,
            user_agent_url="https://who.test/",
        )
        summary = crawl(write_list(folder, lines), folder / "captures", settings)
    assert summary.pages == len(lines)
    rows = {row.url.removeprefix("http://site.test"): row for row in read_rows(folder / "captures")}
    return folder / "captures", rows, server


@pytest.mark.parametrize("path", EXPECTED)
def test_an_awkward_page_ends_as_the_row_it_should(crawled, path: str) -> None:
    row = crawled[1][path]
    assert (row.status, row.error, row.caption) == EXPECTED[path], row


def test_a_page_that_loads_itself_for_ever_is_given_up_after_five_requests(crawled) -> None:
    _, rows, server = crawled
    assert server.hits["/spin"] == 5
    assert rows["/spin"].redirects == ["http://site.test/spin"] * 4
    assert server.hits["/reloads"] == 4


def test_what_is_no_url_is_a_row_too(crawled) -> None:
    rows = crawled[1]
    assert rows["http://nowhere.invalid/"].error == "dns_error"
    assert rows["not a url"].error == rows["ftp://site.test/x"].error == "bad_url"


def test_every_page_ends_within_its_time(crawled) -> None:
    slowest = max(crawled[1].values(), key=lambda row: row.elapsed_s / max(row.attempts, 1))
    assert slowest.elapsed_s / max(slowest.attempts, 1) < 2 * TIMEOUT_S, slowest


def test_a_page_that_never_comes_to_rest_is_captured_and_says_partial(crawled) -> None:
    rows = {path: row for path, row in crawled[1].items() if row.status == "ok"}
    assert {path for path, row in rows.items() if row.load_state == "partial"} == PARTIAL


def test_every_ok_row_and_no_other_has_members_of_the_right_size(crawled) -> None:
    captures, rows, _ = crawled
    members = {capture.key: capture for capture in read_captures(captures)}
    assert set(members) == {row.key for row in rows.values() if row.status == "ok"}
    for capture in members.values():
        assert capture.screenshot.startswith(b"\x89PNG")
        assert int.from_bytes(capture.screenshot[16:20], "big") == 720
        assert int.from_bytes(capture.screenshot[20:24], "big") == 1280
        assert capture.elements
    texts = [element.text for element in members[rows["/dead"].key].elements]
    assert "Hello" in texts


def test_the_html_is_the_source_as_served(crawled) -> None:
    captures, rows, _ = crawled
    html = {capture.key: capture.html for capture in read_captures(captures)}
    assert html[rows["/plain"].key] == PAGES["/plain"]
    assert html[rows["/gbk"].key] == html[rows["/gzip"].key] == GBK.encode("gbk")
    assert html[rows["/script"].key] == PAGES["/script"]


def test_rows_tell_where_things_came_from(crawled) -> None:
    rows = crawled[1]
    assert rows["/redirect"].final_url == "http://site.test/plain"
    assert rows["/redirect"].redirects == ["http://site.test/redirect"]
    assert rows["/refresh"].redirects == ["http://site.test/refresh"]
    assert rows["/script"].caption_source == "script"
    assert rows["/og"].caption_source == "og"
    assert json.loads(rows["/og"].candidates or "") == {"og": ["for sharing"]}
    assert (rows["/gbk"].charset, rows["/gbk"].charset_source) == ("gbk", "browser")
    assert (rows["/gzip"].charset, rows["/gzip"].charset_source) == ("gbk", "header")
    assert rows["/gbk"].lang == "zh"
    assert (rows["/404"].http_status, rows["/299"].http_status) == (404, 299)
    assert rows["/views#/a"].final_url == "http://site.test/views#/a"


def test_a_screenshot_that_reads_otherwise_than_its_caption_is_flagged(crawled) -> None:
    rows = crawled[1]
    flags = {path: flags_of(rows[path]) & {"garbled_screenshot"} for path in UNDECLARED}
    assert flags_of(rows["/filled"]) == set()
    garbled = {path for path, found in flags.items() if found}
    assert garbled == {"/utf-8", "/utf-8-late", "/utf-8-script", "/utf-8-damaged"}
    assert {(rows[path].charset, rows[path].charset_browser) for path in garbled} == {
        ("utf-8", "windows-1252")
    }
    assert (rows["/windows-1250"].charset, rows["/windows-1250"].lang) == ("windows-1250", "pl")


def test_the_user_agent_is_honest(crawled) -> None:
    agents = crawled[2].agents
    assert agents
    assert all("noise-of-web/" in agent and "+https://who.test/" in agent for agent in agents)


def test_no_browser_is_left(crawled) -> None:
    assert crawled
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        left = [
            child
            for child in psutil.Process().children(recursive=True)
            if "chrom" in child.name() or "node" in child.name()
        ]
        if not left:
            return
        time.sleep(0.2)
    sys.stderr.write(str(left))
    assert not left
