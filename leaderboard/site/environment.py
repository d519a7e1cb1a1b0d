"""Templates of the pages, with the filters and values that they use, and their security policy."""

from functools import cache
from importlib.resources import files

from jinja2 import Environment
from markupsafe import Markup

from leaderboard.board import display_text
from leaderboard.board.exports import FORMATS
from leaderboard.board.reported import short_name
from leaderboard.board.tables import spelled
from leaderboard.metrics import CUTOFFS
from leaderboard.scoring.result import VERSION
from now_builder.formats.benchmarks import BOARDS
from now_builder.program.html import page_style, policy_hash, template_environment

GENERATOR = "now-leaderboard"


@cache
def templates() -> Environment:
    """Return the templates with what all pages use."""
    found = template_environment("leaderboard.site")
    found.filters.update(
        figure="{:.1f}".format,
        signed=lambda value: f"{value:+.1f}".replace("-", "−"),
        p_value=lambda value: "< 0.001" if value < 0.001 else f"{value:.3f}",
        share=_share,
        thousands="{:,}".format,
        listed=display_text.listed,
        spelled=spelled,
        points=lambda points: " ".join(f"{x:g},{y:g}" for x, y in points),
    )
    found.globals.update(
        generator=GENERATOR,
        evaluator=VERSION,
        policy=Markup(policy()),  # noqa: S704 - our own text, whose quotes must stay
        style=Markup(_text("style.css")),  # noqa: S704 - our own file
        script=Markup(_text("board.js")),  # noqa: S704 - our own file
        boards_known=BOARDS,
        cutoffs=CUTOFFS,
        formats=list(FORMATS),
        display_text=display_text,
        compare_path=compare_path,
        short_name=short_name,
    )
    return found


@cache
def _text(name: str) -> str:
    return files("leaderboard.site").joinpath("templates", name).read_text(encoding="utf-8")


def _share(value: float, axis: float, base: float = 0.0) -> str:
    """Return the position of a value on the axis, in percent."""
    return f"{max(0.0, min(100.0, 100 * (value - base) / (axis - base))):.2f}"


def compare_path(name: str, other: str) -> str:
    """Return the path of the comparison of two entries."""
    first, second = sorted((name, other))
    return f"compare/{first}..{second}.html"


def policy() -> str:
    """Return the policy of every page: its own style and script, pictures within it, no more."""
    return (
        f"default-src 'none'; style-src {policy_hash(page_style())}"
        f" {policy_hash(_text('style.css'))};"
        f" script-src {policy_hash(_text('board.js'))}; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
