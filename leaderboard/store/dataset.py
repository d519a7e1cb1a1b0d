"""The dataset report: duplicates, ceilings, leaks and references of a release."""

import hashlib
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from pydantic import Field

from leaderboard.core.rounds import read_round
from leaderboard.core.tracks import SCORED_SPLITS, check_scored_split, check_track
from leaderboard.scoring.evaluate import ceiling_rsum, read_inputs
from leaderboard.scoring.result import Count, Percent, Points, is_none
from leaderboard.store.entries import DATASETS, MAX_RECORD, read_record
from leaderboard.submission.archive import Line
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
)
from now_builder.formats.split import SPLITS, Split, registrable_domain
from now_builder.formats.statistics import (
    Identities,
    ReleaseStatistics,
    SplitStatistics,
    ranked,
)

MAX_DENSE = 5000
"""Pairs up to which the ceiling of rSum and the references are computed: they take a matrix."""

_SCAN = 256
_LABEL = 120


class TrackReport(Strict):
    """The captions of a split as a tokenizer cuts them.

    Attributes:
        distinct: Distinct captions, by their tokens.
        queries: Captions that are not the only one of their kind.
        ceiling_i2t: Expected R@1, percent, of a scorer that knows everything but cannot tell
            identical captions, or identical images, from each other.
        ceiling_rsum: The same of all six recalls; None of splits above 5,000 pairs.
        references: rSum of reference scorers without attributes; empty for train.
    """

    split: Split
    track: Line
    fingerprint: Sha256
    captions: Count
    distinct: Count
    queries: Count
    ceiling_i2t: Percent
    ceiling_t2i: Percent
    ceiling_rsum: Points | None
    references: dict[Line, Points]


class Queries(Strict):
    """Language of the caption (``und`` for none) and site of each query, in row order."""

    languages: tuple[Line, ...]
    sites: tuple[Line, ...]


class SplitReport(Strict):
    """The images and pages of a split; fields from ``pairs.parquet`` are None for an archive.

    Attributes:
        images: Distinct images, by their features.
        image_queries: Images that are not the only one of their kind.
        looks: Pairs whose screenshot has the perceptual hash of another pair's.
        languages: Language and pairs, the commonest first; ``und`` for none.
        queries: None for train.
    """

    split: Split
    pairs: Count
    images: Count
    image_queries: Count
    looks: Count | None
    sites: Count | None
    domains: Count | None
    languages: tuple[tuple[Line, Count], ...] | None
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
    captions: dict[Line, Count]
    images: Count
    alike: Count | None
    sites: Count | None
    domains: Count | None
    site_pairs: Count | None


class DatasetReport(Strict):
    """``datasets/<fingerprint>.json`` of a store.

    Attributes:
        fingerprint: Hash of captions, keys and images of all splits.
        name: Name of the folder of the release.
        tracks: By split, then track: a result is on one of these if ``fingerprint`` is the same.
    """

    format: Literal["now-dataset/2"] = "now-dataset/2"
    fingerprint: Sha256
    name: Line
    origin: Literal["rebuilt", "archive"]
    splits: tuple[SplitReport, ...]
    tracks: tuple[TrackReport, ...]
    leaks: tuple[LeakReport, ...]

    def to_json(self) -> str:
        """Return the text of the file."""
        return self.model_dump_json(indent=2) + "\n"


_Pages: TypeAlias = dict[Split, list[tuple[str, str]]]
"""Key and image hash of each pair by split, in order: the fingerprints are made of them."""


def dataset_report(release: Path) -> DatasetReport:
    """Count identical, shared and unknown items of a release, ours or the authors' archive.

    Raises:
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
            statistics.read_tokens(release, split, track, None),
        )
        for split in splits
        for track in tracks[split]
    }
    digest = hashlib.sha256()
    for (split, track), own in prints.items():
        digest.update(f"{split} {track} {own}\n".encode())
    for split in splits:
        digest.update("".join(f"{image}\n" for _, image in pages[split]).encode())
    by_split = statistics.splits
    return DatasetReport(
        fingerprint=digest.hexdigest(),
        name=release.resolve().name[:_LABEL],
        origin="rebuilt" if ours else "archive",
        splits=tuple(
            _split_report(split, by_split[split], queries.get(split), ours=ours) for split in splits
        ),
        tracks=tuple(
            _track_report(release, split, track, by_split[split], own)
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
    """Write a report into a store.

    Raises:
        FormatError: If another report of the same release is there, or this one is too large.
    """
    path = store / DATASETS / f"{report.fingerprint}.json"
    text = report.to_json()
    if len(text.encode()) > MAX_RECORD:
        raise FormatError(path, f"{len(text.encode())} bytes, expected {MAX_RECORD} at most")
    if path.exists() and read_record(path, DatasetReport) != report:
        raise FormatError(path, "another report of the same captions and images is filed there")
    write_text(path, text)
    return path


def _tracks(folder: Path, split: Split) -> list[str]:
    head = f"{split}_caps_"
    return sorted(path.stem.removeprefix(head) for path in folder.glob(f"{head}*.txt"))


def _read_archive(
    release: Path, splits: Sequence[Split], statistics: ReleaseStatistics, pages: _Pages
) -> None:
    for split in splits:
        with open_regions(release, split) as regions:
            for start in range(0, int(regions.shape[0]), _SCAN):
                for row, image in enumerate(regions[start : start + _SCAN], start):
                    pages[split].append((str(row), hash_of(image)))
                    statistics.splits[split].add_image(pages[split][-1][1])


def _track_report(
    release: Path, split: Split, track: str, statistics: SplitStatistics, found: str
) -> TrackReport:
    tokens, best = statistics.tracks[track], statistics.ceiling(track)
    images = statistics.columns["image"]
    dense, references = len(images.values) <= MAX_DENSE, {}
    if dense and split in SCORED_SPLITS:
        inputs = read_inputs(release, check_scored_split(split), check_track(track))
        references = inputs.references
    return TrackReport(
        split=split,
        track=track,
        fingerprint=found,
        captions=len(tokens.lengths),
        distinct=tokens.lines.distinct,
        queries=tokens.lines.repeated,
        ceiling_i2t=best.i2t,
        ceiling_t2i=best.t2i,
        ceiling_rsum=_ceiling_rsum(images, tokens.lines) if dense else None,
        references=references,
    )


def _ceiling_rsum(images: Identities, captions: Identities) -> float:
    same, said = (np.unique(found.values, return_inverse=True)[1] for found in (images, captions))
    return ceiling_rsum(same, said, np.arange(len(same)))


def _split_report(
    split: Split, statistics: SplitStatistics, queries: Sequence[Pair] | None, *, ours: bool
) -> SplitReport:
    columns, phashes = statistics.columns, statistics.phashes
    labels = Queries(
        languages=tuple((pair.lang or "und")[:_LABEL] for pair in queries or ()),
        sites=tuple(pair.site[:_LABEL] for pair in queries or ()),
    )
    return SplitReport(
        split=split,
        pairs=statistics.pairs,
        images=columns["image"].distinct,
        image_queries=columns["image"].repeated,
        looks=phashes.repeated if len(phashes.values) else None,
        sites=columns["site"].distinct if ours else None,
        domains=columns["domain"].distinct if ours else None,
        languages=tuple(ranked(statistics.languages).items()) if ours else None,
        queries=labels if queries else None,
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
