"""Report on a release: copied training captions; duplicates and ceilings of dev and test."""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Literal

from leaderboard.core.rounds import SCORED_SPLITS, ScoredSplit, check_track, read_round
from leaderboard.scoring.evaluate import ceiling
from leaderboard.scoring.references import references_of
from leaderboard.scoring.result import Count, Percent, Points
from leaderboard.store.entries import DATASETS, MAX_RECORD, read_record
from leaderboard.submission.archive import Line
from leaderboard.submission.gallery import count_repeated, read_gallery
from now_builder.config import Sha256, Strict
from now_builder.errors import FormatError
from now_builder.formats.io import write_text
from now_builder.formats.release import data_folder, is_ours, read_split_captions, read_split_pairs

_MAX_LABEL = 120
_COPIES = 3
"""Minimum number of equal captions that are copies, as in the flag ``copied_caption``."""


class TrackReport(Strict):
    """The test or dev split of a release, with the captions of one tokenizer.

    Attributes:
        captions: number of captions that are not unique, by their tokens.
        images: number of images that are not unique, by their features.
        ceiling_i2t: R@1 in percent, image to caption, of a perfect scorer that gives identical
            captions, and identical images, equal scores; ties by expectation.
        ceiling_t2i: R@1 in percent of that scorer, caption to image.
        ceiling_rsum: rSum of that scorer.
        references: rSum of the reference scorers without attributes.
    """

    split: ScoredSplit
    track: Line
    fingerprint: Sha256
    pairs: Count
    captions: Count
    images: Count
    ceiling_i2t: Percent
    ceiling_t2i: Percent
    ceiling_rsum: Points
    references: dict[Line, Points]


class Queries(Strict):
    """Language of the caption (``und`` if unknown) and site of each query, in row order."""

    languages: tuple[Line, ...]
    sites: tuple[Line, ...]


class DatasetReport(Strict):
    """``datasets/<fingerprint>.json`` of a store.

    Attributes:
        fingerprint: sha256 of the fingerprints of all tracks.
        name: name of the release's folder.
        tracks: by split, then track; a result belongs to the track with its fingerprint.
        copied: percentage of training captions that occur at least three times, by track; most
            are slogans, which describe none of their pages.
        queries: labels of the queries by split; empty for an archive, which has no pages.
    """

    format: Literal["now-dataset/4"] = "now-dataset/4"
    fingerprint: Sha256
    name: Line
    origin: Literal["rebuilt", "archive"]
    tracks: tuple[TrackReport, ...]
    copied: dict[Line, Percent]
    queries: dict[ScoredSplit, Queries]

    @property
    def path(self) -> str:
        """The path of the record in its store."""
        return f"{DATASETS}/{self.fingerprint}.json"


def dataset_report(release: Path) -> DatasetReport:
    """Count identical items of dev and test of a release, ours or the authors' archive.

    Raises:
        FormatError: If it cannot be read, or is a blind round.
    """
    if read_round(release) is not None:
        raise FormatError(release, "a blind round. Use the release that it was drawn from")
    tracks = tuple(
        _track_report(release, split, path.stem.removeprefix(f"{split}_caps_"))
        for split in SCORED_SPLITS
        for path in sorted(data_folder(release).glob(f"{split}_caps_*.txt"))
    )
    ours = is_ours(release)
    lines = "".join(f"{one.split} {one.track} {one.fingerprint}\n" for one in tracks)
    return DatasetReport(
        fingerprint=hashlib.sha256(lines.encode()).hexdigest(),
        name=release.resolve().name[:_MAX_LABEL],
        origin="rebuilt" if ours else "archive",
        tracks=tracks,
        copied={track: _copied(release, track) for track in sorted({one.track for one in tracks})},
        queries={split: _queries(release, split) for split in SCORED_SPLITS} if ours else {},
    )


def _track_report(release: Path, split: ScoredSplit, track: str) -> TrackReport:
    gallery = read_gallery(release, split, check_track(track))
    best = ceiling(gallery)
    return TrackReport(
        split=split,
        track=track,
        fingerprint=gallery.fingerprint,
        pairs=len(gallery.caption_keys),
        captions=count_repeated(gallery.caption_labels),
        images=count_repeated(gallery.image_labels),
        ceiling_i2t=best.i2t.recall(1),
        ceiling_t2i=best.t2i.recall(1),
        ceiling_rsum=best.rsum,
        references=references_of(release, gallery, split),
    )


def _copied(release: Path, track: str) -> float:
    captions = read_split_captions(release, "train", track).captions
    counts = Counter(tuple(tokens) for tokens in captions)
    return 100 * sum(count for count in counts.values() if count >= _COPIES) / len(captions)


def _queries(release: Path, split: ScoredSplit) -> Queries:
    pairs = read_split_pairs(release, split)
    return Queries(
        languages=tuple((pair.lang or "und")[:_MAX_LABEL] for pair in pairs),
        sites=tuple(pair.site[:_MAX_LABEL] for pair in pairs),
    )


def read_reports(store: Path) -> list[DatasetReport]:
    """Read the reports of a store, by fingerprint."""
    paths = sorted((store / DATASETS).glob("[0-9a-f]*.json"))
    return [read_record(path, DatasetReport) for path in paths]


def file_report(store: Path, report: DatasetReport) -> Path:
    """Write a report into a store.

    Raises:
        FormatError: If a different report of the same release exists, or this one is too large.
    """
    path = store / report.path
    text = report.model_dump_json(indent=2) + "\n"
    if len(text.encode()) > MAX_RECORD:
        raise FormatError(path, f"{len(text.encode())} bytes, expected {MAX_RECORD} at most")
    if path.exists() and read_record(path, DatasetReport) != report:
        raise FormatError(path, "a different report of the same captions exists")
    write_text(path, text)
    return path
