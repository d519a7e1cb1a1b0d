"""Split pools: which of train, dev, test a domain or page belongs to, the same in every stage."""

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
    """The share of domains (sites, pages) in each pool; the three add up to 1."""

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
        by: ``domain`` puts all pages of a registrable domain in one pool, ``site`` those of a
            host; ``page`` hashes each key. A file without it was made by ``site``.
        suffixes: The list of public suffixes that decides on domains, see
            :func:`suffix_list`; ``None`` if by none.
        test_sites: The sites that are test, with all hosts below them and, by ``domain``, the
            whole domains: of the others, train has what the hash puts into test. ``None`` if the
            hash alone decides.
        shares: Expected sizes of the pools.
    """

    seed: int = 0
    by: By = "site"
    suffixes: str | None = None
    test_sites: list[str] | None = None
    shares: Shares

    @model_serializer(mode="wrap")
    def _without_nothing(self, dump: Callable[["SplitPlan"], dict[str, Any]]) -> dict[str, Any]:
        """Leave out fields that are ``None``: stages hash a plan, and older plans lack them."""
        return {name: value for name, value in dump(self).items() if value is not None}

    def pool_of(self, site: str, key: str) -> Split:
        """Return the pool of a page; a site that is an IP address is split by page."""
        if self.by == "page" or _is_address(site):
            found = pool(key, self.seed, self.shares)
        else:
            name = registrable_domain(site) if self.by == "domain" else site
            found = pool(name, self.seed, self.shares)
        if self.test_sites is None:
            return found
        if not self._named.isdisjoint(parent_domains(site)):
            return "test"
        return "train" if found == "test" else found

    @cached_property
    def _named(self) -> frozenset[str]:
        sites = self.test_sites or []
        return frozenset(map(registrable_domain, sites) if self.by == "domain" else sites)


@lru_cache(maxsize=1 << 16)
def parent_domains(site: str) -> tuple[str, ...]:
    """Return a host name and those that it is below: ``a.b.c``, ``b.c`` and ``c``."""
    labels = site.split(".")
    return tuple(".".join(labels[start:]) for start in range(len(labels)))


@lru_cache(maxsize=1 << 16)
def registrable_domain(site: str) -> str:
    """Return the registrable domain of a host name: ``example.co.uk`` of ``blog.example.co.uk``.

    Below a private suffix (``github.io``, ``blogspot.com``) each name has an owner of its own and
    is a domain of its own. A host that is a suffix itself, a name without a dot and an address are
    their own domain; under an unknown top level it is the last two names.

    Source:
        The Public Suffix List, https://publicsuffix.org/list/, "Formal Algorithm".
    """
    if _is_address(site):
        return site
    site = site.rstrip(".")
    found = _extract()(site)
    if found.suffix:
        return found.top_domain_under_public_suffix or site
    return ".".join(site.split(".")[-2:])  # the list's last rule, *


def suffix_list() -> str:
    """Name the list of public suffixes in use: the package that has it, and a hash of the list."""
    listed = (files("tldextract") / ".tld_set_snapshot").read_bytes()
    return f"tldextract=={version('tldextract')} sha256:{hashlib.sha256(listed).hexdigest()[:16]}"


@cache
def _extract() -> Any:
    from tldextract import TLDExtract

    # No URL, no cache folder: the list of the package, never the network.
    return TLDExtract(cache_dir=None, suffix_list_urls=(), include_psl_private_domains=True)


def pool(name: str, seed: int, shares: Shares) -> Split:
    """Assign a domain, a site or a key to a pool by hash: no state, the same answer everywhere."""
    digest = hashlib.sha256(f"{seed}\n{name}".encode()).digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    if position < shares.test:
        return "test"
    return "dev" if position < shares.test + shares.dev else "train"


def choose_shares(given: str | None, pages: int) -> Shares:
    """Read shares as a setting has them: ``0.7,0.12,0.18``; by default they follow the list."""
    if given is None:
        return default_shares(pages)
    try:
        train, dev, test = (float(share) for share in given.split(","))
    except ValueError:
        raise ConfigError(
            f"split_shares: found {given!r}, expected three numbers such as 0.7,0.12,0.18"
        ) from None
    return build(Shares, {"train": train, "dev": dev, "test": test}, "split_shares")


def default_shares(pages: int) -> Shares:
    """Choose pool shares for a list of ``pages`` URLs.

    Dev and test want 1,000 pairs each that match: of 7,000 URLs some 4,200 become pairs, and some
    1,260 of those match where 70 % do not. A short list gives 15 % to each.
    """
    part = min(0.15, max(0.02, 7000 / max(pages, 1)))
    return Shares(train=1 - 2 * part, dev=part, test=part)


def read_split(path: Path) -> SplitPlan:
    """Read ``split.toml``.

    Raises:
        FormatError: If it is missing.
        ConfigError: If a field is unknown or out of range, or it was made by another list of public
            suffixes than the one installed, which would put some domains into other pools.
    """
    if not path.exists():
        raise FormatError(path, "no such file; `now-builder crawl` writes it")
    plan = build(SplitPlan, read_toml(path), str(path))
    if plan.by == "domain" and plan.suffixes is not None:
        made, here = plan.suffixes, suffix_list()
        if made.rpartition(" ")[2] != here.rpartition(" ")[2]:
            raise ConfigError(
                f"{path}: suffixes is {made!r:.80}, but installed is {here!r}, which would put "
                f"some domains into other pools; pip install {made.partition(' ')[0]:.40}"
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
