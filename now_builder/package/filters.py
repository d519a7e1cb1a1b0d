"""Selection of the pairs of each split; every other page gets a reason."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from now_builder.formats.captions import TOKENIZERS, UNK
from now_builder.formats.release import Reject
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, SplitPlan, names_above
from now_builder.formats.statistics import ranked
from now_builder.formats.verdicts import Verdict
from now_builder.package.licences import Sites, unlicensed
from now_builder.package.screenshots import PhashIndex
from now_builder.package.settings import PackageSettings
from now_builder.program.progress import watched
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

    A page is tested for, in this order: being usable, site, licence, length, language, flags,
    judgement, clean probability; and, in the order of the draw, test before dev before train, for
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
            or _unmatched(line.key, pool, judged)
            or _suspect(pages, line.key, settings, judged)
        )
        if why is None:
            usable[pool].append(line)
        else:
            rejects.append(_reject(line, pool, *why))
    splits: dict[Split, list[str]] = {}
    taken = _Taken(pages, settings)
    for pool in reversed(SPLITS):
        size = getattr(settings, pool)
        drawn = sorted(usable[pool], key=lambda line: _order(split.seed, line.key))
        splits[pool] = []
        for line in watched(drawn, f"draw {pool}"):
            if len(splits[pool]) == size:
                why = "over_size", f"{pool} takes {size} of {len(drawn)}"
            else:
                why = taken.twin_of(line.key)
            if why is None:
                taken.add(line.key, pool)
                splits[pool].append(line.key)
            else:
                rejects.append(_reject(line, pool, *why))
    rejects.sort(key=lambda reject: reject.key)
    return Selection({pool: sorted(splits[pool]) for pool in SPLITS}, rejects)


class _Taken:
    """The pages taken so far, searched for duplicates."""

    def __init__(self, pages: CrawledPages, settings: PackageSettings) -> None:
        self._rows = pages.rows
        self._splits: dict[str, Split] = {}
        self._landed: dict[str, str] | None = {} if settings.duplicate_pages == "drop" else None
        drops = settings.duplicate_captions == "exact"
        self._captions: dict[str, str] | None = {} if drops else None
        bits = settings.duplicate_looks
        self._looks = PhashIndex(bits) if bits >= 0 else None

    def twin_of(self, key: str) -> tuple[str, str] | None:
        """Return why a page is a duplicate of another (reason and detail), else ``None``."""
        row = self._rows[key]
        first = self._landed.get(_landed(row)) if self._landed is not None else None
        if first is not None:
            landed = row.final_url or row.url
            return "duplicate_page", f"of {first} in {self._splits[first]}, {landed}"
        same = self._captions.get(_folded(row)) if self._captions is not None else None
        if same is not None:
            return "duplicate_caption", f"of {same} in {self._splits[same]}, equal but for case"
        like = self._looks.find(row.phash) if self._looks is not None and row.phash else None
        if like is not None:
            detail = f"of {like[0]} in {self._splits[like[0]]}, {like[1]} bits apart"
            return "duplicate_look", detail
        return None

    def add(self, key: str, pool: Split) -> None:
        row = self._rows[key]
        self._splits[key] = pool
        if self._landed is not None:
            self._landed[_landed(row)] = key
        if self._captions is not None:
            self._captions[_folded(row)] = key
        if self._looks is not None and row.phash:
            self._looks.add(key, row.phash)


def _landed(row: CaptureRow) -> str:
    """Return the canonical form of the URL at which a visit ended, else of the listed one."""
    return canonical(row.final_url or row.url) or row.url


def _folded(row: CaptureRow) -> str:
    return (row.caption or "").casefold()


def _filtered(
    pages: CrawledPages, key: str, settings: PackageSettings
) -> tuple[str, str | None] | None:
    row = pages.rows[key]
    above = {*names_above(row.site), *names_above(site_of(_landed(row)))}
    if not above.isdisjoint(pages.never):
        return "never", "a site of --never"
    if pages.sites is not None and (why := unlicensed(row, pages.sites)):
        return why
    length = len(row.caption or "")
    if length < settings.min_characters:
        return "short_caption", f"{length} characters, fewer than {settings.min_characters}"
    if settings.max_characters and length > settings.max_characters:
        return "long_caption", f"{length} characters, more than {settings.max_characters}"
    lang = row.lang or "und"
    if settings.kept_languages and lang not in settings.kept_languages:
        return "language", lang
    flags = sorted(settings.dropped_flags & pages.flags.get(key, frozenset()))
    return (f"flag:{flags[0]}", ",".join(flags)) if flags else None


def _unmatched(
    key: str, pool: Split, judged: Mapping[str, Verdict] | None
) -> tuple[str, str | None] | None:
    if judged is None or pool == "train":
        return None
    verdict = judged.get(key)
    return None if verdict == "match" else ("not_matched", f"judged {verdict or 'by nobody'}")


def _suspect(
    pages: CrawledPages,
    key: str,
    settings: PackageSettings,
    judged: Mapping[str, Verdict] | None,
) -> tuple[str, str | None] | None:
    clean_prob = pages.suspects.get(key, 1.0)
    if clean_prob >= settings.min_clean or (judged or {}).get(key) == "match":
        return None
    return "suspect", f"clean_prob {clean_prob:.4g}, less than {settings.min_clean:g}"


def _order(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"draw\n{seed}\n{key}".encode()).digest()


def _reject(line: Planned, pool: Split, reason: str, detail: str | None) -> Reject:
    return Reject(line.key, line.url, line.site, pool, reason, detail)
