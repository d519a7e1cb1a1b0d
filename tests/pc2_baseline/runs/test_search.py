"""Pages found by words."""

import json
import shutil

import h5py
import numpy as np
import pytest

from now_builder.errors import ConfigError
from now_builder.formats.release import read_pairs, read_release_vocabulary, read_split_captions
from now_builder.formats.word_vectors import columns_attribute
from pc2_baseline.config import read_settings
from pc2_baseline.data.release_reader import ReleaseReader
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.search.searcher import open_search
from pc2_baseline.runs.train import train
from tests.pc2_baseline.commands import call, failed

QUICK = [
    "data.tokenizer=jieba", "train.epochs=2", "train.warmup_epochs=1", "train.device=cpu",
    "train.tensorboard=false", "train.pictures=false",
]  # fmt: skip


READERS = {"reading", "ridge-words"}


@pytest.fixture(scope="module", params=["ridge", "contrastive", *sorted(READERS)])
def run(request, tiny, tmp_path_factory):
    folder, release = tmp_path_factory.mktemp("search") / "run", tiny
    if request.param in READERS:
        release = shutil.copytree(tiny, folder.with_name("read"))
        for path in release.rglob("*.h5"):
            with h5py.File(path, "a") as file:
                file.attrs["words"] = columns_attribute(slice(512, 768))
    own = {"ridge": ["method.dim=4"], "ridge-words": ["method.words=true"]}
    preset = request.param.removesuffix("-words")
    train(release, folder, read_settings(preset, [*QUICK, *own.get(request.param, [])], on="demo"))
    return folder


def search(run, words, count=10):
    with open_search(run) as searcher:
        return searcher.by_words(words, count)


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


@pytest.fixture
def reads(run, request):
    return request.node.callspec.params["run"] in READERS


def test_words_that_the_vocabulary_lacks_are_told_or_read(run, reads):
    assert search(run, "w0 whales").tokens == ["w0", "whales" if reads else "<unk>"]
    for words in ("?!", " ") if reads else ("whales", " "):
        with pytest.raises(ConfigError, match="no token of it is in the jieba vocabulary"):
            search(run, words)


def test_a_word_is_read_alike_whether_the_vocabulary_has_it_or_not(run, reads, monkeypatch):
    known = search(run, "w3 w9 w0 w12")
    whole = ReleaseReader.vocabulary.func

    def lacking(reader):
        vocabulary = whole(reader)
        words = {
            word: id_ for word, id_ in vocabulary.word2idx.items() if word not in {"w9", "w12"}
        }
        return vocabulary.model_copy(update={"word2idx": words})

    with monkeypatch.context() as patched:
        patched.setattr(ReleaseReader, "vocabulary", property(lacking))
        found = search(run, "w3 w9 w0 w12")
    scores, expected = ({hit.key: hit.score for hit in one.hits} for one in (found, known))
    assert found.tokens == (known.tokens if reads else ["w3", "<unk>", "w0", "<unk>"])
    assert (scores == pytest.approx(expected, abs=1e-6)) == reads
    with open_search(run) as opened:
        opened.by_words("w0 whales", 3)
        assert opened.by_words("w3 w9 w0 w12", 10) == known, "nothing of a search stays"


def test_the_command_prints_a_line_a_page_or_json(run):
    line = ["search", run, "w0 w9", "--split", "train", "--n", "2"]
    head, *hits = call(*line).stdout.splitlines()
    assert head == "w0 | w9: 2 of 24 pages of train"
    printed = json.loads(call(*line, "--json").stdout)
    assert [hit["key"] for hit in printed["hits"]] == [hit.split()[2] for hit in hits]


def test_there_is_one_query(run):
    for line in ([], ["w0", "--serve"], ["w0", "--image", "x.png"]):
        failed(
            call("search", run, *line), "^error: expected one of WORDS, --image FILE and --serve$"
        )


def test_options_that_would_do_nothing_are_refused(run):
    for option, told in {
        "--weights": "--weights: words need no detector, expected --image or --serve with it",
        "--captures": "--captures, --port: expected with --serve",
        "--port": "--captures, --port: expected with --serve",
    }.items():
        line = ["search", run, "w0", option, "7"]
        failed(call(*line), f"^error: {told}$")


def test_a_release_of_another_detector_is_not_searched_by_a_picture(run):
    asked = call("search", run, "--image", __file__)
    failed(asked, "come from the detector 'planted', expected 'apt-style'")
    failed(call("search", run, "--image", "gone.png"), r"gone.png: cannot be read \(No such file")
