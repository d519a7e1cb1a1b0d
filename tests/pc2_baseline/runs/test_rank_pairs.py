"""Ranking the pairs of a release: who is found, who judges whom, and what is written."""

import csv
import io
import json
import shutil
from dataclasses import fields, replace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.metrics import roc_auc_score

from now_builder.dual_encoder import DualEncoder
from now_builder.errors import FormatError, TrainingError
from now_builder.formats.release import (
    open_regions,
    read_manifest,
    read_pairs,
    write_manifest,
    write_pairs,
)
from now_builder.formats.screenshots import find_screenshots
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    open_screenshot,
    write_shard,
)
from now_builder.formats.word_vectors import count_units, unit_vector
from pc2_baseline.config import Plan, RankSettings
from pc2_baseline.data.planted import plant
from pc2_baseline.methods.ridge import Problem
from pc2_baseline.runs import rank_pairs as module
from pc2_baseline.runs.rank_pairs import RankedPair, rank_pairs
from tests.pc2_baseline.commands import call, failed


def ranked(release, out, **settings):
    rank_pairs(release, out, RankSettings(**settings))
    return pd.read_csv(out, keep_default_na=False)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """Pages with details, 40 % of the training captions shuffled."""
    return plant(tmp_path_factory.mktemp("noisy") / "release", Plan())


def test_the_shuffled_pairs_are_found_and_come_first(noisy, tmp_path):
    found = ranked(noisy, tmp_path / "pairs.csv")
    truth = pd.read_csv(noisy / "truth.csv").set_index("key").matched
    matched = truth[found.key].to_numpy()
    assert len(found) == 480 + 96 + 96
    assert set(found.split) == {"train", "dev", "test"}
    assert roc_auc_score(matched, found.clean_prob) > 0.95
    assert (~matched[:100]).mean() > 0.95
    assert found.clean_prob.mean() == pytest.approx(matched.mean(), abs=0.1)
    assert (np.diff(found.clean_prob) >= 0).all(), "the surest mismatch first"
    assert (np.diff(found.loss) <= 0).all(), "a higher loss is never a higher probability"
    rows = {pair.key: pair for pair in read_pairs(noisy)}
    for row in found.itertuples():
        pair = rows[row.key]
        assert (row.url, row.split, row.pair_index) == (pair.url, pair.split, pair.pair_index)
    assert ((found.why != "") == (found.clean_prob < 0.5)).all()


def test_the_nearest_better_caption_of_a_suspect_names_what_its_page_shows(noisy, tmp_path):
    """A planted page's concepts are known: the caption put forward shares more than its own."""
    found = ranked(noisy, tmp_path / "pairs.csv")
    truth = pd.read_csv(noisy / "truth.csv").set_index("key")
    shown = {key: set(text.split()) for key, text in truth.concepts.astype(str).items()}
    said = {key: shown.get(owner, shown[key]) for key, owner in truth.caption_of.items()}
    suspects = found[(found.clean_prob < 0.1) & (found.better_key != "")]
    assert len(suspects) > 50
    gain = [
        len(shown[row.key] & said[row.better_key]) - len(shown[row.key] & said[row.key])
        for row in suspects.itertuples()
    ]
    assert np.mean(gain) > 1


def test_losses_are_those_of_the_slow_loop(easy, tmp_path, monkeypatch):
    kept = {}
    judge = module._judge

    def watched(problem, penalty, drawn, same, near):
        kept[penalty] = problem, drawn, judge(problem, penalty, drawn, same, near)
        return kept[penalty][2]

    monkeypatch.setattr(module, "_judge", watched)
    done = rank_pairs(easy, tmp_path / "pairs.csv", RankSettings())
    problem, drawn, judged = kept[done.penalty]
    assert sorted(drawn) == list(range(240)), "a small release: all captions"
    captions = problem.captions / problem.captions.norm(dim=1, keepdim=True)
    for row in range(0, 240, 31):
        weights = problem.solve(done.penalty, int(problem.fold[row]))
        vector = problem.pages[row] @ weights
        cosines = (captions @ (vector / vector.norm())).numpy()
        same = (problem.captions == problem.captions[row]).all(1).numpy()
        against = np.exp(cosines[~same] / 0.1).sum()
        own = np.exp(cosines[row] / 0.1)
        assert judged.loss[row] == pytest.approx(-np.log(own / (own + against)), abs=1e-3)
        better = (cosines[~same] > cosines[row]).mean()  # of captions that are not its own
        assert judged.better[row] == pytest.approx(better, abs=0.01)
    means = {penalty: found.loss.mean() for penalty, (*_, found) in kept.items()}
    assert min(means, key=lambda one: means[one]) == done.penalty


def test_no_fit_sees_a_pair_that_it_judges_nor_its_domain(noisy, tmp_path, monkeypatch):
    """What the pairs of a fold say changes nothing for the fit that judges them."""
    release = with_sites(noisy, tmp_path / "many", 20)
    problems = []
    solve = Problem.solve

    def watched(problem, penalty, without=None):
        problems.append((problem, without))
        return solve(problem, penalty, without)

    monkeypatch.setattr(Problem, "solve", watched)
    done = rank_pairs(release, tmp_path / "pairs.csv", RankSettings())
    assert done.folds_by == "domain"
    assert all(without is not None for _, without in problems)
    fold = problems[0][0].fold
    domains = np.array([pair.site for pair in read_pairs(release)])
    for domain in np.unique(domains):
        assert len(set(fold[domains == domain])) == 1
    for number in range(5):
        changed = replace_captions(problems[0][0], fold == number)
        before, after = (one.solve(1.0, number) for one in (problems[0][0], changed))
        assert torch.equal(before, after)


def replace_captions(problem, rows):
    captions = problem.captions.clone()
    captions[torch.from_numpy(rows)] = 7.0
    return replace(problem, captions=captions)


def with_sites(release, folder, sites):
    shutil.copytree(release, folder)
    pairs = [
        replace(pair, site=f"www.site{row % sites}.test")
        for row, pair in enumerate(read_pairs(release))
    ]
    write_pairs(folder / "pairs.parquet", pairs)
    return folder


@pytest.mark.parametrize("sites", [1, 9])
def test_few_domains_are_folded_by_page(noisy, tmp_path, sites):
    release = with_sites(noisy, tmp_path / "few", sites)
    assert rank_pairs(release, tmp_path / "pairs.csv", RankSettings()).folds_by == "page"


def test_the_authors_archive_has_keys_and_the_words_of_its_tokens(easy, tmp_path):
    archive = shutil.copytree(easy, tmp_path / "archive")
    for name in ("manifest.json", "pairs.parquet"):
        (archive / name).unlink()
    for split in ("train", "dev", "test"):
        file = archive / "now100k_precomp" / f"{split}.h5"
        with open_regions(easy, split) as regions:
            np.save(file.with_name(f"{split}_ims.npy"), regions[:])
        file.unlink()
        file.with_name(f"{split}_ids.txt").unlink()
    ours = ranked(easy, tmp_path / "ours.csv").set_index(["split", "pair_index"])
    found = ranked(archive, tmp_path / "pairs.csv").set_index(["split", "pair_index"])
    assert set(found.url) == {""}
    assert found.caption.str.match(r"w\d+( w\d+)*$").all()
    np.testing.assert_allclose(found.loss[ours.index], ours.loss, atol=1e-9)


@pytest.fixture(scope="module")
def read(noisy, tmp_path_factory):
    """The same release, whose pages show in 256 columns the words of the captions that are theirs.

    What else is on a page is noise, so that the words alone tell.
    """
    folder = shutil.copytree(noisy, tmp_path_factory.mktemp("read") / "release")
    truth = pd.read_csv(noisy / "truth.csv").set_index("key")
    draws = np.random.default_rng(0)
    for split in ("train", "dev", "test"):
        with h5py.File(folder / "now100k_precomp" / f"{split}.h5", "r+") as file:
            for row, key in enumerate(file["keys"].asstr()[:]):
                regions = draws.normal(size=(36, 768))
                shown = " ".join(f"w{c}" for c in str(truth.concepts[key]).split())
                total = sum(n * unit_vector(unit) for unit, n in count_units(shown).items())
                regions[:, 512:] = total + 0.3 * regions[:, 512:]
                file["regions"][row] = regions
            file.attrs["words"] = "now-words/1 512:768"
    return folder


def test_words_that_were_read_tell_pairs_that_no_other_feature_tells(noisy, read, tmp_path):
    truth = pd.read_csv(noisy / "truth.csv").set_index("key").matched
    found = ranked(read, tmp_path / "pairs.csv")
    assert roc_auc_score(truth[found.key], found.clean_prob) > 0.9
    for path in (blind := shutil.copytree(read, tmp_path / "blind")).rglob("*.h5"):
        with h5py.File(path, "r+") as file:
            del file.attrs["words"]
            file["regions"][:, :, 512:] = np.random.default_rng(1).normal(size=(1, 36, 256))
            file["regions"][0, 5] = 0  # a region without features is taken
    found = ranked(blind, tmp_path / "blind.csv")
    assert roc_auc_score(truth[found.key], found.clean_prob) < 0.65


def test_regions_add_to_the_nearest_caption_what_all_pages_with_all_captions_have(
    read, tmp_path, monkeypatch
):
    kept, nearest_better = [], module._nearest_better

    def watched(sides, judged, number):
        kept.append((sides, judged, number, nearest_better(sides, judged, number)))
        return kept[0][3]

    monkeypatch.setattr(module, "_nearest_better", watched)
    monkeypatch.setattr(module, "_LISTED", 672)
    rank_pairs(read, tmp_path / "pairs.csv", RankSettings())
    [(sides, judged, number, nearest)] = kept
    near = sides.regions.of_all(np.arange(672)).double()
    captions = sides.captions / sides.captions.norm(dim=1, keepdim=True)
    scores = judged.predicted @ captions.T + near
    assert torch.allclose(scores.diagonal(), judged.own, atol=1e-5)
    scores[number[:, None] == number] = -torch.inf
    best, shown = scores.amax(1), torch.from_numpy(nearest)
    assert torch.equal(shown >= 0, best > judged.own + 1e-5)
    found = scores[torch.arange(672), shown][shown >= 0]
    assert torch.allclose(found, best[shown >= 0], atol=1e-5)


TINTS = [(200, 30, 30), (30, 160, 60), (40, 60, 200), (230, 220, 60)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """A small release with screenshots, whose colour is the page's topic, and with texts."""
    root = tmp_path_factory.mktemp("seen")
    plan = Plan(train=40, dev=8, test=8, topics=4, details=0, vocabulary=0, words=4)
    release, captures = plant(root / "release", plan), root / "captures"
    truth = pd.read_csv(release / "truth.csv")
    pairs, shots = [], {}
    for place, pair in enumerate(read_pairs(release)):
        owner = truth[truth.key == truth.caption_of[place]].concepts.iloc[0]
        text = f"topic{owner} page {place}"
        pairs.append(replace(pair, key=f"00000_{place:04d}", caption=text))
        picture, file = (
            Image.new("RGB", (WIDTH, HEIGHT), TINTS[truth.concepts[place]]),
            io.BytesIO(),
        )
        picture.save(file, "PNG", compress_level=1)
        shots[pairs[-1].key] = file.getvalue()
    write_pairs(release / "pairs.parquet", pairs)
    for split in ("train", "dev", "test"):
        keys = [pair.key for pair in pairs if pair.split == split]
        folder = release / "now100k_precomp"
        (folder / f"{split}_ids.txt").write_text("".join(f"{key}\n" for key in keys))
        with h5py.File(folder / f"{split}.h5", "a") as file:
            file["keys"][:] = keys
    write_manifest(release, read_manifest(release).model_copy(update={"fingerprints": {}}))
    captures.mkdir()
    rows = [CaptureRow(one.key, one.url, one.url, one.site, "ok") for one in pairs]
    members = [Capture(key, shot, b"<html>", []) for key, shot in shots.items()]
    write_shard(captures, 0, rows, members)
    return release, captures, truth.matched.to_numpy()


def test_a_dual_encoder_takes_the_place_of_the_features_and_a_stop_loses_no_batch(
    seen, encoders, tmp_path, monkeypatch
):
    """Its weights are random: what tells the pairs is the regression from picture to text."""
    release, captures, matched = seen
    words = [f"topic{topic}" for topic in range(4)]
    clip = encoders.save(encoders.clip, tmp_path / "clip", [*words, "page"])
    out = tmp_path / "out" / "pairs.csv"
    settings = RankSettings(captures=captures, model=str(clip), device="cpu", batch_size=16)
    texts = DualEncoder.texts
    monkeypatch.setattr(DualEncoder, "texts", _stopped)
    with pytest.raises(KeyboardInterrupt):
        rank_pairs(release, out, settings)
    assert sorted(path.name for path in out.parent.iterdir()) == ["pairs.csv.parts"]
    monkeypatch.setattr(DualEncoder, "texts", texts)
    monkeypatch.setattr(DualEncoder, "images", _stopped)
    rank_pairs(release, out, settings)
    assert [*out.parent.iterdir()] == [out]
    found = pd.read_csv(out).set_index("key")
    known = dict(zip(sorted(found.index), matched, strict=True))
    assert roc_auc_score([known[key] for key in found.index], found.clean_prob) > 0.8
    monkeypatch.undo()
    encoder = DualEncoder(str(clip), torch.device("cpu"), "fp32")
    shots = find_screenshots(captures, read_pairs(release))
    pages = encoder.images([open_screenshot(shots[key].read(), key) for key in found.index])
    every = (pages @ encoder.texts(found.caption.tolist()).T).numpy()
    assert np.allclose(found.cosine, every.diagonal() - every.mean(), atol=1e-5)


def _stopped(*_, **__):
    raise KeyboardInterrupt


def test_the_command_writes_whole_files_the_same_every_time(easy, tmp_path):
    out = tmp_path / "pairs.csv"
    done = call("rank-pairs", easy, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == [field.name for field in fields(RankedPair)]
    assert told["pairs"] == len(rows) == 240
    assert told["suspects"] == sum(float(row[4]) < 0.5 for row in rows)
    before = out.read_bytes()
    assert call("rank-pairs", easy, "-o", out).returncode == 0
    assert out.read_bytes() == before
    assert [*tmp_path.iterdir()] == [out]


def test_mistakes_end_in_one_line(easy, tmp_path):
    out = tmp_path / "pairs.csv"
    failed(call("rank-pairs", easy, "-o", tmp_path / "x.zip"), "expected the name of a .csv file")
    failed(call("rank-pairs", tmp_path, "-o", out), "no folder now100k_precomp")
    failed(call("rank-pairs", easy, "-o", out, "--track", "bpe"), "no track bpe, expected --track ")
    failed(call("rank-pairs", easy, "-o", out, "--squeeze"), "--squeeze: of a model, expected")
    (other := tmp_path / "f30k_precomp").mkdir()
    failed(call("rank-pairs", other, "-o", out), "no folder now100k_precomp")
    other.rename(folder := tmp_path / "folder.csv")
    failed(call("rank-pairs", easy, "-o", folder), "a folder, expected the name of a .csv file")
    folder.rmdir()
    failed(call("rank-pairs", easy, "-o", out, "--model", "x"), "expected both, or neither")
    failed(call("rank-pairs", easy, "-o", out, "--captures", tmp_path / "no", "--model", "x"),
           "no such captures folder")  # fmt: skip
    assert not [*tmp_path.iterdir()]


def test_too_few_pairs_and_torn_pair_tables_are_refused(easy, tmp_path):
    few = plant(tmp_path / "few", Plan(train=4, dev=2, test=2))
    with pytest.raises(TrainingError, match="8 pairs, expected at least 10 that share no caption"):
        rank_pairs(few, tmp_path / "pairs.csv", RankSettings())
    torn = shutil.copytree(easy, tmp_path / "torn")
    write_pairs(torn / "pairs.parquet", read_pairs(easy)[1:])
    with pytest.raises(FormatError, match="no row of train_00000, which has a caption"):
        rank_pairs(torn, tmp_path / "pairs.csv", RankSettings())
