"""Safe readers of untrusted zip, .npy and JSON: every size is checked before allocation."""

import io
import json
import math
import re
import stat
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from now_builder.errors import NowError

MAX_MEMBERS = 32
MAX_RATIO = 200
MAX_HEADER = 4096
MAX_DEPTH = 24
_MAX_COUNT = 2**40
_CHUNK = 2**20

_END = struct.Struct("<4s4H2LH")
_LOCATOR64 = b"PK\x06\x07"
# An extra field with a name that some readers use instead of the member's own.
_UNICODE_PATH = 0x7075

_BY_HAND = "now-leaderboard pack makes it; by hand: zip -X -j x.zip submission.json similarity.npy"
_TRICK = re.compile(r"^[/\\]|^[A-Za-z]:|(?:^|[/\\])\.\.?(?:[/\\]|$)|//|\0")
_BY_PRODUCT = re.compile(
    r"(?:.*/)?(?:__MACOSX/.*|\._[^/]*|\.DS_Store|\.localized|(?:eh)?thumbs\.db|desktop\.ini)",
    re.IGNORECASE | re.DOTALL,
)
"""Files that Finder, Windows and others add next to a user's files."""

# Errors of zipfile, zlib and struct on invalid bytes.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    RuntimeError,
    ValueError,
    EOFError,
    OSError,
    OverflowError,
)

# Errors of numpy and of the parser behind it on a header that is not a plain dictionary.
_UNREADABLE = (
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RecursionError,
    MemoryError,
    TokenError,
    Warning,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a submission.

    Attributes:
        code: stable name for programs, such as ``matrix.shape``.
        field: location: a member of the zip, or a field of ``submission.json``.
        mend: how to fix it, if not obvious.
    """

    code: str
    field: str
    found: str
    expected: str
    mend: str = ""

    def __str__(self) -> str:
        """Format the problem as one line."""
        mend = f" ({self.mend})" if self.mend else ""
        return f"{self.field}: found {self.found}, expected {self.expected}{mend}"


class SubmissionError(NowError):
    """A submission is invalid; the message begins with its name and lists all problems."""

    def __init__(self, *problems: Problem, name: str = "") -> None:
        text = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{name}: {text}" if name else text)
        self.problems = problems


class Problems:
    """A list of problems that are reported at once."""

    def __init__(self) -> None:
        self.found: list[Problem] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Collect the problems of a :class:`SubmissionError` raised inside."""
        try:
            yield
        except SubmissionError as error:
            self.found += error.problems

    def refuse_any(self) -> None:
        """Raise a :class:`SubmissionError` with all collected problems, if there are any."""
        if self.found:
            raise SubmissionError(*self.found)


@runtime_checkable
class Readable(Protocol):
    """A stream of bytes that may end early."""

    def read(self, size: int, /) -> bytes:
        """Read at most ``size`` bytes; none at the end."""


def refusal(code: str, field: str, found: str, expected: str, mend: str = "") -> SubmissionError:
    """Make the error of a single problem."""
    return SubmissionError(Problem(code, field, found, expected, mend))


def shown(value: object) -> str:
    """Format an untrusted value for a message: short, one line, no control or bidi characters."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Archive:
    """A zip with a list of allowed members, streamed with size limits.

    Files that a file manager adds, and a folder around everything, keep the same rules, and are
    not read.

    Raises:
        SubmissionError: If it is not a plain zip: data before or after it, comments, zip64, too
            many, repeated, foreign, encrypted, linked or oddly compressed members, bombs.
    """

    def __init__(self, file: BinaryIO, allowed: Sequence[str]) -> None:
        _check_end(file)
        with _refusing("zip"):
            self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        if len(infos) > MAX_MEMBERS:
            raise refusal("zip.members", "zip", f"{len(infos)} members", f"{MAX_MEMBERS} at most")
        self._members: dict[str, zipfile.ZipInfo] = {}
        folder = _folder_around([info.orig_filename for info in infos])
        problems = Problems()
        for info in infos:
            with problems.noted():
                path = _plain_path(info.orig_filename)
                _check_member(info, path)
                if _is_by_product(path) or (path.endswith("/") and folder.startswith(path)):
                    continue
                name = path.removeprefix(folder)
                if name not in allowed:
                    code = "zip.traversal" if "/" in path else "zip.foreign"
                    only = f"only {', '.join(allowed)}"
                    raise refusal(code, "zip", f"member {shown(path)}", only, _BY_HAND)
                if name in self._members:
                    raise refusal("zip.twice", "zip", f"{name} twice", "it once")
                self._members[name] = info
        problems.refuse_any()
        self.sizes = {name: info.file_size for name, info in self._members.items()}

    @contextmanager
    def open(self, name: str, limit: int) -> Iterator[Readable]:
        """Open a member for reading."""
        if name not in self.sizes:
            found = ", ".join(sorted(self.sizes)) or "nothing"
            raise refusal("zip.missing", "zip", found, f"{name} in it, there is no {name}")
        if self.sizes[name] > limit:
            raise refusal("zip.size", name, f"{self.sizes[name]} bytes", f"{limit} at most")
        with _refusing(name), self._zip.open(self._members[name]) as stream:
            yield stream

    def read(self, name: str, limit: int) -> bytes:
        """Read a whole small member of at most ``limit`` bytes."""
        with self.open(name, limit) as stream:
            content = stream.read(limit + 1)
            if len(content) != self.sizes[name] or stream.read(1):
                expected = f"{self.sizes[name]} bytes, as its directory says"
                raise refusal("zip.torn", name, "another size", expected)
            return content


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    try:
        yield
    except SubmissionError:
        raise
    except _BROKEN as error:
        found = f"a damaged zip, or none: {shown(str(error))}"
        raise refusal("zip.torn", name, found, "a whole zip", "write it again") from None


def _check_end(file: BinaryIO) -> None:
    """Refuse what does not end as a plain zip does, before zipfile reads its directory."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - 20))
    tail = file.read(_END.size + 20)
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\x05\x06":
        found = f"{size} bytes that do not end as a plain zip does"
        mend = "now-leaderboard pack makes one of a .npy matrix"
        raise refusal("zip.format", "file", found, "a zip with nothing after it, no comment", mend)
    _, disk, first_disk, here, members, length, offset, comment = _END.unpack(tail[-_END.size :])
    if (disk, first_disk, comment) != (0, 0, 0) or here != members or _LOCATOR64 in tail[:20]:
        raise refusal("zip.format", "zip", "parts, a comment or zip64", "a plain zip", _BY_HAND)
    if members > MAX_MEMBERS:
        raise refusal("zip.members", "zip", f"{members} members", f"{MAX_MEMBERS} at most")
    if offset + length + _END.size != size:
        raise refusal("zip.format", "zip", "bytes before it or inside", "a plain zip")


def _plain_path(name: str) -> str:
    """Return a name with slashes between its parts; PowerShell 5 writes backslashes instead."""
    return name if "/" in name else name.replace("\\", "/")


def _is_by_product(path: str) -> bool:
    return not _TRICK.search(path) and _BY_PRODUCT.fullmatch(path) is not None


def _folder_around(names: Sequence[str]) -> str:
    """Return the folder, with its slash, that all files of a zip are in; else an empty text."""
    paths = [path for path in map(_plain_path, names) if not _is_by_product(path)]
    folders = {path[: path.rfind("/") + 1] for path in paths if not path.endswith("/")}
    folder = folders.pop() if len(folders) == 1 else ""
    return "" if _TRICK.search(folder) else folder


def _check_member(info: zipfile.ZipInfo, path: str) -> None:
    """Check all of a member but its name, also of one that is not read."""
    name = shown(path)
    if any(_is_another(other, path) for other in _unicode_paths(info.extra)):
        raise refusal("zip.foreign", "zip", f"another name of {name}", "one name a member")
    if info.flag_bits & (0x1 | 0x40 | 0x2000):
        raise refusal("zip.encrypted", "zip", f"{name} encrypted", "plain members")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise refusal("zip.link", "zip", f"{name}, a link", "files")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = f"{name} compressed by method {info.compress_type}"
        raise refusal("zip.compression", "zip", method, "stored or deflated members", _BY_HAND)
    if info.file_size > MAX_RATIO * max(info.compress_size, 64):
        found = f"{name} of {info.file_size} bytes in {info.compress_size}"
        wanted = f"at most {MAX_RATIO} times"
        raise refusal("zip.bomb", "zip", found, wanted, "store it uncompressed")


def _unicode_paths(extra: bytes) -> Iterator[str]:
    """Yield the names in a member's extra fields."""
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == _UNICODE_PATH:
            yield _plain_path(extra[4 : 4 + size][5:].decode("utf-8", "replace"))
        extra = extra[4 + size :]


def _is_another(other: str, path: str) -> bool:
    """Return whether a name means another file; only the spelling of folders may differ."""
    same_file = other.rpartition("/")[2] == path.rpartition("/")[2]
    return not same_file or other.count("/") != path.count("/") or bool(_TRICK.search(other))


_FLOATS = frozenset(f"{order}f{size}" for order in "<>" for size in (2, 4, 8))
_WHOLE = frozenset(f"{order}i{size}" for order in "<>" for size in (4, 8))

_SAVED = "np.save(path, similarity) where it was made"
_OTHER_FORMATS = {
    b"PK\x03\x04": (
        "a zip, as np.savez and torch.save write",
        "np.save(path, np.load(old)['arr_0']), or of torch np.save(path, similarity.cpu().numpy())",
    ),
    b"\x80": ("a pickle, which is never opened", _SAVED),
    b"cnumpy": ("a pickle, which is never opened", _SAVED),
    b"\x89HDF": ("an HDF5 file", "np.save(path, h5py.File(old)['similarity'][:])"),
}
"""Other formats, by their first bytes: the name, and how to make a ``.npy`` file of one."""

# numpy 2 writes its own numbers so, as in np.lib.format.open_memmap(shape=(n, n)); Python 2
# wrote 96L.
_NUMPY_NUMBER = re.compile(rb"\b(?:np|numpy)\.u?(?:int[0-9a-z_]{0,4}|longlong)\((\d+)\)|\b(\d+)L\b")


@dataclass(frozen=True, slots=True)
class ArrayHeader:
    """Header of a ``.npy`` file, and its number of bytes."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    length: int

    @property
    def expected_size(self) -> int:
        """Size of the whole file in bytes."""
        return self.length + math.prod(self.shape) * self.dtype.itemsize


def read_array_header(stream: Readable, name: str, *, whole: bool = False) -> ArrayHeader:
    """Read the ``.npy`` header of an array of floats, or with ``whole`` of integers too.

    Raises:
        SubmissionError: If it is not a ``.npy`` file of these types.
    """
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        known = (pair for begin, pair in _OTHER_FORMATS.items() if magic.startswith(begin))
        found, mend = next(known, (shown(magic), "np.save"))
        raise refusal("array.format", name, found, "a .npy file, version 1 to 3", mend)
    size = stream.read(2 if magic[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    if len(size) < 2 or length > MAX_HEADER:
        found = f"a header of {length} bytes"
        raise refusal("array.header", name, found, f"{MAX_HEADER} at most")
    text = stream.read(length)
    try:
        # versions 2 and 3 differ only in the encoding, and a plain header is ASCII
        plain = _NUMPY_NUMBER.sub(rb"\1\2", text)
        file = io.BytesIO(len(plain).to_bytes(4, "little") + plain)
        shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
    except _UNREADABLE:
        shape, fortran_order, dtype = (-1,), False, np.dtype("V")
    if not all(0 <= count < _MAX_COUNT for count in shape):
        mend = "np.save(path, similarity)"
        raise refusal("array.header", name, f"header {shown(text)}", "a plain float array", mend)
    if dtype.str not in (_FLOATS | _WHOLE if whole else _FLOATS):
        types = "float16, float32, float64, int32 or int64" if whole else "float16, 32 or 64"
        mend = "similarity.astype('float32')"
        raise refusal("array.dtype", name, f"dtype {dtype.str!r}", f"scores as {types}", mend)
    return ArrayHeader(dtype, fortran_order, shape, 8 + len(size) + length)


def read_matrix(
    stream: Readable, name: str, size: int, shape: tuple[int, int], *, whole: bool = False
) -> Float[np.ndarray, "images captions"]:
    """Read a finite float matrix in native byte order; the header is checked before allocation.

    With ``whole``, whole numbers are read too, and become float64.

    Raises:
        SubmissionError: If type, shape or size differ, or a value is not finite.
    """
    header = read_array_header(stream, name, whole=whole)
    if header.shape != shape:
        turned = header.shape == shape[::-1]
        mend = "rows are images: similarity.T" if turned else "rows and columns of the split"
        wanted = f"{shape}, images x captions"
        raise refusal("matrix.shape", name, f"shape {header.shape}", wanted, mend)
    if size != header.expected_size:
        wanted = f"{header.expected_size} by its header"
        raise refusal("array.size", name, f"{size} bytes", wanted)
    values = np.empty(shape[::-1] if header.fortran_order else shape, header.dtype)
    _fill(values.reshape(-1).view(np.uint8).data, stream, name, header)
    matrix = values.T if header.fortran_order else values
    kind = np.dtype("f8") if matrix.dtype.kind == "i" else matrix.dtype.newbyteorder("=")
    return check_finite(np.asarray(matrix.astype(kind, copy=False)), name)


def _fill(room: memoryview, stream: Readable, name: str, header: ArrayHeader) -> None:
    """Read exactly as many bytes as the header announces."""
    wanted, filled = f"{header.expected_size} by its header", 0
    while filled < len(room):
        chunk = stream.read(min(_CHUNK, len(room) - filled))
        if not chunk:
            raise refusal("array.size", name, f"{header.length + filled} bytes", wanted)
        room[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if stream.read(1):
        raise refusal("array.size", name, "more bytes", wanted)


def check_finite(
    matrix: Float[np.ndarray, "images captions"], name: str
) -> Float[np.ndarray, "images captions"]:
    """Return the matrix; refuse it, naming the first value that is not finite."""
    wrong = np.argwhere(~np.isfinite(matrix))
    if len(wrong):
        row, column = wrong[0].tolist()
        found = f"{len(wrong)} values that are not finite, the first ({matrix[row, column]})"
        raise refusal(
            "matrix.finite", name, f"{found} at image {row}, caption {column}", "finite numbers"
        )
    return matrix


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""A string, closed or not; matched in linear time, whatever follows."""


def read_json(content: bytes, name: str) -> Any:
    """Parse JSON strictly: no repeated key, NaN, infinity, depth or lone surrogate."""
    depth = 0
    for bracket in re.finditer(rb"[\[\]{}]", _STRING.sub(b"", content)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise refusal("json.depth", name, f"values nested more than {MAX_DEPTH} deep", "fewer")
    try:
        tree = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_finite,
            parse_float=_finite,
        )
        json.dumps(tree, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        found = f"not plain JSON: {shown(str(error))}"
        raise refusal("json.format", name, found, "plain JSON in UTF-8") from None
    return tree


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {shown(twice)} repeated")
    return tree


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text[:20]}, expected a finite number")
    return value


def check_order(field: str, found: Sequence[str] | None, keys: Sequence[str]) -> None:
    """Refuse keys of rows or columns that are not those of the split, in its order."""
    if found is None or list(found) == list(keys):
        return
    field = f"submission.json.{field}"
    if len(found) != len(keys):
        raise refusal("keys.count", field, f"{len(found)} keys", str(len(keys)))
    row = next(row for row, pair in enumerate(zip(found, keys, strict=True)) if pair[0] != pair[1])
    code, kind = "keys.foreign", "other keys"
    if set(found) == set(keys):
        code, kind = "keys.order", "the keys of the split in another order"
    found_key = f"{kind}; row {row} is {shown(found[row])}"
    mend = "now-leaderboard pack --image-ids/--caption-ids puts a matrix in order"
    raise refusal(code, field, found_key, repr(keys[row]), mend)
