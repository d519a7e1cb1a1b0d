"""Pools: a pure hash, sites kept together, addresses split by page."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.split import (
    Shares,
    SplitPlan,
    default_shares,
    pool,
    read_split,
    write_split,
)

SHARES = Shares(train=0.6, dev=0.15, test=0.25)


@given(site=st.text(), key=st.text(), other=st.text(), seed=st.integers(-9, 9))
def test_all_pages_of_a_site_are_in_one_pool(site: str, key: str, other: str, seed: int) -> None:
    plan = SplitPlan(seed=seed, shares=SHARES)
    addresses = any(c.isdigit() for c in site)
    assert addresses or plan.pool_of(site, key) == plan.pool_of(site, other)


@pytest.mark.parametrize("site", ["127.0.0.1", "::1", "[::1]", "10.2.3.4"])
def test_pages_of_an_address_go_to_all_pools(site: str) -> None:
    plan = SplitPlan(shares=SHARES)
    found = {plan.pool_of(site, f"00000_{page:04d}") for page in range(100)}
    assert found == {"train", "dev", "test"}


def test_the_pools_have_their_shares() -> None:
    found = [pool(f"site{number}.test", 0, SHARES) for number in range(20_000)]
    for name, share in (("train", 0.6), ("dev", 0.15), ("test", 0.25)):
        assert found.count(name) / len(found) == pytest.approx(share, abs=0.015)


def test_a_pool_is_what_the_format_says() -> None:
    """sha256("<seed>\\n<site>")[:8] / 2^64: below 0.25 test, below 0.25 + 0.15 dev, else train."""
    digest = hashlib.sha256(b"0\nsite00.test").digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    expected = "test" if position < 0.25 else "dev" if position < 0.4 else "train"
    assert pool("site00.test", 0, SHARES) == expected


def test_another_seed_is_another_split() -> None:
    sites = [f"site{number}.test" for number in range(200)]
    one, two = ([pool(site, seed, SHARES) for site in sites] for seed in (0, 1))
    assert one != two


@given(pages=st.integers(0, 10**7))
def test_default_shares_add_up(pages: int) -> None:
    shares = default_shares(pages)
    assert shares.train > 0.6
    assert shares.dev == shares.test > 0


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = SplitPlan(seed=7, by="page", shares=SHARES)
    write_split(tmp_path / "split.toml", plan)
    assert read_split(tmp_path / "split.toml") == plan


@pytest.mark.parametrize(
    "text",
    [
        "seed = 0",
        "seed = 0\nby = 'host'\n[shares]\ntrain = 0.6\ndev = 0.15\ntest = 0.25",
        "[shares]\ntrain = 0.6\ndev = 0.15\ntest = 0.5",
        "[shares]\ntrain = 0.6\ndev = 0.15\ntest = 0.25\nextra = 0",
        "not toml",
    ],
)
def test_a_damaged_plan_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "split.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"split\.toml") as caught:
        read_split(tmp_path / "split.toml")
    assert "\n" not in str(caught.value)


def test_a_missing_plan_says_what_writes_it(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="crawl"):
        read_split(tmp_path / "split.toml")
