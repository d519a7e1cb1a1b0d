"""The report of a release: one page to look at it, which loads nothing and needs no script."""

import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from now_builder import __version__
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.beliefs import read_beliefs
from now_builder.formats.features import SOURCES
from now_builder.formats.io import write_text
from now_builder.formats.release import Manifest, Pair, read_manifest, stream_pairs
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.formats.split import SPLITS, Split
from now_builder.html import template_environment
from now_builder.inspect.agreement import Share, mean_interval, wilson
from now_builder.inspect.pairs import by_key, drawn, show
from now_builder.inspect.settings import ReportSettings
from now_builder.inspect.stats import audit_stats
from now_builder.inspect.survey import Histogram, Tally, survey

_CAPTION = 400
"""Characters of a caption that are shown."""

_REASONS = {
    "not_crawled": "its shard is not finished",
    "duplicate": "the same page as an earlier URL",
    "no_caption": "the page has no meta description",
    "no_features": "the detector gave no regions",
    "not_matched": "pool of dev or test, and not judged to match",
    "over_size": "usable, but its split was full",
    "empty_tokens": "no token is left of the caption",
    "failed": "visited in vain",
    "refused": "not visited on purpose",
}


@dataclass(frozen=True, slots=True)
class Noise:
    """What a run believes of the pairs.

    Attributes:
        known: Pairs of the release that it has a belief on.
        noisy: Those of them that it calls noisy: clean probability of at most one half.
        mean: Of one minus the clean probability, with the ends of its interval.
        histogram: Of the clean probability, by twentieths.
        extremes: Title, and keys with their clean probability: least clean, doubtful, cleanest.
    """

    origin: str
    known: int
    noisy: Share
    mean: tuple[float, float, float]
    histogram: Histogram
    extremes: list[tuple[str, list[tuple[str, float]]]]


def report(release: Path, settings: ReportSettings) -> str:
    """Write the report of a release; give the line that says so.

    Of a large release only a few bytes a pair are held, never its captions or embeddings.

    Args:
        release: Folder made by ``package``.
        settings: What the user chose.

    Raises:
        FormatError: If release, captures or run are missing, torn or do not belong together.
        ConfigError: If the page would be larger than allowed.
    """
    if settings.output.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--output {settings.output}: expected a name that ends in .html")
    manifest = read_manifest(release)
    beliefs = read_beliefs(settings.run, release) if settings.run else {}
    tallies: dict[Split, Tally] = {split: Tally() for split in SPLITS}
    known: dict[str, float] = {}
    sample = drawn(_tallied(release, tallies, beliefs, known), settings.pairs, settings.seed)
    numbers = survey(release, manifest, tallies)
    noise = _noise(settings, known) if settings.run else None
    measured = audit_stats(settings.audit, release, settings.run) if settings.audit else None
    wanted = [key for _, shown in (noise.extremes if noise else []) for key, _ in shown]
    pairs = {pair.key: pair for pair in sample}
    if wanted:
        pairs |= by_key(stream_pairs(release), frozenset(wanted))
    limit = settings.max_mb * 1e6
    share = 0.8 * limit / (len(sample) + len(wanted))
    shown = show(release, settings.captures, list(pairs.values()), share)
    page = render(
        "report.html.j2",
        manifest=manifest,
        numbers=numbers,
        noise=noise,
        measured=measured,
        sample=[shown[pair.key] for pair in sorted(sample, key=lambda pair: pair.key)],
        shown=shown,
        rejects=_rejects(manifest),
        settings=settings,
    )
    if len(page.encode()) > limit:
        raise ConfigError(
            f"{settings.output}: {len(page.encode()) / 1e6:.1f} MB with {len(pairs)} pairs, "
            f"allowed are {settings.max_mb:g}; show fewer (--pairs, --extremes) or raise --max-mb"
        )
    write_text(settings.output, page)
    size = f"{len(page.encode()) / 1e6:.1f} MB"
    return f"{settings.output}: {numbers.pairs} pairs, {len(pairs)} of them shown, {size}"


def _tallied(
    release: Path,
    tallies: Mapping[Split, Tally],
    beliefs: Mapping[str, float],
    known: dict[str, float],
) -> Iterator[Pair]:
    for pair in stream_pairs(release):
        tally = next((tallies[split] for split in SPLITS if split == pair.split), None)
        if tally is None:
            raise FormatError(release / "pairs.parquet", f"split {pair.split!r:.40} of {pair.key}")
        tally.add(pair)
        if pair.key in beliefs:
            known[pair.key] = beliefs[pair.key]
        yield pair


def _noise(settings: ReportSettings, known: Mapping[str, float]) -> Noise:
    keys, values = list(known), np.fromiter(known.values(), np.float64)
    noisy = wilson(int((values <= 0.5).sum()), len(values))
    if noisy is None or settings.run is None:
        raise FormatError(settings.run or "--run", "no belief on any pair of this release")
    counts = np.bincount(np.minimum((values * 20).astype(int), 19), minlength=20)
    order, doubt = np.argsort(values, kind="stable"), np.argsort(abs(values - 0.5), kind="stable")
    some = settings.extremes
    rows = {
        "Least clean": order[:some],
        "Nearest to one half": doubt[:some],
        "Cleanest": order[::-1][:some],
    }
    return Noise(
        settings.run.resolve().name,
        len(values),
        noisy,
        mean_interval(1 - values),
        Histogram([place / 20 for place in range(20)], counts.tolist(), 0.05),
        [
            (title, [(keys[row], float(values[row])) for row in found])
            for title, found in rows.items()
        ],
    )


def _rejects(manifest: Manifest) -> list[tuple[str, str, int]]:
    """Give reason, what it means, and URLs, the commonest first."""
    return [
        (reason.replace(":", ": "), _REASONS.get(reason.partition(":")[0], ""), count)
        for reason, count in sorted(manifest.rejects.items(), key=lambda item: -item[1])
    ]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A histogram in the numbers that SVG wants, 300 wide and 90 tall.

    Attributes:
        bars: Left, width, height, label.
        ticks: Place, anchor, label.
    """

    bars: list[tuple[float, float, float, str]]
    ticks: list[tuple[float, str, str]]


def draw(histogram: Histogram, *, open_end: bool = False, decimals: int = 0) -> Drawing:
    """Draw a histogram.

    Args:
        histogram: To draw.
        open_end: Whether its last bin holds all from there on.
        decimals: Of the labels.
    """
    step, top = 300 / len(histogram.counts), max(1, *histogram.counts)

    def label(value: float) -> str:
        return f"{value:,.{decimals}f}"

    def named(place: int) -> str:
        low, last = histogram.edges[place], histogram.edges[place] + histogram.width
        if open_end and place == len(histogram.counts) - 1:
            return f"{label(low)} or more"
        high = last if decimals else last - 1
        return label(low) if high == low else f"{label(low)} to {label(high)}"

    bars = [
        (
            round(place * step + 0.4, 2), round(step - 0.8, 2), round(90 * count / top, 2),
            f"{named(place)}: {count:,}",
        )
        for place, count in enumerate(histogram.counts)
    ]  # fmt: skip
    middle = len(bars) // 2
    last = f"{label(histogram.edges[-1])}+" if open_end else named(len(bars) - 1).split(" to ")[-1]
    ticks = [
        (0.0, "start", label(histogram.edges[0])),
        (round(middle * step, 2), "start", label(histogram.edges[middle])),
        (300.0, "end", last),
    ]
    return Drawing(bars, ticks)


def render(template: str, **values: object) -> str:
    """Fill a template of this package; everything from outside is escaped."""
    return _templates().get_template(template).render(values) + "\n"


@cache
def _templates() -> Environment:
    templates = template_environment("now_builder.inspect")
    templates.filters.update(
        thousands=lambda value: f"{value:,}",
        cut=_cut,
        percent=lambda share: f"{100 * share:.1f} %",
    )
    templates.globals.update(
        version=__version__,
        draw=draw,
        inline=inline,
        policy_hash=policy_hash,
        splits=SPLITS,
        sources=SOURCES,
        width=WIDTH,
        height=HEIGHT,
    )
    return templates


def _cut(text: str, limit: int = _CAPTION) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


@cache
def _asset(name: str) -> str:
    text = files("now_builder.inspect").joinpath(f"templates/{name}").read_text(encoding="utf-8")
    return text.strip() + "\n"


def inline(name: str) -> Markup:
    """Give a style or script of ours as it stands in a page."""
    return Markup(_asset(name))  # noqa: S704 - our own file


def policy_hash(name: str) -> Markup:
    """Name a style or script of ours in a content security policy, which then admits no other."""
    digest = base64.b64encode(hashlib.sha256(_asset(name).encode()).digest()).decode()
    return Markup(f"'sha256-{digest}'")  # noqa: S704 - a hash of our own file
