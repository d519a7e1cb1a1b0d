"""Turn the captions of a crawl into ids under each tokenizer; vocabularies see the train pool."""

import hashlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tqdm import tqdm

from now_builder import __version__
from now_builder.errors import ConfigError
from now_builder.formats.atomic import remove_leftovers, sha256_of
from now_builder.formats.captions import (
    MENDED,
    TOKENIZERS,
    UNK,
    Tokenizer,
    Vocabulary,
    from_line,
    make_vocabulary,
    read_vocabulary,
    to_line,
    write_captions,
    write_vocabulary,
)
from now_builder.formats.shard import complete_shards, read_rows
from now_builder.formats.split import Split, SplitPlan, read_split
from now_builder.formats.text import mend
from now_builder.tokenize.base import CaptionTokenizer
from now_builder.tokenize.settings import TokenizeSettings


@dataclass(frozen=True, slots=True)
class Corpus:
    """The captions of a crawl, streamed shard by shard each time it is gone through."""

    captures: Path
    split: SplitPlan
    mended: bool = False

    def __iter__(self) -> Iterator[tuple[str, str, Split]]:
        """Yield key, caption and pool of each page that was captured and has a caption."""
        for shard in complete_shards(self.captures):
            for row in read_rows(self.captures, shard):
                caption = mend(row.caption or "") if self.mended else row.caption
                if row.status == "ok" and caption:
                    yield row.key, caption, self.split.pool_of(row.site, row.key)


@dataclass(frozen=True, slots=True)
class TrainCaptions:
    """The captions of the train pool, for as many passes as a learner needs."""

    corpus: Corpus

    def __iter__(self) -> Iterator[str]:
        """Yield each caption of the train pool."""
        return (caption for _, caption, pool in self.corpus if pool == "train")


@dataclass(frozen=True, slots=True)
class TokenizeSummary:
    """What a run of ``tokenize`` left behind.

    Attributes:
        pages: Captions encoded.
        learned_on: Captions of the train pool.
        sizes: Tokens of each vocabulary, specials included.
        made: The tokenizers that were run now; the others stood already.
    """

    pages: int
    learned_on: int
    sizes: dict[str, int]
    made: list[str]

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name} {size} tokens{'' if name in self.made else ' (unchanged)'}"
            for name, size in self.sizes.items()
        )
        return (
            f"{self.pages} captions; vocabularies from the {self.learned_on} of the train pool "
            f"alone: {sizes}"
        )


def tokenize(
    captures: Path,
    captions: Path,
    settings: TokenizeSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> TokenizeSummary:
    """Write ids and vocabulary of each tokenizer; one that stands and fits is left alone.

    Args:
        captures: Folder made by ``crawl``.
        captions: Folder to write: ``jieba.txt``, ``jieba.vocab.json`` and so on, and the raw
            ``bpe.tokenizer.json`` and ``bert.tokenizer.json``.
        settings: Sizes and choices.
        force: Make all of them again.

    Raises:
        FormatError: If the captures are missing or torn.
        ConfigError: If the train pool has no caption, or a named BERT cannot be had.
    """
    corpus = Corpus(captures, read_split(captures / "split.toml"), settings.mend)
    pages, learned_on, content = _survey(corpus)
    captions.mkdir(parents=True, exist_ok=True)
    remove_leftovers(captions)
    sizes: dict[str, int] = {}
    made: list[str] = []
    for name in TOKENIZERS:
        inputs = _inputs(name, settings, content)
        vocabulary = None if force else _standing(captions, name, inputs)
        if vocabulary is None:
            made.append(name)
            job = _Job(captions, name, inputs, pages, learned_on)
            vocabulary = _make(corpus, job, settings)
        sizes[name] = vocabulary.idx
    return TokenizeSummary(pages, learned_on, sizes, made)


@dataclass(frozen=True, slots=True)
class _Job:
    folder: Path
    name: Tokenizer
    inputs: str
    pages: int
    learned_on: int


def _survey(corpus: Corpus) -> tuple[int, int, str]:
    """Count captions and train captions, and hash what every tokenizer depends on."""
    digest = hashlib.sha256(corpus.split.model_dump_json().encode())
    if corpus.mended:
        digest.update(MENDED.encode())
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


def _inputs(name: Tokenizer, settings: TokenizeSettings, content: str) -> str:
    """Hash what one tokenizer's output depends on: its settings, this version, the captions."""
    chosen = {
        "jieba": [settings.jieba_white_space],
        "bpe": [settings.bpe_vocabulary, settings.min_frequency],
        "bert": [settings.bert, settings.bert_vocabulary, settings.min_frequency],
    }[name]
    return hashlib.sha256(f"{__version__}\n{name}\n{chosen}\n{content}".encode()).hexdigest()


def _standing(folder: Path, name: Tokenizer, inputs: str) -> Vocabulary | None:
    """Read a finished vocabulary, if it was made from the same inputs and its ids are beside."""
    path, ids = folder / f"{name}.vocab.json", folder / f"{name}.txt"
    if not path.is_file() or not ids.is_file():
        return None
    vocabulary = read_vocabulary(path)
    same = vocabulary.extra.get("inputs_sha256") == inputs
    return vocabulary if same and vocabulary.extra.get("ids_sha256") == sha256_of(ids) else None


def _make(corpus: Corpus, job: _Job, settings: TokenizeSettings) -> Vocabulary:
    sys.stderr.write(f"{job.name}: learning from {job.learned_on} captions of the train pool\n")
    tokenizer = _learn(job.name, corpus, settings)
    tokenizer.save(job.folder / f"{job.name}.tokenizer.json")
    with tempfile.TemporaryFile("w+", dir=job.folder, encoding="utf-8", newline="\n") as spill:
        seen = _spill(corpus, tokenizer, job, spill)
        # The commonest first; ties by the token itself, so that nothing depends on page order.
        tokens = sorted(seen.train, key=lambda token: (-seen.train[token], token))
        vocabulary = make_vocabulary(
            tokens,
            job.name,
            tokenizer.source,
            f"train pool alone, {job.learned_on} captions",
        )
        renumber = [vocabulary.word2idx.get(token, UNK) for token in seen.numbers]
        spill.seek(0)
        ids = job.folder / f"{job.name}.txt"
        write_captions(ids, _renumbered(spill, renumber, ids))
    extra = {"inputs_sha256": job.inputs, "ids_sha256": sha256_of(ids)}
    if corpus.mended:
        extra["captions"] = MENDED
    vocabulary = vocabulary.model_copy(update={"extra": extra})
    write_vocabulary(job.folder / f"{job.name}.vocab.json", vocabulary)
    return vocabulary


def _learn(name: Tokenizer, corpus: Corpus, settings: TokenizeSettings) -> CaptionTokenizer:
    train = TrainCaptions(corpus)
    # Late: each tokenizer's library is loaded only when it runs.
    if name == "jieba":
        from now_builder.tokenize.jieba import JiebaTokenizer  # noqa: PLC0415

        return JiebaTokenizer(white_space=settings.jieba_white_space, processes=settings.processes)
    if name == "bpe":
        from now_builder.tokenize.bpe import learn_bpe  # noqa: PLC0415

        return learn_bpe(train, settings.bpe_vocabulary, settings.min_frequency)
    from now_builder.tokenize.bert import make_bert  # noqa: PLC0415

    return make_bert(settings.bert, train, settings.bert_vocabulary, settings.min_frequency)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Tokens met so far: a provisional number for each, and how often the train pool has it."""

    numbers: dict[str, int]
    train: Counter[str]


def _spill(corpus: Corpus, tokenizer: CaptionTokenizer, job: _Job, spill: IO[str]) -> _Seen:
    """Cut every caption once, keeping provisional numbers on disk: memory holds only tokens."""
    seen = _Seen({}, Counter())
    cut = tokenizer.cut(caption for _, caption, _ in corpus)
    bar = tqdm(
        zip(corpus, cut, strict=True),
        total=job.pages,
        desc=job.name,
        unit="caption",
        disable=None,
    )
    for (key, _, pool), tokens in bar:
        if pool == "train":
            seen.train.update(tokens)
        numbers = [seen.numbers.setdefault(token, len(seen.numbers)) for token in tokens]
        spill.write(f"{key}\t{to_line(numbers)}\n")
    return seen


def _renumbered(spill: IO[str], renumber: list[int], path: Path) -> Iterator[tuple[str, list[int]]]:
    for count, line in enumerate(spill, 1):
        key, _, numbers = line.rstrip("\n").partition("\t")
        yield key, [renumber[number] for number in from_line(path, count, numbers)]
