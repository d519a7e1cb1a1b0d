"""Write the dataset card of a release; every number comes from its statistics."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from now_builder.formats.captions import Vocabulary
from now_builder.formats.features import source_name
from now_builder.formats.release import DATA_FOLDER
from now_builder.formats.shard import CaptureRow
from now_builder.formats.split import Split, SplitPlan, registrable_domain
from now_builder.formats.statistics import (
    NEAR_BITS,
    Column,
    ReleaseStatistics,
    SplitStatistics,
    sort_counts,
    summarize,
)
from now_builder.package.settings import FLAGS, PackageSettings
from now_builder.program.html import template_environment
from now_builder.urls import site_of

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B")
_FILTERS = (
    "languages", "drop", "duplicate_captions", "matched", "suspects", "min_clean", "licensed",
    "never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReleaseDescription:
    """Numbers and facts of a release, for its card and metadata.

    Attributes:
        statistics: Statistics of the pairs, with the columns of :func:`capture_columns`.
        vocabularies: Vocabularies by tokenizer.
        listed: Number of URLs in the plan.
        rejects: Number of URLs in no split, by reason.
        fetched: Times at which the first and the last page were fetched.
        verdicts: Number of pairs by verdict, for each split; empty without verdicts.
        learned_split: Pools of the crawl; vocabularies were learned on their train pool.
        learned: Number of dev and test pairs in that train pool; empty if the release has the same
            pools.
        licences: Number of pairs by licence of their site, if pages were selected by licence.
        detector: Attributes of the feature file.
    """

    statistics: ReleaseStatistics
    vocabularies: Mapping[str, Vocabulary]
    listed: int
    rejects: dict[str, int]
    fetched: tuple[str, str]
    verdicts: dict[Split, dict[str, int]]
    learned_split: SplitPlan
    learned: dict[Split, int]
    licences: dict[str, int]
    detector: dict[str, str]

    @property
    def sources(self) -> dict[Split, dict[str, int]]:
        """Number of regions of each split, by the name of their source."""
        return {
            name: {source_name(number): count for number, count in split.sources.items()}
            for name, split in self.statistics.splits.items()
        }


def capture_columns(rows: Mapping[str, CaptureRow]) -> dict[str, Column]:
    """Return further columns to compare between pairs.

    They are ``casefolded`` (caption), ``screenshot`` (hash of its bytes), and the registrable
    domains ``domain`` (of the listed URL) and ``landed`` (of the final URL).
    """
    return {
        "casefolded": lambda pair: pair.caption.casefold(),
        "screenshot": lambda pair: rows[pair.key].sha256,
        "domain": lambda pair: registrable_domain(pair.site),
        "landed": lambda pair: registrable_domain(
            site_of(rows[pair.key].final_url or "") or pair.site
        ),
    }


def write_card(about: ReleaseDescription, settings: PackageSettings, plan: SplitPlan) -> str:
    """Return the card: a YAML head for the Hugging Face hub, then Markdown."""
    environment = template_environment("now_builder.package")
    environment.filters |= {
        "cell": lambda value: " ".join(str(value).split()).replace("|", "\\|"),
        "counts": as_counts,
        "quoted": lambda value: json.dumps(value, ensure_ascii=False),
        "thousands": "{:,}".format,
    }
    default = PackageSettings()
    splits = about.statistics.splits
    card = environment.get_template("card.md.j2").render(
        about=about,
        splits=splits,
        settings=settings,
        plan=plan,
        codes=language_codes(about.statistics.languages),
        size=size_category(about.statistics.pairs),
        sources=sorted({name for counts in about.sources.values() for name in counts}),
        flags=[flag for flag in FLAGS if any(flag in split.flags for split in splits.values())],
        checks_walls="consent_wall" in settings.dropped_flags,
        filters=[
            f"`{name} = {getattr(settings, name)}`"
            for name in _FILTERS
            if getattr(settings, name) != getattr(default, name)
        ],
        summarize=summarize,
        sort_counts=sort_counts,
        shared=_shared,
        near_bits=NEAR_BITS,
        folder=DATA_FOLDER,
    )
    return card + "\n"


def size_category(pairs: int) -> str:
    """Return the hub's size category of a number of pairs."""
    if pairs < 1000:
        return "n<1K"
    index = min(len(str(pairs)) - 4, len(_SIZES) - 2)
    return f"{_SIZES[index]}<n<{_SIZES[index + 1]}"


def language_codes(languages: Iterable[str]) -> list[str]:
    """Return the languages that are codes of the hub, without ``und`` and longer tags."""
    return [code for code in languages if re.fullmatch("[a-z]{2,3}", code) and code != "und"]


def _shared(first: SplitStatistics, second: SplitStatistics) -> list[int]:
    """Count the pairs of the second split that share a property with the first, by property."""
    same = {name: second.columns[name].count_in(first.columns[name]) for name in first.columns}
    return [
        same["casefolded"], same["screenshot"], second.phashes.count_in(first.phashes),
        second.count_similar(first), same["site"], same["domain"], same["landed"],
    ]  # fmt: skip


def as_counts(counts: Mapping[str, int]) -> str:
    """Join names and counts in one line."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
