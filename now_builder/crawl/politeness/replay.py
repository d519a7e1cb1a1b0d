"""A proxy that answers from a web archive, and dials nobody."""

import asyncio
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from tempfile import NamedTemporaryFile

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from now_builder.crawl.archive import Answer, Archive, NotArchived, TooLarge
from now_builder.crawl.politeness.proxy import UNLIMITED, Pipe, Proxy, parse_head
from now_builder.crawl.politeness.resolver import Refused, Resolver
from now_builder.urls import canonical, site_of

_MOST = 1 << 26
"""Bytes of a body at most, where a page has no limit: of robots.txt and the like."""


@dataclass(slots=True)
class _Asked:
    """What a page asked for in vain, and the time of its first answer."""

    refused: dict[str, Refused] = field(default_factory=dict)
    near: float | None = None


class ArchiveProxy(Proxy):
    """A listening port that serves one page at a time from an archive, ``https`` included.

    Clients must not verify certificates: all hosts have one that was made for this process. The
    answers to a page are those recorded nearest to its first one.
    """

    verify = False

    def __init__(self, resolver: Resolver, archive: Archive) -> None:
        super().__init__(resolver)
        self._archive = archive
        self._asked = _Asked()

    def begin(self, limit: int) -> None:
        """Serve a new page, of at most ``limit`` bytes: close the connections of the last one."""
        super().begin(limit)
        self._asked = _Asked()

    @property
    def not_archived(self) -> int | None:
        """Number of URLs of this page that the archive has no answer to."""
        refusals = self._asked.refused.values()
        return sum(refused.reason == "not_archived" for refused in refusals)

    def refusal(self, url: str) -> Refused | None:
        """Return why a URL was not answered on this page; ``None`` if it was."""
        url = canonical(url) or url
        try:
            self._resolver.check(site_of(url))
        except Refused as refused:
            return refused
        return self._asked.refused.get(url)

    async def _serve(self, reader: asyncio.StreamReader, pipe: Pipe) -> None:
        origin = ""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, _ = parse_head(head)
                if method == "CONNECT" and not origin:
                    origin = f"https://{target}"
                    pipe.client.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await pipe.client.start_tls(_certified())
                    continue
                pipe.client.write(await self._response(method, origin + target))
                await pipe.client.drain()
                if method not in {"GET", "HEAD"}:
                    return  # its body is not read
        except Refused:
            return  # no request line

    async def _response(self, method: str, url: str) -> bytes:
        page, asked, url = self._page, self._asked, canonical(url) or url  # of this page, not later
        try:
            self._resolver.check(site_of(url))
            answer = await self._answer(method, url, asked.near, page.limit - page.received)
        except TooLarge as problem:
            page.received = page.limit + 1
            refused = Refused("too_large", f"{url:.200}: {problem}")
        except NotArchived as problem:
            refused = Refused("not_archived", f"{url:.200}: {problem}")
        except Refused as problem:
            refused = problem
        else:
            page.received += len(answer.body)
            if page.limit < UNLIMITED and asked.near is None:
                asked.near = answer.at
            return _encoded(method, answer)
        asked.refused.setdefault(url, refused)
        status = "404 Not Found" if refused.reason == "not_archived" else "502 Bad Gateway"
        return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode()

    async def _answer(self, method: str, url: str, near: float | None, left: int) -> Answer:
        if method not in {"GET", "HEAD"}:
            raise NotArchived(f"the archive has no answer to {method}")
        return await asyncio.to_thread(self._archive.answer, url, near, min(left, _MOST))


def _encoded(method: str, answer: Answer) -> bytes:
    lines = [f"HTTP/1.1 {answer.status} Archived"]
    for name, value in answer.headers:
        lines.append(f"{name}: {' '.join(value.splitlines())}")
    empty = answer.status == 204
    lines += [] if empty else [f"Content-Length: {len(answer.body)}"]
    body = b"" if empty or method == "HEAD" else answer.body
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + body


@cache
def _certified() -> ssl.SSLContext:
    """Return the TLS of a server with a certificate that nobody trusts."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "archive")])
    certificate = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(),
        now - timedelta(days=1), now + timedelta(days=365),
    ).sign(key, hashes.SHA256())  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    kind, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    with NamedTemporaryFile() as file:
        file.write(key.private_bytes(kind, form, serialization.NoEncryption()))
        file.write(certificate.public_bytes(kind))
        file.flush()
        context.load_cert_chain(file.name)
    return context
