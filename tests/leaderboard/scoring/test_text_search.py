"""A page's text finds its caption by the letters they share."""

import numpy as np
import pytest

from leaderboard.scoring.text_search import search

PAGES = ["Tea House\n  Green tea, black tea", "Кофе и чай", "", "緑茶の淹れ方 お茶", "tea"]
CAPTIONS = ["Green TEA for all", "чай", "お茶 ", "nothing", None]


def test_what_shares_letters_is_near_and_rare_letters_weigh_more():
    found = search(PAGES, CAPTIONS, ["We sell tea"] * 9 + ["green"])
    assert found.shape == (5, 5)
    assert found[0].argmax() == 0
    assert found[1].argmax() == 1
    assert found[3].argmax() == 2
    assert not found[2].any()
    assert not found[:, 4].any()
    tea, green = search(["tea", "green"], ["tea green"], ["We sell tea"] * 9 + ["green"])[:, 0]
    assert green > tea
    assert not search(["", "a"], ["b"], ["x"]).any()
    assert search(["ﾃｨｰ　ABC"], ["ティー abc"], ["x"]) == pytest.approx(1)


def test_as_many_pages_and_captions_as_a_split_has():
    generator = np.random.default_rng(0)
    texts = ["".join(generator.choice([*"abcdefgh "], 300)) for _ in range(200)]
    assert (search(texts, texts, texts).argmax(1) == np.arange(200)).all()


def test_what_all_captions_say_draws_none_of_them_to_a_page():
    words = ["bread", "honey", "violin", "castle", "tulip", "garage", "dentist", "lawyer"]
    pages = [f"home {word}" for word in words]
    pages[0] += " welcome to our"
    captions = [f"welcome to our {word}" for word in words]
    assert (search(pages, captions, captions).argmax(0) == np.arange(8)).all()
