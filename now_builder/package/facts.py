"""Every number that a release says of itself, computed once."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from now_builder.formats.captions import UNK, Tokenizer, Vocabulary
from now_builder.formats.features import REGIONS
from now_builder.formats.release import Ceiling, Pair, ceiling
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split
from now_builder.package.arrays import Images
from now_builder.package.filters import Selection
from now_builder.package.judgements import Judgements


@dataclass(frozen=True, slots=True)
class Spread:
    """How a count varies over the pairs of a split."""

    mean: float
    median: float
    p90: float
    p99: float
    largest: int


@dataclass(frozen=True, slots=True)
class Track:
    """A tokenizer's side of a release.

    Attributes:
        vocabulary: Tokens, the four specials included.
        source: Where its tokens come from.
        learned_on: Pool and number of captions.
        lengths: Tokens of a caption, by split.
        unknown: Share of ``<unk>`` among the tokens of each split, in percent.
        distinct: Distinct token lines of each split.
        ceilings: Of each split.
    """

    vocabulary: int
    source: str
    learned_on: str
    lengths: dict[Split, Spread]
    unknown: dict[Split, float]
    distinct: dict[Split, int]
    ceilings: dict[Split, Ceiling]


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """A split's side of a release.

    Attributes:
        pairs: Pairs.
        sites: Hosts.
        languages: Pairs by detected language, the commonest first; ``und`` for none.
        caption_sources: Pairs by where the caption stood in the page.
        characters: Characters of a caption.
        distinct_captions: Distinct texts.
        largest_group: Pairs that share the commonest caption.
        distinct_images: Images with distinct features.
        detected: Regions from the detector proper, by page: mean; and the share of pages (percent)
            where all 36 are.
        sources: Regions by origin.
        judged: Pairs by verdict, where there were judgements.
    """

    pairs: int
    sites: int
    languages: dict[str, int]
    caption_sources: dict[str, int]
    characters: Spread
    distinct_captions: int
    largest_group: int
    distinct_images: int
    detected: tuple[float, float]
    sources: dict[str, int]
    judged: dict[str, int]


@dataclass(frozen=True, slots=True)
class Leak:
    """Pairs of a later split that have something in an earlier one."""

    earlier: Split
    later: Split
    caption: int
    screenshot: int
    look: int
    site: int


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it.

    Attributes:
        listed: URLs of the plan.
        rejects: URLs in no split, by reason.
        fetched: When the first and the last page were fetched.
        leaks: For each two splits.
        detector: Attributes of the feature file.
    """

    listed: int
    splits: dict[Split, SplitFacts]
    tracks: dict[Tokenizer, Track]
    rejects: dict[str, int]
    fetched: tuple[str, str]
    leaks: list[Leak]
    detector: dict[str, str]

    @property
    def pairs(self) -> int:
        """Pairs of all splits."""
        return sum(split.pairs for split in self.splits.values())

    @property
    def languages(self) -> dict[str, int]:
        """Pairs by language over all splits, the commonest first."""
        total: Counter[str] = Counter()
        for split in self.splits.values():
            total.update(split.languages)
        return _ranked(total)


@dataclass(frozen=True, slots=True)
class Material:
    """What the facts are computed from, by split and in pair order."""

    plan: Sequence[Planned]
    rows: Mapping[str, CaptureRow]
    pairs: dict[Split, list[Pair]]
    ids: Mapping[Tokenizer, Mapping[str, list[int]]]
    vocabularies: Mapping[Tokenizer, Vocabulary]
    images: dict[Split, Images]
    selection: Selection
    judged: Judgements | None
    detector: dict[str, str]


def compute_facts(material: Material) -> Facts:
    """Compute every number of a release."""
    fetched = sorted(row.fetched_at for row in material.rows.values() if row.fetched_at)
    return Facts(
        listed=len(material.plan),
        splits={split: _split_facts(material, split) for split in SPLITS},
        tracks={name: _track(material, name) for name in material.vocabularies},
        rejects=material.selection.reasons,
        fetched=(fetched[0], fetched[-1]) if fetched else ("", ""),
        leaks=[_leak(material, *splits) for splits in combinations(SPLITS, 2)],
        detector=material.detector,
    )


def _split_facts(material: Material, split: Split) -> SplitFacts:
    pairs, images = material.pairs[split], material.images[split]
    captions = Counter(pair.caption for pair in pairs)
    detected = np.array(list(images.detected.elements()))
    judged = material.judged
    verdicts: Counter[str] = Counter()
    if judged is not None:
        verdicts.update(judged.of(pair.key) or "not judged" for pair in pairs)
    return SplitFacts(
        pairs=len(pairs),
        sites=len({pair.site for pair in pairs}),
        languages=_ranked(Counter(pair.lang or "und" for pair in pairs)),
        caption_sources=_ranked(Counter(pair.caption_source or "unknown" for pair in pairs)),
        characters=_spread(len(pair.caption) for pair in pairs),
        distinct_captions=len(captions),
        largest_group=max(captions.values()),
        distinct_images=len(set(images.hashes)),
        detected=(float(detected.mean()), 100 * float((detected == REGIONS).mean())),
        sources=_ranked(images.sources),
        judged=_ranked(verdicts),
    )


def _track(material: Material, name: Tokenizer) -> Track:
    vocabulary, ids = material.vocabularies[name], material.ids[name]
    lines = {split: [ids[pair.key] for pair in pairs] for split, pairs in material.pairs.items()}
    return Track(
        vocabulary=vocabulary.idx,
        source=vocabulary.source,
        learned_on=vocabulary.learned_on,
        lengths={split: _spread(map(len, line)) for split, line in lines.items()},
        unknown={split: _share_unknown(line) for split, line in lines.items()},
        distinct={split: len(set(map(tuple, line))) for split, line in lines.items()},
        ceilings={
            split: ceiling(material.images[split].hashes, list(map(tuple, line)))
            for split, line in lines.items()
        },
    )


def _leak(material: Material, earlier: Split, later: Split) -> Leak:
    first, second = material.pairs[earlier], material.pairs[later]
    rows = material.rows
    captions = {pair.caption for pair in first}
    screenshots = {rows[pair.key].sha256 for pair in first} - {None}
    looks = {pair.phash for pair in first} - {None}
    sites = {pair.site for pair in first}
    return Leak(
        earlier,
        later,
        caption=sum(pair.caption in captions for pair in second),
        screenshot=sum(rows[pair.key].sha256 in screenshots for pair in second),
        look=sum(pair.phash in looks for pair in second),
        site=sum(pair.site in sites for pair in second),
    )


def _spread(counts: Iterable[int]) -> Spread:
    values = np.fromiter(counts, dtype=np.int64)
    median, p90, p99 = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.99]))
    return Spread(float(values.mean()), median, p90, p99, int(values.max()))


def _share_unknown(lines: Sequence[Sequence[int]]) -> float:
    unknown = sum(line.count(UNK) for line in lines)
    return 100 * unknown / sum(map(len, lines))


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
