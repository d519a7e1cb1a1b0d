"""Tokenizers of the ``tokenizers`` library: learn BPE, or read a user's file."""

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
"""The unknown token."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")


@dataclass(slots=True)
class LibraryTokenizer:
    """A tokenizer of the library, learned here or loaded.

    Args:
        control: Tokens that do not represent text, in addition to the special tokens.
        file: User's file that it was read from; its vocabulary is used unchanged.
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
        """Cut a stream of captions; special tokens in the text of a caption become unknown."""
        for encoding in encode(self.backend, captions, self.file or self.source):
            # encoding.tokens has the text of unknown tokens in some models.
            yield [self._tokens[number] for number in encoding.ids]

    def save(self, path: Path) -> None:
        """Write a file for ``tokenizers.Tokenizer.from_file``; a user's file is copied."""
        if self.file is not None:
            write_text(path, self.file.read_bytes().decode())
        else:
            write_text(path, self.backend.to_str(pretty=False) + "\n")


def text_tokens(backend: tokenizers.Tokenizer, control: Iterable[str]) -> dict[int, str]:
    """Return the token of each id, in order; ``<unk>`` for tokens that do not represent text.

    They are the tokenizer's special tokens, our special tokens and ``control``: a caption with the
    text of one must not get its id.
    """
    added = backend.get_added_tokens_decoder().values()
    excluded = {*SPECIALS, *control, *(token.content for token in added if token.special)}
    ids = sorted(backend.get_vocab().items(), key=itemgetter(1))
    return {number: UNKNOWN if token in excluded else token for token, number in ids}


def encode(
    backend: tokenizers.Tokenizer, captions: Iterable[str], origin: Path | str
) -> Iterator[tokenizers.Encoding]:
    """Encode a stream of captions in batches, without start and end tokens.

    Raises:
        FormatError: If the tokenizer fails on a caption; the message names ``origin``.
    """
    stream = iter(captions)
    while batch := list(islice(stream, BATCH)):
        try:
            encodings = backend.encode_batch(batch, add_special_tokens=False)
        except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
            raise FormatError(origin, f"cannot cut a caption ({error!s:.200})") from None
        yield from encodings


def alphabet(captions: Iterable[str], limit: int) -> list[str]:
    """Return the ``limit`` most frequent characters, sorted by code point, which breaks ties.

    Differs:
        The library's trainer breaks ties by the order of a randomly seeded hash map.
    """
    counts: Counter[str] = Counter()
    for caption in captions:
        counts.update(caption)
    return sorted(sorted(counts, key=lambda item: (-counts[item], item))[:limit])


LONGEST = 16
"""Maximum length of a token in characters; a sentence repeated on all pages must not become one."""

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
    """Learn BPE merges on captions, split first at spaces, punctuation and script changes.

    The vocabulary contains special tokens, the 256 bytes, the most frequent characters (at most
    half of it), and merges. The tokens of a caption, joined and with bytes decoded, restore it.

    Source:
        Sennrich, Haddow and Birch (ACL 2016); byte fallback as in SentencePiece.
    """
    learned_size = vocabulary - len(SPECIALS) - len(_BYTES)
    characters = alphabet(captions, min(vocabulary // 2, learned_size))
    learner = tokenizers.Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(_PIECE), behavior="isolated")
    learner.pre_tokenizer = pieces
    trainer = trainers.BpeTrainer(
        vocab_size=learned_size,
        min_frequency=min_frequency,
        initial_alphabet=characters,
        limit_alphabet=len(characters),
        max_token_length=LONGEST,
        show_progress=False,
    )
    learner.train_from_iterator(captions, trainer)
    learned = json.loads(learner.to_str())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    ids = {token: number for number, token in enumerate([*_BYTES, *tokens])}
    merges = [(left, right) for left, right in learned["merges"]]
    backend = tokenizers.Tokenizer(models.BPE(ids, merges, byte_fallback=True))
    backend.pre_tokenizer = pieces
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    source = f"BPE with byte fallback, {len(ids)} tokens, learned here"
    return LibraryTokenizer("bpe", f"{source} (tokenizers {version('tokenizers')})", backend)


def read_custom(path: Path, name: str) -> LibraryTokenizer:
    """Read a user's tokenizer file.

    Raises:
        FormatError: If the file is not one of the ``tokenizers`` library.
    """
    try:
        text = path.read_bytes().decode()
        backend = tokenizers.Tokenizer.from_str(text)
        control = _control_tokens(json.loads(text))
    except Exception as error:  # noqa: BLE001 - the Rust side raises the bare class
        raise FormatError(path, f"not a file of the tokenizers library ({error})") from None
    backend.no_truncation()
    backend.no_padding()
    source = (
        f"{name}.tokenizer.json, sha256 {hashlib.sha256(text.encode()).hexdigest()}, "
        f"brought along (tokenizers {version('tokenizers')})"
    )
    return LibraryTokenizer(name, source, backend, control, path)


def custom_name(path: Path) -> str:
    """Return the track's name: the file name without ``.json`` (and ``.tokenizer``).

    Raises:
        ConfigError: If it is not a safe file name, or is the name of another track.
    """
    name = path.name.removesuffix(".json").removesuffix(".tokenizer")
    if not _NAME.fullmatch(name) or name.lower() in TOKENIZERS:
        raise ConfigError(
            f"--with {path}: the name would be {name!r}, expected 1 to 40 letters, digits, _ or -, "
            f"and not {', '.join(TOKENIZERS)}. Rename the file"
        )
    return name


def _control_tokens(tree: dict[str, Any]) -> set[str]:
    """Return the unknown token of a file and the tokens that its post-processor adds.

    They are read from the JSON, since the library prints a line for each unused id.
    """
    model = tree["model"]
    unk_token = model.get("unk_token")
    if model.get("unk_id") is not None:  # Unigram: index into a list of tokens and scores
        unk_token = model["vocab"][model["unk_id"]][0]
    tokens = _added_tokens(tree.get("post_processor") or {})
    return tokens if unk_token is None else {*tokens, str(unk_token)}


def _added_tokens(processor: dict[str, Any]) -> set[str]:
    pairs = (processor.get(name) for name in ("cls", "sep"))  # BERT, RoBERTa: token and id
    tokens = {pair[0] for pair in pairs if pair} | {*processor.get("special_tokens", ())}
    return tokens.union(*map(_added_tokens, processor.get("processors", ())))
