"""Which pages become pairs of which split, and for what reason the others do not."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from now_builder.formats.release import Reject
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, SplitPlan
from now_builder.package.duplicates import CaptionIndex, NearCaptions, SameCaptions
from now_builder.package.judgements import Judgements
from now_builder.package.screenshots import PhashIndex
from now_builder.package.settings import Filters


@dataclass(frozen=True, slots=True)
class Pages:
    """All that is known of the pages of a crawl.

    Attributes:
        plan: Every listed URL.
        rows: The outcome by key; a URL whose shard is not finished has none.
        features: Keys that have region features.
        ids: Content ids by tokenizer and key.
        flags: What is noteworthy, by key.
    """

    plan: Sequence[Planned]
    rows: Mapping[str, CaptureRow]
    features: frozenset[str]
    ids: Mapping[str, Mapping[str, list[int]]]
    flags: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Selection:
    """The keys of each split in pair order, and everything else with its reason."""

    splits: dict[Split, list[str]]
    rejects: list[Reject]
    pools: dict[Split, int]
    """Usable pages of each pool (for dev and test: those that match, where that was judged)."""

    @property
    def reasons(self) -> dict[str, int]:
        """Count the rejects by reason, the commonest first."""
        counts = Counter(reject.reason for reject in self.rejects)
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def unusable(pages: Pages, key: str) -> tuple[str, str | None] | None:
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
    empty = next((name for name, ids in pages.ids.items() if not ids.get(key)), None)
    return None if empty is None else (f"empty_tokens:{empty}", None)


_NONE = Filters()


def select(
    pages: Pages,
    split: SplitPlan,
    sizes: Mapping[Split, int],
    judged: Judgements | None,
    filters: Filters = _NONE,
) -> Selection:
    """Assign each usable page to the split of its pool, as far as filters and sizes allow.

    Dev and test take only pages judged to match, where there are judgements. Which pages a split
    takes when it cannot take all is decided by a seeded hash of the key, so more pages or a larger
    size change the draw as little as can be; pairs are then ordered by key.

    A page is tested for, in this order: being usable, length, language, flags, judgement; and, in
    the order of the draw, test before dev before train, for being a duplicate of a page that is
    taken already. So a duplicate's original is always a pair, none is in two splits, and what is
    dropped makes room for the next of the draw.

    Args:
        pages: All that is known of the crawl.
        split: Pools and seed.
        sizes: Pairs of each split at most.
        judged: Verdicts, if any.
        filters: What else keeps a page out.
    """
    rejects: list[Reject] = []
    usable: dict[Split, list[Planned]] = {name: [] for name in SPLITS}
    for line in pages.plan:
        pool = split.pool_of(line.site, line.key)
        why = (
            unusable(pages, line.key)
            or _filtered(pages, line.key, filters)
            or _unmatched(line.key, pool, judged)
        )
        if why is None:
            usable[pool].append(line)
        else:
            rejects.append(_reject(line, pool, *why))
    splits: dict[Split, list[str]] = {}
    taken = _Taken(pages, filters)
    for pool in reversed(SPLITS):
        drawn = sorted(usable[pool], key=lambda line: _order(split.seed, line.key))
        splits[pool] = []
        for line in drawn:
            if len(splits[pool]) == sizes[pool]:
                why = "over_size", f"{pool} takes {sizes[pool]} of {len(drawn)}"
            else:
                why = taken.twin_of(line.key)
            if why is None:
                taken.add(line.key, pool)
                splits[pool].append(line.key)
            else:
                rejects.append(_reject(line, pool, *why))
    rejects.sort(key=lambda reject: reject.key)
    return Selection(
        {pool: sorted(splits[pool]) for pool in SPLITS},
        rejects,
        {pool: len(lines) for pool, lines in usable.items()},
    )


class _Taken:
    """The pages taken so far, searched for duplicates."""

    def __init__(self, pages: Pages, filters: Filters) -> None:
        self._rows = pages.rows
        self._splits: dict[str, Split] = {}
        self._captions: CaptionIndex | None = None
        if filters.captions == "exact":
            self._captions = SameCaptions()
        elif filters.captions == "near":
            self._captions = NearCaptions(filters.similarity)
        self._looks = PhashIndex(filters.phash_bits) if filters.phash_bits >= 0 else None

    def twin_of(self, key: str) -> tuple[str, str] | None:
        """Return of which page one is a duplicate (reason and detail), else ``None``."""
        row = self._rows[key]
        same = self._captions.find(row.caption or "") if self._captions is not None else None
        if same is not None:
            detail = f"of {same[0]} in {self._splits[same[0]]}, similarity {same[1]:.3f}"
            return "duplicate_caption", detail
        like = self._looks.find(row.phash) if self._looks is not None and row.phash else None
        if like is not None:
            detail = f"of {like[0]} in {self._splits[like[0]]}, {like[1]} bits apart"
            return "duplicate_look", detail
        return None

    def add(self, key: str, pool: Split) -> None:
        row = self._rows[key]
        self._splits[key] = pool
        if self._captions is not None:
            self._captions.add(key, row.caption or "")
        if self._looks is not None and row.phash:
            self._looks.add(key, row.phash)


def _filtered(pages: Pages, key: str, filters: Filters) -> tuple[str, str | None] | None:
    row = pages.rows[key]
    length = len(row.caption or "")
    if length < filters.min_characters:
        return "short_caption", f"{length} characters, fewer than {filters.min_characters}"
    if filters.max_characters and length > filters.max_characters:
        return "long_caption", f"{length} characters, more than {filters.max_characters}"
    lang = row.lang or "und"
    if filters.languages and lang not in filters.languages:
        return "language", lang
    flags = sorted(filters.drop & pages.flags.get(key, frozenset()))
    return (f"flag:{flags[0]}", ",".join(flags)) if flags else None


def _unmatched(key: str, pool: Split, judged: Judgements | None) -> tuple[str, str | None] | None:
    if judged is None or pool == "train":
        return None
    verdict = judged.of(key)
    return None if verdict == "match" else ("not_matched", f"judged {verdict or 'by nobody'}")


def _order(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"draw\n{seed}\n{key}".encode()).digest()


def _reject(line: Planned, pool: Split, reason: str, detail: str | None) -> Reject:
    return Reject(line.key, line.url, line.site, pool, reason, detail)
