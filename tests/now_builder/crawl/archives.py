"""Web archives (WACZ) of raw responses, laid out as browsertrix lays them out."""

import gzip
import io
import json
import uuid
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from now_builder.formats.warc import sort_key

AT = "2024-05-06T07:08:09Z"


@dataclass
class Record:
    """A record of an archive; ``answer`` is a raw response, ``row`` overwrites its index."""

    url: str
    answer: bytes
    at: str = AT
    kind: str = "response"
    headers: dict[str, str] = field(default_factory=dict)
    row: dict[str, object] = field(default_factory=dict)

    def packed(self) -> bytes:
        out = io.BytesIO()
        writer = WARCWriter(out, gzip=True)
        name = uuid.uuid5(uuid.NAMESPACE_URL, f"{self.url} {self.at} {self.kind}")
        headers = {"WARC-Date": self.at, "WARC-Record-ID": f"<urn:uuid:{name}>"}
        body, said = self.answer, None
        if self.kind == "response":
            head, _, body = self.answer.partition(b"\r\n\r\n")
            (protocol, _, status), *lines = (
                line.partition(": " if place else " ")
                for place, line in enumerate(head.decode().split("\r\n"))
            )
            fields = [(name, value) for name, _, value in lines]
            said = StatusAndHeaders(status, fields, protocol)
        if self.kind == "revisit":
            said = StatusAndHeaders("200 OK", [("Content-Type", "text/html")], "HTTP/1.1")
        record = writer.create_warc_record(
            self.url, self.kind, io.BytesIO(body), len(body),
            "text/html" if self.kind == "resource" else "",
            warc_headers_dict=headers | self.headers, http_headers=said,
        )  # fmt: skip
        for name, value in self.headers.items():
            record.rec_headers.replace_header(name, value)
        writer.write_record(record)
        return out.getvalue()


def write_archive(
    path: Path,
    records: Sequence[Record],
    pages: Sequence[str] | None = None,
    **changes: bytes | None,
) -> Path:
    """Write an archive; its pages are by default the records' HTML. ``changes`` are by member."""
    warc, lines = b"", []
    for record in records:
        packed = record.packed()
        status = record.answer.split(b" ", 2)[1:2]
        code = int(status[0]) if status and record.kind == "response" else None
        row = {"url": record.url, "mime": "text/html", "status": code, "offset": str(len(warc)),
               "length": str(len(packed)), "filename": "rec.warc.gz"}  # fmt: skip
        stamp = "".join(sign for sign in record.at if sign.isdecimal())[:14]
        lines.append(f"{sort_key(record.url)} {stamp} {json.dumps(row | record.row)}\n")
        warc += packed
    if pages is None:
        pages = [record.url for record in records if b"text/html" in record.answer[:200]]
    listed = [{"format": "json-pages-1.0", "id": "pages", "title": "All Pages"}]
    listed += [{"id": str(number), "url": url, "ts": AT} for number, url in enumerate(pages)]
    members = {
        "archive/rec.warc.gz": warc,
        "indexes/index.cdx.gz": gzip.compress("".join(sorted(lines)).encode()),
        "indexes/index.idx": b'!meta 0 {"format": "cdxj-gzip-1.0"}\n',
        "pages/pages.jsonl": "".join(json.dumps(page) + "\n" for page in listed).encode(),
        "datapackage.json": b"{}",
    } | changes
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            if content is not None:
                file.writestr(zipfile.ZipInfo(name), content)
    return path
