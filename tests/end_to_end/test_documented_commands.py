"""The how-to pages' commands run, in their order, on small data.

The tutorial's, and those that visit pages, run in test_tutorial.py; which options there are is
tested in test_readme.py.
"""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import tokenizers
from PIL import Image

from now_builder.formats.features import open_features
from now_builder.formats.release import DATA_FOLDER, read_pairs, read_split_captions, write_pairs
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, CaptureRow, read_rows, write_shard
from pc2_baseline.config import Plan
from pc2_baseline.data.planted import plant
from tests.end_to_end.documented import DOCS, run, runnable
from tests.now_builder.conftest import write_small_crawl, write_small_features
from tests.now_builder.detect.conftest import draw_captures
from tests.pc2_baseline.fields import Field, make_field, make_punkt

SMALL = [
    "train.batch=8", "train.warmup_epochs=2", "train.epochs=1", "train.lr=1e-3", "train.device=cpu",
    "train.pictures=false", "train.tensorboard=false",
]  # fmt: skip
SMALLER = {
    r"pc2-baseline train": " ".join(f"--set {item}" for item in SMALL),
    r"pc2-baseline train(?!.*(reading|clip))": "--set model.embed_dim=16 --set model.word_dim=16",
    r"--config (pc2|crossfit)(?!\S*pooled)": "--set model.similarity_dim=8",
    r"pc2-baseline table": "--dry-run",
    r"plant planted": "--train 24 --dev 8 --test 8",
    r"train-detector": "--steps 1 --batch-size 2",
    r"(train|measure)-detector|detect ": "--threads 1",
    r"tokenize captures captions --with": "--bert learn",
}
"""Options that are added, so that it takes seconds."""
PROGRAM = re.compile(r"^```python\n# (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
PACK = "now-leaderboard pack --release out/release --track jieba"


def publish(release: Path, folder: Path) -> None:
    """Write a release as the authors' archive has it."""
    (data := folder / "now100k_precomp").mkdir(parents=True)
    shutil.copytree(release / "vocab", folder / "vocab")
    for path in (release / DATA_FOLDER).glob("*_caps_*.txt"):
        shutil.copy(path, data)
    for split in ("train", "dev", "test"):
        with open_features(release / DATA_FOLDER / f"{split}.h5") as features:
            np.save(data / f"{split}_ims.npy", features.dataset[:])


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A release of random pages, 24 of them in its test split."""
    plan = Plan(train=32, dev=8, test=24, topics=4, details=0, vocabulary=0, words=6, noise=0.3)
    release = plant(tmp_path_factory.mktemp("planted") / "release", plan)
    # A track of BERT whose tokens are those of Jieba.
    for path in [*release.rglob("*jieba.txt"), *release.rglob("*jieba.json")]:
        shutil.copy(path, path.with_name(path.name.replace("jieba", "bert")))
    return release


@pytest.fixture
def folder(planted, tmp_path, monkeypatch):
    """Where the commands run: with a release, and what else their names stand for."""
    shutil.copytree(planted, tmp_path / "out/release")
    shutil.copy(planted / "truth.csv", tmp_path / "truth.csv")
    draws = np.random.default_rng(0)
    for name in ("similarity", "blind"):
        np.save(tmp_path / f"{name}.npy", draws.normal(size=(24, 24)).astype(np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def run_page(name: str) -> None:
    """Run a page's commands but those that are only parsed."""
    for line in runnable(DOCS / f"{name}.md"):
        run(line, SMALLER)


def run_program(name: str) -> str:
    """Run the one Python program of a page, and return what it printed."""
    [(path, code)] = PROGRAM.findall((DOCS / f"{name}.md").read_text(encoding="utf-8"))
    Path(path).write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, path], stdout=subprocess.PIPE, text=True, check=True, env=environment
    ).stdout


def write_captures(release: Path, captures: Path) -> None:
    """Write captures of a release's test pages, which are given keys as those of a crawl."""
    pairs = [
        replace(pair, key=f"00000_{pair.pair_index:04d}") if pair.split == "test" else pair
        for pair in read_pairs(release)
    ]
    pages = [pair for pair in pairs if pair.split == "test"]
    keys = [page.key for page in pages]
    write_pairs(release / "pairs.parquet", pairs)
    (release / DATA_FOLDER / "test_ids.txt").write_text("\n".join(keys) + "\n")
    with h5py.File(release / DATA_FOLDER / "test.h5", "r+") as features:
        features["keys"][...] = keys
    manifest = json.loads((release / "manifest.json").read_text())
    for track in manifest["fingerprints"]["test"]:
        renamed = read_split_captions(release, "test", track).fingerprint
        manifest["fingerprints"]["test"][track] = renamed
    (release / "manifest.json").write_text(json.dumps(manifest))
    file = io.BytesIO()
    Image.new("RGB", (WIDTH, HEIGHT), "white").save(file, "PNG", compress_level=1)
    rows = [CaptureRow(page.key, page.url, page.url, page.site, "ok") for page in pages]
    captures.mkdir()
    shots = [Capture(page.key, file.getvalue(), b"<html>", []) for page in pages]
    write_shard(captures, 0, rows, shots)


@pytest.mark.slow
def test_train_and_compare(folder):
    write_captures(folder / "out/release", folder / "captures")
    run_page("how-to/train")
    assert "data:image/jpeg" in (folder / "page.html").read_text()
    assert (folder / "both.zip").exists()
    assert (folder / "runs/bf16/log.jsonl").exists()


@pytest.mark.usefixtures("folder")
def test_find_the_mismatched_pairs():
    run_page("how-to/suspects")
    assert Path("pairs.csv").read_text().count("\n") == 1 + 32 + 8 + 24


@pytest.mark.slow
def test_the_authors_archive_and_other_data_sets(folder, planted, monkeypatch):
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", list(nltk.data.path))
    make_punkt(folder / "nltk_data")
    publish(planted, folder / "NoW")
    make_field(folder / "data", Field())
    shutil.move(folder / "data/vocab", folder / "vocab")
    run_page("how-to/authors-archive")
    assert json.loads((folder / "now.json").read_text())["track"] == "bert"


def test_score_and_submit(folder):
    np.save("other.npy", np.load("similarity.npy").T)
    run(f"{PACK} other.npy -o other.zip --method B", {})
    run("now-leaderboard score other.zip --release out/release -o other.json", {})
    run_page("how-to/submit")
    assert (folder / "site/index.html").exists()


def test_trec_runs(folder):
    run(f"{PACK} similarity.npy -o mine.zip --method Mine", {})
    run_page("how-to/trec")
    assert (folder / "trec/i2t.qrels").is_file()


def test_code_of_ones_own(folder):
    assert run_program("how-to/own-code").count("dev rSum") == 10
    run_page("how-to/own-code")
    assert json.loads((folder / "result.json").read_text())["ranked"]


def test_a_blind_round(folder):
    shutil.copytree("out/release", "fresh/release")
    run_page("how-to/blind-round")
    assert (folder / "round-2026-12/closed").is_dir()
    assert (folder / "blind.zip").exists()


@pytest.mark.slow
def test_a_board(folder):
    run(f"{PACK} similarity.npy -o mine.zip --method A", {})
    run_page("how-to/board")
    assert (folder / "site" / "index.html").exists()


@pytest.mark.slow
def test_a_tokenizer_of_ones_own(folder):
    write_small_crawl(folder / "captures", pages=60)
    keys = [f"{shard:05d}_{place:04d}" for shard in range(4) for place in range(15)]
    write_small_features(folder / "features.h5", keys)
    words = {"<unk>": 0, "news": 1, "music": 2, "cars": 3}
    mine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "<unk>"))
    mine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    mine.save("mine.json")
    run_page("how-to/tokenizer")
    assert (folder / f"release/{DATA_FOLDER}/test_caps_mine.txt").exists()


@pytest.mark.release
def test_exports_and_now_in_mteb_in_ten_lines(folder):
    for extra, package in (("export", "webdataset"), ("mteb", "mteb")):
        pytest.importorskip(package, reason=f"the extra {extra} is not installed")
    write_small_crawl(folder / "captures")
    pages = [row.key for row in read_rows(folder / "captures") if row.status == "ok"]
    write_small_features(folder / "features.h5", pages)
    run("now-builder tokenize captures captions", {"tokenize": "--bert learn"})
    run("now-builder package captures features.h5 captions release", {})
    run_page("how-to/export")
    run_page("how-to/mteb")
    printed = [line.split() for line in run_program("how-to/mteb").splitlines()]
    assert {line[1] for line in printed} >= {"i2t", "i2t-en", "t2i", "t2i-en"}
    figures = np.array([line[2:] for line in printed], float)
    assert figures[:, 0] == pytest.approx(figures[:, 1], abs=1e-5)


def test_features_of_ones_own(folder):
    write_small_crawl(folder / "captures", pages=8)
    run_program("how-to/detector")
    with open_features(folder / "mine.h5") as features:
        assert len(features.keys) == len(set(features.keys)) > 0


@pytest.mark.slow
def test_a_detector_of_ones_own(folder):
    for name in ("captures", "captures2"):
        draw_captures(folder / name, 6, 6, 1)
    run_page("how-to/detector")
    assert (folder / "dom.h5").exists()


def test_each_page_is_run_somewhere():
    here = Path(__file__).read_text() + Path(__file__).with_name("test_tutorial.py").read_text()
    for page in [*(DOCS / "how-to").glob("*.md"), DOCS / "tutorial.md"]:
        name = str(page.relative_to(DOCS).with_suffix(""))
        assert not runnable(page) or f'run_page("{name}"' in here, name
