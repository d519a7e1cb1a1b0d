"""Safe readers of untrusted zip, .npy and JSON files; every size is checked before allocation."""

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
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from now_builder.errors import NowError

MAX_MEMBERS = 32  # members of a zip
MAX_RATIO = 200  # compression ratio of a member
MAX_HEADER = 4096  # bytes of a .npy header
MAX_DEPTH = 24  # nesting of JSON
_MAX_COUNT = 2**40
_CHUNK = 2**20

_END = struct.Struct("<4s4H2LH")
_LOCATOR64 = b"PK\x06\x07"
# Extra field with a name that some readers use instead of the member's name.
_UNICODE_PATH = 0x7075

_BY_HAND = "now-leaderboard pack makes it; by hand: zip -X -j x.zip submission.json similarity.npy"
_UNSAFE_PATH = re.compile(r"^[/\\]|^[A-Za-z]:|(?:^|[/\\])\.\.?(?:[/\\]|$)|//|\0")
_SYSTEM_FILE = re.compile(
    r"(?:.*/)?(?:__MACOSX/.*|\._[^/]*|\.DS_Store|\.localized|(?:eh)?thumbs\.db|desktop\.ini)",
    re.IGNORECASE | re.DOTALL,
)
"""Files that Finder, Windows and others add next to a user's files."""

# Exceptions raised by zipfile, zlib and struct for invalid bytes.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError, ValueError, EOFError,
               OSError, OverflowError)  # fmt: skip

# Exceptions raised by NumPy and its parser for a header that is not a plain dictionary.
_HEADER_ERRORS = (SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError,
                  MemoryError, TokenError, Warning)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a submission.

    Attributes:
        code: stable name for programs, such as ``matrix.shape``.
        field: location: a member of the zip, or a field of ``submission.json``.
        mend: how to fix it; empty if obvious.
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
    """A submission is invalid; the message lists all problems after the name of the file."""

    def __init__(self, *problems: Problem, name: str = "") -> None:
        text = "; ".join(str(problem) for problem in problems)
        super().__init__(f"{name}: {text}" if name else text)
        self.problems = problems


class Problems:
    """Collected problems, reported together."""

    def __init__(self) -> None:
        self._collected: list[Problem] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Collect the problems of a :class:`SubmissionError` raised inside."""
        try:
            yield
        except SubmissionError as error:
            self._collected += error.problems

    def raise_any(self) -> None:
        """Raise a :class:`SubmissionError` with all collected problems, if there are any."""
        if self._collected:
            raise SubmissionError(*self._collected)


@runtime_checkable
class Readable(Protocol):
    """A stream of bytes that may end early."""

    def read(self, size: int, /) -> bytes:
        """Read at most ``size`` bytes; return none at the end."""


def refusal(code: str, field: str, found: str, expected: str, mend: str = "") -> SubmissionError:
    """Return the error of a single problem."""
    return SubmissionError(Problem(code, field, found, expected, mend))


def shown(value: object) -> str:
    """Format an untrusted value for a message: short, one line, no control or bidi characters."""
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


class Archive:
    """A zip with a list of allowed members, streamed with size limits.

    A folder around all members, and files that file managers add, must obey the same rules and are
    ignored.

    Raises:
        SubmissionError: If it is not a plain zip: data before or after it, comments, zip64, too
            many, repeated, unknown, encrypted, linked or oddly compressed members, bombs.
    """

    def __init__(self, file: BinaryIO, allowed: Sequence[str]) -> None:
        _check_end(file)
        with _zip_errors("zip"):
            self._zip = zipfile.ZipFile(file)
        infos = self._zip.infolist()
        if len(infos) > MAX_MEMBERS:
            raise refusal("zip.members", "zip", f"{len(infos)} members", f"{MAX_MEMBERS} at most")
        self._members: dict[str, zipfile.ZipInfo] = {}
        folder = _folder_around([info.orig_filename for info in infos])
        problems = Problems()
        for info in infos:
            with problems.collect():
                path = _plain_path(info.orig_filename)
                _check_member(info, path)
                if _is_system_file(path) or (path.endswith("/") and folder.startswith(path)):
                    continue
                name = path.removeprefix(folder)
                if name not in allowed:
                    code = "zip.traversal" if "/" in path else "zip.foreign"
                    only = f"only {', '.join(allowed)}"
                    raise refusal(code, "zip", f"member {shown(path)}", only, _BY_HAND)
                if name in self._members:
                    raise refusal("zip.twice", "zip", f"{name} twice", "it once")
                self._members[name] = info
        problems.raise_any()
        self.sizes = {name: info.file_size for name, info in self._members.items()}

    @contextmanager
    def open(self, name: str, limit: int) -> Iterator[Readable]:
        """Open a member of at most ``limit`` bytes for reading."""
        if name not in self.sizes:
            members = ", ".join(sorted(self.sizes)) or "nothing"
            raise refusal("zip.missing", "zip", f"no {name}, only {members}", f"{name} in it")
        if self.sizes[name] > limit:
            raise refusal("zip.size", name, f"{self.sizes[name]} bytes", f"{limit} at most")
        with _zip_errors(name), self._zip.open(self._members[name]) as stream:
            yield stream

    def read(self, name: str, limit: int) -> bytes:
        """Read a member of at most ``limit`` bytes."""
        with self.open(name, limit) as stream:
            content = stream.read(limit + 1)
            if len(content) != self.sizes[name] or stream.read(1):
                expected = f"{self.sizes[name]} bytes, as in the zip's directory"
                raise refusal("zip.torn", name, "another size", expected)
            return content


@contextmanager
def _zip_errors(name: str) -> Iterator[None]:
    try:
        yield
    except SubmissionError:
        raise
    except _ZIP_ERRORS as error:
        problem = f"a damaged zip, or none: {shown(str(error))}"
        raise refusal("zip.torn", name, problem, "a whole zip", "write it again") from None


def _check_end(file: BinaryIO) -> None:
    """Check the end of a zip before zipfile reads its directory."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - 20))
    tail = file.read(_END.size + 20)
    if len(tail) < _END.size or tail[-_END.size :][:4] != b"PK\x05\x06":
        problem = f"{size} bytes that do not end as a plain zip"
        mend = "now-leaderboard pack makes one from a .npy matrix"
        raise refusal("zip.format", "file", problem, "a zip without comment or trailing data", mend)
    _, disk, first_disk, here, members, length, offset, comment = _END.unpack(tail[-_END.size :])
    if (disk, first_disk, comment) != (0, 0, 0) or here != members or _LOCATOR64 in tail[:20]:
        raise refusal("zip.format", "zip", "parts, a comment or zip64", "a plain zip", _BY_HAND)
    if members > MAX_MEMBERS:
        raise refusal("zip.members", "zip", f"{members} members", f"{MAX_MEMBERS} at most")
    if offset + length + _END.size != size:
        raise refusal("zip.format", "zip", "bytes before it or inside", "a plain zip")


def _plain_path(name: str) -> str:
    """Return a name with slashes between its parts; PowerShell 5 writes backslashes."""
    return name if "/" in name else name.replace("\\", "/")


def _is_system_file(path: str) -> bool:
    return not _UNSAFE_PATH.search(path) and _SYSTEM_FILE.fullmatch(path) is not None


def _folder_around(names: Sequence[str]) -> str:
    """Return the folder, with its slash, that contains all files of a zip; else an empty text."""
    paths = [path for path in map(_plain_path, names) if not _is_system_file(path)]
    folders = {path[: path.rfind("/") + 1] for path in paths if not path.endswith("/")}
    folder = folders.pop() if len(folders) == 1 else ""
    return "" if _UNSAFE_PATH.search(folder) else folder


def _check_member(info: zipfile.ZipInfo, path: str) -> None:
    """Check everything about a member except its name; ignored members are checked too."""
    name = shown(path)
    if any(_is_other_file(alias, path) for alias in _unicode_paths(info.extra)):
        raise refusal("zip.foreign", "zip", f"a second name of {name}", "one name per member")
    if info.flag_bits & (0x1 | 0x40 | 0x2000):
        raise refusal("zip.encrypted", "zip", f"{name} encrypted", "plain members")
    if stat.S_ISLNK(info.external_attr >> 16):
        raise refusal("zip.link", "zip", f"{name}, a link", "files")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = f"{name} compressed by method {info.compress_type}"
        raise refusal("zip.compression", "zip", method, "stored or deflated members", _BY_HAND)
    if info.file_size > MAX_RATIO * max(info.compress_size, 64):
        problem = f"{name} of {info.file_size} bytes in {info.compress_size}"
        ratio = f"at most {MAX_RATIO} times"
        raise refusal("zip.bomb", "zip", problem, ratio, "store it uncompressed")


def _unicode_paths(extra: bytes) -> Iterator[str]:
    """Yield the names in a member's extra fields."""
    while len(extra) >= 4:
        tag, size = struct.unpack("<HH", extra[:4])
        if tag == _UNICODE_PATH:
            yield _plain_path(extra[4 : 4 + size][5:].decode("utf-8", "replace"))
        extra = extra[4 + size :]


def _is_other_file(alias: str, path: str) -> bool:
    """Return whether an alias names another file; only the spelling of folders may differ."""
    same_file = alias.rpartition("/")[2] == path.rpartition("/")[2]
    return not same_file or alias.count("/") != path.count("/") or bool(_UNSAFE_PATH.search(alias))


_FLOATS = frozenset(f"{order}f{size}" for order in "<>" for size in (2, 4, 8))
_INTEGERS = frozenset(f"{order}i{size}" for order in "<>" for size in (4, 8))

_SAVE_ARRAY = "np.save(path, similarity) where it was made"
_OTHER_FORMATS = {
    b"PK\x03\x04": (
        "a zip, as np.savez and torch.save write",
        "np.save(path, np.load(old)['arr_0']), or of torch np.save(path, similarity.cpu().numpy())",
    ),
    b"\x80": ("a pickle, which is never opened", _SAVE_ARRAY),
    b"cnumpy": ("a pickle, which is never opened", _SAVE_ARRAY),
    b"\x89HDF": ("an HDF5 file", "np.save(path, h5py.File(old)['similarity'][:])"),
}
"""Name of other formats by their first bytes, and code that converts them to ``.npy``."""

# NumPy 2 writes np.int64(96) in headers of np.lib.format.open_memmap; Python 2 wrote 96L.
_NUMPY_NUMBER = re.compile(rb"\b(?:np|numpy)\.u?(?:int[0-9a-z_]{0,4}|longlong)\((\d+)\)|\b(\d+)L\b")


class ArrayHeader(NamedTuple):
    """Header of a ``.npy`` file; ``length`` is its number of bytes."""

    dtype: np.dtype[Any]
    fortran_order: bool
    shape: tuple[int, ...]
    length: int


def read_array_header(stream: Readable, name: str, *, integers: bool = False) -> ArrayHeader:
    """Read the ``.npy`` header of an array of floats, or of integers if allowed.

    Raises:
        SubmissionError: If it is not a ``.npy`` file of these types.
    """
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\x01\x00", b"\x02\x00", b"\x03\x00"):
        formats = (value for begin, value in _OTHER_FORMATS.items() if magic.startswith(begin))
        other, mend = next(formats, (shown(magic), "np.save"))
        raise refusal("array.format", name, other, "a .npy file, version 1 to 3", mend)
    size = stream.read(2 if magic[6] == 1 else 4)
    length = int.from_bytes(size, "little")
    if len(size) < 2 or length > MAX_HEADER:
        problem = f"a header of {length} bytes"
        raise refusal("array.header", name, problem, f"{MAX_HEADER} at most")
    text = stream.read(length)
    try:
        # versions 2 and 3 differ only in the encoding, and a plain header is ASCII
        plain = _NUMPY_NUMBER.sub(rb"\1\2", text)
        file = io.BytesIO(len(plain).to_bytes(4, "little") + plain)
        shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
    except _HEADER_ERRORS:
        shape, fortran_order, dtype = (-1,), False, np.dtype("V")
    if not all(0 <= count < _MAX_COUNT for count in shape):
        mend = "np.save(path, similarity)"
        raise refusal("array.header", name, f"header {shown(text)}", "a plain float array", mend)
    if dtype.str not in (_FLOATS | _INTEGERS if integers else _FLOATS):
        types = "float16, float32, float64, int32 or int64" if integers else "float16, 32 or 64"
        mend = "similarity.astype('float32')"
        raise refusal("array.dtype", name, f"dtype {dtype.str!r}", f"scores as {types}", mend)
    return ArrayHeader(dtype, fortran_order, shape, 8 + len(size) + length)


def read_matrix(
    stream: Readable, name: str, size: int, shape: tuple[int, int], *, integers: bool = False
) -> Float[np.ndarray, "images captions"]:
    """Read a finite float matrix in native byte order; the header is checked before allocation.

    With ``integers``, a matrix of integers is converted to float64.

    Raises:
        SubmissionError: If type, shape or size differ, or a value is not finite.
    """
    header = read_array_header(stream, name, integers=integers)
    if header.shape != shape:
        transposed = header.shape == shape[::-1]
        mend = "rows are images: similarity.T" if transposed else "rows and columns of the split"
        expected = f"{shape}, images x captions"
        raise refusal("matrix.shape", name, f"shape {header.shape}", expected, mend)
    total = header.length + math.prod(shape) * header.dtype.itemsize
    expected = f"{total} by its header"
    if size != total:
        raise refusal("array.size", name, f"{size} bytes", expected)
    values = np.empty(shape[::-1] if header.fortran_order else shape, header.dtype)
    buffer, filled = values.reshape(-1).view(np.uint8).data, 0
    while filled < len(buffer):
        chunk = stream.read(min(_CHUNK, len(buffer) - filled))
        if not chunk:
            raise refusal("array.size", name, f"{header.length + filled} bytes", expected)
        buffer[filled : filled + len(chunk)] = chunk
        filled += len(chunk)
    if stream.read(1):
        raise refusal("array.size", name, "more bytes", expected)
    matrix = values.T if header.fortran_order else values
    dtype = np.dtype("f8") if matrix.dtype.kind == "i" else matrix.dtype.newbyteorder("=")
    matrix = np.asarray(matrix.astype(dtype, copy=False))
    check_finite(matrix, name)
    return matrix


def check_finite(matrix: Float[np.ndarray, "images captions"], name: str) -> None:
    """Raise a :class:`SubmissionError` that locates the first value that is not finite, if any."""
    positions = np.argwhere(~np.isfinite(matrix))
    if len(positions):
        row, column = positions[0].tolist()
        first = f"the first ({matrix[row, column]}) at image {row}, caption {column}"
        problem = f"{len(positions)} values that are not finite, {first}"
        raise refusal("matrix.finite", name, problem, "finite numbers")


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
"""A string, closed or not; matches in linear time for any input."""


def read_json(content: bytes, name: str) -> Any:
    """Parse JSON; refuse repeated keys, NaN, infinity, deep nesting and lone surrogates."""
    depth = 0
    for bracket in re.finditer(rb"[\[\]{}]", _STRING.sub(b"", content)):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > MAX_DEPTH:
            raise refusal("json.depth", name, f"values nested more than {MAX_DEPTH} deep", "fewer")
    try:
        tree = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_finite,
            parse_float=_finite,
        )
        json.dumps(tree, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        problem = f"not plain JSON: {shown(str(error))}"
        raise refusal("json.format", name, problem, "plain JSON in UTF-8") from None
    return tree


def read_object(content: bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object as strictly as :func:`read_json`."""
    tree = read_json(content, name)
    if not isinstance(tree, dict):
        raise refusal("json.format", name, shown(tree), "an object")
    return tree


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        [(key, _)] = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"key {shown(key)} repeated")
    return tree


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"found {text[:20]}, expected a finite number")
    return value


def check_order(field: str, ids: Sequence[str] | None, keys: Sequence[str]) -> None:
    """Check that the ids of rows or columns are the keys of the split, in its order."""
    if ids is None or list(ids) == list(keys):
        return
    field = f"submission.json.{field}"
    if len(ids) != len(keys):
        raise refusal("keys.count", field, f"{len(ids)} keys", str(len(keys)))
    row = next(row for row, pair in enumerate(zip(ids, keys, strict=True)) if pair[0] != pair[1])
    code, problem = "keys.foreign", "other keys"
    if set(ids) == set(keys):
        code, problem = "keys.order", "the keys of the split in another order"
    problem = f"{problem}; row {row} is {shown(ids[row])}"
    mend = "now-leaderboard pack --image-ids/--caption-ids puts a matrix in order"
    raise refusal(code, field, problem, repr(keys[row]), mend)
