"""The site as a static folder."""

from collections.abc import Iterable
from pathlib import Path

from leaderboard.site.environment import GENERATOR
from leaderboard.site.pages import Site
from leaderboard.store.dataset import DatasetReport
from leaderboard.store.entries import Entry
from now_builder.errors import ConfigError
from now_builder.formats.io import remove_leftovers, replacing_folder

_SPACE = """---
title: Noise of Web leaderboard
emoji: 📊
colorFrom: blue
colorTo: gray
sdk: static
app_file: index.html
pinned: false
---

Written by `now-leaderboard export-site --space`. Open the app: index.html.
"""


def export_site(
    folder: Path,
    entries: Iterable[Entry],
    reports: Iterable[DatasetReport] = (),
    *,
    space: bool = False,
) -> int:
    """Write the site as a static folder; an old one is replaced atomically.

    With ``space`` it has the ``README.md`` that makes a static Space of it on the Hugging Face hub.

    Returns:
        The number of files.

    Raises:
        ConfigError: If ``folder`` exists and was not written by this function.
    """
    remove_leftovers(folder.parent, folder.name)  # puts back what a kill took away
    _check_replaceable(folder)
    site = Site(entries, reports=reports)
    paths = site.paths()
    with replacing_folder(folder) as fresh:
        for name in paths:
            page = site.get(name)
            if page is None:
                raise ValueError(f"{name}: named by the site, but not there")
            path = fresh / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(page[0], encoding="utf-8", newline="")
        if space:
            (fresh / "README.md").write_text(_SPACE, encoding="utf-8")
    return len(paths) + space


def _check_replaceable(site: Path) -> None:
    index = site / "index.html"
    if not site.exists() or (site.is_dir() and not any(site.iterdir())):
        return
    mark = f'<meta name="generator" content="{GENERATOR}">'
    if not index.is_file() or mark not in index.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"{site}: found files that export-site did not write, expected a new or empty folder,"
            " or an earlier site: all in it is replaced"
        )
