"""Pools: a pure hash, sites kept together, addresses split by page."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.split import (
    Shares,
    SplitPlan,
    choose_shares,
    pool,
    read_split,
    registrable_domain,
    suffix_list,
    write_split,
)

SHARES = Shares(train=0.6, dev=0.15, test=0.25)


@given(site=st.text(), key=st.text(), other=st.text(), seed=st.integers(-9, 9))
def test_all_pages_of_a_site_are_in_one_pool(site: str, key: str, other: str, seed: int) -> None:
    plan = SplitPlan(seed=seed, shares=SHARES)
    addresses = any(c.isdigit() for c in site)
    assert addresses or plan.pool_of(site, key) == plan.pool_of(site, other)


def test_named_sites_are_test_with_all_below_them_and_no_other_is() -> None:
    named = ["one.test", "shop.two.co.uk", "127.0.0.1"]
    for by in ("domain", "site", "page"):
        plan = SplitPlan(by=by, shares=SHARES, test_sites=named)
        hashed = SplitPlan(by=by, shares=SHARES)
        for site in ("one.test", "a.one.test", "b.a.one.test", "shop.two.co.uk", "127.0.0.1"):
            assert {plan.pool_of(site, str(key)) for key in range(50)} == {"test"}
        whole = {plan.pool_of("two.co.uk", str(key)) for key in range(50)}
        assert whole == {"test"} if by == "domain" else "test" not in whole
        for number in range(200):
            site = f"none.test{number}.example"
            found, before = plan.pool_of(site, site), hashed.pool_of(site, site)
            assert found == ("train" if before == "test" else before)


DOMAINS = {
    "blog.example.co.uk": "example.co.uk", "www.example.co.uk": "example.co.uk",
    "example.co.uk": "example.co.uk", "co.uk": "co.uk", "a.b.example.com": "example.com",
    "example.com.": "example.com", "one.github.io": "one.github.io",
    "www.one.github.io": "one.github.io", "two.github.io": "two.github.io",
    "github.io": "github.io", "shop.blogspot.com": "shop.blogspot.com",
    "city.kawasaki.jp": "city.kawasaki.jp", "www.city.kawasaki.jp": "city.kawasaki.jp",
    "www.example.xn--55qx5d.cn": "example.xn--55qx5d.cn", "www.例子.公司.cn": "例子.公司.cn",
    "m.site07.test": "site07.test", "site07.test": "site07.test", "localhost": "localhost",
    "10.2.3.4": "10.2.3.4", "::1": "::1", "": "",
}  # fmt: skip


def test_registrable_domains() -> None:
    assert {host: registrable_domain(host) for host in DOMAINS} == DOMAINS


def test_by_domain_keeps_the_hosts_of_a_domain_together_and_by_site_does_not() -> None:
    hosts = [f"h{number}.example.co.uk" for number in range(60)]
    pages = [f"h{number}.github.io" for number in range(60)]
    by_domain = SplitPlan(by="domain", shares=SHARES)
    assert {by_domain.pool_of(host, "k") for host in hosts} == {pool("example.co.uk", 0, SHARES)}
    assert len({by_domain.pool_of(host, "k") for host in pages}) == 3
    assert len({SplitPlan(by="site", shares=SHARES).pool_of(host, "k") for host in hosts}) == 3


def test_a_plan_from_before_domains_keeps_its_assignment(tmp_path: Path) -> None:
    """Its file has no suffixes, and perhaps no by: hosts are hashed as they were."""
    path = tmp_path / "split.toml"
    for by in ("", 'by = "site"\n'):
        path.write_text(f"seed = 3\n{by}[shares]\ntrain = 0.6\ndev = 0.15\ntest = 0.25\n")
        plan = read_split(path)
        for number in range(40):
            host = f"h{number}.example.com"
            assert plan.pool_of(host, "k") == pool(host, 3, SHARES)
        # Other files store a hash of this text.
        shares = '"shares":{"train":0.6,"dev":0.15,"test":0.25}'
        assert plan.model_dump_json() == f'{{"seed":3,"by":"site",{shares}}}'


def test_another_list_of_suffixes_than_the_plans_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "split.toml"
    assert re.fullmatch(r"tldextract==[\d.]+ sha256:[0-9a-f]{16}", suffix_list())
    plan = SplitPlan(by="domain", suffixes=suffix_list(), shares=SHARES)
    write_split(path, plan)
    assert read_split(path) == plan
    other = f"tldextract==1.2.3 {suffix_list().rpartition(' ')[2]}"
    write_split(path, plan.model_copy(update={"suffixes": other}))
    assert read_split(path).suffixes == other  # the same list in another version
    write_split(path, plan.model_copy(update={"suffixes": "tldextract==1.2.3 sha256:00"}))
    with pytest.raises(ConfigError, match=r"pip install tldextract==1\.2\.3$"):
        read_split(path)


def test_domains_need_neither_network_nor_cache(tmp_path: Path) -> None:
    code = (
        "import socket\n"
        "def refuse(*_, **__): raise OSError('no network here')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from now_builder.formats.split import registrable_domain\n"
        "print(registrable_domain('a.example.co.uk'))"
    )
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("example.co.uk\n", "")
    assert list(tmp_path.iterdir()) == []


def test_the_pools_have_their_shares() -> None:
    found = [pool(f"site{number}.test", 0, SHARES) for number in range(20_000)]
    for name, share in (("train", 0.6), ("dev", 0.15), ("test", 0.25)):
        assert found.count(name) / len(found) == pytest.approx(share, abs=0.015)


def test_a_pool_follows_the_documented_hash() -> None:
    """sha256("<seed>\\n<site>")[:8] / 2^64: below 0.25 test, below 0.25 + 0.15 dev, else train."""
    digest = hashlib.sha256(b"0\nsite00.test").digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    expected = "test" if position < 0.25 else "dev" if position < 0.4 else "train"
    assert pool("site00.test", 0, SHARES) == expected


def test_default_shares_give_seven_thousand_pages_within_bounds() -> None:
    for pages, part in ((0, 0.15), (40_000, 0.15), (50_000, 0.14), (10**6, 0.02)):
        assert choose_shares(None, pages) == Shares(train=1 - 2 * part, dev=part, test=part)


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    for fields in ({"seed": 7, "by": "page"}, {"test_sites": ["one.test"]}, {"by": "domain"}):
        plan = SplitPlan(shares=SHARES, **fields)
        write_split(tmp_path / "split.toml", plan)
        assert read_split(tmp_path / "split.toml") == plan


def test_a_damaged_plan_is_one_line(tmp_path: Path) -> None:
    shares = "[shares]\ntrain = 0.6\ndev = 0.15\ntest = 0."
    for text in (
        "seed = 0",
        f"by = 'host'\n{shares}25",
        f"{shares}5",
        f"{shares}25\nextra = 0",
        "x",
    ):
        (tmp_path / "split.toml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"split\.toml") as caught:
            read_split(tmp_path / "split.toml")
        assert "\n" not in str(caught.value)
    with pytest.raises(FormatError, match="`now-builder crawl` writes it"):
        read_split(tmp_path / "none.toml")
