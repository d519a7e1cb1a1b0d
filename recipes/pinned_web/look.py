"""Inspect a repository: its served folder, pages, language, kind and licence."""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from now_builder.crawl.caption.charset import decode
from now_builder.crawl.caption.describe import Description, describe
from now_builder.crawl.caption.language import UNDECIDED, detect_language
from now_builder.formats.text import is_placeholder
from now_builder.pinned.git import Git, SiteError, Source
from now_builder.pinned.layout import choose, list_pages, write
from now_builder.pinned.sites import MOST_PAGES, Site

WORDS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
FEWEST = 3
"""Minimum number of a site's pages with a description."""
_READ = 1000
"""Maximum number of HTML files to read in a folder, the shallowest first."""
_SAVED = re.compile(
    r"mirrored from .{0,300}httrack|<!-- saved from url=|website copier|web\.archive\.org/web/\d"
    r"|data-savepage|singlefile",
    re.IGNORECASE | re.DOTALL,
)
"""Marks of pages saved from another site, near their beginning or end."""
_ENDS, _LONGEST = 3000, 400_000
_UNSEEN = (("<!--", "-->"), *((rf"<{name}(?=[\s>])", rf"</{name}\s*>")
           for name in ("head", "script", "style", "svg", "pre", "code")))  # fmt: skip
"""Beginnings and ends of parts that are not text."""
_LINK, _BASE = (re.compile(rf"<{name}\b[^>]*>", re.IGNORECASE) for name in ("link", "base"))
_SHEET = re.compile(r"\brel\s*=\s*[\"']?stylesheet\b", re.IGNORECASE)
_HREF = re.compile(r"\bhref\s*=\s*[\"']?([^\"'\s>]+)", re.IGNORECASE)
_STYLE = re.compile(r"<style\b[^>]*>(.*?)</style", re.IGNORECASE | re.DOTALL)
_STYLED = 1000
"""Minimum characters of a page's inline style sheets, to need no linked ones."""
_HERE = "here.test"
_TRADITIONAL = "們這個說會來時國學對發開關實體應點還"
_SIMPLIFIED = "们这个说会来时国学对发开关实体应点还"
_NONE = (UNDECIDED, "la")  # lorem ipsum
_FEWEST_WORDS = 25
_START = 400
"""Number of characters of a page's text for language detection."""


@dataclass(slots=True)
class Page:
    """A page that ``pinned make`` would list; ``bare``: without its style sheets."""

    name: str
    about: Description
    source: str
    text: str
    bare: bool

    @property
    def words(self) -> str:
        """Return its title and description."""
        return f"{self.about.title or ''}. {self.about.caption}"


@dataclass(slots=True)
class Served:
    """A folder of a commit that may be the site."""

    site: Site
    size: int
    pages: list[Page]

    @property
    def described(self) -> int:
        """Return the number of pages whose description is not a template's."""
        return sum(not is_placeholder(page.about.caption or "") for page in self.pages)


@dataclass(slots=True)
class Found:
    """Properties of a repository; ``status`` is the reason if there are none.

    ``pages`` is the number of pages to list; ``placeholders`` to ``bare`` count those with a
    template's description, with gambling, adult or spam words, saved from elsewhere, without text
    until scripts run, and without style sheets. ``captions`` has each description once.
    """

    repository: str
    status: str = ""
    commit: str = ""
    folder: str = ""
    pages: int = 0
    size: int = 0
    language: str = ""
    licence: str = "none"
    kind: str = ""
    placeholders: int = 0
    refused: int = 0
    saved: int = 0
    empty: int = 0
    bare: int = 0
    captions: list[str] = field(default_factory=list)


def pattern(words: Mapping[str, list[str]]) -> re.Pattern[str]:
    """Return the expression for ``words`` and ``parts`` in ``words.toml``."""
    whole = [rf"\b(?:{'|'.join(words['words'])})\b"] if "words" in words else []
    return re.compile("|".join(whole + words.get("parts", [])), re.IGNORECASE)


_REFUSED = pattern(WORDS["refused"])


def look(git: Git, mirrors: Path, name: str) -> Found:
    """Inspect a mirror; the branch with the most described pages is the site."""
    from recipes.pinned_web.kinds import kind_of
    from recipes.pinned_web.licences import licence_of

    head = Site(name, "HEAD", "", "", MOST_PAGES, "", "", 0)
    try:
        with git.repository(head, Source(mirrors), mirrors) as mirror:
            tips = [replace(head, commit=commit) for commit in _commits(git, mirror)]
            served = [one for tip in tips if (one := _served(git, mirror, tip))]
            if not served:
                return Found(name, "no index page")
            best = max(served, key=lambda one: one.described)
            licence = licence_of(git, mirror, best, tips[0])
    except SiteError as error:
        return Found(name, f"{error.status}: {error.reason}")
    pages = best.pages
    return Found(
        repository=name,
        commit=best.site.commit,
        folder=best.site.folder,
        pages=len(pages),
        size=best.size,
        language=language_of(pages),
        licence=licence,
        kind=kind_of(pages, name),
        placeholders=len(pages) - best.described,
        refused=sum(_REFUSED.search(page.words) is not None for page in pages),
        saved=sum(_is_saved(page.source) for page in pages),
        empty=sum(_is_empty(page.text) for page in pages),
        bare=sum(page.bare for page in pages),
        captions=sorted({(page.about.caption or "").lower() for page in pages}),
    )


def language_of(pages: list[Page]) -> str:
    """Return the language of most pages; ``zh-Hant`` for Chinese in traditional characters."""
    tags = Counter(
        detect_language(f"{page.words} {page.text[:_START]}", page.about.lang) or UNDECIDED
        for page in pages
    )
    language = max(tags, key=lambda tag: (tag not in _NONE, tags[tag]), default=UNDECIDED)
    signs = Counter("".join(page.words + page.text for page in pages) if language == "zh" else "")
    old, new = (sum(map(signs.__getitem__, some)) for some in (_TRADITIONAL, _SIMPLIFIED))
    return "zh-Hant" if old > new else language


def _commits(git: Git, mirror: Path) -> list[str]:
    """Return the tips of the default branch and of branches that may have a built site."""
    head = git.run(mirror, "rev-parse", "HEAD")[1].decode().split()
    listed = "for-each-ref", "--format=%(objectname) %(refname:lstrip=2)", "refs/heads"
    tips = (line.split(" ", 1) for line in git.run(mirror, *listed)[1].decode().splitlines())
    named = [commit for commit, branch in tips if branch in WORDS["branches"]]
    return list(dict.fromkeys(head + named))


def _served(git: Git, mirror: Path, tip: Site) -> Served | None:
    """Return the served folder of a commit: the root if it has enough pages, else the best one.

    Pages of other candidate folders do not count for the root.
    """
    there = git.files(mirror, tip).keys()
    indexes = [(one, f"{one}/index.htm".lstrip("/").encode()) for one in WORDS["folders"]]
    folders = [one for one, index in indexes if there & {index, index + b"l"}]
    best: Served | None = None
    for folder in folders:
        others = tuple(f"{other}/" for other in folders if other and not folder)
        one = _read(git, mirror, replace(tip, folder=folder), others)
        if best is None or one.described > best.described * (3 if best.described >= FEWEST else 1):
            best = one
        if not folder and one.described >= FEWEST:
            break
    return best


def _read(git: Git, mirror: Path, site: Site, others: tuple[str, ...]) -> Served:
    """Read the pages of a folder that ``pinned make`` would list."""
    chosen = choose(git, mirror, git.files(mirror, site), sys.maxsize)
    size, every = chosen.size, frozenset(chosen.objects)
    pages = (name for name in every if name.lower().endswith((".html", ".htm")))
    names = [name for name in pages if not name.startswith(others)]
    names = sorted(names, key=lambda name: (name.count("/"), name))[:_READ]
    chosen.objects = {name: chosen.objects[name] for name in names}
    with TemporaryDirectory() as place:
        folder = Path(place)
        write(git, mirror, chosen, folder)
        try:
            paths = list_pages(folder, site.repository.partition("/")[2], MOST_PAGES)
        except SiteError:
            paths = []
        return Served(site, size, [read_page(folder, path, every) for path in paths])


def read_page(folder: Path, path: str, every: Collection[str]) -> Page:
    """Read a listed page, whose path may begin with the name of the project."""
    name = unquote(path).lstrip("/")
    files = [folder / one for one in (name, name.partition("/")[2])]
    files = [file / "index.html" if file.is_dir() else file for file in files]
    file = next(file for file in files if file.is_file())
    content = file.read_bytes()
    source, about = decode(content, "text/html").text, describe(content, "text/html")
    name, text = file.relative_to(folder).as_posix(), text_of(source[:_LONGEST])
    return Page(name, about, source, text, is_bare(source, path, every))


def is_bare(source: str, path: str, every: Collection[str]) -> bool:
    """Whether a page has no own style sheet, and no linked one is a file of the site."""
    links = [tag for tag in _LINK.findall(source) if _SHEET.search(tag)]
    if not links or sum(map(len, _STYLE.findall(source))) >= _STYLED:
        return False
    bases = _HREF.findall("".join(_BASE.findall(source)))
    page = urljoin(f"http://{_HERE}{path}", next(iter(bases), ""))
    for href in _HREF.findall("".join(links)):
        with suppress(ValueError):
            sheet = urlsplit(urljoin(page, unescape(href)))
            name = unquote(sheet.path).lstrip("/")
            if sheet.netloc == _HERE and not {name, name.partition("/")[2]}.isdisjoint(every):
                return False
    return True


def text_of(source: str) -> str:
    """Return the text of a page without code, in linear time."""
    for begin, end in _UNSEEN:
        first, *rest = re.split(begin, source, flags=re.IGNORECASE)
        ended = (re.split(end, f"<{part}", maxsplit=1, flags=re.IGNORECASE)[-1] for part in rest)
        source = " ".join([first, *ended])
    return " ".join(unescape(re.sub(r"<[^<>]*>", " ", source)).split())


def _is_saved(source: str) -> bool:
    return _SAVED.search(source[:_ENDS] + source[-_ENDS:]) is not None


def _is_empty(text: str) -> bool:
    signs = len(re.findall(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]", text))
    return len(text.split()) + signs < _FEWEST_WORDS
