"""Make the pinned web: fetch each site at its commit, write its files, list its pages."""

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pandas as pd

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import (
    atomic_folder,
    lock_folder,
    read_lines,
    remove_leftovers,
    write_json,
    write_text,
)
from now_builder.formats.tables import read_frame
from now_builder.pinned.git import Git, SiteError, Source
from now_builder.pinned.layout import choose, list_pages, write
from now_builder.pinned.sites import LIST, MadeSite, Site, read_sites, write_sites
from now_builder.program.progress import Progress

_AT_ONCE = 4
_RECORDS = ".sites"  # Folder with a JSON file for each finished site

Made = tuple[MadeSite, list[str]]
"""A site's row and the URLs of its pages."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Part of a list.

    Attributes:
        sites: Number of sites, drawn at random; a larger draw contains a smaller one.
        only: Text file of the repositories to choose, one ``owner/name`` per line.
        languages: Languages of the sites, as in the list; empty: all.
        pages: Maximum number of pages per site, instead of the list's numbers.
        balanced: Whether to limit the largest kind of site in one language, such as Chinese blogs,
            to a third of the pages.
    """

    sites: int | None = None
    only: Path | None = None
    languages: Collection[str] = ()
    pages: int | None = None
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class PinnedSummary:
    """Counts of a pinned web."""

    web: Path
    pages: int
    statuses: dict[str, int]
    judged: int

    def __str__(self) -> str:
        sites = ", ".join(f"{number} {status}" for status, number in self.statuses.items())
        judged = f"{self.judged} of them judged" if self.judged else "none of them judged"
        return f"{self.web}: {self.pages} pages, {judged}; sites: {sites}"


def make(
    web: Path,
    listed: Path = LIST,
    choice: Choice = Choice(),
    source: Source = Source(),  # noqa: B008 - it is frozen
    *,
    force: bool = False,
) -> PinnedSummary:
    """Fetch the sites of a list; write ``WEB/<host>/``, ``urls.txt`` and, last, ``sites.csv``.

    Verdicts on listed pages are copied to ``WEB/judged.csv`` from the ``judged.csv`` next to the
    list, or else from the package's, for sites that its list has at the same commit.

    The row of a site that cannot be fetched has a status and a reason. A second call keeps finished
    sites and retries the others. The same list gives the same bytes.

    Args:
        web: Folder to write; nothing is written outside it.
        listed: The list; default: the package's.
        choice: Sites of the list to make, and number of pages.
        source: Origin of the repositories.
        force: Whether to fetch finished sites again.

    Raises:
        ConfigError: If ``web`` contains other files or the list, another command writes there, the
            mirrors' folder is missing, or the choice does not fit the list.
        FormatError: If the list, or the table of verdicts next to it, cannot be read.
    """
    if listed.resolve().parent == web.resolve():
        raise ConfigError(f"--list {listed}: in the folder to write. Copy it out of {web}")
    rows = _chosen(read_sites(listed), choice)
    judged = _read_judged(listed, rows)
    if source.mirrors is not None and not source.mirrors.is_dir():
        raise ConfigError(f"--from {source.mirrors}: folder not found")
    if web.is_dir() and any(web.iterdir()) and not (web / _RECORDS).is_dir():
        raise ConfigError(f"{web}: contains other files. Give a new folder or a pinned web")
    with lock_folder(web):
        return _make_web(web, rows, judged, source, force=force)


def _make_web(
    web: Path, rows: list[Site], judged: Any, source: Source, *, force: bool
) -> PinnedSummary:
    (web / _RECORDS).mkdir(exist_ok=True)
    (web / "sites.csv").unlink(missing_ok=True)
    remove_leftovers(web)
    remove_leftovers(web / _RECORDS)
    made = {site.host: one for site in rows if not force and (one := _done(web, site))}
    left = [site for site in rows if site.host not in made]
    made |= _make_all(web, left, source, len(rows))
    urls = [url for site in rows for url in made[site.host][1]]
    write_text(web / "urls.txt", "".join(f"{url}\n" for url in urls))
    (web / "judged.csv").unlink(missing_ok=True)
    verdicts: Any = () if judged is None else judged[judged["url"].isin(urls)]
    if judged is not None:
        write_text(web / "judged.csv", verdicts.to_csv(index=False))
    table = [made[site.host][0] for site in rows]
    write_sites(web / "sites.csv", table)
    statuses = Counter(row.status for row in table)
    return PinnedSummary(web, len(urls), dict(statuses.most_common()), len(verdicts))


def _read_judged(listed: Path, sites: Iterable[Site]) -> Any:
    """Read the table of verdicts; ``None`` if there are none on these sites."""
    path = listed.with_name("judged.csv")
    if not path.exists():
        packaged = {(site.host, *_identity(site)[:3]) for site in read_sites(LIST)}
        hosts = {site.host for site in sites if (site.host, *_identity(site)[:3]) in packaged}
        table = read_frame(LIST.with_name("judged.csv"))
        table = table[[urlsplit(url).netloc in hosts for url in table["url"]]]
        return None if table.empty else table
    table = read_frame(path)
    if "url" not in table.columns:
        raise FormatError(path, f"columns {[*table.columns]}, expected url among them")
    return table


def _chosen(rows: list[Site], choice: Choice) -> list[Site]:
    """Return the chosen sites, in the order of the list.

    Raises:
        ConfigError: If the list lacks a chosen repository or language.
    """
    only: set[str] = set()
    if choice.only is not None:
        lines = read_lines(choice.only, "file not found; expected a repository a line")
        only = {line.strip() for line in lines} - {""}
    for option, names, listed in (
        (f"--only {choice.only}", only, {site.repository for site in rows}),
        ("--languages", choice.languages, {site.language for site in rows}),
    ):
        if absent := sorted({*names} - listed):
            raise ConfigError(f"{option}: no site of the list is {', '.join(absent[:3])}")
    if choice.only is not None:
        rows = [site for site in rows if site.repository in only]
    if choice.languages:
        rows = [site for site in rows if site.language in choice.languages]
    drawn = sorted(rows, key=lambda site: hashlib.sha256(site.host.encode()).digest())
    kept = set((_balanced(drawn) if choice.balanced else drawn)[: choice.sites])
    return [replace(site, pages=choice.pages or site.pages) for site in rows if site in kept]


def _balanced(sites: list[Site]) -> list[Site]:
    """Limit the largest kind of site in a language to a third of the pages."""
    table = pd.DataFrame(sites)
    group = table["language"].str.partition("-")[0] + " " + table["kind"]
    pages = table["pages"].groupby(group).sum()
    largest = group == pages.idxmax()
    room = (pages.sum() - pages.max()) // 2
    keeps = ~largest | (table["pages"].where(largest, 0).cumsum() <= room)
    return [site for site, keep in zip(sites, keeps, strict=True) if keep]


def _make_all(web: Path, sites: Sequence[Site], source: Source, total: int) -> dict[str, Made]:
    """Make several sites at once; an interrupt also stops git."""
    git = Git()
    made = {}
    with (
        Progress("pinned web", total, "site", total - len(sites)) as progress,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        try:
            left = {pool.submit(_make, web, site, source, git) for site in sites}
            while left:  # the timeout lets Python handle a signal that arrives before the wait
                done, left = wait(left, 1.0, FIRST_COMPLETED)
                for row, urls in (future.result() for future in done):
                    made[row.host] = row, urls
                    progress.add()
        finally:
            git.stop()
            pool.shutdown(cancel_futures=True)
    return made


def _make(web: Path, site: Site, source: Source, git: Git) -> Made:
    """Make a site, and record it if it is ``ok``."""
    home, record = web / site.host, _record(web, site)
    record.unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    try:
        with git.repository(site, source, web) as repository, atomic_folder(home) as folder:
            chosen = choose(git, repository, git.files(repository, site), source.size)
            write(git, repository, chosen, folder)
            paths = list_pages(folder, site.repository.partition("/")[2], site.pages)
    except SiteError as error:
        row = MadeSite(**asdict(site) | {"pages": 0, "size": 0})
        return replace(row, status=error.status, reason=error.reason), []
    about = {"size": chosen.size, "reason": chosen.left_out(), "paths": paths}
    write_json(record, {"of": _identity(site), **about})
    return _made(site, about)


def _done(web: Path, site: Site) -> Made | None:
    """Return the record of a finished site, unless its row in the list has changed."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads(_record(web, site).read_bytes())
        if about["of"] == _identity(site) and (web / site.host).is_dir():
            return _made(site, about)
    return None


def _made(site: Site, about: Mapping[str, Any]) -> Made:
    urls = [f"http://{site.host}{path}" for path in about["paths"]]
    row = MadeSite(**asdict(site) | {"pages": len(urls), "size": about["size"]})
    return replace(row, reason=about["reason"]), urls


def _record(web: Path, site: Site) -> Path:
    return web / _RECORDS / f"{site.host}.json"


def _identity(site: Site) -> list[Any]:
    return [site.repository, site.commit, site.folder, site.pages]
