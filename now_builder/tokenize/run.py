"""Turn the captions of a crawl into ids under each tokenizer; vocabularies see the train pool."""

import hashlib
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder import __version__
from now_builder.config import Strict, build
from now_builder.errors import ConfigError
from now_builder.formats.captions import (
    TOKENIZERS,
    Vocabulary,
    make_vocabulary,
    read_vocabulary,
    write_captions,
    write_vocabulary,
)
from now_builder.formats.io import check_folder_is_ours, lock_folder, remove_leftovers, sha256_of
from now_builder.formats.split import read_split
from now_builder.tokenize.corpus import (
    CaptionTokenizer,
    Corpus,
    ShardCutter,
    TrainCaptions,
    renumbered,
)
from now_builder.tokenize.settings import TokenizeSettings

_log = logging.getLogger(__name__)

_LEARN_FROM = 100_000
"""Captions, evenly spread over the train pool, that merges are learned on: about 1 GB of memory.
Which tokens occur is counted in the whole pool."""
_MIN_FREQUENCY = 2
"""A pair of pieces that occurs only once is not merged: it would be a token of one caption."""


class Chosen(Strict):
    """The choices that change the output, all with values; vocabularies store their own."""

    bpe_vocabulary: int = 10_000
    bert: str = "auto"
    bert_vocabulary: int = 32_000
    jieba_white_space: bool = True


@dataclass(frozen=True, slots=True)
class TokenizeSummary:
    """Number of captions, of those in the train pool, of tokens of each vocabulary.

    The tokenizers in ``made`` ran now; the others were finished before.
    """

    pages: int
    learned_on: int
    sizes: dict[str, int]
    made: list[str]

    def __str__(self) -> str:
        text = f"{self.pages} captions; vocabularies from the {self.learned_on} of the train pool "
        text += "alone: "
        for place, (name, size) in enumerate(self.sizes.items()):
            if name in TOKENIZERS:
                text += f"{', ' if place else ''}{name} {size} tokens"
            else:
                text += f"; {name}: the {size} tokens of its file"
            text += "" if name in self.made else " (unchanged)"
        return text


def tokenize(
    captures: Path,
    captions: Path,
    settings: TokenizeSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> TokenizeSummary:
    """Write ids and vocabulary of each tokenizer, except where both exist and are up to date.

    ``captions`` gets ``jieba.txt``, ``jieba.vocab.json`` and so on, and the raw
    ``bpe.tokenizer.json`` and ``bert.tokenizer.json``. Other raw tokenizers in it, from
    ``settings.with_`` of this run or of earlier ones, are used besides the three. Settings not
    given stay as the folder was made, or with ``force`` take their defaults.

    Raises:
        FormatError: If the captures are missing or torn, or a tokenizer's file cannot be read.
        ConfigError: If the train pool has no caption, a named BERT cannot be loaded, a file's name
            cannot be a tokenizer's, another command made the folder, or a worker was killed.
    """
    check_folder_is_ours(captions)
    files = _files(captions, settings)
    given = settings.model_dump(exclude_none=True, exclude={"with_"})
    if settings.bert and Path(settings.bert).is_dir():
        # As a release's files are named: its vocabulary then tells no home folder.
        given["bert"] = os.path.relpath(Path(settings.bert).resolve(), captions.resolve())
    chosen = (Chosen() if force else _as_it_was(captions)).model_copy(update=given)
    corpus = Corpus(captures, read_split(captures / "split.toml"))
    pages, learned_on, content = _survey(corpus)
    with lock_folder(captions):
        remove_leftovers(captions)
        sizes: dict[str, int] = {}
        made: list[str] = []
        for name in (*TOKENIZERS, *sorted(files)):
            own = {field: getattr(chosen, field) for field in _OWN.get(name, ())}
            listed = [*own.values()] or [sha256_of(files[name])]
            text = f"{__version__}\n{name}\n{listed}\n{content}"
            inputs = hashlib.sha256(text.encode()).hexdigest()
            vocabulary = None if force else _finished(captions, name, inputs, own)
            if vocabulary is None:
                made.append(name)
                tokenizer = _tokenizer(name, corpus, chosen, files, captions, learned_on)
                extra = {"inputs_sha256": inputs}
                extra |= {field: str(value) for field, value in own.items()}
                vocabulary = _make(corpus, tokenizer, captions, pages, learned_on, extra)
            sizes[name] = vocabulary.idx
        return TokenizeSummary(pages, learned_on, sizes, made)


def _files(captions: Path, settings: TokenizeSettings) -> dict[str, Path]:
    """Return the users' own tokenizer files, of this run and of earlier ones; check a new one."""
    ending = ".tokenizer.json"
    standing = {p.name.removesuffix(ending): p for p in captions.glob(f"[!.]*{ending}")}
    files = {name: path for name, path in standing.items() if name not in TOKENIZERS}
    if settings.with_ is not None:
        from now_builder.tokenize.library import custom_name, read_custom

        name = custom_name(settings.with_)
        read_custom(settings.with_, name)  # a file that cannot be read ends the run before any work
        files[name] = settings.with_
    return files


def _survey(corpus: Corpus) -> tuple[int, int, str]:
    """Count captions and train captions, and hash the input of every tokenizer."""
    digest = hashlib.sha256(corpus.split.model_dump_json().encode())
    pools: Counter[str] = Counter()
    for key, caption, pool in corpus:
        pools[pool] += 1
        digest.update(f"{key}\t{pool}\t{caption}\n".encode())
    if not pools["train"]:
        raise ConfigError(
            f"{corpus.captures}: no caption in the train pool to learn vocabularies on (captions "
            f"found: dev {pools['dev']}, test {pools['test']}); crawl more sites, or crawl again "
            "with another seed or larger share of train"
        )
    return pools.total(), pools["train"], digest.hexdigest()


_OWN = {
    "jieba": ("jieba_white_space",),
    "bpe": ("bpe_vocabulary",),
    "bert": ("bert", "bert_vocabulary"),
}
"""The settings that a tokenizer depends on."""


def _as_it_was(captions: Path) -> Chosen:
    """Read the settings that a folder's tokenizers were made with; defaults for the others."""
    tree: dict[str, Any] = {}
    for name in reversed(TOKENIZERS):  # after a kill the first, made first, is the newest
        path = captions / f"{name}.vocab.json"
        if path.is_file():
            extra = read_vocabulary(path).extra
            tree |= {field: extra[field] for field in _OWN[name] if field in extra}
    return build(Chosen, tree, f"{captions}: extra of a vocabulary")


def _finished(folder: Path, name: str, inputs: str, own: Mapping[str, Any]) -> Vocabulary | None:
    """Read a finished vocabulary if it was made from the same inputs, with its ids.

    A vocabulary made from other inputs, which will be replaced, is named on stderr.
    """
    path, ids = folder / f"{name}.vocab.json", folder / f"{name}.txt"
    if not path.is_file() or not ids.is_file():
        return None
    vocabulary = read_vocabulary(path)
    extra = vocabulary.extra
    if extra.get("inputs_sha256") == inputs and extra.get("ids_sha256") == sha256_of(ids):
        return vocabulary
    changed = [
        f"{field} is {value}, was {extra[field]}"
        for field, value in own.items()
        if extra.get(field, str(value)) != str(value)
    ]
    why = ", ".join(changed) or "captions, pools or files have changed"
    _log.warning("%s: %s: cut anew, its ids change (%s)", folder, name, why)
    return None


def _make(
    corpus: Corpus,
    tokenizer: CaptionTokenizer,
    folder: Path,
    pages: int,
    learned_on: int,
    extra: dict[str, str],
) -> Vocabulary:
    """Write ids, tokenizer and, last, the vocabulary."""
    name, ids = tokenizer.name, folder / f"{tokenizer.name}.txt"
    parts = folder / f".{name}.{os.getpid()}.tmp"  # what a kill leaves, the next run removes
    parts.mkdir()
    try:
        train = ShardCutter(corpus, tokenizer, parts).cut_all(pages)
        tokens, source = tokenizer.vocabulary, "nowhere here: all tokens of its file"
        if tokens is None:
            # The commonest first; ties by the token itself, so that nothing depends on page order.
            tokens = sorted(train, key=lambda token: (-train[token], token))
            source = f"train pool alone, {learned_on} captions"
        vocabulary = make_vocabulary(tokens, name, tokenizer.source, source)
        write_captions(ids, renumbered(parts, vocabulary.word2idx))
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    # After the ids: a vocabulary that stands has their hash, so a run that stops here is seen.
    tokenizer.save(folder / f"{name}.tokenizer.json")
    extra = {"inputs_sha256": extra["inputs_sha256"], "ids_sha256": sha256_of(ids)} | extra
    vocabulary = vocabulary.model_copy(update={"extra": extra})
    write_vocabulary(folder / f"{name}.vocab.json", vocabulary)
    return vocabulary


def _tokenizer(
    name: str,
    corpus: Corpus,
    settings: Chosen,
    files: Mapping[str, Path],
    captions: Path,
    learned_on: int,
) -> CaptionTokenizer:
    # Late: each tokenizer's library is loaded only when it runs.
    if name in files:
        from now_builder.tokenize.library import read_custom

        _log.info("%s: the vocabulary of %s as it is; nothing is learned", name, files[name])
        return read_custom(files[name], name)
    _log.info("%s: learning from %d captions of the train pool", name, learned_on)
    train = TrainCaptions(corpus, learned_on, _LEARN_FROM)
    if name == "jieba":
        from now_builder.tokenize.jieba import JiebaTokenizer

        return JiebaTokenizer(white_space=settings.jieba_white_space)
    if name == "bpe":
        from now_builder.tokenize.library import learn_bpe

        return learn_bpe(train, settings.bpe_vocabulary, _MIN_FREQUENCY)
    from now_builder.tokenize.bert import make_bert

    folder = captions / settings.bert
    choice = str(folder) if folder.is_dir() else settings.bert
    return make_bert(choice, train, settings.bert_vocabulary, _MIN_FREQUENCY)
