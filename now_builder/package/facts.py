"""Every number that a release says of itself, computed once."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import UInt64

from now_builder.formats.captions import UNK, Vocabulary
from now_builder.formats.features import REGIONS
from now_builder.formats.perceptual_hash import ALIKE, alike
from now_builder.formats.release import Ceiling, Pair, ceiling
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import SPLITS, Split, registrable_domain
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
        domains: Registrable domains.
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
        flags: Pairs by flag.
    """

    pairs: int
    domains: int
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
    flags: dict[str, int]


@dataclass(frozen=True, slots=True)
class Leak:
    """Pairs of a later split that have something in an earlier one.

    Attributes:
        caption: The same caption but for case.
        screenshot: The same file.
        look: The same perceptual hash.
        alike: A perceptual hash within :data:`ALIKE` bits.
        domain: The same registrable domain of the listed URL.
        landed: The same registrable domain of the page that was shown in the end.
    """

    earlier: Split
    later: Split
    caption: int
    screenshot: int
    look: int
    alike: int
    site: int
    domain: int
    landed: int


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
    tracks: dict[str, Track]
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
    ids: Mapping[str, Mapping[str, list[int]]]
    vocabularies: Mapping[str, Vocabulary]
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
        domains=len({registrable_domain(pair.site) for pair in pairs}),
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
        flags=_ranked(Counter(flag for pair in pairs for flag in pair.flags.split(",") if flag)),
    )


def _track(material: Material, name: str) -> Track:
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

    def shared(what: Callable[[Pair], str | None]) -> int:
        there = {what(pair) for pair in first} - {None}
        return sum(what(pair) in there for pair in second)

    return Leak(
        earlier,
        later,
        caption=shared(lambda pair: pair.caption.casefold()),
        screenshot=shared(lambda pair: rows[pair.key].sha256),
        look=shared(lambda pair: pair.phash),
        alike=int(alike(_hashes(second), _hashes(first), ALIKE).sum()),
        site=shared(lambda pair: pair.site),
        domain=shared(lambda pair: registrable_domain(pair.site)),
        landed=shared(lambda pair: _landed(rows[pair.key])),
    )


def _hashes(pairs: Sequence[Pair]) -> UInt64[np.ndarray, " hashed"]:
    return np.array([int(pair.phash, 16) for pair in pairs if pair.phash], dtype=np.uint64)


def _landed(row: CaptureRow) -> str:
    try:
        host = urlsplit(row.final_url or "").hostname
    except ValueError:
        host = None
    return registrable_domain(host or row.site)


def _spread(counts: Iterable[int]) -> Spread:
    values = np.fromiter(counts, dtype=np.int64)
    median, p90, p99 = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.99]))
    return Spread(float(values.mean()), median, p90, p99, int(values.max()))


def _share_unknown(lines: Sequence[Sequence[int]]) -> float:
    unknown = sum(line.count(UNK) for line in lines)
    return 100 * unknown / sum(map(len, lines))


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
