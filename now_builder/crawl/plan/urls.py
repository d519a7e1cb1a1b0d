"""Read lists of URLs, and plan them: the shard and key of each, assigned once."""

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import ceil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import decode_text
from now_builder.formats.shard import Planned
from now_builder.formats.tables import plain_names, read_records
from now_builder.urls import canonical, site_of

_NOTE = re.compile(r"\t|\s#")
"""End of the URL on a line of a text list; a fragment follows its URL without a space."""

_SMALLEST_SHARD = 16
_MOST_SHARDS = 100_000
"""As many as the five digits of a key can number."""

_SHARDS_OF_A_SHORT_LIST = 8


_EXPECTED = "one URL a line, or CSV or Parquet with a column url"

_LABEL = r"[^\s/?#\\:@,;|\"'<>(){}\[\].]"
_HOST = rf"({_LABEL}+\.)+[^\W\d_]{_LABEL}*\.?|\d+(\.\d+){{3}}|localhost|\[[\da-f.]*:[\da-f:.]*\]"
_LOOKS_LIKE_URL = re.compile(rf"https?:|(//|\\\\)?({_HOST})(:\d+)?([/?#\\]|$)", re.IGNORECASE)
"""A scheme that can be visited, or a host: a name with a dot or an address."""

_RANKED = re.compile(rf"\d+[,;\t ]\s*{_HOST}", re.IGNORECASE)
_FIRST, _NEARLY_ALL = 10, 0.9


def read_urls(path: Path) -> list[str]:
    """Read a list of URLs: text, or CSV or Parquet with ``url``.

    A line of text is a URL, which a tab or a ``#`` after white space ends; a line that begins with
    ``#`` is a comment. A line that is no URL is listed too, to become a row, unless the whole file
    is something else.

    Raises:
        FormatError: If the file is missing, unreadable, has no column ``url``, lists nothing, or
            none of the first ten lines, or hardly one of all, looks like a URL.
    """
    try:
        if path.suffix.lower() == ".parquet":
            listed, unit = _from_parquet(path, path), "row"
        else:
            content, unit = path.read_bytes(), "line"
            if content.startswith(b"PAR1"):
                listed, unit = _from_parquet(path, io.BytesIO(content)), "row"
            elif path.suffix.lower() == ".csv":
                listed = list(_from_csv(path, content))
            else:
                listed = list(_from_text(path, content))
    except FileNotFoundError:
        raise FormatError(path, "no such list of URLs") from None
    except (ValueError, OverflowError, OSError, pa.ArrowException) as error:
        raise FormatError(path, f"not a readable list of URLs ({error})") from None
    if not listed:
        raise FormatError(path, "found no URL, expected at least one")
    _check_kind(path, unit, listed)
    return [url for _, url in listed]


def _from_text(path: Path, content: bytes) -> Iterator[tuple[int, str]]:
    lines = io.StringIO(decode_text(path, content, _EXPECTED), newline=None)
    for number, line in enumerate(lines, 1):
        names = re.split(r"[,;]", line.replace('"', "")) if number == 1 else ()
        if len(names) > 1 and "url" in plain_names(names):
            raise FormatError(path, "line 1: found the header of a CSV; name the file .csv")
        url = _NOTE.split(line.strip(), maxsplit=1)[0].strip()
        if url and url[0] != "#":
            yield number, url


def _from_csv(path: Path, content: bytes) -> Iterator[tuple[int, str]]:
    records = read_records(path, content)
    place = _place_of_url(path, next(records)[1])
    for line, cells in records:
        if url := "".join(cells[place : place + 1]).strip():
            yield line, url


def _from_parquet(path: Path, file: Path | io.BytesIO) -> list[tuple[int, str]]:
    with pq.ParquetFile(file) as table:
        names = table.schema_arrow.names
        name = names[_place_of_url(path, names)]
        column = table.read(columns=[name])[name].to_pylist()
    texts = [value.decode() if isinstance(value, bytes) else str(value or "") for value in column]
    return [(row, url) for row, text in enumerate(texts, 1) if (url := text.strip())]


def _place_of_url(path: Path, names: Sequence[str]) -> int:
    plain = plain_names(names)
    if plain.count("url") == 1:
        return plain.index("url")
    mend = ""
    if any(_LOOKS_LIKE_URL.match(name) for name in plain):
        mend = "; the first line is to name the columns"
    raise FormatError(path, f"found columns {names!s:.200}, expected one url among them{mend}")


def _check_kind(path: Path, unit: str, listed: Sequence[tuple[int, str]]) -> None:
    """Refuse a file that is no list of URLs; single lines that are no URLs become rows."""
    strange = [at for at, (_, url) in enumerate(listed) if not _LOOKS_LIKE_URL.match(url)]
    first = len(listed) >= _FIRST and strange[:_FIRST] == list(range(_FIRST))
    if not first and len(strange) < _NEARLY_ALL * len(listed):
        return
    number, url = listed[strange[0]]
    problem = f"{unit} {number}: found {url!r:.80}, expected {_EXPECTED}"
    problem += f"; {len(strange)} of {len(listed)} {unit}s are no URLs"
    if _RANKED.match(url):
        problem += "; a rank before a domain is left out by cut -d, -f2"
    raise FormatError(path, problem)


def read_hosts(path: Path) -> frozenset[str]:
    """Read a list of hosts, one a line, ``#`` before comments; addresses and URLs are hosts, too.

    Raises:
        FormatError: If there is no such file, or a line names no host.
    """
    try:
        text = decode_text(path, path.read_bytes(), "one host a line")
    except OSError as error:
        raise FormatError(path, f"no such list of hosts ({error})") from None
    hosts = set()
    for number, line in enumerate(io.StringIO(text, newline=None), 1):
        name = line.partition("#")[0].strip().removeprefix("*.")
        if not name:
            continue
        host = site_of(canonical(name) or "")
        if not host:
            raise FormatError(path, f"line {number}: found {name!r}, expected a host")
        hosts.add(host.rstrip("."))
    return frozenset(hosts)


def extend_plan(plan: Sequence[Planned], urls: Iterable[str], shard_size: int) -> list[Planned]:
    """Add the new URLs of a list to a plan, in new shards; planned lines stay.

    A shard is a part of a host-hash bucket, so that a site is in few shards. A URL that is listed
    twice is planned twice: every URL in, one row out. The shards of a short list are smaller than
    ``shard_size``.

    Raises:
        ConfigError: If that would be more shards than keys can name.
    """
    have = Counter(line.url for line in plan)
    new = []
    for url in urls:
        if have[url]:
            have[url] -= 1
        else:
            new.append(url)
    size = min(shard_size, max(_SMALLEST_SHARD, ceil(len(new) / _SHARDS_OF_A_SHORT_LIST)))
    buckets: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
    for url in new:
        visited = canonical(url) or url
        site = site_of(visited)
        number = int.from_bytes(hashlib.sha256(site.encode()).digest()[:8], "big")
        buckets[number % ceil(len(new) / size)].append((url, visited, site))
    shard = max((line.shard for line in plan), default=-1) + 1
    extended = list(plan)
    for _, lines in sorted(buckets.items()):
        for start in range(0, len(lines), size):
            extended += [
                Planned(f"{shard:05d}_{place:04d}", shard, url, visited, site)
                for place, (url, visited, site) in enumerate(lines[start : start + size])
            ]
            shard += 1
    if shard > _MOST_SHARDS:
        raise ConfigError(
            f"--shard-size {shard_size}: {len(extended)} URLs would be {shard} shards, expected at "
            f"most {_MOST_SHARDS}; take larger shards, or several folders"
        )
    return extended
