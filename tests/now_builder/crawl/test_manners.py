"""The crawl obeys the rules of sites and sends no unneeded requests."""

import time
from functools import partial
from pathlib import Path

import pytest

from now_builder.crawl.browser import tab
from now_builder.crawl.politeness.site_rules import SiteRules
from now_builder.formats.shard import read_captures

from . import crawls
from .awkward import page, response
from .odd import Odd
from .sites import (
    ALLOWED,
    ANSWERS,
    HTML,
    NOWHERE,
    OPTING,
    REFUSED,
    SYMBOLS,
    TDM_ERRORS,
    TYPES,
    Sites,
)

pytestmark = [pytest.mark.browser]

REFRESH = '<meta http-equiv="refresh" content="0; url=http://b.test/">'
visit = partial(crawls.visit, page_timeout_s=20.0)


def test_an_opt_out_is_obeyed_in_each_place_where_a_site_may_state_it(odd: Odd) -> None:
    rows, server = odd.rows, odd.sites
    for name, (_, message) in REFUSED.items():
        row = rows[f"{name}.test/"]
        assert (row.status, row.error, row.error_message) == ("refused", "opt_out", message)
    assert {name: rows[f"{name}.test/"].error for name in ALLOWED} == dict.fromkeys(ALLOWED)
    assert {path: rows[f"part.test{path}"].error for path in TDM_ERRORS} == TDM_ERRORS
    assert rows["led.test/"].error == "opt_out"
    for name in ("signal", "usage", "ai-training", "ai-txt"):  # none of their pages is requested
        assert server.hits[f"{name}.test/"] == 0


def test_opt_outs_and_robots_txt_can_be_ignored(tmp_path: Path) -> None:
    with Sites(ANSWERS) as server:
        rows = visit(tmp_path, server, OPTING, opt_outs="")
        assert {row.status for row in rows.values()} == {"ok"}
        assert not [url for url in server.hits if url.endswith(("tdmrep.json", "ai.txt"))]
        visit(tmp_path, server, ["framed.test/"], "ignored", robots=False)
        assert {f"framed.test/hidden/{name}" for name in "ac"} <= set(server.hits)


def test_the_files_of_a_site_are_requested_once_and_after_its_robots_txt(odd: Odd) -> None:
    rows, server = odd.rows, odd.sites
    files = ("/robots.txt", "/.well-known/tdmrep.json", "/ai.txt")
    assert [server.hits[f"many.test{file}"] for file in files] == [1, 1, 1]
    assert [server.hits[f"closed.test{file}"] for file in files] == [1, 0, 0]
    assert rows["closed.test/"].error == "robots"
    assert server.times["many.test/robots.txt"] < server.times["many.test/ai.txt"]


def test_a_frame_whose_document_is_disallowed_stays_empty(odd: Odd) -> None:
    row, asked = odd.rows["framed.test/"], set(odd.sites.hits)
    assert not [url for url in asked if "/hidden" in url] + list({"down.test/"} & asked)
    assert {"framed.test/fine", "framed.test/moved", "other.test/nest"} <= asked
    assert (row.status, row.load_state, row.robots) == ("ok", "settled", "allowed")


def test_hosts_types_and_redirects_are_read_like_in_a_browser(odd: Odd) -> None:
    rows, server = odd.rows, odd.sites
    assert [rows[url].status for url in SYMBOLS] == ["ok"] * 4 + ["failed"]
    sites = ["xn--n3h.test", "xn--n3h.test", "xn--ls8h.test"]
    assert [rows[url].site for url in SYMBOLS[:3]] == sites
    assert rows["moved.test/"].final_url == "http://xn--53h.test/"
    assert rows["1דוגמה.test/"].error == "bad_url"
    assert {media: rows[f"t{n}.test/"].error for n, media in enumerate(TYPES)} == TYPES
    assert [(rows[url].error, rows[url].attempts, server.hits[url]) for url in NOWHERE] == [
        ("http_302", 1, 1), ("http_301", 1, 1), ("http_308", 1, 1),
    ]  # fmt: skip


def test_with_only_no_other_host_is_contacted(tmp_path: Path) -> None:
    loads = (
        '<script src="http://b.test/x.js"></script>'
        '<link rel="stylesheet" href="http://b.test/x.css">'
    )
    shows = (
        '<img src="http://b.test/x.png"><img src="/moved.png"><iframe src="http://b.test/frame">'
        '</iframe><script>fetch("http://b.test/f"); new WebSocket("ws://b.test/ws")</script>'
        '<script src="https://b.test/never-answers.js"></script>'
    )
    answers: dict[str, bytes | list[bytes]] = {
        "a.test/": response(200, HTML, page("a page", shows, loads)),
        "a.test/moved.png": response(302, "image/png", b"", "Location: http://b.test/m.png"),
        "a.test/leads": response(302, HTML, b"", "Location: http://b.test/"),
        "a.test/refreshes": response(200, HTML, page("x", head=REFRESH)),
    }
    urls = ["a.test/", "a.test/leads", "a.test/refreshes", "b.test/", "www.a.test/"]
    with Sites(answers) as server:
        alone = visit(tmp_path, server, urls, "alone", only=["a.test"])
        visit(tmp_path, server, urls[:1], "heedless", only=["a.test"], robots=False)
        asked = set(server.hits)
        all_loaded = visit(tmp_path, server, urls[:1], "all", page_timeout_s=6.0)
    row = alone.pop("a.test/")
    assert (row.status, row.load_state, all_loaded["a.test/"].load_state) == (
        "ok", "settled", "partial",
    )  # fmt: skip
    assert {(row.status, row.error) for row in alone.values()} == {("refused", "only")}
    assert {url.partition("/")[0] for url in asked} == {"a.test"}
    shots = [next(read_captures(tmp_path / run)).screenshot for run in ("alone", "heedless")]
    assert shots[0] == shots[1]  # the frame is empty and does not show a refusal
    files = ("robots.txt", "x.js", "x.css", "x.png", "m.png", "frame", "f", "ws")
    assert {f"b.test/{file}" for file in files} <= set(server.hits)


def test_a_frame_without_an_answer_for_robots_txt_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tab, "_FRAME_S", 0.5)
    frame = '<iframe src="http://[::1]:9/"></iframe><iframe src="http://late.invalid/"></iframe>'
    with Sites({"a.test/": response(200, HTML, page("frames", frame))}) as server:
        row = visit(tmp_path, server, ["a.test/"])["a.test/"]
    assert (row.status, row.load_state) == ("ok", "settled")


def test_an_unexpected_error_about_a_request_ends_the_visit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = SiteRules.decide

    async def broken(self: SiteRules, url: str) -> object:
        if "bad" in url:
            raise LookupError("no such thing")
        return await decide(self, url)

    monkeypatch.setattr(SiteRules, "decide", broken)
    with Sites({"a.test/": response(302, HTML, b"", "Location: http://bad.test/")}) as server:
        started = time.monotonic()
        row = visit(tmp_path, server, ["a.test/"])["a.test/"]
    assert (row.error, row.error_message) == ("internal_error", "LookupError: no such thing")
    assert time.monotonic() - started < 15
