"""Cookie and consent overlays: found by listed rules or by what they say; hidden, never clicked."""

from importlib.resources import files

_FOLDER = files("now_builder.crawl.browser")
_SCRIPT = _FOLDER.joinpath("overlays.js").read_text(encoding="utf-8")
_RULES = _FOLDER.joinpath("overlays.json").read_text(encoding="utf-8")


def hiding() -> str:
    """Give the call that hides them in the page; it gives the names of the rules that held."""
    return f"({_SCRIPT})({_RULES})"
