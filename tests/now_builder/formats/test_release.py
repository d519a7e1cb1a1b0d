"""Releases: ours and the authors' archive, in both folder names and number formats."""

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import FormatError, NowError
from now_builder.formats.captions import SPECIALS
from now_builder.formats.release import (
    Pair,
    Reject,
    check_split,
    data_folder,
    fingerprint,
    hash_of,
    is_ours,
    open_regions,
    read_image_identities,
    read_manifest,
    read_pairs,
    read_release_vocabulary,
    read_split_captions,
    stream_rejects,
    write_pairs,
    write_rejects,
)

TRACKS = ("jieba", "bpe", "bert")
CAPTIONS = [[4, 5, 6], [7], [4, 5, 6], [8, 9, 4, 4]]


def archive(folder: Path, name: str, kind: str, newline: str = "\n") -> np.ndarray:
    """Write a small archive as the authors published it: no keys, no manifest."""
    data, vocabulary = folder / name, folder / "vocab"
    data.mkdir(parents=True)
    vocabulary.mkdir()
    regions = np.random.default_rng(1).standard_normal((4, 36, 768)).astype(kind)
    regions[2] = regions[0]
    words = [*SPECIALS, *"abcdef"]
    tree = {
        "word2idx": {word: index for index, word in enumerate(words)},
        "idx2word": dict(enumerate(words)),
        "idx": len(words),
    }
    for split in ("train", "dev", "test"):
        np.save(data / f"{split}_ims.npy", regions)
        (data / f"{split}_ids.txt").write_text("17\n40\n512\n9\n", encoding="utf-8")
        for track in TRACKS:
            lines = newline.join(",".join(map(str, ids)) + "," for ids in CAPTIONS) + newline
            (data / f"{split}_caps_{track}.txt").write_bytes(lines.encode())
    for track in TRACKS:
        (vocabulary / f"{name}_vocab_{track}.json").write_text(json.dumps(tree), encoding="utf-8")
    return regions


@pytest.mark.parametrize(
    ("name", "kind", "newline"), [("h5100k_precomp", "f2", "\n"), ("now100k_precomp", "f4", "\r\n")]
)
def test_the_authors_archive_is_read(tmp_path: Path, name: str, kind: str, newline: str) -> None:
    regions = archive(tmp_path / "NoW", name, kind, newline)
    for release in (tmp_path / "NoW", tmp_path / "NoW" / name):
        assert not is_ours(release)
        assert data_folder(release).name == name
        for track in TRACKS:
            found = read_split_captions(release, "test", track)
            assert found.captions == CAPTIONS
            assert found.keys == ["0", "1", "2", "3"]
            assert found.fingerprint == fingerprint(["0", "1", "2", "3"], CAPTIONS)
        images = read_image_identities(release, "test")
        assert images == [hash_of(page) for page in regions]
        assert images[0] == images[2] != images[1]
        with open_regions(release, "dev") as opened:
            assert opened.dtype == np.dtype(kind)
            assert np.array_equal(opened[1:3], regions[1:3])
    assert read_release_vocabulary(tmp_path / "NoW", "bert").idx == 10
    by_path = tmp_path / "NoW" / "vocab" / f"{name}_vocab_bpe.json"
    assert read_release_vocabulary(tmp_path / "NoW", "bpe", by_path).idx == 10


def test_a_fingerprint_follows_the_documented_hash() -> None:
    """sha256 of "a<TAB>1,2\\nb<TAB>3\\n"."""
    assert fingerprint(["a", "b"], [[1, 2], [3]]) == hashlib.sha256(b"a\t1,2\nb\t3\n").hexdigest()


def to_one_line(path: Path, call) -> str:
    with pytest.raises(NowError) as caught:
        call()
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def read_all(release: Path) -> None:
    read_split_captions(release, "test", "bpe")
    with open_regions(release, "test") as regions:
        regions[:]


def npy(array: np.ndarray, *, pickled: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=pickled)
    return file.getvalue()


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", npy(np.zeros((4, 36, 768), "f4")))
    return file.getvalue()


ARRAYS = [
    b"",
    b"text",
    zipped(),
    npy(np.zeros((4, 36, 768), "f4"))[:-4],
    npy(np.zeros((4, 36 * 768), "f4")),
    npy(np.zeros((4, 36, 768), "i4")),
    npy(np.array([{"a": 1}] * 4), pickled=True),
    npy(np.zeros((4, 2), [("a", "f4")])),
    npy(np.zeros((3, 36, 768), "f4")),
    npy(np.zeros(1, "f4")).replace(b"(1,)", b"(10**9, 36, 768)"),
    npy(np.zeros(1, "f4")).replace(b"(1,)", b"(" + b"9" * 20 + b",)").replace(b" " * 19, b"", 1),
    b"\x93NUMPY\x01\x00\x10\x00(((((((((((((((((((((",
]


def test_damaged_arrays_and_captions_of_an_archive_are_one_line(tmp_path: Path) -> None:
    archive(tmp_path / "NoW", "now100k_precomp", "f2")
    folder = tmp_path / "NoW" / "now100k_precomp"
    texts = [b"4,5\n6;7\n8\n9\n", b"4\n\xff\n", b"4\n5\n-6\n7\n", b"4\n"]
    for path, contents in (("test_ims.npy", ARRAYS), ("test_caps_bpe.txt", texts)):
        whole = (folder / path).read_bytes()
        for content in contents:
            (folder / path).write_bytes(content)
            to_one_line(folder, lambda: read_all(tmp_path / "NoW"))
        (folder / path).write_bytes(whole)


def test_missing_things_are_named(tmp_path: Path) -> None:
    to_one_line(tmp_path / "none", lambda: data_folder(tmp_path / "none"))
    assert "h5100k_precomp" in to_one_line(tmp_path, lambda: data_folder(tmp_path))
    archive(tmp_path / "NoW", "h5100k_precomp", "f2")
    folder = tmp_path / "NoW" / "h5100k_precomp"
    (folder / "test_caps_bpe.txt").unlink()
    message = to_one_line(folder, lambda: read_all(tmp_path / "NoW"))
    assert "test_caps_jieba.txt" in message
    (folder / "dev_ims.npy").unlink()
    to_one_line(folder, lambda: read_split_captions(tmp_path / "NoW", "dev", "bert"))
    (tmp_path / "NoW" / "vocab" / "h5100k_precomp_vocab_bpe.json").unlink()
    to_one_line(tmp_path, lambda: read_release_vocabulary(tmp_path / "NoW", "bpe"))
    to_one_line(tmp_path / "NoW", lambda: read_manifest(tmp_path / "NoW"))
    with pytest.raises(FormatError, match="train, dev, test"):
        check_split("val")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=25)
@given(caption=TEXT, url=TEXT, lang=st.none() | TEXT, index=st.integers(0, 10**6))
def test_pairs_and_rejects_survive_their_files(tmp_path_factory, caption, url, lang, index) -> None:
    release = tmp_path_factory.mktemp("tables")
    pairs = [Pair("00000_0000", "dev", index, url, "a.test", caption, None, lang, None, "f" * 64)]
    rejects = [Reject("00000_0001", url, "a.test", "train", "failed:dns", lang)]
    write_pairs(release / "pairs.parquet", pairs)
    write_rejects(release / "rejects.parquet", rejects)
    assert read_pairs(release) == pairs
    assert list(stream_rejects(release)) == rejects


def test_damaged_tables_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    write_pairs(path, [Pair("a", "dev", 0, "u", "s", "c", None, None, None, "f")])
    whole, table = path.read_bytes(), pq.read_table(path)
    tables = [pa.table({"key": ["a"]}), table.append_column("lang", table["lang"])]
    for name, value in (("pair_index", "first"), ("pair_index", None), ("caption", None)):
        column = pa.array([value])
        tables.append(table.set_column(table.column_names.index(name), name, column))
    for odd in tables:
        pq.write_table(odd, path)
        to_one_line(path, lambda: read_pairs(tmp_path))
    for content in (
        b"PAR1 torn",
        whole.replace(b"lang", b"lan\xff"),  # a name that is not UTF-8
        whole[:-8] + b"\xff" * 4 + whole[-4:],  # Arrow's message has two lines
    ):
        path.write_bytes(content)
        to_one_line(path, lambda: read_pairs(tmp_path))
