"""The dataset report: duplicates, ceilings and leaks, counted as they lie there."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from pydantic import ValidationError

from leaderboard.scoring.evaluate import ceiling_rsum
from leaderboard.scoring.references import references_of
from leaderboard.store.dataset import (
    DatasetReport,
    Queries,
    dataset_report,
    file_report,
)
from leaderboard.store.entries import read_record
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import FormatError
from now_builder.formats.release import (
    DATA_FOLDER,
    read_pairs,
    read_split_captions,
    write_pairs,
)
from now_builder.formats.statistics import ceiling


def _track(report, split="test", track="jieba"):
    return next(one for one in report.tracks if (one.split, one.track) == (split, track))


def _split(report, split="test"):
    return next(one for one in report.splits if one.split == split)


def _leak(report, earlier="train", later="test"):
    return next(one for one in report.leaks if (one.earlier, one.later) == (earlier, later))


def test_duplicates_and_ceilings_are_those_of_formats_and_evaluator(release):
    report, captions = dataset_report(release), read_split_captions(release, "test", "bpe")
    track, split = _track(report, track="bpe"), _split(report)
    assert (track.captions, track.distinct, track.queries) == (24, 23, 2)
    assert (split.images, split.image_queries) == (23, 2)
    images = [pair.regions_sha256 for pair in read_pairs(release) if pair.split == "test"]
    best = ceiling(images, [tuple(ids) for ids in captions.captions])
    assert (track.ceiling_i2t, track.ceiling_t2i) == (best.i2t, best.t2i)
    gallery = read_gallery(release, "test", "bpe")
    labels = gallery.image_labels, gallery.caption_labels
    assert track.ceiling_rsum == ceiling_rsum(*labels, gallery.owner) < 600
    assert track.fingerprint == captions.fingerprint
    assert dict(split.languages) == {"zh": 8, "en": 8, "de": 8}


def test_leaks_are_pairs_of_the_later_split(release):
    leak = _leak(dataset_report(release), "dev", "test")
    assert leak.captions == {"jieba": 10, "bpe": 10, "bert": 10}, "rows 0 to 11, less 6 and 7"
    assert leak.images == 12, "rows 0 to 11"
    assert (leak.sites, leak.domains, leak.site_pairs) == (12, 12, 12)


def test_looks_count_where_pages_have_hashes(mine):
    assert (_split(dataset_report(mine)).looks, _leak(dataset_report(mine)).alike) == (None, None)
    looks = {
        ("train", 0): 0xFF,
        ("test", 0): 0xFF ^ 0b1111,
        ("test", 1): 0x1F00,
        ("test", 2): 0x1F00,
    }
    pairs = [
        replace(pair, phash=f"{looks.get((pair.split, pair.pair_index), 0xABC0000):016x}")
        if (pair.split, pair.pair_index) in looks
        else pair
        for pair in read_pairs(mine)
    ]
    write_pairs(mine / "pairs.parquet", pairs)
    report = dataset_report(mine)
    assert _split(report).looks == 2
    assert _leak(report).alike == 1, "four bits apart"


def test_the_authors_archive_has_no_pages(archive):
    report = dataset_report(archive)
    assert report.origin == "archive"
    assert [track.track for track in report.tracks] == ["bert"] * 3
    assert _split(report).sites is None
    assert _split(report).image_queries == 2
    assert _leak(report).images == 4
    found = _track(report, track="bert").fingerprint
    assert found == read_gallery(archive, "test", "bert").fingerprint


def test_a_report_is_filed_once_under_its_fingerprint(mine, tmp_path):
    report = dataset_report(mine)
    path = file_report(tmp_path / "store", report)
    assert path == tmp_path / "store" / "datasets" / f"{report.fingerprint}.json"
    assert read_record(path, DatasetReport) == report
    assert file_report(tmp_path / "store", report) == path
    with pytest.raises(FormatError, match="another report of the same"):
        file_report(tmp_path / "store", report.model_copy(update={"name": "other"}))


def test_queries_are_said_of_dev_and_test_and_references_of_each_track(mine):
    pairs = [pair for pair in read_pairs(mine) if pair.split == "test"]
    report = dataset_report(mine)
    queries = _split(report).queries
    assert queries.languages == tuple(pair.lang for pair in pairs)
    assert queries.sites == tuple(pair.site for pair in pairs)
    assert _split(report, "train").queries is None
    gallery = read_gallery(mine, "test", "jieba")
    assert _track(report).references == references_of(mine, gallery, "test")
    assert _track(report, "train").references == {}
    with pytest.raises(ValidationError, match="invisible"):
        Queries(languages=("z\u202eh",), sites=("a.test",))


def test_the_fingerprint_follows_captions_and_images(mine):
    first = dataset_report(mine).fingerprint
    pairs = read_pairs(mine)
    write_pairs(mine / "pairs.parquet", [replace(pairs[0], regions_sha256="0"), *pairs[1:]])
    second = dataset_report(mine).fingerprint
    path = mine / DATA_FOLDER / "dev_caps_bert.txt"
    path.write_text(path.read_text().replace("20", "19"))
    prints = [first, second, dataset_report(mine).fingerprint]
    assert all(one != other for one, other in pairwise(prints))


def test_the_table_is_for_people_and_json_for_machines(now_leaderboard, release, tmp_path):
    code, text, told = now_leaderboard("dataset-report", release, "--store", tmp_path / "store")
    assert code == 0
    assert " test jieba " in text
    assert "filed" in told
    code, text, _ = now_leaderboard("dataset-report", release, "--json")
    assert DatasetReport.model_validate_json(text) == dataset_report(release)
    assert json.loads(text)["format"] == "now-dataset/2"


def test_a_miscounted_split_is_named(mine, now_leaderboard):
    path = mine / DATA_FOLDER / "dev_caps_bpe.txt"
    path.write_text("1,2\n")
    code, _, told = now_leaderboard("dataset-report", mine)
    assert (code, "dev_caps_bpe.txt: 1 captions, expected 12" in told) == (1, True)
