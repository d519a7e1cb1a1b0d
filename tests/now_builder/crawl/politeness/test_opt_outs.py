"""Opt-outs and Retry-After as sites write them."""

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from now_builder.crawl.politeness.opt_outs import opt_outs
from now_builder.errors import FormatError
from now_builder.formats.tables import read_hosts
from now_builder.program.retry_after import retry_after_s

HEADERS = [
    (["noai"], {"noai"}),
    ([" NoAI , noimageai"], {"noai", "noimageai"}),
    (["noise-of-web: noai, noindex"], {"noai", "noindex"}),
    (["noise-of-web/0.1: noai"], {"noai"}),
    (["noise-of-webs: noai"], set()),
    (["otherbot: noai, noindex"], set()),
    (["otherbot: noai", "noindex"], {"noindex"}),
    (["otherbot: noai, noise-of-web: noindex"], {"noindex"}),
    (["unavailable_after: 25 Jun 2030 15:00:00 GMT, noai"], {"unavailable_after", "noai"}),
    (["max-snippet: 20, noai"], {"max-snippet", "noai"}),
    (["none"], {"none", "noindex", "nofollow"}),
    (["", ",,"], set()),
    (["noai; noimageai"], {"noai", "noimageai"}),
    (["noai noimageai"], {"noai", "noimageai"}),
    (["noai;noimageai;", "\tnoindex"], {"noai", "noimageai", "noindex"}),
    (["otherbot: noai; noimageai"], set()),
    (["otherbot:noai", "noise-of-web :noai noindex"], {"noai", "noindex"}),
    (["max-snippet:20 noai"], {"max-snippet", "noai"}),
    (["unavailable_after: Sun, 25 Jun 2030 15:00:00 GMT, noai"], {"unavailable_after", "noai"}),
]


def test_a_robots_header_counts_if_it_names_us_or_all() -> None:
    for headers, expected in HEADERS:
        assert opt_outs({"x-robots-tag": headers}, []).keys() == expected, headers


def test_meta_tags_count_by_name_also_if_a_script_added_them() -> None:
    metas = [("ROBOTS", "noai"), ("googlebot", "noindex"), ("Noise-of-Web", "noimageai"),
             ("description", "noindex"), ("tdm-reservation", "0")]  # fmt: skip
    assert opt_outs({}, metas).keys() == {"noai", "noimageai"}
    source = [("robots", "index"), ("robots", "noindex")]
    live = [("robots", "noai"), ("robots", "noindex"), ("otherbot", "noml")]
    directives = opt_outs({}, source, live)
    assert directives["noai"] == '<meta name="robots" content="noai">, put there by a script'
    assert directives["noindex"] == '<meta name="robots" content="noindex">'
    assert directives.keys() == {"index", "noindex", "noai"}


FILE = '/.well-known/tdmrep.json, location "/"'
RESERVED = (
    [
        ([" 1 "], [], None, "<meta"), ([], ["1"], None, "header"), ([], [], FILE, FILE),
        ([], ["0"], FILE, None), (["0"], ["1"], FILE, None), (["1"], ["0"], None, "<meta"),
        (["0", "1"], [], None, "<meta"), ([], ["0", "1"], None, "header"),
        (["yes"], ["2"], FILE, FILE), (["", "true"], ["1"], None, "header"),
        ([], [], None, None),
    ]
)  # fmt: skip


def test_a_reservation_counts_by_tag_then_header_then_file() -> None:
    """TDMRep, section on processing priority: values other than 0 and 1 do not count."""
    for tags, headers, file, start in RESERVED:
        metas = [("TDM-Reservation", content) for content in tags]
        for source, live in ((metas, []), ([], metas)):
            directives = opt_outs({"tdm-reservation": headers}, source, live, file)
            assert directives.get("tdm-reservation", "none").startswith(start or "none")


def test_headers_may_refuse_training() -> None:
    for name, values, refused in [
        ("content-usage", ["train-ai=n"], True),
        ("content-usage", ["search=y", "train-ai=n;why=x"], True),
        ("content-usage", ["train-ai=n", "train-ai=y"], False),
        ("content-usage", ["search=n"], False),
        ("content-signal", ["search=yes, ai-train=no"], True),
        ("content-signal", ["ai-train=yes, ai-input=no"], False),
    ]:
        expected = {name: f"header {name.title()}: {', '.join(values)}"} if refused else {}
        assert opt_outs({name: values}, []) == expected


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_retry_after_is_seconds_or_a_date(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    later = datetime.now(UTC) + timedelta(seconds=90)
    assert retry_after_s("120") == 120
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        for date in (
            format_datetime(later, usegmt=True),
            f"{later:%a, %d %b %Y %H:%M:%S -0000}",
            f"{later:%A, %d-%b-%y %H:%M:%S GMT}",
            f"{later:%a %b %e %H:%M:%S %Y}",
        ):
            assert retry_after_s(date) == pytest.approx(90, abs=3), date
    finally:
        monkeypatch.undo()
        time.tzset()
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    vast = "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"
    for nothing in (None, "", "soon", "-5", "1e3", "²", "9" * 30, vast):
        assert retry_after_s(nothing) is None


def test_a_list_of_hosts_may_contain_hosts_and_urls(tmp_path: Path) -> None:
    path = tmp_path / "never.txt"
    path.write_text("A.test\n*.b.test # all of it\n\nhttps://c.test:8080/x\n例え.テスト\n", "utf-8")
    assert {*read_hosts(path)} == {"a.test", "b.test", "c.test", "xn--r8jz45g.xn--zckzah"}
    path.write_text("fine.test\nnot a host\n", "utf-8")
    with pytest.raises(FormatError, match="line 2"):
        read_hosts(path)
    with pytest.raises(FormatError, match="list of hosts"):
        read_hosts(tmp_path / "none.txt")
