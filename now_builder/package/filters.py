"""Select the pairs of each split, and give every other page a reason."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from now_builder.formats.captions import TOKENIZERS, UNK
from now_builder.formats.release import Reject
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, SplitPlan, parent_domains
from now_builder.formats.statistics import sort_counts
from now_builder.formats.verdicts import Verdict
from now_builder.package.licences import Sites, unlicensed
from now_builder.package.settings import PackageSettings
from now_builder.program.progress import track_progress
from now_builder.urls import canonical, site_of


@dataclass(frozen=True, slots=True)
class CrawledPages:
    """The pages of a crawl, by key; URLs of unfinished shards have no row.

    Attributes:
        sites: Sites by host; ``None``: do not filter by licence.
        suspects: Clean probabilities; pages may lack one.
        never: Hosts to leave out, with all hosts below them.
    """

    plan: Sequence[Planned]
    rows: Mapping[str, CaptureRow]
    features: frozenset[str]
    ids: Mapping[str, Mapping[str, list[int]]]
    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)
    sites: Sites | None = None
    suspects: Mapping[str, float] = field(default_factory=dict)
    never: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys of each split in pair order, and all other pages with a reason."""

    splits: dict[Split, list[str]]
    rejects: list[Reject]

    @property
    def reasons(self) -> dict[str, int]:
        """Number of rejects by reason, in descending order."""
        return sort_counts(Counter(reject.reason for reject in self.rejects))


def unusable(pages: CrawledPages, key: str) -> tuple[str, str | None] | None:
    """Return why a page cannot be a pair (reason and detail); ``None`` if it can."""
    row = pages.rows.get(key)
    if row is None:
        return "not_crawled", None
    if row.status in {"failed", "refused"}:
        return f"{row.status}:{row.error or 'unknown'}", row.error_message
    if row.status == "duplicate":
        return "duplicate", row.duplicate_of
    if not row.caption or key not in pages.features:
        return "no_features" if row.caption else "no_caption", None
    for name, track in pages.ids.items():
        ids = track.get(key, ())
        if not ids or (name in TOKENIZERS and set(ids) == {UNK}):  # a user's may return only <unk>
            return f"empty_tokens:{name}", "no token, or none but <unk>"
    return None


def select(
    pages: CrawledPages,
    split: SplitPlan,
    settings: PackageSettings,
    judged: Mapping[str, Verdict] | None = None,
) -> Selection:
    """Assign usable pages to the split of their pool, within the filters and sizes.

    With judgements, dev and test get only pages judged to match. If a pool has too many pages, a
    seeded hash of the key decides, so that more pages or a larger size change few pairs. Pairs are
    sorted by key.

    The filters apply in this order: usable, site, licence, language, flags, judgement, clean
    probability. Then pages are drawn, for test before dev before train, and a duplicate of a
    drawn page is rejected. The original of a duplicate is therefore always a pair, no duplicate is
    in two splits, and the next page of the draw replaces it.
    """
    rejects: list[Reject] = []
    usable: dict[Split, list[Planned]] = {name: [] for name in SPLITS}
    for line in pages.plan:
        pool = split.pool_of(line.site, line.key)
        reason = (
            unusable(pages, line.key)
            or _filtered(pages, line.key, settings)
            or _doubted(pages, line.key, pool, settings, judged)
        )
        if reason is None:
            usable[pool].append(line)
        else:
            rejects.append(Reject(line.key, line.url, line.site, pool, *reason))
    splits: dict[Split, list[str]] = {}
    originals: dict[tuple[str, str], str] = {}
    for pool in reversed(SPLITS):
        size = getattr(settings, pool)
        drawn = sorted(
            usable[pool],
            key=lambda line: hashlib.sha256(f"draw\n{split.seed}\n{line.key}".encode()).digest(),
        )
        splits[pool] = []
        for line in track_progress(drawn, f"draw {pool}"):
            values = _unique_values(pages.rows[line.key], settings)
            duplicate = next((value for value in values if value in originals), None)
            if len(splits[pool]) == size:
                reason = "over_size", f"{pool} takes {size} of {len(drawn)}"
            elif duplicate is not None:
                reason = duplicate[0], f"of {originals[duplicate]}, {values[duplicate]}"
            else:
                originals |= dict.fromkeys(values, f"{line.key} in {pool}")
                splits[pool].append(line.key)
                continue
            rejects.append(Reject(line.key, line.url, line.site, pool, *reason))
    rejects.sort(key=lambda reject: reject.key)
    return Selection({pool: sorted(splits[pool]) for pool in SPLITS}, rejects)


def _unique_values(row: CaptureRow, settings: PackageSettings) -> dict[tuple[str, str], str]:
    """Return the values that no two pairs may share, with reason, and the detail of a reject."""
    values = {("duplicate_page", _landed(row)): row.final_url or row.url}
    if settings.duplicate_captions == "exact":
        values["duplicate_caption", (row.caption or "").casefold()] = "equal but for case"
    return values


def _landed(row: CaptureRow) -> str:
    """Return the canonical form of the final URL of a visit, else of the listed URL."""
    return canonical(row.final_url or row.url) or row.url


def _filtered(
    pages: CrawledPages, key: str, settings: PackageSettings
) -> tuple[str, str | None] | None:
    row = pages.rows[key]
    hosts = {*parent_domains(row.site), *parent_domains(site_of(_landed(row)))}
    if not hosts.isdisjoint(pages.never):
        return "never", "a site of --never"
    if pages.sites is not None and (reason := unlicensed(row, pages.sites)):
        return reason
    lang = row.lang or "und"
    if settings.kept_languages and lang not in settings.kept_languages:
        return "language", lang
    flags = sorted(settings.dropped_flags & pages.flags.get(key, frozenset()))
    return (f"flag:{flags[0]}", ",".join(flags)) if flags else None


def _doubted(
    pages: CrawledPages, key: str, pool: Split, settings: PackageSettings,
    judged: Mapping[str, Verdict] | None,
) -> tuple[str, str | None] | None:  # fmt: skip
    verdict = (judged or {}).get(key)
    if judged is not None and pool != "train" and verdict != "match":
        return "not_matched", f"judged {verdict or 'by nobody'}"
    clean_prob = pages.suspects.get(key, 1.0)
    if clean_prob >= settings.min_clean or verdict == "match":
        return None
    return "suspect", f"clean_prob {clean_prob:.4g}, less than {settings.min_clean:g}"
