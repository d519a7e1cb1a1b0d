"""Jinja templates of a package, set up alike everywhere: escaped, strict about the undefined."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def template_environment(package: str) -> Environment:
    """Return the environment for the folder ``templates`` of a package.

    Args:
        package: Dotted name, such as ``leaderboard.site``.
    """
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
