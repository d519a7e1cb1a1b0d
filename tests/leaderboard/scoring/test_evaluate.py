"""Scoring a submission on our layout and on the authors'; references; notes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import check_submission, score
from leaderboard.scoring.references import label_rsum, references_of
from leaderboard.scoring.result import Result
from leaderboard.scoring.within import record_within
from leaderboard.store.entries import read_result, write_result
from leaderboard.store.recompute import read_board
from leaderboard.submission.archive import new_submission, pack
from leaderboard.submission.gallery import read_gallery
from leaderboard.submission.untrusted import SubmissionError
from now_builder.errors import FormatError
from now_builder.formats.release import read_pairs, write_pairs
from tests.leaderboard.conftest import SIZES, make_similarity, score_matrix

N = SIZES["test"]


def test_a_packed_matrix_scores_what_the_metrics_say(packed, release):
    result, expected = score(packed, release), recalls(make_similarity())
    assert result.rsum == expected.rsum
    assert result.i2t.values() == tuple(expected.i2t.recall(cutoff) for cutoff in (1, 5, 10))
    assert result.t2i.values() == tuple(expected.t2i.recall(cutoff) for cutoff in (1, 5, 10))
    assert result.rsum_interval[0] < result.rsum < result.rsum_interval[1]
    assert (result.ranked, result.reason, result.n_pairs) == (True, None, N)
    assert (result.release.origin, result.precision) == ("rebuilt", "float32")


def test_the_authors_layout_is_scored_too(tmp_path, archive):
    result = score_matrix(tmp_path / "x.zip", archive, make_similarity(), track="bert")
    assert result.release.origin == "archive"
    assert set(result.references) == {"chance"}
    assert result.duplicates.captions == result.duplicates.images == 2


def test_scoring_twice_gives_the_same_bytes_and_reads_back(tmp_path, packed, release, attributes):
    result = score(packed, release, attributes)
    assert result.to_json() == score(packed, release, attributes).to_json()
    write_result(tmp_path / "r.json", result)
    assert read_result(tmp_path / "r.json") == result
    assert Result.model_validate_json(result.to_json(), strict=True) == result


def test_another_release_or_split_is_an_error_and_not_a_low_score(tmp_path, packed, release, mine):
    path = mine / "now100k_precomp" / "test_caps_jieba.txt"
    first, second, *lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([second, first, *lines]))
    for check in (score, check_submission):
        with pytest.raises(SubmissionError, match=r"dataset_fingerprint.*another release"):
            check(packed, mine)
    meta = new_submission(release, "jieba", "dev", "Mine").model_copy(update={"split": "test"})
    pack(tmp_path / "x.zip", make_similarity(SIZES["dev"]), meta)
    with pytest.raises(SubmissionError, match="made on dev of this release"):
        score(tmp_path / "x.zip", release)


def test_ties_cost_the_place_unless_duplicates_force_them(tmp_path, release):
    """A scorer that cannot tell identical captions (6, 7) or identical images (8, 9) apart."""
    similarity = np.random.default_rng(1).standard_normal((N, N)) + 9 * np.eye(N)
    similarity[:, 7] = similarity[:, 6] = np.maximum(similarity[:, 6], similarity[:, 7])
    similarity[9] = similarity[8] = np.maximum(similarity[8], similarity[9])
    result = score_matrix(tmp_path / "x.zip", release, similarity.astype(np.float32))
    assert result.ties.width > 5
    assert (result.ties.unexplained_width, result.ranked) == (0, True)
    assert result.rsum == result.duplicates.ceiling_rsum < 600
    assert result.duplicates.rsum == 600
    similarity[0, 1], similarity[1, 0] = similarity[0, 0], similarity[1, 1]
    result = score_matrix(tmp_path / "x.zip", release, similarity.astype(np.float32))
    assert result.ties.unexplained_width == pytest.approx(200 / N)
    assert not result.ranked


def test_the_references_are_those_of_the_labels(release, gallery, attributes):
    """24 pairs in three languages of 8, each with two topics of 4 pairs.

    Language alone: R@1 = 1/8, R@5 = 5/8, R@10 = 1, so 2 · 175 %. With topics: 1/4, 1, 1.
    """
    found = references_of(release, gallery, "test", attributes)
    assert found == {"chance": 200 * 16 / N, "lang": 350, "lang+topic": 450}
    assert references_of(release, gallery, "test") == {"chance": 200 * 16 / N, "lang": 350}


@pytest.mark.parametrize("column", ["ocr", "text"])
def test_text_on_the_screenshot_is_compared_with_the_captions_letter_by_letter(
    tmp_path, release, gallery, column
):
    """The table has a row per page, with quotes and line breaks; a page may have no text."""
    pairs = [pair for pair in read_pairs(release) if pair.split == "test"]
    table = pd.DataFrame({"key": [pair.key for pair in pairs]})
    for name, change in (("same", str), ("none", lambda _: ""), ("case", str.upper)):
        table[column] = [f'{change(pair.caption)}\n"' for pair in pairs]
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    found = {
        name: references_of(release, gallery, "test", tmp_path / f"{name}.csv")[column]
        for name in ("same", "none", "case")
    }
    captions = [pair.caption for pair in pairs]
    assert found["same"] == found["case"] == label_rsum(captions, captions)
    assert found["none"] == 200 * 16 / N


def test_a_caption_of_another_topic_is_not_found_by_topic():
    images = ["en/food", "en/food", "en/sport"]
    captions = ["en/food", "en/sport", "en/sport"]
    # Row 0: .5; row 1: behind .5 of one; row 2: tie of two. The same for columns.
    expected = recalls(np.array([[1.0, 0, 0], [1, 0, 0], [0, 1, 1]])).rsum
    assert label_rsum(images, captions) == expected


def test_a_file_of_attributes_may_be_parquet_and_have_keys(tmp_path, release, gallery, attributes):
    table = pd.read_csv(attributes)
    keys = {pair.url: pair.key for pair in read_pairs(release) if pair.split == "test"}
    table["key"] = table.pop("url").map(keys)
    table.sample(frac=1, random_state=0).to_parquet(tmp_path / "attributes.parquet")
    assert (
        references_of(release, gallery, "test", tmp_path / "attributes.parquet")["lang+topic"]
        == 450
    )


HOSTILE = [
    ("site,topic\na,b\n", "expected key or url"),
    ("url,topic\nhttp://a.test/,b\n", "no row for 24 of 24 pairs"),
    (
        "url,topics\nhttp://a.test/,b\n",
        r"columns \['topics', 'url'\], expected key or url, and lang, topic",
    ),
    (
        "url,topic\n{url},a\n{url},b\n",
        r"two rows of url '{url}' with other labels, expected the same topic in both",
    ),
    ("url,topic\n{url},a\n{url},a\n", "no row for 23 of 24 pairs"),
    ('url,topic\n"a', "line 2: .* closed nowhere"),
    ("url,topic\nhttp://a.test/x,y,b\n", "line 2: 3 cells, the header has 2"),
]


def test_a_file_of_attributes_that_cannot_be_joined_is_named(tmp_path, release, gallery, archive):
    path, url = tmp_path / "attributes.csv", "http://site00.test/test"
    for text, message in HOSTILE:
        path.write_text(text.replace("{url}", url))
        with pytest.raises(FormatError, match=message.replace("{url}", url)):
            references_of(release, gallery, "test", path)
    with pytest.raises(FormatError, match=r"no pairs\.parquet"):
        references_of(archive, read_gallery(archive, "test", "bert"), "test", path)
    with pytest.raises(FormatError, match="no such file"):
        references_of(release, gallery, "test", tmp_path / "none.parquet")


def test_an_invalid_result_file_is_named(tmp_path):
    hostile = (b"", b"[]", b'{"rsum": NaN}', b'{"rsum": 600}', b"\xff", b"[" * 99, b" " * 2**21)
    for content in hostile:
        (tmp_path / "bad.json").write_bytes(content)
        with pytest.raises(FormatError, match=r"bad\.json"):
            read_board([tmp_path])
    with pytest.raises(FormatError, match=r"none\.json"):
        read_board([tmp_path / "none.json"])


def test_distances_get_a_hint_and_bad_similarities_do_not(tmp_path, release):
    strong = make_similarity() + 4 * np.eye(N, dtype=np.float32)
    for matrix, codes in ((-strong, ["distances"]), (strong, []), (np.zeros_like(strong), [])):
        result = score_matrix(tmp_path / "x.zip", release, matrix)
        assert [note.code for note in result.notes] == codes


def test_site_and_both_are_references_where_pages_share_sites(mine, gallery):
    """Six pages a site: R@1 = 1/6, R@5 = 5/6, R@10 = 1. With the language two: 1/2, 1, 1."""
    pairs = read_pairs(mine)
    for each, more in ((6, {"site": 400, "lang+site": 500}), (1, {}), (N, {})):
        sites = [f"site{pair.pair_index // each}.test" for pair in pairs]
        changed = [replace(pair, site=site) for pair, site in zip(pairs, sites, strict=True)]
        write_pairs(mine / "pairs.parquet", changed)
        found = references_of(mine, gallery, "test")
        assert found == {"chance": 200 * 16 / N, "lang": 350, **more}


def test_ranks_within_groups_are_those_of_each_group_alone():
    """Groups may be consecutive or not, of any size, and leave out or share images."""
    draw = np.random.default_rng(0)
    similarity = draw.integers(0, 9, (30, 90)).astype(np.float32)
    owner = draw.permutation(np.arange(90) // 3)
    for groups in (np.split(np.arange(30), 3), [draw.permutation(30)[:n] for n in (1, 12, 30)]):
        record = record_within(similarity, owner, groups)
        i2t, t2i = record.read()
        start = 0
        for rows in groups:
            columns = np.concatenate([np.flatnonzero(owner == row) for row in rows])
            own = recalls(similarity[np.ix_(rows, columns)], np.arange(len(columns)) // 3)
            part = slice(start, start + len(rows))
            assert np.array_equal(i2t.greater[part], own.ranks[0].greater)
            assert np.array_equal(t2i.equal[3 * start : 3 * part.stop], own.ranks[1].equal)
            start = part.stop
        assert start == len(i2t.greater)
        assert record.possible()
