"""The page of examples."""

import hashlib
import io
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.release import Pair, read_pairs, write_pairs
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, CaptureRow, write_shard
from pc2_baseline.analysis.truth import Truth, find_truth
from pc2_baseline.cli import main
from pc2_baseline.config import read_settings
from pc2_baseline.runs.examples import Choice, examples, neighbours, sample, surest_pairs
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import read_run
from tests.page_checks import complaints


@dataclass(frozen=True)
class World:
    """A release with hostile captions, captures of all its pages but one, a run, and the truth."""

    captures: Path
    run: Path
    truth: Path
    pairs: list[Pair]

    def of(self, split):
        return [pair for pair in self.pairs if pair.split == split]


def _captured(pair, page):
    content = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), (page * 6, 90, 90)).save(content, "PNG", compress_level=1)
    picture = content.getvalue()
    row = CaptureRow(
        pair.key, pair.url, pair.url, pair.site, "ok",
        sha256=hashlib.sha256(picture).hexdigest(), phash=pair.phash,
    )  # fmt: skip
    return row, Capture(pair.key, picture, b"<html>", [])


@pytest.fixture(scope="module")
def world(tiny, small_settings, tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    release, captures, run = folder / "release", folder / "captures", folder / "run"
    shutil.copytree(tiny, release)
    pairs = [
        replace(
            pair, key=f"00000_{page:04d}", phash="0" * 16, caption=f"<script>{pair.key}</script>"
        )
        for page, pair in enumerate(read_pairs(release))
    ]
    write_pairs(release / "pairs.parquet", pairs)
    shots = [_captured(pair, page) for page, pair in enumerate(pairs) if page != len(pairs) - 1]
    captures.mkdir()
    write_shard(captures, 0, [row for row, _ in shots], [shot for _, shot in shots])
    truth = folder / "truth.csv"
    lines = [f"{pair.key},{number % 2 == 0}\n" for number, pair in enumerate(pairs)]
    truth.write_text("key,matched\n" + "".join(lines))
    train(release, run, read_settings("crossfit", _quick(small_settings), on="demo"))
    return World(captures, run, truth, pairs)


def _quick(settings):
    return [
        *(one for one in settings if not one.startswith("method.")),
        "data.tokenizer=jieba", "method.folds=2", "train.warmup_epochs=1", "train.epochs=1",
    ]  # fmt: skip


def _places(text, pairs):
    return [text.index(pair.caption.replace("<", "&lt;").replace(">", "&gt;")) for pair in pairs]


def test_a_sample_has_right_and_wrong_examples():
    found = [neighbours(np.eye(6)[row if row < 3 else 0], row) for row in range(6)]
    assert [one.rank == 1 for one in sample(found, 4, 0)] == [True, True, False, False]
    assert sample(found, 4, 0) == sample(found, 4, 0) != sample(found, 4, 1)
    assert len(sample(found[:4], 4, 0)) == 4


def test_the_surest_pairs_are_at_the_ends_and_no_pair_is_at_both():
    truth = Truth(np.array([True, False, False, True]), np.array([True, True, False, True]))
    clean_prob = np.array([0.1, 0.9, 0.5, 0.5])
    low, high = surest_pairs(clean_prob, truth, 12)
    assert [(one.row, one.matched) for one in low] == [(0, True), (2, None)]
    assert [(one.row, one.matched) for one in high] == [(1, False), (3, True)]
    low, high = surest_pairs(np.ones(5), None, 2)
    assert not {one.row for one in low} & {one.row for one in high}


def test_the_page_shows_the_runs_neighbours_in_order_with_scores_and_rank(world, tmp_path):
    page, test = tmp_path / "page.html", world.of("test")
    examples(world.run, None, page, Choice(query=test[3].key))
    text = page.read_text()
    scores = similarity(world.run)
    to_captions, to_pages = text.split("<h2>")[1:3]
    expected = np.argsort(-scores[3], kind="stable")[:5]
    places = _places(to_captions, [test[row] for row in expected])
    assert places == sorted(places)
    assert f"{scores[3][expected[0]]:.3f}" in to_captions
    rank = 1 + int((scores[3] > scores[3, 3]).sum())
    assert f"{test[3].key} <small>rank {rank} of {len(test)}<" in to_captions
    expected = np.argsort(-scores[:, 3], kind="stable")[:5]
    places = [to_pages.index(test[row].key) for row in expected]
    assert places == sorted(places)
    assert text.count("no picture") > 0


def test_captions_are_escaped_and_nothing_is_loaded(world, tmp_path):
    page = tmp_path / "page.html"
    examples(world.run, world.captures, page, Choice())
    text = page.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert set(re.findall(r'src="([^,"]*)', text)) == {"data:image/jpeg;base64"}


@pytest.mark.browser
def test_the_page_can_be_read_at_every_width(world, tmp_path, browser):
    path = tmp_path / "page.html"
    examples(world.run, world.captures, path, Choice(truth=world.truth))
    page = browser.new_page()
    page.goto(path.as_uri())
    assert complaints(page) == []
    page.close()


def test_a_page_that_was_not_captured_has_no_picture_and_the_others_have(world, tmp_path):
    page, test = tmp_path / "page.html", world.of("test")
    examples(world.run, world.captures, page, Choice(count=40))
    to_captions = page.read_text().split("<h2>")[1]
    articles = {
        re.search(r"<h3>(\S+) ", part)[1]: part for part in to_captions.split("<article ")[1:]
    }
    assert sorted(key for key, part in articles.items() if "no picture" in part) == [test[-1].key]
    assert all("<img" in part for key, part in articles.items() if key != test[-1].key)


def test_training_pairs_are_ordered_by_the_division_and_marked_by_the_truth(world, tmp_path):
    page, pairs = tmp_path / "page.html", world.of("train")
    examples(world.run, None, page, Choice(count=3, truth=world.truth))
    low, high = page.read_text().split("<h2>Training pairs")[1].split("Highest: matched")
    epoch = read_state(world.run / "best").best_epoch
    order = np.argsort(
        load_file(world.run / "divisions" / f"{epoch:05d}.safetensors")["clean_prob"], kind="stable"
    )
    for text, rows, even in ((low, order[:3], "wrong"), (high, order[::-1][:3], "right")):
        places = [text.index(pairs[row].key) for row in rows]
        assert places == sorted(places)
        odd = {"right": "wrong", "wrong": "right"}[even]
        marks = [even if row % 2 == 0 else odd for row in rows]
        assert re.findall(r'example (right|wrong)"', text) == marks


def test_with_a_noise_file_a_caption_stands_beside_the_picture_that_it_was_given(world, tmp_path):
    noise, run, page = tmp_path / "noise.npy", tmp_path / "run", tmp_path / "page.html"
    pairs = world.of("train")
    own = np.arange(len(pairs))
    given = np.where(own % 2 == 0, own, np.roll(own, 2))
    np.save(noise, given)
    settings = [
        "data.tokenizer=jieba",
        f'data.noise_file="{noise}"',
        "method.dim=4",
        "train.epochs=2",
        "train.tensorboard=false",
        "train.pictures=false",
    ]
    train(world.run.parent / "release", run, read_settings("ridge", settings))
    examples(run, world.captures, page, Choice(count=4))
    training = page.read_text().split("<h2>Training pairs")[1]
    shown = re.findall(r'Screenshot of (\S+)">.*?<small>(\S+)</small>', training, re.DOTALL)
    rows = {pair.key: pair.pair_index for pair in pairs}
    assert len(shown) == 8
    assert [url for url, _ in shown] == [pairs[given[rows[key]]].url for _, key in shown]
    assert len(re.findall(r'example (?:right|wrong)"', training)) == 8
    np.save(noise, own)
    train(world.run.parent / "release", tmp_path / "clean", read_settings("ridge", settings))
    examples(tmp_path / "clean", None, page, Choice(count=4))
    assert not re.search(r'example (right|wrong)"', page.read_text().split("<h2>Training pairs")[1])


def test_the_runs_own_truth_marks_training_pairs_unless_another_is_given(world, tmp_path):
    run, page, other = tmp_path / "run", tmp_path / "page.html", tmp_path / "other.csv"
    shutil.copytree(world.run, run)
    record = (run / "run.toml").read_text()
    told = f'[settings.data]\ntruth = "{world.truth}"'
    (run / "run.toml").write_text(record.replace("[settings.data]", told))
    own = find_truth(read_run(run), world.run.parent / "release", None)
    lines = [f"{pair.key},{not matched}\n" for pair, matched in zip(
        world.of("train"), own.matched, strict=True)]  # fmt: skip
    other.write_text("key,matched\n" + "".join(lines))
    marks = []
    for truth in (None, other):
        examples(run, None, page, Choice(count=3, truth=truth))
        training = page.read_text().split("<h2>Training pairs")[1].split("<h2>")[0]
        marks.append(re.findall(r'example (right|wrong)"', training))
    swapped = {"right": "wrong", "wrong": "right"}
    assert len(marks[0]) == 6
    assert marks[1] == [swapped[mark] for mark in marks[0]]


def test_a_method_without_a_division_says_so(world, tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(world.run, run)
    shutil.rmtree(run / "divisions")
    examples(run, None, page, Choice(count=2))
    assert "divides no pairs" in page.read_text()


def test_the_command_writes_the_page_that_its_options_ask_for(world, tmp_path, monkeypatch, capsys):
    page, asked = tmp_path / "page.html", tmp_path / "asked.html"
    test = world.of("dev")[2]
    examples(world.run, world.captures, asked, Choice("dev", test.key, 2, 5, world.truth))
    line = ["examples", world.run, "--captures", world.captures, "-o", page, "--split", "dev",
            "--query", test.key, "--n", 2, "--seed", 5, "--truth", world.truth]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["pc2-baseline", *map(str, line)])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_bytes() == asked.read_bytes()


def test_what_cannot_be_shown_is_refused_in_a_line(world, tmp_path):
    page, other = tmp_path / "page.html", tmp_path / "other"
    with pytest.raises(ConfigError, match="no page of the test split"):
        examples(world.run, None, page, Choice(query="nobody"))
    with pytest.raises(ConfigError, match="expected dev or test"):
        examples(world.run, None, page, Choice(split="train"))
    with pytest.raises(FormatError, match="no such captures folder"):
        examples(world.run, tmp_path / "gone", page, Choice())
    other.mkdir()
    with pytest.raises(FormatError, match="no screenshot of any of the"):
        examples(world.run, other, page, Choice())
    assert not page.exists()
