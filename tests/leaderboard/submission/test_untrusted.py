"""Readers of untrusted zip, .npy and JSON files: the limits of each rule."""

import io
import pickle
import stat
import struct
import zipfile

import numpy as np
import pytest

from leaderboard.submission.archive import Links
from leaderboard.submission.untrusted import (
    MAX_DEPTH,
    MAX_HEADER,
    MAX_MEMBERS,
    Archive,
    SubmissionError,
    read_array_header,
    read_json,
    read_matrix,
    shown,
)
from tests.leaderboard.conftest import the_problem

ALLOWED = ("a", "b")


class _File(io.BytesIO):
    name, mode = "x.zip", "rb"  # what typing.BinaryIO has too: make test-types asks for it


def _opened_as_file(content, allowed=ALLOWED):
    return Archive(_File(content), allowed)


def _zip(names):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in names:
            archive.writestr(name, name)
    return bytearray(buffer.getvalue())


def _archive(name="a", content=b"x", **fields):
    """A zip of one member with changed fields in the directory entry."""
    info = zipfile.ZipInfo(name)
    for field in ("extra", "compress_type"):
        if field in fields:
            setattr(info, field, fields.pop(field))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, content)
    changed = bytearray(buffer.getvalue())
    central = changed.rindex(b"PK\x01\x02")
    for place, value in fields.pop("at", {}).items():
        struct.pack_into("<I" if place >= 20 else "<H", changed, central + place, value)
    return _opened_as_file(bytes(changed))


def _code(*arguments, **fields):
    problem = the_problem(_archive, *arguments, **fields)
    assert problem.field == "zip"
    return problem.code


def test_at_most_32_members_are_allowed_for_any_count_in_the_end_record():
    names = [f"{n}" for n in range(MAX_MEMBERS + 1)]
    assert len(_opened_as_file(_zip(names[:-1]), names).sizes) == MAX_MEMBERS
    many = _zip(names)
    for count in (len(names), 2):
        struct.pack_into("<HH", many, len(many) - 14, count, count)
        problem = the_problem(_opened_as_file, many, names)
        assert (problem.code, problem.field) == ("zip.members", "zip")
        assert (problem.found, problem.expected) == ("33 members", "32 at most")


def test_split_commented_and_zip64_files_are_refused():
    parts = [(18, (1, 0)), (18, (0, 1)), (14, (1, 2)), (14, (2, 1)), (2, (1,))]
    hostile = []
    for place, fields in parts:
        content = _zip(ALLOWED)
        assert len(_opened_as_file(content).sizes) == 2
        struct.pack_into(f"<{len(fields)}H", content, len(content) - place, *fields)
        hostile.append(content)
    hostile.append(_zip(ALLOWED))
    hostile[-1][-22:-22] = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    for content in hostile:
        problem = the_problem(_opened_as_file, content)
        assert (problem.code, problem.field) == ("zip.format", "zip")
        assert (problem.found, problem.expected) == ("parts, a comment or zip64", "a plain zip")
    for content in (b"", b"PK\x05\x06", b"PK\x05\x06" + bytes(17)):
        assert the_problem(_opened_as_file, content).code == "zip.format"
    assert _opened_as_file(_zip([])).sizes == {}


FLAGS, PACKED, SIZE, MODE = 8, 20, 24, 38
"""Places in an entry of a zip's directory."""


def test_encrypted_members_and_traversal_paths_are_refused():
    for flag in (0x1, 0x40, 0x2000, 0x41):
        assert _code(at={FLAGS: flag}) == "zip.encrypted"
    names = (
        "/a a/ ./a ../a ..\\a \\a x\\..\\a x\\../a C:/a c:\\a __MACOSX/../a /.DS_Store //a x//a x/c"
    )
    for name in names.split():
        assert _code(name) == "zip.traversal", name
    assert _code("c") == "zip.foreign"


def test_a_folder_around_all_members_is_ignored():
    for folder in ("x", "my run", "结果", "ソ", "..x", "a.b", "__macosx (1)", "x/y/z", "x\\y"):
        between = "\\" if "\\" in folder else "/"
        outer = f"{folder.split(between)[0]}{between}"
        added = ["", "Thumbs.db", f"__MACOSX{between}._a", "._b"]
        names = [f"{folder}{between}{name}" for name in [*ALLOWED, *added]]
        archive = _opened_as_file(_zip(dict.fromkeys([*names, outer])))
        assert archive.sizes.keys() == set(ALLOWED)
        assert archive.read("a", 99) == names[0].encode()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_second_folder_and_repeated_files_are_refused():
    others = "x/a y/b|x/a b|a x/|x/a x/y/|x/a X/b|x/a x/a.sh|x/y/a x/b|x/y/a y/|x/y/a x/z/|x/a a"
    for names in others.split("|"):
        with pytest.raises(SubmissionError) as caught:
            _opened_as_file(_zip(names.split()))
        assert {problem.code for problem in caught.value.problems} == {"zip.traversal"}, names
        assert "now-leaderboard pack" in caught.value.problems[0].mend
    assert the_problem(_opened_as_file, _zip(["x/a", "x\\a"])).code == "zip.twice"


def test_files_added_by_file_managers_obey_the_same_rules():
    for name in ("__MACOSX/._a", ".DS_Store", "Thumbs.db", "x/"):
        assert _code(name, at={FLAGS: 1}) == "zip.encrypted"
        assert _code(name, at={MODE: stat.S_IFLNK << 16}) == "zip.link"
        assert _code(name, at={PACKED: 1, SIZE: 12_801}) == "zip.bomb"
        assert _code(name, compress_type=zipfile.ZIP_BZIP2) == "zip.compression"
        assert _code(name, extra=_named("b")) == "zip.foreign"


def _named(name):
    """An extra field with a member's name in UTF-8, as WinRAR writes."""
    return struct.pack("<HHBI", 0x7075, 5 + len(name.encode()), 1, 0) + name.encode()


def test_an_extra_field_may_only_rename_the_folder():
    assert _archive("x/a", extra=_named("结果/a")).sizes == {"a": 1}
    for other in ("结果/b", "a", "../a", "y/z/a", "/a", "C:\\a"):
        assert _code("x/a", extra=_named(other)) == "zip.foreign"
    hidden = struct.pack("<HH3sHH", 0x5455, 3, b"abc", 0x7075, 0)
    for extra in (struct.pack("<HH", 0x7075, 0), hidden):
        assert _code(extra=extra) == "zip.foreign"
    inside = struct.pack("<HH4s", 0x5455, 4, struct.pack("<HH", 0x7075, 0))
    for extra in (b"", inside, struct.pack("<HH", 0xFFFF, 0)):
        assert _archive(extra=extra).sizes == {"a": 1}


def test_a_member_inflates_two_hundred_times_at_most_and_small_ones_to_13_kb():
    for packed, most in ((1, 12_800), (64, 12_800), (65, 13_000)):
        at = {PACKED: packed, SIZE: most}
        assert _archive(content=bytes(packed), at=at).sizes == {"a": most}
        at[SIZE] += 1
        assert _code(content=bytes(packed), at=at) == "zip.bomb"


def test_members_of_another_size_are_torn_and_limits_hold():
    for wrong in (-1, 1):
        archive = _archive(content=b"four" * 9, at={SIZE: 36 + wrong})
        problem = the_problem(archive.read, "a", 99)
        assert (problem.code, problem.field) == ("zip.torn", "a")
    archive = _archive(content=b"12345")
    assert archive.read("a", 5) == b"12345"
    for name, limit, code in (("a", 4, "zip.size"), ("b", 9, "zip.missing")):
        assert the_problem(archive.read, name, limit).code == code


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


class _Slow(io.BytesIO):
    """A stream whose reads return fewer bytes than requested."""

    def read(self, size=-1):
        return super().read(min(size, 1000) if size >= 0 else 1000)


def test_an_oblong_matrix_of_any_order_is_read_piece_by_piece():
    draw = np.random.default_rng(0).standard_normal((300, 200))
    for order in "CF":
        content = _npy(np.asarray(draw, order=order))
        found = read_matrix(_Slow(content), "m", len(content), (300, 200))
        assert np.array_equal(found, draw)


def test_a_stream_of_another_size_is_refused():
    content = _npy(np.zeros((17, 17)) + 1)
    size = len(content)
    assert size == 128 + 17 * 17 * 8
    for stream, found in ((content[:-48], "2392 bytes"), (content + b"x", "more bytes")):
        problem = the_problem(read_matrix, io.BytesIO(stream), "m", size, (17, 17))
        assert (problem.code, problem.field, problem.found) == ("array.size", "m", found)
        assert problem.expected.startswith("2440")


def _header_of(shape, length=None):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    text = text.ljust(length or 0)
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text


def test_a_header_is_plain_and_short():
    header = read_array_header(io.BytesIO(_header_of("2, 3", MAX_HEADER)), "m")
    assert (header.shape, header.length) == ((2, 3), 12 + MAX_HEADER)
    # numpy 2 and Python 2 wrote their own numbers so
    plain = ("np.int64(2), np.uint8(3)", "numpy.intp(2), 3", "2, np.longlong(3)", "2L, 3L")
    for shape in plain:
        assert read_array_header(io.BytesIO(_header_of(shape)), "m").shape == (2, 3)
    spoilt = ["np.system(2), 3", "np.int64(-2), 3", "np.int64('2'), 3", "np.int64(np.int64(2)), 3"]
    contents = [_header_of("2, 3", MAX_HEADER + 1), *map(_header_of, spoilt)]
    for content in [*contents, b"\x93NUMPY\x01\x00\x04\x00what"]:
        assert the_problem(read_array_header, io.BytesIO(content), "m").code == "array.header"


def _saved(write):
    buffer = io.BytesIO()
    write(buffer)
    return buffer.getvalue()


def test_other_formats_than_npy_are_named():
    others = (
        (_saved(lambda file: np.savez(file, np.eye(3))), "a zip, as np.savez", "['arr_0']"),
        (pickle.dumps(np.eye(3)), "a pickle", "np.save(path, similarity)"),
        (pickle.dumps(np.eye(3), protocol=0), "a pickle", "np.save(path, similarity)"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "h5py"),
        (b"\x93HUMPTY\x01", shown(b"\x93HUMPTY\x01"), "np.save"),
    )
    for content, found, mend in others:
        problem = the_problem(read_array_header, io.BytesIO(content), "m")
        assert problem.code == "array.format"
        assert problem.found.startswith(found)
        assert mend in problem.mend


def test_a_wrong_shape_is_refused_with_a_fix():
    for shape, mend in (((3, 2), "rows are images: similarity.T"), ((2, 2), "rows and columns of")):
        content = _npy(np.zeros(shape))
        problem = the_problem(read_matrix, io.BytesIO(content), "m", len(content), (2, 3))
        assert (problem.code, problem.field) == ("matrix.shape", "m")
        assert (problem.found, problem.expected) == (f"shape {shape}", "(2, 3), images x captions")
        assert problem.mend.startswith(mend)


def test_json_nests_up_to_the_limit():
    ends = {b"{": b"}", b"[": b"]"}
    for opened in (b'{"a":', b"[", b'[{"a":'):
        brackets = [bytes([byte]) for byte in opened if bytes([byte]) in ends]
        times = MAX_DEPTH // len(brackets)
        content = opened * times + b'"]}{["' + b"".join(ends[b] for b in brackets[::-1]) * times
        read_json(content, "j")
        siblings = b"[" + b",".join([content[1:-1] if opened == b"[" else b"[]"] * 50) + b"]"
        read_json(siblings, "j")
        deeper = b"[" + b"[[[]]],{}," * 50 + content + b"]"
        assert the_problem(read_json, deeper, "j").code == "json.depth"


def test_repeated_keys_are_named_in_linear_time():
    """A quadratic reader would take hours for the second, minutes for the third."""
    for content in (
        b'{"z": 1, "b": 2, "y": 3, "b": 4}',
        b'"' + b'\\"' * 2**20,
        b"{" + b",".join(b'"%d":0' % row for row in range(2**17)) + b',"b":0,"b":0}',
    ):
        problem = the_problem(read_json, content, "j")
        assert problem.code == "json.format"
        assert b"b" not in content or "key 'b' repeated" in problem.found


def test_links_contain_no_quotes_or_brackets():
    assert Links(code="https://a.test/x?y=z").code == "https://a.test/x?y=z"
    for character in " \"'<>\\`{}|^":
        with pytest.raises(ValueError, match="spaces, quotes or brackets"):
            Links(code=f"https://a.test/x{character}y")


def test_shown_values_are_short():
    assert shown("x" * 78) == "'" + "x" * 78 + "'"
    assert shown("x" * 79) == "'" + "x" * 76 + "..."
