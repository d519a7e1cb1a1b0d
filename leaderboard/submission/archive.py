"""Submissions: a zip of a description and similarities; writer and safe reader."""

import platform
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np
from jaxtyping import Bool, Float, Integer, Shaped
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from leaderboard.core.errors import Problem, Problems, SubmissionError
from leaderboard.core.tracks import ScoredSplit, Track, check_scored_split, check_track
from leaderboard.metrics import Matrix, Ranks, count_ranks
from leaderboard.submission.gallery import Gallery, read_gallery
from leaderboard.submission.text import graphemes, plain_text, visible_text
from leaderboard.submission.untrusted import (
    FLOATS,
    WHOLE,
    Archive,
    check_finite,
    check_order,
    read_array_header,
    read_json,
    read_lists,
    read_matrix,
    refusal,
    shown,
)
from now_builder import __version__
from now_builder.config import Sha256, Strict, expected_by
from now_builder.errors import FormatError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import replacing, sha256_of
from now_builder.formats.noise import Noise

FORMAT: Literal["now-submission/1"] = "now-submission/1"
META, MATRIX = "submission.json", "similarity.npy"
MAX_META = 4 * 2**20
MAX_LINE = 120
"""Characters of a line of text, as readers count them."""

Payload = Literal["matrix", "ranked"]
Precision = Literal["float16", "float32", "float64"]
Lists: TypeAlias = Integer[np.ndarray, "_ _"]

PAYLOADS: dict[Payload, tuple[str, ...]] = {
    "matrix": (MATRIX,),
    "ranked": ("ranked_i2t.npy", "ranked_t2i.npy"),
}
"""Members of the zip besides ``submission.json``, by payload."""

_PRECISIONS: dict[int, Precision] = {2: "float16", 4: "float32", 8: "float64"}


def _short_enough(text: str) -> str:
    if graphemes(text) > MAX_LINE:
        raise ValueError(f"{MAX_LINE} characters at most")
    return text


def _https(url: str) -> str:
    parts = urlsplit(plain_text(url))
    host = parts.hostname or ""
    if parts.scheme != "https" or "." not in host or not url.isascii() or "@" in parts.netloc:
        raise ValueError("expected https://host/path in plain ASCII, without user name")
    if any(character in url for character in " \"'<>\\`{}|^"):
        raise ValueError("expected an address without spaces, quotes or brackets")
    return url


Line = Annotated[
    str, Field(max_length=4 * MAX_LINE), AfterValidator(plain_text), AfterValidator(_short_enough)
]
Name = Annotated[Line, AfterValidator(visible_text)]
Prose = Annotated[str, Field(max_length=500), AfterValidator(plain_text)]
Link = Annotated[str, Field(max_length=300), AfterValidator(_https)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**64)]
Key = Annotated[str, Field(min_length=1, max_length=80)]


class Method(Strict):
    """The method."""

    name: Name
    version: Line | None = None
    abstract: Prose | None = None


class Links(Strict):
    """Links to further information; they are never fetched."""

    paper: Link | None = None
    code: Link | None = None
    code_commit: Annotated[str, Field(pattern=r"^[0-9a-f]{7,64}$")] | None = None
    weights: Link | None = None
    model_card: Link | None = None


class Training(Strict):
    """How the method was trained, as far as readers of the board must know.

    Attributes:
        external_data: what other data was used, in words.
        uses_external_data: whether any was. If it is left out, it was if there are words.
        noise: injected noise; results under different noise are not comparable.
        ensemble_size: number of networks whose similarities were averaged (2 for two peers).
        checkpoint_selection: split that selected the epoch; ``test`` is noted on the board.
        uses_test_images: whether unpaired test images were used in training.
    """

    external_data: Prose | None = None
    uses_external_data: bool | None = Field(None, exclude_if=lambda value: value is None)
    pretrained_backbones: Annotated[tuple[Name, ...], Field(max_length=20)] = ()
    seeds: Annotated[tuple[Seed, ...], Field(max_length=100)] = ()
    ensemble_size: Annotated[int, Field(ge=1, le=1000)] | None = None
    checkpoint_selection: Literal["dev", "last", "test", "unknown"] = "unknown"
    uses_test_images: bool = False
    noise: Noise | None = None

    @property
    def has_external_data(self) -> bool:
        """Whether other data was used, as far as it is stated."""
        said = self.uses_external_data
        return bool(self.external_data) if said is None else said

    @property
    def external(self) -> str | None:
        """What is stated of other data: yes or no, and the words."""
        if self.uses_external_data is None and not self.external_data:
            return None
        words = f": {self.external_data}" if self.external_data else ""
        return ("yes" if self.has_external_data else "no") + words


class Postprocessing(Strict):
    """Post-processing of the model's similarities.

    Attributes:
        kind: ``per_query`` uses one row or column at a time; ``transductive`` the whole matrix
            (dual softmax, Sinkhorn, one-to-one assignment).
    """

    kind: Literal["none", "per_query", "transductive"] = "none"
    description: Prose | None = None


class Compute(Strict):
    """Computational cost."""

    hardware: Line | None = None
    hours: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None
    params_m: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = None


class Environment(Strict):
    """Installed versions; filled in by :func:`new_submission`."""

    toolkit: Line | None = None
    python: Line | None = None
    numpy: Line | None = None
    torch: Line | None = None


class Description(Strict):
    """The submitter's description of the work, copied into the result."""

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
        dataset_fingerprint: fingerprint of the release's (split, track); must equal the judge's.
        axes: axes of the matrix: rows, then columns.
        payload: ``matrix``: ``similarity.npy``. ``ranked``: ``ranked_i2t.npy`` (by image the
            columns of its best captions, best first) and ``ranked_t2i.npy`` (by caption the rows
            of its best images), ten or more each; scored, and not ranked on the board.
        image_ids: key of each row, optional; if given, a wrong order is an error.
        caption_ids: key of each column, optional; a wrong order is an error too.
    """

    schema_version: Literal["now-submission/1"] = FORMAT
    track: Track
    split: ScoredSplit
    dataset_fingerprint: Sha256
    axes: tuple[Literal["image"], Literal["caption"]] = ("image", "caption")
    payload: Payload = "matrix"
    image_ids: tuple[Key, ...] | None = None
    caption_ids: tuple[Key, ...] | None = None


def new_submission(
    release: Path | str,
    track: str,
    split: str,
    method: str | Method,
    training: Training | None = None,
) -> Submission:
    """Describe a submission to a release: fingerprint, keys and environment are filled in.

    Args:
        release: a release, the authors' archive, or another data set in the field's layout.
        track: tokenizer or data set.
        split: ``dev`` or ``test``.
        method: name of the method, or its name, version and abstract.
        training: seeds, ensemble size, checkpoint selection, …

    Raises:
        FormatError: If the release lacks the split or track.
        ConfigError: If there is no such split or track.
        SubmissionError: If a field violates the schema.
    """
    wanted = check_scored_split(split), check_track(track)
    gallery = read_gallery(Path(release), *wanted, unpaired=True)
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    python, numpy = platform.python_version(), np.__version__
    installed = Environment(toolkit=__version__, python=python, numpy=numpy, torch=torch)
    return parse(
        {
            "track": track,
            "split": split,
            "dataset_fingerprint": gallery.fingerprint,
            "image_ids": gallery.image_keys,
            "caption_ids": gallery.caption_keys,
            "method": {"name": method} if isinstance(method, str) else method.model_dump(),
            "training": (training or Training()).model_dump(),
            "environment": installed.model_dump(),
        }
    )


def with_details(meta: Submission, details: Mapping[str, object]) -> Submission:
    """Add fields of :class:`Description`; sections are merged with those that are there.

    Raises:
        SubmissionError: If a field violates the schema, or follows from the release and the arrays.
    """
    fixed = Submission.model_fields.keys() - Description.model_fields.keys()
    for field in sorted(fixed & details.keys()):
        wanted = f"one of {', '.join(Description.model_fields)}; this one is not yours to set"
        raise refusal("field.fixed", f"submission.{field}", shown(details[field]), wanted)
    tree = meta.model_dump()
    for field, value in details.items():
        old = tree.get(field)
        tree[field] = (
            {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return parse(tree)


def parse(tree: object) -> Submission:
    """Validate plain values as a submission.

    Raises:
        SubmissionError: Naming each field that is unknown, missing or not allowed.
    """
    with refusing_fields("submission", Submission, tree):
        return Submission.model_validate(tree)


@contextmanager
def refusing_fields(name: str, model: type[BaseModel], tree: object) -> Iterator[None]:
    """Turn pydantic's validation errors of a tree into one :class:`SubmissionError`."""
    try:
        yield
    except ValidationError as error:
        raise SubmissionError(
            *(
                Problem(
                    f"field.{item['type']}",
                    ".".join([name, *(shown(part).strip("'") for part in item["loc"])]),
                    shown(item["input"]) if item["type"] != "missing" else "nothing",
                    expected_by(item, model, tree),
                )
                for item in error.errors(include_url=False)[:12]
            )
        ) from None


def pack(
    path: Path | str, similarity: Float[np.ndarray, "images captions"], meta: Submission
) -> None:
    """Write a submission of one matrix; see :func:`pack_arrays`."""
    pack_arrays(Path(path), (similarity,), meta.model_copy(update={"payload": "matrix"}))


def pack_arrays(path: Path, arrays: Sequence[Shaped[np.ndarray, "_ _"]], meta: Submission) -> None:
    """Write a submission atomically; the same arrays and description give the same bytes.

    The arrays are those that ``meta.payload`` names, in that order: matrices with rows of images
    and columns of captions in the order of the split, kept in their precision (float32 is best,
    float16 makes ties), or ranked lists of whole numbers.

    Raises:
        SubmissionError: If an array is empty, not finite, or too large for a zip, or a matrix does
            not fit the keys of ``meta``.
    """
    members = dict(zip(PAYLOADS[meta.payload], arrays, strict=True))
    for name, array in members.items():
        _check_array(f"{path}: {name}", array, meta)
    text = meta.model_dump_json(indent=2, exclude_none=True) + "\n"
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(member(META), text)
        for name, array in members.items():
            with archive.open(member(name), "w") as stream:
                plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
                np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)


def _check_array(name: str, array: Shaped[np.ndarray, "_ _"], meta: Submission) -> None:
    shape = (array.shape[0], array.shape[1])
    wanted = (shape[0], shape[0]) if meta.track in TOKENIZERS else shape
    if meta.image_ids is not None and meta.caption_ids is not None:
        wanted = len(meta.image_ids), len(meta.caption_ids)
    if 0 in shape or (array.dtype.kind == "f" and shape != wanted):
        raise refusal("matrix.shape", name, f"shape {shape}", f"{wanted}, images x captions")
    if array.nbytes >= 2**31:
        raise refusal("zip.size", name, f"{array.nbytes} bytes", "less than 2 GiB")
    if array.dtype.kind == "f":
        check_finite(array, name)


@contextmanager
def opened(path: Path, name: str | None = None) -> Iterator[BinaryIO]:
    """Open an untrusted file; errors about its content give its path, or that name."""
    if not path.is_file():
        raise FormatError(path, "a folder, expected a file" if path.is_dir() else "no such file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    with file:
        try:
            yield file
        except SubmissionError as error:
            raise SubmissionError(*error.problems, name=name or str(path)) from None


def member(name: str) -> zipfile.ZipInfo:
    """Return a member of a zip whose bytes do not depend on the time or the machine."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    return info


@dataclass(frozen=True, slots=True)
class Scored:
    """Ranks of image queries and of caption queries, and the arrays behind them.

    Attributes:
        arrays: the matrix, or the ranked lists of images and of captions.
        precision: float type of the stored matrix; None for ranked lists.
    """

    ranks: tuple[Ranks, Ranks]
    arrays: Matrix | tuple[Lists, Lists]
    precision: Precision | None = None

    @property
    def depth(self) -> int | None:
        """Length of the shorter ranked lists."""
        if isinstance(self.arrays, np.ndarray):
            return None
        return min(len(lists.T) for lists in self.arrays)


class OpenSubmission:
    """A submission whose description has been read, but not its payload."""

    def __init__(self, path: Path, archive: Archive) -> None:
        self._archive = archive
        problems = Problems()
        with problems.noted():
            self.meta = _read_meta(archive)
        present = [name for name in archive.sizes if name != META]
        with problems.noted():
            self._check_members(present, self.meta if not problems.found else None)
        problems.refuse_any()
        self.sha256 = sha256_of(path)

    def _check_members(self, present: list[str], meta: Submission | None) -> None:
        """Check the members against the payload; only their headers if it is unknown."""
        wanted = PAYLOADS[meta.payload] if meta is not None else tuple(present)
        missing = [name for name in wanted if name not in present]
        foreign = [name for name in present if name not in wanted]
        if missing or foreign or not present:
            names = ", ".join([META, *wanted])
            found = ", ".join(sorted(self._archive.sizes))
            short = f", there is no {missing[0]}" if missing else ""
            raise refusal("zip.payload", "zip", found, f"{names}{short}")
        for name in present:
            kinds = FLOATS if name.startswith("similarity") else WHOLE
            with self._archive.open(name, 2**33) as stream:
                read_array_header(stream, name, kinds)

    def read(self, gallery: Gallery) -> Scored:
        """Read the payload and compute the ranks of all queries.

        Raises:
            SubmissionError: With all problems: size, type, order, values.
        """
        problems = Problems()
        with problems.noted():
            check_order("image_ids", self.meta.image_ids, gallery.image_keys)
        with problems.noted():
            check_order("caption_ids", self.meta.caption_ids, gallery.caption_keys)
        found = []
        for way, name in enumerate(PAYLOADS[self.meta.payload]):
            with problems.noted():
                found.append(self._read_array(name, gallery.shape, way))
        problems.refuse_any()
        if self.meta.payload == "ranked":
            i2t, t2i = found
            images = ranks_of_right(gallery.owner[i2t] == np.arange(len(i2t))[:, None])
            captions = ranks_of_right(t2i == gallery.owner[:, None])
            return Scored((images, captions), (i2t, t2i))
        (matrix,) = found
        kind = _PRECISIONS[matrix.dtype.itemsize]
        return Scored(count_ranks(matrix, gallery.owner), matrix, kind)

    def _read_array(self, name: str, shape: tuple[int, int], way: int) -> Matrix | Lists:
        with self._archive.open(name, max_matrix(shape)) as stream:
            size = self._archive.sizes[name]
            if self.meta.payload == "ranked":
                return read_lists(stream, name, size, shape[way], shape[1 - way])
            return read_matrix(stream, name, size, shape)


def ranks_of_right(right: Bool[np.ndarray, "queries depth"]) -> Ranks:
    """Return the rank of the first right candidate in each list, or its length if there is none."""
    queries, depth = right.shape
    none = np.zeros(queries, np.int64)
    first = np.where(right.any(axis=1), right.argmax(axis=1), depth).astype(np.int64)
    return Ranks(first, none, none, np.ones(queries, np.int64))


@contextmanager
def open_submission(path: Path | str, name: str | None = None) -> Iterator[OpenSubmission]:
    """Open an untrusted submission. Pickle, HDF5 and torch files are never opened.

    Args:
        path: the file.
        name: name of the submission in messages; its path by default.

    Raises:
        FormatError: If there is no such file.
        SubmissionError: With all problems: field, value found, value expected.
    """
    path = Path(path)
    allowed = (META, *(member for members in PAYLOADS.values() for member in members))
    with opened(path, name) as file:
        yield OpenSubmission(path, Archive(file, allowed))


def max_matrix(shape: tuple[int, int]) -> int:
    """Return the largest size of an array file of a split, in bytes."""
    return shape[0] * shape[1] * 8 + 5000


def max_submission(shape: tuple[int, int]) -> int:
    """Return the largest size of a submission to a split, whole ranked lists, in bytes."""
    return 2 * max_matrix(shape) + MAX_META + 5000


def _read_meta(archive: Archive) -> Submission:
    content = archive.read(META, MAX_META)
    tree = read_json(content, META)
    if not isinstance(tree, dict):
        raise refusal("json.format", META, shown(tree), "an object")
    with refusing_fields(META, Submission, tree):
        return Submission.model_validate_json(content, strict=True)
