"""Submissions: a zip of a description and a matrix, written here and read with care."""

import platform
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Annotated, BinaryIO, Literal
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Float
from pydantic import AfterValidator, Field, ValidationError

from leaderboard.untrusted import (
    Archive,
    check_finite,
    plain_text,
    read_array_header,
    read_json,
    read_square,
    shown,
)
from now_builder import __version__
from now_builder.config import Strict
from now_builder.errors import SubmissionError
from now_builder.formats.atomic import replacing, sha256_of
from now_builder.formats.captions import Tokenizer
from now_builder.formats.release import read_split_captions

FORMAT: Literal["now-submission/1"] = "now-submission/1"
META, MATRIX = "submission.json", "similarity.npy"
MAX_META = 4 * 2**20

ScoredSplit = Literal["dev", "test"]
Precision = Literal["float16", "float32", "float64"]

_PRECISIONS: dict[int, Precision] = {2: "float16", 4: "float32", 8: "float64"}


def _filled(text: str) -> str:
    if not text:
        raise ValueError("empty")
    return text


def _https(url: str) -> str:
    parts = urlsplit(plain_text(url))
    host = parts.hostname or ""
    if parts.scheme != "https" or "." not in host or not url.isascii() or "@" in parts.netloc:
        raise ValueError("expected https://host/path in plain ASCII, without user name")
    if any(character in url for character in " \"'<>\\`{}|^"):
        raise ValueError("expected an address without spaces, quotes or brackets")
    return url


Line = Annotated[str, Field(max_length=120), AfterValidator(plain_text)]
Name = Annotated[Line, AfterValidator(_filled)]
Prose = Annotated[str, Field(max_length=500), AfterValidator(plain_text)]
Link = Annotated[str, Field(max_length=300), AfterValidator(_https)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, Field(min_length=1, max_length=80)]


class Method(Strict):
    """What was run."""

    name: Name
    version: Line | None = None
    abstract: Prose | None = None


class Links(Strict):
    """Where more can be read; nothing here is ever fetched."""

    paper: Link | None = None
    code: Link | None = None
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    weights: Link | None = None
    model_card: Link | None = None


class Noise(Strict):
    """Which training captions were given wrong images on purpose.

    Attributes:
        protocol: ``captions`` were shuffled one by one; ``images`` with all their captions, which
            is harder; ``either`` where that is the same: one caption an image.
        sha256: Of the file that says so.
        ratio: Share of captions whose image is not their own, as counted.
    """

    protocol: Literal["captions", "images", "either"]
    sha256: Sha256
    ratio: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class Training(Strict):
    """How it was trained, as far as the board's reader must know.

    Attributes:
        noise: What was shuffled besides; results of different noise cannot be compared.
        ensemble_size: Networks whose similarities were averaged (2 for two peers).
        checkpoint_selection: What chose the epoch; ``test`` is flagged on the board.
        uses_test_images: Whether unpaired test images were seen in training.
    """

    external_data: Prose | None = None
    pretrained_backbones: Annotated[tuple[Name, ...], Field(max_length=20)] = ()
    seeds: Annotated[tuple[int, ...], Field(max_length=100)] = ()
    ensemble_size: Annotated[int, Field(ge=1, le=1000)] | None = None
    checkpoint_selection: Literal["dev", "last", "test", "unknown"] = "unknown"
    uses_test_images: bool = False
    noise: Noise | None = None


class Postprocessing(Strict):
    """What was done to the similarities after the model.

    Attributes:
        kind: ``per_query`` looks at one row or column alone; ``transductive`` at the whole matrix
            (dual softmax, Sinkhorn, one-to-one assignment).
    """

    kind: Literal["none", "per_query", "transductive"] = "none"
    description: Prose | None = None


class Compute(Strict):
    """What it cost."""

    hardware: Line | None = None
    hours: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    params_m: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None


class Environment(Strict):
    """Versions that were in use; filled in by :func:`new_submission`."""

    toolkit: Line | None = None
    python: Line | None = None
    numpy: Line | None = None
    torch: Line | None = None


class Description(Strict):
    """What a submitter says of the work; it goes on into the result as it is."""

    method: Method
    authors: Annotated[tuple[Name, ...], Field(max_length=200)] = ()
    affiliation: Line | None = None
    links: Links = Links()
    training: Training = Training()
    postprocessing: Postprocessing = Postprocessing()
    compute: Compute = Compute()
    environment: Environment = Environment()


class Submission(Description):
    """``submission.json``.

    Attributes:
        dataset_fingerprint: Of the (split, track) of the release; it must be the judge's own.
        axes: Of the matrix: rows, then columns.
        image_ids: Page key of each row, optional; a wrong order is then an error.
        caption_ids: Page key of each column.
    """

    schema_version: Literal["now-submission/1"] = FORMAT
    track: Tokenizer
    split: ScoredSplit
    dataset_fingerprint: Sha256
    axes: tuple[Literal["image"], Literal["caption"]] = ("image", "caption")
    payload: Literal["matrix"] = "matrix"
    image_ids: tuple[Key, ...] | None = None
    caption_ids: tuple[Key, ...] | None = None


def new_submission(
    release: Path,
    track: str,
    split: str,
    method: str | Method,
    training: Training | None = None,
) -> Submission:
    """Describe a matrix made on a release: fingerprint and environment are filled in.

    Args:
        release: Ours or the authors' archive.
        track: Tokenizer.
        split: ``dev`` or ``test``.
        method: Its name, or name, version and abstract.
        training: Seeds, ensemble size, checkpoint selection …

    Raises:
        FormatError: If the release lacks the split or track.
        SubmissionError: If a field is not what the schema allows.
    """
    return parse(
        {
            "track": track,
            "split": _check_split(split),
            "dataset_fingerprint": read_split_captions(
                release, _check_split(split), track
            ).fingerprint,
            "method": {"name": method} if isinstance(method, str) else method.model_dump(),
            "training": (training or Training()).model_dump(),
            "environment": environment().model_dump(),
        },
        "submission",
    )


def environment() -> Environment:
    """Say which versions are installed here."""
    return Environment(
        toolkit=__version__,
        python=platform.python_version(),
        numpy=np.__version__,
        torch=_version("torch"),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def with_details(meta: Submission, details: Mapping[str, object]) -> Submission:
    """Add what a submitter says of the work: authors, links, training, compute.

    Args:
        meta: See :func:`new_submission`.
        details: Fields of :class:`Description`, sections merged with those of ``meta``.

    Raises:
        SubmissionError: Naming each field that is unknown or not allowed.
    """
    tree = meta.model_dump()
    for field, value in details.items():
        old = tree.get(field)
        tree[field] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return parse(tree, "submission")


def _check_split(split: str) -> ScoredSplit:
    if split in ("dev", "test"):
        return "dev" if split == "dev" else "test"
    raise SubmissionError(f"split: found {split!r}, expected dev or test")


def parse(tree: object, name: str) -> Submission:
    """Make a submission from plain values.

    Raises:
        SubmissionError: Naming each field that is unknown, missing or not allowed.
    """
    with refusing_fields(name):
        return Submission.model_validate(tree)


@contextmanager
def refusing_fields(name: str) -> Iterator[None]:
    """Turn the problems of a pydantic model into one :class:`SubmissionError`."""
    try:
        yield
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(shown(part).strip(chr(39)) for part in item['loc'])}: {item['msg']}"
            f" (found {shown(item['input'])})"
            for item in error.errors(include_url=False)[:12]
        )
        raise SubmissionError(f"{name}: {problems}") from None


def pack(path: Path, similarity: Float[np.ndarray, "images captions"], meta: Submission) -> None:
    """Write a submission atomically; the same matrix and description give the same bytes.

    Args:
        path: The zip to write.
        similarity: Rows are images, columns are captions, in the order of the split. Kept in its
            precision: float32 is best, float16 makes ties.
        meta: See :func:`new_submission`.

    Raises:
        SubmissionError: If the matrix is not square or not finite, or too large for a zip.
    """
    rows, columns = similarity.shape
    if rows != columns or rows == 0:
        raise SubmissionError(f"{path}: found a matrix {rows} x {columns}, expected a square one")
    if similarity.nbytes >= 2**31:
        raise SubmissionError(f"{path}: found {similarity.nbytes} bytes, expected less than 2 GiB")
    check_finite(similarity, str(path))
    kind = similarity.dtype.newbyteorder("<")
    text = meta.model_dump_json(indent=2, exclude_none=True) + "\n"
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(_member(META), text)
        with archive.open(_member(MATRIX), "w") as stream:
            matrix = np.ascontiguousarray(similarity, dtype=kind)
            np.lib.format.write_array(stream, matrix, version=(1, 0), allow_pickle=False)


def read_matrix_file(path: Path, n_pairs: int) -> Float[np.ndarray, "pairs pairs"]:
    """Read a similarity matrix from a ``.npy`` file.

    Raises:
        SubmissionError: If the file is missing, no ``.npy`` of floats, of another shape or size, or
            not finite.
    """
    try:
        with _opened(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            return read_square(file, "matrix", size, n_pairs)
    except SubmissionError as error:
        raise SubmissionError(f"{path}: {error}") from None


def _member(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    return info


class OpenSubmission:
    """A submission whose description has been read and whose matrix has not.

    Attributes:
        meta: The description.
        sha256: Of the whole file.
    """

    def __init__(self, path: Path, archive: Archive) -> None:
        self._archive = archive
        self.meta = _read_meta(archive)
        self.sha256 = sha256_of(path)

    def precision(self) -> Precision:
        """Name the float type that the matrix is stored in."""
        with self._archive.open(MATRIX, 2**33) as stream:
            return _PRECISIONS[read_array_header(stream, MATRIX).dtype.itemsize]

    def read_similarity(self, keys: list[str]) -> Float[np.ndarray, "pairs pairs"]:
        """Read the matrix, images × captions.

        Args:
            keys: Of the judge's split, in order.

        Raises:
            SubmissionError: If its size, type or order is not that of the split.
        """
        for field in ("image_ids", "caption_ids"):
            _check_order(field, getattr(self.meta, field), keys)
        limit = max_matrix(len(keys))
        with self._archive.open(MATRIX, limit) as stream:
            return read_square(stream, MATRIX, self._archive.sizes[MATRIX], len(keys))


@contextmanager
def open_submission(path: Path, name: str | None = None) -> Iterator[OpenSubmission]:
    """Open a file from outside. No pickle, HDF5 or torch file is ever opened.

    Args:
        path: The file.
        name: What messages call it; its path if not given.

    Raises:
        SubmissionError: Naming file, field, what was found and what was expected.
    """
    try:
        with _opened(path) as file:
            yield OpenSubmission(path, Archive(file, (META, MATRIX)))
    except SubmissionError as error:
        raise SubmissionError(f"{name or path}: {error}") from None


def _opened(path: Path) -> BinaryIO:
    if not path.is_file():
        raise SubmissionError("no such file")
    try:
        return path.open("rb")
    except OSError as error:
        raise SubmissionError(f"cannot be read ({error.strerror})") from None


def max_matrix(n_pairs: int) -> int:
    """Give the most bytes that a matrix of a split may have as a file."""
    return n_pairs * n_pairs * 8 + 5000


def max_submission(n_pairs: int) -> int:
    """Give the most bytes that a submission to a split may have."""
    return max_matrix(n_pairs) + MAX_META + 5000


def _read_meta(archive: Archive) -> Submission:
    content = archive.read(META, MAX_META)
    tree = read_json(content, META)
    if not isinstance(tree, dict):
        raise SubmissionError(f"{META}: found {shown(tree)}, expected an object")
    with refusing_fields(META):
        return Submission.model_validate_json(content, strict=True)


def _check_order(field: str, found: tuple[str, ...] | None, keys: list[str]) -> None:
    if found is None or list(found) == keys:
        return
    if len(found) != len(keys):
        raise SubmissionError(f"{META}: {field}: found {len(found)} keys, expected {len(keys)}")
    row = next(row for row, pair in enumerate(zip(found, keys, strict=True)) if pair[0] != pair[1])
    kind = "the keys of the split in another order" if set(found) == set(keys) else "other keys"
    raise SubmissionError(
        f"{META}: {field}: found {kind}; row {row} is {shown(found[row])}, expected {keys[row]!r}"
    )
