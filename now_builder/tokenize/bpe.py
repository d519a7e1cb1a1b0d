"""BPE over characters, learned on the train pool; characters outside it fall back to bytes."""

import json
from collections.abc import Iterable
from importlib.metadata import version

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from now_builder.formats.captions import SPECIALS
from now_builder.tokenize.library import LibraryTokenizer, alphabet

LONGEST = 16
"""Maximum characters of a token: a sentence repeated on every page of a site is not a word."""

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


def learn_bpe(captions: Iterable[str], vocabulary: int, min_frequency: int) -> LibraryTokenizer:
    """Learn merges on captions, which are first split at spaces, punctuation and script changes.

    Joined and with bytes decoded, the tokens of a caption are the caption. The vocabulary holds
    special tokens, the 256 bytes, the most frequent characters (up to half of it), and merges.

    Source:
        Sennrich, Haddow and Birch (ACL 2016); byte fallback as in SentencePiece.
    """
    room = vocabulary - len(SPECIALS) - len(_BYTES)
    characters = alphabet(captions, min(vocabulary // 2, room))
    learner = tokenizers.Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    learner.pre_tokenizer = pieces
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
    backend.pre_tokenizer = pieces
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    about = f"BPE with byte fallback, {len(numbered)} tokens, learned here"
    return LibraryTokenizer("bpe", f"{about} (tokenizers {version('tokenizers')})", backend)
