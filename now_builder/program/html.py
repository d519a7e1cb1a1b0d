"""Jinja templates of a package, set up alike: HTML is escaped, Markdown and LaTeX are not."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup


def template_environment(package: str) -> Environment:
    """Return the environment for the folder ``templates`` of a package, by its dotted name.

    Pages have ``page_style``, the style that all have in common, and its ``page_style_hash``.
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
    """Return the style that all pages have in common."""
    return files("now_builder.program").joinpath("page.css").read_text(encoding="utf-8")


def policy_hash(text: str) -> Markup:
    """Return the hash of a style or script for a content security policy, which admits no other."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")  # noqa: S704 - a hash
