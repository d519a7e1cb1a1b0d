"""The templates: eight kinds of phone page, each showing pictures of its topic at the top."""

from collections.abc import Callable
from random import Random

from now_builder.simweb.view import View

Template = Callable[[View], str]


def site_template(seed: int, site: int) -> Template:
    """Return a site's template, which does not depend on its topics."""
    return TEMPLATES[(Random(f"{seed}/template/{site}").randrange(1000)) % len(TEMPLATES)]


def news(view: View) -> str:
    """A front story with a wide picture, and rows with small ones."""
    rows = "".join(
        f'<a class=row href="#" style="padding:9px 14px;border-top:1px solid var(--edge)">'
        f"<div style=flex:1><h2>{view.say('headings')}</h2>"
        f"<span class=dim>{view.site_text('by')}, "
        f"{view.rng.randint(1, 23)}:{view.rng.randint(10, 59)}</span></div>"
        f"{view.picture(126, 96)}</a>"
        for _ in range(4)
    )
    return (
        f"{_head(view, 'menu', 'search')}{_tabs(view, 'nav')}"
        f"<main>{view.picture(360, view.rng.choice((190, 205, 220)))}"
        f"<div class=pad><h1>{view.say('titles')}</h1>"
        f"<p class=dim>{view.say('paragraphs')}</p></div>{rows}</main>{_foot(view)}"
    )


def shop(view: View) -> str:
    """A search field, filters, and goods in two columns."""
    goods = "".join(
        f"<article class=card>{view.picture(164, view.rng.choice((132, 150, 164)))}"
        f'<div style="padding:7px 9px 10px"><div>{view.thing()}</div>'
        f'<div class=row style="justify-content:space-between"><b style="color:var(--main)">'
        f"{view.number_text('price', 180)}</b>{view.icon('heart', 18)}</div>"
        f'<a class=btn style="margin-top:6px;padding:5px 9px;font-size:.85em">'
        f"{view.all_texts('buttons', 3)[2]}</a></div></article>"
        for _ in range(6)
    )
    chips = "".join(f"<span class=chip>{item}</span>" for item in view.all_texts("filters", 5))
    return (
        f"{_head(view, 'menu', 'cart')}"
        f'<form class=row style="padding:8px 12px"><input type=search style="flex:1" '
        f'placeholder="{view.site_text("search")}"><button type=button aria-label=search>'
        f"{view.icon('search', 18)}</button></form>"
        f'<div class=row style="padding:0 12px 8px;overflow:hidden">{chips}</div>'
        f'<main><div class=grid style="padding:0 12px">{goods}</div>'
        f"<div class=pad><h1>{view.say('titles')}</h1>{view.paragraphs(2)}</div></main>"
        f"{_foot(view)}{_bar(view)}"
    )


def article(view: View) -> str:
    """A story: heading, author, picture, text, another picture."""
    person = view.site_text("people")
    height = view.rng.choice((200, 220, 236))
    lead = (
        f"<h1>{view.say('titles')}</h1><div class=row><div class=face>{person[0]}</div>"
        f"<div><div>{person}</div><span class=dim>2024-{view.rng.randint(1, 12):02d}-"
        f"{view.rng.randint(1, 28):02d}</span></div></div>"
    )
    figure = (
        f'<figure style="margin:10px 0">{view.picture(332, height)}'
        f"<figcaption class=dim>{view.thing()}</figcaption></figure>"
    )
    first = lead + figure if view.rng.random() < 0.5 else figure + lead
    share = "".join(
        f"<a class='btn alt' aria-label={name}>{view.icon(name, 18)}</a>"
        for name in ("share", "heart", "star")
    )
    return (
        f"{_head(view, 'back', 'more')}<main class=pad>{first}{view.paragraphs(1)}"
        f'<figure style="margin:10px 0">{view.picture(332, 190)}</figure>'
        f"<h2>{view.say('headings')}</h2>{view.paragraphs(2)}"
        f'<div class=row style="margin:12px 0">{share}</div>'
        f"<h2>{view.say('headings')}</h2>{view.paragraphs(2)}</main>{_foot(view)}"
    )


def landing(view: View) -> str:
    """A large picture with a call to act, features, and a form."""
    features = "".join(
        f'<div class="card row" style="margin:10px 0;padding:8px">{view.picture(120, 92)}'
        f"<div><h2>{view.thing()}</h2><span class=dim>{view.say('headings')}</span></div></div>"
        for _ in range(3)
    )
    return (
        f'{_head(view, "menu", "user")}<main><section style="position:relative">'
        f"{view.picture(360, view.rng.choice((250, 280, 300)))}"
        f'<div class=card style="margin:-34px 14px 0;padding:10px 14px;position:relative">'
        f"<h1>{view.say('titles')}</h1><a class=btn>{view.all_texts('buttons', 7)[6]}</a> "
        f"<a class='btn alt'>{view.all_texts('buttons', 6)[5]}</a></div></section>"
        f'<div class=pad>{features}<form class=card style="padding:12px">'
        f"<label>{view.site_text('email')}<br><input type=email name=m></label>"
        f"<p><label><input type=checkbox name=ok> {view.site_text('agree')}</label></p>"
        f"<button type=button>{view.all_texts('buttons', 2)[1]}</button></form>"
        f"{view.paragraphs(2)}</div></main>{_foot(view)}"
    )


def profile(view: View) -> str:
    """A person's page: face, tabs, and a wall of pictures."""
    person = view.site_text("people")
    wall = "".join(
        f"<a>{view.picture(170, view.rng.choice((130, 150, 170)))}</a>" for _ in range(6)
    )
    return (
        f"{_head(view, 'back', 'bell')}<main><div class=row style='padding:12px 14px 4px'>"
        f'<div class=face style="width:58px;height:58px;font-size:1.4em">{person[0]}</div>'
        f"<div style=flex:1><b>{person}</b><div class=dim>{view.say('headings')}</div></div>"
        f"<a class=btn>{view.all_texts('buttons', 6)[5]}</a></div>{_tabs(view, 'tabs')}"
        f'<div class=grid style="gap:6px;padding:7px">{wall}</div>'
        f"<div class=pad><h1>{view.say('titles')}</h1>{view.paragraphs(2)}</div></main>"
        f"{_foot(view)}{_bar(view)}"
    )


def forum(view: View) -> str:
    """Threads with faces and pictures, and pages to turn."""
    threads = ""
    for _ in range(5):
        person = view.site_text("people")
        threads += (
            f'<li class=card style="margin:8px 10px;padding:9px"><div class=row>'
            f"<div class=face>{person[0]}</div><div style=flex:1><b>{person}</b>"
            f"<div class=dim>{view.number_text('replies', 300)}</div></div>{view.icon('star', 18)}"
            f"</div><h2>{view.say('headings')}</h2><div class=row>"
            f"{view.picture(152, 108)}{view.picture(152, 108)}</div></li>"
        )
    pages = "".join(f"<a class='btn alt' style='padding:4px 11px'>{n}</a>" for n in range(1, 5))
    return (
        f"{_head(view, 'menu', 'search')}{_tabs(view, 'filters')}"
        f'<main><ul style="list-style:none;margin:0;padding:0">{threads}</ul>'
        f'<nav class=row style="justify-content:center;padding:8px">{pages}</nav>'
        f"<div class=pad><h1>{view.say('titles')}</h1>{view.paragraphs(2)}</div></main>"
        f"{_foot(view)}"
    )


def results(view: View) -> str:
    """Search results: a query, filters, one large hit and more with thumbnails."""
    options = "".join(f"<option>{item}</option>" for item in view.all_texts("filters", 5))
    rows = "".join(
        f'<a class="row card" href="#" style="margin:8px 0;padding:7px">{view.picture(136, 100)}'
        f'<div><h2 style="color:var(--main)">{view.say("headings")}</h2>'
        f"<span class=dim>{view.thing()}</span></div></a>"
        for _ in range(4)
    )
    return (
        f'<header class=head><form class=row style="flex:1">{view.icon("search")}'
        f'<input type=text value="{view.thing()}" style="flex:1;width:100px">'
        f"<button type=button>{view.site_text('accept')}</button></form></header>"
        f'<div class=row style="padding:8px 14px"><select>{options}</select>'
        f"<input type=range style='width:90px'><label class=dim><input type=checkbox checked> "
        f"{view.all_texts('filters', 4)[3]}</label></div><main class=pad>"
        f"<div class=dim>{view.number_text('results', 9000)}</div>"
        f'<article class=card style="margin:8px 0">{view.picture(332, 176)}'
        f'<div style="padding:4px 10px 8px"><h1>{view.say("titles")}</h1></div></article>'
        f"{rows}{view.paragraphs(2)}</main>{_foot(view)}"
    )


def slides(view: View) -> str:
    """Cards to push sideways, dots beneath, and a list of facts."""
    cards = "".join(
        f'<article class=card style="flex:none;width:276px">{view.picture(276, 214)}'
        f'<div style="padding:6px 12px 10px"><h2>{view.say("headings")}</h2>'
        f"<span class=dim>{view.thing()}</span></div></article>"
        for _ in range(3)
    )
    small = "".join(
        f'<div style="flex:1;min-width:0">{view.picture(106, 100)}'
        f"<div class=dim>{view.thing()}</div></div>"
        for _ in range(3)
    )
    return (
        f"{_head(view, 'menu', 'bell')}<main><div class=pad><h1>{view.say('titles')}</h1></div>"
        f'<div class=row style="padding:4px 14px;overflow:hidden;align-items:stretch">{cards}</div>'
        f"<div class=dots><i class=on></i><i></i><i></i><i></i></div>"
        f'<div class="row pad" style="align-items:start">{small}</div>'
        f"<div class=pad>{view.paragraphs(2)}<a class=btn>{view.all_texts('buttons', 1)[0]}</a>"
        f"{view.paragraphs(1)}</div></main>{_foot(view)}{_bar(view)}"
    )


TEMPLATES: tuple[Template, ...] = (
    news, shop, article, landing, profile, forum, results, slides,
)  # fmt: skip
"""All templates."""


def cookie_notice(view: View) -> str:
    """A bar that covers the foot of the screen until it is agreed to."""
    return (
        f"<div class=cookie role=dialog><span style='flex:1'>{view.site_text('cookie')}</span>"
        f"<button type=button onclick='this.parentNode.remove()'>{view.site_text('accept')}"
        "</button></div>"
    )


def _head(view: View, left: str, right: str) -> str:
    return f"<header class=head>{view.icon(left)}<b>{view.site.name}</b>{view.icon(right)}</header>"


def _tabs(view: View, key: str) -> str:
    items = view.all_texts(key, 6)
    chosen = view.rng.randrange(min(len(items), 3))
    links = "".join(
        f"<a href='#' class={'on' if place == chosen else 'off'}>{item}</a>"
        for place, item in enumerate(items)
    )
    return f"<nav class=tabs>{links}</nav>"


def _bar(view: View) -> str:
    icons = ("home", "search", "heart", "user")
    return (
        "<nav class=bar>"
        + "".join(
            f"<a href='#'><span style='display:grid;place-items:center'>"
            f"{view.icon(icon, 20)}</span>{label}</a>"
            for icon, label in zip(icons, view.all_texts("bottom", 4), strict=True)
        )
        + "</nav>"
    )


def _foot(view: View) -> str:
    links = "".join(f"<a href='#'>{item}</a>" for item in view.all_texts("footer", 4))
    return (
        f"<footer class=foot>{links}<p>&copy; {view.site.name}. {view.site_text('rights')}</p>"
        '<div style="height:46px"></div></footer>'
    )
