"""The dataset report: duplicates, ceilings and labels of the scored splits."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from leaderboard.scoring.evaluate import ceiling
from leaderboard.scoring.references import references_of
from leaderboard.store.dataset import DatasetReport, Queries, dataset_report, file_report
from leaderboard.store.entries import read_record
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import FormatError
from now_builder.formats import statistics
from now_builder.formats.release import DATA_FOLDER, read_pairs, read_split_captions, write_pairs


def _track(report, split="test", track="jieba"):
    return next(one for one in report.tracks if (one.split, one.track) == (split, track))


def test_duplicates_and_ceilings_are_those_of_formats_and_evaluator(release):
    report, captions = dataset_report(release), read_split_captions(release, "test", "bpe")
    track = _track(report, track="bpe")
    assert (track.pairs, track.captions, track.images) == (24, 2, 2)
    images = [pair.regions_sha256 for pair in read_pairs(release) if pair.split == "test"]
    best = statistics.ceiling(images, [tuple(ids) for ids in captions.captions])
    assert (track.ceiling_i2t, track.ceiling_t2i) == pytest.approx((best.i2t, best.t2i))
    assert track.ceiling_rsum == ceiling(read_gallery(release, "test", "bpe")).rsum < 600
    assert track.fingerprint == captions.fingerprint


def test_the_authors_archive_has_no_pages(archive):
    report = dataset_report(archive)
    assert report.origin == "archive"
    assert [(track.split, track.track) for track in report.tracks] == [
        ("dev", "bert"),
        ("test", "bert"),
    ]
    assert (_track(report, track="bert").images, report.queries) == (2, {})
    found = _track(report, track="bert").fingerprint
    assert found == read_gallery(archive, "test", "bert").fingerprint


def test_a_report_is_filed_once_under_its_fingerprint(mine, tmp_path):
    report = dataset_report(mine)
    path = file_report(tmp_path / "store", report)
    assert path == tmp_path / "store" / "datasets" / f"{report.fingerprint}.json"
    assert read_record(path, DatasetReport) == report
    assert file_report(tmp_path / "store", report) == path
    with pytest.raises(FormatError, match="a different report of the same"):
        file_report(tmp_path / "store", report.model_copy(update={"name": "other"}))


def test_queries_have_labels_and_each_track_its_references(mine):
    first, *others = (pair for pair in read_pairs(mine) if pair.split == "test")
    pairs = [replace(first, lang=None), *others]
    kept = [pair for pair in read_pairs(mine) if pair.split != "test"]
    write_pairs(mine / "pairs.parquet", [*kept, *pairs])
    report = dataset_report(mine)
    assert report.queries["test"].languages == ("und", *(pair.lang for pair in others))
    assert report.queries["test"].sites == tuple(pair.site for pair in pairs)
    gallery = read_gallery(mine, "test", "jieba")
    assert _track(report).references == references_of(mine, gallery, "test")
    with pytest.raises(ValidationError, match="invisible"):
        Queries(languages=("z\u202eh",), sites=("a.test",))
    path = mine / DATA_FOLDER / "dev_caps_bert.txt"
    path.write_text(path.read_text().replace("20", "19"))
    assert dataset_report(mine).fingerprint != report.fingerprint


def test_the_table_is_for_people_and_json_for_machines(now_leaderboard, release, tmp_path):
    code, text, errors = now_leaderboard("dataset-report", release, "--store", tmp_path / "store")
    assert code == 0
    assert " test jieba " in text
    assert "filed" in errors
    code, text, _ = now_leaderboard("dataset-report", release, "--json")
    assert DatasetReport.model_validate_json(text) == dataset_report(release)
    assert json.loads(text)["format"] == "now-dataset/4"


def test_training_captions_that_occur_three_times_are_copies(mine, now_leaderboard):
    path = mine / DATA_FOLDER / "train_caps_jieba.txt"
    for text, share in (("5,6\n5,6\n7\n8\n", 0), ("5,6\n5,6\n7\n5,6\n", 75)):
        path.write_text(text)
        assert dataset_report(mine).copied["jieba"] == share
    _, text, _ = now_leaderboard("dataset-report", mine)
    assert "occur at least three times: bert 0.0 %, bpe 0.0 %, jieba 75.0 %" in text


def test_a_miscounted_split_is_named(mine, now_leaderboard):
    path = mine / DATA_FOLDER / "dev_caps_bpe.txt"
    path.write_text("1,2\n")
    code, _, errors = now_leaderboard("dataset-report", mine)
    assert (code, "1 captions" in errors) == (1, True)
