"""Tokenised captions: one text file of ids and one vocabulary per tokenizer."""

from array import array
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from now_builder.config import Strict, build
from now_builder.errors import FormatError
from now_builder.formats.io import atomic_write, read_json, stream_lines, write_json

if TYPE_CHECKING:
    Numbers = array[int]
else:
    Numbers = array  # not subscriptable before Python 3.12

Tokenizer = Literal["jieba", "bpe", "bert"]
TOKENIZERS: tuple[Tokenizer, ...] = ("jieba", "bpe", "bert")
"""The tokenizers of the paper; a captions folder and a release may have more."""

_SUFFIX = ".vocab.json"

SPECIALS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(4)


_PICKLED = (
    "a pickle, which may run code and is never opened. Convert it to JSON where it was made: "
    "json.dump({'word2idx': v.word2idx, 'idx2word': v.idx2word, 'idx': v.idx}, file)"
)


class Vocabulary(Strict):
    """Tokens and ids; ``<pad> <start> <end> <unk>`` are 0 to 3.

    Attributes:
        word2idx: Id of each token.
        idx2word: Token of each id; JSON turns the ids into text.
        idx: Number of tokens: the size of an embedding table.
        tokenizer: Name of the tokenizer that made it.
        source: Origin of the tokens in words (library, model name, learned here …).
        learned_on: Pool and number of captions that the vocabulary was learned on.
    """

    word2idx: dict[str, int]
    idx2word: dict[str, str]
    idx: int
    tokenizer: str = ""
    source: str = ""
    learned_on: str = ""
    extra: dict[str, str] = Field(default_factory=dict)


def make_vocabulary(
    tokens: Iterable[str], tokenizer: str, source: str, learned_on: str
) -> Vocabulary:
    """Number tokens in the order given, after the four specials."""
    words = list(dict.fromkeys([*SPECIALS, *tokens]))
    return Vocabulary(
        word2idx={word: index for index, word in enumerate(words)},
        idx2word={str(index): word for index, word in enumerate(words)},
        idx=len(words),
        tokenizer=tokenizer,
        source=source,
        learned_on=learned_on,
    )


def find_tokenizers(captions: Path) -> list[str]:
    """Return the tokenizers of a captions folder: those of the paper, then all others."""
    others = {path.name.removesuffix(_SUFFIX) for path in captions.glob(f"[!.]*{_SUFFIX}")}
    return [*TOKENIZERS, *sorted(others.difference(TOKENIZERS))]


def write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Write a vocabulary atomically."""
    write_json(path, vocabulary.model_dump())


def read_vocabulary(path: Path) -> Vocabulary:
    """Read our vocabulary or one of the published archive, which has the first three fields."""
    try:
        tree = read_json(path, "no such vocabulary")
    except FormatError as error:
        pickled = path.suffix in {".pkl", ".pickle"} or "0x80 in position 0" in error.problem
        if pickled and path.is_file():
            raise FormatError(path, _PICKLED) from None
        raise
    if not isinstance(tree, dict):
        raise FormatError(path, f"found a {type(tree).__name__}, expected an object")
    vocabulary = build(Vocabulary, tree, str(path))
    bad_id = next((i for i in vocabulary.word2idx.values() if not 0 <= i < vocabulary.idx), None)
    if bad_id is not None:
        raise FormatError(path, f"idx is {vocabulary.idx}, but a token has id {bad_id}")
    return vocabulary


def write_captions(path: Path, captions: Iterable[tuple[str, Iterable[int | str]]]) -> None:
    """Write a stream of captions atomically as ``key<TAB>1,2,3`` lines; content ids only."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for key, ids in captions:
            file.write(f"{key}\t{to_line(ids)}\n")


def read_captions(path: Path) -> dict[str, list[int]]:
    """Read ``key<TAB>1,2,3`` lines, in file order."""
    captions: dict[str, list[int]] = {}
    missing = "no such file; `now-builder tokenize` writes it"
    for number, line in enumerate(stream_lines(path, missing), 1):
        key, tab, ids = line.partition("\t")
        if not tab or not key or key in captions:
            problem = "a repeated key" if key in captions else "no key and tab"
            raise FormatError(path, f"line {number}: {problem}, expected key<TAB>1,2,3")
        captions[key] = from_line(path, number, ids)
    return captions


# Equal ids share one object, which needs a quarter of the memory.
_cached_int = lru_cache(maxsize=2**17)(int)


def to_line(ids: Iterable[int | str]) -> str:
    """Join ids with commas."""
    return ",".join(map(str, ids))


def from_line(path: Path, number: int, line: str) -> list[int]:
    """Split comma-separated ids, skipping empty fields as the authors' loader does."""
    try:
        ids = [_cached_int(field) for field in line.split(",") if field.strip()]
    except ValueError:
        raise FormatError(path, f"line {number}: {line[:60]!r}, expected 1,2,3") from None
    if ids and not 0 <= min(ids) <= max(ids) < 2**32:
        bad_id = min(ids) if min(ids) < 0 else max(ids)
        raise FormatError(path, f"line {number}: id {bad_id!s:.40}, expected 0 to {2**32 - 1}")
    return ids
