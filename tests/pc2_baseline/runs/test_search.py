"""Pages found by words."""

import json
import shutil
import sys

import h5py
import numpy as np
import pytest

from now_builder.errors import ConfigError
from now_builder.formats.release import (
    read_pairs,
    read_release_vocabulary,
    read_split_captions,
)
from now_builder.formats.word_vectors import columns_attribute
from pc2_baseline.cli import main
from pc2_baseline.config import read_settings
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.search.searcher import open_search
from pc2_baseline.runs.train import train

QUICK = [
    "data.tokenizer=jieba", "train.epochs=2", "train.warmup_epochs=1", "train.device=cpu",
    "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@pytest.fixture(scope="module", params=["ridge", "contrastive-demo", "reading"])
def run(request, tiny, tmp_path_factory):
    folder, release = tmp_path_factory.mktemp("search") / "run", tiny
    if request.param == "reading":
        release = shutil.copytree(tiny, folder.with_name("read"))
        for path in release.rglob("*.h5"):
            with h5py.File(path, "a") as file:
                file.attrs["words"] = columns_attribute(slice(512, 768))
    own = ["method.dim=4"] if request.param == "ridge" else []
    train(release, folder, read_settings(request.param, [*QUICK, *own]))
    return folder


def search(run, words, count=10):
    with open_search(run) as searcher:
        return searcher.by_words(words, count)


def program(monkeypatch, capsys, *line):
    """Run a command line; return its exit code, and what it printed."""
    monkeypatch.setattr(sys, "argv", ["pc2-baseline", *map(str, line)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, *capsys.readouterr()


def test_the_words_of_a_caption_find_what_the_caption_finds(run, tiny):
    words = read_release_vocabulary(tiny, "jieba").idx2word
    ids = read_split_captions(tiny, "test", "jieba").captions[3]
    tokens = [words[str(number)] for number in ids]
    found = search(run, " ".join(tokens), count=5)
    assert found.tokens == tokens
    assert (found.split, found.pages) == ("test", 8)
    scores = similarity(run)[:, 3]
    expected = np.argsort(-scores, kind="stable")[:5]
    keys = {pair.pair_index: pair.key for pair in read_pairs(tiny) if pair.split == "test"}
    assert [hit.key for hit in found.hits] == [keys[row] for row in expected]
    assert [hit.score for hit in found.hits] == pytest.approx(scores[expected].tolist(), abs=1e-5)
    assert [hit.rank for hit in found.hits] == [1, 2, 3, 4, 5]


def test_words_that_the_vocabulary_lacks_are_told(run):
    assert search(run, "w0 whales").tokens == ["w0", "<unk>"]
    for words in ("whales", " "):
        with pytest.raises(ConfigError, match="no token of it is in the jieba vocabulary"):
            search(run, words)


def test_the_command_prints_a_line_a_page_or_json(run, monkeypatch, capsys):
    line = ["search", run, "w0 w9", "--split", "train", "--n", "2"]
    _, out, _ = program(monkeypatch, capsys, *line)
    head, *hits = out.splitlines()
    assert head == "w0 | w9: 2 of 24 pages of train"
    _, out, _ = program(monkeypatch, capsys, *line, "--json")
    assert [hit["key"] for hit in json.loads(out)["hits"]] == [hit.split()[2] for hit in hits]


def test_there_is_one_query(run, monkeypatch, capsys):
    for line in ([], ["w0", "--serve"], ["w0", "--image", "x.png"]):
        code, _, told = program(monkeypatch, capsys, "search", run, *line)
        assert (code, told) == (1, "error: expected one of WORDS, --image FILE and --serve\n")


def test_options_that_would_do_nothing_are_refused(run, monkeypatch, capsys):
    for option, told in {
        "--weights": "--weights: words need no detector, expected --image or --serve with it",
        "--captures": "--captures, --port: expected with --serve",
        "--port": "--captures, --port: expected with --serve",
    }.items():
        line = ["search", run, "w0", option, "7"]
        assert program(monkeypatch, capsys, *line) == (1, "", f"error: {told}\n")


def test_a_release_of_another_detector_is_not_searched_by_a_picture(run, monkeypatch, capsys):
    code, _, told = program(monkeypatch, capsys, "search", run, "--image", __file__)
    assert code == 1
    assert "come from the detector 'planted', expected 'apt-style'" in told
    code, _, told = program(monkeypatch, capsys, "search", run, "--image", "gone.png")
    assert (code, told) == (1, "error: gone.png: cannot be read (No such file or directory)\n")
