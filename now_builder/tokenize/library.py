"""Tokenizers of the ``tokenizers`` library: BPE learned here, or one read from a user's file."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from importlib.metadata import version
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import SPECIALS, TOKENIZERS, UNK
from now_builder.formats.io import write_text

BATCH = 1000
UNKNOWN = SPECIALS[UNK]
"""The token of text for which a tokenizer has no token."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@dataclass(slots=True)
class LibraryTokenizer:
    """A tokenizer of the library, learned here or loaded.

    Args:
        control: Tokens that stand for no text, besides those that the tokenizer calls special.
        file: A user's file that it was read from, whose vocabulary is used as it is.
    """

    name: str
    source: str
    backend: tokenizers.Tokenizer
    control: InitVar[Iterable[str]] = ()
    file: Path | None = None
    vocabulary: list[str] | None = None
    _tokens: dict[int, str] = field(init=False, repr=False)

    def __post_init__(self, control: Iterable[str]) -> None:
        self._tokens = text_tokens(self.backend, control)
        if self.file is not None:
            self.vocabulary = [token for token in self._tokens.values() if token != UNKNOWN]

    def cut(self, captions: Iterable[str]) -> Iterator[list[str]]:
        """Cut a stream of captions; special tokens that a caption spells out are unknown."""
        for encoding in encoded(self.backend, captions, self.file or self.source):
            # By id, not by encoding.tokens: for an unknown token some models give the text.
            yield [self._tokens[number] for number in encoding.ids]

    def save(self, path: Path) -> None:
        """Write a file that ``tokenizers.Tokenizer.from_file`` reads; a user's file unchanged."""
        if self.file is not None:
            write_text(path, self.file.read_bytes().decode())
        else:
            write_text(path, self.backend.to_str(pretty=False) + "\n")


def text_tokens(backend: tokenizers.Tokenizer, control: Iterable[str]) -> dict[int, str]:
    """Return the token of each id, in order; ``<unk>`` for tokens that stand for no text.

    Those are the tokenizer's special tokens, our own specials and ``control``: a caption that
    contains one of them as text must not get its id.
    """
    added = backend.get_added_tokens_decoder().values()
    outside = {*SPECIALS, *control, *(token.content for token in added if token.special)}
    ids = sorted(backend.get_vocab().items(), key=itemgetter(1))
    return {number: UNKNOWN if token in outside else token for token, number in ids}


def encoded(
    backend: tokenizers.Tokenizer, captions: Iterable[str], origin: Path | str
) -> Iterator[tokenizers.Encoding]:
    """Encode a stream of captions in batches, without start and end tokens.

    Raises:
        FormatError: If the tokenizer fails on a caption; ``origin`` is its file or source.
    """
    stream = iter(captions)
    while batch := list(islice(stream, BATCH)):
        try:
            encodings = backend.encode_batch(batch, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
            raise FormatError(origin, f"cannot cut a caption ({error!s:.200})") from None
        yield from encodings


def alphabet(captions: Iterable[str], limit: int) -> list[str]:
    """Return the most frequent characters, sorted; ties are broken by code point.

    Differs:
        The trainer's own limit drops tied characters in the order of a randomly seeded hash map.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:limit])


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


def read_custom(path: Path, name: str) -> LibraryTokenizer:
    """Read a tokenizer from a file; nothing is learned for it.

    Raises:
        FormatError: If the file is not one of the ``tokenizers`` library.
    """
    try:
        text = path.read_bytes().decode()
        backend = tokenizers.Tokenizer.from_str(text)
        control = _control(json.loads(text))
    except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
        raise FormatError(path, f"not a file of tokenizers ({error})") from None
    backend.no_truncation()
    backend.no_padding()
    source = (
        f"{name}.tokenizer.json, sha256 {hashlib.sha256(text.encode()).hexdigest()}, "
        f"brought along (tokenizers {version('tokenizers')})"
    )
    return LibraryTokenizer(name, source, backend, control, path)


def custom_name(path: Path) -> str:
    """Return the track's name: the file's name without ``.json`` (and ``.tokenizer``).

    Raises:
        ConfigError: If that is not a safe file name, or is the name of another track.
    """
    name = path.name.removesuffix(".json").removesuffix(".tokenizer")
    if not _NAME.fullmatch(name) or name.lower() in TOKENIZERS:
        raise ConfigError(
            f"--with {path}: the tokenizer would be called {name!r}, expected 1 to 40 letters, "
            f"digits, _ or -, and not {', '.join(TOKENIZERS)}; rename the file"
        )
    return name


def _control(tree: dict[str, Any]) -> set[str]:
    """Return the tokens that a file puts around a text, and its unknown token.

    They are read from the JSON, since the library would write out a line for each free id.
    """
    model = tree["model"]
    unknown = model.get("unk_token")
    if model.get("unk_id") is not None:  # Unigram: a place in a list of tokens and scores
        unknown = model["vocab"][model["unk_id"]][0]
    around = _around(tree.get("post_processor") or {})
    return around if unknown is None else {*around, str(unknown)}


def _around(processor: dict[str, Any]) -> set[str]:
    pairs = (processor.get(name) for name in ("cls", "sep"))  # of BERT and RoBERTa: token and id
    tokens = {pair[0] for pair in pairs if pair} | {*processor.get("special_tokens", ())}
    return tokens.union(*map(_around, processor.get("processors", ())))
