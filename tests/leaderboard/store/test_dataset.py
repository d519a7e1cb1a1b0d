"""The dataset report: duplicates, ceilings and leaks, counted as they lie there."""

import base64
import io
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from PIL import Image, ImageChops, ImageStat
from pydantic import ValidationError

from leaderboard.commands.terminal import dataset_text
from leaderboard.scoring.evaluate import ceiling_rsum
from leaderboard.store.dataset import (
    DATASETS,
    DatasetReport,
    Queries,
    dataset_report,
    file_report,
    read_reports,
)
from leaderboard.store.entries import read_record
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import FormatError
from now_builder.formats.captions import make_vocabulary, write_vocabulary
from now_builder.formats.release import (
    DATA_FOLDER,
    read_manifest,
    read_pairs,
    read_split_captions,
    write_manifest,
    write_pairs,
)
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.statistics import ceiling
from tests.pc2_baseline.painted import write_painted


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
    assert track.group_sizes == ((2, 1),)
    assert (split.images, split.image_queries, split.image_group_sizes) == (23, 2, ((2, 1),))
    images = [pair.regions_sha256 for pair in read_pairs(release) if pair.split == "test"]
    best = ceiling(images, [tuple(ids) for ids in captions.captions])
    assert (track.ceiling_i2t, track.ceiling_t2i) == (best.i2t, best.t2i)
    gallery = read_gallery(release, "test", "bpe")
    labels = gallery.image_labels, gallery.caption_labels
    assert track.ceiling_rsum == ceiling_rsum(*labels, gallery.owner) < 600
    assert track.fingerprint == captions.fingerprint
    assert (track.tokens_mean, track.tokens_most) == (50 / 24, 3)
    assert dict(split.languages) == {"zh": 8, "en": 8, "de": 8}


def test_leaks_are_pairs_of_the_later_split(release):
    leak = _leak(dataset_report(release), "dev", "test")
    assert leak.captions == {"jieba": 10, "bpe": 10, "bert": 10}, "rows 0 to 11, less 6 and 7"
    assert leak.images == 12, "rows 0 to 11"
    assert (leak.sites, leak.domains, leak.site_pairs) == (12, 12, 12)


def test_unknown_tokens_are_counted_by_the_vocabulary(mine):
    assert _track(dataset_report(mine)).unknown is None, "no vocabulary"
    path = mine / "vocab" / f"{DATA_FOLDER}_vocab_jieba.json"
    vocabulary = make_vocabulary([], "jieba", "", "")
    renamed = {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 10}
    write_vocabulary(path, vocabulary.model_copy(update={"word2idx": renamed, "idx": 11}))
    # rows 6 and 7 of the test split have the tokens 10, 11, 12
    assert _track(dataset_report(mine)).unknown == pytest.approx(100 * 2 / 50)
    assert _track(dataset_report(mine), track="bpe").unknown is None


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
    assert path == tmp_path / "store" / DATASETS / f"{report.fingerprint}.json"
    assert read_record(path, DatasetReport) == report
    path.with_name(".x.json.1.999999999.tmp").touch()
    assert file_report(tmp_path / "store", report) == path
    assert list(path.parent.iterdir()) == [path], "what a kill left is dropped"
    with pytest.raises(FormatError, match="another report of the same"):
        file_report(tmp_path / "store", report.model_copy(update={"name": "other"}))


def test_queries_are_said_of_dev_and_test_with_captions_only_if_asked(mine, tmp_path):
    pairs = [pair for pair in read_pairs(mine) if pair.split == "test"]
    queries = _split(dataset_report(mine)).queries
    assert queries.languages == tuple(pair.lang for pair in pairs)
    assert queries.sites == tuple(pair.site for pair in pairs)
    assert queries.captions is None
    assert _split(dataset_report(mine), "train").queries is None
    asked = dataset_report(mine, captions=True)
    assert _split(asked).queries.captions == tuple(pair.caption for pair in pairs)
    path = file_report(tmp_path / "store", dataset_report(mine))
    file_report(tmp_path / "store", asked)
    assert read_record(path, DatasetReport) == asked, "the same counts"


def test_pictures_are_told_only_where_the_licence_lets_others_have_them(tmp_path, now_leaderboard):
    folder = write_painted(tmp_path)
    release, captures, store = folder / "release", folder / "captures", tmp_path / "store"
    command = ["dataset-report", release, "--captures", captures, "--store", store]
    code, _, told = now_leaderboard(*command)
    assert (code, told.count("\n")) == (1, 1)
    assert "licence 'other' does not let others have the screenshots" in told
    assert not store.exists()
    manifest = read_manifest(release)
    settings = manifest.settings | {"licence": "cc-by-4.0"}
    write_manifest(release, manifest.model_copy(update={"settings": settings}))
    assert now_leaderboard(*command)[0] == 0
    (report,) = read_reports(store)
    assert _split(report, "train").queries is None
    for split in ("dev", "test"):
        queries = _split(report, split).queries
        assert (queries.licence, queries.captions) == ("cc-by-4.0", None)
        pairs = [pair for pair in read_pairs(release) if pair.split == split]
        whole = find_screenshots(captures, pairs)
        for pair, uri in zip(pairs, queries.pictures, strict=True):
            assert len(uri) < 6100
            small = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))
            own = Image.open(io.BytesIO(whole[pair.key].read())).resize(small.size)
            assert max(ImageStat.Stat(ImageChops.difference(small, own)).mean) < 4


@pytest.mark.parametrize(
    "change",
    [
        {"pictures": ("data:image/webp;base64,AAAA",), "licence": None},
        {"pictures": ()},
        {"pictures": ("data:text/html;base64,AAAA",)},
        {"pictures": ('data:image/webp;base64,A" onerror="x',)},
        {"pictures": ("https://example.org/a.webp",)},
        {"pictures": ("data:image/webp;base64,AAAA\n",)},
        {"captions": ()},
    ],
)
def test_queries_that_do_not_fit_or_could_load_something_are_refused(change):
    sound = {"languages": ("zh",), "sites": ("a.test",), "licence": "mit"}
    Queries(**sound, pictures=("data:image/webp;base64,AAAA",))
    with pytest.raises(ValidationError):
        Queries(**(sound | change))


def test_a_report_of_the_first_format_is_read_and_replaced(mine, tmp_path):
    report = dataset_report(mine)
    splits = tuple(split.model_copy(update={"queries": None}) for split in report.splits)
    old = report.model_copy(update={"format": "now-dataset/1", "splits": splits})
    path = file_report(tmp_path / "store", old)
    assert '"sites": [' not in path.read_text()
    file_report(tmp_path / "store", report)
    assert read_record(path, DatasetReport) == report


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
    assert "test   jieba" in text
    assert "zh 8" in text
    assert "filed" in told
    code, text, _ = now_leaderboard("dataset-report", release, "--json")
    assert DatasetReport.model_validate_json(text) == dataset_report(release)
    assert json.loads(text)["format"] == "now-dataset/2"
    assert max(map(len, dataset_text(dataset_report(release)).splitlines())) <= 110


def test_a_miscounted_split_is_named(mine, now_leaderboard):
    path = mine / DATA_FOLDER / "dev_caps_bpe.txt"
    path.write_text("1,2\n")
    code, _, told = now_leaderboard("dataset-report", mine)
    assert (code, "dev_caps_bpe.txt: 1 captions, expected 12" in told) == (1, True)
