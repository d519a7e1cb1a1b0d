"""The whole road by its commands, small: simulated web to scored submission and board."""

import json
import shutil
import subprocess
import time
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from tests.end_to_end.documented import MAINS, command
from tests.pc2_baseline import commands

pytestmark = [pytest.mark.browser]


def attempt(program: str, *arguments: str | Path) -> commands.Done:
    """Run a command in this process: a process of its own imports torch for seconds."""
    return commands.run(import_module(MAINS[program]).main, program, *arguments)


def run(program: str, *arguments: str | Path) -> str:
    done = attempt(program, *arguments)
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Walk the road once; the tests look at what it left."""
    out = tmp_path_factory.mktemp("road")
    run("now-builder", "simweb", "make", out, "--pages", "40", "--sites", "12", "--topics", "6",
        "--awkward", "12")  # fmt: skip
    ready = out / "address"
    serve = command("now-builder", "simweb", "serve", out, "--port", "0", "--ready-file", ready)
    server = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if ready.exists() and ready.read_text().strip():
                break
            time.sleep(0.1)
        address = ready.read_text().strip()
        settings = out / "build.toml"
        settings.write_text(
            f"[crawl]\nallow_private = true\nresolve = ['*.test:{address}']\npage_timeout_s = 6\n"
            "split_shares = '0.5,0.25,0.25'\nsplit_by = 'page'\n"
            "[detect]\nthreads = 1\n"
            "[tokenize]\nbert = 'learn'\n"
            f"[package]\nmatched = '{out / 'truth.parquet'}'\nnpy = true\n"
        )
        run("now-builder", "build", out / "urls.txt", out, "--config", settings)
    finally:
        server.terminate()
        server.wait(20)
    run("pc2-baseline", "train", out / "release", out / "run", "--set", "data.tokenizer=jieba",
        "--set", "train.warmup_epochs=1", "--set", "train.epochs=1",
        "--set", "train.pictures=false")  # fmt: skip
    run("pc2-baseline", "predict", out / "run", "--split", "test", "-o", out / "submission.zip")
    run("now-leaderboard", "score", out / "submission.zip", "--release", out / "release",
        "--attributes", out / "truth.parquet", "-o", out / "result.json")  # fmt: skip
    run("now-leaderboard", "export-site", out / "site", "--results", out / "result.json")
    yield out
    shutil.rmtree(out, ignore_errors=True)


def test_every_url_is_a_pair_as_the_truth_has_it_or_a_reject_with_a_reason(road: Path) -> None:
    listed = [line for line in (road / "urls.txt").read_text().splitlines() if line]
    pairs = pd.read_parquet(road / "release" / "pairs.parquet")
    rejects = pd.read_parquet(road / "release" / "rejects.parquet")
    assert sorted([*pairs.url, *rejects.url]) == sorted(listed)
    assert rejects.reason.notna().all()
    truth = pd.read_parquet(road / "truth.parquet").drop_duplicates("url").set_index("url")
    assert list(pairs.caption) == list(truth.caption[pairs.url])
    judged = pairs[pairs.split != "train"].url.map(truth.matched)
    assert len(judged) > 0
    assert judged.all(), "dev and test are pairs that match"


def test_the_release_holds_the_published_layout_with_rows_in_pair_order(road: Path) -> None:
    release = road / "release"
    pairs = pd.read_parquet(release / "pairs.parquet")
    for split, group in pairs.groupby("split"):
        folder = release / "now100k_precomp"
        keys = (folder / f"{split}_ids.txt").read_text().splitlines()
        assert keys == list(group.sort_values("pair_index").key)
        with h5py.File(folder / f"{split}.h5") as file:
            assert list(file["keys"].asstr()[:]) == keys
            regions = file["regions"][:]
            assert bool(file.attrs["complete"])
        assert regions.shape == (len(keys), 36, 768)
        assert (np.linalg.norm(regions, axis=2) > 0).all()
        assert np.array_equal(np.load(folder / f"{split}_ims.npy"), regions)
        for tokenizer in ("jieba", "bpe", "bert"):
            lines = (folder / f"{split}_caps_{tokenizer}.txt").read_text().splitlines()
            name = f"now100k_precomp_vocab_{tokenizer}.json"
            vocabulary = json.loads((release / "vocab" / name).read_text())
            assert len(lines) == len(keys)
            assert all(3 <= max(map(int, line.split(","))) < vocabulary["idx"] for line in lines)


def test_the_result_is_the_score_of_the_submitted_matrix(road: Path) -> None:
    result = json.loads((road / "result.json").read_text())
    with zipfile.ZipFile(road / "submission.zip") as archive, archive.open("similarity.npy") as f:
        similarity = np.load(f)
    assert similarity.shape == (result["n_pairs"], result["n_pairs"])
    right = np.diag(similarity)
    greater = (similarity > right[:, None]).sum(1)
    equal = (similarity == right[:, None]).sum(1) - 1
    hits = np.clip((1 - greater) / (equal + 1), 0, 1)
    assert result["i2t"]["R@1"] == pytest.approx(100 * hits.mean())
    assert 0 <= result["rsum"] <= 600
    assert (road / "site" / "index.html").stat().st_size > 1000


def test_a_second_build_changes_nothing_and_verify_finds_a_changed_byte(road: Path) -> None:
    release = road / "release"
    before = {p: p.read_bytes() for p in sorted(release.rglob("*")) if p.is_file()}
    run("now-builder", "build", road / "urls.txt", road, "--config", road / "build.toml")
    assert {p: p.read_bytes() for p in sorted(release.rglob("*")) if p.is_file()} == before
    assert "unchanged" in run("now-builder", "verify", release)
    copy = shutil.copytree(release, road / "changed")
    path = copy / "now100k_precomp" / "test_caps_bpe.txt"
    path.write_bytes(path.read_bytes().replace(b",", b";", 1))
    done = attempt("now-builder", "verify", copy)
    assert done.returncode == 1
    assert "test_caps_bpe.txt" in done.stderr


def test_a_submission_for_another_release_is_refused(road: Path) -> None:
    copy = shutil.copytree(road / "release", road / "other")
    path = copy / "now100k_precomp" / "test_caps_jieba.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[1:] + lines[:1]) + "\n")
    done = attempt("now-leaderboard", "score", road / "submission.zip", "--release", copy)
    assert json.loads((road / "result.json").read_text())["track"] == "jieba"
    assert done.returncode == 1
    assert "fingerprint" in done.stderr
