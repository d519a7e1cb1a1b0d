"""The dataset report: duplicates, ceilings and leaks of a release."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from leaderboard.core.rounds import read_round
from leaderboard.core.tracks import SCORED_SPLITS
from leaderboard.scoring.evaluate import ceiling_rsum
from leaderboard.scoring.result import Count, Percent, Points, is_none
from leaderboard.store.entries import MAX_RECORD, locked, read_record
from now_builder.config import Sha256, Strict
from now_builder.errors import FormatError
from now_builder.formats.io import write_text
from now_builder.formats.release import (
    Pair,
    check_split,
    data_folder,
    fingerprint,
    hash_of,
    is_ours,
    open_regions,
    read_release_vocabulary,
    shared_licence,
)
from now_builder.formats.screenshots import data_uri, find_screenshots
from now_builder.formats.split import SPLITS, Split, registrable_domain
from now_builder.formats.statistics import (
    Identities,
    ReleaseStatistics,
    SplitStatistics,
    ranked,
    summarize,
)

DATASETS = "datasets"
"""Folder of a store."""

MAX_DENSE = 5000
"""Pairs up to which the ceiling of rSum is worked out: it takes a matrix."""

_SCAN = 256

_PICTURE, _PICTURES = 6_000.0, 6.0 * 2**20
"""Bytes of a picture as text, and of all pictures of a report, about."""

_LABEL = 255
Label = Annotated[str, Field(max_length=_LABEL)]
Picture = Annotated[
    str, Field(max_length=2**16, pattern=r"^data:image/webp;base64,[A-Za-z0-9+/]+={0,2}$")
]
Tokens = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class TrackReport(Strict):
    """The captions of a split as a tokenizer cuts them.

    Attributes:
        distinct: Distinct captions, by their tokens.
        group_sizes: Size of a group of identical captions, and how many groups have it.
        queries: Captions that are not the only one of their kind.
        ceiling_i2t: Expected R@1, percent, of a scorer that knows everything but cannot tell
            identical captions, or identical images, from each other.
        ceiling_rsum: The same of all six recalls; None of splits above 5,000 pairs.
        unknown: Share of ``<unk>`` among the tokens, percent; None without a vocabulary.
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


class Queries(Strict):
    """What pages say of each query of a split, in the order of its rows.

    Attributes:
        languages: Language of the caption; ``und`` for none.
        captions: Captions; None unless they may be published.
        pictures: Small screenshots as data URIs; None unless ``licence`` lets others have them.
    """

    languages: tuple[Label, ...]
    sites: tuple[Label, ...]
    captions: tuple[str, ...] | None = None
    pictures: tuple[Picture, ...] | None = Field(None, exclude_if=is_none)
    licence: Label | None = Field(None, exclude_if=is_none)

    @model_validator(mode="after")
    def _check_lengths(self) -> "Queries":
        columns = self.languages, self.sites, self.captions, self.pictures
        if len({len(column) for column in columns if column is not None}) > 1:
            raise ValueError("languages, sites, captions and pictures of different lengths")
        if self.pictures is not None and self.licence is None:
            raise ValueError("pictures without the licence that lets others have them")
        return self


class SplitReport(Strict):
    """The images and pages of a split; fields from ``pairs.parquet`` are None for an archive.

    Attributes:
        images: Distinct images, by their features.
        image_group_sizes: Size of a group of identical images, and how many groups have it.
        image_queries: Images that are not the only one of their kind.
        looks: Pairs whose screenshot has the perceptual hash of another pair's.
        languages: Language and pairs, the commonest first; ``und`` for none.
        queries: None for train, and in ``now-dataset/1``.
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
    queries: Queries | None = Field(None, exclude_if=is_none)


class LeakReport(Strict):
    """Pairs of a later split that an earlier one has too.

    Attributes:
        captions: By track: pairs whose caption, by its tokens, is in the earlier split too.
        images: Pairs whose image, by its features, is.
        alike: Pairs whose screenshot's perceptual hash is within 4 bits of one there.
        site_pairs: Pairs of the later split on hosts that are in both.
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
    """``datasets/<fingerprint>.json`` of a store. Its counts are immutable.

    Attributes:
        format: ``now-dataset/1`` is the same without queries.
        fingerprint: Hash of captions, keys and images of all splits.
        name: Name of the folder of the release.
        tracks: By split, then track: a result is on one of these if ``fingerprint`` is the same.
    """

    format: Literal["now-dataset/1", "now-dataset/2"] = "now-dataset/2"
    fingerprint: Sha256
    name: Annotated[str, Field(max_length=120)]
    origin: Literal["rebuilt", "archive"]
    splits: tuple[SplitReport, ...]
    tracks: tuple[TrackReport, ...]
    leaks: tuple[LeakReport, ...]

    def to_json(self) -> str:
        """Return the text of the file."""
        return self.model_dump_json(indent=2) + "\n"


def dataset_report(
    release: Path, *, captions: bool = False, captures: Path | None = None
) -> DatasetReport:
    """Count identical, shared and unknown items of a release, ours or the authors' archive.

    With ``captions`` those of dev and test are in it too, with ``captures`` their screenshots, for
    the pages of missed queries.

    Raises:
        ConfigError: If the release's licence does not let others have its screenshots.
        FormatError: If it cannot be read, or is a blind round.
    """
    if read_round(release) is not None:
        raise FormatError(release, "a blind round; report on the release that it was drawn from")
    ours, folder = is_ours(release), data_folder(release)
    tracks = {split: _tracks(folder, split) for split in SPLITS}
    splits: list[Split] = [split for split in SPLITS if tracks[split]]
    statistics = ReleaseStatistics({"domain": lambda pair: registrable_domain(pair.site)})
    pages: _Pages = {split: [] for split in SPLITS}
    queries: dict[str, list[Pair]] = {split: [] for split in SCORED_SPLITS}
    if ours:
        for pair in statistics.read_pairs(release):
            pages[check_split(pair.split)].append((pair.key, pair.regions_sha256))
            queries.get(pair.split, []).append(pair)
    else:
        _read_archive(release, splits, statistics, pages)
    prints = {
        (split, track): fingerprint(
            [key for key, _ in pages[split]],
            statistics.read_tokens(release, split, track, _unknown_id(release, track)),
        )
        for split in splits
        for track in tracks[split]
    }
    told = {split: _queries(own, captions=captions) for split, own in queries.items() if own}
    if captures is not None:
        told = _pictured(release, captures, queries, told)
    digest = hashlib.sha256()
    for (split, track), own in prints.items():
        digest.update(f"{split} {track} {own}\n".encode())
    for split in splits:
        digest.update("".join(f"{image}\n" for _, image in pages[split]).encode())
    by_split = statistics.splits
    return DatasetReport(
        fingerprint=digest.hexdigest(),
        name=release.resolve().name[:120],
        origin="rebuilt" if ours else "archive",
        splits=tuple(
            _split_report(split, by_split[split], ours=ours).model_copy(
                update={"queries": told.get(split)}
            )
            for split in splits
        ),
        tracks=tuple(
            _track_report(split, track, by_split[split], own)
            for (split, track), own in prints.items()
        ),
        leaks=tuple(
            _leak(earlier, later, statistics, ours=ours)
            for earlier, later in combinations(splits, 2)
        ),
    )


def read_reports(store: Path) -> list[DatasetReport]:
    """Read the reports of a store, by fingerprint."""
    return [
        read_record(path, DatasetReport)
        for path in sorted((store / DATASETS).glob("[0-9a-f]*.json"))
    ]


def file_report(store: Path, report: DatasetReport) -> Path:
    """Write a report into a store, in place of one with the same counts.

    Raises:
        FormatError: If another report of the same release is there, or this one is too large.
    """
    path = store / DATASETS / f"{report.fingerprint}.json"
    text = report.to_json()
    if len(text.encode()) > MAX_RECORD:
        wanted = "expected a report without captions or pictures"
        raise FormatError(path, f"more than {MAX_RECORD} bytes, {wanted}")
    with locked(store):
        if path.exists() and _counts(read_record(path, DatasetReport)) != _counts(report):
            raise FormatError(path, "another report of the same captions and images is filed there")
        write_text(path, text)
    return path


def _counts(report: DatasetReport) -> DatasetReport:
    splits = tuple(split.model_copy(update={"queries": None}) for split in report.splits)
    return report.model_copy(update={"format": "now-dataset/2", "splits": splits})


def _queries(pairs: Sequence[Pair], *, captions: bool) -> Queries:
    return Queries(
        languages=tuple((pair.lang or "und")[:_LABEL] for pair in pairs),
        sites=tuple(pair.site[:_LABEL] for pair in pairs),
        captions=tuple(pair.caption for pair in pairs) if captions else None,
    )


def _pictured(
    release: Path,
    captures: Path,
    pairs: Mapping[str, Sequence[Pair]],
    told: Mapping[str, Queries],
) -> dict[str, Queries]:
    """Add the screenshots of each split's pairs, if the release's licence lets others have them."""
    licence = shared_licence(release)
    found = find_screenshots(captures, [pair for own in pairs.values() for pair in own])
    budget = min(_PICTURE, _PICTURES / max(len(found), 1))

    def picture(pair: Pair) -> str:
        return data_uri(pair.key, found[pair.key].read(), budget)

    return {
        split: queries.model_copy(
            update={"pictures": tuple(map(picture, pairs[split])), "licence": licence[:_LABEL]}
        )
        for split, queries in told.items()
    }


def _tracks(folder: Path, split: Split) -> list[str]:
    head = f"{split}_caps_"
    return sorted(path.stem.removeprefix(head) for path in folder.glob(f"{head}*.txt"))


_Pages: TypeAlias = dict[Split, list[tuple[str, str]]]
"""Key and image hash of each pair by split, in order: the fingerprints are made of them."""


def _read_archive(
    release: Path, splits: Sequence[Split], statistics: ReleaseStatistics, pages: _Pages
) -> None:
    for split in splits:
        with open_regions(release, split) as regions:
            for start in range(0, int(regions.shape[0]), _SCAN):
                for row, image in enumerate(regions[start : start + _SCAN], start):
                    pages[split].append((str(row), hash_of(image)))
                    statistics.splits[split].add_image(pages[split][-1][1])


def _unknown_id(release: Path, track: str) -> int | None:
    """Return the id of ``<unk>``; None without a vocabulary."""
    try:
        return read_release_vocabulary(release, track).word2idx.get("<unk>")
    except FormatError:
        return None


def _track_report(split: Split, track: str, statistics: SplitStatistics, found: str) -> TrackReport:
    tokens, best = statistics.tracks[track], statistics.ceiling(track)
    summary = summarize(tokens.lengths)
    return TrackReport(
        split=split,
        track=track,
        fingerprint=found,
        captions=len(tokens.lengths),
        distinct=tokens.lines.distinct,
        group_sizes=_sizes(tokens.lines),
        queries=tokens.lines.repeated,
        ceiling_i2t=best.i2t,
        ceiling_t2i=best.t2i,
        ceiling_rsum=_ceiling_rsum(statistics.columns["image"], tokens.lines),
        unknown=None if tokens.unknown_id is None else tokens.unknown_percent,
        tokens_mean=summary.mean,
        tokens_median=summary.median,
        tokens_p99=summary.p99,
        tokens_most=summary.largest,
    )


def _ceiling_rsum(images: Identities, captions: Identities) -> float | None:
    count = len(images.values)
    if count > MAX_DENSE:
        return None
    same, said = (np.unique(found.values, return_inverse=True)[1] for found in (images, captions))
    return ceiling_rsum(same, said, np.arange(count))


def _sizes(found: Identities) -> tuple[tuple[int, int], ...]:
    sizes = Counter(found.group_sizes().tolist())
    return tuple(sorted((size, count) for size, count in sizes.items() if size > 1))


def _split_report(split: Split, statistics: SplitStatistics, *, ours: bool) -> SplitReport:
    columns, phashes = statistics.columns, statistics.phashes
    return SplitReport(
        split=split,
        pairs=statistics.pairs,
        images=columns["image"].distinct,
        image_group_sizes=_sizes(columns["image"]),
        image_queries=columns["image"].repeated,
        looks=phashes.repeated if len(phashes.values) else None,
        sites=columns["site"].distinct if ours else None,
        domains=columns["domain"].distinct if ours else None,
        languages=tuple(ranked(statistics.languages).items()) if ours else None,
    )


def _leak(earlier: Split, later: Split, statistics: ReleaseStatistics, *, ours: bool) -> LeakReport:
    first, second = statistics.splits[earlier], statistics.splits[later]
    hashed = len(first.phashes.values) and len(second.phashes.values)
    sites, domains = second.columns["site"], second.columns["domain"]
    return LeakReport(
        earlier=earlier,
        later=later,
        captions={
            name: track.lines.count_in(first.tracks[name].lines)
            for name, track in second.tracks.items()
            if name in first.tracks
        },
        images=second.columns["image"].count_in(first.columns["image"]),
        alike=second.count_alike(first) if hashed else None,
        sites=sites.count_common(first.columns["site"]) if ours else None,
        domains=domains.count_common(first.columns["domain"]) if ours else None,
        site_pairs=sites.count_in(first.columns["site"]) if ours else None,
    )
