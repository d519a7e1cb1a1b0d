"""How similarities follow the words of captions.

Row order tells which pairs belong together, and nothing of what they show. Similarities made of it
alone, whatever their structure, take no note of captions that share words.
"""

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Float

from leaderboard.metrics import Labels
from leaderboard.scoring.content import Square, centred_off

LEAST_TEXTS = 40
"""Number of different texts below which nothing is compared."""

Texts = Sequence[Collection[int]]
"""Token ids by caption."""


def words_read(square: Square, texts: Texts) -> float | None:
    """Return how far captions that share words are alike in their similarities with all images.

    It is the correlation of two measures over pairs of different texts: the cosines of their TF-IDF
    vectors, and those of their columns, own pairs left out. Of equal texts the first counts.

    Args:
        square: normal scores, own pairs on the diagonal.
        texts: tokens of the captions of each image.

    Returns:
        None if there are too few different texts, or nothing varies.
    """
    known = {frozenset(text): row for row, text in reversed(list(enumerate(texts))) if text}
    rows = np.array(sorted(known.values()), dtype=np.int64)
    if len(rows) < LEAST_TEXTS:
        return None
    columns = centred_off(square)[:, rows].astype(np.float32)
    lengths = np.sqrt(np.square(columns).sum(axis=0))
    if not lengths.all():
        return None
    columns /= lengths
    off = ~np.eye(len(rows), dtype=np.bool_)
    return _correlation((columns.T @ columns)[off], shared_words([texts[row] for row in rows])[off])


def shared_words(texts: Texts) -> Float[np.ndarray, "texts texts"]:
    """Return the cosines of TF-IDF vectors; words that one text alone has add to lengths alone."""
    places = np.concatenate([np.fromiter(set(text), np.int64) for text in texts])
    rows = np.repeat(np.arange(len(texts)), [len(set(text)) for text in texts])
    _, word, counts = np.unique(places, return_inverse=True, return_counts=True)
    weights = np.log(len(texts) / counts)
    squares = np.bincount(rows, np.square(weights)[word], len(texts))
    column = np.cumsum(counts > 1) - 1
    common = counts[word] > 1
    vectors = np.zeros((len(texts), int(column[-1]) + 1), np.float32)
    vectors[rows[common], column[word[common]]] = weights[word[common]]
    vectors /= np.sqrt(np.maximum(squares, 1e-12))[:, None]
    return vectors @ vectors.T


def texts_of(texts: Texts, owner: Labels, first: int, count: int) -> list[set[int]]:
    """Return the tokens of all captions together of ``count`` images from ``first`` on."""
    found: list[set[int]] = [set() for _ in range(count)]
    for image, text in zip((owner - first).tolist(), texts, strict=True):
        if 0 <= image < count:
            found[image].update(text)
    return found


def _correlation(first: Float[np.ndarray, " _"], second: Float[np.ndarray, " _"]) -> float:
    first, second = (values.astype(np.float64) - values.mean() for values in (first, second))
    norm = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / norm if norm else 0.0
