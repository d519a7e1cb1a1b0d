"""Feature files: round trips, order of rows, and files that must be refused."""

import fcntl
import gc
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.feature_parts import (
    merge_parts,
    parts_folder,
    read_part,
    read_parts,
    write_part,
)
from now_builder.formats.features import FeatureBatch, open_features, write_features

SHAPE = (15, 36, 768)
LAYOUT = ("regions", "boxes", "scores", "classes", "source", "n_regions")


def batch(keys: list[str], seed: int = 0) -> FeatureBatch:
    draw, count = np.random.default_rng(seed), len(keys)
    return FeatureBatch(
        keys,
        draw.standard_normal((count, 36, 768), dtype=np.float32),
        draw.random((count, 36, 4), dtype=np.float32),
        draw.random((count, 36), dtype=np.float32),
        draw.integers(-1, 9, (count, 36)).astype(np.int16),
        draw.integers(0, 4, (count, 36)).astype(np.int8),
        draw.integers(0, 37, count).astype(np.int16),
    )


def same(one: FeatureBatch, other: FeatureBatch) -> bool:
    return one.keys == other.keys and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in LAYOUT
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "features.h5"
    batches = [batch([f"{i:04d}" for i in range(start, start + 5)], start) for start in (0, 5, 10)]
    write_features(path, batches, {"detector": "tiny"})
    return path


def test_a_file_that_cannot_be_locked_is_read(path: Path) -> None:
    """Another process has locked it whole, or the file system has no locks: nothing is written."""
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with open_features(path) as features:
            assert len(features) == 15


@pytest.mark.parametrize("pages", [None, 15])
@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, pages: int | None) -> None:
    """HDF5 itself crashes when it closes a file in chunks that it could not write."""
    path = tmp_path / "f.h5"
    with pytest.raises(OSError, match="too large") as caught:
        write_features(path, [batch([f"{n}" for n in range(15)])], {}, pages=pages)
    assert caught.value.filename == str(path)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=12)
@given(sizes=st.lists(st.integers(0, 5), max_size=4), half=st.booleans())
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], *, half: bool
) -> None:
    path = tmp_path_factory.mktemp("features") / "f.h5"
    batches = [batch([f"{n}_{i}" for i in range(size)], n) for n, size in enumerate(sizes)]
    assert write_features(path, batches, {"detector": "x"}, half) == sum(sizes)
    with open_features(path) as features:
        assert features.attributes["detector"] == "x"
        assert len(features) == sum(sizes)
        start = 0
        for expected in batches:
            found = features.read(slice(start, start + len(expected.keys)))
            start += len(expected.keys)
            if half:
                rounded = expected.regions.astype(np.float16)
                assert np.array_equal(found.regions, rounded)
            else:
                assert same(found, expected)


@settings(max_examples=12)
@given(rows=st.lists(st.integers(0, 14), max_size=20))
def test_rows_come_in_the_order_asked_for(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "order.h5"
    if not path.exists():
        write_features(path, [batch([f"{i}" for i in range(15)])], {})
    with open_features(path) as features:
        whole = features.read(slice(None))
        found = features.read(np.array(rows, dtype=np.int64))
    assert same(found, whole.take(np.array(rows, dtype=np.int64)))


@pytest.mark.parametrize("pages", [15, 0])
def test_pages_that_are_counted_lie_in_one_piece_and_are_mapped(tmp_path: Path, pages: int) -> None:
    path, keys = tmp_path / "f.h5", [f"{i}" for i in range(pages)]
    write_features(path, [batch(keys)] if keys else [], {}, pages=pages)
    with h5py.File(path) as file:
        assert file["regions"].chunks is None
        assert file["regions"].shape == (pages, 36, 768)
        assert not pages or file["regions"].id.get_offset() % 4096 == 0
    with open_features(path) as features:
        assert isinstance(features.dataset, np.memmap) == bool(pages)
        assert same(features.read(slice(None)), batch(keys))
        rows = np.array([14, 3, 3], dtype=np.int64) % max(1, pages)
        assert not pages or same(features.read(rows), batch(keys).take(rows))


def test_another_count_than_was_told_leaves_no_file(tmp_path: Path) -> None:
    for pages in (4, 6):
        with pytest.raises(ValueError, match=f"expected {pages}"):
            write_features(tmp_path / "f.h5", [batch([*"abcde"])], {}, pages=pages)
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("size", [1, 100])
def test_the_same_content_is_the_same_bytes_however_it_was_batched(
    tmp_path: Path, size: int
) -> None:
    path, again = tmp_path / "f.h5", tmp_path / "again.h5"
    for pages in (None, 90):
        write_features(
            path, [batch([f"{i}" for i in range(90)])], {"detector": "tiny"}, pages=pages
        )
        with open_features(path) as features:
            write_features(again, features.batches(size), {"detector": "tiny"}, pages=pages)
        assert again.read_bytes() == path.read_bytes()


def test_parts_are_merged_once_each_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    write_part(path, batch(["a", "b"]), {"detector": "x"})
    write_part(path, batch(["b", "c"], 1), {"detector": "x"})
    assert len(read_parts(path)) == 2
    assert merge_parts(path, {"detector": "x"}) == 3
    assert not parts_folder(path).exists()
    write_part(path, batch(["d"], 2), {"detector": "x"})
    assert merge_parts(path, {"detector": "x"}) == 4
    with open_features(path) as features:
        assert features.keys == ["a", "b", "c", "d"]
        assert same(features.read(slice(0, 2)), batch(["a", "b"]))


def test_what_another_detector_wrote_meanwhile_is_never_merged(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    write_part(path, batch(["a"]), {"detector": "x"})
    told = pytest.raises(ConfigError, match="made with detector 'x', now 'y'")
    with told:
        merge_parts(path, {"detector": "y"})
    assert merge_parts(path, {"detector": "x"}) == 1
    write_part(path, batch(["b"]), {"detector": "y"})
    with told:
        merge_parts(path, {"detector": "y"})
    with open_features(path) as features:
        assert features.keys == ["a"]


def test_a_part_holds_what_was_given_at_half_the_size_if_asked(tmp_path: Path) -> None:
    one = batch(["a", "b"])
    write_part(tmp_path / "f.h5", one, {"detector": "x"})
    write_part(tmp_path / "h.h5", one, {"detector": "x"}, half=True)
    (full,), (half,) = read_parts(tmp_path / "f.h5"), read_parts(tmp_path / "h.h5")
    found, attributes = read_part(full)
    assert same(found, one)
    assert attributes == {"detector": "x"}
    assert read_part(half)[0].regions.dtype == np.float16
    assert half.stat().st_size < 0.6 * full.stat().st_size
    merge_parts(tmp_path / "h.h5", {"detector": "x"}, half=True)
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["regions"].dtype == np.float16
        assert np.array_equal(file["regions"][:], one.regions.astype(np.float16))


def test_a_torn_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    write_part(path, batch(["a", "b"]), {})
    (part,) = read_parts(path)
    content = part.read_bytes()
    for share in (0.0, 0.2, 0.9, 0.999):
        kept = content[: int(share * len(content))]
        rest = len(content) - len(kept)
        for tail in (b"", bytes(rest), np.random.default_rng(0).bytes(rest)):
            part.write_bytes(kept + tail)
            with pytest.raises(FormatError, match="torn") as caught:
                read_part(part)
            assert str(part) in str(caught.value)
    with pytest.raises(FormatError, match="torn"):
        merge_parts(path, {})
    assert part.exists()
    assert not path.exists()


def test_a_changed_byte_in_a_part_never_passes(tmp_path: Path) -> None:
    path, one = tmp_path / "f.h5", batch(["a"])
    write_part(path, one, {"detector": "x"})
    (part,) = read_parts(path)
    content, draw = part.read_bytes(), np.random.default_rng(0)
    ends = np.r_[0:600, len(content) - 1200 : len(content)]
    for place in [*draw.choice(ends, 60), *draw.integers(0, len(content), 20)]:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.integers(8)
        part.write_bytes(changed)
        try:
            found, attributes = read_part(part)
        except FormatError:
            continue
        assert same(found, one)  # a byte that says nothing, such as a date
        assert attributes == {"detector": "x"}


def test_merging_holds_few_pages_in_memory(tmp_path: Path) -> None:
    path, count = tmp_path / "f.h5", 64
    for number in range(count):
        write_part(path, batch([f"{number:03d}_{i}" for i in range(16)], number), {})
    tracemalloc.start()
    assert merge_parts(path, {}) == 16 * count
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert highest < 0.5 * path.stat().st_size  # a few blocks of pages, however many there are


def refused(path: Path, *words: str) -> None:
    with pytest.raises(FormatError) as caught, open_features(path) as features:
        features.read(slice(0, 2))
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_a_torn_file_is_one_line(path: Path) -> None:
    content = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.999):
        path.write_bytes(content[: int(share * len(content))])
        refused(path)
    path.write_text("not at all\n" * 100, encoding="utf-8")
    refused(path, "HDF5")
    path.unlink()
    refused(path, "no such file")
    path.mkdir()
    refused(path, "a folder")


@pytest.mark.parametrize("pages", [15, 0])
def test_rows_that_cannot_be_read_are_the_files_error(tmp_path: Path, pages: int) -> None:
    """A forged fill value is noticed by HDF5 only when it reads."""
    path, keys = tmp_path / "f.h5", [f"{i}" for i in range(pages)]
    write_features(path, [batch(keys)] if keys else [], {})
    fill = bytes([2, 3, 2, 1, 0, 0, 0])  # its version, when it is written, and how long it is
    path.write_bytes(path.read_bytes().replace(fill + b"\0", fill + b"\xdb"))
    with open_features(path) as features:
        for read in (
            lambda: features.dataset[0:1],
            lambda: np.asarray(features.dataset),
            lambda: features.read(slice(0, 1)),
            lambda: features.column("boxes", slice(0, 1)),
        ):
            with pytest.raises(FormatError, match=r"torn: /.*cannot be read"):
                read()


def test_an_unfinished_file_or_another_format_is_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file.attrs["complete"]
    refused(path, "unfinished")
    for value in ("now-features/2", 7, np.array(["now-features/1"] * 2, "S20")):
        with h5py.File(path, "a") as file:
            file.attrs["format"] = value
        refused(path, "now-features/1")


def replaced(path: Path, name: str, make) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        make(file)


def test_data_outside_the_file_are_refused(path: Path, tmp_path: Path) -> None:
    other, whole = tmp_path / "other.h5", path.read_bytes()
    other.write_bytes(whole)
    outside = [(str(other), 0, h5py.h5f.UNLIMITED)]
    layout = h5py.VirtualLayout(SHAPE, "f4")
    layout[:] = h5py.VirtualSource(other, "regions", SHAPE)

    def soft(file: h5py.File) -> None:
        file["elsewhere/regions"] = np.zeros(SHAPE, "f4")
        file["regions"] = h5py.SoftLink("/elsewhere/regions")

    for make, word in (
        (lambda file: file.create_dataset("regions", SHAPE, "f4", external=outside), "not a data"),
        (lambda file: file.create_virtual_dataset("regions", layout), "not a dataset stored"),
        (lambda file: file.__setitem__("regions", h5py.ExternalLink(other, "regions")), "external"),
        (soft, "soft"),
    ):
        path.write_bytes(whole)
        replaced(path, "regions", make)
        refused(path, "/regions", word)


MANY = {"maxshape": (None, 36, 768)}


def test_a_dataset_that_is_none_of_the_format_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for name, make, word in (
        ("keys", lambda file: file.__setitem__("keys", h5py.ExternalLink("o.h5", "keys")), "link"),
        ("boxes", lambda file: file.create_group("boxes"), ""),
        ("boxes", lambda file: file.__setitem__("boxes", np.dtype("f4")), "not a dataset"),
        ("regions", lambda file: file.__setitem__("regions", file["/"]), "not a dataset"),
        ("scores", lambda file: None, "missing"),
        # An array of 320 GB without stored chunks would be filled in when read.
        ("regions", lambda file: file.create_dataset(
            "regions", (3_000_000, 36, 768), "f4", chunks=(1, 36, 768)), "stored"),
        ("keys", lambda file: file.create_dataset(
            "keys", (10**9,), h5py.string_dtype(), chunks=(1024,)), "stored"),
        ("regions", lambda file: file.create_dataset(
            "regions", SHAPE, "f4", chunks=(4096, 36, 768), **MANY), "64 MiB"),
        ("regions", lambda file: file.create_dataset(
            "regions", SHAPE, "f4", chunks=(1, 1, 1)), "414720 chunks"),
        ("keys", lambda file: file.create_dataset("keys", data=np.arange(15)), "strings"),
        *(("keys", lambda file, keys=keys: file.create_dataset("keys", data=keys), "")
          for keys in (["a"] * 15, [f"{i}\n" for i in range(15)], [""] + ["b"] * 14)),
        *(("regions", lambda file, shape=shape: file.create_dataset(
            "regions", data=np.zeros(shape)), "(15, 36, 768)")
          for shape in [(15, 35, 768), (14, 36, 768), (15, 36), (15, 36, 768, 1)]),
        *(("regions", lambda file, kind=kind: file.create_dataset(
            "regions", data=np.ones(SHAPE).astype(kind)), "values are")
          for kind in ("i4", "c8", "S4")),
    ):  # fmt: skip
        path.write_bytes(whole)
        replaced(path, name, make)
        refused(path, f"/{name}", word)
