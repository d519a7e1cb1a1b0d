"""The token ids of new text, cut as a release's captions were."""

import warnings
from functools import cache
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.captions import MENDED, SPECIALS, UNK, Vocabulary
from now_builder.formats.text import clean, mend


def encode(
    release: Path, tokenizer: str, vocabulary: Vocabulary, text: str
) -> list[tuple[str, int]]:
    """Cut a text by the tokenizer of a track and return its tokens, each with its id.

    The text is :func:`cleaned` first. Every tokenizer but Jieba needs its file beside the
    vocabulary, as ``now-builder package`` writes it.

    Returns:
        Content ids as in the release's captions: without ``<start>`` and ``<end>``, with that of
        ``<unk>`` for a token outside the vocabulary. Where the tokenizer itself has no token, the
        token is the piece of text.

    Raises:
        FormatError: If the tokenizer's file is missing or cannot be read.
    """
    text = cleaned(text, vocabulary)
    ids = {token: number for token, number in vocabulary.word2idx.items() if token not in SPECIALS}
    if tokenizer == "jieba":
        tokens = [token for token in cut_words(text) if token.strip() or token in ids]
    else:
        tokens = _cut(release / "vocab" / f"{tokenizer}.tokenizer.json", text)
    return [(token, ids.get(token, UNK)) for token in tokens]


def cleaned(text: str, vocabulary: Vocabulary) -> str:
    """Return a text cleaned, and mended if the captions of a release's vocabulary were."""
    text = clean(text)
    return mend(text) if vocabulary.extra.get("captions") == MENDED else text


def _cut(path: Path, text: str) -> list[str]:
    if not path.is_file():
        raise FormatError(path, "no such file; needed to cut text as the captions were")
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
        backend.no_truncation()
        backend.no_padding()
        encoding = backend.encode(text, add_special_tokens=False)
    except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
        raise FormatError(path, f"cannot cut a text ({error!s:.200})") from None
    added = backend.get_added_tokens_decoder().values()
    outside = {token.content for token in added if token.special}
    outside |= {*SPECIALS, "[UNK]", getattr(backend.model, "unk_token", None) or ""}
    # By id, not by encoding.tokens: for an unknown token some models give the text.
    tokens = [backend.id_to_token(number) or "" for number in encoding.ids]
    return [
        text[slice(*span)] if token in outside else token
        for token, span in zip(tokens, encoding.offsets, strict=True)
    ]


_LONGEST = 4096
"""Characters, longer than any description: Jieba's time grows with the square of a run."""


def cut_words(text: str) -> list[str]:
    """Cut a text as ``jieba.lcut`` does, a very long one in pieces."""
    pieces = (text[start : start + _LONGEST] for start in range(0, len(text), _LONGEST))
    return [token for piece in pieces for token in jieba_library().lcut(piece)]


@cache
def jieba_library() -> Any:
    """Load Jieba's dictionary without its cache, a marshal file in a shared folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jieba 0.42 has invalid escapes, asks pkg_resources
        import jieba
    library = jieba.Tokenizer()
    library.FREQ, library.total = library.gen_pfdict(library.get_dict_file())
    library.initialized = True
    return library
