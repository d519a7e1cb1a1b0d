"""The board as pages: plain HTML from templates, no script, nothing loaded from elsewhere."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leaderboard.board import PAPER_PAIRS, Row, axis_of, make_board, reference
from leaderboard.metrics import CUTOFFS
from leaderboard.reported import read_sources
from leaderboard.result import VERSION, Result
from leaderboard.store import Entry
from now_builder.errors import ConfigError
from now_builder.formats.atomic import replacing_folder

GENERATOR = "now-leaderboard"
PAPER = "duan2024pc2"
TITLES = {"jieba": "Jieba", "bpe": "BPE", "bert": "BERT"}
REFERENCES = {
    "chance": "Chance",
    "lang": "Language alone",
    "lang+topic": "Language and topic",
}


@dataclass(frozen=True, slots=True)
class Note:
    """A short remark beside a method's name.

    Attributes:
        warning: Whether it should catch the eye.
    """

    text: str
    warning: bool = False


def render_site(entries: Sequence[Entry]) -> dict[str, str]:
    """Render every file of the site.

    Args:
        entries: In any order; the same results give the same bytes.

    Returns:
        Text by path: ``index.html``, ``entries/NAME.html``, ``results/NAME.json``.
    """
    site = {"index.html": _render("index.html.j2", tracks=make_board(entries))}
    for entry in entries:
        site[f"entries/{entry.name}.html"] = _render_entry(entry)
        site[f"results/{entry.name}.json"] = entry.result.to_json()
    return site


def export_site(site: Path, entries: Sequence[Entry]) -> int:
    """Write the site as a folder that any host can serve; the old one is replaced whole.

    Returns:
        The number of files.

    Raises:
        ConfigError: If ``site`` is something other than a site written here.
    """
    _check_replaceable(site)
    pages = render_site(entries)
    with replacing_folder(site) as folder:
        for name, text in pages.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return len(pages)


def _check_replaceable(site: Path) -> None:
    if not site.exists():
        return
    index = site / "index.html"
    if site.is_dir() and not any(site.iterdir()):
        return
    mark = f'<meta name="generator" content="{GENERATOR}">'
    if not index.is_file() or mark not in index.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"{site}: found files that export-site did not write, expected a new or empty folder,"
            " or an earlier site: all in it is replaced"
        )


def policy() -> str:
    """Give the content security policy of every page: its own inline style and nothing else."""
    digest = base64.b64encode(hashlib.sha256(_style().encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def notes(result: Result) -> list[Note]:
    """Say in a few words what a reader must know before comparing a result."""
    training = result.training
    found = []
    if not result.ranked:
        found.append(Note("not ranked", warning=True))
    if training.ensemble_size is not None:
        single = training.ensemble_size == 1
        found.append(Note("one network" if single else f"{training.ensemble_size} networks"))
    if training.checkpoint_selection == "test":
        found.append(Note("epoch chosen on test", warning=True))
    if training.uses_test_images:
        found.append(Note("saw test images", warning=True))
    if training.external_data:
        found.append(Note("external data"))
    if result.postprocessing.kind != "none":
        transductive = result.postprocessing.kind == "transductive"
        kind = "transductive" if transductive else "per-query"
        found.append(Note(f"{kind} post-processing", warning=transductive))
    if result.precision == "float16":
        found.append(Note("float16"))
    return found


def _render_entry(entry: Entry) -> str:
    result = entry.result
    own = Row("scored", result.method.name, result.rsum, *result.rsum_interval)
    ladder = [own, *(reference(name, rsum) for name, rsum in result.references.items())]
    ladder.sort(key=lambda row: -row.rsum)
    return _render(
        "entry.html.j2",
        r=result,
        name=entry.name,
        ladder=ladder,
        axis=axis_of(max(row.high for row in ladder)),
        ways=[("Image → caption", result.i2t), ("Caption → image", result.t2i)],
        links=[
            (name, url)
            for name, url in (
                ("Paper", result.links.paper),
                ("Code", result.links.code),
                ("Weights", result.links.weights),
                ("Model card", result.links.model_card),
            )
            if url
        ],
        environment=", ".join(
            f"{name} {version}"
            for name, version in result.environment.model_dump(exclude_none=True).items()
        ),
    )


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(values) + "\n"


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("leaderboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, object] = {"figure": _figure, "share": _share, "thousands": _thousands}
    templates.filters.update(filters)
    templates.globals.update(
        generator=GENERATOR,
        evaluator=VERSION,
        policy=Markup(policy()),  # noqa: S704 - our own text, whose quotes must stay
        style=Markup(_style()),  # noqa: S704 - our own file
        titles=TITLES,
        references=REFERENCES,
        cutoffs=CUTOFFS,
        notes=notes,
        paper={"url": read_sources()[PAPER].url, "n_pairs": PAPER_PAIRS},
    )
    return templates


@cache
def _style() -> str:
    return files("leaderboard").joinpath("templates/style.css").read_text(encoding="utf-8")


def _figure(value: float) -> str:
    return f"{value:.1f}"


def _share(value: float, axis: float) -> str:
    """Give a length as a share of the axis in percent, as SVG wants it."""
    return f"{max(0.0, min(100.0, 100 * value / axis)):.2f}"


def _thousands(value: int) -> str:
    return f"{value:,}"
