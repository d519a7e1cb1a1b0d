"""The report of a release: one HTML page that loads nothing and needs no script."""

from base64 import b64encode
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer
from jinja2 import Environment
from markupsafe import Markup

from now_builder import __version__
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import TOKENIZER_TITLES
from now_builder.formats.features import REGIONS, SOURCES, source_name
from now_builder.formats.io import write_text
from now_builder.formats.pair_statistics import origin_of_run, read_clean_prob
from now_builder.formats.release import Manifest, read_manifest, stream_pairs
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.formats.split import SPLITS
from now_builder.formats.statistics import ReleaseStatistics, Summary, identity, summarize
from now_builder.inspect.pairs import drawn, show
from now_builder.inspect.settings import ReportSettings
from now_builder.inspect.stats import audit_stats, mean_interval, wilson
from now_builder.program.html import policy_hash, template_environment

_CAPTION = 400
"""Maximum number of characters of a caption."""
_COMMONEST = 5
_EXTREMES = 12
"""Number of pairs of each kind: least clean, doubtful, cleanest."""
_FILL, _TEXT = "#8cc1bb", "#5f5b54"
_DARK = f"""<style>@media (prefers-color-scheme: dark) {{
[style*="{_FILL}"] {{ fill: #2b6d67 !important }} [style*="{_TEXT}"] {{ fill: #a9a59c !important }}
}}</style></svg>"""
"""Colours of the page's style sheet, which a picture in a data URI cannot refer to."""
_MAX_MB = 10
"""Maximum size of the page in megabytes, so that a mail can carry it; pictures shrink to fit."""

_REASONS = {
    "not_crawled": "its shard is not finished",
    "duplicate": "the same page as an earlier URL",
    "duplicate_page": "led to the same page as a pair",
    "no_caption": "the page has no meta description",
    "no_features": "the detector gave no regions",
    "not_matched": "pool of dev or test, but no verdict that it matches",
    "over_size": "usable, but its split was full",
    "flag": "has a flag to be dropped",
    "empty_tokens": "no token is left of the caption, or none but <unk>",
    "failed": "the visit failed; the error is recorded",
    "refused": "not visited on purpose",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of captions in characters or in tokens, ``unknown`` percent of them ``<unk>``."""

    unit: str
    histogram: str
    summary: Summary
    unknown: float | None = None


def report(release: Path, settings: ReportSettings) -> str:
    """Write the report of a release and return a line about it.

    Memory is a few bytes for each pair: captions and embeddings are streamed.

    Raises:
        FormatError: If release, captures or run are missing, torn or do not belong together.
        ConfigError: If the page would be too large.
    """
    if settings.output.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--output {settings.output}: expected a name that ends with .html")
    manifest = read_manifest(release)
    clean_prob = read_clean_prob(settings.run, release) if settings.run else {}
    statistics = ReleaseStatistics()
    sample = drawn(statistics.read_pairs(release), settings.pairs)
    read_rest(release, manifest, statistics)
    keys = (pair.key for pair in stream_pairs(release) if pair.key in clean_prob)
    noise = _noise(settings.run, {key: clean_prob[key] for key in keys}) if settings.run else None
    measured = audit_stats(settings.audit, release, settings.run) if settings.audit else None
    extremes = [key for _, rows in (noise["extremes"] if noise else []) for key, _ in rows]
    pairs = {pair.key: pair for pair in sample}
    if extremes:
        names = {*extremes}
        pairs |= {pair.key: pair for pair in stream_pairs(release) if pair.key in names}
    limit = _MAX_MB * 1e6
    budget = 0.8 * limit / (len(sample) + len(extremes))
    shown = show(release, settings.captures, list(pairs.values()), budget)
    page = render(
        "report.html.j2",
        manifest=manifest,
        statistics=statistics,
        lengths=lengths_of(statistics),
        unknown={name: statistics.unknown_percents(name) for name in manifest.tracks},
        detected=_detected(statistics),
        sources=_sources(statistics),
        commonest=commonest_captions(release, statistics),
        noise=noise,
        measured=measured,
        sample=[shown[pair.key] for pair in sorted(sample, key=lambda pair: pair.key)],
        shown=shown,
        rejects=[
            (reason.replace(":", ": "), _REASONS.get(reason.partition(":")[0], ""), count)
            for reason, count in sorted(manifest.rejects.items(), key=lambda item: -item[1])
        ],
        settings=settings,
    )
    size = f"{len(page.encode()) / 1e6:.1f} MB"
    if len(page.encode()) > limit:
        raise ConfigError(
            f"{settings.output}: {size} with {len(pairs)} pairs, expected at most {_MAX_MB}; "
            "show fewer (--pairs)"
        )
    write_text(settings.output, page)
    return f"{settings.output}: {statistics.pairs} pairs, {len(pairs)} of them shown, {size}"


def read_rest(release: Path, manifest: Manifest, statistics: ReleaseStatistics) -> None:
    """Count the captions and regions of a release whose pairs have been counted."""
    for split, counted in statistics.splits.items():
        expected = manifest.counts.get(split)
        if counted.pairs != (expected or 0) or not counted.pairs:
            problem = f"{counted.pairs} pairs of {split}, the manifest says {expected}"
            raise FormatError(release / "pairs.parquet", problem)
    for split in SPLITS:
        for name in manifest.tracks:
            deque(statistics.read_tokens(release, split, name), maxlen=0)
        statistics.read_regions(release, split)


def lengths_of(statistics: ReleaseStatistics) -> list[Lengths]:
    """Summarize the lengths of captions in characters, then under each tokenizer."""
    splits = list(statistics.splits.values())
    characters = np.concatenate([split.characters for split in splits], dtype=np.int64)
    lengths = [Lengths("characters", _drawn_lengths(characters), summarize(characters))]
    for name in splits[0].tracks:
        tracks = [split.tracks[name] for split in splits]
        counts = np.concatenate([track.lengths for track in tracks], dtype=np.int64)
        share = 100 * sum(sum(track.unknown) for track in tracks) / max(1, int(counts.sum()))
        unit = f"{TOKENIZER_TITLES.get(name, name)} tokens"
        lengths.append(Lengths(unit, _drawn_lengths(counts), summarize(counts), share))
    return lengths


def _drawn_lengths(lengths: Integer[np.ndarray, " pairs"]) -> str:
    """Draw lengths up to the 99th percentile; the last bar includes longer ones."""
    top = int(np.quantile(lengths, 0.99))
    step = top // 30 + 1
    counts, edges = np.histogram(np.minimum(lengths, top), np.arange(0, top + step + 1, step))
    return histogram(edges, counts)


def histogram(edges: np.ndarray, counts: Sequence[int] | np.ndarray) -> str:
    """Draw counts between the edges of bins, as SVG in a data URI."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 9, "svg.hashsalt": "report"}):
        figure = Figure(figsize=(3.6, 1.4), layout="constrained")
        axes = figure.subplots()
        axes.stairs(counts, edges, fill=True, color=_FILL)
        axes.set_yticks([])
        axes.tick_params(colors=_TEXT)
        axes.spines[:].set_visible(False)
        drawing = StringIO()
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None})
    text = drawing.getvalue().replace("</svg>", _DARK)
    return f"data:image/svg+xml;base64,{b64encode(text.encode()).decode()}"


def _detected(statistics: ReleaseStatistics) -> str:
    pages = sum((split.detected for split in statistics.splits.values()), Counter[int]())
    return histogram(np.arange(REGIONS + 2), [pages[number] for number in range(REGIONS + 1)])


def _sources(statistics: ReleaseStatistics) -> dict[str, dict[str, int]]:
    """Count regions by source and split; the commonest source first."""
    total = sum((split.sources for split in statistics.splits.values()), Counter[int]())
    return {
        source_name(number): {name: one.sources[number] for name, one in statistics.splits.items()}
        for number, _ in sorted(total.items(), key=lambda one: (-one[1], source_name(one[0])))
    }


def commonest_captions(release: Path, statistics: ReleaseStatistics) -> list[tuple[str, int]]:
    """Find the captions that the most pairs share, with their number of pairs."""
    columns = [split.columns["caption"].values for split in statistics.splits.values()]
    names, counts = np.unique(np.concatenate(columns), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_COMMONEST]
    commonest = {int(names[row]): int(counts[row]) for row in order if counts[row] > 1}
    texts: dict[int, str] = {}
    for pair in stream_pairs(release) if commonest else ():
        if (name := identity(pair.caption)) in commonest:
            texts[name] = pair.caption
    return [(texts[name], count) for name, count in commonest.items()]


def _noise(run: Path, clean_prob: Mapping[str, float]) -> dict[str, Any]:
    """Summarise the noise that a method estimates, for the template.

    Values are the method's name, the run's folder, the number of pairs, the share of those called
    noisy, the mean of one minus the probability with its interval, a drawing, and by title the
    least clean, doubtful and cleanest pairs with their probability.
    """
    keys, values = list(clean_prob), np.fromiter(clean_prob.values(), np.float64)
    if not keys:
        raise FormatError(run, "no clean probability of a pair of this release")
    counts, edges = np.histogram(values, bins=20, range=(0, 1))
    order, doubt = np.argsort(values, kind="stable"), np.argsort(abs(values - 0.5), kind="stable")
    rows = {"Least clean": order, "Nearest to one half": doubt, "Cleanest": order[::-1]}
    origin, folder = origin_of_run(run)
    return {
        "origin": origin,
        "folder": folder,
        "known": len(values),
        "noisy": wilson(int((values <= 0.5).sum()), len(values)),
        "mean": mean_interval(1 - values),
        "histogram": histogram(edges, counts),
        "extremes": [
            (title, [(keys[row], float(values[row])) for row in order[:_EXTREMES]])
            for title, order in rows.items()
        ],
    }


def render(template: str, **values: object) -> str:
    """Fill a template of this package; values are escaped."""
    return _templates().get_template(template).render(values) + "\n"


@cache
def _templates() -> Environment:
    templates = template_environment("now_builder.inspect")
    templates.filters.update(
        thousands=lambda value: f"{value:,}", cut=_cut, percent=lambda share: f"{100 * share:.1f} %"
    )
    templates.globals.update(
        version=__version__,
        inline=inline,
        policy_hash=lambda name: policy_hash(_asset(name)),
        splits=SPLITS,
        split_pairs=list(combinations(SPLITS, 2)),
        region_sources=SOURCES,
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
    """Return a style or script of this package, unescaped."""
    return Markup(_asset(name))  # noqa: S704 - our own file
