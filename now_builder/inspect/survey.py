"""Every number of the report, from the files of a release in one pass that holds no caption."""

import hashlib
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Integer

from now_builder.errors import FormatError
from now_builder.formats.captions import UNK, from_line
from now_builder.formats.features import REGIONS, SOURCES, open_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Ceiling,
    Manifest,
    Pair,
    ceiling,
    stream_pairs,
)
from now_builder.formats.split import SPLITS, Split

if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array  # not subscriptable before Python 3.12

_BATCH = 4096
_BINS = 30
_COMMONEST = 5


@dataclass(frozen=True, slots=True)
class Histogram:
    """How a number varies over pairs.

    Attributes:
        edges: Lower end of each bin; the last bin holds all from there on.
        counts: Pairs in each bin.
        width: Of a bin.
    """

    edges: list[float]
    counts: list[int]
    width: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long captions are in one unit (characters, or tokens of a tokenizer).

    Attributes:
        unknown: Share of ``<unk>`` among the tokens, in percent.
    """

    unit: str
    histogram: Histogram
    mean: float
    median: float
    p90: float
    p99: float
    longest: int
    unknown: float | None = None


@dataclass(frozen=True, slots=True)
class SplitSurvey:
    """One split in numbers.

    Attributes:
        largest_group: Pairs that share the commonest caption.
        detected: Regions from the detector proper, mean over pages.
        ceilings: R@1 that duplicates allow, by tokenizer; of dev and test.
    """

    pairs: int
    sites: int
    languages: dict[str, int]
    caption_sources: dict[str, int]
    distinct_captions: int
    largest_group: int
    distinct_images: int
    detected: float
    sources: dict[str, int]
    ceilings: dict[str, Ceiling]


@dataclass(frozen=True, slots=True)
class Leak:
    """Pairs of a later split that share something with an earlier one."""

    earlier: Split
    later: Split
    caption: int
    image: int
    look: int
    site: int


@dataclass(frozen=True, slots=True)
class Survey:
    """All numbers.

    Attributes:
        lengths: In characters, then under each tokenizer.
        regions: Pages by their number of rows from the detector proper, 0 to 36.
        commonest: Captions that the most pairs share, with the number of pairs; only repeated ones.
    """

    splits: dict[Split, SplitSurvey]
    lengths: list[Lengths]
    regions: Histogram
    leaks: list[Leak]
    commonest: list[tuple[str, int]]

    @property
    def pairs(self) -> int:
        """Pairs of all splits."""
        return sum(split.pairs for split in self.splits.values())

    @property
    def languages(self) -> dict[str, int]:
        """Pairs by language over all splits, the commonest first."""
        return _added(split.languages for split in self.splits.values())

    @property
    def caption_sources(self) -> dict[str, int]:
        """Pairs by where the caption stood in the page."""
        return _added(split.caption_sources for split in self.splits.values())

    @property
    def sources(self) -> dict[str, int]:
        """Regions by origin."""
        return _added(split.sources for split in self.splits.values())


@dataclass(slots=True)
class Tally:
    """What is kept of the pairs that go by: a few bytes each."""

    count: int = 0
    characters: Numbers = field(default_factory=lambda: array("q"))
    identities: dict[str, Numbers] = field(
        default_factory=lambda: {name: array("Q") for name in ("caption", "image", "look", "site")}
    )
    languages: Counter[str] = field(default_factory=Counter)
    caption_sources: Counter[str] = field(default_factory=Counter)

    def add(self, pair: Pair) -> None:
        """Count a pair."""
        self.count += 1
        self.characters.append(len(pair.caption))
        self.languages[pair.lang or "und"] += 1
        self.caption_sources[pair.caption_source or "unknown"] += 1
        for name, text in (
            ("caption", pair.caption), ("image", pair.regions_sha256), ("look", pair.phash or ""),
            ("site", pair.site),
        ):  # fmt: skip
            self.identities[name].append(identity(text.encode()) if text else 0)

    def of(self, name: str) -> Integer[np.ndarray, " pairs"]:
        """Give the identities of one kind; 0 is none."""
        return np.frombuffer(self.identities[name], np.uint64)


def identity(content: bytes) -> int:
    """Stand for a text by 64 bits: two of 100,000 differ with all but certainty."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def survey(release: Path, manifest: Manifest, tallies: Mapping[Split, Tally]) -> Survey:
    """Count everything that a tally of the pairs cannot tell, and put it together.

    Args:
        release: Folder made by ``package``.
        manifest: Of it.
        tallies: Of every pair, by split.

    Raises:
        FormatError: If a file is missing, torn, or has another number of pairs.
    """
    for split, tally in tallies.items():
        if tally.count != manifest.counts.get(split, 0) or not tally.count:
            raise FormatError(
                release / "pairs.parquet",
                f"{tally.count} pairs of {split}, the manifest says {manifest.counts.get(split)}",
            )
    lines = {
        (split, name): _token_lines(release, split, name, tallies[split].count)
        for split in SPLITS
        for name in manifest.tracks
    }
    pages = {split: _pages(release, split, tallies[split].count) for split in SPLITS}
    detected = np.sum([page.detected for page in pages.values()], axis=0)
    characters = np.concatenate([np.frombuffer(t.characters, np.int64) for t in tallies.values()])
    return Survey(
        splits={split: _split(split, tallies[split], pages[split], lines) for split in SPLITS},
        lengths=[
            _lengths("characters", characters),
            *(_tokens(name, lines) for name in manifest.tracks),
        ],
        regions=Histogram([float(n) for n in range(REGIONS + 1)], detected.tolist(), 1.0),
        leaks=[_leak(tallies, *splits) for splits in combinations(SPLITS, 2)],
        commonest=_commonest(release, tallies),
    )


@dataclass(frozen=True, slots=True)
class _Lines:
    """The token lines of a split, as lengths and identities."""

    lengths: Integer[np.ndarray, " pairs"]
    identities: Integer[np.ndarray, " pairs"]
    unknown: int


def _token_lines(release: Path, split: Split, tokenizer: str, pairs: int) -> _Lines:
    path = release / DATA_FOLDER / f"{split}_caps_{tokenizer}.txt"
    lengths, identities, unknown = array("q"), array("Q"), 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                ids = from_line(path, number, line.decode())
                lengths.append(len(ids))
                identities.append(identity(line.rstrip()))
                unknown += ids.count(UNK)
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(path, f"not a readable UTF-8 text ({error})") from None
    if len(lengths) != pairs:
        raise FormatError(path, f"{len(lengths)} lines, expected {pairs}")
    return _Lines(np.frombuffer(lengths, np.int64), np.frombuffer(identities, np.uint64), unknown)


@dataclass(frozen=True, slots=True)
class _Pages:
    detected: Integer[np.ndarray, " 37"]
    sources: dict[str, int]


def _pages(release: Path, split: Split, pairs: int) -> _Pages:
    path = release / DATA_FOLDER / f"{split}.h5"
    with open_features(path) as features:
        if len(features) != pairs:
            raise FormatError(path, f"{len(features)} pages, expected {pairs}")
        detected = np.zeros(REGIONS + 1, np.int64)
        sources: Counter[str] = Counter()
        for start in range(0, pairs, _BATCH):
            rows = slice(start, start + _BATCH)
            rows_of_own = features.column("n_regions", rows).clip(0, REGIONS)
            detected += np.bincount(rows_of_own, minlength=REGIONS + 1)
            found = np.unique(features.column("source", rows), return_counts=True)
            for number, count in zip(*(values.tolist() for values in found), strict=True):
                sources[source_name(number)] += count
    return _Pages(detected, _ranked(sources))


def source_name(number: int) -> str:
    """Give the word for where a region comes from."""
    return SOURCES[number] if 0 <= number < len(SOURCES) else f"source {number}"


def _split(
    split: Split, tally: Tally, pages: _Pages, lines: Mapping[tuple[Split, str], _Lines]
) -> SplitSurvey:
    groups = np.unique(tally.of("caption"), return_counts=True)[1]
    images = tally.of("image").tolist()
    return SplitSurvey(
        pairs=tally.count,
        sites=len(np.unique(tally.of("site"))),
        languages=_ranked(tally.languages),
        caption_sources=_ranked(tally.caption_sources),
        distinct_captions=len(groups),
        largest_group=int(groups.max()),
        distinct_images=len(set(images)),
        detected=float(np.arange(REGIONS + 1) @ pages.detected / tally.count),
        sources=pages.sources,
        ceilings={}
        if split == "train"
        else {
            name: ceiling(images, line.identities.tolist())
            for (of, name), line in lines.items()
            if of == split
        },
    )


_TITLES = {"jieba": "Jieba", "bpe": "BPE", "bert": "BERT"}


def _tokens(name: str, lines: Mapping[tuple[Split, str], _Lines]) -> Lengths:
    own = [lines[split, name] for split in SPLITS]
    counts = np.concatenate([line.lengths for line in own])
    unknown = 100 * sum(line.unknown for line in own) / max(1, int(counts.sum()))
    title = _TITLES.get(name, name)
    return _lengths(f"{title} tokens", counts, unknown)


def _lengths(
    unit: str, counts: Integer[np.ndarray, " pairs"], unknown: float | None = None
) -> Lengths:
    median, p90, p99 = (float(value) for value in np.quantile(counts, [0.5, 0.9, 0.99]))
    mean, longest = float(counts.mean()), int(counts.max())
    return Lengths(unit, histogram_of(counts), mean, median, p90, p99, longest, unknown)


def histogram_of(counts: Integer[np.ndarray, " pairs"]) -> Histogram:
    """Bin counts in steps of 1, 2 or 5 (times a power of ten), up to where 99 % of them are."""
    top = max(1.0, float(np.quantile(counts, 0.99)))
    width = next(
        step * 10**power
        for power in range(12)
        for step in (1, 2, 5)
        if step * 10**power * _BINS > top
    )
    bins = int(top // width) + 2
    found = np.bincount(np.minimum(counts // width, bins - 1), minlength=bins)
    return Histogram([float(place * width) for place in range(bins)], found.tolist(), float(width))


def _leak(tallies: Mapping[Split, Tally], earlier: Split, later: Split) -> Leak:
    def shared(name: str) -> int:
        first, second = tallies[earlier].of(name), tallies[later].of(name)
        return int(np.isin(second[second > 0], first).sum())

    return Leak(earlier, later, shared("caption"), shared("image"), shared("look"), shared("site"))


def _commonest(release: Path, tallies: Mapping[Split, Tally]) -> list[tuple[str, int]]:
    every = np.concatenate([tally.of("caption") for tally in tallies.values()])
    names, counts = np.unique(every, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_COMMONEST]
    wanted = {int(names[row]): int(counts[row]) for row in order if counts[row] > 1}
    texts: dict[int, str] = {}
    for pair in stream_pairs(release) if wanted else ():
        name = identity(pair.caption.encode())
        if name in wanted and name not in texts:
            texts[name] = pair.caption
            if len(texts) == len(wanted):
                break
    return [(texts[name], count) for name, count in wanted.items()]


def _added(parts: Iterator[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return _ranked(total)


def _ranked(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
