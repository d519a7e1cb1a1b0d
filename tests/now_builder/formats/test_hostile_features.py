"""Feature files made to do harm: refused, or harmless, before they cost memory or time."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from now_builder.errors import FormatError
from now_builder.formats.features import FeatureBatch, open_features, write_features

PAGES = 15
SHAPE = (PAGES, 36, 768)


def batch(pages: int = PAGES, keys: list[str] | None = None) -> FeatureBatch:
    return FeatureBatch(
        keys or [f"{page:04d}" for page in range(pages)],
        np.random.default_rng(0).standard_normal((pages, 36, 768), dtype=np.float32),
        np.zeros((pages, 36, 4), np.float32),
        np.zeros((pages, 36), np.float32),
        np.zeros((pages, 36), np.int16),
        np.zeros((pages, 36), np.int8),
        np.zeros(pages, np.int16),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "features.h5"
    write_features(path, [batch()], {"detector": "tiny"}, pages=PAGES)
    return path


def refused(path: Path, *words: str) -> None:
    tracemalloc.start()
    with pytest.raises(FormatError) as caught, open_features(path):
        pass
    highest = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert all(word in message for word in words), message
    assert highest < 40e6


def changed(path: Path, name: str, make: Callable[..., object], *more: object) -> Path:
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        make(file, *more)
    return path


TYPES = {
    "compound": np.dtype([("a", "f4"), ("b", "i4")]),
    "many members": np.dtype([(f"member{number}", "u1") for number in range(1000)]),
    "sequences": h5py.vlen_dtype(np.float32),
    "texts": h5py.string_dtype(),
    "object references": h5py.ref_dtype,
    "region references": h5py.regionref_dtype,
    "opaque": np.dtype("V8"),
    "array": np.dtype(("f4", (4,))),
    "enumeration": h5py.enum_dtype({"one": 1, "two": 2}),
    "complex": np.dtype("c8"),
}


def test_a_dataset_of_an_unusual_type_is_refused(path: Path) -> None:
    """Each type once, in each dataset by turns."""
    names = ("keys", "regions", "n_regions")
    for number, (title, kind) in enumerate({**TYPES, "plain floats": np.dtype("f4")}.items()):
        name = "keys" if title == "plain floats" else names[number % 3]
        name = "regions" if title == "texts" else name
        shape = SHAPE if name == "regions" else (PAGES,)
        changed(path, name, lambda file, *of: file.create_dataset(*of), name, shape, kind)
        refused(path, f"/{name}: values are", "expected")
        path.unlink()
        write_features(path, [batch()], {"detector": "tiny"}, pages=None if number % 2 else PAGES)


ATTRIBUTES = {
    "array of texts": np.array(["x"] * 100, dtype=object),
    "array of numbers": np.zeros(8000),
    "compound": np.zeros((), TYPES["compound"]),
    "opaque": np.void(b"12345678"),
    "nothing": h5py.Empty("f4"),
}


def test_an_attribute_that_is_not_one_text_or_number_is_refused(path: Path) -> None:
    sequence = np.empty(1, object)
    sequence[0] = np.zeros(9, "f4")
    for name in ("format", "detector"):
        for value in ATTRIBUTES.values():
            with h5py.File(path, "a") as file:
                before = file.attrs[name]
                file.attrs[name] = value
            refused(path, f"attribute '{name}'")
            with h5py.File(path, "a") as file:
                file.attrs[name] = before
    for value, kind in ((None, h5py.ref_dtype), (sequence, h5py.vlen_dtype(np.float32))):
        with h5py.File(path, "a") as file:
            file.attrs.create("zz", file["regions"].ref if value is None else value, dtype=kind)
        refused(path, "attribute 'zz'")


def test_thousands_of_attributes_are_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        for number in range(300):
            file.attrs[f"attribute {number}"] = number
    refused(path, "attributes, expected at most 256")


def test_a_long_key_is_refused(path: Path) -> None:
    keys = [f"{'x' * 5_000_000}{page}" for page in range(PAGES)]
    changed(path, "keys", lambda file: file.create_dataset("keys", data=keys))
    refused(path, "/keys", "bytes of text")


@pytest.mark.parametrize("length", [900_000, 900])
def test_keys_that_all_refer_to_one_text_are_refused(tmp_path: Path, length: int) -> None:
    """A file of 1 MB would give 2.7 GB of keys; with short texts their sum gives it away."""
    path, count = tmp_path / "f.h5", 3000
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["complete"] = "now-features/1", True
        keys = file.create_dataset("keys", (count,), h5py.string_dtype())
        keys[0] = "x" * length
        keys[1:] = "k"
        offset = keys.id.get_offset()
    content = bytearray(path.read_bytes())
    first = content[offset : offset + 16]
    assert struct.unpack_from("<I", first)[0] == length
    content[offset : offset + 16 * count] = first * count
    path.write_bytes(content)
    refused(path, "/keys", "bytes of text")


def test_more_keys_than_pages_can_be_are_refused(path: Path) -> None:
    many = np.zeros(2**24 + 1, "S1")
    changed(path, "keys", lambda file: file.create_dataset("keys", data=many))
    refused(path, "/keys: shape (16777217,)")


def test_plain_strings_of_one_length_are_taken_as_keys(path: Path) -> None:
    keys = np.array([f"{page:04d}" for page in range(PAGES)], "S4")
    changed(path, "keys", lambda file: file.create_dataset("keys", data=keys))
    with open_features(path) as features:
        assert features.keys == [key.decode() for key in keys]


def test_keys_that_are_not_text_are_refused(path: Path) -> None:
    for text in (b"\xff\xfe", b"a\x00b\xc3"):
        keys = np.array([b"%d" % page for page in range(PAGES - 1)] + [text])
        changed(path, "keys", lambda file, keys: file.create_dataset("keys", data=keys), keys)
        refused(path)


def test_a_file_hidden_behind_something_else_is_refused(path: Path, tmp_path: Path) -> None:
    hidden = tmp_path / "page.html"
    with h5py.File(path) as old, h5py.File(hidden, "w", userblock_size=512) as new:
        new.attrs.update(old.attrs)
        for name in old:
            old.copy(name, new)
    with hidden.open("r+b") as file:
        file.write(b"<script>alert(1)</script>")
    refused(hidden, "512 bytes of something else")


def test_cycles_and_depths_beside_the_datasets_are_not_walked(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["self"] = file["/"]
        group = file
        for _ in range(2000):
            group = group.create_group("down")
        group["up"] = file["/"]
        file["away"] = h5py.ExternalLink("/etc/passwd", "/")
        file["nowhere"] = h5py.SoftLink("/nowhere")
    with open_features(path) as features:
        assert len(features) == PAGES


def test_data_behind_a_filter_are_refused(path: Path) -> None:
    """HDF5 unpacks what there is, whatever a chunk's size should be, and reads on behind it."""
    for options in (
        {"compression": "gzip"},
        {"compression": "lzf"},
        {"shuffle": True},
        {"fletcher32": True},
    ):
        changed(
            path,
            "regions",
            lambda file, more: file.create_dataset("regions", SHAPE, "f4", **more),
            options,
        )
        refused(path, "/regions: packed")
    write_features(path, [batch()], {"detector": "tiny"}, pages=PAGES)
    changed(path, "keys", lambda file: file.create_dataset("keys", (PAGES,), "S4", shuffle=True))
    refused(path, "/keys: packed")


def test_a_short_chunk_is_refused(path: Path) -> None:
    """HDF5 reads a whole chunk from the memory of a shorter one: what lies behind it, or a kill."""

    def make(file: h5py.File) -> None:
        data = file.create_dataset("regions", SHAPE, "f4", chunks=(1, 36, 768))
        data[:] = 1
        data.id.write_direct_chunk((3, 0, 0), bytes(5))
        data.id.write_direct_chunk((4, 0, 0), bytes(2 * 36 * 768 * 4))

    changed(path, "regions", make)
    refused(path, "/regions: chunks of 5, 221184 bytes, expected 110592")


def test_floats_of_a_form_that_numpy_lacks_are_refused(path: Path) -> None:
    kind = h5py.h5t.IEEE_F16LE.copy()
    kind.set_ebias(9)

    def make(file: h5py.File) -> None:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_chunk((1, 36, 768))
        space = h5py.h5s.create_simple(SHAPE)
        data = h5py.Dataset(h5py.h5d.create(file.id, b"regions", kind, space, created))
        for page in range(PAGES):
            data.id.write_direct_chunk((page, 0, 0), bytes(36 * 768 * 2))

    changed(path, "regions", make)
    refused(path)


def test_a_size_that_was_forged_is_refused(tmp_path: Path) -> None:
    """Shape and storage both say 4 TB, in a file of 2 MB."""
    path, pages = tmp_path / "f.h5", 77
    write_features(path, [batch(pages)], {}, pages=pages)
    content, stored = path.read_bytes(), pages * 36 * 4 * 4
    claimed = 2**28
    shape = struct.pack("<QQQ", pages, 36, 4)
    assert content.count(shape) in {1, 2}
    content = content.replace(shape, struct.pack("<QQQ", claimed, 36, 4))
    assert content.count(struct.pack("<Q", stored)) == 1
    content = content.replace(struct.pack("<Q", stored), struct.pack("<Q", claimed * 36 * 16))
    path.write_bytes(content)
    refused(path)


def test_a_dataset_without_a_shape_or_within_its_header_is_refused(path: Path) -> None:
    def compact(file: h5py.File) -> None:
        created = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        created.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((PAGES,))
        h5py.h5d.create(file.id, b"regions", h5py.h5t.IEEE_F32LE, space, created)

    changed(path, "regions", compact)
    refused(path, "/regions: no shape, or a compact layout")
    for name, kind in (("regions", "f4"), ("keys", h5py.string_dtype())):
        empty = h5py.Empty(kind)
        changed(path, name, lambda file, *of: file.create_dataset(of[0], data=of[1]), name, empty)
        refused(path, f"/{name}: no shape")
        write_features(path, [batch()], {"detector": "tiny"}, pages=PAGES)
