"""The card of a release and what it tells: every number comes from its statistics."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from now_builder.formats.captions import Vocabulary
from now_builder.formats.features import source_name
from now_builder.formats.release import DATA_FOLDER
from now_builder.formats.shard import CaptureRow
from now_builder.formats.split import Split, SplitPlan, registrable_domain
from now_builder.formats.statistics import (
    ALIKE,
    Column,
    ReleaseStatistics,
    SplitStatistics,
    ranked,
    summarize,
)
from now_builder.package.settings import FLAGS, PackageSettings
from now_builder.program.html import template_environment

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B")
_FILTERS = (
    "languages", "drop", "duplicate_captions", "matched", "suspects", "min_clean", "licensed",
    "never",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReleaseDescription:
    """Numbers and facts of a release, for its card and metadata.

    Attributes:
        statistics: Numbers of its pairs, with the columns of :func:`capture_columns`.
        vocabularies: Vocabulary of each tokenizer.
        listed: Number of URLs of the plan.
        rejects: URLs in no split, by reason.
        fetched: When the first and the last page were fetched.
        verdicts: Pairs by verdict, for each split; empty where nothing was judged.
        learned_split: Pools of the stages before, whose train pool vocabularies were learned on.
        learned: Pairs of dev and test that were in that train pool; empty where the release has the
            same pools.
        licences: Pairs by licence of their site, where pages were chosen by it.
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
    def splits(self) -> dict[Split, SplitStatistics]:
        """Numbers of each split."""
        return self.statistics.splits

    @property
    def sources(self) -> dict[Split, dict[str, int]]:
        """Regions of each split by the name of their source."""
        return {
            split: {source_name(number): count for number, count in found.sources.items()}
            for split, found in self.splits.items()
        }


def capture_columns(rows: Mapping[str, CaptureRow]) -> dict[str, Column]:
    """Return the columns that are compared between pairs besides those of the statistics.

    Returns:
        ``casefolded`` (caption without regard to case), ``screenshot`` (its bytes), ``domain``
        (registrable domain of the listed URL) and ``landed`` (that of the page shown in the end).
    """
    return {
        "casefolded": lambda pair: pair.caption.casefold(),
        "screenshot": lambda pair: rows[pair.key].sha256,
        "domain": lambda pair: registrable_domain(pair.site),
        "landed": lambda pair: _landed(rows[pair.key]),
    }


def _landed(row: CaptureRow) -> str:
    try:
        host = urlsplit(row.final_url or "").hostname
    except ValueError:
        host = None
    return registrable_domain(host or row.site)


def write_card(about: ReleaseDescription, settings: PackageSettings, plan: SplitPlan) -> str:
    """Fill the card: a YAML head as the Hugging Face hub reads it, then Markdown."""
    environment = template_environment("now_builder.package")
    environment.filters |= {
        "cell": lambda value: " ".join(str(value).split()).replace("|", "\\|"),
        "counts": as_counts,
        "quoted": lambda value: json.dumps(value, ensure_ascii=False),
        "thousands": "{:,}".format,
    }
    default = PackageSettings()
    splits = about.splits
    card = environment.get_template("card.md.j2").render(
        about=about,
        splits=splits,
        settings=settings,
        plan=plan,
        codes=language_codes(about.statistics.languages),
        size=size_category(about.statistics.pairs),
        origins=sorted({name for found in about.sources.values() for name in found}),
        flags=[flag for flag in FLAGS if any(flag in split.flags for split in splits.values())],
        looked="consent_wall" in settings.dropped_flags,
        filters=[
            f"`{name} = {getattr(settings, name)}`"
            for name in _FILTERS
            if getattr(settings, name) != getattr(default, name)
        ],
        summarize=summarize,
        ranked=ranked,
        shared=_shared,
        alike=ALIKE,
        folder=DATA_FOLDER,
    )
    return card + "\n"


def size_category(pairs: int) -> str:
    """Return the hub's word for a number of pairs."""
    if pairs < 1000:
        return "n<1K"
    place = min(len(str(pairs)) - 4, len(_SIZES) - 2)
    return f"{_SIZES[place]}<n<{_SIZES[place + 1]}"


def language_codes(languages: Iterable[str]) -> list[str]:
    """Return the language codes among some languages; ``und`` and the like are none."""
    codes = (language for language in languages if re.fullmatch("[a-z]{2,3}", language))
    return [code for code in codes if code != "und"]


def _shared(first: SplitStatistics, second: SplitStatistics) -> list[int]:
    """Count the pairs of the second split that share something with the first."""
    same = {name: second.columns[name].count_in(first.columns[name]) for name in first.columns}
    return [
        same["casefolded"], same["screenshot"], second.phashes.count_in(first.phashes),
        second.count_alike(first), same["site"], same["domain"], same["landed"],
    ]  # fmt: skip


def as_counts(counts: Mapping[str, int]) -> str:
    """Write counts on one line."""
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
