"""Captions that were there before: the same but for case, or nearly the same."""

from typing import Any

_SHINGLE = 3
_PERMUTATIONS = 128
_LONGEST = 10_000
"""Characters of a caption that count for its being near; equal ones are compared whole."""


class SameCaptions:
    """Captions with their keys, searched for one that is equal after case folding."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}

    def find(self, caption: str) -> tuple[str, float] | None:
        """Return the key of such a caption and its similarity in [0, 1], else ``None``."""
        key = self._keys.get(caption.casefold())
        return None if key is None else (key, 1.0)

    def add(self, key: str, caption: str) -> None:
        """Add a caption."""
        self._keys.setdefault(caption.casefold(), key)


class NearCaptions(SameCaptions):
    """Captions that share most of their runs of three characters.

    Candidates come from locality-sensitive hashing, tuned to miss few; their similarity is then
    computed, so that nothing is called near that is not.

    Args:
        similarity: Least Jaccard similarity of the two sets of runs, in (0, 1].

    Source:
        Broder, On the resemblance and containment of documents, 1997 (MinHash).
    """

    def __init__(self, similarity: float) -> None:
        # Late: this loads SciPy, for a filter that few ask for.
        from datasketch import MinHash, MinHashLSH

        super().__init__()
        self._similarity = similarity
        self._empty = MinHash(num_perm=_PERMUTATIONS, seed=1)
        least = min(similarity, 0.99)  # of 1 there would be one band, and one error in it a miss
        self._bands = MinHashLSH(least, num_perm=_PERMUTATIONS, weights=(0.1, 0.9))
        self._texts: list[tuple[str, str]] = []

    def find(self, caption: str) -> tuple[str, float] | None:
        """Return the key of the most similar caption, the first of equals."""
        found = super().find(caption)
        if found is not None:
            return found
        runs = shingles(caption)
        for number in sorted(self._bands.query(self._hashed(runs))):
            key, text = self._texts[number]
            share = jaccard(runs, shingles(text))
            if share >= self._similarity and (found is None or share > found[1]):
                found = key, share
        return found

    def add(self, key: str, caption: str) -> None:
        """Add a caption."""
        super().add(key, caption)
        self._bands.insert(len(self._texts), self._hashed(shingles(caption)))
        self._texts.append((key, caption))

    def _hashed(self, runs: frozenset[str]) -> Any:
        hashed = self._empty.copy()
        hashed.update_batch([run.encode() for run in sorted(runs)])
        return hashed


def shingles(caption: str) -> frozenset[str]:
    """Return the runs of three characters of a caption, case folded; a shorter one is a run."""
    text = caption[:_LONGEST].casefold()
    return frozenset(text[at : at + _SHINGLE] for at in range(max(1, len(text) - _SHINGLE + 1)))


def jaccard(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the Jaccard similarity of two sets."""
    return len(one & other) / len(one | other)
