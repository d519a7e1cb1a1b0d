"""Words of captions, cut by NLTK and cached, or as sketches to compare with a detector's."""

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import numpy as np
from jaxtyping import Float

from now_builder.errors import ConfigError
from now_builder.formats.io import user_cache, write_text
from now_builder.formats.word_vectors import text_sketch
from pc2_baseline.progress import bar

_log = logging.getLogger(__name__)

KEPT_FROM = 1000
"""Minimum captions whose words are cached; fewer are cut in less than a second."""


def cut_captions(texts: Sequence[str], *, sentences: bool) -> list[list[str]]:
    """Cut lower-cased captions into words as the field does, optionally into sentences first.

    The words of many captions are cached in ``words`` in the user's cache, under a hash of the
    captions and of NLTK's version. Damaged files and an unwritable cache are ignored.
    """
    if len(texts) < KEPT_FROM:
        return _cut(texts, sentences=sentences)
    content = json.dumps([version("nltk"), sentences, list(texts)])
    path = user_cache() / "words" / f"{hashlib.sha256(content.encode()).hexdigest()}.json"
    try:
        kept: list[list[str]] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        kept = _cut(texts, sentences=sentences)
        try:
            write_text(path, json.dumps(kept))
        except OSError as error:
            _log.warning("words of the captions are not kept for the next start (%s)", error)
    return kept


def _cut(texts: Sequence[str], *, sentences: bool) -> list[list[str]]:
    from nltk.tokenize import word_tokenize

    captions = bar(texts, "words", len(texts), "caption")
    try:
        return [word_tokenize(text.lower(), preserve_line=not sentences) for text in captions]
    except LookupError:
        raise ConfigError(
            "nltk's sentence splitter lacks its data: `python -m nltk.downloader punkt_tab` "
            "gets it; data.sentences = false does without"
        ) from None


@dataclass(frozen=True)
class SeenWords:
    """Columns of a region that contain the page's sketch, and the text of each pair's caption.

    The texts are read on first use, since most methods need none.
    """

    columns: slice
    read_texts: Callable[[], Sequence[str]]

    @cached_property
    def texts(self) -> Sequence[str]:
        """The text of each caption."""
        return self.read_texts()

    @cached_property
    def sketches(self) -> Float[np.ndarray, "pairs 9216"]:
        """The sketch of each caption, in float16; zeros without letters."""
        sketches = {text: text_sketch(text).astype(np.float16) for text in {*self.texts}}
        return np.stack([sketches[text] for text in self.texts])
