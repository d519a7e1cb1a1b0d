"""Draw sites and pages with known matches, as a pure function of the settings."""

import hashlib
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from now_builder.simweb.draw import TOPICS
from now_builder.simweb.settings import SimwebSettings
from now_builder.simweb.words import Words, boilerplate, description, garble, read_words, soup

Mismatch = Literal["other_page", "boilerplate", "garbled", "soup", "empty"]
Declared = Literal["header", "meta", "both", "late", "conflict", "nowhere"]

MISMATCH_SHARES: dict[Mismatch, float] = {
    "other_page": 0.5, "boilerplate": 0.2, "garbled": 0.15, "soup": 0.15,
}  # fmt: skip
"""Share of each kind of mismatch."""

WITH_CAPTION = (
    "redirect", "redirect_chain", "slow", "dialog", "body_description", "late_description",
    "odd_description", "og_only", "script_description", "huge", "truncated", "meta_refresh",
    "duplicate", "legacy_header", "legacy_meta", "legacy_undeclared", "legacy_late",
    "legacy_conflict",
)  # fmt: skip
"""Awkward kinds from which a correct crawler gets a caption."""

WITHOUT_CAPTION = (
    "redirect_loop", "not_found", "server_error", "download", "pdf", "no_content",
    "no_description", "empty_description", "robots",
)  # fmt: skip
"""Awkward kinds without a caption: failures, and pages without a description."""

COSTLY = ("hanging", "endless", "script_loop")
"""Awkward kinds that use up a crawler's time limit; they are few and have no caption."""

LEGACY = {
    "gbk": "zh", "big5": "zh", "shift_jis": "ja", "euc-kr": "ko", "windows-1251": "ru",
    "euc-jp": "ja", "gb18030": "zh", "koi8-r": "ru", "iso-8859-1": "es",
}  # fmt: skip
"""Language of each encoding of old pages."""

_UNDECLARED = ("gbk", "big5", "shift_jis", "euc-kr", "windows-1251")
"""Encodings that can be detected without a declaration."""

_DECLARED: dict[str, Declared] = {
    "legacy_header": "header", "legacy_meta": "meta", "legacy_undeclared": "nowhere",
    "legacy_late": "late", "legacy_conflict": "conflict",
}  # fmt: skip

_LEAST_PAGES = 8
_LEAST_TOPICS = 6
_LEGACY_SITES = 0.15


@dataclass(frozen=True, slots=True)
class Site:
    """A host with its language and encoding, independent of topics.

    Sites with the encoding Big5 use traditional characters for ``zh``.
    """

    number: int
    host: str
    lang: str
    name: str
    charset: str
    declared: Declared
    gzip: bool


@dataclass(frozen=True, slots=True)
class Page:
    """A URL of the list, with its true topic and match.

    Attributes:
        number: Number from 0 on, by site; the list has another order.
        url: URL as listed.
        target: Path and query of the URL.
        kind: ``page`` or an awkward kind.
        topic: Topic of pictures and text.
        mismatch: Kind of mismatch; ``None`` if the description fits or is missing.
        caption_topic: Topic of the description, if it has one.
        description: Value of the attribute after parsing, if any.
        original: Number of the page that this one duplicates.
    """

    number: int
    url: str
    site: int
    target: str
    kind: str
    topic: str
    charset: str
    declared: Declared
    mismatch: Mismatch | None = None
    caption_topic: str | None = None
    description: str | None = None
    original: int | None = None

    @property
    def caption(self) -> str | None:
        """Caption that a crawl stores: NFC, collapsed white space, no control characters."""
        if self.description is None or self.kind not in {"page", *WITH_CAPTION}:
            return None
        composed = unicodedata.normalize("NFC", self.description)
        kept = (c for c in composed if unicodedata.category(c) != "Cc" or c.isspace())
        return " ".join("".join(kept).split()) or None

    @property
    def matched(self) -> bool:
        """Whether the page has a caption that fits."""
        return self.caption is not None and self.mismatch is None


@dataclass(frozen=True, slots=True)
class World:
    """All sites and pages."""

    settings: SimwebSettings
    topics: tuple[str, ...]
    sites: tuple[Site, ...]
    pages: tuple[Page, ...]

    def words(self, page: Page) -> Words:
        """Return the language of a page, in the script of its encoding."""
        lang = self.sites[page.site].lang
        return read_words("zh-Hant" if page.charset == "big5" else lang)


def build_world(settings: SimwebSettings) -> World:
    """Draw sites and pages."""
    rng = Random(f"{settings.seed}/world")
    topics = tuple(sorted(rng.sample(TOPICS, settings.topics)))
    count = max(1, min(settings.sites, settings.pages // _LEAST_PAGES))
    sites = tuple(_draw_site(number, settings) for number in range(count))
    pages = _draw_pages(settings, sites, topics)
    world = World(settings, topics, sites, tuple(pages))
    return replace(world, pages=tuple(_with_descriptions(world)))


def token(*parts: object, length: int = 12) -> str:
    """Return a hash of ``parts`` as a name."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:length]


def listed(world: World) -> list[Page]:
    """Return the pages in the order of the URL list: shuffled, duplicates after their originals."""
    pages = list(world.pages)
    Random(f"{world.settings.seed}/order").shuffle(pages)
    return sorted(pages, key=lambda page: page.original is not None)


def _draw_site(number: int, settings: SimwebSettings) -> Site:
    rng = Random(f"{settings.seed}/site/{number}")
    lang = settings.languages[number % len(settings.languages)]
    words = read_words(lang)
    first, second = rng.choice(words.several("first")), rng.choice(words.several("second"))
    usual: tuple[Declared, ...] = ("meta", "both", "header")
    charset, declared = "utf-8", rng.choice(usual)
    old = [label for label, language in LEGACY.items() if language == lang]
    if old and rng.random() < _LEGACY_SITES:
        charset = rng.choice(old)
        declared = rng.choice(usual)
        if charset in _UNDECLARED and rng.random() < 0.25:
            declared = "nowhere"
    if charset == "big5":
        words = read_words("zh-Hant")
        first, second = rng.choice(words.several("first")), rng.choice(words.several("second"))
    return Site(
        number=number,
        host=f"site{number:02d}.test",
        lang=lang,
        name=f"{first}{'' if lang in {'zh', 'ja'} else ' '}{second}",
        charset=charset,
        declared=declared,
        gzip=rng.random() < 0.4,
    )


def _draw_pages(
    settings: SimwebSettings, sites: tuple[Site, ...], topics: tuple[str, ...]
) -> list[Page]:
    rng = Random(f"{settings.seed}/pages")
    pages: list[Page] = []
    share, more = divmod(settings.pages, len(sites))
    for site in sites:
        order = rng.sample(topics, len(topics))
        for place in range(share + (site.number < more)):
            target = _target(settings, site, len(pages))
            url, topic = f"http://{site.host}{target}", order[place % len(order)]
            encoding = site.charset, site.declared
            pages.append(Page(len(pages), url, site.number, target, "page", topic, *encoding))
    _make_awkward(pages, sites, settings)
    return pages


def _target(settings: SimwebSettings, site: Site, number: int) -> str:
    """Return a path in the style of its site, without the topic."""
    name = token(settings.seed, "path", number, length=8)
    digits = int(name, 16) % 900_000 + 100_000
    styles = (
        f"/a/{name}",
        f"/{2015 + digits % 10}/{1 + digits % 12:02d}/{digits}.html",
        f"/view?id={digits}",
        f"/p/{digits}/",
        f"/index.php?m=show&no={digits}",
    )
    return styles[int(token(settings.seed, "style", site.number), 16) % len(styles)]


def _awkward_kinds(count: int) -> list[str]:
    """List each kind once, legacy kinds in every encoding, then more of the fast kinds."""
    legacy = ("legacy_header", "legacy_meta", "legacy_undeclared")
    cheap = [kind for kind in (*WITH_CAPTION, *WITHOUT_CAPTION) if kind != "huge"]
    kinds = [*WITH_CAPTION, *WITHOUT_CAPTION, *COSTLY]
    kinds += [kind for _ in range(len(_UNDECLARED) - 1) for kind in legacy]
    kinds += [*COSTLY, "huge"] * (count // 100)
    while len(kinds) < count:
        kinds += cheap
    return kinds[:count]


def _make_awkward(pages: list[Page], sites: tuple[Site, ...], settings: SimwebSettings) -> None:
    """Make some pages awkward; six pages of each site are never changed."""
    rng = Random(f"{settings.seed}/awkward")
    place: dict[int, int] = {}
    free: list[Page] = []
    kept: list[Page] = []
    for page in pages:
        place[page.site] = place.get(page.site, 0) + 1
        (kept if place[page.site] <= _LEAST_TOPICS else free).append(page)
    rng.shuffle(free)
    met: dict[str, int] = {}
    for kind in _awkward_kinds(min(settings.awkward, len(pages) // 4)):
        charset = _charset_for(kind, met.get(kind, 0), settings)
        met[kind] = met.get(kind, 0) + 1
        langs = {LEGACY.get(charset)} if charset else set(settings.languages)
        chosen = next((page for page in free if sites[page.site].lang in langs), None)
        if chosen is None:
            continue
        free.remove(chosen)
        of_site = [page for page in kept if page.site == chosen.site]
        pages[chosen.number] = _made_awkward(
            chosen, kind, charset, rng.choice(of_site), rng.randrange(3)
        )


def _charset_for(kind: str, number: int, settings: SimwebSettings) -> str | None:
    """Return the encoding of the next page of a legacy kind, in rotation; ``None`` for other kinds.

    Return ``utf-8``, so that no page is chosen, if the settings lack a language for it.
    """
    if not kind.startswith("legacy_"):
        return None
    labels = _UNDECLARED if kind == "legacy_undeclared" else tuple(LEGACY)
    written = [label for label in labels if LEGACY[label] in settings.languages]
    return written[number % len(written)] if written else "utf-8"


def _made_awkward(page: Page, kind: str, charset: str | None, original: Page, way: int) -> Page:
    if kind == "duplicate":
        host, target = page.url.split("/")[2], original.target
        url = (
            f"http://{host}{target}#part-{page.number}",
            f"http://{host}:80{target}",
            f"http://{host.upper()}{target}",
        )[way]
        return replace(original, number=page.number, url=url, kind=kind, original=original.number)
    if kind == "robots":
        target = f"/private{page.target}"
        return replace(page, kind=kind, target=target, url=page.url.replace(page.target, target))
    if charset is not None:
        return replace(page, kind=kind, charset=charset, declared=_DECLARED[kind])
    return replace(page, kind=kind)


def _with_descriptions(world: World) -> Iterator[Page]:
    """Assign each page its description, with exactly the requested share of mismatches."""
    rng = Random(f"{world.settings.seed}/mismatch")
    kinds_described = {"page", *WITH_CAPTION}
    described = (page for page in world.pages if page.kind in kinds_described)
    eligible = [page.number for page in described if page.original is None]
    rng.shuffle(eligible)
    wrong = eligible[: round(world.settings.mismatch * len(eligible))]
    kinds = rng.choices(list(MISMATCH_SHARES), list(MISMATCH_SHARES.values()), k=len(wrong))
    mismatch = dict(zip(wrong, kinds, strict=True))
    done = [_with_description(world, page, mismatch.get(page.number)) for page in world.pages]
    for page in done:
        kept = {name: getattr(page, name) for name in ("number", "url", "kind", "original")}
        yield page if page.original is None else replace(done[page.original], **kept)


def _with_description(world: World, page: Page, mismatch: Mismatch | None) -> Page:
    if page.kind == "no_description":
        return page
    if page.kind == "empty_description":
        return replace(page, mismatch="empty", description="")
    rng = Random(f"{world.settings.seed}/description/{page.number}")
    words, site = world.words(page), world.sites[page.site]
    about = page.topic
    if mismatch == "other_page":
        about = rng.choice([topic for topic in world.topics if topic != page.topic])
    fitting = description(words, about, rng)
    filler = boilerplate(words, site.name, site.number)
    if mismatch == "boilerplate":
        return replace(page, mismatch=mismatch, description=filler)
    if mismatch == "garbled":
        return replace(page, mismatch=mismatch, description=garble(fitting, filler, rng))
    if mismatch == "soup":
        return replace(page, mismatch=mismatch, description=soup(words, list(world.topics), rng))
    if page.kind == "odd_description":
        fitting = _made_odd(fitting)
    return replace(page, mismatch=mismatch, caption_topic=about, description=fitting)


def _made_odd(text: str) -> str:
    """Add line breaks, no-break spaces and decomposed letters that a crawler must normalise."""
    decomposed = unicodedata.normalize("NFD", text)
    middle = len(decomposed) // 2
    while unicodedata.combining(decomposed[middle]) or "\u1100" <= decomposed[middle] <= "\u11ff":
        middle += 1
    return f"\n\t {decomposed[:middle]} \u00a0\r\n  {decomposed[middle:]} <&>\u3000"
