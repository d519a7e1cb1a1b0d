"""Opt-outs and the time to come back, as sites write them."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from now_builder.crawl.plan.urls import read_hosts
from now_builder.crawl.politeness.opt_outs import opt_outs, retry_after_s
from now_builder.errors import FormatError


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
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
    ],
)
def test_a_robots_header_counts_where_it_is_meant_for_us(headers, expected) -> None:
    assert opt_outs(headers, []) == expected


def test_meta_tags_count_by_the_names_of_all_and_of_this_crawler() -> None:
    metas = [("ROBOTS", "noai"), ("googlebot", "noindex"), ("Noise-of-Web", "noimageai"),
             ("description", "noindex"), ("tdm-reservation", "0")]  # fmt: skip
    assert opt_outs([], metas) == {"noai", "noimageai"}
    assert opt_outs([], [("TDM-Reservation", " 1 ")]) == {"tdm-reservation"}
    assert opt_outs([], [], "1") == {"tdm-reservation"}


def test_retry_after_is_seconds_or_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert retry_after_s("120") == 120
    assert retry_after_s(later) == pytest.approx(90, abs=3)
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    for nothing in (
        None,
        "",
        "soon",
        "-5",
        "1e3",
        "9" * 30,
        "Wed, 21 Oct 99999999999999999999 07:28:00 GMT",
    ):
        assert retry_after_s(nothing) is None


def test_a_list_of_hosts_takes_hosts_and_urls(tmp_path: Path) -> None:
    path = tmp_path / "never.txt"
    path.write_text("A.test\n*.b.test # all of it\n\nhttps://c.test:8080/x\n例え.テスト\n", "utf-8")
    assert read_hosts(path) == {"a.test", "b.test", "c.test", "xn--r8jz45g.xn--zckzah"}
    path.write_text("fine.test\nnot a host\n", "utf-8")
    with pytest.raises(FormatError, match="line 2"):
        read_hosts(path)
    with pytest.raises(FormatError, match="no such list"):
        read_hosts(tmp_path / "none.txt")
