"""Text search with nothing learned: pages and captions compared by the letters they share."""

import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_SHORTEST, _LONGEST = 2, 4


def search(
    pages: Sequence[str | None], captions: Sequence[str | None], corpus: Sequence[str]
) -> Float[np.ndarray, "pages captions"]:
    """Return the cosine of each page's text with each caption by TF-IDF of runs of 2 to 4 letters.

    Counts are logarithmic, ``1 + ln n``; a run of letters weighs ``1 + ln((1 + N) / (1 + n))``
    where ``n`` of the ``N`` texts of ``corpus``, such as the training captions, have it.
    """
    known = Counter(gram for text in corpus for gram in _grams(text))
    weights = {gram: 1 + np.log((1 + len(corpus)) / (1 + count)) for gram, count in known.items()}
    unseen = 1 + np.log(1 + len(corpus))
    sides = [
        [
            {gram: (1 + np.log(count)) * weights.get(gram, unseen) for gram, count in one.items()}
            for one in map(_grams, side)
        ]
        for side in (pages, captions)
    ]
    listed: dict[str, list[tuple[int, float]]] = {}
    for column, caption in enumerate(sides[1]):
        length = _length(caption)
        for gram, weight in caption.items():
            listed.setdefault(gram, []).append((column, weight / length))
    index = {
        gram: tuple(map(np.array, zip(*places, strict=True))) for gram, places in listed.items()
    }
    found = np.zeros((len(pages), len(captions)))
    for row, page in enumerate(sides[0]):
        length = _length(page)
        shared = [(index[gram], own / length) for gram, own in page.items() if gram in index]
        if shared:
            columns = np.concatenate([columns for (columns, _), _ in shared])
            products = np.concatenate([weights * own for (_, weights), own in shared])
            found[row] = np.bincount(columns, products, len(captions))
    return np.round(found, 6).astype(np.float32)  # the last digits depend on the machine


def _length(weights: dict[str, float]) -> float:
    return float(np.linalg.norm([*weights.values()])) or 1.0


def _grams(text: str | None) -> Counter[str]:
    letters = " ".join(unicodedata.normalize("NFKC", text or "").casefold().split())
    return Counter(
        letters[at : at + size]
        for size in range(_SHORTEST, _LONGEST + 1)
        for at in range(len(letters) - size + 1)
    )
