"""Selection of the pairs of each split; every other page gets a reason."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from now_builder.formats.captions import TOKENIZERS, UNK
from now_builder.formats.release import Reject
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, SplitPlan, parent_domains
from now_builder.formats.statistics import ranked
from now_builder.formats.verdicts import Verdict
from now_builder.package.licences import Sites, unlicensed
from now_builder.package.settings import PackageSettings
from now_builder.program.progress import track_progress
from now_builder.urls import canonical, site_of


@dataclass(frozen=True, slots=True)
class CrawledPages:
    """The pages of a crawl, by key; a URL whose shard is not finished has no row.

    Attributes:
        sites: Sites by host; ``None`` where licences do not matter.
        suspects: Clean probability of those pages that have one.
        never: Hosts whose pages, and those of hosts below them, are left out.
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
    """The keys of each split in pair order, and everything else with its reason."""

    splits: dict[Split, list[str]]
    rejects: list[Reject]

    @property
    def reasons(self) -> dict[str, int]:
        """Count the rejects by reason, the commonest first."""
        return ranked(Counter(reject.reason for reject in self.rejects))


def unusable(pages: CrawledPages, key: str) -> tuple[str, str | None] | None:
    """Return why a page cannot be a pair (reason and detail), ``None`` if it can."""
    row = pages.rows.get(key)
    if row is None:
        return "not_crawled", None
    if row.status in {"failed", "refused"}:
        return f"{row.status}:{row.error or 'unknown'}", row.error_message
    if row.status == "duplicate":
        return "duplicate", row.duplicate_of
    if not row.caption:
        return "no_caption", None
    if key not in pages.features:
        return "no_features", None
    tracks = pages.ids.items()
    empty = next((name for name, ids in tracks if _says_nothing(name, ids.get(key, ()))), None)
    return None if empty is None else (f"empty_tokens:{empty}", "no token, or none but <unk>")


def _says_nothing(tokenizer: str, ids: Sequence[int]) -> bool:
    """Whether no token is left; one that was brought along may know few words, and need not."""
    return not ids or (tokenizer in TOKENIZERS and set(ids) == {UNK})


def select(
    pages: CrawledPages,
    split: SplitPlan,
    settings: PackageSettings,
    judged: Mapping[str, Verdict] | None = None,
) -> Selection:
    """Assign each usable page to the split of its pool, as far as filters and sizes allow.

    Dev and test take only pages judged to match, where there are judgements. Which pages a split
    takes when it cannot take all is decided by a seeded hash of the key, so more pages or a larger
    size change the draw as little as can be; pairs are then ordered by key.

    A page is tested for, in this order: being usable, site, licence, language, flags, judgement,
    clean probability; and, in the order of the draw, test before dev before train, for
    being a duplicate of a page that is taken already. So a duplicate's original is always a pair,
    none is in two splits, and what is dropped makes room for the next of the draw.
    """
    rejects: list[Reject] = []
    usable: dict[Split, list[Planned]] = {name: [] for name in SPLITS}
    for line in pages.plan:
        pool = split.pool_of(line.site, line.key)
        why = (
            unusable(pages, line.key)
            or _filtered(pages, line.key, settings)
            or _doubted(pages, line.key, pool, settings, judged)
        )
        if why is None:
            usable[pool].append(line)
        else:
            rejects.append(_reject(line, pool, *why))
    splits: dict[Split, list[str]] = {}
    taken: dict[tuple[str, str], str] = {}
    for pool in reversed(SPLITS):
        size = getattr(settings, pool)
        drawn = sorted(usable[pool], key=lambda line: _order(split.seed, line.key))
        splits[pool] = []
        for line in track_progress(drawn, f"draw {pool}"):
            shared = _alike(pages.rows[line.key], settings)
            twin = next((mark for mark in shared if mark in taken), None)
            if len(splits[pool]) == size:
                why = "over_size", f"{pool} takes {size} of {len(drawn)}"
            elif twin is not None:
                why = twin[0], f"of {taken[twin]}, {shared[twin]}"
            else:
                taken |= dict.fromkeys(shared, f"{line.key} in {pool}")
                splits[pool].append(line.key)
                continue
            rejects.append(_reject(line, pool, *why))
    rejects.sort(key=lambda reject: reject.key)
    return Selection({pool: sorted(splits[pool]) for pool in SPLITS}, rejects)


def _alike(row: CaptureRow, settings: PackageSettings) -> dict[tuple[str, str], str]:
    """Return what no two pairs may share, by reason and value, with what a reject says of it."""
    found = {("duplicate_page", _landed(row)): row.final_url or row.url}
    if settings.duplicate_captions == "exact":
        found["duplicate_caption", (row.caption or "").casefold()] = "equal but for case"
    return found


def _landed(row: CaptureRow) -> str:
    """Return the canonical form of the URL at which a visit ended, else of the listed one."""
    return canonical(row.final_url or row.url) or row.url


def _filtered(
    pages: CrawledPages, key: str, settings: PackageSettings
) -> tuple[str, str | None] | None:
    row = pages.rows[key]
    above = {*parent_domains(row.site), *parent_domains(site_of(_landed(row)))}
    if not above.isdisjoint(pages.never):
        return "never", "a site of --never"
    if pages.sites is not None and (why := unlicensed(row, pages.sites)):
        return why
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


def _order(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"draw\n{seed}\n{key}".encode()).digest()


def _reject(line: Planned, pool: Split, reason: str, detail: str | None) -> Reject:
    return Reject(line.key, line.url, line.site, pool, reason, detail)
