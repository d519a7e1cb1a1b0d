"""Make the list of the pinned web from candidate repositories; README.md has the steps."""

import argparse
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path

import pandas as pd

from now_builder.formats.ink import is_blank
from now_builder.formats.io import read_lines
from now_builder.formats.shard import CaptureRow, stream_rows
from now_builder.formats.tables import read_frame, write_csv
from now_builder.pinned.git import Git
from now_builder.pinned.sites import Site, read_sites
from now_builder.program.progress import Progress
from recipes.pinned_web.look import FEWEST, Found, look
from recipes.pinned_web.personal import count_by_site, find, read_screens

MOST_BYTES = 60_000_000
MOST_OF_OWNER = 3
LISTED = 20
"""Maximum number of listed pages of a site, so that large blogs are not most of the web."""
_ALIKE, _ALIKE_PART = 0.3, 0.6
"""Minimum share of common descriptions of two equal sites: of all, and of the smaller site's."""
_LEFT_OUT = Path(__file__).with_name("left-out.sha256")


def main(arguments: Sequence[str] | None = None) -> None:
    """Inspect the mirrors of the candidates, apply the filters, write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("candidates", type=Path, help="CSV with a column repository: owner/name")
    parser.add_argument("mirrors", type=Path, help="folder of bare repositories owner+name")
    parser.add_argument("out", type=Path, help="folder: found.jsonl, sites.csv, verdicts.csv")
    text = "file of SHA-256 of lower-cased owner/name or owner, one per line"
    parser.add_argument("--leave-out", type=Path, action="append", default=[_LEFT_OUT], help=text)
    text = "crawl of the list, to leave out useless screens and unchecked personal data"
    parser.add_argument("--captures", type=Path, help=text)
    options = parser.parse_args(arguments)
    hashes = {
        line[:64] for file in options.leave_out for line in read_lines(file, "file not found")
    }
    options.out.mkdir(parents=True, exist_ok=True)
    verdicts = dict.fromkeys(read_frame(options.candidates)["repository"], "no mirror")
    verdicts |= {name: "left out" for name in verdicts if is_left_out(name, hashes)}
    names = [name for name, verdict in verdicts.items() if verdict == "no mirror"]
    repositories = look_at_all(names, options.mirrors, options.out / "found.jsonl")
    verdicts |= judge(repositories)
    sites = make_sites(one for one in repositories if verdicts[one.repository] == "accepted")
    if options.captures:
        hits = count_by_site(find(read_screens(options.captures)))
        seen = {host: f"personal data: {count} to look at" for host, count in hits.items()}
        seen |= look_at_screens(stream_rows(options.captures))
        verdicts |= {site.repository: seen[site.host] for site in sites if site.host in seen}
        sites = [site for site in sites if site.host not in seen]
    write_csv(options.out / "sites.csv", Site.__slots__, map(astuple, sites))
    table = pd.DataFrame(verdicts.items(), columns=["repository", "verdict"])
    table.to_csv(options.out / "verdicts.csv", index=False)
    print(table["verdict"].str.partition(":")[0].value_counts().to_string())
    read_sites(options.out / "sites.csv")


def is_left_out(name: str, hashes: Iterable[str]) -> bool:
    """Whether a repository or its owner is among the hashes."""
    names = (name.lower(), name.lower().partition("/")[0])
    return any(hashlib.sha256(one.encode()).hexdigest() in hashes for one in names)


def look_at_all(names: Sequence[str], mirrors: Path, record: Path) -> list[Found]:
    """Inspect the mirrors that are not in ``record`` yet; return the properties of all."""
    with record.open("a+b") as file:
        file.seek(0)
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):  # from an interrupted run
            file.truncate(file.tell() - len(lines.pop()))
    by_name = {one.repository: one for one in (Found(**json.loads(line)) for line in lines)}
    there = [name for name in names if (mirrors / name.replace("/", "+")).is_dir()]
    left = [name for name in there if name not in by_name]
    git = Git()
    with (
        Progress("candidates", len(there), "site", len(there) - len(left)) as progress,
        record.open("a", encoding="utf-8", buffering=1) as file,
    ):
        for name in left:
            by_name[name] = look(git, mirrors, name)
            file.write(json.dumps(asdict(by_name[name]), ensure_ascii=False) + "\n")
            progress.add()
    return [by_name[name] for name in names if name in by_name]


def judge(repositories: Iterable[Found]) -> dict[str, str]:
    """Return ``accepted`` or the reason against it by repository; keep the first of equal sites."""
    verdicts: dict[str, str] = {}
    kept: dict[str, set[str]] = {}
    owners = Counter[str]()
    for site in repositories:
        owner = site.repository.lower().partition("/")[0]
        why = _unfit(site) or _like_another({*site.captions}, kept)
        why = why or ("owner has three" if owners[owner] >= MOST_OF_OWNER else "")
        verdicts[site.repository] = why or "accepted"
        if not why:
            kept[site.repository] = {*site.captions}
            owners[owner] += 1
    return verdicts


def _unfit(site: Found) -> str:
    pages = site.pages
    described = pages - site.placeholders
    rules = {
        site.status: bool(site.status),
        f"descriptions: {described} pages": described < FEWEST,
        f"too large: {site.size / 1e6:.0f} MB": site.size > MOST_BYTES,
        f"saved from elsewhere: {site.saved} pages": site.saved > max(1, 0.1 * pages),
        f"gambling, adult or spam: {site.refused} pages": site.refused >= max(2, 0.08 * pages),
        f"template's own descriptions: {site.placeholders} pages": site.placeholders > 0.5 * pages,
        f"no text without scripts: {site.empty} pages": site.empty > 0.6 * pages,
        f"style sheets elsewhere: {site.bare} pages": site.bare > 0.5 * pages,
    }
    return next((why for why, holds in rules.items() if holds), "")


def _like_another(mine: set[str], kept: dict[str, set[str]]) -> str:
    for other, theirs in kept.items():
        both = len(mine & theirs)
        part = both >= _ALIKE_PART * min(len(mine), len(theirs)) and both > 1
        if both and (part or both >= _ALIKE * len(mine | theirs)):
            return f"like {other}: {both} of {len(mine)} descriptions"
    return ""


def look_at_screens(rows: Iterable[CaptureRow]) -> Mapping[str, str]:
    """Return the reason to leave a site out by host, if most of its first screens are useless.

    Pages may show nothing without files from other hosts; sites may refuse crawlers.
    """
    pages: dict[str, list[CaptureRow]] = defaultdict(list)
    for row in rows:
        pages[row.site] += [row] if row.status == "ok" else []
    why = {}
    for host, seen in pages.items():
        if not seen:
            why[host] = "no page could be captured"
            continue
        blank = sum(is_blank(row.ink_middle or 0.0) for row in seen)
        equal = Counter(row.sha256 for row in seen).most_common(1)[0][1]
        if blank > 0.5 * len(seen):
            why[host] = f"shows nothing: {blank} of {len(seen)} first screens"
        elif equal > max(1, 0.5 * len(seen)):
            why[host] = f"one picture: {equal} of {len(seen)} first screens"
    return why


def make_sites(repositories: Iterable[Found]) -> list[Site]:
    """Return the rows of the list, sorted by repository."""
    sites: dict[str, Site] = {}
    for one in sorted(repositories, key=lambda one: one.repository.lower()):
        host = host_of(one.repository)
        if host in sites:
            ending = hashlib.sha256(one.repository.encode()).hexdigest()[:4]
            host = host.replace(".", f"-{ending}.", 1)
        cells = {name: value for name, value in asdict(one).items() if name in Site.__slots__}
        sites[host] = Site(host=host, **cells | {"pages": min(one.pages, LISTED)})
    return list(sites.values())


def host_of(repository: str) -> str:
    """Return ``<name>.<owner>.test``."""
    owner, _, name = repository.lower().partition("/")
    name = re.sub(r"\.(github|gitee|gitlab)\.(io|com)$", "", name)
    words = (re.sub(r"[^a-z0-9]+", "-", one).strip("-")[:63].strip("-") for one in (name, owner))
    return ".".join([*(word or "x" for word in words), "test"])


if __name__ == "__main__":
    main()
