"""Submissions: what is packed is read back; what strangers send is refused with a reason."""

import io
import json
import platform
import struct
import subprocess
import sys
import zipfile
from importlib import metadata
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import now_builder
from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import (
    MATRIX,
    META,
    Method,
    Submission,
    Training,
    new_submission,
    open_submission,
    pack,
    parse,
    with_details,
)
from leaderboard.submission.gallery import Gallery
from now_builder.errors import FormatError
from tests.leaderboard.conftest import make_similarity, the_problem

SIZE = 6
KEYS = [f"00000_{row:04d}" for row in range(SIZE)]
ROWS = np.arange(SIZE)
GALLERY = Gallery(KEYS, KEYS, ROWS, ROWS, ROWS, "a" * 64, "rebuilt")
TREE = {
    "schema_version": "now-submission/1",
    "track": "jieba",
    "split": "test",
    "dataset_fingerprint": "a" * 64,
    "method": {"name": "Mine"},
}


def _similarity(kind="<f4"):
    return np.random.default_rng(0).standard_normal((SIZE, SIZE)).astype(kind)


def _npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def _header(text, version=b"\x01\x00"):
    size = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + size + text.encode("latin-1")


def _zip(members, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def _with(meta=None, matrix=None, **changes):
    """A good submission but for what is given."""
    meta = json.dumps(TREE | changes).encode() if meta is None else meta
    return _zip([(META, meta), (MATRIX, _npy(_similarity()) if matrix is None else matrix)])


def _read(path, content):
    path.write_bytes(content)
    with open_submission(path) as submission:
        return submission.meta, submission.read(GALLERY).arrays


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_plain_float_array_is_read(tmp_path):
    kinds, versions = ("<f2", "<f4", "<f8", ">f2", ">f4", ">f8"), ((1, 0), (2, 0), (3, 0))
    for kind, order, version in product(kinds, "CF", versions):
        array = np.asarray(_similarity(kind), order=order)
        _, found = _read(tmp_path / "x.zip", _with(matrix=_npy(array, version=version)))
        assert np.array_equal(found, array)
        assert found.dtype.isnative


def test_packing_is_read_back_and_the_same_twice(tmp_path):
    meta = parse(TREE | {"image_ids": KEYS, "caption_ids": KEYS})
    pack(tmp_path / "a.zip", _similarity(), meta)
    pack(tmp_path / "b.zip", np.asfortranarray(_similarity(">f4")), meta)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    found, similarity = _read(tmp_path / "c.zip", (tmp_path / "a.zip").read_bytes())
    assert found == meta
    assert np.array_equal(similarity, _similarity())
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        for member in archive.infolist():  # a file that anybody may read, at no time of packing
            assert (member.date_time, member.create_system) == ((1980, 1, 1, 0, 0, 0), 3)
            assert member.external_attr >> 16 == 0o100644
        text = archive.read(META).decode()
        assert '\n  "track": "jieba",\n' in text
        assert "null" not in text
        assert archive.read(MATRIX)[6:8] == b"\x01\x00"


def test_only_a_matrix_of_another_field_or_with_keys_may_be_oblong(tmp_path):
    oblong = np.zeros((2, 10), np.float32)
    pack(tmp_path / "a.zip", oblong, parse(TREE | {"track": "flickr30k"}))
    keys = {"image_ids": ["a", "b"], "caption_ids": [f"{n}" for n in range(10)]}
    pack(tmp_path / "b.zip", oblong, parse(TREE | {"track": "flickr30k"} | keys))
    for more in (keys, {"image_ids": keys["image_ids"]}):
        assert (
            the_problem(pack, tmp_path / "c.zip", oblong[:, :9], parse(TREE | more)).code
            == "matrix.shape"
        )


def test_what_a_zip_without_extensions_cannot_hold_is_not_packed(tmp_path):
    vast = np.broadcast_to(np.float16(0), (2**14, 2**16))
    problem = the_problem(pack, tmp_path / "a.zip", vast, parse(TREE | {"track": "flickr30k"}))
    assert (problem.code, problem.found) == ("zip.size", f"{vast.nbytes} bytes")
    assert "similarity.npy" in problem.field
    assert "2 GiB" in problem.expected


def test_a_deflated_zip_from_another_tool_is_read(tmp_path):
    content = _zip([(MATRIX, _npy(_similarity())), (META, json.dumps(TREE))], zipfile.ZIP_DEFLATED)
    assert np.array_equal(_read(tmp_path / "x.zip", content)[1], _similarity())


def test_a_submission_that_was_zipped_again_on_a_mac_is_read(tmp_path):
    """Finder's order and names; Windows leaves its own where it showed the folder before."""
    twins = [(f"__MACOSX/我的/._{name}", b"\0\5\x16\7" * 50) for name in (META, MATRIX)]
    members = [
        ("我的/", b""),
        (f"我的/{META}", json.dumps(TREE)),
        twins[0],
        ("我的/.DS_Store", bytes(6148)),
        (f"我的/{MATRIX}", _npy(_similarity())),
        twins[1],
        ("我的/Thumbs.db", b"\xd0\xcf\x11\xe0"),
    ]
    meta, found = _read(tmp_path / "x.zip", _zip(members, zipfile.ZIP_DEFLATED))
    assert np.array_equal(found, _similarity())
    assert meta.method.name == "Mine"


@pytest.mark.parametrize(
    ("similarity", "message"),
    [
        (np.zeros((2, 3)), r"expected \(2, 2\)"),
        (np.zeros((0, 0)), "expected"),
        (np.array([[0.0, np.nan], [0, 0]]), "image 0, caption 1"),
        (np.array([[0.0, 0], [-np.inf, 0]]), "image 1, caption 0"),
    ],
)
def test_packing_refuses_what_reading_would_refuse(tmp_path, similarity, message):
    with pytest.raises(SubmissionError, match=message):
        pack(tmp_path / "x.zip", similarity, parse(TREE))
    assert list(tmp_path.iterdir()) == []


def test_a_description_is_filled_in_from_the_release(release):
    meta = new_submission(release, "bpe", "dev", "Mine", Training(seeds=(1, 2), ensemble_size=2))
    assert (meta.track, meta.split, meta.training.seeds) == ("bpe", "dev", (1, 2))
    here = meta.environment
    assert here.toolkit == now_builder.__version__
    assert (here.numpy, here.torch) == (np.__version__, metadata.version("torch"))
    assert here.python == platform.python_version()
    named = Method(name="Mine", version="2", abstract="What it does.")
    assert new_submission(release, "bpe", "dev", named).method == named
    with pytest.raises(SubmissionError, match=r"submission\.training"):
        with_details(meta, {"training": "none"})
    more = with_details(meta, {"training": {"seeds": [3]}, "authors": ["Ann"]})
    assert (more.training.ensemble_size, more.training.seeds) == (2, (3,))


class _Evil:
    def __reduce__(self):
        return (Path.touch, (Path("/tmp/now-leaderboard-was-fooled"),))  # noqa: S108


def _bomb():
    """A megabyte that inflates a thousand times."""
    return _zip([(META, json.dumps(TREE)), (MATRIX, bytes(2**24))], zipfile.ZIP_DEFLATED)


def _twice():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(META, json.dumps(TREE))
        archive.writestr(MATRIX, _npy(_similarity()))
        archive.writestr("similarity.npz", _npy(_similarity()))
    return buffer.getvalue().replace(b"similarity.npz", b"similarity.npy")


def _shorter():
    """A zip that says its matrix is smaller than it is."""
    content = _with()
    size = len(_npy(_similarity()))
    central = content.rindex(b"PK\x01\x02")
    changed = bytearray(content)
    struct.pack_into("<I", changed, central + 24, size - 4)
    return bytes(changed)


_SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }\n"
_OBJECT = _npy(np.array([[_Evil()] * SIZE] * SIZE, dtype=object), allow_pickle=True)
_STRUCTURED = _npy(np.zeros((SIZE, SIZE), dtype=[("a", "<f4"), ("b", object)]), allow_pickle=True)

HOSTILE = {
    "zip.format": {
        "nothing": (b"", "plain zip"),
        "a bare npy": (_npy(_similarity()), "plain zip"),
        "an hdf5 file": (b"\x89HDF\r\n\x1a\n" + bytes(600), "plain zip"),
        "bytes before the zip": (b"#!/bin/sh\n" + _with(), "before it"),
        "bytes after the zip": (_with() + b"x", "plain zip"),
    },
    "zip.missing": {
        "no description": (_zip([(MATRIX, _npy(_similarity()))]), "no submission.json"),
        "no matrix": (_zip([(META, json.dumps(TREE))]), "no similarity.npy"),
    },
    "zip.twice": {
        "a member twice": (_twice(), "twice"),
    },
    "zip.foreign": {
        "a foreign member": (_zip([(META, "{}"), ("evil.pkl", b"x")]), "evil.pkl"),
        "a name cut by NUL": (
            _zip([("submission.jsonXevil", "{}")]).replace(b".jsonXevil", b".json\x00evil"),
            "zip",
        ),
    },
    "zip.traversal": {
        "an absolute name": (_zip([("/etc/passwd", "x")]), "expected only"),
        "a folder": (_zip([("submission.json/", "")]), "expected only"),
    },
    "zip.bomb": {
        "a bomb": (_bomb(), "at most 200 times"),
    },
    "zip.torn": {
        "a size that lies": (_shorter(), "similarity.npy|zip"),
        "a wrong checksum": (_with()[:40] + b"X" + _with()[41:], "submission.json|zip"),
    },
    "array.dtype": {
        "an object array": (_with(matrix=_OBJECT), "float16"),
        "a structured array": (_with(matrix=_STRUCTURED), "dtype .*float16"),
        "a void array": (_with(matrix=_header(_SHAPE.replace("<f4", "|V0") % "6, 6")), "V0"),
        "whole numbers": (_with(matrix=_npy(np.eye(SIZE, dtype=int))), "float16"),
    },
    "matrix.shape": {
        "a vast shape": (_with(matrix=_header(_SHAPE % "500000, 500000")), "500000"),
        "a flat shape": (_with(matrix=_npy(np.zeros(36, "<f4"))), r"\(36,\)"),
    },
    "array.header": {
        "a vaster shape": (_with(matrix=_header(_SHAPE % ("9" * 30 + ", 6"))), "999"),
        "a negative shape": (_with(matrix=_header(_SHAPE % "-6, -6")), "plain float array"),
        "a header of a gigabyte": (
            _with(matrix=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30) + b"{"),
            "header of 1073741824",
        ),
        "a header of brackets": (_with(matrix=_header("(" * 4000)), "plain float array"),
        "a header with code": (
            _with(matrix=_header("{'descr': __import__('os').system('x'), 'shape': (6, 6)}")),
            "plain float array",
        ),
    },
    "array.size": {
        "too many values": (_with(matrix=_npy(_similarity()) + b"evil"), "by its header"),
    },
    "array.format": {
        "a strange version": (
            _with(matrix=_header(_SHAPE % "6, 6", b"\x09\x00")),
            "version 1 to 3",
        ),
    },
    "matrix.finite": {
        "a nan": (_with(matrix=_npy(np.full((SIZE, SIZE), np.nan, "<f4"))), "36 values"),
    },
    "json.format": {
        "json: not an object": (_with(b"[]"), "expected an object"),
        "json: a repeated key": (_with(b'{"track": "bpe", "track": "bert"}'), "'track' repeated"),
        "json: nan": (_with(b'{"compute": {"hours": NaN}}'), "found NaN"),
        "json: infinity": (_with(b'{"compute": {"hours": 1e999}}'), "finite number"),
        "json: a giant number": (_with(b'{"a":' + b"9" * 10**5 + b"}"), "not plain JSON"),
        "json: a lone surrogate": (_with(b'{"track": "\\ud800"}'), "not plain JSON"),
    },
    "json.depth": {
        "json: depth": (_with(b'{"a":' * 5000), "nested"),
    },
    "field.extra_forbidden": {
        "json: an unknown field": (_with(rsum=600), "rsum"),
    },
    "field.missing": {
        "json: a missing field": (_with(b'{"track": "bpe"}'), "dataset_fingerprint"),
    },
    "field.literal_error": {
        "json: swapped axes": (_with(axes=["caption", "image"]), "axes"),
        "json: ranked lists": (_with(payload="ranked"), "payload"),
        "json: a train split": (_with(split="train"), "split"),
    },
    "field.int_type": {
        "json: a number as text": (_with(training={"ensemble_size": "2"}), "ensemble_size"),
    },
    "field.value_error": {
        "json: a hidden direction": (_with(method={"name": "a\u202eb"}), "U\\+202E"),
        "json: an escape sequence": (_with(method={"name": "\x1b[2J"}), "U\\+001B"),
        "json: an empty name": (_with(method={"name": "  "}), "at least one visible character"),
        "json: a long name": (_with(method={"name": "x" * 200}), "120"),
        "json: a script link": (_with(links={"code": "javascript:alert(1)"}), "https"),
        "json: a plain link": (_with(links={"code": "http://169.254.169.254/"}), "https"),
        "json: a user in a link": (_with(links={"code": "https://github.com@evil.test/"}), "https"),
        "json: a quote in a link": (_with(links={"code": 'https://a.test/"onclick='}), "quotes"),
    },
    "keys.order": {
        "ids: another order": (_with(image_ids=KEYS[::-1]), "another order; row 0"),
    },
    "keys.foreign": {
        "ids: other keys": (_with(caption_ids=[*KEYS[:-1], "x"]), "row 5 is 'x'"),
    },
    "keys.count": {
        "ids: too few": (_with(caption_ids=KEYS[:-1]), "found 5 keys, expected 6"),
    },
}
"""By code, which is stable (docs/formats.md): the bytes of hostile files, and the message."""


def test_hostile_files_are_refused_with_a_reason(tmp_path):
    path = tmp_path / "x.zip"
    for code, (content, message) in (
        (code, pair) for code, kinds in HOSTILE.items() for pair in kinds.values()
    ):
        with pytest.raises(SubmissionError, match=message) as caught:
            _read(path, content)
        problems, text = caught.value.problems, str(caught.value)
        assert {problem.code for problem in problems} == {code}
        for problem in problems:
            assert problem.found
            assert problem.expected
            assert problem.field.split(".")[0] in {"file", "zip", "submission", "similarity"}
        assert text.isprintable()
        assert str(path) in text
        assert len(text) < 2000
    assert not Path("/tmp/now-leaderboard-was-fooled").exists()  # noqa: S108


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    for path, said in ((tmp_path / "none.zip", "no such file"), (tmp_path, "a folder, expected")):
        with pytest.raises(FormatError, match=said), open_submission(path):
            pass


def _tries(path, content):
    """Read; anything but a refusal or a sound result is a failure."""
    refusal = ""
    try:
        _, similarity = _read(path, content)
    except SubmissionError as error:
        refusal = str(error)
        similarity = np.zeros((SIZE, SIZE))
    assert refusal.isprintable()
    assert np.isfinite(similarity).all()


@settings(max_examples=40)
@given(st.binary(max_size=200), st.integers(0, 128))
def test_no_matrix_bytes_do_more_than_be_refused(tmp_path_factory, tail, kept):
    matrix = _npy(_similarity())[:kept] + tail
    _tries(tmp_path_factory.getbasetemp() / "fuzz.zip", _with(matrix=matrix))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(list(Submission.model_fields)), _JSON, max_size=5))
def test_no_description_does_more_than_be_refused(tmp_path_factory, changes):
    _tries(tmp_path_factory.getbasetemp() / "fuzz.zip", _with(**changes))


_BEGIN = """
import resource, sys
from pathlib import Path
import numpy as np
from leaderboard.submission.gallery import Gallery
from leaderboard.submission.archive import open_submission
from leaderboard.core.errors import SubmissionError
rows = np.arange(6)
gallery = Gallery(["x"] * 6, ["x"] * 6, rows, rows, rows, "a" * 64, "rebuilt")
resource.setrlimit(resource.RLIMIT_AS, (900 * 2**20, 900 * 2**20))
"""

_LIMITED = """
for name in sys.argv[1:]:
    try:
        with open_submission(Path(name)) as submission:
            submission.read(gallery)
    except SubmissionError as error:
        print(error)
    else:
        sys.exit("was read")
"""


def _run(script, *arguments):
    """Run a script in 900 MB of address space; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", _BEGIN + script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_bombs_are_refused_in_little_memory(tmp_path):
    """Each would need gigabytes if it were believed; the address space is capped at 900 MB."""
    bombs = {
        "shape.zip": _with(matrix=_header(_SHAPE % "28000, 28000")),
        "zip.zip": _bomb(),
        "meta.zip": _zip(
            [(META, b'{"a":"' + b"x" * 2**25 + b'"}'), (MATRIX, b"")], zipfile.ZIP_DEFLATED
        ),
    }
    for name, content in bombs.items():
        (tmp_path / name).write_bytes(content)
    told = _run(_LIMITED, *(tmp_path / name for name in bombs))
    assert len(told.splitlines()) == len(bombs)


_FUZZ = """
sound = Path(sys.argv[1]).read_bytes()
generator, path = np.random.default_rng(0), Path(sys.argv[1] + ".fuzz")
refused = 0
for turn in range(1000):
    content = bytearray(sound)
    for _ in range(generator.integers(1, 5)):
        place = generator.integers(len(content))
        cut, put = generator.integers(0, 5, 2)
        content[place : place + cut] = generator.bytes(put)
    path.write_bytes(bytes(content))
    try:
        with open_submission(path) as submission:
            submission.read(gallery)
    except SubmissionError as error:
        refused += 1
        assert error.problems
print(refused)
"""


def test_no_bytes_do_more_than_be_refused_in_little_memory(tmp_path):
    """1,000 times a sound submission, damaged in places, in 900 MB of address space."""
    (tmp_path / "x.zip").write_bytes(_with())
    assert int(_run(_FUZZ, tmp_path / "x.zip")) > 600


def test_names_that_cannot_be_seen_or_that_hide_something_are_refused():
    """All that Unicode lets programs ignore; free text may join letters and choose glyphs."""
    joined = "\u180b\u200c\u200d\ufe0f\U000e0100"
    hidden = "\u00ad\u034f\u115f\u200b\u2060\ufeff\U000e0041"
    turned = "\u061c\u200e\u202a\u202e\u2066\u2069\ue000\u0378\x00\x1b"
    for character in joined + hidden + turned:
        with pytest.raises(ValidationError, match="control or invisible"):
            Method(name=f"A{character}B")
    for character in joined:
        assert Method(name="A", abstract=f"A{character}B").abstract == f"A{character}B"
    for character in hidden + turned:
        with pytest.raises(ValidationError, match="control or invisible"):
            Training(external_data=f"A{character}B")
    unseen = ("\u0301\u0302", "\u2800 \u2800", "e\u0301\u0302\u0303\u0304\u0305", "e\u0301" * 121)
    for name in unseen:
        with pytest.raises(ValidationError):
            Method(name=name)
    for name in ("PC²", "عربي", "नमस्ते", "Việt", "模型", "👧"):
        assert Method(name=name).name == name


def test_messages_about_fields_are_the_projects_own():
    with pytest.raises(SubmissionError) as caught:
        parse({"schema_version": "now-submission/1", "colour": "red", "method": {"name": ""}})
    text = str(caught.value)
    assert "submission.colour: found 'red', expected no field of this name" in text
    assert "submission.method.name: found '', expected at least one visible character" in text
    assert "Extra inputs" not in text
    assert "Field required" not in text


def test_seeds_are_bounded():
    with pytest.raises(ValidationError):
        Training(seeds=(10**400,))


def test_all_that_is_wrong_is_said_at_once(tmp_path, release):
    """Fingerprint, keys of both sides, and a value of the matrix."""
    meta = new_submission(release, "jieba", "test", "Mine")
    wrong = meta.model_copy(
        update={
            "dataset_fingerprint": "0" * 64,
            "image_ids": meta.image_ids[::-1],
            "caption_ids": (*meta.caption_ids[:-1], "x"),
        }
    )
    matrix = make_similarity()
    pack(tmp_path / "x.zip", matrix, wrong)
    spoilt = np.array([matrix[2, 2], np.nan], np.float32).tobytes()
    content = (tmp_path / "x.zip").read_bytes().replace(matrix[2, 2:4].tobytes(), spoilt, 1)
    (tmp_path / "x.zip").write_bytes(_resealed(content))
    with pytest.raises(SubmissionError) as caught:
        score(tmp_path / "x.zip", release)
    assert [problem.code for problem in caught.value.problems] == [
        "fingerprint.mismatch",
        "keys.order",
        "keys.foreign",
        "matrix.finite",
    ]
    assert all(
        problem.field and problem.found and problem.expected for problem in caught.value.problems
    )


def _resealed(content):
    """Zip the members again, with the checksums that they now have."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            start = info.header_offset + 30 + len(info.filename)
            new.writestr(info.filename, content[start : start + info.file_size])
    return buffer.getvalue()
