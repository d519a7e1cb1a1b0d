"""Ranking the pairs of a release: who is found, who judges whom, and what is written."""

import csv
import json
import shutil
from dataclasses import replace

import h5py
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from now_builder.errors import FormatError, TrainingError
from now_builder.formats.release import open_regions, read_pairs, write_pairs
from now_builder.formats.word_vectors import text_sketch
from pc2_baseline.config import Plan
from pc2_baseline.data.planted import plant
from pc2_baseline.methods.ridge import Problem
from pc2_baseline.runs import rank_pairs as module
from pc2_baseline.runs.rank_pairs import COLUMNS, rank_pairs
from tests.pc2_baseline.commands import call, failed


def ranked(release, out):
    rank_pairs(release, out)
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
    assert roc_auc_score(~matched, found.lemon) > 0.85
    assert (np.diff(found.loss) <= 0).all(), "a higher loss is never a higher probability"
    rows = {pair.key: pair for pair in read_pairs(noisy)}
    for row in found.itertuples():
        pair = rows[row.key]
        assert (row.url, row.split, row.pair_index) == (pair.url, pair.split, pair.pair_index)


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
    judge = module.info_nce_of_pairs

    def watched(problem, penalty, drawn, same, near):
        kept[penalty] = problem, drawn, judge(problem, penalty, drawn, same, near)
        return kept[penalty][2]

    monkeypatch.setattr(module, "info_nce_of_pairs", watched)
    found = ranked(easy, tmp_path / "pairs.csv")
    chosen = min(kept, key=lambda one: kept[one][2].mean())
    problem, drawn, loss = kept[chosen]
    np.testing.assert_allclose(found.loss, np.sort(loss)[::-1])
    assert sorted(drawn) == list(range(240)), "a small release: all captions"
    captions = problem.captions / problem.captions.norm(dim=1, keepdim=True)
    for row in range(0, 240, 31):
        weights = problem.solve(chosen, int(problem.fold[row]))
        vector = problem.pages[row] @ weights
        cosines = (captions @ (vector / vector.norm())).numpy()
        same = (problem.captions == problem.captions[row]).all(1).numpy()
        against = np.exp(cosines[~same] / 0.1).sum()
        own = np.exp(cosines[row] / 0.1)
        assert loss[row] == pytest.approx(-np.log(own / (own + against)), abs=1e-3)


def test_lemon_scores_are_those_of_the_slow_loop():
    draws = np.random.default_rng(3)
    images, captions = (draws.normal(size=(40, 6)) for _ in range(2))
    images, captions = (x / np.linalg.norm(x, axis=1)[:, None] for x in (images, captions))
    found = module.lemon_scores(torch.from_numpy(images), torch.from_numpy(captions))
    for row in range(40):
        expected = 1 - images[row] @ captions[row]
        for space, other in ((images, captions), (captions, images)):
            others = [one for one in range(40) if one != row]
            near = sorted(others, key=lambda one: -space[row] @ space[one])[:30]
            parts = []
            for one in near:
                here, pair = 1 - space[row] @ space[one], 1 - images[one] @ captions[one]
                parts.append((1 - other[row] @ other[one]) * np.exp(-0.1 * here - 5 * pair))
            expected += 5 * np.mean(parts)
        assert found[row] == pytest.approx(expected, abs=1e-6)


def test_no_fit_sees_a_pair_that_it_judges_nor_its_domain(noisy, tmp_path, monkeypatch):
    """What the pairs of a fold say changes nothing for the fit that judges them."""
    release = with_sites(noisy, tmp_path / "many", 20)
    problems = []
    solve = Problem.solve

    def watched(problem, penalty, without=None):
        problems.append((problem, without))
        return solve(problem, penalty, without)

    monkeypatch.setattr(Problem, "solve", watched)
    done = rank_pairs(release, tmp_path / "pairs.csv")
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
    assert rank_pairs(release, tmp_path / "pairs.csv").folds_by == "page"


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
                regions[:, 512:] = text_sketch(shown).reshape(36, 256) + 0.3 * regions[:, 512:]
                file["regions"][row] = regions
            file.attrs["words"] = "now-words/2 512:768"
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
    kept, nearest_better = [], module.nearest_better

    def watched(*given):
        kept.append((given, nearest_better(*given)))
        return kept[0][1]

    monkeypatch.setattr(module, "nearest_better", watched)
    monkeypatch.setattr(module, "_LISTED", 672)
    rank_pairs(read, tmp_path / "pairs.csv")
    [((problem, penalty, regions, number), nearest)] = kept
    predicted, near = problem.predict(penalty), regions.of_all(np.arange(672)).double()
    captions = problem.captions / problem.captions.norm(dim=1, keepdim=True)
    scores = predicted @ captions.T + near
    own = (predicted * captions).sum(1) + problem.nearest
    assert torch.allclose(scores.diagonal(), own, atol=1e-5)
    scores[number[:, None] == number] = -torch.inf
    best, shown = scores.amax(1), torch.from_numpy(nearest)
    assert torch.equal(shown >= 0, best > own + 1e-5)
    found = scores[torch.arange(672), shown][shown >= 0]
    assert torch.allclose(found, best[shown >= 0], atol=1e-5)


def test_the_command_writes_whole_files_the_same_every_time(easy, tmp_path):
    out = tmp_path / "pairs.csv"
    done = call("rank-pairs", easy, "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == COLUMNS
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
    (other := tmp_path / "f30k_precomp").mkdir()
    failed(call("rank-pairs", other, "-o", out), "no folder now100k_precomp")
    other.rename(folder := tmp_path / "folder.csv")
    failed(call("rank-pairs", easy, "-o", folder), "a folder, expected the name of a .csv file")
    folder.rmdir()
    assert not [*tmp_path.iterdir()]


def test_too_few_pairs_and_torn_pair_tables_are_refused(easy, tmp_path):
    few = plant(tmp_path / "few", Plan(train=4, dev=2, test=2))
    with pytest.raises(TrainingError, match="8 pairs, expected at least 10 that share no caption"):
        rank_pairs(few, tmp_path / "pairs.csv")
    torn = shutil.copytree(easy, tmp_path / "torn")
    write_pairs(torn / "pairs.parquet", read_pairs(easy)[1:])
    with pytest.raises(FormatError, match="no row of train_00000, which has a caption"):
        rank_pairs(torn, tmp_path / "pairs.csv")
