"""Captions cut into words by NLTK, once: the words are kept in the user's cache, by content."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from now_builder.errors import ConfigError
from now_builder.formats.io import user_cache, write_text
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
    if len(texts) < KEPT_FROM:
        return _cut(texts, sentences=sentences)
    path = user_cache() / "words" / f"{_key(texts, sentences=sentences)}.txt"
    kept = _read(path, len(texts))
    if kept is not None:
        return kept
    words = _cut(texts, sentences=sentences)
    # No token holds white space, whatever its script: NLTK splits at it last.
    body = "\n".join(map(" ".join, words))
    try:
        write_text(path, f"{_hash(body)}\n{body}")
    except (OSError, UnicodeEncodeError) as error:
        _log.warning("words of the captions are not kept for the next start (%s)", error)
    return words


def _key(texts: Sequence[str], *, sentences: bool) -> str:
    try:
        digest = hashlib.sha256(f"words/1\nnltk {version('nltk')}\n{sentences}\n".encode())
        if sentences:
            from nltk.data import find

            model = find("tokenizers/punkt_tab/english/")
            for name in _PUNKT:
                with model.join(name).open() as file:
                    digest.update(hashlib.sha256(file.read()).digest())
    except ImportError as error:
        raise _without_nltk(error) from None
    except LookupError:
        raise _without_punkt() from None
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(content)}\n".encode() + content)
    return digest.hexdigest()


def _read(path: Path, captions: int) -> list[list[str]] | None:
    """Read what was kept; ``None`` if there is nothing, or not what was written."""
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


def _cut(texts: Sequence[str], *, sentences: bool) -> list[list[str]]:
    tokenise = _tokeniser(sentences=sentences)
    return [tokenise(text.lower()) for text in bar(texts, "words", len(texts), "caption")]


def _tokeniser(*, sentences: bool) -> Callable[[str], list[str]]:
    try:
        from nltk.tokenize import word_tokenize
    except ImportError as error:
        raise _without_nltk(error) from None

    def tokenise(text: str) -> list[str]:
        words: list[str] = word_tokenize(text, preserve_line=not sentences)
        return words

    try:
        tokenise("a.")
    except LookupError:
        raise _without_punkt() from None
    return tokenise


def _without_nltk(error: ImportError) -> ConfigError:
    return ConfigError(f"nltk is missing ({error}); pip install 'noise-of-web[baseline]'")


def _without_punkt() -> ConfigError:
    return ConfigError(
        "nltk's sentence splitter lacks its data: `python -m nltk.downloader punkt_tab` "
        "gets it; data.sentences = false does without"
    )
