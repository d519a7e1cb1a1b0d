"""URL lists and plans: canonical forms, keys for life, new shards for what is added."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.crawl.plan.urls import extend_plan, read_hosts, read_urls
from now_builder.crawl.storage.shard_tracker import find_duplicates
from now_builder.errors import ConfigError, FormatError
from now_builder.urls import canonical


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("HTTP://Example.COM", "http://example.com/"),
        ("http://example.com:80/a", "http://example.com/a"),
        ("https://example.com:443", "https://example.com/"),
        ("http://example.com:443/", "http://example.com:443/"),
        ("http://example.com/a/./b/../c", "http://example.com/a/c"),
        ("http://example.com/../../a", "http://example.com/a"),
        ("http://example.com/a/..", "http://example.com/"),
        ("http://example.com/a//b", "http://example.com/a//b"),
        ("http://example.com/%7euser/%e4%b8%ad", "http://example.com/~user/%E4%B8%AD"),
        ("http://example.com/中文?q=测试", "http://example.com/%E4%B8%AD%E6%96%87?q=%E6%B5%8B%E8%AF%95"),
        ("http://example.com/a b", "http://example.com/a%20b"),
        ("http://example.com/a#part", "http://example.com/a"),
        ("http://example.com?b=2&a=1", "http://example.com/?b=2&a=1"),
        ("http://中文.com/", "http://xn--fiq228c.com/"),
        ("http://Bücher.example./", "http://xn--bcher-kva.example/"),
        # Hosts by UTS 46, as Chromium has them; the emoji are no host by IDNA 2008.
        ("http://💩.la/", "http://xn--ls8h.la/"),
        ("http://i❤️.ws/x", "http://xn--i-7iq.ws/x"),
        ("http://XN--N3H.example/", "http://xn--n3h.example/"),
        ("☃.net", "http://xn--n3h.net/"),
        ("http://straße.de/", "http://xn--strae-oqa.de/"),
        ("http://ＡＢＣ。example/", "http://abc.example/"),
        ("http://a·b.example/", "http://xn--ab-0ea.example/"),
        ("http://%E2%98%83.net/", "http://xn--n3h.net/"),
        ("http://نامه‌ای.com/", "http://xn--mgba3gch31f060k.com/"),
        ("example.com/x", "http://example.com/x"),
        ("localhost:8000/x", "http://localhost:8000/x"),
        ("//example.com/x", "http://example.com/x"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("http://[0:0::0:1]/", "http://[::1]/"),
        # Of the WHATWG's urltestdata.json, and of lists copied from JSON and Windows.
        ("http:\\\\x:80\\y", "http://x/y"),
        ("http://a.test\\@b.test/", "http://a.test/@b.test/"),
        ("http://user@a.test\\b@c.test/", "http://a.test/b@c.test/"),
        ("http:\\/\\/a.test\\/x", "http://a.test//x"),
        ("https:\\a.test\\..\\b", "https://a.test/b"),
        ("a.test:8000\\x", "http://a.test:8000/x"),
        ("\\\\a.test\\x", "http://a.test/x"),
        ("http:///a.test/x", "http://a.test/x"),
        ("http:a.test", "http://a.test/"),
        ("http://a.test/x?q=a\\b", "http://a.test/x?q=a\\b"),
        ("http://a.test?q=\\\\b@c", "http://a.test/?q=\\\\b@c"),
        ("http://a.test#\\@b.test", "http://a.test/"),
        ("http://example.com/%2e%2e/a", "http://example.com/a"),
        ("http://example.com/100%", "http://example.com/100%"),
    ],
)  # fmt: skip
def test_a_url_has_one_canonical_form(url: str, expected: str) -> None:
    assert canonical(url) == expected


@pytest.mark.parametrize(
    "url",
    ["ftp://example.com/", "mailto:a@b.c", "javascript:alert(1)", "data:text/html,x", "file:///etc",
     "http://", "http:///", "http:\\\\", "not a url", "http://exa mple.com/", "http://[::1/", "http://a:99999/",
     "http://1דוגמה.example/", "http://א.1.example/", "http://\u0301a.example/", "http://a\u200db.example/",
     "http://\ufffd.example/", "http://é℅.example/", "http://…/", "http://%ff.example/", "http://a%2fb.example/"],
)  # fmt: skip
def test_what_is_no_web_address_has_none(url: str) -> None:
    assert canonical(url) is None


@given(st.text(max_size=40))
def test_a_canonical_form_is_its_own(text: str) -> None:
    found = canonical("http://example.com/" + text)
    assert found is not None
    assert canonical(found) == found


@given(st.text(max_size=12))
def test_any_text_is_a_host_or_none(text: str) -> None:
    found = canonical(f"http://{text}.example/")
    assert found is None or canonical(found) == found


def test_a_text_list_has_comments_blank_lines_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "urls.txt"
    path.write_bytes(b"\xef\xbb\xbf# list\r\nhttp://a.test/#x\r\n\r\n  http://b.test/ \r\n")
    assert read_urls(path) == ["http://a.test/#x", "http://b.test/"]


def test_notes_and_columns_after_a_url_are_not_part_of_it(tmp_path: Path) -> None:
    path = tmp_path / "urls.txt"
    path.write_text(
        "http://a.test/ # a note\nhttp://b.test/#part\nhttp://c.test/\tTitle # 1\t2\n\t# none\n"
        "http://d.test/#!/x  #note\nhttp://e.test/a b\n",
        "utf-8",
    )
    assert read_urls(path) == [
        "http://a.test/", "http://b.test/#part", "http://c.test/", "http://d.test/#!/x",
        "http://e.test/a b",
    ]  # fmt: skip


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\v", "\f", "\x1c", "\x1e"])
def test_only_the_end_of_a_line_ends_one(tmp_path: Path, sign: str) -> None:
    text, table, hosts = (tmp_path / name for name in ("urls.txt", "urls.csv", "never.txt"))
    text.write_text(f"http://a.test/ # note{sign}more\r\nhttp://b.test/\n", "utf-8", newline="")
    table.write_text(
        f'url,title\nhttp://a.test/,x{sign}more\nhttp://b.test/,"two\nlines"\n', "utf-8"
    )
    hosts.write_text(f"a.test # note{sign}more\r\nb.test\n", "utf-8", newline="")
    assert read_urls(text) == read_urls(table) == ["http://a.test/", "http://b.test/"]
    assert read_hosts(hosts) == {"a.test", "b.test"}


def test_a_parquet_list_may_hold_its_urls_as_bytes(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [b"http://a.test/", None]}), tmp_path / "urls.parquet")
    assert read_urls(tmp_path / "urls.parquet") == ["http://a.test/"]


def test_csv_and_parquet_lists_have_a_column_url(tmp_path: Path) -> None:
    table = pd.DataFrame({"rank": [1, 2], "url": ["http://a.test/x,y", "http://b.test/"]})
    table.to_csv(tmp_path / "urls.csv", index=False)
    table.to_parquet(tmp_path / "urls.parquet")
    assert read_urls(tmp_path / "urls.csv") == read_urls(tmp_path / "urls.parquet")
    assert read_urls(tmp_path / "urls.csv") == list(table["url"])


def test_a_column_of_dates_that_no_calendar_has_is_refused(tmp_path: Path) -> None:
    column = pa.array([10**8], pa.date32())
    pq.write_table(pa.table({"url": column}), tmp_path / "urls.parquet")
    with pytest.raises(FormatError, match="not a readable list of URLs"):
        read_urls(tmp_path / "urls.parquet")


@pytest.mark.parametrize(
    ("name", "content"),
    [("none.txt", None), ("empty.txt", b"# only\n"), ("binary.txt", b"\xff\xfe\x00"),
     ("no.csv", b"link\nhttp://a.test/\n"), ("torn.parquet", b"PAR1"), ("empty.csv", b"")],
)  # fmt: skip
def test_a_list_that_cannot_be_read_is_named(tmp_path: Path, name: str, content) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError, match=name):
        read_urls(tmp_path / name)


URLS = [f"http://site{n % 40:02d}.test/{n}" for n in range(500)]


def test_every_listed_line_has_one_key_and_no_shard_is_too_large() -> None:
    plan = extend_plan([], [*URLS, URLS[0]], 64)
    assert Counter(line.url for line in plan) == Counter([*URLS, URLS[0]])
    assert len({line.key for line in plan}) == len(plan)
    assert max(Counter(line.shard for line in plan).values()) <= 64
    assert all(line.key == f"{line.shard:05d}_{line.key[6:]}" for line in plan)


def test_a_short_list_gets_several_shards_and_sites_stay_together() -> None:
    plan = extend_plan([], URLS, 256)
    shards = {}
    for line in plan:
        shards.setdefault(line.site, set()).add(line.shard)
    assert 4 <= len({line.shard for line in plan}) <= 24
    assert all(len(numbers) <= 2 for numbers in shards.values())


@settings(max_examples=10)
@given(st.integers(1, 99), st.randoms())
def test_keys_are_for_life_whatever_is_added_or_taken_away(cut: int, random) -> None:
    first = extend_plan([], URLS[:cut], 16)
    later = URLS[:100]
    random.shuffle(later)
    plan = extend_plan(first, later, 16)
    assert plan[: len(first)] == first
    assert Counter(line.url for line in plan) == Counter(URLS[:100])
    assert not {line.shard for line in plan[len(first) :]} & {line.shard for line in first}
    assert extend_plan(plan, URLS[:10], 16) == plan


def test_repeated_urls_point_at_the_first_of_them() -> None:
    plan = extend_plan([], ["http://a.test", "http://A.test/#x", "http://a.test/b"], 8)
    assert find_duplicates(plan) == {plan[1].key: plan[0].key}


def test_more_shards_than_keys_can_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("now_builder.crawl.plan.urls._MOST_SHARDS", 20)
    urls = [f"http://site{n}.test/" for n in range(400)]
    with pytest.raises(ConfigError, match="--shard-size 16"):
        extend_plan([], urls, 16)
    assert extend_plan([], urls, 400)
