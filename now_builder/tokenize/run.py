"""Tokenize the captions of a crawl; vocabularies are learned on the train pool alone."""

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
from now_builder.config import build
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
    read_ids,
)
from now_builder.tokenize.settings import TokenizeSettings

_log = logging.getLogger(__name__)

_LEARN_FROM = 100_000
"""Maximum number of captions to learn merges on, spread evenly over the train pool; they take about
1 GB of memory. Token counts are those of the complete pool."""
_MIN_FREQUENCY = 2
"""Minimum frequency of a pair to merge; a pair that occurs once would be a token of one caption."""


@dataclass(frozen=True, slots=True)
class TokenizeSummary:
    """Summary of a run.

    Attributes:
        pages: Number of captions.
        learned_on: Number of captions in the train pool.
        sizes: Number of tokens by vocabulary.
        made: Tokenizers that ran now; the others were finished before.
    """

    pages: int
    learned_on: int
    sizes: dict[str, int]
    made: list[str]

    def __str__(self) -> str:
        parts = [
            f"{name} {size} tokens{'' if name in TOKENIZERS else ' of its file'}"
            f"{'' if name in self.made else ' (unchanged)'}"
            for name, size in self.sizes.items()
        ]
        learned = f"vocabularies learned on the {self.learned_on} of the train pool alone"
        return f"{self.pages} captions; {learned}: {', '.join(parts)}"


def tokenize(
    captures: Path,
    captions: Path,
    settings: TokenizeSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> TokenizeSummary:
    """Write the ids and vocabulary of each tokenizer, unless both exist and are up to date.

    ``captions`` gets ``jieba.txt``, ``jieba.vocab.json`` and so on, and the raw
    ``bpe.tokenizer.json`` and ``bert.tokenizer.json``. Additional raw tokenizers, from
    ``settings.with_`` of this run or of earlier ones, are used too. Settings that are not given are
    those that the folder was made with; with ``force``, the defaults.

    Raises:
        FormatError: If the captures are missing or damaged, or a tokenizer file cannot be read.
        ConfigError: If the train pool has no caption, the named BERT cannot be loaded, a file's
            name is not allowed, another command made the folder, or a worker was killed.
    """
    check_folder_is_ours(captions)
    files = _files(captions, settings)
    options = settings.model_dump(exclude_unset=True, exclude={"with_"})
    if options.get("bert") and Path(settings.bert).is_dir():
        # Relative, so that the vocabulary does not reveal the home directory.
        options["bert"] = os.path.relpath(Path(settings.bert).resolve(), captions.resolve())
    tree = ({} if force else _stored_settings(captions)) | options
    chosen = build(TokenizeSettings, tree, f"{captions}: extra of a vocabulary")
    corpus = Corpus(captures, read_split(captures / "split.toml"))
    pages, learned_on, content = _survey(corpus)
    with lock_folder(captions):
        remove_leftovers(captions)
        sizes: dict[str, int] = {}
        made: list[str] = []
        for name in (*TOKENIZERS, *sorted(files)):
            options = {field: getattr(chosen, field) for field in _OPTIONS.get(name, ())}
            values = [*options.values()] or [sha256_of(files[name])]
            text = f"{__version__}\n{name}\n{values}\n{content}"
            inputs = hashlib.sha256(text.encode()).hexdigest()
            vocabulary = None if force else _finished(captions, name, inputs, options)
            if vocabulary is None:
                made.append(name)
                tokenizer = _tokenizer(name, corpus, chosen, files, captions, learned_on)
                extra = {"inputs_sha256": inputs}
                extra |= {field: str(value) for field, value in options.items()}
                vocabulary = _make(corpus, tokenizer, captions, pages, learned_on, extra)
            sizes[name] = vocabulary.idx
        return TokenizeSummary(pages, learned_on, sizes, made)


def _files(captions: Path, settings: TokenizeSettings) -> dict[str, Path]:
    """Return the user's tokenizer files of this run and of earlier ones; check a new one."""
    suffix = ".tokenizer.json"
    files = {path.name.removesuffix(suffix): path for path in captions.glob(f"[!.]*{suffix}")}
    if settings.with_ is not None:
        from now_builder.tokenize.library import custom_name, read_custom

        name = custom_name(settings.with_)
        read_custom(settings.with_, name)  # fail early if it cannot be read
        files[name] = settings.with_
    return {name: path for name, path in files.items() if name not in TOKENIZERS}


def _survey(corpus: Corpus) -> tuple[int, int, str]:
    """Count captions and train captions, and hash the input of every tokenizer."""
    digest = hashlib.sha256(corpus.split.model_dump_json().encode())
    pools: Counter[str] = Counter()
    for key, caption, pool in corpus:
        pools[pool] += 1
        digest.update(f"{key}\t{pool}\t{caption}\n".encode())
    if not pools["train"]:
        raise ConfigError(
            f"{corpus.captures}: no caption in the train pool to learn vocabularies on (captions: "
            f"dev {pools['dev']}, test {pools['test']}). Crawl more sites, or crawl again with "
            "another seed or a larger share of train"
        )
    return pools.total(), pools["train"], digest.hexdigest()


_OPTIONS = {
    "jieba": ("jieba_white_space",),
    "bpe": ("bpe_vocabulary",),
    "bert": ("bert", "bert_vocabulary"),
}
"""Settings that affect a tokenizer."""


def _stored_settings(captions: Path) -> dict[str, Any]:
    """Return the settings that a folder's tokenizers were made with."""
    tree: dict[str, Any] = {}
    for name in TOKENIZERS:
        path = captions / f"{name}.vocab.json"
        if path.is_file():
            extra = read_vocabulary(path).extra
            tree |= {field: extra[field] for field in _OPTIONS[name] if field in extra}
    return tree


def _finished(
    folder: Path, name: str, inputs: str, options: Mapping[str, Any]
) -> Vocabulary | None:
    """Return a finished vocabulary with ids that was made from the same inputs, if any.

    A vocabulary from other inputs, which will be replaced, is logged.
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
        for field, value in options.items()
        if extra.get(field, str(value)) != str(value)
    ]
    reason = ", ".join(changed) or "captions, pools or files have changed"
    _log.warning("%s: %s: tokenizing again, ids change (%s)", folder, name, reason)
    return None


def _make(
    corpus: Corpus,
    tokenizer: CaptionTokenizer,
    folder: Path,
    pages: int,
    learned_on: int,
    extra: dict[str, str],
) -> Vocabulary:
    """Write the ids, the tokenizer and, last, the vocabulary."""
    name, ids = tokenizer.name, folder / f"{tokenizer.name}.txt"
    parts = folder / f".{name}.{os.getpid()}.tmp"  # after a kill, the next run removes it
    parts.mkdir()
    try:
        train = ShardCutter(corpus, tokenizer, parts).cut_all(pages)
        tokens, source = tokenizer.vocabulary, "nowhere here: all tokens of its file"
        if tokens is None:
            # By frequency, ties by the token itself, so that page order does not matter.
            tokens = sorted(train, key=lambda token: (-train[token], token))
            source = f"train pool alone, {learned_on} captions"
        vocabulary = make_vocabulary(tokens, name, tokenizer.source, source)
        write_captions(ids, read_ids(parts, vocabulary.word2idx))
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    # After the ids: an old vocabulary has another hash of them, which reveals a killed run.
    tokenizer.save(folder / f"{name}.tokenizer.json")
    extra = {"inputs_sha256": extra["inputs_sha256"], "ids_sha256": sha256_of(ids)} | extra
    vocabulary = vocabulary.model_copy(update={"extra": extra})
    write_vocabulary(folder / f"{name}.vocab.json", vocabulary)
    return vocabulary


def _tokenizer(
    name: str,
    corpus: Corpus,
    settings: TokenizeSettings,
    files: Mapping[str, Path],
    captions: Path,
    learned_on: int,
) -> CaptionTokenizer:
    # Late imports: a tokenizer's library is loaded only when it runs.
    if name in files:
        from now_builder.tokenize.library import read_custom

        _log.info("%s: using the vocabulary of %s unchanged", name, files[name])
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
