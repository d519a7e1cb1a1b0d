"""Submissions: packing and reading back; hostile files are refused with a reason."""

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
from leaderboard.submission.untrusted import SubmissionError
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
    """A valid submission with some parts replaced."""
    meta = json.dumps(TREE | changes).encode() if meta is None else meta
    return _zip([(META, meta), (MATRIX, _npy(_similarity()) if matrix is None else matrix)])


def _read(path, content):
    path.write_bytes(content)
    with open_submission(path) as submission:
        return submission.meta, submission.read(GALLERY)


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


def test_a_submission_that_was_zipped_again_on_a_mac_is_read(tmp_path):
    """Members in Finder's order, with files that macOS and Windows add."""
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


def test_packing_refuses_what_reading_would_refuse(tmp_path):
    """NoW matrices are square; a zip without zip64 holds less than 2 GiB."""
    other = TREE | {"track": "flickr30k"}
    keys = {"image_ids": ["a", "b"], "caption_ids": [f"{n}" for n in range(10)]}
    vast = np.broadcast_to(np.float16(0), (2**14, 2**16))
    for tree, matrix, code in (
        (TREE, np.zeros((2, 3)), "matrix.shape"),
        (TREE, np.zeros((0, 0)), "matrix.shape"),
        (TREE | keys, np.zeros((2, 9)), "matrix.shape"),
        (TREE, np.array([[0.0, np.nan], [0, 0]]), "matrix.finite"),
        (TREE, np.array([[0.0, 0], [-np.inf, 0]]), "matrix.finite"),
        (other, vast, "zip.size"),
    ):
        assert the_problem(pack, tmp_path / "x.zip", matrix, parse(tree)).code == code
    assert list(tmp_path.iterdir()) == []
    for tree in (other, other | keys):
        pack(tmp_path / "x.zip", np.zeros((2, 10), np.float32), parse(tree))


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


_SHAPE = "{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }\n"
_OBJECT = _npy(np.array([[_Evil()] * SIZE] * SIZE, dtype=object), allow_pickle=True)
_STRUCTURED = _npy(np.zeros((SIZE, SIZE), dtype=[("a", "<f4"), ("b", object)]), allow_pickle=True)

HOSTILE = [
    # code, stable (docs/formats.md); message; the bytes of a hostile file
    ("zip.format", "plain zip", b""),
    ("zip.format", "plain zip", _npy(_similarity())),
    ("zip.format", "plain zip", b"\x89HDF\r\n\x1a\n" + bytes(600)),
    ("zip.format", "before it", b"#!/bin/sh\n" + _with()),
    ("zip.format", "plain zip", _with() + b"x"),
    ("zip.missing", "no submission.json", _zip([(MATRIX, _npy(_similarity()))])),
    ("zip.missing", "no similarity.npy", _zip([(META, json.dumps(TREE))])),
    ("zip.foreign", "evil.pkl", _zip([(META, "{}"), ("evil.pkl", b"x")])),
    (
        "zip.foreign",
        "zip",
        _zip([("submission.jsonXevil", "{}")]).replace(b".jsonXevil", b".json\x00evil"),
    ),
    ("zip.traversal", "expected only", _zip([("/etc/passwd", "x")])),
    ("zip.traversal", "expected only", _zip([("submission.json/", "")])),
    ("zip.bomb", "at most 200 times", _bomb()),
    ("zip.torn", "submission.json|zip", _with()[:40] + b"X" + _with()[41:]),
    ("array.dtype", "float16", _with(matrix=_OBJECT)),
    ("array.dtype", "dtype .*float16", _with(matrix=_STRUCTURED)),
    ("array.dtype", "V0", _with(matrix=_header(_SHAPE.replace("<f4", "|V0") % "6, 6"))),
    ("matrix.shape", "500000", _with(matrix=_header(_SHAPE % "500000, 500000"))),
    ("matrix.shape", r"\(36,\)", _with(matrix=_npy(np.zeros(36, "<f4")))),
    ("array.header", "999", _with(matrix=_header(_SHAPE % ("9" * 30 + ", 6")))),
    ("array.header", "plain float array", _with(matrix=_header(_SHAPE % "-6, -6"))),
    (
        "array.header",
        "header of 1073741824",
        _with(matrix=b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**30) + b"{"),
    ),
    ("array.header", "plain float array", _with(matrix=_header("(" * 4000))),
    (
        "array.header",
        "plain float array",
        _with(matrix=_header("{'descr': __import__('os').system('x'), 'shape': (6, 6)}")),
    ),
    ("array.size", "by its header", _with(matrix=_npy(_similarity()) + b"evil")),
    ("array.format", "version 1 to 3", _with(matrix=_header(_SHAPE % "6, 6", b"\x09\x00"))),
    ("matrix.finite", "36 values", _with(matrix=_npy(np.full((SIZE, SIZE), np.nan, "<f4")))),
    ("json.format", "expected an object", _with(b"[]")),
    ("json.format", "found NaN", _with(b'{"compute": {"hours": NaN}}')),
    ("json.format", "finite number", _with(b'{"compute": {"hours": 1e999}}')),
    ("json.format", "not plain JSON", _with(b'{"a":' + b"9" * 10**5 + b"}")),
    ("json.format", "not plain JSON", _with(b'{"track": "\\ud800"}')),
    ("json.depth", "nested", _with(b'{"a":' * 5000)),
    ("field.extra_forbidden", "rsum: found 600, expected no field of this name", _with(rsum=600)),
    ("field.missing", "dataset_fingerprint", _with(b'{"track": "bpe"}')),
    ("field.literal_error", "axes", _with(axes=["caption", "image"])),
    ("field.literal_error", "payload", _with(payload="ranked")),
    ("field.literal_error", "split", _with(split="train")),
    ("field.int_type", "ensemble_size", _with(training={"ensemble_size": "2"})),
    ("field.value_error", "U\\+202E", _with(method={"name": "a\u202eb"})),
    ("field.value_error", "U\\+001B", _with(method={"name": "\x1b[2J"})),
    ("field.value_error", "at least one visible character", _with(method={"name": " "})),
    ("field.value_error", "120", _with(method={"name": "x" * 200})),
    ("field.value_error", "https", _with(links={"code": "javascript:alert(1)"})),
    ("field.value_error", "https", _with(links={"code": "http://169.254.169.254/"})),
    ("field.value_error", "https", _with(links={"code": "https://github.com@evil.test/"})),
    ("field.value_error", "quotes", _with(links={"code": 'https://a.test/"onclick='})),
    ("keys.order", "another order; row 0", _with(image_ids=KEYS[::-1])),
    ("keys.foreign", "row 5 is 'x'", _with(caption_ids=[*KEYS[:-1], "x"])),
    ("keys.count", "found 5 keys, expected 6", _with(caption_ids=KEYS[:-1])),
]


def test_hostile_files_are_refused_with_a_reason(tmp_path):
    path = tmp_path / "x.zip"
    for code, message, content in HOSTILE:
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
    for path, text in ((tmp_path / "none.zip", "file not found"), (tmp_path, "a folder, expected")):
        with pytest.raises(FormatError, match=text), open_submission(path):
            pass


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=15)
@given(st.dictionaries(st.sampled_from(list(Submission.model_fields)), _JSON, max_size=5))
def test_any_description_is_read_or_refused(tmp_path_factory, changes):
    """Other exceptions and invalid results are failures."""
    message, similarity = "", np.zeros(1)
    try:
        _, similarity = _read(tmp_path_factory.getbasetemp() / "fuzz.zip", _with(**changes))
    except SubmissionError as error:
        message = str(error)
    assert message.isprintable()
    assert np.isfinite(similarity).all()


_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
import numpy as np
from leaderboard.submission.gallery import Gallery
from leaderboard.submission.archive import open_submission
from leaderboard.submission.untrusted import SubmissionError
rows = np.arange(6)
gallery = Gallery(["x"] * 6, ["x"] * 6, rows, rows, rows, "a" * 64, "rebuilt")
resource.setrlimit(resource.RLIMIT_AS, (900 * 2**20, 900 * 2**20))
def refused(path):
    try:
        with open_submission(path) as submission:
            submission.read(gallery)
    except SubmissionError as error:
        return bool(error.problems)
    return False
print(sum(refused(Path(name)) for name in sys.argv[2:]))
path = Path(sys.argv[1])
sound, generator, count = path.read_bytes(), np.random.default_rng(0), 0
for turn in range(200):
    content = bytearray(sound)
    for _ in range(generator.integers(1, 5)):
        place = generator.integers(len(content))
        cut, put = generator.integers(0, 5, 2)
        content[place : place + cut] = generator.bytes(put)
    path.write_bytes(bytes(content))
    count += refused(path)
print(count)
"""


def test_bombs_and_damaged_zips_are_refused_in_little_memory(tmp_path):
    """Each bomb claims gigabytes; the address space is 900 MB. 200 valid files are damaged."""
    meta = b'{"a":"' + b"x" * 2**25 + b'"}'
    files = {
        "sound.zip": _with(),
        "shape.zip": _with(matrix=_header(_SHAPE % "28000, 28000")),
        "zip.zip": _bomb(),
        "meta.zip": _zip([(META, meta), (MATRIX, b"")], zipfile.ZIP_DEFLATED),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-c", _IN_LITTLE_MEMORY, *(tmp_path / name for name in files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    bombs, damaged = map(int, done.stdout.split())
    assert (bombs, damaged > 120) == (3, True)


def test_invisible_and_deceptive_names_are_refused():
    """Ignorable characters are refused; prose may have joiners and variation selectors."""
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


def test_all_problems_are_reported_together(tmp_path, release):
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
    matrix[2, 3] = np.nan
    members = [(META, wrong.model_dump_json(exclude_none=True)), (MATRIX, _npy(matrix))]
    (tmp_path / "x.zip").write_bytes(_zip(members))
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


def test_external_data_was_used_if_stated_or_described():
    for words, stated, has, external in (
        (None, None, False, None), ("Pictures", None, True, "yes: Pictures"),
        (None, True, True, "yes"), (None, False, False, "no"),
        ("None but the pool", False, False, "no: None but the pool"),
    ):  # fmt: skip
        training = Training(external_data=words, uses_external_data=stated)
        assert (training.has_external_data, training.external) == (has, external)
        assert ("uses_external_data" in training.model_dump()) == (stated is not None)
