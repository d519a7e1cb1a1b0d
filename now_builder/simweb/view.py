"""Provide the texts, colours and pictures of a page for its template."""

import tomllib
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from random import Random

from now_builder.simweb.draw import draw, hls
from now_builder.simweb.words import Words, text
from now_builder.simweb.world import Page, Site, World, token

_STYLE = (files("now_builder.simweb") / "site.css").read_text(encoding="utf-8").replace("\n", "")
"""Style sheet of all sites; colours and sizes are variables of each site."""

_ICONS = tomllib.loads((files("now_builder.simweb") / "icons.toml").read_text(encoding="utf-8"))
"""Path of each icon, on a square of 24 units."""


@dataclass(slots=True)
class View:
    """A page for its template; each call returns a new random text, the same in every run."""

    world: World
    page: Page
    rng: Random
    count: int = 0
    _unused: list[str] = field(default_factory=list)

    @property
    def site(self) -> Site:
        """The page's site."""
        return self.world.sites[self.page.site]

    @property
    def words(self) -> Words:
        """The page's language."""
        return self.world.words(self.page)

    def say(self, kind: str) -> str:
        """Compose an escaped text on the topic, such as ``headings``."""
        return escape(text(kind, self.words, self.page.topic, self.rng), quote=False)

    def thing(self) -> str:
        """Return a thing of the topic; it repeats only after all others."""
        if not self._unused:
            things = self.words.topics[self.page.topic].things
            self._unused += self.rng.sample(things, len(things))
        name = self._unused.pop()
        return escape(name[:1].upper() + name[1:], quote=False)

    def paragraphs(self, count: int) -> str:
        """Compose paragraphs."""
        return "".join(f"<p>{self.say('paragraphs')}</p>" for _ in range(count))

    def site_text(self, key: str) -> str:
        """Return a random alternative of a site's text, escaped."""
        return escape(self.rng.choice(self.words.several(key)), quote=False)

    def number_text(self, key: str, most: int) -> str:
        """Return a site's text with a random number from 2 to ``most``."""
        return escape(self.words.site[key].format(n=self.rng.randint(2, most)), quote=False)

    def all_texts(self, key: str, most: int) -> list[str]:
        """Return the first ``most`` alternatives of a site's text, escaped."""
        return [escape(item, quote=False) for item in self.words.several(key)[:most]]

    def icon(self, name: str, size: int = 22) -> str:
        """Return an icon in the colour of the text."""
        return (
            f'<svg class=i width={size} height={size} viewBox="0 0 24 24" fill=none '
            f"stroke=currentColor stroke-width=2.2 stroke-linecap=round>"
            f'<path d="{_ICONS[name]}"/></svg>'
        )

    def picture(self, width: int, height: int) -> str:
        """Return a picture of the topic, ``width`` by ``height`` CSS px.

        It is inline SVG, an image file, a canvas drawn by a script, or a background.
        """
        number, self.count = self.count, self.count + 1
        way = self.rng.choices(("svg", "img", "canvas", "background"), (35, 35, 15, 15))[0]
        size = f"width:{width}px;height:{height}px"
        source = picture_target(self.world, self.page, number, (width, height))
        if way == "img":
            return f'<img class=pic src="{source}" alt="" style="{size}">'
        if way == "background":
            return f'<div class=pic style="{size};background:url({source}) center/cover"></div>'
        if way == "svg":
            attributes = f' class="pic" style="{size}"'
            return picture(self.world, self.page, number, (width, height), attributes)
        name = f"c{token(self.page.number, number, length=6)}"
        return (
            f"<canvas class=pic id={name} width={width * 2} height={height * 2} "
            f'style="{size}"></canvas><script>(function(i){{i.onload=function(){{'
            f"{name}.getContext('2d').drawImage(i,0,0,{width * 2},{height * 2})}};"
            f"i.src='{source}'}})(new Image())</script>"
        )


def picture(
    world: World, page: Page, number: int, size: tuple[int, int], attributes: str = ""
) -> str:
    """Draw a picture of a page as SVG; the same numbers give the same picture."""
    rng = Random(f"{world.settings.seed}/picture/{page.number}/{number}")
    return draw(page.topic, rng, round(100 * size[0] / size[1], 1), attributes=attributes)


def picture_target(world: World, page: Page, number: int, size: tuple[int, int]) -> str:
    """Return the path of a picture's file; it names the page and the size, not the topic."""
    mark = token(world.settings.seed, "pic", page.number, number, length=10)
    return f"/pic/{mark}-{page.number:x}-{number}-{size[0]}x{size[1]}.svg"


def site_style(world: World, site: Site) -> str:
    """Return a site's style sheet; colours, corners and fonts only depend on the site."""
    rng = Random(f"{world.settings.seed}/look/{site.number}")
    hue, strong = rng.random(), rng.uniform(0.45, 0.85)
    dark = rng.random() < 0.2
    values = {
        "main": hls(hue, rng.uniform(0.3, 0.45), strong),
        "soft": hls(hue, 0.22 if dark else 0.93, strong * 0.5),
        "accent": hls(hue + rng.choice((0.08, 0.33, 0.5)), 0.48, 0.8),
        "paper": hls(hue, rng.uniform(0.09, 0.14) if dark else rng.uniform(0.96, 1), 0.2),
        "card": hls(hue, 0.17 if dark else 1, 0.15),
        "ink": "#f1f1f3" if dark else "#1d1f24",
        "dim": "#a9adb6" if dark else "#6a6f78",
        "edge": "#3b3f48" if dark else "#dfe2e7",
        "r": f"{rng.choice((0, 4, 8, 14))}px",
        "pr": f"{rng.choice((0, 0, 6, 12))}px",
        "font": rng.choice(("system-ui,sans-serif", "sans-serif", "serif", "Arial,sans-serif")),
        "size": f"{rng.choice((14, 15, 16))}px",
        "shadow": rng.choice(("none", "0 1px 4px #0003", "0 2px 8px #0002")),
    }
    header = rng.choice(
        ("var(--main);color:#fff", "var(--card)", "var(--soft)", "#1b1d22;color:#fff")
    )
    names = ";".join(f"--{name}:{value}" for name, value in values.items())
    return f":root{{{names}}}{_STYLE}.head{{background:{header}}}"
