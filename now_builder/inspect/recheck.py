"""An independent second reader: the captions of a crawl against what BeautifulSoup finds."""

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.shard import (
    CaptureRow,
    complete_shards,
    members_path,
    plan_path,
    read_captures,
    read_rows,
    torn,
)
from now_builder.formats.text import clean, is_placeholder
from now_builder.inspect.pairs import draw_order
from now_builder.program.progress import watched

_INERT = frozenset(
    {"noscript", "template", "textarea", "title", "iframe", "noembed", "noframes", "xmp", "style",
     "script", "plaintext"}
)  # fmt: skip
"""Elements whose content a browser that runs scripts does not parse."""

_CODECS = {
    "big5": "big5hkscs", "euc-kr": "cp949", "gbk": "gb18030", "iso-8859-8-i": "iso8859_8",
    "shift_jis": "cp932", "windows-874": "cp874", "x-mac-cyrillic": "mac_cyrillic",
}  # fmt: skip
"""Python's names of the encodings that the web calls otherwise."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A page whose stored caption is not what BeautifulSoup reads.

    Attributes:
        stored: Caption of the row, if it comes from ``<meta name=description>``.
        reread: Caption that BeautifulSoup finds there; ``None`` if it finds none.
    """

    key: str
    url: str
    stored: str | None
    reread: str | None

    def __str__(self) -> str:
        return f"{self.key} {self.url}\n  stored: {self.stored!r}\n  reread: {self.reread!r}"


@dataclass(frozen=True, slots=True)
class Recheck:
    """Number of pages read again, and those on which the two readers disagree."""

    pages: int
    disagreements: list[Disagreement]


def recheck(captures: Path, sample: int | None = None, seed: int = 0) -> Recheck:
    """Read the stored sources of a crawl again and compare their descriptions with the captions.

    Compared is the first ``<meta name=description>`` that is neither empty nor a placeholder, else
    the first placeholder. A caption from another source (``og``, scripts …) counts as none, so that
    BeautifulSoup must find none either, but for placeholders. Pages are drawn at random if
    ``sample`` is their number; otherwise all are read.

    Raises:
        FormatError: If the captures are missing or torn, or are not captures.
        ConfigError: If beautifulsoup4 is not installed.

    Differs:
        BeautifulSoup with Python's ``html.parser`` follows no HTML standard: on broken markup and
        undecodable bytes the two readers may disagree although the caption is right.
    """
    if not plan_path(captures).exists():
        raise FormatError(captures, "no plan.parquet in it: --recheck takes a folder made by crawl")
    import bs4  # noqa: F401 - before anything is read

    shards = complete_shards(captures)
    rows = (row for shard in shards for row in read_rows(captures, shard))
    keys: Iterable[str] = (row.key for row in rows if row.status == "ok")
    if sample is not None:
        keys = nsmallest(sample, keys, key=lambda key: draw_order(seed, key))
    chosen = frozenset(keys)
    found = []
    pages = _sources(captures, chosen)
    for row, source in watched(pages, "recheck", total=len(chosen)):
        stored = row.caption if row.caption_source == "name" else None
        texts = descriptions(source, charset=row.charset)
        worded = [text for text in texts if not is_placeholder(text)]
        reread = next(iter(worded or (texts if stored else ())), None)
        if stored != reread:
            found.append(Disagreement(row.key, row.url, stored, reread))
    return Recheck(len(chosen), found)


def descriptions(
    source: bytes | str, *, charset: str | None = None, parser: str = "html.parser"
) -> list[str]:
    """Read every ``<meta name=description>`` of a page that is not empty, none twice.

    Without the encoding of the bytes, or if they are not in it, BeautifulSoup guesses.
    """
    import bs4

    encoding = _CODECS.get(charset, charset) if charset and isinstance(source, bytes) else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its advice on XML and on what looks like a file name
        # Of an attribute that is there twice the first counts; lxml knows no other way.
        first: dict[str, Any] = (
            {"on_duplicate_attribute": "ignore"} if parser == "html.parser" else {}
        )
        soup = bs4.BeautifulSoup(source, parser, from_encoding=encoding, **first)
    found = [
        clean(str(meta.get("content", "")))
        for meta in soup.find_all("meta")
        if str(meta.get("name", "")).strip().lower() == "description"
        and not any(parent.name in _INERT for parent in meta.parents)
    ]
    return list(dict.fromkeys(filter(None, found)))


def _sources(captures: Path, chosen: frozenset[str]) -> Iterator[tuple[CaptureRow, bytes]]:
    for shard in complete_shards(captures):
        rows = {row.key: row for row in read_rows(captures, shard)}
        wanted = {key for key in rows if key in chosen}
        if not wanted:
            continue
        for capture in read_captures(captures, frozenset(rows.keys() - wanted), [shard]):
            if capture.key in wanted:
                wanted.remove(capture.key)
                yield rows[capture.key], capture.html
        if wanted:
            path = members_path(captures, shard)
            raise torn(path, f"page {min(wanted)}: not in it, though its row is ok")
