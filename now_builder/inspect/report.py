"""The report of a release: one page to look at it, which loads nothing and needs no script."""

from base64 import b64encode
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import StringIO
from itertools import combinations
from pathlib import Path

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
from now_builder.inspect.stats import Proportion, audit_stats, mean_interval, wilson
from now_builder.program.html import policy_hash, template_environment

_CAPTION = 400
"""Characters of a caption that are shown."""
_COMMONEST = 5
_EXTREMES = 12
"""Pairs shown of each kind: least clean, doubtful, cleanest."""
_BLUE, _GREY = "#0072B2", "#8C8C8C"
"""Colours of drawings, for light and dark pages."""
_MAX_MB = 10
"""Size of the page in megabytes, which a mail may carry; pictures shrink to fit in."""

_REASONS = {
    "not_crawled": "its shard is not finished",
    "duplicate": "the same page as an earlier URL",
    "duplicate_page": "led to the same page as a pair",
    "no_caption": "the page has no meta description",
    "no_features": "the detector gave no regions",
    "not_matched": "pool of dev or test, and not judged to match",
    "over_size": "usable, but its split was full",
    "flag": "has a flag to be dropped",
    "empty_tokens": "no token is left of the caption, or none but <unk>",
    "failed": "the visit failed; the error is recorded",
    "refused": "not visited on purpose",
}


@dataclass(frozen=True, slots=True)
class EstimatedNoise:
    """Noise that a method estimates.

    Attributes:
        origin: Name of the method, or of the file of clean probabilities.
        folder: Folder of the run, if there is one.
        known: Number of pairs that have a clean probability.
        noisy: Share of them with a clean probability of at most one half.
        mean: Mean of one minus the clean probability, with the ends of its interval.
        histogram: Drawing of the clean probabilities by twentieths.
        extremes: Title, and keys with their clean probability: least clean, doubtful, cleanest.
    """

    origin: str
    folder: str | None
    known: int
    noisy: Proportion
    mean: tuple[float, float, float]
    histogram: str
    extremes: list[tuple[str, list[tuple[str, float]]]]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of captions in characters or in tokens, ``unknown`` percent of them ``<unk>``."""

    unit: str
    histogram: str
    summary: Summary
    unknown: float | None = None


def report(release: Path, settings: ReportSettings) -> str:
    """Write the report of a release and return the line that says so.

    Of a large release only a few bytes a pair are held, never its captions or embeddings.

    Raises:
        FormatError: If release, captures or run are missing, torn or do not belong together.
        ConfigError: If the page would be larger than allowed.
    """
    if settings.output.suffix.lower() not in {".html", ".htm"}:
        raise ConfigError(f"--output {settings.output}: expected a name that ends in .html")
    manifest = read_manifest(release)
    clean_prob = read_clean_prob(settings.run, release) if settings.run else {}
    statistics = ReleaseStatistics()
    sample = drawn(statistics.read_pairs(release), settings.pairs)
    read_rest(release, manifest, statistics)
    keys = (pair.key for pair in stream_pairs(release) if pair.key in clean_prob)
    noise = _noise(settings, {key: clean_prob[key] for key in keys}) if settings.run else None
    measured = audit_stats(settings.audit, release, settings.run) if settings.audit else None
    wanted = [key for _, shown in (noise.extremes if noise else []) for key, _ in shown]
    extremes = frozenset(wanted)
    pairs = {pair.key: pair for pair in sample}
    if extremes:
        pairs |= {pair.key: pair for pair in stream_pairs(release) if pair.key in extremes}
    limit = _MAX_MB * 1e6
    share = 0.8 * limit / (len(sample) + len(wanted))
    shown = show(release, settings.captures, list(pairs.values()), share)
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
        rejects=_rejects(manifest),
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
    for split, found in statistics.splits.items():
        if found.pairs != manifest.counts.get(split, 0) or not found.pairs:
            raise FormatError(
                release / "pairs.parquet",
                f"{found.pairs} pairs of {split}, the manifest says {manifest.counts.get(split)}",
            )
    for split in SPLITS:
        for name in manifest.tracks:
            deque(statistics.read_tokens(release, split, name), maxlen=0)
        statistics.read_regions(release, split)


def lengths_of(statistics: ReleaseStatistics) -> list[Lengths]:
    """Summarize the lengths of captions in characters, then under each tokenizer."""
    splits = list(statistics.splits.values())
    characters = np.concatenate([split.characters for split in splits], dtype=np.int64)
    found = [Lengths("characters", _drawn_lengths(characters), summarize(characters))]
    for name in splits[0].tracks:
        tracks = [split.tracks[name] for split in splits]
        counts = np.concatenate([track.lengths for track in tracks], dtype=np.int64)
        unknown = 100 * sum(sum(track.unknown) for track in tracks) / max(1, int(counts.sum()))
        unit = f"{TOKENIZER_TITLES.get(name, name)} tokens"
        found.append(Lengths(unit, _drawn_lengths(counts), summarize(counts), unknown))
    return found


def _drawn_lengths(lengths: Integer[np.ndarray, " pairs"]) -> str:
    """Draw lengths up to where 99 % of them are; the last bar has all longer ones."""
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
        axes.stairs(counts, edges, fill=True, color=_BLUE)
        axes.set_yticks([])
        axes.tick_params(colors=_GREY)
        axes.spines[:].set_visible(False)
        drawing = StringIO()
        figure.savefig(drawing, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{b64encode(drawing.getvalue().encode()).decode()}"


def _detected(statistics: ReleaseStatistics) -> str:
    pages = sum((split.detected for split in statistics.splits.values()), Counter[int]())
    return histogram(np.arange(REGIONS + 2), [pages[number] for number in range(REGIONS + 1)])


def _sources(statistics: ReleaseStatistics) -> dict[str, dict[str, int]]:
    """Count regions by source and split; the commonest source first."""
    total = sum((split.sources for split in statistics.splits.values()), Counter[int]())
    return {
        source_name(number): {
            split: found.sources[number] for split, found in statistics.splits.items()
        }
        for number, _ in sorted(total.items(), key=lambda one: (-one[1], source_name(one[0])))
    }


def commonest_captions(release: Path, statistics: ReleaseStatistics) -> list[tuple[str, int]]:
    """Find the captions that the most pairs share, with their number of pairs."""
    columns = [split.columns["caption"].values for split in statistics.splits.values()]
    names, counts = np.unique(np.concatenate(columns), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_COMMONEST]
    wanted = {int(names[row]): int(counts[row]) for row in order if counts[row] > 1}
    texts: dict[int, str] = {}
    for pair in stream_pairs(release) if wanted else ():
        if (name := identity(pair.caption)) in wanted:
            texts[name] = pair.caption
    return [(texts[name], count) for name, count in wanted.items()]


def _noise(settings: ReportSettings, known: Mapping[str, float]) -> EstimatedNoise:
    keys, values = list(known), np.fromiter(known.values(), np.float64)
    noisy = wilson(int((values <= 0.5).sum()), len(values))
    if noisy is None or settings.run is None:
        raise FormatError(settings.run or "--run", "no clean probability of a pair of this release")
    counts, edges = np.histogram(values, bins=20, range=(0, 1))
    order, doubt = np.argsort(values, kind="stable"), np.argsort(abs(values - 0.5), kind="stable")
    rows = {"Least clean": order, "Nearest to one half": doubt, "Cleanest": order[::-1]}
    return EstimatedNoise(
        *origin_of_run(settings.run),
        len(values),
        noisy,
        mean_interval(1 - values),
        histogram(edges, counts),
        [
            (title, [(keys[row], float(values[row])) for row in found[:_EXTREMES]])
            for title, found in rows.items()
        ],
    )


def _rejects(manifest: Manifest) -> list[tuple[str, str, int]]:
    """Return each reason with what it means and its number of URLs, the commonest first."""
    return [
        (reason.replace(":", ": "), _REASONS.get(reason.partition(":")[0], ""), count)
        for reason, count in sorted(manifest.rejects.items(), key=lambda item: -item[1])
    ]


def render(template: str, **values: object) -> str:
    """Fill a template of this package; everything from outside is escaped."""
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
    """Return the text of a style or script of this package for a page."""
    return Markup(_asset(name))  # noqa: S704 - our own file
