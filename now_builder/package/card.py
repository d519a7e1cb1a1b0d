"""The card of a release: every number comes from its statistics."""

import json
import re
from collections.abc import Iterable, Mapping

from now_builder.formats.release import DATA_FOLDER
from now_builder.formats.split import SplitPlan
from now_builder.formats.statistics import ALIKE, SplitStatistics, ranked, summarize
from now_builder.package.description import ReleaseDescription
from now_builder.package.settings import FLAGS, PackageSettings
from now_builder.program.html import template_environment

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
)
_FILTERS = (
    "min_characters", "max_characters", "languages", "drop", "duplicate_pages",
    "duplicate_captions", "duplicate_looks", "matched", "suspects",
    "min_clean", "licensed", "never",
)  # fmt: skip


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
    return next((word for limit, word in _SIZES if pairs < limit), "100M<n<1B")


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
