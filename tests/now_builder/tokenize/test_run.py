"""The stage: what it writes, from what it learns, what it leaves alone, and what a kill leaves."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import tokenizers

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.captions import SPECIALS, UNK, read_captions, read_vocabulary
from now_builder.formats.shard import CaptureRow, read_rows, write_shard
from now_builder.formats.split import Shares, SplitPlan, read_split, write_split
from now_builder.tokenize.corpus import Corpus, TrainCaptions
from now_builder.tokenize.run import tokenize
from now_builder.tokenize.settings import TokenizeSettings

LEARN = TokenizeSettings(bert="learn")
NAMES = ("jieba", "bpe", "bert")

WITH_WORKERS = """
import os, pathlib, signal, sys, time
from now_builder.tokenize import corpus, run
from now_builder.tokenize.settings import TokenizeSettings
class Slow(corpus.ShardCutter):
    def cut_shard(self, shard):
        (self.parts / f"at-work-{shard}").touch()
        if "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
run.ShardCutter, corpus.PARALLEL_FROM = Slow, 0
if __name__ == "__main__":
    run.tokenize(*map(pathlib.Path, sys.argv[1:3]), TokenizeSettings(bert="learn"))
"""


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    caplog.clear()
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def encoded(captures: Path) -> dict[str, CaptureRow]:
    return {row.key: row for row in read_rows(captures) if row.status == "ok" and row.caption}


def test_every_caption_is_encoded_as_content_ids_numbered_without_gaps(
    small_crawl: Path, small_captions: Path
) -> None:
    expected = list(encoded(small_crawl))
    assert len(expected) < len(read_rows(small_crawl))
    for name in NAMES:
        ids = read_captions(small_captions / f"{name}.txt")
        assert list(ids) == expected
        vocabulary = read_vocabulary(small_captions / f"{name}.vocab.json")
        assert [vocabulary.idx2word[str(number)] for number in range(4)] == list(SPECIALS)
        assert sorted(vocabulary.word2idx.values()) == list(range(vocabulary.idx))
        written = {number for line in ids.values() for number in line}
        assert {*range(4, vocabulary.idx)} <= written <= {*range(UNK, vocabulary.idx)}
        assert vocabulary.tokenizer == name
        assert ("jieba 0." if name == "jieba" else "learned here") in vocabulary.source
        assert "train pool" in vocabulary.learned_on


def test_merges_are_learned_on_a_limited_number_of_captions_evenly_spread(
    small_crawl: Path, small_captions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus(small_crawl, read_split(small_crawl / "split.toml"))
    train = [caption for _, caption, pool in corpus if pool == "train"]
    assert list(TrainCaptions(corpus, len(train), 100_000)) == train
    few = list(TrainCaptions(corpus, len(train), 7))
    places = [train.index(caption) for caption in few]
    assert len(few) == 7
    assert places == sorted(places)
    assert places[0] < len(train) // 4
    assert places[-1] > len(train) // 2
    monkeypatch.setattr("now_builder.tokenize.run._LEARN_FROM", 7)
    tokenize(small_crawl, tmp_path / "captions", LEARN)
    few, all_ = (contents(folder) for folder in (tmp_path / "captions", small_captions))
    assert {name for name in all_ if few[name] != all_[name]} == {
        f"{name}.{end}" for name in ("bpe", "bert")
        for end in ("txt", "vocab.json", "tokenizer.json")
    }  # fmt: skip


def test_words_outside_the_train_pool_do_not_reach_any_vocabulary(
    small_crawl: Path, tmp_path: Path
) -> None:
    """Other captions in dev and test change neither a vocabulary nor any train line."""
    split = read_split(small_crawl / "split.toml")
    pools = {row.key: split.pool_of(row.site, row.key) for row in read_rows(small_crawl)}
    one, two = tmp_path / "one", tmp_path / "two"
    for captures, word in ((one, "zygote"), (two, "qqqq 龘")):
        captures.mkdir()
        write_split(captures / "split.toml", split)
        rows = [
            row if pools[row.key] == "train" else CaptureRow(
                row.key, row.url, row.url_canonical, row.site, "ok", caption=f"{word} {row.key}"
            )
            for row in read_rows(small_crawl)
        ]  # fmt: skip
        write_shard(captures, 0, rows, [])
        tokenize(captures, captures / "captions", LEARN)
    for name in NAMES:
        first, second = (
            read_vocabulary(folder / "captions" / f"{name}.vocab.json") for folder in (one, two)
        )
        assert first.word2idx == second.word2idx
        assert not any("zy" in word or "龘" in word for word in first.word2idx)
        lines, others = (
            read_captions(folder / "captions" / f"{name}.txt") for folder in (one, two)
        )
        train = [key for key in lines if pools[key] == "train"]
        assert train
        assert all(lines[key] == others[key] for key in train)


def test_worker_processes_write_the_same_bytes(
    small_crawl: Path, small_captions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("now_builder.tokenize.corpus.PARALLEL_FROM", 0)
    tokenize(small_crawl, tmp_path / "two", LEARN)
    assert contents(tmp_path / "two") == contents(small_captions)


def test_killed_with_workers_it_leaves_none_and_ends_as_if_nothing_had_happened(
    small_crawl: Path, small_captions: Path, tmp_path: Path
) -> None:
    folder, script = tmp_path / "captions", tmp_path / "main.py"
    script.write_text(WITH_WORKERS, encoding="utf-8")
    command = subprocess.Popen([sys.executable, script, small_crawl, folder])
    parent = psutil.Process(command.pid)
    while not any(folder.glob(".jieba.*.tmp/at-work-*")):
        assert command.poll() is None
        time.sleep(0.02)
    workers = parent.children(recursive=True)
    command.kill()
    command.wait()
    assert workers
    assert psutil.wait_procs(workers, timeout=20)[1] == []
    tokenize(small_crawl, folder, LEARN)
    assert contents(folder) == contents(small_captions)


def test_a_worker_that_is_killed_is_one_clear_line(small_crawl: Path, tmp_path: Path) -> None:
    folder, script = tmp_path / "captions", tmp_path / "main.py"
    script.write_text(WITH_WORKERS, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script, small_crawl, folder, "die"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ConfigError: jieba: a worker process was killed" in done.stderr
    assert not folder.exists()


def test_finished_files_are_kept_and_changed_inputs_are_tokenized_again_with_a_reason(
    small_crawl: Path, small_captions: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "captions"
    tokenize(small_crawl, folder, LEARN)
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert tokenize(small_crawl, folder, LEARN).made == []
    assert times == {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "bert.txt").write_text("", encoding="utf-8")
    (folder / "jieba.txt").unlink()
    assert tokenize(small_crawl, folder, LEARN).made == ["jieba", "bert"]
    assert contents(folder) == contents(small_captions)
    caplog.clear()
    assert tokenize(small_crawl, folder, TokenizeSettings(bpe_vocabulary=320)).made == ["bpe"]
    (line,) = warned(caplog)
    assert line.startswith(f"{folder}: bpe: ")
    assert "bpe_vocabulary is 320, was 10000" in line
    assert tokenize(small_crawl, folder, TokenizeSettings(jieba_white_space=False)).made == [
        "jieba"
    ]
    warned(caplog)
    assert tokenize(small_crawl, folder, LEARN, force=True).made == list(NAMES)
    assert warned(caplog) == []
    assert contents(folder) == contents(small_captions), "--force begins with the defaults"


def test_a_tokenizer_added_later_leaves_the_others_as_they_were_made(
    small_crawl: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, bert, mine = (tmp_path / name for name in ("captions", "bert", "mine.json"))
    bert.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "news", "##s", "a", "##a"]
    (bert / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "news": 1}, unk_token="?"))
    made.save(str(mine))
    chosen = TokenizeSettings(bert=str(bert), bpe_vocabulary=320, jieba_white_space=False)
    tokenize(small_crawl, folder, chosen)
    before = contents(folder)
    assert not any(str(tmp_path).encode() in content for content in before.values())
    assert tokenize(small_crawl, folder, TokenizeSettings(with_=mine)).made == ["mine"]
    assert tokenize(small_crawl, folder, TokenizeSettings(bpe_vocabulary=320)).made == []
    assert before.items() <= contents(folder).items()
    assert warned(caplog) == []


def test_the_folder_of_another_command_is_left_alone(small_crawl: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains captures \(plan.parquet\). Name another"):
        tokenize(small_crawl, small_crawl, TokenizeSettings())


def test_an_empty_train_pool_and_missing_captures_are_one_clear_line(tmp_path: Path) -> None:
    write_split(tmp_path / "split.toml", SplitPlan(shares=Shares(train=0.01, dev=0.01, test=0.98)))
    url = "http://a.test/"
    write_shard(tmp_path, 0, [CaptureRow("00000_0000", url, url, "a.test", "ok", caption="x")], [])
    with pytest.raises(ConfigError, match="train pool") as caught:
        tokenize(tmp_path, tmp_path / "captions", LEARN)
    assert "test 1" in str(caught.value)
    assert not (tmp_path / "captions").exists()
    with pytest.raises(FormatError, match="crawl"):
        tokenize(tmp_path / "none", tmp_path / "captions", LEARN)
