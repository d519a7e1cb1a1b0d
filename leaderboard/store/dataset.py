"""What a release says of itself to who compares scores on it: duplicates, ceilings, leaks."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from jaxtyping import Integer, UInt64
from pydantic import Field

from leaderboard.core.rounds import read_round
from leaderboard.scoring.evaluate import ceiling_rsum
from leaderboard.scoring.result import Count, Percent, Points
from leaderboard.store.entries import read_record
from leaderboard.submission.gallery import Gallery
from now_builder.config import Sha256, Strict
from now_builder.errors import FormatError
from now_builder.formats.captions import from_line, to_line
from now_builder.formats.io import read_lines, write_text
from now_builder.formats.perceptual_hash import ALIKE, alike
from now_builder.formats.release import (
    ceiling,
    data_folder,
    fingerprint,
    hash_of,
    is_ours,
    open_regions,
    read_release_vocabulary,
    stream_pairs,
)
from now_builder.formats.split import SPLITS, Split, registrable_domain

DATASETS = "datasets"
"""Folder of a store."""

MAX_DENSE = 5000
"""Pairs up to which the ceiling of rSum is worked out: it takes a matrix."""

_SCAN = 256

Tokens = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TrackReport(Strict):
    """The captions of a split as a tokenizer cuts them.

    Attributes:
        split: Which.
        track: Tokenizer.
        fingerprint: Of (split, track), as results have it.
        captions: Of the split.
        distinct: Different ones among them, by their tokens.
        group_sizes: Size of a group of identical captions, and how many groups have it.
        queries: Captions that are not the only one of their kind.
        ceiling_i2t: Expected R@1, percent, of a scorer that knows everything but cannot tell
            identical captions, or identical images, from each other.
        ceiling_t2i: The same for captions as queries.
        ceiling_rsum: The same of all six recalls; None of splits above 5,000 pairs.
        unknown: Share of ``<unk>`` among the tokens, percent; None without a vocabulary.
        tokens_mean: Tokens of a caption, on average.
        tokens_median: In the middle.
        tokens_p99: That 99 % do not exceed.
        tokens_most: Of the longest caption.
    """

    split: Split
    track: str
    fingerprint: Sha256
    captions: Count
    distinct: Count
    group_sizes: tuple[tuple[Count, Count], ...]
    queries: Count
    ceiling_i2t: Percent
    ceiling_t2i: Percent
    ceiling_rsum: Points | None
    unknown: Percent | None
    tokens_mean: Tokens
    tokens_median: Tokens
    tokens_p99: Tokens
    tokens_most: Count


class SplitReport(Strict):
    """The images and pages of a split. What only ``pairs.parquet`` tells is None of an archive.

    Attributes:
        split: Which.
        pairs: Of the split.
        images: Different ones among them, by their features.
        image_group_sizes: Size of a group of identical images, and how many groups have it.
        image_queries: Images that are not the only one of their kind.
        looks: Pairs whose screenshot has the perceptual hash of another pair's.
        sites: Hosts.
        domains: Registrable domains.
        languages: Language and pairs, the commonest first; ``und`` for none.
    """

    split: Split
    pairs: Count
    images: Count
    image_group_sizes: tuple[tuple[Count, Count], ...]
    image_queries: Count
    looks: Count | None
    sites: Count | None
    domains: Count | None
    languages: tuple[tuple[str, Count], ...] | None


class LeakReport(Strict):
    """What a later split shares with an earlier one, in pairs of the later.

    Attributes:
        earlier: train or dev.
        later: dev or test.
        captions: By track: pairs whose caption, by its tokens, is in the earlier split too.
        images: Pairs whose image, by its features, is.
        alike: Pairs whose screenshot's perceptual hash is within 4 bits of one there.
        sites: Hosts that are in both.
        domains: Registrable domains that are in both.
        site_pairs: Pairs of the later split on such hosts.
    """

    earlier: Split
    later: Split
    captions: dict[str, Count]
    images: Count
    alike: Count | None
    sites: Count | None
    domains: Count | None
    site_pairs: Count | None


class DatasetReport(Strict):
    """``datasets/<fingerprint>.json`` of a store. Immutable.

    Attributes:
        fingerprint: Of captions, keys and images of all splits.
        name: Of the release, as its manifest has it, or of its folder.
        origin: ``rebuilt`` by this toolkit, or the authors' ``archive``.
        splits: In the order train, dev, test, those that are there.
        tracks: By split, then track: a result is on one of these if ``fingerprint`` is the same.
        leaks: For each two splits.
    """

    format: Literal["now-dataset/1"] = "now-dataset/1"
    fingerprint: Sha256
    name: Annotated[str, Field(max_length=120)]
    origin: Literal["rebuilt", "archive"]
    splits: tuple[SplitReport, ...]
    tracks: tuple[TrackReport, ...]
    leaks: tuple[LeakReport, ...]

    def to_json(self) -> str:
        """Give the text of the file."""
        return self.model_dump_json(indent=2) + "\n"


@dataclass(slots=True)
class _Pages:
    """What is kept of a split's images and pages while they stream by, in pair order."""

    keys: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)
    looks: list[str] = field(default_factory=list)
    sites: Counter[str] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class _Texts:
    """What is kept of a split's captions: a hash of each one's tokens, in pair order."""

    hashes: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    unknown: int | None = None
    fingerprint: str = ""


def dataset_report(release: Path) -> DatasetReport:
    """Count what is identical, shared or unknown in a release. Captions and pages stream by.

    Args:
        release: Of now_builder, or the authors' archive.

    Raises:
        FormatError: If it cannot be read, or is a blind round.
    """
    if read_round(release) is not None:
        raise FormatError(release, "a blind round; report on the release that it was drawn from")
    ours, folder = is_ours(release), data_folder(release)
    tracks = {split: _tracks(folder, split) for split in SPLITS}
    splits: list[Split] = [split for split in SPLITS if tracks[split]]
    pages = _pages_of_ours(release, splits) if ours else _pages_of_archive(release, splits)
    texts = {
        (split, track): _read_texts(release, split, track, pages[split])
        for split in splits
        for track in tracks[split]
    }
    digest = hashlib.sha256()
    for (split, track), text in texts.items():
        digest.update(f"{split} {track} {text.fingerprint}\n".encode())
    for split in splits:
        digest.update("".join(f"{image}\n" for image in pages[split].images).encode())
    return DatasetReport(
        fingerprint=digest.hexdigest(),
        name=release.resolve().name[:120],
        origin="rebuilt" if ours else "archive",
        splits=tuple(_split_report(split, pages[split], ours=ours) for split in splits),
        tracks=tuple(_track_report(*of, text, pages[of[0]].images) for of, text in texts.items()),
        leaks=tuple(_leak(*two, pages, texts, ours=ours) for two in combinations(splits, 2)),
    )


def read_reports(store: Path) -> list[DatasetReport]:
    """Read the reports of a store, by fingerprint.

    Raises:
        FormatError: If a file is not one.
    """
    return [
        read_record(path, DatasetReport)
        for path in sorted((store / DATASETS).glob("[0-9a-f]*.json"))
    ]


def file_report(store: Path, report: DatasetReport) -> Path:
    """Put a report into a store.

    Raises:
        FormatError: If another report of the same release is there.
    """
    path = store / DATASETS / f"{report.fingerprint}.json"
    if not path.exists():
        write_text(path, report.to_json())
    elif path.read_text(encoding="utf-8") != report.to_json():
        raise FormatError(path, "another report of the same captions and images is filed there")
    return path


def _tracks(folder: Path, split: Split) -> list[str]:
    head = f"{split}_caps_"
    return sorted(path.stem.removeprefix(head) for path in folder.glob(f"{head}*.txt"))


def _pages_of_ours(release: Path, splits: Sequence[Split]) -> dict[Split, _Pages]:
    found = {split: _Pages() for split in splits}
    for pair in stream_pairs(release):
        page = next((page for split, page in found.items() if split == pair.split), None)
        if page is not None:
            page.keys.append(pair.key)
            page.images.append(pair.regions_sha256)
            page.sites[pair.site] += 1
            page.languages[pair.lang or "und"] += 1
            if pair.phash:
                page.looks.append(pair.phash)
    return found


def _pages_of_archive(release: Path, splits: Sequence[Split]) -> dict[Split, _Pages]:
    found = {}
    for split in splits:
        with open_regions(release, split) as regions:
            count = int(regions.shape[0])
            images = [
                hash_of(image)
                for start in range(0, count, _SCAN)
                for image in regions[start : start + _SCAN]
            ]
        found[split] = _Pages([str(row) for row in range(count)], images)
    return found


def _read_texts(release: Path, split: Split, track: str, pages: _Pages) -> _Texts:
    path = data_folder(release) / f"{split}_caps_{track}.txt"
    lines, found = read_lines(path, "no such file"), _Texts()
    if len(lines) != len(pages.keys):
        raise FormatError(path, f"{len(lines)} captions, expected {len(pages.keys)}: one a pair")
    unknown = _unknown(release, track)
    unknowns = 0

    def seen() -> Iterator[list[int]]:
        nonlocal unknowns
        for number, line in enumerate(lines, 1):
            ids = from_line(path, number, line)
            found.hashes.append(hashlib.sha256(to_line(ids).encode()).digest()[:16])
            found.lengths.append(len(ids))
            unknowns += ids.count(unknown)
            yield ids

    found.fingerprint = fingerprint(pages.keys, seen())
    found.unknown = unknowns if unknown >= 0 else None
    return found


def _unknown(release: Path, track: str) -> int:
    """Give the id of ``<unk>``, or one that no caption has."""
    try:
        return read_release_vocabulary(release, track).word2idx.get("<unk>", -1)
    except FormatError:
        return -1


def _track_report(split: Split, track: str, texts: _Texts, images: Sequence[str]) -> TrackReport:
    groups = Counter(texts.hashes)
    best = ceiling(images, texts.hashes)
    lengths = np.array(texts.lengths)
    median, p99 = (float(value) for value in np.quantile(lengths, [0.5, 0.99]))
    return TrackReport(
        split=split,
        track=track,
        fingerprint=texts.fingerprint,
        captions=len(texts.hashes),
        distinct=len(groups),
        group_sizes=_sizes(groups),
        queries=sum(size for size in groups.values() if size > 1),
        ceiling_i2t=best.i2t,
        ceiling_t2i=best.t2i,
        ceiling_rsum=_ceiling_rsum(texts, images),
        unknown=None if texts.unknown is None else 100 * texts.unknown / max(int(lengths.sum()), 1),
        tokens_mean=float(lengths.mean()),
        tokens_median=median,
        tokens_p99=p99,
        tokens_most=int(lengths.max()),
    )


def _ceiling_rsum(texts: _Texts, images: Sequence[str]) -> float | None:
    if len(images) > MAX_DENSE:
        return None
    rows = [str(row) for row in range(len(images))]
    own = np.arange(len(images))
    labels = _labels(images), _labels(texts.hashes)
    return ceiling_rsum(Gallery(rows, rows, own, *labels, texts.fingerprint, "rebuilt"))


def _labels(values: Sequence[str] | Sequence[bytes]) -> Integer[np.ndarray, " _"]:
    return np.asarray(np.unique(np.array(values), return_inverse=True)[1])


def _sizes(groups: Mapping[str, int] | Mapping[bytes, int]) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(size for size in groups.values() if size > 1).items()))


def _split_report(split: Split, pages: _Pages, *, ours: bool) -> SplitReport:
    groups, looks = Counter(pages.images), Counter(pages.looks)
    ranked = sorted(pages.languages.items(), key=lambda item: (-item[1], item[0]))
    return SplitReport(
        split=split,
        pairs=len(pages.images),
        images=len(groups),
        image_group_sizes=_sizes(groups),
        image_queries=sum(size for size in groups.values() if size > 1),
        looks=sum(n for n in looks.values() if n > 1) if pages.looks else None,
        sites=len(pages.sites) if ours else None,
        domains=len(_domains(pages)) if ours else None,
        languages=tuple(ranked) if ours else None,
    )


def _leak(
    earlier: Split,
    later: Split,
    pages: Mapping[Split, _Pages],
    texts: Mapping[tuple[Split, str], _Texts],
    *,
    ours: bool,
) -> LeakReport:
    first, second = pages[earlier], pages[later]
    both = first.sites.keys() & second.sites.keys()
    late, early = _bits(second.looks), _bits(first.looks)
    return LeakReport(
        earlier=earlier,
        later=later,
        captions={
            track: _shared(texts[earlier, track].hashes, text.hashes)
            for (split, track), text in texts.items()
            if split == later and (earlier, track) in texts
        },
        images=_shared(first.images, second.images),
        alike=int(alike(late, early, ALIKE).sum()) if len(late) and len(early) else None,
        sites=len(both) if ours else None,
        domains=len(_domains(first) & _domains(second)) if ours else None,
        site_pairs=sum(second.sites[site] for site in both) if ours else None,
    )


def _shared(first: Iterable[str | bytes], second: Iterable[str | bytes]) -> int:
    there = set(first)
    return sum(one in there for one in second)


def _domains(pages: _Pages) -> set[str]:
    return {registrable_domain(site) for site in pages.sites}


def _bits(looks: Sequence[str]) -> UInt64[np.ndarray, " looks"]:
    return np.array([int(phash, 16) for phash in looks], dtype=np.uint64)
