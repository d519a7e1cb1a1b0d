"""BPE over characters, learned on the train pool; characters outside it fall back to bytes."""

import json
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from now_builder.formats.captions import SPECIALS
from now_builder.formats.io import write_text
from now_builder.tokenize.base import alphabet, encoded

LONGEST = 16
"""Most characters in a token: a sentence repeated on every page of a site is not a word."""

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}\x{30FC}\x{3005}"
_PIECE = (
    rf" ?[{_CJK}]+"  # Chinese and Japanese: no spaces between words
    r"| ?\p{Hangul}+"
    r"| ?\p{Nd}+"
    rf"| ?[\p{{L}}\p{{M}}&&[^{_CJK}\p{{Hangul}}]]+"  # every other script
    r"| ?[^\p{L}\p{M}\p{Nd}\s]"  # punctuation and symbols, one at a time
    r"|\s"
)
_BYTES = [f"<0x{value:02X}>" for value in range(256)]


class BpeTokenizer:
    """A BPE that was learned here; see :func:`learn_bpe`."""

    name = "bpe"
    vocabulary: list[str] | None = None

    def __init__(self, backend: tokenizers.Tokenizer, source: str) -> None:
        self._backend = backend
        self.source = source

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; joined and with bytes decoded, the tokens are the caption."""
        for encoding in encoded(self._backend, captions):
            yield encoding.tokens

    def save(self, path: Path) -> None:
        """Store the raw tokenizer: ``tokenizers.Tokenizer.from_file`` reads it."""
        write_text(path, self._backend.to_str(pretty=False) + "\n")


def learn_bpe(captions: Iterable[str], vocabulary: int, min_frequency: int) -> BpeTokenizer:
    """Learn merges on captions, which are first split at spaces, punctuation and script changes.

    Args:
        captions: Captions of the train pool; gone through twice.
        vocabulary: Most tokens: specials, the 256 bytes, up to half of it characters (the most
            frequent ones), and merges.
        min_frequency: How often a pair must occur to be merged.

    Source:
        Sennrich, Haddow and Birch (ACL 2016); byte fallback as in SentencePiece.
    """
    room = vocabulary - len(SPECIALS) - len(_BYTES)
    characters = alphabet(captions, min(vocabulary // 2, room))
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _pieces()
    trainer = trainers.BpeTrainer(
        vocab_size=room,
        min_frequency=min_frequency,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        max_token_length=LONGEST,
        show_progress=False,
    )
    learner.train_from_iterator(captions, trainer)
    learned = json.loads(learner.to_str())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    numbered = {token: number for number, token in enumerate([*_BYTES, *tokens])}
    merges = [(left, right) for left, right in learned["merges"]]
    backend = tokenizers.Tokenizer(models.BPE(numbered, merges, byte_fallback=True))
    backend.pre_tokenizer = _pieces()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return BpeTokenizer(
        backend,
        f"BPE with byte fallback, {len(numbered)} tokens, learned here "
        f"(tokenizers {version('tokenizers')})",
    )


def _pieces() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
