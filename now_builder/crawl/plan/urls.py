"""Read lists of URLs, and plan them: the shard and key of each, assigned once."""

import csv
import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.shard import Planned
from now_builder.urls import canonical, site_of

_NOTE = re.compile(r"\t|\s#")
"""What ends the URL on a line of a text list; a fragment follows its URL without a space."""

_SMALLEST_SHARD = 16
_MOST_SHARDS = 100_000
"""As many as the five digits of a key can number."""

_SHARDS_OF_A_SHORT_LIST = 8


def read_urls(path: Path) -> list[str]:
    """Read a list of URLs: text, or CSV or Parquet with ``url``.

    A line of text is a URL, which a tab or a ``#`` after white space ends; a ``#`` at the start of
    a line makes it a comment.

    Raises:
        FormatError: If the file is missing, unreadable, has no column ``url``, or lists nothing.
    """
    try:
        if path.suffix.lower() == ".parquet":
            urls = _from_parquet(path)
        else:
            lines = io.StringIO(path.read_text(encoding="utf-8-sig"))
            if path.suffix.lower() == ".csv":
                urls = _from_csv(path, lines)
            else:
                listed = (_NOTE.split(line.strip(), maxsplit=1)[0].strip() for line in lines)
                urls = [url for url in listed if url and url[0] != "#"]
    except FileNotFoundError:
        raise FormatError(path, "no such list of URLs") from None
    except (ValueError, OverflowError, OSError, pa.ArrowException, csv.Error) as error:
        raise FormatError(path, f"not a readable list of URLs ({error})") from None
    if not urls:
        raise FormatError(path, "found no URL, expected at least one")
    return urls


def _from_csv(path: Path, lines: Iterable[str]) -> list[str]:
    reader = csv.DictReader(lines)
    if "url" not in (reader.fieldnames or ()):
        raise FormatError(path, f"found columns {list(reader.fieldnames or ())}, expected url")
    return [url for row in reader if (url := (row["url"] or "").strip())]


def _from_parquet(path: Path) -> list[str]:
    names = pq.read_schema(path).names
    if "url" not in names:
        raise FormatError(path, f"found columns {names}, expected url")
    column = pq.read_table(path, columns=["url"])["url"].to_pylist()
    values = (value for value in column if value is not None)
    texts = (value.decode() if isinstance(value, bytes) else str(value) for value in values)
    return [url for text in texts if (url := text.strip())]


def read_hosts(path: Path) -> frozenset[str]:
    """Read a list of hosts, one a line, ``#`` before comments; addresses and URLs are hosts, too.

    Raises:
        FormatError: If there is no such file, or a line names no host.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, f"no such list of hosts ({error})") from None
    hosts = set()
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip().removeprefix("*.")
        if not name:
            continue
        host = site_of(canonical(name) or "")
        if not host:
            raise FormatError(path, f"line {number}: found {name!r}, expected a host")
        hosts.add(host.rstrip("."))
    return frozenset(hosts)


def extend_plan(plan: Sequence[Planned], urls: Iterable[str], shard_size: int) -> list[Planned]:
    """Add what a list has and the plan has not, in new shards; what is planned stays as it is.

    A shard is a part of a host-hash bucket, so that a site is in few shards. A line that is listed
    twice is planned twice: every URL in, one row out. A short list gets shards that are smaller
    than ``shard_size``.

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
