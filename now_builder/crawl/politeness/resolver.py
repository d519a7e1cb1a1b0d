"""Resolve host names to addresses that may be contacted."""

import asyncio
import re
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from now_builder.crawl.settings import CrawlSettings
from now_builder.crawl.visit import PageError
from now_builder.errors import ConfigError
from now_builder.formats.split import parent_domains
from now_builder.formats.tables import read_hosts
from now_builder.urls import canonical, site_of

Address = IPv4Address | IPv6Address

_CACHE_S = 300.0
_LOOK_UPS = ThreadPoolExecutor(64, "look-up")
"""The event loop's default pool is small: a few slow names would delay all others."""

_LOOK_UP_S = 10.0
_EMBEDDING = (ip_network("64:ff9b::/96"), ip_network("::/96"))
"""IPv6 ranges whose last 32 bits are an IPv4 address."""

_LOCAL_NAT64 = ip_network("64:ff9b:1::/48")
"""Range of local translators (RFC 8215), which place the IPv4 address anywhere in it."""


@dataclass(frozen=True, slots=True)
class Mapping:
    """A value of ``--resolve``: a host, or ``*.`` and the end of a host, and its address."""

    pattern: str
    address: Address
    port: int | None

    def covers(self, host: str) -> bool:
        """Return whether the mapping applies to a host."""
        return _matches(self.pattern, host)


def parse_mapping(text: str) -> Mapping:
    """Parse ``HOST:ADDR`` or ``HOST:ADDR:PORT``; an IPv6 address needs brackets.

    Raises:
        ConfigError: If the text has neither form.
    """
    parts = re.fullmatch(r"([^:\s]+):(\[[0-9a-fA-F:.]+\]|[0-9.]+)(?::(\d{1,5}))?", text.strip())
    addresses = _literal(parts[2]) if parts else ()
    port = int(parts[3]) if parts and parts[3] else None
    if parts is None or not addresses or (port is not None and not 0 < port < 65536):
        raise ConfigError(
            f"--resolve {text}: expected HOST:ADDR or HOST:ADDR:PORT, such as *.test:127.0.0.1:8765"
        )
    return Mapping(parts[1].lower(), addresses[0], port)


def parse_pattern(text: str) -> str:
    """Parse a value of ``--only``: a host, a URL, or ``*.`` and the end of a host.

    Raises:
        ConfigError: If the text has none of these forms.
    """
    star = "*." if text.startswith("*.") else ""
    host = site_of(canonical(text.removeprefix(star)) or "")
    if not host:
        raise ConfigError(f"--only {text}: expected one host, such as a.test or *.test")
    return star + host


def _matches(pattern: str, host: str) -> bool:
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet and embeds no private address."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _EMBEDDING):
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local or address in _LOCAL_NAT64:
            return False
    return address.is_global and not (
        address.is_multicast or address.is_reserved or address.is_unspecified
    )


class Resolver:
    """Resolves host names to checked addresses and caches the result for five minutes.

    The first mapping that covers a host applies. Hosts in ``never`` (lower case) and their
    subdomains are not contacted. If there are patterns in ``only``, hosts that match none of them
    are not contacted either.
    """

    def __init__(
        self, mappings: Sequence[Mapping], *, allow_private: bool,
        never: frozenset[str] = frozenset(), only: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._never = never
        self._only = only
        self._mappings = mappings
        self._allow_private = allow_private
        self._cache: dict[str, tuple[float, tuple[Address, ...]]] = {}
        self._pending: dict[str, asyncio.Future[tuple[Address, ...]]] = {}

    async def resolve(self, host: str, port: int) -> tuple[tuple[Address, ...], int]:
        """Return the addresses and the port to connect to for a host.

        Raises:
            PageError: ``dns_error``, ``private_address`` if any address is not public, ``never`` or
                ``only``.
        """
        host = self.check(host)
        mapped = next((mapping for mapping in self._mappings if mapping.covers(host)), None)
        if mapped is not None:
            addresses: tuple[Address, ...] = (mapped.address,)
            port = mapped.port or port
        else:
            addresses = _literal(host) or await self._look_up(host)
        if not self._allow_private:
            for address in addresses:
                if not is_public(address):
                    raise PageError("private_address", f"{host} is {address}")
        return addresses, port

    def check(self, host: str) -> str:
        """Check a host and return its name for the look-up.

        Raises:
            PageError: ``never`` or ``only``.
        """
        host = host.lower().rstrip(".")
        excluded = next((name for name in parent_domains(host) if name in self._never), None)
        if excluded is not None:
            raise PageError("never", f"{excluded} is in the file of --never")
        if self._only and not any(_matches(pattern, host) for pattern in self._only):
            raise PageError("only", f"{host} matches no --only")
        return host

    async def close(self) -> None:
        """Cancel pending look-ups."""
        pending = list(self._pending.values())
        for look_up in pending:
            look_up.cancel()
        await asyncio.gather(*pending, return_exceptions=True)

    def is_local(self, host: str) -> bool:
        """Return whether a host is mapped or known to be private, so that it has no rate limit."""
        host = host.lower().strip("[]")
        if any(mapping.covers(host) for mapping in self._mappings):
            return True
        cached = self._cache.get(host)
        addresses = _literal(host) or (cached[1] if cached else ())
        return bool(addresses) and not all(is_public(address) for address in addresses)

    def _forget(self, host: str, look_up: asyncio.Future[tuple[Address, ...]]) -> None:
        """Remove a finished look-up, even if nothing waits for it any more."""
        self._pending.pop(host, None)
        if not look_up.cancelled():
            look_up.exception()  # mark it as retrieved, or asyncio would report it

    async def _look_up(self, host: str) -> tuple[Address, ...]:
        cached = self._cache.get(host)
        if cached and time.monotonic() - cached[0] < _CACHE_S:
            return cached[1]
        if host not in self._pending:
            task = asyncio.ensure_future(_query(host))
            self._pending[host] = task
            task.add_done_callback(partial(self._forget, host))
        addresses = await asyncio.shield(self._pending[host])
        self._cache[host] = (time.monotonic(), addresses)
        return addresses


def make_resolver(settings: CrawlSettings) -> Resolver:
    """Return the resolver of a crawl.

    Raises:
        ConfigError: If a mapping or a pattern is invalid.
        FormatError: If the list of hosts cannot be read.
    """
    return Resolver(
        [parse_mapping(text) for text in settings.resolve],
        allow_private=settings.allow_private,
        never=frozenset(read_hosts(settings.never) if settings.never else ()),
        only=[parse_pattern(text) for text in settings.only],
    )


def _literal(host: str) -> tuple[Address, ...]:
    try:
        return (ip_address(host.strip("[]").partition("%")[0]),)
    except ValueError:
        return ()


async def _query(host: str) -> tuple[Address, ...]:
    loop = asyncio.get_running_loop()
    look_up = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
    try:
        # getaddrinfo also accepts unusual spellings of addresses (0x7f.1, 2130706433), as connect
        # does. Its result is checked, so these cannot bypass the check.
        answers = await asyncio.wait_for(loop.run_in_executor(_LOOK_UPS, look_up), _LOOK_UP_S)
    except (OSError, UnicodeError) as error:
        raise PageError("dns_error", f"{host}: {str(error) or 'timeout'}") from None
    return tuple(dict.fromkeys(ip_address(item[4][0].partition("%")[0]) for item in answers))  # type: ignore[union-attr]
