"""Captions a second of the stage: Jieba, BPE and BERT against plain loops, and its memory.

The file is not called tokenize.py: every other benchmark would then import it for Python's own.
Captions are drawn in seven languages, half of them Chinese, with as many Jieba tokens as those of
NoW: mean 54, p99 169, 412 at most. The plain ways get a sample of them, before and after the rest.

    python benchmarks/tokenize_captions.py --captions 100000
"""

import argparse
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from string import ascii_lowercase

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import jieba

from now_builder.formats.shard import CaptureRow, write_shard
from now_builder.formats.split import Shares, SplitPlan, read_split, write_split
from now_builder.simweb.words import read_words
from now_builder.tokenize.base import CaptionTokenizer
from now_builder.tokenize.bert import learn_wordpiece
from now_builder.tokenize.bpe import learn_bpe
from now_builder.tokenize.corpus import Corpus, TrainCaptions
from now_builder.tokenize.jieba import JiebaTokenizer
from now_builder.tokenize.run import tokenize
from now_builder.tokenize.settings import TokenizeSettings
from now_builder.tokenize.workers import ShardCutter

SHARD = 256
LANGUAGES = ["zh", "zh", "zh", "zh-Hant", "en", "es", "ja", "ko", "ru"]
LONGEST = 412


class Pen:
    """Writes captions of the simulated web's words, of a dictionary's and of made names."""

    def __init__(self) -> None:
        self.draw = random.Random(0)
        dictionary = {word: count for word, count in jieba.dt.FREQ.items() if count}
        self.words, self.weights = [*dictionary], [*accumulate(dictionary.values())]
        self.names = ["".join(self.draw.choices(ascii_lowercase, k=self.draw.randint(3, 9))).title()
                      for _ in range(50_000)]  # fmt: skip
        self.often = [*accumulate(1 / rank for rank in range(1, len(self.names) + 1))]
        self.pieces = {lang: self._pieces(lang) for lang in LANGUAGES}

    @staticmethod
    def _pieces(lang: str) -> list[str]:
        words = read_words(lang)
        texts = [part for topic in words.topics.values()
                 for part in (topic.name, *topic.things, *topic.acts, *topic.facts)]  # fmt: skip
        return [piece for text in texts for piece in re.findall(r"\S+\s?", text)]

    def caption(self) -> str:
        """Write one."""
        wanted = min(LONGEST, max(4, round(self.draw.lognormvariate(3.84, 0.55))))
        lang = self.draw.choice(LANGUAGES)
        pieces, left = [], wanted
        while left > 0:
            piece = self._piece(lang)
            pieces.append(piece)
            left -= _tokens(piece)
        return "".join(pieces).strip()

    def _piece(self, lang: str) -> str:
        chance, end = self.draw.random(), "" if lang in {"zh", "zh-Hant", "ja"} else " "
        if chance < 0.05:
            return f"{self.draw.randint(0, 9999)}{end}"
        if chance < 0.1:
            return f"{self.draw.choices(self.names, cum_weights=self.often)[0]}{end}"
        if chance < 0.8 and lang == "zh":
            return self.draw.choices(self.words, cum_weights=self.weights)[0]
        if chance < 0.85 and not end:
            return "，"
        return self.draw.choice(self.pieces[lang])


@lru_cache(2**16)
def _tokens(piece: str) -> int:
    return len(jieba.lcut(piece))


def write_crawl(captures: Path, captions: Sequence[str]) -> Corpus:
    write_split(captures / "split.toml", SplitPlan(shares=Shares(train=0.9, dev=0.05, test=0.05)))
    for start in range(0, len(captions), SHARD):
        rows = []
        for place, caption in enumerate(captions[start : start + SHARD]):
            url, key = (
                f"http://{(start + place) % 997}.test/{start + place}",
                f"{start // SHARD:05d}",
            )
            rows.append(
                CaptureRow(f"{key}_{place:04d}", url, url, url.split("/")[2], "ok", caption=caption)
            )
        write_shard(captures, start // SHARD, rows, [])
    return Corpus(captures, read_split(captures / "split.toml"))


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured on, and how."""

    corpus: Corpus
    captions: Sequence[str]
    sample: Sequence[str]
    processes: int

    def train(self) -> TrainCaptions:
        """Return the captions that vocabularies are learned on."""
        total = sum(pool == "train" for _, _, pool in self.corpus)
        return TrainCaptions(self.corpus, total, 100_000)

    def loop(self, cut: Callable[[str], object], texts: Sequence[str]) -> float:
        """Measure texts a second."""
        start = time.perf_counter()
        for text in texts:
            cut(text)
        return len(texts) / (time.perf_counter() - start)

    def stream(self, tokenizer: CaptionTokenizer) -> float:
        """Measure captions a second in this process, without keeping the ids."""
        start = time.perf_counter()
        for _ in tokenizer.cut(self.captions):
            pass
        return len(self.captions) / (time.perf_counter() - start)

    def stage(self, tokenizer: CaptionTokenizer, processes: int) -> float:
        """Cut all shards into files, as ``tokenize`` does; until the first is done is start-up."""
        with (
            tempfile.TemporaryDirectory(dir=self.corpus.captures) as parts,
            ExitStack() as stack,
        ):
            cutter, begin = ShardCutter(self.corpus, tokenizer, Path(parts)), time.perf_counter()
            spent = sum(os.times()[:4])
            outcomes = cutter.outcomes(len(self.captions), processes, stack)
            next(outcomes)
            start = time.perf_counter()
            count = sum(cut for cut, _ in outcomes)
            rate = count / (time.perf_counter() - start)
        spent = sum(os.times()[:4]) - spent
        print(
            f"  ({tokenizer.name}, {processes} at work: start-up {start - begin:.1f} s; with it "
            f"{1e6 * spent / len(self.captions):.0f} µs of CPU a caption)"
        )
        return rate


def say(name: str, rate: float, plain: float | None = None) -> None:
    """Print a rate, and how many times the plain one it is."""
    ratio = "" if plain is None else f"{rate / plain:7.2f}x"
    print(f"  {name:<46}{rate:>10,.0f} /s{ratio}", flush=True)


def bench_jieba(bench: Bench) -> None:
    made, start = JiebaTokenizer(), time.perf_counter()
    next(made.cut([""]))
    print(f"jieba: dictionary in {time.perf_counter() - start:.2f} s")
    plain = bench.loop(jieba.lcut, bench.sample)
    say("plain jieba.lcut loop", plain)
    say("stage, 1 process", bench.stage(made, 1), plain)
    say(f"stage, {bench.processes} processes", bench.stage(made, bench.processes), plain)


def bench_bpe(bench: Bench) -> None:
    start = time.perf_counter()
    made = learn_bpe(bench.train(), 10_000, 2)
    print(f"bpe: learned in {time.perf_counter() - start:.1f} s")
    say("loop", bench.stream(made))
    say(f"stage, {bench.processes} processes", bench.stage(made, bench.processes))


def bench_bert(bench: Bench, folder: Path) -> None:
    from transformers.models.bert.tokenization_bert_legacy import (  # noqa: PLC0415 - slow
        BertTokenizerLegacy,
    )

    start = time.perf_counter()
    made = learn_wordpiece(bench.train(), 32_000, 2)
    print(f"bert: learned in {time.perf_counter() - start:.1f} s")
    vocabulary = made.backend.get_vocab()
    words = [*sorted(vocabulary, key=vocabulary.__getitem__), "[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    slow = BertTokenizerLegacy(str(folder / "vocab.txt"), do_lower_case=False, strip_accents=False)
    before = bench.loop(slow.tokenize, bench.sample)
    ours = bench.stream(made)
    all_of_them = bench.stage(made, bench.processes)
    plain = statistics.mean([before, bench.loop(slow.tokenize, bench.sample)])
    say("slow reference (BertTokenizerLegacy), loop", plain)
    say("tokenizers' encode_batch, loop", ours, plain)
    say(f"stage, {bench.processes} processes", all_of_them, plain)
    cut = zip(made.cut(bench.sample), bench.sample, strict=True)
    differ = sum(
        [token.replace("<unk>", "[UNK]") for token in tokens] != slow.tokenize(text)
        for tokens, text in cut
    )
    print(f"  {differ} of {len(bench.sample):,} captions differ from the slow reference's")


def peak(captures: Path) -> str:
    """Run the whole stage in one process, and give its peak."""
    arguments = [sys.executable, __file__, "--memory", str(captures)]
    return subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip()


def measure_memory(captures: Path) -> None:
    with tempfile.TemporaryDirectory(dir=captures.parent) as folder:
        start = time.perf_counter()
        # What merges are learned on is a setting, and takes memory; all else must take the same.
        settings = TokenizeSettings(bert="learn", processes=1, learn_from=4_000)
        tokenize(captures, Path(folder), settings)
        seconds = time.perf_counter() - start
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    own = int(status.split("VmHWM:")[1].split()[0]) / 1024
    print(f"{own:.0f} MiB; all three in {seconds:.0f} s, one process")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=100_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory is not None:
        measure_memory(chosen.memory)
        return
    jieba.setLogLevel(60)
    start = time.perf_counter()
    jieba.initialize()
    print(f"jieba's own start, from its cache if it has one: {time.perf_counter() - start:.2f} s")
    pen = Pen()
    captions = [pen.caption() for _ in range(chosen.captions)]
    sample = captions[:: max(1, len(captions) // 5000)]
    lengths = sorted(len(jieba.lcut(text)) for text in sample)
    print(
        f"{len(captions):,} captions, tokens: mean {statistics.mean(lengths):.0f}, "
        f"p99 {lengths[len(lengths) * 99 // 100]}, max {lengths[-1]}; sample {len(sample):,}; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    folder = Path(tempfile.mkdtemp(prefix="tokenize-"))
    try:
        corpus = write_crawl(folder / "captures", captions)
        bench = Bench(corpus, captions, sample, chosen.processes)
        bench_jieba(bench)
        bench_bpe(bench)
        bench_bert(bench, folder)
        quarter = write_crawl(folder / "quarter", captions[: len(captions) // 4])
        print(f"memory, {len(captions) // 4:,}: {peak(quarter.captures)}")
        print(f"memory, {len(captions):,}: {peak(corpus.captures)}")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
