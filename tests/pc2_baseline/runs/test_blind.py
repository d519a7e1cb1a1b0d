"""Blind rounds and the baseline: a run predicts what its vocabulary can read."""

import json
import shutil
import sys

import pytest

from leaderboard.blind import RoundPlan, make_round
from leaderboard.cli import main as judge
from leaderboard.metrics import steps_of, to_step
from leaderboard.scoring.evaluate import score
from now_builder.errors import FormatError
from pc2_baseline.cli import main
from pc2_baseline.config import read_settings
from pc2_baseline.runs.evaluate import evaluate
from pc2_baseline.runs.predict import predict
from pc2_baseline.runs.train import train
from pc2_baseline.training.run_folder import read_run

VOCABULARY = "vocab/now100k_precomp_vocab_jieba.json"


@pytest.fixture(scope="module")
def run(easy, tmp_path_factory):
    """A few epochs on the release that the rounds are drawn from: enough to beat chance."""
    settings = read_settings(
        "sgr",
        [
            "model.embed_dim=32", "model.word_dim=24", "model.similarity_dim=16", "train.batch=20",
            "train.warmup_epochs=8", "train.epochs=0", "train.device=cpu", "train.lr=3e-3",
            "train.tensorboard=false", "train.pictures=false",
        ],
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(easy, folder, settings)
    return folder


@pytest.fixture(scope="module")
def out(easy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rounds") / "out"
    make_round(easy, folder, RoundPlan(with_train=True))
    return folder


def command(monkeypatch, capsys, start, name, *arguments):
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        start()
    return ended.value.code, *capsys.readouterr()


def test_from_a_release_to_a_blind_score_by_commands(easy, run, tmp_path, monkeypatch, capsys):
    out, x = tmp_path / "round", tmp_path / "x.zip"

    def board(*arguments):
        return command(monkeypatch, capsys, judge, "now-leaderboard", *arguments)

    assert board("blind", "make", easy, out, "--pairs", 32, "--round", "June")[0] == 0
    predicted = ("predict", run, "--release", out / "participants", "-o", x)
    assert command(monkeypatch, capsys, main, "pc2-baseline", *predicted)[0] == 0
    assert board("score", "--check", x, "--release", out / "participants")[0] == 0
    assert board("score", x, "--release", out / "participants")[0] == 1
    code, text, _ = board("score", x, "--release", out / "judge", "--json")
    assert code == 0
    blind = json.loads(text)
    assert (blind["n_pairs"], blind["release"]["origin"], blind["ranks"]) == (32, "blind", None)
    assert board("blind", "close", out)[0] == 0
    again = json.loads(board("score", x, "--release", out / "closed", "--json")[1])
    assert blind["rsum"] == to_step(again["rsum"], steps_of(32)[1])
    assert len(again["ranks"]["i2t"]["greater"]) == 32


def test_a_round_of_all_pairs_scores_as_the_public_split_does(easy, run, out, tmp_path):
    predict(run, "test", tmp_path / "b.zip", release=out / "participants")
    predict(run, "test", tmp_path / "p.zip")
    blind = score(tmp_path / "b.zip", out / "judge")
    public = score(tmp_path / "p.zip", easy)
    step = steps_of(public.n_pairs)[1]
    assert blind.rsum == pytest.approx(public.rsum, abs=step / 2 + 1)
    assert public.rsum > 1.3 * public.references["chance"], "it has learned something"


def test_a_run_trained_on_the_rounds_own_split_predicts_and_never_evaluates(out, run, tmp_path):
    mine = tmp_path / "mine"
    train(out / "participants", mine, read_run(run).settings)
    predict(mine, "test", tmp_path / "x.zip")
    assert score(tmp_path / "x.zip", out / "judge").rsum > 0
    assert evaluate(mine, "dev").images == 40
    for release in (None, out / "judge"):
        with pytest.raises(FormatError, match="rows are no pairs; `pc2-baseline predict`"):
            evaluate(mine, "test", release=release)


def test_another_vocabulary_is_refused(run, out, tmp_path):
    other = shutil.copytree(out / "participants", tmp_path / "other")
    tree = json.loads((other / VOCABULARY).read_text())
    words = list(tree["word2idx"])
    tree["word2idx"][words[5]], tree["word2idx"][words[6]] = 6, 5
    (other / VOCABULARY).write_text(json.dumps(tree))
    with pytest.raises(FormatError, match=r"jieba vocabulary is not that of .*blind make --with"):
        predict(run, "test", tmp_path / "x.zip", release=other)
    assert not (tmp_path / "x.zip").exists()
