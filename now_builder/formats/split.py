"""Split pools: which of train, dev and test a site or page belongs to, the same in every stage."""

import hashlib
import ipaddress
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from now_builder.config import Strict, build, read_toml, to_toml
from now_builder.errors import FormatError
from now_builder.formats.atomic import write_text

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Shares(Strict):
    """The share of sites (or pages) in each pool; the three add up to 1."""

    train: float = Field(gt=0, le=1)
    dev: float = Field(ge=0, lt=1)
    test: float = Field(ge=0, lt=1)

    @model_validator(mode="after")
    def _adds_up(self) -> "Shares":
        if abs(self.train + self.dev + self.test - 1) > 1e-6:
            raise ValueError("the shares of train, dev and test must add up to 1")
        return self


class SplitPlan(Strict):
    """The content of ``CAPTURES/split.toml``.

    Attributes:
        seed: Changes every assignment.
        by: ``site`` puts all pages of a host in one pool; ``page`` hashes each key.
        shares: Expected sizes of the pools.
    """

    seed: int = 0
    by: Literal["site", "page"] = "site"
    shares: Shares

    def pool_of(self, site: str, key: str) -> Split:
        """Give the pool of a page; a site that is an IP address is split by page."""
        return pool(key if self.by == "page" or _is_address(site) else site, self.seed, self.shares)


def pool(name: str, seed: int, shares: Shares) -> Split:
    """Assign a site or a key to a pool by hash: no state, the same answer everywhere.

    Args:
        name: A site (host name) or the key of a page.
        seed: Changes every assignment.
        shares: Expected sizes of the pools.
    """
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < shares.test:
        return "test"
    return "dev" if position < shares.test + shares.dev else "train"


def default_shares(pages: int) -> Shares:
    """Choose pool shares for a list of ``pages`` URLs.

    Dev and test want about 1,000 usable pairs each of a full-size list, and 15 % of a small one:
    enough pages must be in the pool for the pairs that are judged to match.
    """
    part = min(0.15, max(0.02, 4000 / max(pages, 1)))
    return Shares(train=1 - 2 * part, dev=part, test=part)


def read_split(path: Path) -> SplitPlan:
    """Read ``split.toml``.

    Raises:
        FormatError: If it is missing.
        ConfigError: If a field is unknown or out of range.
    """
    if not path.exists():
        raise FormatError(path, "no such file; `now-builder crawl` writes it")
    return build(SplitPlan, read_toml(path), str(path))


def write_split(path: Path, plan: SplitPlan) -> None:
    """Write ``split.toml`` atomically."""
    write_text(path, to_toml(plan))


def _is_address(site: str) -> bool:
    try:
        ipaddress.ip_address(site.strip("[]"))
    except ValueError:
        return False
    return True
