"""Which captions and titles are flagged, in several languages, and which are not."""

import json
import time

import pytest

from now_builder.formats.shard import CaptureRow
from now_builder.package.flags import (
    copied_captions,
    flags_of,
    is_adult,
    is_error,
    personal_data,
    same_screenshots,
)


def row(caption: str, **more) -> CaptureRow:
    site = more.pop("site", "a.test")
    return CaptureRow("k", "u", "u", site, "ok", caption=caption, **more)


@pytest.mark.parametrize(
    ("caption", "flags"),
    [
        ("Fresh bread every day.", set()),
        ("Write to jane.doe+news@example.co.uk today", {"email", "personal_data"}),
        ("Jane Doe, jane [at] example.org", {"email", "personal_data"}),
        ("git clone git@github.com:a/b.git, then icon@2x.png", set()),
        ("Call +44 20 7946 0958 now", {"phone", "personal_data"}),
        ("姓名：某某 学号：15352099", {"personal_data"}),
        ("客服QQ：572336551，微信: a15812345", {"personal_data"}),
        ("Mail &#106;ane&#x40;example.org", {"email", "personal_data", "double_escaped"}),
        ("QQ群：572336551", set()),
        ("mail a@b.com &amp; <b>call</b>", {"email", "personal_data", "double_escaped", "tags"}),
        ("{{ page.description }}", {"placeholder"}),
        ("I moved from Hexo. Welcome to Hexo! This is your very first post.", set()),
    ],
)
def test_a_caption_has_its_flags(caption: str, flags: set[str]) -> None:
    assert flags_of(row(caption)) == flags


@pytest.mark.parametrize(
    ("caption", "source", "candidates", "flags"),
    [
        ("Bread", "name", {"name": ["Bread"], "og": ["..."]}, set()),
        ('"Bread"', "name", {"og": ["x"], "name": ['"Bread"']}, set()),
        ("Bread", "og", {"name": ["undefined"], "og": ["Bread"]}, {"placeholder"}),
        ("Bread", "name", {"name": ["undefined", "Bread"]}, {"placeholder"}),
        ("Bread", "og", {"twitter": ['"name": [x'], "og": ["Bread"]}, set()),
        ("a & b", "json-ld", {"json-ld": ["a &amp; b"]}, {"double_escaped"}),
        ("a & b", "json-ld", {"json-ld": ["a & b", "c &amp; d"]}, set()),
    ],
)
def test_unused_and_decoded_candidates_are_flagged(
    caption: str, source: str, candidates: dict[str, list[str]], flags: set[str]
) -> None:
    kept = json.dumps(candidates)
    assert flags_of(row(caption, caption_source=source, candidates=kept)) == flags


def test_candidates_that_are_none_flag_nothing() -> None:
    for candidates in (None, "", "{", "[]", '{"name": 1}', '{"name": []}'):
        assert flags_of(row("Bread", caption_source="name", candidates=candidates)) == set()


TELEPHONES = {
    ("咨询热线：010-62770334，欢迎来电", "a.test", "zh"): True,
    ("お電話は03-3213-1111まで", "a.jp", "ja"): True,
    ("문의 02-2133-1234", "a.test", "ko"): True,
    ("Ring 020 7946 0958", "shop.co.uk", "en"): True,
    ("Звоните 8 (495) 777-77-77", "a.ru", "ru"): True,
    ("+385 (0)91 5226 292", "a.test", None): True,
    ("Ring 22 85 50 50", "a.test", "no"): True,
    ("Only 1,234,567 sold in 2024", "a.com", "en"): False,
    ("ISBN 978-3-16-148410-0", "a.com", "en"): False,
    ("浙ICP备2022004380号-1", "a.test", "zh"): False,
    ("2026.06.08 07:35 to 2022-09-25 1 2", "a.test", "zh"): False,
    ("posts/2253639234.html, e=2.7182818284", "a.test", "zh"): False,
    ("server 192.168.141.12, client 192.168.141.53", "a.test", "zh"): False,
}


def test_phone_numbers_depend_on_the_country() -> None:
    found = {given: "phone" in {kind for kind, _ in personal_data(*given)} for given in TELEPHONES}
    assert found == TELEPHONES


NUMBERS = {
    "11010519491231002X": True, "110105194912310021": False,  # the check digit
    "11010519491331002X": False, "2011010519491231002X": False,
    "A123456789": True, "A123456788": False,  # Taiwan
    "900101-1234567": True, "901301-1234567": False,  # Korea
    "811228-9874": True, "131052-308T": True, "311280-8888": True,
    "RSSMRA85T10A562S": True, "111.444.777-35": True, "078-05-1120": True,
    "000-05-1120": False, "2024-05-1120": False, "1.078-05-1120": False,
    "学号 15352099": True, "第15352099号": False, "身份证：11010519491231002X": True,
}  # fmt: skip


def test_id_numbers_are_recognized_by_form_check_digit_or_words() -> None:
    found = {number: any(personal_data(f"x {number} y", "a.test", None)) for number in NUMBERS}
    assert found == NUMBERS


def test_adult_captions_and_error_titles_differ_from_similar_texts() -> None:
    adult = [
        "Free PORN and more",
        "Порно онлайн",
        "免费成人视频在线观看",
        "アダルト動画 見放題",
        "야동 사이트",
    ]
    other = ["Sussex and Essex by train", "Popcorn at home", "Nude lipstick, new shades",
             "成人教育招生", "Sex education in schools"]  # fmt: skip
    assert [is_adult(caption) for caption in adult + other] == [True] * 5 + [False] * 5
    errors = ["404 Not Found", "Shop - Page Not Found", "Attention Required! | Cloudflare",
              "页面不存在 - 某网", "ページが見つかりません｜会社", "Страница не найдена — Сайт",
              "Oops! Page not found", "Index of /"]  # fmt: skip
    titles = ["How to fix a 404 not found error", "Room 404, the film", "Lost and found",
              "Error handling in Python | Docs", "Coming soon to cinemas", ""]  # fmt: skip
    assert all(is_error(title, "A shop for everything.") for title in errors)
    assert not any(is_error(title, "A page about something.") for title in titles)


@pytest.mark.parametrize(
    ("caption", "columns", "flags"),
    [
        ("Welcome", {"http_status": 404}, {"error_page"}),
        ("Page not found.", {"http_status": 200}, {"error_page"}),
        ("Welcome", {"http_status": 200, "title": "Welcome"}, set()),
        ("Хлеб", {"charset": "utf-8", "charset_browser": "windows-1252"}, {"garbled_screenshot"}),
        ("Хлеб", {"charset": "utf-8", "charset_browser": "utf-8"}, set()),
        ("Bread", {"ink": 0.3, "ink_middle": 0.001}, {"blank"}),
        ("Bread", {"ink": 0.02, "ink_middle": 0.03}, set()),
        ("Bread", {}, set()),  # crawled before there were any
    ],
)
def test_other_columns_of_a_row_have_their_flags(caption, columns, flags) -> None:
    assert flags_of(row(caption, **columns)) == flags


def test_no_caption_takes_long() -> None:
    for part in (
        "a",
        "1",
        "a@",
        "1-",
        "x ",
        "&amp",
        "404 | ",
        "{{ a ",
        "[a_ ",
        "null ",
        "a.description",
    ):
        caption = "<a " + part * (300_000 // len(part))
        before = time.process_time()
        flags_of(row(caption, title=caption, lang="en"))
        assert time.process_time() - before < 5, part


def test_screenshots_are_the_same_where_the_captions_of_a_site_differ() -> None:
    seen = [
        ("splash 1", "a.test", "x", "Bread", "ok"), ("splash 2", "a.test", "x", "Rolls", "ok"),
        ("splash 3", "a.test", "x", "bread", "ok"), ("no caption", "a.test", "x", None, "ok"),
        ("another site", "b.test", "x", "Cake", "ok"), ("one page", "a.test", "y", "Oven", "ok"),
        ("the page again", "a.test", "y", "OVEN", "ok"), ("alone", "a.test", "z", "Shop", "ok"),
        ("duplicate", "a.test", "y", "Rye", "duplicate"), ("bad", "a.test", None, "Rye", "failed"),
    ]  # fmt: skip
    rows = [
        CaptureRow(key, key, key, site, status, caption=caption, sha256=sha256)
        for key, site, sha256, caption, status in seen
    ]
    assert same_screenshots(rows) == {"splash 1", "splash 2", "splash 3"}


def test_captions_on_three_pages_and_a_tenth_of_their_site_are_copies() -> None:
    seen = [(f"a{page}", "a.test", "Best BREAD" if page < 3 else f"page {page}", "ok")
            for page in range(30)]  # fmt: skip
    seen += [(f"b{page}", "b.test", "Best bread" if page < 3 else f"page {page}", "ok")
             for page in range(31)]  # fmt: skip
    seen += [("c0", "c.test", "Best bread", "ok"), ("c1", "c.test", "best bread", "ok"),
             ("c2", "c.test", "Best bread", "duplicate"), ("c3", "c.test", None, "ok"),
             ("c4", "c.test", None, "ok"), ("c5", "c.test", None, "ok")]  # fmt: skip
    rows = [
        CaptureRow(key, key, key, site, status, caption=caption)
        for key, site, caption, status in seen
    ]
    assert copied_captions(rows) == {"a0", "a1", "a2"}, "of 30 pages; not three of 31, nor two"
