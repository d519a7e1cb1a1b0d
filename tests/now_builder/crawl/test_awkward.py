"""Awkward pages: each ends as a row with its reason, within its time."""

import json

import pytest

from now_builder.package.flags import flags_of

from .awkward import GBK, PAGES, UNDECLARED
from .odd import CAPTIONS, ERRORS, LATE, PARTIAL, TIMEOUT_S, Odd

pytestmark = [pytest.mark.browser]


def test_an_odd_page_has_its_expected_row(odd: Odd) -> None:
    expected = CAPTIONS | LATE
    captured = {path: odd.rows[path] for path in expected}
    assert {path: row.error for path, row in captured.items() if row.status != "ok"} == {}
    assert {path: row.caption for path, row in captured.items()} == expected
    assert {path: e for path, e in odd.errors(ERRORS).items() if e not in ERRORS[path]} == {}
    assert odd.rows["/hidden"].status == "refused"
    states = {path: odd.rows[path].load_state for path in (*CAPTIONS, *PARTIAL)}
    assert {path for path, state in states.items() if state == "partial"} == PARTIAL
    rows = {path: odd.rows[path] for path in ERRORS}
    slow = {path: row.elapsed_s / row.attempts for path, row in rows.items() if row.attempts}
    assert {path: seconds for path, seconds in slow.items() if seconds > 2 * TIMEOUT_S} == {}
    assert odd.rows["/spin"].redirects == ["http://site.test/spin"] * 4
    assert (odd.awkward.hits["/spin"], odd.awkward.hits["/reloads"]) == (5, 4)


def test_every_ok_row_and_no_other_has_a_screenshot_and_the_source_as_served(odd: Odd) -> None:
    assert set(odd.shots) == {path for path, row in odd.rows.items() if row.status == "ok"}
    for capture in odd.shots.values():
        assert capture.screenshot.startswith(b"\x89PNG")
        assert int.from_bytes(capture.screenshot[16:20], "big") == 720
        assert int.from_bytes(capture.screenshot[20:24], "big") == 1280
    html = {path: odd.shots[path].html for path in ("/plain", "/gbk", "/gzip", "/script")}
    assert html["/plain"] == PAGES["/plain"]
    assert html["/gbk"] == html["/gzip"] == GBK.encode("gbk")
    assert html["/script"] == PAGES["/script"]
    assert "Hello" in [element.text for element in odd.shots["/dead"].elements]


def test_rows_tell_where_things_came_from(odd: Odd) -> None:
    rows = odd.rows
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


def test_a_screenshot_that_reads_otherwise_than_its_caption_is_flagged(odd: Odd) -> None:
    rows = odd.rows
    flags = {path: flags_of(rows[path]) & {"garbled_screenshot"} for path in UNDECLARED}
    assert flags_of(rows["/filled"]) == set()
    garbled = {path for path, names in flags.items() if names}
    assert garbled == {"/utf-8", "/utf-8-late", "/utf-8-script", "/utf-8-damaged"}
    assert {(rows[path].charset, rows[path].charset_browser) for path in garbled} == {
        ("utf-8", "windows-1252")
    }
    assert (rows["/windows-1250"].charset, rows["/windows-1250"].lang) == ("windows-1250", "pl")


def test_the_user_agent_is_honest_and_no_process_is_left(odd: Odd) -> None:
    agents = odd.awkward.agents
    assert agents
    assert all("noise-of-web/" in agent and "+https://who.test/" in agent for agent in agents)
    assert odd.left == 0
