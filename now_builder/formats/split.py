"""Split pools: assign domains or pages to train, dev or test, identically in every stage."""

import hashlib
import ipaddress
from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_serializer, model_validator

from now_builder.config import Strict, build, read_toml, to_toml
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import write_text

Split = Literal["train", "dev", "test"]
By = Literal["domain", "site", "page"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Shares(Strict):
    """Shares of domains (sites, pages) in each pool; they add up to 1."""

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
        seed: Seed of the hash that assigns pools.
        by: Unit of the hash: registrable domain, ``site`` (host name) or ``page`` (key). Files of
            earlier versions lack it.
        suffixes: Public suffix list that defines domains, see :func:`suffix_list`.
        test_sites: Sites of the test pool, with all hosts below them (by ``domain``: with their
            domains). Other pages that the hash puts into test are train. ``None``: the hash alone
            decides.
        shares: Expected sizes of the pools.
    """

    seed: int = 0
    by: By = "site"
    suffixes: str | None = None
    test_sites: list[str] | None = None
    shares: Shares

    @model_serializer(mode="wrap")
    def _without_none(self, dump: Callable[["SplitPlan"], dict[str, Any]]) -> dict[str, Any]:
        """Leave out fields that are ``None``: stages hash a plan, and older plans lack them."""
        return {name: value for name, value in dump(self).items() if value is not None}

    def pool_of(self, site: str, key: str) -> Split:
        """Return the pool of a page; a site that is an IP address is split by page."""
        name = registrable_domain(site) if self.by == "domain" else site
        if self.by == "page" or _is_address(site):
            name = key
        hashed = pool(name, self.seed, self.shares)
        if self.test_sites is None:
            return hashed
        if not self._test_domains.isdisjoint(parent_domains(site)):
            return "test"
        return "train" if hashed == "test" else hashed

    @cached_property
    def _test_domains(self) -> frozenset[str]:
        sites = self.test_sites or []
        return frozenset(map(registrable_domain, sites) if self.by == "domain" else sites)


@lru_cache(maxsize=1 << 16)
def parent_domains(site: str) -> tuple[str, ...]:
    """Return a host name and all names above it: ``a.b.c``, ``b.c`` and ``c``."""
    labels = site.split(".")
    return tuple(".".join(labels[start:]) for start in range(len(labels)))


@lru_cache(maxsize=1 << 16)
def registrable_domain(site: str) -> str:
    """Return the registrable domain of a host name: ``example.co.uk`` for ``blog.example.co.uk``.

    Names below a private suffix (``github.io``, ``blogspot.com``) have different owners, so each is
    a domain. A suffix, a name without a dot and an address are domains themselves. Below an unknown
    top level, the domain is the last two names.

    Source:
        The Public Suffix List, https://publicsuffix.org/list/, "Formal Algorithm".
    """
    if _is_address(site):
        return site
    site = site.rstrip(".")
    parts = _extract()(site)
    if parts.suffix:
        return parts.top_domain_under_public_suffix or site
    return ".".join(site.split(".")[-2:])  # the list's last rule, *


def suffix_list() -> str:
    """Return the identity of the public suffix list in use: its package, version and hash."""
    content = (files("tldextract") / ".tld_set_snapshot").read_bytes()
    return f"tldextract=={version('tldextract')} sha256:{hashlib.sha256(content).hexdigest()[:16]}"


@cache
def _extract() -> Any:
    from tldextract import TLDExtract

    # Without URLs and cache folder, it uses the list of its package and never the network.
    return TLDExtract(cache_dir=None, suffix_list_urls=(), include_psl_private_domains=True)


def pool(name: str, seed: int, shares: Shares) -> Split:
    """Assign a domain, site or key to a pool by its hash."""
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < shares.test:
        return "test"
    return "dev" if position < shares.test + shares.dev else "train"


def choose_shares(text: str | None, pages: int) -> Shares:
    """Parse shares (``0.7,0.12,0.18``), or choose them for a list of ``pages`` URLs.

    By default, dev and test get 7,000 URLs each, within 2 % and 15 % of the list. About 4,200 of
    them become pairs and, if 70 % of these are mismatched, 1,260 match.
    """
    if text is None:
        part = min(0.15, max(0.02, 7000 / max(pages, 1)))
        return Shares(train=1 - 2 * part, dev=part, test=part)
    try:
        train, dev, test = (float(share) for share in text.split(","))
    except ValueError:
        expected = "expected three numbers such as 0.7,0.12,0.18"
        raise ConfigError(f"split_shares: found {text!r}, {expected}") from None
    return build(Shares, {"train": train, "dev": dev, "test": test}, "split_shares")


def read_split(path: Path) -> SplitPlan:
    """Read ``split.toml``.

    Raises:
        FormatError: If the file is missing.
        ConfigError: If a field is unknown or out of range, or the file was made with another public
            suffix list than the installed one, which would change the pools of some domains.
    """
    if not path.exists():
        raise FormatError(path, "no such file; `now-builder crawl` writes it")
    plan = build(SplitPlan, read_toml(path), str(path))
    if plan.by == "domain" and plan.suffixes is not None:
        made, here = plan.suffixes, suffix_list()
        if made.rpartition(" ")[2] != here.rpartition(" ")[2]:
            raise ConfigError(
                f"{path}: suffixes is {made!r:.80}, but installed is {here!r}, which would change "
                f"the pools of some domains. Run pip install {made.partition(' ')[0]:.40}"
            )
    return plan


def write_split(path: Path, plan: SplitPlan) -> None:
    """Write ``split.toml`` atomically."""
    write_text(path, to_toml(plan))


@lru_cache(maxsize=1 << 16)
def _is_address(site: str) -> bool:
    try:
        ipaddress.ip_address(site.strip("[]"))
    except ValueError:
        return False
    return True
