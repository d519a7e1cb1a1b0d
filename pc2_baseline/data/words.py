"""Words of captions: cut by NLTK and kept in the cache, or next to those that a detector read."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import numpy as np
from jaxtyping import Float

from now_builder.errors import ConfigError
from now_builder.formats.io import user_cache, write_text
from now_builder.formats.word_vectors import text_vector
from pc2_baseline.progress import bar

_log = logging.getLogger(__name__)

KEPT_FROM = 1000
"""Captions from which on their words are kept; fewer are cut in less than a second."""

_PUNKT = ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab")


def cut_captions(texts: Sequence[str], *, sentences: bool) -> list[list[str]]:
    """Cut lower-cased captions into words as the field does, on request into sentences first.

    The words of many captions are kept in ``words`` in the user's cache, under a hash of the
    captions, NLTK's version and the data of its sentence splitter. A file that is torn or was
    changed is ignored, and so is a cache that cannot be written.

    Raises:
        ConfigError: If NLTK or the data of its sentence splitter is missing.
    """
    try:
        if len(texts) < KEPT_FROM:
            return _cut(texts, sentences=sentences)
        path = user_cache() / "words" / f"{_key(texts, sentences=sentences)}.txt"
        kept = _read(path, len(texts))
        if kept is not None:
            return kept
        words = _cut(texts, sentences=sentences)
    except LookupError:
        raise ConfigError(
            "nltk's sentence splitter lacks its data: `python -m nltk.downloader punkt_tab` "
            "gets it; data.sentences = false does without"
        ) from None
    # No token holds white space, whatever its script: NLTK splits at it last.
    body = "\n".join(map(" ".join, words))
    try:
        write_text(path, f"{_hash(body)}\n{body}")
    except (OSError, UnicodeEncodeError) as error:
        _log.warning("words of the captions are not kept for the next start (%s)", error)
    return words


def _cut(texts: Sequence[str], *, sentences: bool) -> list[list[str]]:
    from nltk.tokenize import word_tokenize

    captions = bar(texts, "words", len(texts), "caption")
    return [word_tokenize(text.lower(), preserve_line=not sentences) for text in captions]


def _key(texts: Sequence[str], *, sentences: bool) -> str:
    from nltk.data import find

    digest = hashlib.sha256(f"words/1\nnltk {version('nltk')}\n{sentences}\n".encode())
    if sentences:
        model = find("tokenizers/punkt_tab/english/")
        for name in _PUNKT:
            with model.join(name).open() as file:
                digest.update(hashlib.sha256(file.read()).digest())
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read(path: Path, captions: int) -> list[list[str]] | None:
    """Read the words that were kept; ``None`` if there are none, or others than were written."""
    try:
        head, _, body = path.read_text(encoding="utf-8").partition("\n")
    except (OSError, UnicodeDecodeError):
        return None
    lines = body.split("\n")
    if head != _hash(body) or len(lines) != captions:
        return None
    return [line.split(" ") if line else [] for line in lines]


def _hash(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8")).hexdigest()


@dataclass(frozen=True)
class SeenWords:
    """Columns of a region that hold the words read on it, and the text of each pair's caption.

    The texts are read when they are first asked for: most methods need none.
    """

    columns: slice
    read_texts: Callable[[], Sequence[str]]

    @cached_property
    def texts(self) -> Sequence[str]:
        """The text of each caption."""
        return self.read_texts()

    @cached_property
    def letters(self) -> Float[np.ndarray, "pairs 256"]:
        """A unit vector of each caption: the sum of its letters', as a region's is.

        Each letter also counts by itself. A caption without letters has a vector of zeros.
        """
        known = {text: text_vector(text) for text in dict.fromkeys(self.texts)}
        return np.stack([known[text] for text in self.texts])
