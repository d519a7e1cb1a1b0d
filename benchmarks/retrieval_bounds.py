"""What can retrieval on a release reach, and by what? Oracles and features by one evaluator.

Each line is a similarity of the test images with the test captions, scored as the board scores:

    language        1 where both pages have one language (the board's "language alone")
    site            1 where both are of one registrable domain
    words           cosine of the strings that the browser laid out on the first screen with the
                    caption's (tf-idf of pairs of characters, nothing learned): a bound on reading
    ridge: …        closed-form ridge from a page's vector to the caption's (LSA of the training
                    captions' pairs of characters), its strength chosen on dev; the vector is the
                    mean and spread of the 36 regions, or an oracle: true language, words

    python benchmarks/retrieval_bounds.py release captures
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import StandardScaler, normalize

from leaderboard.metrics import recalls
from now_builder import open_release
from now_builder.detect.model.text_boxes import dom_text_boxes
from now_builder.formats.shard import complete_shards, members_path, read_members
from now_builder.formats.split import SPLITS, registrable_domain

STRENGTHS = (10.0, 100.0, 1_000.0, 10_000.0)
TOPICS = 200


@dataclass
class Pages:
    """The pages of all splits: strings by page, and rows by split."""

    captions: list[str]
    languages: np.ndarray
    sites: np.ndarray
    regions: np.ndarray
    words: list[str]
    rows: dict[str, np.ndarray]


def read_pages(release: Path, captures: Path) -> Pages:
    """Read what a release and its captures know of each page."""
    opened = open_release(release)
    pairs = [pair for split in SPLITS for pair in opened.pairs(split)]
    words = dict(_words(captures, frozenset(pair.key for pair in pairs)))
    regions = []
    for split in SPLITS:
        with opened.regions(split) as array:
            own = np.asarray(array[:], dtype=np.float32)
        regions.append(np.concatenate([own.mean(1), own.std(1)], axis=1))
    split_of = np.array([pair.split for pair in pairs])
    return Pages(
        [pair.caption for pair in pairs],
        np.array([pair.lang or "und" for pair in pairs]),
        np.array([registrable_domain(pair.site) for pair in pairs]),
        np.concatenate(regions),
        [words.get(pair.key, "") for pair in pairs],
        {split: np.flatnonzero(split_of == split) for split in SPLITS},
    )


def _words(captures: Path, keys: frozenset[str]) -> Iterable[tuple[str, str]]:
    """Yield the strings that the browser laid out on each page's first screen."""
    for shard in complete_shards(captures):
        for capture in read_members(members_path(captures, shard)):
            if capture.key in keys:
                yield capture.key, " ".join(box.text for box in dom_text_boxes(capture.elements))


def rsum(similarity: np.ndarray) -> float:
    """Score a similarity whose pairs stand on the diagonal."""
    return recalls(similarity.astype(np.float32), np.arange(len(similarity))).rsum


def same(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return 1 where a value equals another."""
    return (values[:, None] == others[None]).astype(np.float32)


class Texts:
    """Vectors of texts by the pairs of characters of the training captions."""

    def __init__(self, train: Sequence[str]) -> None:
        self._tfidf = TfidfVectorizer(
            analyzer="char", ngram_range=(1, 2), min_df=2, sublinear_tf=True
        )
        rows = self._tfidf.fit_transform(train)
        self._topics = TruncatedSVD(TOPICS, random_state=0).fit(rows)
        self._centre = self._topics.transform(rows).mean(0)

    def sparse(self, texts: Sequence[str]) -> csr_matrix:
        """Return unit rows."""
        return csr_matrix(self._tfidf.transform(texts))

    def dense(self, texts: Sequence[str]) -> np.ndarray:
        """Return centred LSA vectors of unit length."""
        return normalize(self._topics.transform(self._tfidf.transform(texts)) - self._centre)


def ridge(pages: Pages, texts: Texts, inputs: np.ndarray) -> float:
    """Fit on train, choose the strength on dev, score test."""
    train, dev, test = (pages.rows[split] for split in SPLITS)
    scaled = StandardScaler().fit(inputs[train]).transform(inputs)
    goals = texts.dense(pages.captions)
    gram, cross = scaled[train].T @ scaled[train], scaled[train].T @ goals[train]

    def score(strength: float, rows: np.ndarray) -> float:
        weights = np.linalg.solve(gram + strength * np.eye(len(gram)), cross)
        return rsum(normalize(scaled[rows] @ weights) @ goals[rows].T)

    return score(max(STRENGTHS, key=lambda strength: score(strength, dev)), test)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("release", type=Path, nargs="?", default="demo/release")
    parser.add_argument("captures", type=Path, nargs="?", default="demo/captures")
    given = parser.parse_args()
    pages = read_pages(given.release, given.captures)
    test, train = pages.rows["test"], pages.rows["train"]
    texts = Texts([pages.captions[row] for row in train])
    captions = texts.sparse([pages.captions[row] for row in test])
    seen = texts.sparse([pages.words[row] for row in test])
    languages = same(pages.languages, np.unique(pages.languages))
    lines: list[tuple[str, Callable[[], float]]] = [
        ("chance", lambda: 2 * 100 * (1 + 5 + 10) / len(test)),
        ("language", lambda: rsum(same(pages.languages[test], pages.languages[test]))),
        ("site", lambda: rsum(same(pages.sites[test], pages.sites[test]))),
        ("words", lambda: rsum((seen @ captions.T).toarray())),
        ("ridge: regions", lambda: ridge(pages, texts, pages.regions)),
        ("ridge: true language", lambda: ridge(pages, texts, languages)),
        ("ridge: words", lambda: ridge(pages, texts, texts.dense(pages.words))),
    ]
    print(f"{len(train)} training pairs, {len(test)} test pairs")
    for name, figure in lines:
        print(f"{name:24}{figure():8.1f}", flush=True)


if __name__ == "__main__":
    main()
