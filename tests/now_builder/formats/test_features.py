"""Feature files: round trips, order of rows, parts, and files that must be refused."""

import fcntl
import gc
import struct
import tracemalloc
from collections.abc import Callable
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


@pytest.mark.usefixtures("full_disk")
def test_a_full_disk_raises_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    """HDF5 itself crashes when it closes a file that it could not write."""
    path = tmp_path / "f.h5"
    with pytest.raises(OSError, match="too large") as caught:
        write_features(path, [batch([f"{n}" for n in range(15)])], {})
    assert caught.value.filename == str(path)
    gc.collect()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=8)
@given(sizes=st.lists(st.integers(0, 5), max_size=4), half=st.booleans())
def test_files_survive_a_round_trip(
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


def test_pages_that_are_counted_lie_in_one_piece_and_are_mapped(tmp_path: Path) -> None:
    for pages in (15, 0):
        path, keys = tmp_path / f"{pages}.h5", [f"{i}" for i in range(pages)]
        write_features(path, [batch(keys)] if keys else [], {}, pages=pages)
        with h5py.File(path) as file:
            assert file["regions"].chunks is None
            assert file["regions"].shape == (pages, 36, 768)
            assert not pages or file["regions"].id.get_offset() % 4096 == 0
        with open_features(path) as features:
            assert isinstance(features.dataset, np.memmap) == bool(pages)
            assert same(features.read(slice(None)), batch(keys))
    for wrong in (4, 6):
        with pytest.raises(ValueError, match=f"expected {wrong}"):
            write_features(tmp_path / "f.h5", [batch([*"abcde"])], {}, pages=wrong)
    assert not (tmp_path / "f.h5").exists()


def test_the_same_content_is_the_same_bytes_however_it_was_batched(tmp_path: Path) -> None:
    path, again = tmp_path / "f.h5", tmp_path / "again.h5"
    write_features(path, [batch([f"{i}" for i in range(140)])], {"detector": "x"})
    for size in (5, 100):
        with open_features(path) as features:
            write_features(again, features.batches(size), {"detector": "x"}, pages=140)
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


def test_parts_of_another_detector_are_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    write_part(path, batch(["a"]), {"detector": "x"})
    fails = pytest.raises(ConfigError, match="made with detector 'x', now 'y'")
    with fails:
        merge_parts(path, {"detector": "y"})
    assert merge_parts(path, {"detector": "x"}) == 1
    write_part(path, batch(["b"]), {"detector": "y"})
    with fails:
        merge_parts(path, {"detector": "y"})
    with open_features(path) as features:
        assert features.keys == ["a"]


def test_a_part_at_half_the_size_makes_a_file_of_half_precision(tmp_path: Path) -> None:
    one = batch(["a", "b"])
    write_part(tmp_path / "h.h5", one, {"detector": "x"}, half=True)
    (half,) = read_parts(tmp_path / "h.h5")
    assert read_part(half)[0].regions.dtype == np.float16
    merge_parts(tmp_path / "h.h5", {"detector": "x"}, half=True)
    with h5py.File(tmp_path / "h.h5") as file:
        assert file["regions"].dtype == np.float16
        assert np.array_equal(file["regions"][:], one.regions.astype(np.float16))


def test_a_torn_part_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    write_part(path, batch(["a", "b"]), {})
    (part,) = read_parts(path)
    content, noise = part.read_bytes(), np.random.default_rng(0)
    for share in (0.0, 0.2, 0.999):
        kept = content[: int(share * len(content))]
        rest = len(content) - len(kept)
        for tail in (b"", bytes(rest), noise.bytes(rest)):
            part.write_bytes(kept + tail)
            with pytest.raises(FormatError, match=rf"{part.name}: torn"):
                read_part(part)
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
    for place in [*draw.choice(ends, 80), *draw.integers(0, len(content), 20)]:
        changed = bytearray(content)
        changed[place] ^= 1 << draw.integers(8)
        part.write_bytes(changed)
        try:
            found, attributes = read_part(part)
        except FormatError:
            continue
        assert same(found, one)  # a byte that says nothing, such as a date
        assert attributes == {"detector": "x"}


def refused(path: Path, *words: str) -> None:
    """Expect one line about the file, before much memory is taken."""
    tracemalloc.start()
    with pytest.raises(FormatError) as caught, open_features(path) as features:
        features.read(slice(0, 2))
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert highest < 40e6


def test_a_torn_file_is_one_line(path: Path) -> None:
    content = path.read_bytes()
    for share in (0.0, 0.01, 0.3, 0.7, 0.999):
        path.write_bytes(content[: int(share * len(content))])
        refused(path)
    path.write_text("not at all\n" * 100, encoding="utf-8")
    refused(path, "HDF5")
    path.unlink()
    refused(path, "no such file")
    path.mkdir()
    refused(path, "a folder")


ATTRIBUTES = {
    "texts": np.array(["x"] * 100, dtype=object),
    "numbers": np.zeros(8000),
    "compound": np.zeros((), [("a", "f4"), ("b", "i4")]),
    "opaque": np.void(b"12345678"),
    "nothing": h5py.Empty("f4"),
}


def test_an_unfinished_file_another_format_and_odd_attributes_are_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file.attrs["complete"]
    refused(path, "unfinished")
    for value in ("now-features/2", 7):
        with h5py.File(path, "a") as file:
            file.attrs["format"] = value
        refused(path, "now-features/1")
    for name in ("format", "detector"):
        for value in ATTRIBUTES.values():
            with h5py.File(path, "a") as file:
                file.attrs[name] = value
            refused(path, "attribute '", "one text or number")


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


def replaced(path: Path, name: str, make: Callable[[h5py.File], object]) -> None:
    with h5py.File(path, "a") as file:
        del file[name]
        make(file)


def dataset(name: str, *shape: int, kind: object = "f4", **about: object) -> Callable:
    return lambda file: file.create_dataset(name, shape, kind, **about)


def short_chunks(file: h5py.File) -> None:
    data = file.create_dataset("regions", SHAPE, "f4", chunks=(1, 36, 768))
    data[:] = 1
    data.id.write_direct_chunk((3, 0, 0), bytes(5))
    data.id.write_direct_chunk((4, 0, 0), bytes(2 * 36 * 768 * 4))


def odd_floats(file: h5py.File) -> None:
    """Write floats of a form that NumPy lacks."""
    kind = h5py.h5t.IEEE_F16LE.copy()
    kind.set_ebias(9)
    space, name = h5py.h5s.create_simple((15, 36, 4)), b"boxes"
    data = h5py.Dataset(h5py.h5d.create(file.id, name, kind, space))
    data[:] = 1


TYPES = (
    np.dtype([("a", "f4"), ("b", "i4")]), h5py.vlen_dtype(np.float32), h5py.ref_dtype,
    h5py.regionref_dtype, np.dtype("V8"), np.dtype(("f4", (4,))), np.dtype("c8"), "i4", "S4",
)  # fmt: skip
DAMAGED = [
    ("keys", lambda file: file.__setitem__("keys", h5py.ExternalLink("o.h5", "keys")), "link"),
    ("boxes", lambda file: file.create_group("boxes"), "not a dataset"),
    ("boxes", lambda file: file.__setitem__("boxes", np.dtype("f4")), "not a dataset"),
    ("regions", lambda file: file.__setitem__("regions", file["/"]), "not a dataset"),
    ("scores", lambda file: None, "missing"),
    ("regions", lambda file: file.create_dataset("regions", data=h5py.Empty("f4")), "not a data"),
    # An array of 320 GB without stored chunks would be filled in when read.
    ("regions", dataset("regions", 3_000_000, 36, 768, chunks=(1, 36, 768)), "stored"),
    ("keys", dataset("keys", 10**9, kind=h5py.string_dtype(), chunks=(1024,)), "stored"),
    ("keys", lambda file: file.create_dataset("keys", data=np.arange(15)), "strings"),
    *(("keys", lambda file, keys=keys: file.create_dataset("keys", data=keys), "")
      for keys in (["a"] * 15, [f"{i}\n" for i in range(15)], [""] + ["b"] * 14)),
    ("keys", lambda file: file.create_dataset("keys", data=np.array([b"a\xff"] * 15)), ""),
    *(("regions", dataset("regions", *shape), "") for shape in [(15, 35, 768), (15, 36)]),
    *(("regions", dataset("regions", *SHAPE, kind=kind), "values are") for kind in TYPES),
    *(("regions", dataset("regions", *SHAPE, **options), "packed")
      for options in ({"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True})),
    ("keys", dataset("keys", 15, kind="S4", compression="lzf"), "packed"),
    # HDF5 reads a whole chunk from the memory of a shorter one: what lies behind it, or a kill.
    ("regions", short_chunks, "chunks of [5, 110592, 221184]"),
    ("boxes", odd_floats, "values are"),
]  # fmt: skip


def test_datasets_of_another_format_are_refused(path: Path) -> None:
    whole = path.read_bytes()
    for name, make, word in DAMAGED:
        path.write_bytes(whole)
        replaced(path, name, make)
        refused(path, word)


def test_a_size_that_was_forged_is_refused(tmp_path: Path) -> None:
    """Shape and storage both say 4 TB, in a file of 2 MB."""
    path, pages = tmp_path / "f.h5", 77
    write_features(path, [batch([f"{page}" for page in range(pages)])], {}, pages=pages)
    content, stored, claimed = path.read_bytes(), pages * 36 * 4 * 4, 2**28
    shape = struct.pack("<QQQ", pages, 36, 4)
    assert content.count(shape) in {1, 2}
    content = content.replace(shape, struct.pack("<QQQ", claimed, 36, 4))
    assert content.count(struct.pack("<Q", stored)) == 1
    path.write_bytes(content.replace(struct.pack("<Q", stored), struct.pack("<Q", claimed * 576)))
    refused(path)


def test_other_things_in_the_file_are_not_read_and_short_texts_are_keys(path: Path) -> None:
    keys = np.array([f"{page:04d}" for page in range(15)], "S4")
    replaced(path, "keys", lambda file: file.create_dataset("keys", data=keys))
    with h5py.File(path, "a") as file:
        file["self"] = file["/"]
        group = file.create_group("down").create_group("down")
        group["up"] = file["/"]
        file["away"] = h5py.ExternalLink("/etc/passwd", "/")
        file["nowhere"] = h5py.SoftLink("/nowhere")
    with open_features(path) as features:
        assert features.keys == [key.decode() for key in keys]
