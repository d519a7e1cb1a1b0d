"""Pages found by words."""

import json
import sys

import numpy as np
import pytest

from now_builder.errors import ConfigError
from now_builder.formats.release import (
    read_pairs,
    read_release_vocabulary,
    read_split_captions,
)
from pc2_baseline.cli import main
from pc2_baseline.config import read_settings
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.search import search
from pc2_baseline.runs.train import train

QUICK = [
    "data.tokenizer=jieba", "train.epochs=2", "train.warmup_epochs=1", "train.device=cpu",
    "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


@pytest.fixture(scope="module", params=["ridge", "contrastive-demo"])
def run(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search") / "run"
    own = ["method.dim=4"] if request.param == "ridge" else []
    train(tiny, folder, read_settings(request.param, [*QUICK, *own]))
    return folder


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
    line = ["pc2-baseline", "search", str(run), "w0 w9", "--split", "train", "--n", "2"]
    monkeypatch.setattr(sys, "argv", line)
    with pytest.raises(SystemExit):
        main()
    head, *hits = capsys.readouterr().out.splitlines()
    assert head == "w0 | w9: 2 of 24 pages of train"
    monkeypatch.setattr(sys, "argv", [*line, "--json"])
    with pytest.raises(SystemExit):
        main()
    found = json.loads(capsys.readouterr().out)
    assert [hit["key"] for hit in found["hits"]] == [hit.split()[2] for hit in hits]
