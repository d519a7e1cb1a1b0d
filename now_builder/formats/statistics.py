"""Statistics of a release, counted in one pass: lengths, duplicates, overlaps of splits, ceilings.

A few bytes a pair are kept, whatever the length of its caption: texts are compared by their hashes.
"""

import hashlib
from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Integer, UInt64

from now_builder.errors import FormatError
from now_builder.formats.captions import UNK, Numbers, from_line, to_line
from now_builder.formats.io import stream_lines
from now_builder.formats.release import DATA_FOLDER, Pair, data_folder, stream_pairs
from now_builder.formats.split import SPLITS, Split

Column = Callable[[Pair], str | None]

COLUMNS: Mapping[str, Column] = {
    "caption": attrgetter("caption"),
    "image": attrgetter("regions_sha256"),
    "site": attrgetter("site"),
}
"""Values of a pair that are always compared between pairs."""

ALIKE = 4
"""Bits of 64 in which the perceptual hashes of screenshots that look alike differ at most."""

_HASHES = 64
"""Perceptual hashes that are compared with all earlier ones at once."""

_PAGES = 4096
"""Pages whose columns are read at once."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Distribution of a count over pairs."""

    mean: float
    median: float
    p90: float
    p99: float
    largest: int


def summarize(counts: Sequence[int] | Integer[np.ndarray, " pairs"]) -> Summary:
    """Return mean, quantiles and maximum of counts."""
    values = np.asarray(counts, dtype=np.int64)
    median, p90, p99 = (float(value) for value in np.quantile(values, [0.5, 0.9, 0.99]))
    return Summary(float(values.mean()), median, p90, p99, int(values.max()))


def ranked(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts, the largest first; equal ones by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def identity(text: str) -> int:
    """Hash a text to 64 bits: two of 100,000 differ with all but certainty."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Identities:
    """The values of one column in the order of the pairs, 64 bits each; ``None`` is left out."""

    def __init__(self) -> None:
        self._numbers: Numbers = array("Q")

    def add(self, value: str | int | None) -> None:
        """Append a text, or a number of 64 bits; an OverflowError if it has more."""
        if value is not None:
            self._numbers.append(identity(value) if isinstance(value, str) else value)

    @property
    def values(self) -> Integer[np.ndarray, " pairs"]:
        """The values; nothing may be added while they are in use."""
        return np.frombuffer(self._numbers, np.uint64)

    def group_sizes(self) -> Integer[np.ndarray, " groups"]:
        """Return the number of pairs of each distinct value."""
        return np.unique(self.values, return_counts=True)[1]

    @property
    def distinct(self) -> int:
        """Number of distinct values."""
        return len(self.group_sizes())

    @property
    def largest_group(self) -> int:
        """Number of pairs that have the commonest value."""
        return int(self.group_sizes().max())

    @property
    def repeated(self) -> int:
        """Number of pairs whose value another pair has too."""
        sizes = self.group_sizes()
        return int(sizes[sizes > 1].sum())

    def count_in(self, other: "Identities") -> int:
        """Count the pairs whose value is among those of ``other``."""
        return int(np.isin(self.values, other.values).sum())

    def count_common(self, other: "Identities") -> int:
        """Count the distinct values that are among those of ``other``."""
        return len(np.intersect1d(self.values, other.values))


@dataclass(slots=True)
class TokenStatistics:
    """The captions of a split as one tokenizer cuts them.

    Attributes:
        unknown_id: Id of ``<unk>``; ``None`` if it is not known.
        unknown: Number of ``<unk>`` among the tokens of each caption.
        lengths: Tokens of each caption.
    """

    unknown_id: int | None = UNK
    unknown: Numbers = field(default_factory=lambda: array("q"))
    lengths: Numbers = field(default_factory=lambda: array("q"))
    lines: Identities = field(default_factory=Identities)

    def add(self, ids: Sequence[int]) -> None:
        """Count a caption."""
        self.lengths.append(len(ids))
        self.lines.add(to_line(ids))
        self.unknown.append(0 if self.unknown_id is None else ids.count(self.unknown_id))

    @property
    def unknown_percent(self) -> float:
        """Share of ``<unk>`` among the tokens, in percent."""
        return 100 * sum(self.unknown) / max(1, sum(self.lengths))


class SplitStatistics:
    """One split in numbers, counted while its pairs stream by.

    Args:
        columns: Values of a pair to be compared besides :data:`COLUMNS`.

    Attributes:
        languages: Pairs by detected language; ``und`` for none.
        language_of: Language of each pair, by its place in ``languages``.
        caption_sources: Pairs by where the caption stood in the page.
        flags: Pairs by flag.
        characters: Characters of each caption.
        columns: Identities of each column's values.
        phashes: Perceptual hashes of the screenshots that have one.
        detected: Pages by their number of regions from the detector proper.
        sources: Regions by number of their source, see
            :data:`now_builder.formats.features.SOURCES`.
    """

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self.pairs = 0
        self.languages: Counter[str] = Counter()
        self.language_of: Numbers = array("q")
        self._places: dict[str, int] = {}
        self.caption_sources: Counter[str] = Counter()
        self.flags: Counter[str] = Counter()
        self.characters: Numbers = array("q")
        self._columns = {**COLUMNS, **(columns or {})}
        self.columns = {name: Identities() for name in self._columns}
        self.phashes = Identities()
        self.tracks: dict[str, TokenStatistics] = {}
        self.detected: Counter[int] = Counter()
        self.sources: Counter[int] = Counter()

    def add_pair(self, pair: Pair) -> None:
        """Count a pair."""
        if pair.phash:
            self.phashes.add(int(pair.phash, 16))
        self.pairs += 1
        self.characters.append(len(pair.caption))
        language = pair.lang or "und"
        self.languages[language] += 1
        self.language_of.append(self._places.setdefault(language, len(self._places)))
        self.caption_sources[pair.caption_source or "unknown"] += 1
        self.flags.update(flag for flag in pair.flags.split(",") if flag)
        for name, value in self._columns.items():
            self.columns[name].add(value(pair))

    def add_image(self, regions_sha256: str) -> None:
        """Count a pair whose image alone is known, as in the authors' archive."""
        self.pairs += 1
        self.columns["image"].add(regions_sha256)

    def add_regions(
        self, n_regions: Integer[np.ndarray, " pages"], source: Integer[np.ndarray, "pages regions"]
    ) -> None:
        """Count the regions of some pages by their sources.

        See :class:`now_builder.formats.features.FeatureBatch`.
        """
        self.detected.update(n_regions.tolist())
        numbers, counts = np.unique(source, return_counts=True)
        self.sources.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))

    @property
    def detected_mean(self) -> float:
        """Regions from the detector proper, mean over pages."""
        return sum(number * pages for number, pages in self.detected.items()) / self.pairs

    def count_alike(self, other: "SplitStatistics") -> int:
        """Count the pairs with a perceptual hash within :data:`ALIKE` bits of one of ``other``."""
        return int(alike(self.phashes.values, other.phashes.values, ALIKE).sum())

    def ceiling(self, track: str) -> "Ceiling":
        """Bound R@1 by the duplicates of the split, see :func:`ceiling`."""
        images = self.columns["image"].values.tolist()
        return ceiling(images, self.tracks[track].lines.values.tolist())


class ReleaseStatistics:
    """The splits of a release in numbers, with the columns of :class:`SplitStatistics`."""

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self.splits = {split: SplitStatistics(columns) for split in SPLITS}

    @property
    def pairs(self) -> int:
        """Number of pairs of all splits."""
        return sum(split.pairs for split in self.splits.values())

    @property
    def languages(self) -> dict[str, int]:
        """Pairs by language over all splits, the commonest first."""
        return self._summed("languages")

    def unknown_percents(self, track: str) -> dict[str, float]:
        """Return the share of ``<unk>`` among one tokenizer's tokens, in percent, by language."""
        unknown, tokens = Counter[str](), Counter[str]()
        for split in self.splits.values():
            found = split.tracks[track]
            for counts, numbers in ((unknown, found.unknown), (tokens, found.lengths)):
                sums = np.bincount(split.language_of, numbers, len(split.languages))
                counts.update(dict(zip(split.languages, sums.astype(int).tolist(), strict=True)))
        return {name: 100 * unknown[name] / max(1, tokens[name]) for name in self.languages}

    @property
    def caption_sources(self) -> dict[str, int]:
        """Pairs by where the caption stood in the page, over all splits."""
        return self._summed("caption_sources")

    @property
    def flags(self) -> dict[str, int]:
        """Pairs by flag over all splits, the commonest first."""
        return self._summed("flags")

    def _summed(self, counter: str) -> dict[str, int]:
        return ranked(sum((getattr(split, counter) for split in self.splits.values()), Counter()))

    def read_pairs(self, release: Path) -> Iterator[Pair]:
        """Read ``pairs.parquet`` row by row; each pair is counted before it is yielded."""
        path, splits = release / "pairs.parquet", {str(name): s for name, s in self.splits.items()}
        for pair in stream_pairs(release):
            if pair.split not in splits:
                raise FormatError(path, f"split {pair.split!r:.40} of {pair.key}")
            try:
                splits[pair.split].add_pair(pair)
            except (ValueError, OverflowError):
                raise FormatError(
                    path, f"phash {pair.phash!r:.40} of {pair.key}, expected 16 hexadecimal digits"
                ) from None
            yield pair

    def read_tokens(
        self, release: Path, split: Split, track: str, unknown_id: int | None = UNK
    ) -> Iterator[list[int]]:
        """Read the captions of a split under one tokenizer, counting each; pairs come first."""
        statistics = self.splits[split]
        found = statistics.tracks[track] = TokenStatistics(unknown_id)
        path = data_folder(release) / f"{split}_caps_{track}.txt"
        number = 0
        for number, line in enumerate(stream_lines(path, "no such file"), 1):
            if number <= statistics.pairs:
                ids = from_line(path, number, line)
                found.add(ids)
                yield ids
        if number != statistics.pairs:
            raise FormatError(path, f"{number} captions, expected {statistics.pairs}: one a pair")

    def read_regions(self, release: Path, split: Split) -> None:
        """Count the regions of a split by their sources; no embedding is read."""
        from now_builder.formats.features import REGIONS, open_features

        path, statistics = release / DATA_FOLDER / f"{split}.h5", self.splits[split]
        with open_features(path) as features:
            if len(features) != statistics.pairs:
                raise FormatError(path, f"{len(features)} pages, expected {statistics.pairs}")
            for start in range(0, len(features), _PAGES):
                rows = slice(start, start + _PAGES)
                statistics.add_regions(
                    features.column("n_regions", rows).clip(0, REGIONS),
                    features.column("source", rows),
                )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Expected R@1 (percent) of a perfect model that must break ties at random."""

    i2t: float
    t2i: float


def ceiling(images: Sequence[Hashable], captions: Sequence[Hashable]) -> Ceiling:
    r"""Bound R@1 where identical captions, or identical images, are ranked by chance.

    For an image a perfect model ranks one caption text first; that text is carried by
    :math:`m_b` pairs, of which :math:`n_{ab}` have this image, so that over the queries with
    image :math:`a` it gains at most :math:`\max_b n_{ab} / m_b`. With distinct images the sum is
    the number of distinct captions. The other direction is its mirror.
    """
    both = Counter(zip(images, captions, strict=True))
    of_image, of_caption = Counter(images), Counter(captions)
    i2t: dict[Hashable, float] = {}
    t2i: dict[Hashable, float] = {}
    for (image, caption), count in both.items():
        i2t[image] = max(i2t.get(image, 0.0), count / of_caption[caption])
        t2i[caption] = max(t2i.get(caption, 0.0), count / of_image[image])
    return Ceiling(100 * sum(i2t.values()) / len(images), 100 * sum(t2i.values()) / len(captions))


def alike(
    later: UInt64[np.ndarray, " later"], earlier: UInt64[np.ndarray, " earlier"], bits: int
) -> Bool[np.ndarray, " later"]:
    """Find the perceptual hashes that have one within ``bits`` bits among earlier ones."""
    found = np.zeros(len(later), dtype=bool)
    if len(earlier):
        for start in range(0, len(later), _HASHES):
            part = later[start : start + _HASHES]
            bits_apart = np.bitwise_count(part[:, None] ^ earlier[None])
            found[start : start + _HASHES] = (bits_apart <= bits).any(axis=1)
    return found
