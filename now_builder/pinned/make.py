"""Make the pinned web: fetch each site at its commit, lay it out, list its pages."""

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
_RECORDS = ".sites"
"""Folder of a JSON for each site that is done."""

Made = tuple[MadeSite, list[str]]
"""A site's row and the URLs of its pages."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Part of a list.

    Attributes:
        sites: Number of sites, drawn evenly from those chosen; a larger number adds to a smaller.
        only: Text file of repositories, ``owner/name`` a line; others are left out.
        languages: Languages of the sites, as the list names them; all if there is none.
        pages: Pages of each site at most, in place of the list's numbers.
    """

    sites: int | None = None
    only: Path | None = None
    languages: Collection[str] = ()
    pages: int | None = None


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

    If ``judged.csv`` lies beside the list, its verdicts on listed pages go to ``WEB/judged.csv``;
    if none does, those of the package on the sites that its own list has at the same commit.

    A site that cannot be had is a row with its status and reason. Sites that are done are kept;
    those that could not be had are tried again. The same list gives the same bytes.

    Args:
        web: Folder to write; nothing outside it is written.
        listed: The list, by default that of the package.
        choice: Which sites of the list, and how many pages of each.
        source: Where the repositories come from.
        force: Whether sites that are done are fetched again.

    Raises:
        ConfigError: If ``web`` holds other files or the list, another command is writing in it, or
            ``source`` has no folder, or no site is chosen.
        FormatError: If the list, or the table of verdicts beside it, cannot be read.
    """
    if listed.resolve().parent == web.resolve():
        raise ConfigError(f"--list {listed}: lies in the folder to write; copy it out of {web}")
    rows = _chosen(read_sites(listed), choice)
    judged = _read_judged(listed, rows)
    if source.mirrors is not None and not source.mirrors.is_dir():
        raise ConfigError(f"--from {source.mirrors}: no such folder")
    if web.is_dir() and any(web.iterdir()) and not (web / _RECORDS).is_dir():
        raise ConfigError(f"{web}: holds other files; expected a new folder or a pinned web")
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
    own: Any = () if judged is None else judged[judged["url"].isin(urls)]
    if judged is not None:
        write_text(web / "judged.csv", own.to_csv(index=False))
    table = [made[site.host][0] for site in rows]
    write_sites(web / "sites.csv", table)
    statuses = Counter(row.status for row in table)
    return PinnedSummary(web, len(urls), dict(statuses.most_common()), len(own))


def _read_judged(listed: Path, sites: Iterable[Site]) -> Any:
    """Read the verdicts on pages by URL; ``None`` if there are none on these sites."""
    path = listed.with_name("judged.csv")
    if not path.exists():
        own = {(site.host, *_identity(site)[:3]) for site in read_sites(LIST)}
        hosts = {site.host for site in sites if (site.host, *_identity(site)[:3]) in own}
        table = read_frame(LIST.with_name("judged.csv"))
        table = table[[urlsplit(url).netloc in hosts for url in table["url"]]]
        return None if table.empty else table
    table = read_frame(path)
    if "url" not in table.columns:
        raise FormatError(path, f"columns {[*table.columns]}, expected url among them")
    return table


def _chosen(rows: list[Site], choice: Choice) -> list[Site]:
    """Return the chosen sites in the list's order.

    Raises:
        ConfigError: If the list has none of a repository or language that was asked for.
    """
    only: set[str] = set()
    if choice.only is not None:
        lines = read_lines(choice.only, "no such file; expected a repository a line")
        only = {line.strip() for line in lines} - {""}
    for option, asked, listed in (
        (f"--only {choice.only}", only, {site.repository for site in rows}),
        ("--languages", choice.languages, {site.language for site in rows}),
    ):
        if absent := sorted({*asked} - listed):
            raise ConfigError(f"{option}: no site of the list is {', '.join(absent[:3])}")
    if choice.only is not None:
        rows = [site for site in rows if site.repository in only]
    if choice.languages:
        rows = [site for site in rows if site.language in choice.languages]
    hashes = {site: hashlib.sha256(site.host.encode()).digest() for site in rows}
    drawn = set(sorted(rows, key=hashes.__getitem__)[: choice.sites])
    return [replace(site, pages=choice.pages or site.pages) for site in rows if site in drawn]


def _make_all(web: Path, sites: Sequence[Site], source: Source, total: int) -> dict[str, Made]:
    """Make several sites at once; a stop ends what runs."""
    git = Git()
    made = {}
    with (
        Progress("pinned web", total, "site", total - len(sites)) as progress,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        try:
            left = {pool.submit(_make, web, site, source, git) for site in sites}
            while left:  # a wait without end can miss a signal that comes just before it
                done, left = wait(left, 1.0, FIRST_COMPLETED)
                for row, urls in (future.result() for future in done):
                    made[row.host] = row, urls
                    progress.add()
        finally:
            git.stop()
            pool.shutdown(cancel_futures=True)
    return made


def _make(web: Path, site: Site, source: Source, git: Git) -> Made:
    """Make one site; a record is left of one that is ``ok``."""
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
    """Return what was made of a site before, if it is still listed so."""
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
