"""A small release of ours, a small archive in the published layout, and a filed board."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from leaderboard.cli import main
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import Duplicates, Note, Release
from leaderboard.store.entries import Reproduction, file_result, read_store, withdraw
from leaderboard.submission.archive import new_submission, pack, with_details
from leaderboard.submission.gallery import read_gallery
from leaderboard.submission.untrusted import SubmissionError
from now_builder.formats.captions import TOKENIZERS, to_line
from now_builder.formats.features import FeatureBatch, write_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Manifest,
    Pair,
    fingerprint,
    hash_of,
    read_manifest,
    read_pairs,
    write_manifest,
    write_pairs,
)
from now_builder.formats.split import SPLITS, Shares, SplitPlan

SECRET = "0123456789abcdef" * 4
SIZES = {"train": 4, "dev": 12, "test": 24}
LANGUAGES = ("zh", "en", "de")
TOPICS = ("food", "sport")
NO_DUPLICATES = Duplicates(captions=0, images=0, ceiling_rsum=600, rsum=0)


def _caption(split, row):
    """Rows 6 and 7 of the test split share a caption."""
    return [10, 11, 12] if split == "test" and row in (6, 7) else [4 + row % 5, 20 + row]


def _regions(split, row):
    """Rows 8 and 9 of the test split share an image."""
    seed = 8 if split == "test" and row == 9 else row
    return np.random.default_rng(seed).random((36, 768), dtype=np.float32)


def _pair(split, row):
    return Pair(
        key=f"{SPLITS.index(split):05d}_{row:04d}",
        split=split,
        pair_index=row,
        url=f"http://site{row:02d}.test/{split}",
        site=f"site{row:02d}.test",
        caption=f"a caption, {row}",
        caption_source="name",
        lang=LANGUAGES[row % 3],
        phash=None,
        regions_sha256=hash_of(_regions(split, row)),
    )


def make_release(folder):
    """Write a release of ours: 4, 12 and 24 pairs, all three tracks."""
    data = folder / DATA_FOLDER
    data.mkdir(parents=True)
    pairs = [_pair(split, row) for split, size in SIZES.items() for row in range(size)]
    prints = {}
    for split, size in SIZES.items():
        keys = [pair.key for pair in pairs if pair.split == split]
        (data / f"{split}_ids.txt").write_text("".join(f"{key}\n" for key in keys))
        captions = [_caption(split, row) for row in range(size)]
        for tokenizer in TOKENIZERS:
            text = "".join(f"{to_line(ids)}\n" for ids in captions)
            (data / f"{split}_caps_{tokenizer}.txt").write_text(text)
        prints[split] = dict.fromkeys(TOKENIZERS, fingerprint(keys, captions))
        write_features(data / f"{split}.h5", [_batch(split, keys)], {"detector": "test"})
    write_pairs(folder / "pairs.parquet", pairs)
    write_manifest(folder, _manifest(prints))
    return folder


def _batch(split, keys):
    count = len(keys)
    return FeatureBatch(
        keys,
        np.stack([_regions(split, row) for row in range(count)]),
        np.zeros((count, 36, 4), np.float32),
        np.zeros((count, 36), np.float32),
        np.zeros((count, 36), np.int16),
        np.zeros((count, 36), np.int8),
        np.full(count, 36, np.int16),
    )


def _manifest(prints):
    return Manifest(
        name="small",
        created_at="2026-01-01T00:00:00Z",
        split=SplitPlan(shares=Shares(train=0.5, dev=0.25, test=0.25)),
        counts=SIZES,
        rejects={},
        fingerprints=prints,
        detector={},
        settings={},
        versions={},
        files={},
    )


def make_archive(folder):
    """Write the published layout: arrays and token lines, no keys, no manifest."""
    data = folder / "h5100k_precomp"
    data.mkdir(parents=True)
    for split, size in SIZES.items():
        np.save(data / f"{split}_ims.npy", np.stack([_regions(split, r) for r in range(size)]))
        text = "".join(f"{to_line(_caption(split, row))}\n" for row in range(size))
        (data / f"{split}_caps_bert.txt").write_text(text)
    return folder


def make_similarity(n_pairs=SIZES["test"], strength=2.0, seed=0):
    noise = np.random.default_rng(seed).standard_normal((n_pairs, n_pairs))
    return (noise + strength * np.eye(n_pairs)).astype(np.float32)


def score_matrix(path, release, similarity, method="Mine", track="jieba", attributes=None):
    """Pack a matrix of the test split as a submission, and score it."""
    pack(path, similarity, new_submission(release, track, "test", method))
    return score(path, release, attributes)


def pairing_of(out):
    """Return the perfect matrix of a blind round, from its pairing."""
    owner = np.array(json.loads((out / "judge" / "blind.json").read_text())["owner"])
    return (np.arange(len(owner))[:, None] == owner).astype(np.float32)


def pack_for_round(out, matrix, path, track="jieba", **changes):
    """Pack a matrix as a submission to a blind round; return its path."""
    meta = new_submission(out / "participants", track, "test", "Mine")
    pack(path, matrix, meta.model_copy(update=changes))
    return path


def the_problem(call, *arguments, **options):
    """Return the only problem of the SubmissionError that a call raises."""
    with pytest.raises(SubmissionError) as caught:
        call(*arguments, **options)
    (problem,) = caught.value.problems
    return problem


def closed_form_deviation(per_image):
    """Return the standard error of rSum without resampling: the limit of the bootstrap."""
    return 100 * per_image.std() / len(per_image) ** 0.5


@pytest.fixture(scope="session")
def release(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("ours") / "release")


@pytest.fixture(scope="session")
def gallery(release):
    """The test split of the small release as its judge sees it."""
    return read_gallery(release, "test", "jieba")


@pytest.fixture(scope="session")
def secret(tmp_path_factory):
    """A file with the secret of a blind round."""
    path = tmp_path_factory.mktemp("secret") / "secret"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    return make_archive(tmp_path_factory.mktemp("authors") / "NoW")


@pytest.fixture(scope="session")
def attributes(tmp_path_factory):
    """Languages and topics of the test split, as a CSV file by URL."""
    path = tmp_path_factory.mktemp("attributes") / "attributes.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["url", "matched", "lang", "topic"])
        for row in range(SIZES["test"]):
            topic = TOPICS[(row // 3) % 2]
            writer.writerow([_pair("test", row).url, "true", LANGUAGES[row % 3], topic])
    return path


def file_entry(store, release, name, strength=2.0, at=None, **details):
    """Score a random matrix and file it; ``details`` may have ``seed``, ``track`` and ``split``."""
    split, track = details.pop("split", "test"), details.pop("track", "jieba")
    similarity = make_similarity(SIZES[split], strength, details.pop("seed", 0))
    if strength == 0:
        similarity[:] = 0
    meta = with_details(new_submission(release, track, split, name), details)
    pack(store.parent / "x.zip", similarity, meta)
    return file_result(store, score(store.parent / "x.zip", release), at)[0]


def run_of(entry, result=None, difference=(-1.0, 1.0)):
    """Make the record of a run of an entry, with the same figures or those of another result."""
    result = (result or entry.result).model_copy(update={"payload_sha256": "cd" * 32})
    return Reproduction(
        name=entry.name,
        by="Fay Fox",
        reproduced_at=datetime(2026, 6, 1, tzinfo=UTC),
        result=result,
        difference=difference,
    )


def file_run(store, run):
    """Write the record of a run into a store."""
    path = store / run.path
    path.parent.mkdir(exist_ok=True)
    path.write_text(run.model_dump_json(by_alias=True) + "\n")


def proven(entry, *run):
    """Return an entry as if a keeper had run it again."""
    return replace(entry, reproductions=(run_of(entry, *run),))


def filed_on(day):
    return datetime(2026, 1, 1, 9, tzinfo=UTC) + timedelta(day)


@pytest.fixture
def entry_on(tmp_path, release):
    """Make entries on the small release."""

    def make(name="Mine", strength=2.0, **details):
        entry = file_entry(tmp_path / "made", details.pop("on", release), name, strength, **details)
        return replace(entry, filing=None)

    return make


@pytest.fixture(scope="session")
def filed(tmp_path_factory, release):
    """Entries of a store with every kind of evidence, by name of the method."""
    store = tmp_path_factory.mktemp("board") / "store"
    one, two = {"training": {"ensemble_size": 1}}, {"training": {"ensemble_size": 2}}
    best = file_entry(store, release, "Best", 3.0, filed_on(90), **two, authors=["Ann Archer"])
    level = file_entry(store, release, "Level", 2.9, filed_on(60), seed=1, **one)
    behind = file_entry(store, release, "Behind", 0.8, filed_on(0), seed=2, **one)
    more = {"postprocessing": {"kind": "transductive"}, "training": {"external_data": "Pictures"}}
    file_entry(store, release, "Normalised", 2.0, filed_on(30), seed=3, **more)
    file_entry(store, release, "Tied throughout", 0.0, filed_on(40))
    overstated = file_entry(store, release, "Overstated", 4.0, filed_on(50), seed=4)
    again = file_entry(store, release, "Run again", 2.5, filed_on(70), seed=5)
    gone = file_entry(store, release, "Gone", 2.2, filed_on(10), seed=6)
    file_entry(store, release, "On dev", 2.0, filed_on(5), split="dev")
    noise = {"protocol": "either", "sha256": "ab" * 32, "mismatch": 0.2}
    file_entry(store, release, "On noise", 1.0, filed_on(80), seed=7, training={"noise": noise})
    withdraw(store, gone.name, "The dev split had been mixed in.", datetime(2026, 5, 1, tzinfo=UTC))
    poor = file_entry(store.parent / "rerun", release, "Poor", 0.2, seed=8).result
    runs = [(entry, run_of(entry)) for entry in (best, level, behind, again)]
    runs.append((overstated, run_of(overstated, poor, (-300.0, -100.0))))
    noted = file_entry(store, release, "Forged", 60.0, filed_on(20), track="bpe")
    blind = file_entry(store, release, "Unseen", 2.0, filed_on(25), track="bert")
    for _, run in runs:
        file_run(store, run)
    hidden = {"origin": "blind", "fingerprint": "0" * 64}
    changed = {
        noted.name: {"notes": (Note(code="distances", message="13 times, expected 8"),)},
        blind.name: {"ranks": None, "release": Release.model_validate(hidden)},
    }
    return {
        entry.result.method.name: replace(
            entry, result=entry.result.model_copy(update=changed.get(entry.name, {}))
        )
        for entry in read_store(store)
    }


@pytest.fixture
def packed(tmp_path, release) -> Path:
    """A submission to the small release."""
    path = tmp_path / "x.zip"
    pack(path, make_similarity(), new_submission(release, "jieba", "test", "Mine"))
    return path


@pytest.fixture
def mine(tmp_path, release) -> Path:
    """A copy of the small release, to be changed."""
    return shutil.copytree(release, tmp_path / "mine")


@pytest.fixture
def by_domain(mine, monkeypatch):
    """The small release, split by domain: four sites of six pages, of three owners."""
    monkeypatch.setattr("leaderboard.scoring.within.MIN_GROUP", 3)
    hosts = ("a.one.test", "b.one.test", "two.test", "three.test")
    pairs = [replace(pair, site=hosts[pair.pair_index % 4]) for pair in read_pairs(mine)]
    write_pairs(mine / "pairs.parquet", pairs)
    manifest = read_manifest(mine)
    split = manifest.split.model_copy(update={"by": "domain"})
    write_manifest(mine, manifest.model_copy(update={"split": split}))
    return mine


@pytest.fixture
def now_leaderboard(monkeypatch, capsys):
    """Run the command in this process; return exit code, stdout and stderr."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["now-leaderboard", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return command
