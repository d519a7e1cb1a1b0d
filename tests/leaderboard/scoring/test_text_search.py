"""Text search equals scikit-learn's TF-IDF of letters."""

import numpy as np
import pytest

from leaderboard.scoring.text_search import search

PAGES = ["Tea House\n  Green tea, black tea", "Кофе и чай", "", "緑茶の淹れ方 お茶", "tea"]
CAPTIONS = ["Green TEA for all", "чай", "お茶 ", "nothing", None]
CORPUS = ["We sell tea", "green things", "お茶と緑茶", "кофе"]


def test_cosines_are_those_of_scikit_learn():
    text = pytest.importorskip("sklearn.feature_extraction.text")
    clean = [[" ".join((one or "").casefold().split()) for one in side]
             for side in (PAGES, CAPTIONS, CORPUS)]  # fmt: skip
    # Runs of letters that no text of the corpus has are in scikit-learn's vocabulary by name alone.
    grams = text.CountVectorizer(analyzer="char", ngram_range=(2, 4)).fit(sum(clean, []))
    count = text.CountVectorizer(
        analyzer="char", ngram_range=(2, 4), vocabulary=grams.vocabulary_
    )  # fmt: skip
    weigh = text.TfidfTransformer(sublinear_tf=True).fit(count.transform(clean[2]))
    pages, captions = (weigh.transform(count.transform(side)) for side in clean[:2])
    expected = (pages @ captions.T).toarray()
    assert np.abs(search(PAGES, CAPTIONS, CORPUS) - expected).max() < 1e-5
