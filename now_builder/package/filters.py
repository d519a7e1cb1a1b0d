"""Which pages become pairs of which split, and for what reason the others do not."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from now_builder.formats.captions import Tokenizer
from now_builder.formats.release import Reject
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, SplitPlan
from now_builder.package.judgements import Judgements


@dataclass(frozen=True, slots=True)
class Pages:
    """All that is known of the pages of a crawl.

    Attributes:
        plan: Every listed URL.
        rows: The outcome by key; a URL whose shard is not finished has none.
        features: Keys that have region features.
        ids: Content ids by tokenizer and key.
    """

    plan: Sequence[Planned]
    rows: Mapping[str, CaptureRow]
    features: frozenset[str]
    ids: Mapping[Tokenizer, Mapping[str, list[int]]]


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
    """Say why a page cannot be a pair (reason and detail), ``None`` if it can."""
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


def select(
    pages: Pages, split: SplitPlan, sizes: Mapping[Split, int], judged: Judgements | None
) -> Selection:
    """Give each usable page to the split of its pool, as far as the sizes allow.

    Dev and test take only pages judged to match, where there are judgements. Which pages a split
    takes when it cannot take all is decided by a seeded hash of the key, so more pages or a larger
    size change the draw as little as can be; pairs are then ordered by key.

    Args:
        pages: All that is known of the crawl.
        split: Pools and seed.
        sizes: Pairs of each split at most.
        judged: Verdicts, if any.
    """
    rejects: list[Reject] = []
    usable: dict[Split, list[Planned]] = {name: [] for name in SPLITS}
    for line in pages.plan:
        pool = split.pool_of(line.site, line.key)
        why = unusable(pages, line.key) or _unmatched(line.key, pool, judged)
        if why is None:
            usable[pool].append(line)
        else:
            rejects.append(_reject(line, pool, *why))
    splits: dict[Split, list[str]] = {}
    for pool, lines in usable.items():
        drawn = sorted(lines, key=lambda line: _order(split.seed, line.key))
        splits[pool] = sorted(line.key for line in drawn[: sizes[pool]])
        detail = f"{pool} takes {sizes[pool]} of {len(lines)}"
        rejects += [_reject(line, pool, "over_size", detail) for line in drawn[sizes[pool] :]]
    rejects.sort(key=lambda reject: reject.key)
    return Selection(splits, rejects, {pool: len(lines) for pool, lines in usable.items()})


def _unmatched(key: str, pool: Split, judged: Judgements | None) -> tuple[str, str | None] | None:
    if judged is None or pool == "train":
        return None
    verdict = judged.of(key)
    return None if verdict == "match" else ("not_matched", f"judged {verdict or 'by nobody'}")


def _order(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"draw\n{seed}\n{key}".encode()).digest()


def _reject(line: Planned, pool: Split, reason: str, detail: str | None) -> Reject:
    return Reject(line.key, line.url, line.site, pool, reason, detail)
