"""Which captions and titles are flagged, in several languages, and which are not."""

import json
import time

import pytest

from now_builder.formats.shard import CaptureRow
from now_builder.package.flags import (
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
        ("客服邮箱：service＠example.cn", {"email", "personal_data"}),
        ("邮箱jane@example.cn联系", {"email", "personal_data"}),
        ("Jane Doe, jane [at] example.org", {"email", "personal_data"}),
        ("git clone git@github.com:a/b.git, then icon@2x.png", set()),
        ("Follow @example on the web, 3@5 apples", set()),
        ("Call +44 20 7946 0958 now", {"phone", "personal_data"}),
        ("姓名：某某 学号：15352099", {"personal_data"}),
        ("客服QQ：572336551，微信: a15812345", {"personal_data"}),
        ("Mail &#106;ane&#x40;example.org", {"email", "personal_data", "double_escaped"}),
        ("QQ群：572336551", set()),
        ("Student ID: a1234567, in English", {"personal_data"}),
        ("a &amp; b", {"double_escaped"}),
        ("mail a@b.com &amp; <b>call</b>", {"email", "personal_data", "double_escaped", "tags"}),
        ("{{ page.description }}", {"placeholder"}),
        ("Welcome to Hexo! This is your very first post. Check documentation", {"placeholder"}),
        ("JUST ANOTHER WORDPRESS SITE", {"placeholder"}),
        ("I moved from Hexo. Welcome to Hexo! This is your very first post.", set()),
    ],
)
def test_a_caption_has_its_flags(caption: str, flags: set[str]) -> None:
    assert flags_of(row(caption)) == flags


@pytest.mark.parametrize(
    ("caption", "source", "candidates", "flags"),
    [
        ("Bread", "name", {"name": ["Bread"], "og": ["..."]}, set()),
        ("Bread", "name", {"name": ["Bread", "undefined"]}, set()),
        ('"Bread"', "name", {"og": ["x"], "name": ['"Bread"']}, set()),
        ("Bread", "og", {"name": ["undefined"], "og": ["Bread"]}, {"placeholder"}),
        ("Bread", "name", {"name": ["undefined", "Bread"]}, {"placeholder"}),
        ("Bread", "script", {"name": ["{{ text }}"], "script": ["Bread"]}, set()),
        ("Bread", "og", {"twitter": ['"name": [x'], "og": ["Bread"]}, set()),
        ("a & b", "json-ld", {"json-ld": ["a &amp; b"]}, {"double_escaped"}),
        ("a & b", "json-ld", {"json-ld": ["a & b", "c &amp; d"]}, set()),
        ("a & b", "json-ld", {}, set()),
        ("Хлеб", "name", {"name": ["Хлеб"]}, set()),
    ],
)
def test_what_was_passed_over_or_decoded_is_flagged(
    caption: str, source: str, candidates: dict[str, list[str]], flags: set[str]
) -> None:
    kept = json.dumps(candidates)
    assert flags_of(row(caption, caption_source=source, candidates=kept)) == flags


@pytest.mark.parametrize("candidates", [None, "", "{", "[]", '{"name": 1}', '{"name": []}'])
def test_candidates_that_are_none_flag_nothing(candidates: str | None) -> None:
    assert flags_of(row("Bread", caption_source="name", candidates=candidates)) == set()


@pytest.mark.parametrize(
    ("text", "site", "lang", "there"),
    [
        ("咨询热线：010-62770334，欢迎来电", "a.test", "zh", True),
        ("手机13812345678", "a.cn", None, True),
        ("お電話は03-3213-1111まで", "a.jp", "ja", True),
        ("문의 02-2133-1234", "a.test", "ko", True),
        ("Ring 020 7946 0958", "shop.co.uk", "en", True),
        ("Звоните 8 (495) 777-77-77", "a.ru", "ru", True),
        ("Ring (212) 736-5000", "a.com", "en", True),
        ("Only 1,234,567 sold in 2024", "a.com", "en", False),
        ("ISBN 978-3-16-148410-0", "a.com", "en", False),
        ("2024-05-01 to 2024-06-30", "a.com", "en", False),
        ("京ICP备12345678号", "a.cn", "zh", False),
        ("浙ICP备2022004380号-1", "a.test", "zh", False),
        ("2026.06.08 07:35 to 2022-09-25 1 2", "a.test", "zh", False),
        ("posts/2253639234.html, e=2.7182818284", "a.test", "zh", False),
        ("Q 3519577180, unsigned 4294967295", "a.test", "zh", False),
        ("服务热线4008123456", "a.test", "zh", True),
        ("server 192.168.141.12, client 192.168.141.53", "a.test", "zh", False),
        ("+385 (0)91 5226 292", "a.test", None, True),
        ("Ring 22 85 50 50", "a.test", "no", True),
        ("no digits", "a.com", "en", False),
    ],
)
def test_telephone_numbers_are_told_by_country(
    text: str,
    site: str,
    lang: str | None,
    there: bool,  # noqa: FBT001
) -> None:
    kinds = {kind for kind, _ in personal_data(text, site, lang)}
    assert kinds == ({"phone"} if there else set())


@pytest.mark.parametrize(
    ("number", "there"),
    [
        ("11010519491231002X", True), ("110105194912310021", False),  # the check digit
        ("11010519491331002X", False), ("2011010519491231002X", False),
        ("A123456789", True), ("A123456788", False), ("A323456789", False),  # Taiwan
        ("900101-1234567", True), ("901301-1234567", False),  # Korea
        ("811228-9874", True), ("131052-308T", True), ("311280-8888", True),
        ("RSSMRA85T10A562S", True), ("111.444.777-35", True), ("078-05-1120", True),
        ("000-05-1120", False), ("2024-05-1120", False), ("1.078-05-1120", False),
        ("学号 15352099", True), ("第15352099号", False), ("身份证：11010519491231002X", True),
    ],
)  # fmt: skip
def test_numbers_of_a_person_are_told_by_form_check_digit_or_words(
    number: str,
    there: bool,  # noqa: FBT001
) -> None:
    found = {match for kind, match in personal_data(f"x {number} y", "a.test", None)}
    assert bool(found) is there


@pytest.mark.parametrize(
    "caption",
    ["Free PORN and more", "XXX videos", "Порно онлайн", "免费成人视频在线观看", "无码高清",
     "アダルト動画 見放題", "야동 사이트", "Live sex cams"],
)  # fmt: skip
def test_adult_captions_are_told(caption: str) -> None:
    assert is_adult(caption)


@pytest.mark.parametrize(
    "caption",
    ["Sussex and Essex by train", "Popcorn at home", "Size XXXL shirts", "Adult education courses",
     "Nude lipstick, new shades", "成人教育招生", "成人高考报名", "Sex education in schools"],
)  # fmt: skip
def test_what_only_sounds_like_it_is_not(caption: str) -> None:
    assert not is_adult(caption)


@pytest.mark.parametrize(
    "title",
    ["404 Not Found", "Page not found | Shop", "Shop - Page Not Found", "Just a moment...",
     "Attention Required! | Cloudflare", "Access Denied", "页面不存在 - 某网", "404错误_某网",
     "ページが見つかりません｜会社", "페이지를 찾을 수 없습니다", "Страница не найдена — Сайт",
     "Seite nicht gefunden", "Oops! Page not found", "Index of /", "Under Construction"],
)  # fmt: skip
def test_titles_of_error_pages_are_told(title: str) -> None:
    assert is_error(title, "A shop for everything.")


@pytest.mark.parametrize(
    "title",
    ["How to fix a 404 not found error", "Room 404, the film", "Lost and found",
     "An error of youth", "Error handling in Python | Docs", "Coming soon to cinemas this year",
     ""],
)  # fmt: skip
def test_titles_about_errors_are_not(title: str) -> None:
    assert not is_error(title, "A page about something.")


@pytest.mark.parametrize(
    ("caption", "columns", "flags"),
    [
        ("Welcome", {"http_status": 404}, {"error_page"}),
        ("Page not found.", {"http_status": 200}, {"error_page"}),
        ("Welcome", {"http_status": 200, "title": "Welcome"}, set()),
        ("Хлеб", {"charset": "utf-8", "charset_browser": "windows-1252"}, {"garbled_screenshot"}),
        ("Хлеб", {"charset": "utf-8", "charset_browser": "utf-8"}, set()),
        ("Хлеб", {"charset": "utf-8", "charset_browser": None}, set()),
        ("Bread", {"ink": 0.3, "ink_middle": 0.001}, {"blank"}),
        ("Bread", {"ink": 0.02, "ink_middle": 0.03}, set()),
        ("Bread", {}, set()),  # crawled before there were any
    ],
)
def test_other_columns_of_a_row_have_their_flags(caption, columns, flags) -> None:
    assert flags_of(row(caption, **columns)) == flags


@pytest.mark.parametrize(
    "caption",
    ["a" * 300_000, "1" * 300_000, "a@" * 150_000, "1-" * 150_000, "<a " + "x " * 150_000,
     "&amp" * 75_000, "404 | " * 50_000, "{{ a " * 60_000, "[a_ " * 75_000, "null " * 60_000,
     "a.description" * 20_000],
    ids=["letters", "digits", "at", "dashes", "a tag", "entities", "parts", "braces", "brackets",
         "nulls", "names"],
)  # fmt: skip
def test_no_caption_takes_long(caption: str) -> None:
    before = time.process_time()
    flags_of(row(caption, title=caption, lang="en"))
    assert time.process_time() - before < 5


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
