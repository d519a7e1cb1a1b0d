"""Choose the files of a site from a commit, write them and list its pages."""

import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from now_builder.crawl.caption.describe import describe
from now_builder.pinned.git import Entry, Git, SiteError

MOST_BYTES = 2**22
"""Minimum size in bytes of files that are left out, such as videos, which mirrors often lack."""

_LINK, _SUBMODULE = "120000", "160000"
_HOPS = 8
_LFS = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST_NAME, _LONGEST_PATH = 255, 2048
_PAGE = re.compile(r"(?!(?:.*/)?[._])(?!(?:.*/)?404(?:\.html?$|/)).*\.html?", re.IGNORECASE)
"""HTML files except hidden ones, sources (``_``) and the page for errors (404)."""
_REFRESH = re.compile(rb"<meta[^>]{1,200}http-equiv\s*=\s*[\"']?refresh", re.IGNORECASE)
_UNREAD = re.compile(rb"<!--.*?-->|<noscript\b.*?</noscript>", re.IGNORECASE | re.DOTALL)
"""Parts that browsers with scripts ignore, such as a refresh for old browsers."""

_BLANKS = b"\xef\xbb\xbf \t\r\n"


@dataclass(slots=True)
class Chosen:
    """Files to write.

    Attributes:
        objects: Names of git objects by path.
        size: Total size in bytes.
        skipped: Number of files left out by reason.
    """

    objects: dict[str, str] = field(default_factory=dict)
    size: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def left_out(self) -> str:
        """Describe the files left out, as ``reason`` of an ``ok`` site."""
        counts = ", ".join(f"{reason} {number}" for reason, number in sorted(self.skipped.items()))
        return f"left out: {counts}" if counts else ""


def choose(git: Git, repository: Path, files: Mapping[bytes, Entry], most: int) -> Chosen:
    """Choose the files that the repository contains and every file system supports.

    A link to a file in the folder becomes a copy of it. Of names that differ only in case or
    Unicode normalisation one is kept, preferably in lower case.

    Raises:
        SiteError: If their size is above ``most``.
    """
    links = {path: entry.name for path, entry in files.items()
             if entry.mode == _LINK and (entry.size or _LONGEST_PATH) < _LONGEST_PATH}  # fmt: skip
    targets = dict(zip(links, git.contents(repository, list(links.values())), strict=True))
    chosen = Chosen()
    taken: dict[str, bool] = {}  # by folded path, whether it is a folder
    for path, entry in sorted(files.items(), key=lambda item: item[0].swapcase()):
        file = _followed(path, files, targets) if entry.mode == _LINK else entry
        name = _plain(path)
        if entry.mode == _SUBMODULE:
            chosen.skipped["submodules"] += 1
        elif file is None:
            chosen.skipped["links to no file of the folder"] += 1
        elif name is None:
            chosen.skipped["odd file names"] += 1
        elif file.size is None or file.size >= MOST_BYTES:
            chosen.skipped["files of 4 MiB and more"] += 1
        elif not _take(name, taken):
            chosen.skipped["names that differ by case alone"] += 1
        else:
            chosen.objects[name] = file.name
            chosen.size += file.size
    if chosen.size > most:
        raise SiteError("too_large", f"{chosen.size / 1e6:.1f} MB, at most {most / 1e6:.1f} MB")
    return chosen


def write(git: Git, repository: Path, chosen: Chosen, folder: Path) -> None:
    """Write the chosen files, except pointers of Git LFS."""
    contents = git.contents(repository, list(chosen.objects.values()))
    for name, content in zip(chosen.objects, contents, strict=True):
        if content.startswith(_LFS) and len(content) < 1024:
            chosen.skipped["pointers of Git LFS"] += 1
            chosen.size -= len(content)
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def list_pages(folder: Path, project: str, most: int) -> list[str]:
    """Return URL paths of a site's pages with ``<meta name="description">``.

    The index comes first, then the others by path. If there are more than ``most``, pages that
    repeat a description are left out first. If a page links to files under the project's name, as
    on GitHub Pages, all paths get it as a prefix.

    Raises:
        SiteError: If there is no such page.
    """
    first: list[str] = []
    again: list[str] = []
    captions = set()
    below = re.compile(
        rb"(?:href|src)\s*=\s*[\"']?/%b/" % re.escape(project.encode()), re.IGNORECASE
    )
    prefix = ""
    for name in _pages(folder):
        if len(first) == most:
            break
        content = (folder / name).read_bytes()
        if _REFRESH.search(_UNREAD.sub(b"", content)) or content.lstrip(_BLANKS).startswith(b"---"):
            continue  # a redirect, or a source file with front matter
        page = describe(content, "text/html")
        if "name" in page.candidates:
            (again if page.caption in captions else first).append(name)
            captions.add(page.caption)
            if below.search(content) and not (folder / project).exists():
                prefix = f"/{project}"
    if not captions:
        raise SiteError("no_pages", "no HTML page has a meta description")
    return [quote(prefix + _path_of(name)) for name in sorted((first + again)[:most], key=_order)]


def _pages(folder: Path) -> list[str]:
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(filter(_PAGE.fullmatch, names), key=_order)


def _order(name: str) -> tuple[bool, str]:
    return name not in {"index.html", "index.htm"}, name


def _path_of(name: str) -> str:
    """Return the path of a page's URL; an index has the path of its folder."""
    folder, _, last = name.rpartition("/")
    return f"/{folder}/".replace("//", "/") if last == "index.html" else f"/{name}"


def _followed(
    path: bytes, files: Mapping[bytes, Entry], targets: Mapping[bytes, bytes]
) -> Entry | None:
    """Return the file in the folder to which a link leads, if any."""
    for _ in range(_HOPS):
        target = targets.get(path)
        if not target:
            return None
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        entry = files.get(path)
        if entry is None or entry.mode != _LINK:
            return None if entry is None or entry.mode == _SUBMODULE else entry
    return None


def _plain(path: bytes) -> str | None:
    """Return a path as text; ``None`` if it is not valid in every file system and in URLs."""
    try:
        name = path.decode()
    except UnicodeDecodeError:
        return None
    parts = path.split(b"/")
    longest = max(map(len, parts))
    if len(path) > _LONGEST_PATH or longest > _LONGEST_NAME or "\\" in name:
        return None
    if any(unicodedata.category(sign) in {"Cc", "Zl", "Zp"} for sign in name):
        return None
    return None if any(part.lower() in {b"", b".", b"..", b".git"} for part in parts) else name


def _take(name: str, taken: dict[str, bool]) -> bool:
    """Record a file and its folders; return ``False`` if they conflict with recorded ones."""
    folded = unicodedata.normalize("NFC", name.lower())
    parents = [folded[: at.start()] for at in re.finditer("/", folded)]
    if folded in taken or not all(taken.get(parent, True) for parent in parents):
        return False
    taken |= dict.fromkeys(parents, True) | {folded: False}
    return True
