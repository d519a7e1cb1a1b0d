"""What counting finds: copies of a caption, paths of lists, languages; no picture is needed."""

import numpy as np
import pytest

from now_builder.formats.release import Pair
from pc2_baseline.analysis.counting import count_signs


def pair(row, site, path, caption, lang="en"):
    return Pair(str(row), "train", row, f"http://{site}{path}", site, caption, None, lang, None, "")


PAIRS = [
    pair(0, "a", "/", "We sell tea"),
    pair(1, "a", "/tag/green/", "We sell tea"),
    pair(2, "a", "/2021/tag-soup.html", "How to brew"),
    pair(3, "a", "/page/2", "Kaffee", "de"),
    pair(4, "b", "/categories/x.html", "We sell tea"),
]


def test_copies_are_counted_on_their_site_and_lists_told_by_their_path():
    signs, once = count_signs(PAIRS)
    assert signs["copies"].tolist() == [-0.5, -0.5, -0.25, -0.25, -1.0]
    assert signs["url_kind"].tolist() == [0, -1, 0, -1, -1]
    assert signs["language"].tolist() == [1, 1, 1, 0, 1]
    assert once.tolist() == [False, False, True, True, True]


def test_of_assigned_captions_the_site_is_that_of_the_page():
    signs, once = count_signs(PAIRS, np.array([0, 4, 2, 3, 1]))
    assert signs["copies"].tolist() == [-0.5, -1.0, -0.25, -0.25, -0.5]
    assert signs["url_kind"].tolist() == [0, -1, 0, -1, -1]
    assert once.tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("path", ["/tags", "/author/ann/", "/archive.html", "/Category/tea/x"])
def test_paths_of_lists(path):
    assert count_signs([pair(0, "a", path, "")])[0]["url_kind"] == [-1]
