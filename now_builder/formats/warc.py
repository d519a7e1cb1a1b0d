"""WARC: the requests and responses of a shard's pages, with an index; and WACZ, of all shards."""

import gzip
import hashlib
import io
import json
import logging
import re
import uuid
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warcio.archiveiterator import ArchiveIterator
from warcio.recordloader import ArcWarcRecord
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import replacing
from now_builder.formats.shard import (
    TRANSFER_HEADERS,
    Capture,
    CaptureRow,
    Exchange,
    complete_shards,
    read_columns,
    torn,
)

_log = logging.getLogger(__name__)

_HTTP = "HTTP/1.1"
_AS_SENT = "X-Crawler-"
"""Prefix of a header that describes the body as it was sent, not as it is stored."""

_INFO = {
    "format": "WARC File Format 1.1",
    "conformsTo": "https://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
}


def warc_path(captures: Path, shard: int) -> Path:
    """Path of the WARC of a shard."""
    return captures / f"{shard:05d}.warc.gz"


def cdxj_path(captures: Path, shard: int) -> Path:
    """Path of the index of a shard's WARC."""
    return captures / f"{shard:05d}.cdxj"


def write_warc(captures: Path, shard: int, pages: Iterable[tuple[CaptureRow, Capture]]) -> None:
    """Write the WARC of a shard's pages with ``status=ok``, streamed, and its index.

    The same pages give the same bytes.
    """
    lines: list[str] = []
    path = warc_path(captures, shard)
    with replacing(path) as temporary, temporary.open("wb") as file:
        writer = WARCWriter(file, gzip=True, warc_version="1.1")
        for row, capture in pages:
            if not file.tell():
                writer.write_record(_info(writer, path.name, row))
            for record in _records(writer, row, capture):
                start = file.tell()
                writer.write_record(record)
                if record.rec_type in ("response", "resource"):
                    lines.append(_index_line(record, path.name, start, file.tell() - start))
    with replacing(cdxj_path(captures, shard)) as temporary:
        temporary.write_text("".join(sorted(lines)), encoding="utf-8")


def read_exchanges(captures: Path, shard: int) -> dict[str, tuple[Exchange, ...]]:
    """Read the exchanges of the pages of a shard, by key."""
    path = warc_path(captures, shard)
    if not path.exists():
        return {}
    try:
        with gzip.open(path) as whole:  # warcio takes a file that is cut off for one that ends
            while whole.read(1 << 20):
                pass
        with path.open("rb") as file:
            return _pages(ArchiveIterator(file))
    except Exception as error:  # noqa: BLE001 - warcio meets damage with any of them
        raise torn(path, f"not a readable WARC ({error!r:.200})", error) from None


def write_wacz(captures: Path, path: Path) -> int:
    """Close the WARCs of all complete shards into one WACZ, and return the number of its pages.

    The same captures give the same bytes. A warning tells how many pages have no WARC.

    Raises:
        ConfigError: If the archive's name does not end as one's.
        FormatError: If no complete shard has a WARC, or one is cut off.
    """
    if path.suffix.lower() != ".wacz":  # such as a WARC of the captures
        raise ConfigError(f"{path}: expected a name that ends in .wacz, by which crawl knows one")
    complete = complete_shards(captures)
    shards = [shard for shard in complete if warc_path(captures, shard).exists()]
    if not shards:
        raise FormatError(captures, "no complete shard has a WARC (00000.warc.gz); crawl --warc")
    for shard in shards:
        _check_end(warc_path(captures, shard), cdxj_path(captures, shard))
    lacking = [shard for shard in complete if shard not in shards]
    left_out = sum(
        row["status"] == "ok"
        for shard in lacking
        for row in read_columns(captures, shard, ("status",))
    )
    if left_out:
        first = warc_path(captures, lacking[0]).name
        _log.warning("wacz: left out %d pages of shards without a WARC (no %s)", left_out, first)
    lines = [_line({"format": "json-pages-1.0", "id": "pages", "title": "All pages"})]
    for shard in shards:
        names = ("key", "url_canonical", "status", "fetched_at", "title")
        for row in read_columns(captures, shard, names):
            if row["status"] == "ok":
                page = {"id": row["key"], "url": row["url_canonical"], "title": row["title"] or ""}
                lines.append(_line(page | {"ts": _date(row["fetched_at"])}))
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as file:
        resources = [_add(file, "pages/pages.jsonl", lines)]
        for shard in shards:
            warc, index = warc_path(captures, shard), cdxj_path(captures, shard)
            resources.append(_add(file, f"archive/{warc.name}", _blocks(warc)))
            resources.append(_add(file, f"indexes/{index.name}", _blocks(index)))
        about = {"profile": "data-package", "wacz_version": "1.1.1", "software": "noise-of-web"}
        package = _add(file, "datapackage.json", [_line(about | {"resources": resources})])
        digest = {"path": package["path"], "hash": package["hash"]}
        _add(file, "datapackage-digest.json", [_line(digest)])
    return len(lines) - 1


def _check_end(path: Path, index: Path) -> None:
    """Refuse a WARC that is cut off: a page's metadata stands whole behind all that is indexed."""
    try:
        lines = index.read_bytes().splitlines()
        places = [json.loads(line.split(b" ", 2)[2]) for line in lines]
        end = max((int(place["offset"]) + int(place["length"]) for place in places), default=0)
        with path.open("rb") as file:
            file.seek(end)
            whole = bool(gzip.GzipFile(fileobj=file).read()) if places else not file.read(1)
    except (OSError, EOFError, ValueError, LookupError, TypeError, zlib.error) as error:
        raise torn(path, f"not a whole WARC by {index.name} ({error!r:.200})", error) from None
    if not whole:
        raise torn(path, f"not a whole WARC by {index.name}: ends before byte {end + 1}")


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            yield block


def _add(file: zipfile.ZipFile, name: str, blocks: Iterable[bytes]) -> dict[str, Any]:
    """Store a member as it is, and return its description."""
    digest, size = hashlib.sha256(), 0
    with file.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
        for block in blocks:
            member.write(block)
            digest.update(block)
            size += len(block)
    hashed = f"sha256:{digest.hexdigest()}"
    return {"name": name.rpartition("/")[2], "path": name, "hash": hashed, "bytes": size}


def _pages(records: Iterable[ArcWarcRecord]) -> dict[str, tuple[Exchange, ...]]:
    found: dict[str, tuple[Exchange, ...]] = {}
    chain: list[Exchange] = []
    answer: ArcWarcRecord | None = None
    kind = "no record"
    for record in records:
        kind = record.rec_type
        if kind == "response":
            answer = record
        elif kind == "request" and answer is not None:
            chain.append(_read_exchange(record, answer))
        elif kind == "metadata":
            found[json.loads(record.content_stream().read())["key"]] = tuple(chain)
            chain = []
    if kind != "metadata":
        raise ValueError(f"ends with {kind}: torn")
    return found


def _info(writer: WARCWriter, name: str, row: CaptureRow) -> ArcWarcRecord:
    fields = {"software": row.tool or "noise-of-web", "browser": row.browser or "", **_INFO}
    content = "".join(f"{key}: {value}\r\n" for key, value in fields.items()).encode()
    headers = {
        "WARC-Record-ID": _record_id(row, "warcinfo"),
        "WARC-Date": _date(row.fetched_at),
        "WARC-Filename": name,
    }
    return writer.create_warc_record(
        "", "warcinfo", io.BytesIO(content), len(content), warc_headers_dict=headers
    )


def _records(writer: WARCWriter, row: CaptureRow, capture: Capture) -> Iterator[ArcWarcRecord]:
    """Yield a page's records; the metadata, which has its key, comes last."""
    page = row.final_url or row.url_canonical
    source = _record_id(row, "source", max(0, len(capture.exchanges) - 1))
    for place, exchange in enumerate(capture.exchanges):
        last = place == len(capture.exchanges) - 1
        at = {"WARC-Date": _date(exchange.at)}
        name = _record_id(row, "source", place)
        headers = {"WARC-Record-ID": name} | at
        yield _response(writer, exchange, capture.html if last else b"", headers)
        headers = {"WARC-Record-ID": _record_id(row, "request", place)} | at
        yield _request(writer, exchange, headers | {"WARC-Concurrent-To": name})
    at = {"WARC-Date": _date(row.fetched_at)}
    if not capture.exchanges:  # visited when no WARC was wanted: the source is all there is
        headers = at | {"WARC-Record-ID": source}
        kind = row.content_type or "text/html"
        yield _resource(writer, page, kind, capture.html, headers)
    headers = at | {"WARC-Record-ID": _record_id(row, "screenshot"), "WARC-Concurrent-To": source}
    kind = f"image/{capture.extension}"
    yield _resource(writer, f"urn:screenshot:{page}", kind, capture.screenshot, headers)
    content = json.dumps(asdict(row)).encode()
    yield writer.create_warc_record(
        page, "metadata", io.BytesIO(content), len(content), "application/json",
        at | {"WARC-Record-ID": _record_id(row, "metadata"), "WARC-Refers-To": source},
    )  # fmt: skip


def _response(
    writer: WARCWriter, exchange: Exchange, body: bytes, headers: dict[str, str]
) -> ArcWarcRecord:
    """Return the record of a response, its body with content and transfer encodings undone."""
    if exchange.cut:
        headers = headers | {"WARC-Truncated": "unspecified"}
    received = [
        (f"{_AS_SENT}{name}" if name.lower() in TRANSFER_HEADERS else name, value)
        for name, value in exchange.answer
    ]
    received.append(("Content-Length", str(len(body))))
    return writer.create_warc_record(
        exchange.url, "response", io.BytesIO(body), len(body), warc_headers_dict=headers,
        http_headers=StatusAndHeaders(f"{exchange.status} {exchange.reason}", received, _HTTP),
    )  # fmt: skip


def _request(writer: WARCWriter, exchange: Exchange, headers: dict[str, str]) -> ArcWarcRecord:
    parts = urlsplit(exchange.url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    sent = [pair for pair in exchange.request if pair[0].lower() != "host"]
    said = StatusAndHeaders(f"{target} {_HTTP}", [("Host", parts.netloc), *sent], exchange.method)
    return writer.create_warc_record(
        exchange.url, "request", warc_headers_dict=headers, http_headers=said
    )


def _resource(
    writer: WARCWriter, url: str, kind: str, content: bytes, headers: dict[str, str]
) -> ArcWarcRecord:
    return writer.create_warc_record(
        url, "resource", io.BytesIO(content), len(content), kind, headers
    )


def _read_exchange(request: ArcWarcRecord, answer: ArcWarcRecord) -> Exchange:
    status, _, reason = answer.http_headers.statusline.partition(" ")
    said = [pair for pair in answer.http_headers.headers if pair[0] != "Content-Length"]
    return Exchange(
        url=answer.rec_headers.get_header("WARC-Target-URI"),
        at=answer.rec_headers.get_header("WARC-Date"),
        method=request.http_headers.protocol,
        request=tuple((name, value) for name, value in request.http_headers.headers[1:]),
        status=int(status),
        reason=reason,
        answer=tuple((name.removeprefix(_AS_SENT), value) for name, value in said),
        cut=answer.rec_headers.get_header("WARC-Truncated") is not None,
    )


def _record_id(row: CaptureRow, kind: str, place: int = 0) -> str:
    name = f"{row.key} {row.fetched_at} {row.sha256} {kind} {place}"
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>"


def _date(at: str | None) -> str:
    return (at or "1970-01-01T00:00:00Z").replace("+00:00", "Z")


def _index_line(record: ArcWarcRecord, name: str, offset: int, length: int) -> str:
    url = record.rec_headers.get_header("WARC-Target-URI")
    headers = record.http_headers
    mime = headers.get_header("Content-Type") if headers else record.content_type
    fields = {
        "url": url,
        "mime": (mime or "unk").partition(";")[0].strip(),
        "status": headers.get_statuscode() if headers else "200",
        "digest": record.rec_headers.get_header("WARC-Payload-Digest"),
        "length": str(length),
        "offset": str(offset),
        "filename": name,
    }
    stamp = re.sub(r"\D", "", record.rec_headers.get_header("WARC-Date"))[:14]
    return f"{sort_key(url)} {stamp} {json.dumps(fields)}\n"


def sort_key(url: str) -> str:
    """Return the sort key of a URL in an index: the host backwards, then the path."""
    parts = urlsplit(url.lower())
    if parts.scheme not in ("http", "https"):
        return url.lower().replace(" ", "%20")
    host = re.sub(r"^www\d*\.", "", parts.hostname or "")
    if not re.fullmatch(r"[\d.]+|.*:.*", host):
        host = ",".join(reversed(host.split(".")))
    port = f":{parts.port}" if parts.port not in (None, 80, 443) else ""
    query = "?" + "&".join(sorted(parts.query.split("&"))) if parts.query else ""
    return f"{host}{port}){parts.path.rstrip('/') or '/'}{query}"
