"""Statistics of a release, counted in one pass: lengths, duplicates, overlaps of splits, ceilings.

Memory is a few bytes per pair: texts are compared by 64-bit hashes.
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
"""Values that are always compared between pairs."""

NEAR_BITS = 4
"""Maximum number of different bits, of 64, in the perceptual hashes of similar screenshots."""

_HASH_BATCH = 64
"""Number of perceptual hashes compared with all others at once."""

_PAGE_BATCH = 4096
"""Number of pages whose columns are read at once."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Distribution of counts."""

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


def sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort counts in descending order, equal counts by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def identity(text: str) -> int:
    """Hash a text to 64 bits; a collision among 100,000 texts is very unlikely."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class HashColumn:
    """The values of one column as 64-bit hashes, in pair order; ``None`` is left out."""

    def __init__(self) -> None:
        self._hashes: Numbers = array("Q")

    def add(self, value: str | int | None) -> None:
        """Append the hash of a text, or a number; an OverflowError if it has more than 64 bits."""
        if value is not None:
            self._hashes.append(identity(value) if isinstance(value, str) else value)

    @property
    def values(self) -> Integer[np.ndarray, " pairs"]:
        """The hashes; :meth:`add` fails while the array is in use."""
        return np.frombuffer(self._hashes, np.uint64)

    @property
    def distinct(self) -> int:
        """Number of distinct values."""
        return len(np.unique(self.values))

    @property
    def largest_group(self) -> int:
        """Number of pairs with the most common value."""
        return int(np.unique(self.values, return_counts=True)[1].max())

    def count_in(self, other: "HashColumn") -> int:
        """Count the pairs whose value occurs in ``other``."""
        return int(np.isin(self.values, other.values).sum())


@dataclass(slots=True)
class TokenStatistics:
    """Statistics of a split's captions under one tokenizer.

    Attributes:
        unknown_id: Id of ``<unk>``; ``None`` if it is not known.
        unknown: Number of ``<unk>`` in each caption.
        lengths: Number of tokens in each caption.
        lines: Hash of each caption's token line.
    """

    unknown_id: int | None = UNK
    unknown: Numbers = field(default_factory=lambda: array("q"))
    lengths: Numbers = field(default_factory=lambda: array("q"))
    lines: HashColumn = field(default_factory=HashColumn)

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
    """Statistics of one split, counted while its pairs are streamed.

    Args:
        columns: Values to compare between pairs, in addition to :data:`COLUMNS`.

    Attributes:
        languages: Number of pairs by detected language; ``und`` for undecided.
        language_of: Language of each pair, as its position in ``languages``.
        caption_sources: Number of pairs by the source of the caption in the page.
        flags: Number of pairs by flag.
        characters: Number of characters in each caption.
        columns: Hashes of each column's values.
        phashes: Perceptual hashes of the screenshots; pairs without one are left out.
        detected: Number of pages by the number of regions that the detector found.
        sources: Number of regions by source, see :data:`now_builder.formats.features.SOURCES`.
    """

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self.pairs = 0
        self.languages: Counter[str] = Counter()
        self.language_of: Numbers = array("q")
        self._language_ids: dict[str, int] = {}
        self.caption_sources: Counter[str] = Counter()
        self.flags: Counter[str] = Counter()
        self.characters: Numbers = array("q")
        self._columns = {**COLUMNS, **(columns or {})}
        self.columns = {name: HashColumn() for name in self._columns}
        self.phashes = HashColumn()
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
        self.language_of.append(self._language_ids.setdefault(language, len(self._language_ids)))
        self.caption_sources[pair.caption_source or "unknown"] += 1
        self.flags.update(flag for flag in pair.flags.split(",") if flag)
        for name, value in self._columns.items():
            self.columns[name].add(value(pair))

    def add_regions(
        self, n_regions: Integer[np.ndarray, " pages"], source: Integer[np.ndarray, "pages regions"]
    ) -> None:
        """Count the regions of some pages by source, from the columns of a ``FeatureBatch``."""
        self.detected.update(n_regions.tolist())
        numbers, counts = np.unique(source, return_counts=True)
        self.sources.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))

    @property
    def detected_mean(self) -> float:
        """Mean number of regions per page that the detector found."""
        return sum(number * pages for number, pages in self.detected.items()) / self.pairs

    def count_similar(self, other: "SplitStatistics") -> int:
        """Count the pairs whose perceptual hash is near one of ``other``, see NEAR_BITS."""
        return int(near_hashes(self.phashes.values, other.phashes.values, NEAR_BITS).sum())

    def ceiling(self, track: str) -> "Ceiling":
        """Return the upper bound of R@1 under one tokenizer, see :func:`ceiling`."""
        images = self.columns["image"].values.tolist()
        return ceiling(images, self.tracks[track].lines.values.tolist())


class ReleaseStatistics:
    """Statistics of the splits of a release; ``columns`` as in :class:`SplitStatistics`."""

    def __init__(self, columns: Mapping[str, Column] | None = None) -> None:
        self.splits = {split: SplitStatistics(columns) for split in SPLITS}

    @property
    def pairs(self) -> int:
        """Number of pairs in all splits."""
        return sum(split.pairs for split in self.splits.values())

    @property
    def languages(self) -> dict[str, int]:
        """Number of pairs by language, in all splits."""
        return self._summed("languages")

    def unknown_percents(self, track: str) -> dict[str, float]:
        """Return the share of ``<unk>`` among one tokenizer's tokens, in percent, by language."""
        unknown, tokens = Counter[str](), Counter[str]()
        for split in self.splits.values():
            statistics = split.tracks[track]
            for counts, numbers in ((unknown, statistics.unknown), (tokens, statistics.lengths)):
                sums = np.bincount(split.language_of, numbers, len(split.languages))
                counts.update(dict(zip(split.languages, sums.astype(int).tolist(), strict=True)))
        return {name: 100 * unknown[name] / max(1, tokens[name]) for name in self.languages}

    @property
    def caption_sources(self) -> dict[str, int]:
        """Number of pairs by the source of the caption in the page, in all splits."""
        return self._summed("caption_sources")

    @property
    def flags(self) -> dict[str, int]:
        """Number of pairs by flag, in all splits."""
        return self._summed("flags")

    def _summed(self, name: str) -> dict[str, int]:
        return sort_counts(sum((getattr(split, name) for split in self.splits.values()), Counter()))

    def read_pairs(self, release: Path) -> Iterator[Pair]:
        """Read ``pairs.parquet`` row by row, and count each pair."""
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
        """Read the captions of a split under one tokenizer, and count each; read pairs first."""
        statistics = self.splits[split]
        tokens = statistics.tracks[track] = TokenStatistics(unknown_id)
        path = data_folder(release) / f"{split}_caps_{track}.txt"
        number = 0
        for number, line in enumerate(stream_lines(path), 1):
            if number <= statistics.pairs:
                ids = from_line(path, number, line)
                tokens.add(ids)
                yield ids
        if number != statistics.pairs:
            raise FormatError(path, f"{number} captions, expected {statistics.pairs}, one per pair")

    def read_regions(self, release: Path, split: Split) -> None:
        """Count the regions of a split by source, without reading their embeddings."""
        from now_builder.formats.features import REGIONS, open_features

        path, statistics = release / DATA_FOLDER / f"{split}.h5", self.splits[split]
        with open_features(path) as features:
            if len(features) != statistics.pairs:
                raise FormatError(path, f"{len(features)} pages, expected {statistics.pairs}")
            for start in range(0, len(features), _PAGE_BATCH):
                rows = slice(start, start + _PAGE_BATCH)
                statistics.add_regions(
                    features.column("n_regions", rows).clip(0, REGIONS),
                    features.column("source", rows),
                )


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Expected R@1 (percent) of a perfect model that breaks ties at random."""

    i2t: float
    t2i: float


def ceiling(images: Sequence[Hashable], captions: Sequence[Hashable]) -> Ceiling:
    r"""Return the upper bound of R@1 if identical captions, or identical images, rank at random.

    For an image, a perfect model ranks one caption text first. :math:`m_b` pairs have that text,
    and :math:`n_{ab}` of them have this image. The queries with image :math:`a` therefore gain at
    most :math:`\max_b n_{ab} / m_b`. With distinct images the sum is the number of distinct
    captions. The other direction is symmetric.
    """
    pairs = Counter(zip(images, captions, strict=True))
    image_counts, caption_counts = Counter(images), Counter(captions)
    i2t: dict[Hashable, float] = {}
    t2i: dict[Hashable, float] = {}
    for (image, caption), count in pairs.items():
        i2t[image] = max(i2t.get(image, 0.0), count / caption_counts[caption])
        t2i[caption] = max(t2i.get(caption, 0.0), count / image_counts[image])
    return Ceiling(100 * sum(i2t.values()) / len(images), 100 * sum(t2i.values()) / len(captions))


def near_hashes(
    hashes: UInt64[np.ndarray, " hashes"], others: UInt64[np.ndarray, " others"], bits: int
) -> Bool[np.ndarray, " hashes"]:
    """Return whether each hash differs in at most ``bits`` bits from one of ``others``."""
    near = np.zeros(len(hashes), dtype=bool)
    if len(others):
        for start in range(0, len(hashes), _HASH_BATCH):
            batch = hashes[start : start + _HASH_BATCH]
            distances = np.bitwise_count(batch[:, None] ^ others[None])
            near[start : start + _HASH_BATCH] = (distances <= bits).any(axis=1)
    return near
