"""Jinja environments of the packages, and the style sheet of their pages."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup


def template_environment(package: str) -> Environment:
    """Return the environment for the folder ``templates`` of a package, by its dotted name.

    HTML is escaped; Markdown and LaTeX are not. Pages have ``page_style``, the style sheet of all
    pages, and its ``page_style_hash``.
    """
    environment = Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(disabled_extensions=["md.j2", "tex.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(
        page_style=Markup(page_style()),  # noqa: S704 - our own file
        page_style_hash=policy_hash(page_style()),
    )
    return environment


@cache
def page_style() -> str:
    """Return the style sheet of all pages."""
    folder = files("now_builder.program")
    names = ("colours.css", "page.css")
    return "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)


def policy_hash(text: str) -> Markup:
    """Return the hash that allows an inline style or script in a content security policy."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")  # noqa: S704 - a hash
