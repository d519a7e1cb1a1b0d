"""Cookie and consent overlays: found by listed rules or by what they say; hidden, never clicked."""

from importlib.resources import files

_FOLDER = files("now_builder.crawl.browser")
_SCRIPT = _FOLDER.joinpath("overlays.js").read_text(encoding="utf-8")
_RULES = _FOLDER.joinpath("overlays.json").read_text(encoding="utf-8")


def hiding_expression() -> str:
    """Return the JavaScript expression that hides them and yields the names of the rules used."""
    return f"({_SCRIPT})({_RULES})"
