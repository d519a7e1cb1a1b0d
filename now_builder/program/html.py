"""Jinja templates of a package, set up alike: escaped, save Markdown; strict about names."""

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape


def template_environment(package: str) -> Environment:
    """Return the environment for the folder ``templates`` of a package, by its dotted name."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=select_autoescape(disabled_extensions=["md.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
