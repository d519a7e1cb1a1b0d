"""Text search without learning: compare pages and captions by their common letters."""

import unicodedata
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float


def search(
    pages: Sequence[str | None], captions: Sequence[str | None], corpus: Sequence[str]
) -> Float[np.ndarray, "pages captions"]:
    """Return the cosine of each page's text with each caption by TF-IDF of runs of 2 to 4 letters.

    Counts are logarithmic. Weights of runs are fitted to ``corpus``, such as the training captions.
    A page or caption without text has a cosine of 0.
    """
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

    count = CountVectorizer(analyzer="char", ngram_range=(2, 4), preprocessor=_plain)
    texts = [*map(_plain, [*pages, *captions])]
    if max(map(len, texts), default=0) < 2:
        return np.zeros((len(pages), len(captions)), dtype=np.float32)
    both = count.fit_transform(texts)
    weigh = TfidfTransformer(sublinear_tf=True).fit(count.transform([*map(_plain, corpus)]))
    weighted = weigh.transform(both)
    cosines = (weighted[: len(pages)] @ weighted[len(pages) :].T).toarray()
    # The last digits depend on the machine.
    return np.asarray(np.round(cosines, 6), dtype=np.float32)


def _plain(text: str | None) -> str:
    return " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())
