"""URL lists and plans: canonical forms, permanent keys, new shards for added URLs."""

import gzip
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.crawl.plan.planning import extend_plan
from now_builder.crawl.plan.urls import read_urls
from now_builder.crawl.storage.shard_tracker import find_duplicates
from now_builder.errors import ConfigError, FormatError
from now_builder.urls import canonical
from tests.now_builder.crawl.cases import read_cases

CASES = read_cases(Path(__file__).with_name("urls.toml"))
gzipped = partial(gzip.compress, mtime=0)  # without a time: reproducible


def test_a_url_has_one_canonical_form_and_other_addresses_have_none() -> None:
    for url, form in CASES["canonical"]:
        assert canonical(url) == form, url
    assert [url for url in CASES["none"] if canonical(url) is not None] == []


@given(st.text(max_size=40))
def test_a_canonical_form_is_its_own(text: str) -> None:
    url = canonical("http://example.com/" + text)
    assert url is not None
    assert canonical(url) == url
    host = canonical(f"http://{text[:12]}.example/")
    assert host is None or canonical(host) == host


SIGN = "\u2028\u2029\x85\v\f\x1c\x1e"
"""Characters that end a line in `str.splitlines`, and do not end one here."""

LISTS = {
    "notes.txt": (
        (f"http://a.test/ # {SIGN}more\nhttp://b.test/#part\nhttp://c.test/\tTitle # 1\t2\n"
         "\t# none\nhttp://d.test/#!/x  #note\nhttp://e.test/a b\n"), None,
        ["http://a.test/", "http://b.test/#part", "http://c.test/", "http://d.test/#!/x",
         "http://e.test/a b"],
    ),
    "signs.csv": (f'url,x\na.test,x{SIGN}more\nb.test,"two\nlines"\n', None, ["a.test", "b.test"]),
    "dots.txt": ("a." * 50_000 + "1,\nb.test\n", None, ["a." * 50_000 + "1,", "b.test"]),
    "tranco.csv": ("1,a.test\r\n2,test\r\n\r\n", None, ["a.test", "test"]),
    "top": ("1\ta.test\n30\t10.0.0.1\n", None, ["a.test", "10.0.0.1"]),
    "laion.csv": ("SAMPLE_ID,URL,TEXT\n1,http://a.test/,hat\n", None, ["http://a.test/"]),
    "laion.tsv": ('TEXT, long\tURL\n"a ""hat"""\thttp://a.test/,\n', None, ["http://a.test/,"]),
    "inches.tsv": (
        'URL\tTEXT\nhttp://a.test/\t"hat\nhttp://b.test/\tcap"\nhttp://c.test/\t"two"\n',
        None, ["http://a.test/", "http://b.test/", "http://c.test/"],
    ),
    "long.csv": (f"url,html\nhttp://a.test/,{'x' * 140_000}\n", None, ["http://a.test/"]),
    "joined.txt": (
        "http://a.test/\n\ufeffhttp://b.test/\n\u200bhttp://c.test/\u200e\xad # x\n\ufeff# none\n",
        None, ["http://a.test/", "http://b.test/", "http://c.test/"],
    ),
    "majestic.csv": ("GlobalRank,Domain\n1,a.test\n", "domain", ["a.test"]),
    "any.txt": ("page;title\nhttp://a.test/;hat\n", "page", ["http://a.test/"]),
    "both.csv": ("URL,url\nhttp://a.test/,http://b.test/\n", "URL", ["http://a.test/"]),
    "b.csv": ("id, Url\r\n1, http://a.test/x\r\n", None, ["http://a.test/x"]),
    "c.CSV": ('id,"url"\n1, "http://a.test/x"\n', None, ["http://a.test/x"]),
    "d.txt": ("\n# list\r\nhttp://a.test/#x\r", None, ["http://a.test/#x"]),
    "list": ('"URL"\nhttp://a.test/ # one\n', None, ["http://a.test/"]),
    "plain.txt": ("# of today\nhttp://a.test/\n", None, ["http://a.test/"]),
}  # fmt: skip
"""Lists: name, content, column, and expected URLs."""


def test_a_list_is_read_compressed_or_not(tmp_path: Path) -> None:
    for name, (text, column, urls) in LISTS.items():
        for start in (b"", b"\xef\xbb\xbf"):
            content = start + text.encode()
            (tmp_path / name).write_bytes(content)
            (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
            assert read_urls(tmp_path / name, column) == urls, name
            assert read_urls(tmp_path / f"{name}.gz", column) == urls, name


def test_a_parquet_list_has_the_column_that_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, real = Path("list:1"), tmp_path / "list:1"  # known by its bytes
    pq.write_table(
        pa.table({"Link": ["a.test", "c.test"], "Url": [b"b.test", None]}), tmp_path / path
    )
    assert (read_urls(path), read_urls(path, "link")) == (["b.test"], ["a.test", "c.test"])
    with pytest.raises(FormatError, match=r"found columns .*, expected one page among them"):
        read_urls(path, "page")
    pq.write_table(pa.table({"url": [[7], [8]]}), real)
    with pytest.raises(FormatError, match=r"row 1: found '\[7\]', expected one URL per line"):
        read_urls(path)
    pq.write_table(
        pa.table({"url": pa.array([10**8], pa.date32())}), tmp_path / path
    )  # of no calendar
    with pytest.raises(FormatError, match="not a readable list of URLs"):
        read_urls(path)
    with pytest.raises(FormatError, match=r"^https://a\.test/x: .*echo 'https://a\.test/x' > urls"):
        read_urls(Path("https://a.test/x"))


REFUSED = [
    ("a.csv", "url,title\nhttp://a.test/?crop=1,2&w=3,hat\n", "line 2: 3 cells, the header has 2"),
    ("b.csv", "url\nhttp://b.test/\nhttp://a.test/x,y\n", "line 3: 2 cells, the header has 1"),
    ("c.csv", 'title,url\n"a,http://a.test/\nb,http://b.test/\n', "line 2: .*other records"),
    ("c2.csv", 'title,url\n"a,http://a.test/\n', "line 2: .*closed nowhere"),
    ("d.csv", "hat,a.test\ncap,b.test\n", "columns .*'a.test'.*in the first line"),
    ("e.csv", "url|title\nhttp://a.test/|hat\n", "found columns .*expected one url"),
    ("g.csv", '[{"url": "http://a.test/"}]', "line 1: .*found JSON"),
    ("h.csv", "id,url\n1,/a.html\n2,/b.html\n", "line 2: found '/a.html', expected one URL"),
    ("b.txt", "# of today\n1\ta.test\n2\tb.test\n", "line 2: found '1', expected .*2 of 2 lines"),
    ("c.txt", "url,title\nhttp://a.test/,hat\n", "line 1: found the header of a CSV"),
    ("e.txt", "ftp://a.test/\nmailto:a@b.test\na@b.test\n", "3 of 3 lines are not URLs"),
    ("f.txt", "12\n" * 10 + "http://a.test/\n" * 90, "line 1: found '12'.* 10 of 100 lines"),
    ("a.json", '[\n  "http://a.test/"\n]\n', "line 1: .*found JSON"),
    ("page.html", "\n<!DOCTYPE html><a href=http://a.test/>a</a>", "line 2: .*found HTML or XML"),
    ("list.xlsx", b"PK\x03\x04" + bytes(40), "found a zip archive or an Excel workbook"),
    ("list.txt", "http://a.test/\n".encode("utf-16"), "found UTF-16 text"),
    ("photo.png", b"\x89PNG\r\n\x1a\n" + bytes(40), "found binary data"),
    ("g.txt", b"http://a.test/\nhttp://b.test/caf\xe9\n", "line 2: byte 0xe9 is not UTF-8"),
    ("a.tsv", "URL\tTEXT\nhttp://a.test/\tone\nhttp://b.test/\ta\thut\n", "line 3: 3 cells"),
    ("b.csv", 'url;a\nhttp://a.test/;"b\nhttp://b.test/;c\nc.test;d"\n', "line 2: .*other"),
    ("tranco.csv", "1,a.test\n2,b.test\n3\n", "line 3: found '3', expected a rank and a domain"),
    ("cut.csv.gz", gzipped(b"url\n" + b"http://a.test/\n" * 9)[:-9], "not a readable list"),
    ("bad.txt.gz", gzipped(b"http://a.test/\n")[:-6] + bytes(6), "not a readable list"),
    ("a.txt.gz", gzipped(gzipped(b"http://a.test/\n")), "found gzip data; unpack it"),
    ("list.parquet.gz", gzipped(b"PAR1" + bytes(40)), "found Parquet"),
    ("two.csv", "Url,URL\nhttp://a.test/,http://b.test/\n", "expected one url"),
    ("list.xml", "<urlset><url><loc>http://a.test/</loc></url></urlset>", "found HTML or XML"),
    ("list.jsonl", '{"url": "http://a.test/"}\n', "line 1: .*found JSON"),
    ("none.txt", None, "file not found, expected a file with URLs$"),
    ("empty.txt", "# only\n", "contains no URL"),
    ("no.csv", "link\nhttp://a.test/\n", "found columns .'link'.*with --url-column"),
    ("torn.parquet", b"PAR1", "not a readable list"),
    ("empty.csv", "", "empty.csv"),
    ("bomb.txt.gz", gzip.compress(b"a" * 10**8), "line 1: longer than"),
]  # fmt: skip
"""Files that are not lists of URLs: name, content, and message."""


def test_another_file_is_an_error_that_names_its_content(tmp_path: Path) -> None:
    for name, content, message in REFUSED:
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(FormatError, match=message) as caught:
            read_urls(path)
        assert caught.value.path == path, name


def test_a_few_invalid_urls_stay_in_a_list(tmp_path: Path) -> None:
    """Every listed URL gets a row, also an invalid one."""
    lines = ["not a url", "mailto:a@b.test", "HTTP://[bad", "a.test", "中文.中国/x", "//b.test:80",
             "127.0.0.1:8080/x", "[::1]/x", "localhost:8000",
             "http:\\\\c.test\\x", "d\u2764.test."]  # fmt: skip
    (tmp_path / "urls.txt").write_text("\n".join(lines), "utf-8")
    assert read_urls(tmp_path / "urls.txt") == lines
    (tmp_path / "urls.txt").write_text("\n".join([*lines[:2], *lines[2:4]] * 9), "utf-8")
    assert len(read_urls(tmp_path / "urls.txt")) == 36


URLS = [f"http://site{n % 40:02d}.test/{n}" for n in range(500)]


def test_every_line_has_one_key_and_sites_stay_together_in_shards_that_are_not_too_large() -> None:
    plan = extend_plan([], [*URLS, URLS[0]], 64)
    assert Counter(line.url for line in plan) == Counter([*URLS, URLS[0]])
    assert len({line.key for line in plan}) == len(plan)
    assert max(Counter(line.shard for line in plan).values()) <= 64
    assert all(line.key == f"{line.shard:05d}_{line.key[6:]}" for line in plan)
    shards = {(line.site, line.shard) for line in extend_plan([], URLS, 256)}
    assert 4 <= len({shard for _, shard in shards}) <= 24  # several for a short list, too
    assert max(Counter(site for site, _ in shards).values()) <= 2


@settings(max_examples=10)
@given(st.integers(1, 99), st.randoms())
def test_keys_do_not_change_when_urls_are_added_or_removed(cut: int, random) -> None:
    first = extend_plan([], URLS[:cut], 16)
    later = URLS[:100]
    random.shuffle(later)
    plan = extend_plan(first, later, 16)
    assert plan[: len(first)] == first
    assert Counter(line.url for line in plan) == Counter(URLS[:100])
    assert not {line.shard for line in plan[len(first) :]} & {line.shard for line in first}
    assert extend_plan(plan, URLS[:10], 16) == plan


def test_repeated_urls_point_at_the_first_and_keys_can_name_all_shards(monkeypatch) -> None:
    views = ["http://a.test/#/x", "http://a.test/#/y"]
    plan = extend_plan([], ["http://a.test", "http://A.test/#x", *views], 8)
    assert find_duplicates(plan) == {plan[1].key: plan[0].key}
    monkeypatch.setattr("now_builder.crawl.plan.planning._MOST_SHARDS", 20)
    urls = [f"http://site{n}.test/" for n in range(400)]
    with pytest.raises(ConfigError, match="crawl them into several folders"):
        extend_plan([], urls, 16)
