"""Verify finds what was changed, even where the hashes were changed with it."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest

from now_builder.errors import NowError
from now_builder.formats.io import sha256_of
from now_builder.formats.release import read_pairs, write_pairs
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from now_builder.package.verify import unlisted_files, verify

DATA = "now100k_precomp"


@pytest.fixture(scope="module")
def whole(small_crawl: Path, small_features: Path, small_captions: Path, tmp_path_factory) -> Path:
    release = tmp_path_factory.mktemp("verified") / "r"
    settings = PackageSettings(train=6, dev=4, test=5, npy=True)
    package(small_crawl, small_features, small_captions, release, settings)
    return release


@pytest.fixture
def release(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "release"))


def rehash(release: Path, **changes) -> None:
    """Make the manifest agree with the files as they are now."""
    path = release / "manifest.json"
    tree = json.loads(path.read_text(encoding="utf-8")) | changes
    for name, entry in tree["files"].items():
        entry["sha256"] = sha256_of(release / name)
        entry["bytes"] = (release / name).stat().st_size
    path.write_text(json.dumps(tree), encoding="utf-8")


def found(release: Path, *words: str) -> None:
    problems = verify(release)
    assert problems
    assert all(any(word in problem for problem in problems) for word in words), problems
    assert not any("\n" in problem for problem in problems)


@pytest.mark.parametrize(
    "name", [f"{DATA}/test.h5", f"{DATA}/dev_caps_bpe.txt", "pairs.parquet", "DATASET_CARD.md"]
)
def test_a_changed_byte_is_found(release: Path, name: str) -> None:
    content = bytearray((release / name).read_bytes())
    content[len(content) // 2] ^= 1
    (release / name).write_bytes(content)
    found(release, f"{name}: content differs")


def test_a_missing_and_a_shortened_file_are_found(release: Path) -> None:
    (release / DATA / "dev_ids.txt").unlink()
    content = (release / DATA / "train.h5").read_bytes()
    (release / DATA / "train.h5").write_bytes(content[:-100])
    found(release, "dev_ids.txt: missing", "train.h5: ")


@pytest.mark.parametrize(
    ("name", "change", "word"),
    [
        ("test_caps_jieba", lambda lines: [*lines[1:], lines[0]], "fingerprint differs"),
        ("test_caps_jieba", lambda lines: ["999999", *lines[1:]], "line 1 has an id outside"),
        ("dev_caps_bert", lambda lines: ["", *lines[1:]], "line 1 is empty"),
        ("dev_caps_bert", lambda lines: lines[1:], "expected as many of each"),
        ("test_ids", lambda lines: lines[::-1], "keys are not those of pairs.parquet"),
    ],
)
def test_lines_that_were_changed_with_their_hash_are_found(
    release: Path, name: str, change: Callable[[list[str]], list[str]], word: str
) -> None:
    path = release / DATA / f"{name}.txt"
    lines = change(path.read_text(encoding="utf-8").splitlines())
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rehash(release)
    found(release, word)


def test_features_that_were_changed_with_their_hash_are_found(release: Path) -> None:
    with h5py.File(release / DATA / "dev.h5", "a") as file:
        file["regions"][2] = 0.5
    rehash(release)
    found(release, "differ from their hash", "dev_ims.npy")


def test_arrays_counts_and_pairs_that_do_not_agree_are_found(release: Path) -> None:
    np.save(release / DATA / "dev_ims.npy", np.zeros((3, 36, 768), "f4"))
    rehash(release)
    found(release, "dev_ims.npy: shape")
    rehash(release, counts={"train": 6, "dev": 4, "test": 500}, rejects={"duplicate": 1})
    found(release, "pairs.parquet", "rejects.parquet")
    pairs = read_pairs(release)
    write_pairs(release / "pairs.parquet", [pairs[0], *pairs[:-1]])
    rehash(release)
    found(release, "a key is in two rows")


def add_files(release: Path, first: list[str], last: Sequence[str] = ()) -> None:
    path = release / "manifest.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    entry = {"sha256": "0" * 64, "bytes": 9}
    tree["files"] = dict.fromkeys(first, entry) | tree["files"] | dict.fromkeys(last, entry)
    path.write_text(json.dumps(tree), encoding="utf-8")


def test_files_that_were_added_are_named_and_are_no_problem(release: Path) -> None:
    assert (verify(release), unlisted_files(release)) == ([], [])
    for name in ("filings/a.json", ".git/config", "now100k_precomp/my.npy"):
        (release / name).parent.mkdir(exist_ok=True)
        (release / name).touch()
    assert (verify(release), unlisted_files(release)) == (
        [],
        ["filings/a.json", "now100k_precomp/my.npy"],
    )


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/hostname", "vocab/../../outside.txt"])
def test_a_manifest_may_not_point_outside_its_release(release: Path, name: str) -> None:
    add_files(release, [name])
    found(release, "points outside the release")


@pytest.mark.parametrize("name", ["x" * 300, "vocab/" + "x" * 5000, "a\0b", "circle/x"])
def test_impossible_names_are_one_problem_and_other_files_are_checked(
    release: Path, name: str
) -> None:
    (release / "circle").symlink_to(release / "circle")
    add_files(release, [name], ["gone"])
    found(release, f"{name:.80}: ", "gone: missing")
    assert all(len(problem) < 300 for problem in verify(release))


def test_a_damaged_manifest_is_one_line(release: Path) -> None:
    for text in ("", "{", "[]", '{"format": "now-release/9"}', '{"format": "now-release/1"}'):
        (release / "manifest.json").write_text(text, encoding="utf-8")
        with pytest.raises(NowError, match=r"manifest\.json") as caught:
            verify(release)
        assert "\n" not in str(caught.value)
    (release / "manifest.json").unlink()
    with pytest.raises(NowError, match="unfinished"):
        verify(release)
