"""Reference scorers that know a label, and matrices that follow one."""

import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from leaderboard.board.display_text import row_notes
from leaderboard.board.tables import make_board
from leaderboard.scoring.references import followed, followed_share, references
from leaderboard.store.entries import entry_of
from leaderboard.store.verify import verify
from now_builder.formats.release import read_pairs, write_pairs
from tests.leaderboard.conftest import SIZES, make_similarity, proven, score_matrix

N = SIZES["test"]


@pytest.fixture
def of_sites(release, tmp_path):
    """Make the small release with a site of its own for each number of pages in turn."""

    def make(each):
        folder = shutil.copytree(release, tmp_path / f"of {each}")
        pairs = read_pairs(release)
        write_pairs(
            folder / "pairs.parquet",
            [replace(pair, site=f"site{pair.pair_index // each}.test") for pair in pairs],
        )
        return folder

    return make


def test_site_and_both_are_references_where_pages_share_sites(of_sites, gallery):
    """Six pages a site: R@1 = 1/6, R@5 = 5/6, R@10 = 1. With the language two: 1/2, 1, 1."""
    found = references(of_sites(6), gallery, "test")
    assert found == {"chance": 200 * 16 / N, "lang": 350, "site": 400, "lang+site": 500}
    assert references(of_sites(1), gallery, "test").keys() == {"chance", "lang"}
    assert references(of_sites(N), gallery, "test").keys() == {"chance", "lang"}


def _slow_share(similarity, labels):
    shares = []
    for values in (similarity, similarity.T):
        for query, label in enumerate(labels):
            own = [x for i, x in enumerate(values[query]) if labels[i] == label and i != query]
            others = [x for i, x in enumerate(values[query]) if labels[i] != label]
            pairs = [(a > b) + (a == b) / 2 for a, b in product(own, others)]
            shares += [np.mean(pairs)] if pairs and label is not None else []
    return np.mean(shares)


def test_the_share_is_that_of_all_pairs_of_candidates():
    draw = np.random.default_rng(0)
    similarity = draw.normal(size=(40, 40)).round(1)
    labels = [None if number == 3 else "abc"[number] for number in draw.integers(0, 4, 40)]
    assert followed_share(similarity, labels) == pytest.approx(_slow_share(similarity, labels))
    assert followed_share(similarity[:9, :9], labels[:9]) == 0
    assert followed_share(similarity, ["a"] * 40) == 0


def test_a_matrix_that_is_told_the_site_follows_it_and_one_that_sees_pages_does_not():
    """Pages of a site look alike, and their captions share words."""
    for seed in range(5):
        draw = np.random.default_rng(seed)
        site = draw.integers(0, 30, 300)
        shared, meaning = draw.normal(size=(30, 64))[site], draw.normal(size=(300, 64))
        images, captions = (meaning + 0.7 * shared + draw.normal(size=(300, 64)) for _ in "ab")
        similarity = images @ captions.T
        labels = {"site": (site.astype(str).tolist(), site.astype(str).tolist())}
        told = similarity + 1.5 * similarity.std() * (site[:, None] == site)
        assert followed(similarity, labels) == ()
        (note,) = followed(told, labels)
        assert note.code == "follows-site"


def test_a_row_that_follows_a_site_is_said_to_and_keeps_its_place(of_sites, tmp_path):
    release, site = of_sites(6), np.arange(N) // 6
    similarity = make_similarity() + 3 * (site[:, None] == site).astype(np.float32)
    result = score_matrix(tmp_path / "x.zip", release, similarity)
    assert [note.code for note in result.notes] == ["follows-site"]
    assert result.best_reference == ("lang+site", 500)
    assert verify(tmp_path / "r.json", result, tmp_path / "x.zip", release) == []
    board = make_board("jieba", [proven(entry_of(result))])
    (row,) = [one for one in board.sections[0].rows if one.entry]
    assert row.place == 1
    assert "follows the site" in {note.text for note in row_notes(row)}
