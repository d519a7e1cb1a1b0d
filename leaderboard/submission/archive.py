"""Submissions: write and safely read a zip with a description and a similarity matrix."""

import platform
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Annotated, BinaryIO, Literal
from urllib.parse import urlsplit

import numpy as np
import regex
from jaxtyping import Float
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from leaderboard.core.rounds import ScoredSplit, Track, check_scored_split, check_track
from leaderboard.metrics import Labels, Matrix
from leaderboard.submission.gallery import Gallery, read_gallery
from leaderboard.submission.untrusted import (
    Archive,
    Problem,
    Problems,
    SubmissionError,
    check_finite,
    check_order,
    read_array_header,
    read_matrix,
    read_object,
    refusal,
    shown,
)
from now_builder import __version__
from now_builder.config import Sha256, Strict, expected_by
from now_builder.errors import FormatError, NowError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import atomic_write, read_lines, sha256_of
from now_builder.formats.noise import Noise

META, MATRIX = "submission.json", "similarity.npy"
MAX_META = 4 * 2**20
MAX_LINE = 120
"""Maximum number of characters (grapheme clusters) of a line of text."""

Precision = Literal["float16", "float32", "float64"]

_REFUSED = regex.compile(r"[\p{C}\p{Default_Ignorable_Code_Point}]")
"""Control, format, private, unassigned and invisible characters, and surrogates."""

_REFUSED_IN_PROSE = regex.compile(
    rf"[{_REFUSED.pattern}--[\u200c\u200d\p{{Variation_Selector}}]]", regex.V1
)
"""Refused characters, except the joiners and variation selectors of Persian, Hindi and emoji."""

# U+2800 is a symbol by its category, but blank.
_VISIBLE = regex.compile(r"[[\p{L}\p{N}\p{P}\p{S}]--[\u2800]]", regex.V1)
_MARKS = regex.compile(r"\p{M}{4,}")


def plain_text(text: str, refused: regex.Pattern[str] = _REFUSED) -> str:
    """Return text as one line in Unicode NFC with single spaces.

    Raises:
        ValueError: If it contains control, bidi, invisible or unassigned characters, or four
            combining marks in a row.
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if match := refused.search(text):
        code = f"U+{ord(match[0]):04X}"
        raise ValueError(f"text without control or invisible characters such as {code}")
    if _MARKS.search(text):
        raise ValueError("three combining marks in a row at most")
    return text


def visible_text(text: str) -> str:
    """Return the text; raise a ValueError if it has no visible character (NFKC)."""
    if not _VISIBLE.search(unicodedata.normalize("NFKC", text)):
        raise ValueError("at least one visible character")
    return text


def _short_enough(text: str) -> str:
    if len(regex.findall(r"\X", text)) > MAX_LINE:  # extended grapheme clusters
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
Prose = Annotated[
    str, Field(max_length=500), AfterValidator(partial(plain_text, refused=_REFUSED_IN_PROSE))
]
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
    """Training of the method, as far as it affects a comparison.

    Attributes:
        external_data: description of other training data.
        uses_external_data: whether other data was used; by default yes if it is described.
        noise: injected noise; results under different noise are not comparable.
        ensemble_size: number of networks whose similarities were averaged (2 for two peers).
        checkpoint_selection: split used to select the epoch; the board marks ``test``.
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
        uses = self.uses_external_data
        return bool(self.external_data) if uses is None else uses

    @property
    def external(self) -> str | None:
        """Statement on other data: yes or no, and its description."""
        if self.uses_external_data is None and not self.external_data:
            return None
        description = f": {self.external_data}" if self.external_data else ""
        return ("yes" if self.has_external_data else "no") + description


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
        dataset_fingerprint: fingerprint of the release's (split, track).
        axes: axes of the matrix: rows, then columns.
        payload: kind of data; ``similarity.npy`` contains it.
        image_ids: key of each row, checked against the release; optional.
        caption_ids: key of each column, checked against the release; optional.
    """

    schema_version: Literal["now-submission/1"] = "now-submission/1"
    track: Track
    split: ScoredSplit
    dataset_fingerprint: Sha256
    axes: tuple[Literal["image"], Literal["caption"]] = ("image", "caption")
    payload: Literal["matrix"] = "matrix"
    image_ids: tuple[Key, ...] | None = None
    caption_ids: tuple[Key, ...] | None = None


def new_submission(
    release: Path | str,
    track: str,
    split: str,
    method: str | Method,
    training: Training | None = None,
) -> Submission:
    """Describe a submission to a release; fingerprint, keys and environment are filled in.

    Args:
        release: a release, the authors' archive, or another data set in the field's layout.
        track: tokenizer or data set.
        split: ``dev`` or ``test``.
        method: name of the method, or its name, version and abstract.
        training: seeds, ensemble size, checkpoint selection, …

    Raises:
        FormatError: If the release lacks the split or track.
        ConfigError: If the split or track is unknown.
        SubmissionError: If a field violates the schema.
    """
    names = check_scored_split(split), check_track(track)
    gallery = read_gallery(Path(release), *names, unpaired=True)
    torch = next((package.version for package in metadata.distributions(name="torch")), None)
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
    """Set fields of :class:`Description`; tables are merged with the existing ones.

    Raises:
        SubmissionError: If a field violates the schema, or is determined by the release.
    """
    fixed = Submission.model_fields.keys() - Description.model_fields.keys()
    for field in sorted(fixed & details.keys()):
        expected = f"one of {', '.join(Description.model_fields)}; the release determines this one"
        raise refusal("field.fixed", f"submission.{field}", shown(details[field]), expected)
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
        SubmissionError: With each field that is unknown, missing or not allowed.
    """
    with field_errors("submission", Submission, tree):
        return Submission.model_validate(tree)


@contextmanager
def field_errors(name: str, model: type[BaseModel], tree: object) -> Iterator[None]:
    """Turn pydantic's validation errors of a tree into one :class:`SubmissionError`."""
    try:
        yield
    except ValidationError as error:
        problems = [
            Problem(
                f"field.{item['type']}",
                ".".join([name, *(shown(part).strip("'") for part in item["loc"])]),
                shown(item["input"]) if item["type"] != "missing" else "nothing",
                expected_by(item, model, tree),
            )
            for item in error.errors(include_url=False)[:12]
        ]
        raise SubmissionError(*problems) from None


def pack(
    path: Path | str, similarity: Float[np.ndarray, "images captions"], meta: Submission
) -> None:
    """Write a submission atomically; the same matrix and description give the same bytes.

    Rows are images and columns captions, in the order of the split. The float type is kept; use
    float32, since float16 causes ties.

    Raises:
        SubmissionError: If the matrix is empty, not finite, too large for a zip, or does not fit
            the keys of ``meta``.
    """
    path, name = Path(path), f"{path}: {MATRIX}"
    shape = similarity.shape
    expected = (shape[0], shape[0]) if meta.track in TOKENIZERS else shape
    if meta.image_ids is not None and meta.caption_ids is not None:
        expected = len(meta.image_ids), len(meta.caption_ids)
    if 0 in shape or shape != expected:
        raise refusal("matrix.shape", name, f"shape {shape}", f"{expected}, images x captions")
    if similarity.nbytes >= 2**31:
        raise refusal("zip.size", name, f"{similarity.nbytes} bytes", "less than 2 GiB")
    check_finite(similarity, name)
    text = meta.model_dump_json(indent=2, exclude_none=True) + "\n"
    plain = np.ascontiguousarray(similarity, dtype=similarity.dtype.newbyteorder("<"))
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(zip_member(META), text)
        with archive.open(zip_member(MATRIX), "w") as stream:
            np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)


def pack_file(
    path: Path, meta: Submission, matrix: Path, image_ids: Path | None, caption_ids: Path | None
) -> None:
    """Pack a ``.npy`` file of floats or integers.

    Rows and columns are reordered by the keys in ``image_ids`` and ``caption_ids``; without these
    files they are in the order of the split.
    """
    rows = _positions(image_ids, meta.image_ids or ())
    columns = _positions(caption_ids, meta.caption_ids or ())
    with _open_untrusted(matrix) as file:
        size, shape = matrix.stat().st_size, (len(rows), len(columns))
        similarity = read_matrix(file, "matrix", size, shape, integers=True)
    pack(path, similarity[np.ix_(rows, columns)], meta)


def _positions(path: Path | None, keys: Sequence[str]) -> Labels:
    """Return the position of each key of the split in a file of keys."""
    if path is None:
        return np.arange(len(keys))
    lines = read_lines(path, "file not found")
    if lines:
        lines[0] = lines[0].removeprefix("\ufeff")  # byte order mark, written by some editors
    while lines and not lines[-1].strip():
        lines.pop()
    positions = {key: position for position, key in enumerate(lines)}
    missing = [key for key in keys if key not in positions]
    if missing or len(lines) != len(keys):
        problem = f"{len(lines)} keys, expected the {len(keys)} of the split once each"
        detail = f"{missing[0]!r} is missing" if missing else "some occur twice, or are too many"
        raise FormatError(path, f"{problem}: {detail}")
    return np.array([positions[key] for key in keys], dtype=np.int64)


def zip_member(name: str) -> zipfile.ZipInfo:
    """Return a zip member with a fixed date and system, for reproducible files."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.external_attr = 0o100644 << 16
    info.create_system = 3
    return info


@dataclass(frozen=True, slots=True)
class OpenSubmission:
    """A submission whose description has been read, but not its matrix."""

    meta: Submission
    sha256: str
    archive: Archive

    def read(self, gallery: Gallery) -> Matrix:
        """Read the matrix.

        Raises:
            SubmissionError: With all problems: fingerprint, order, size, type, values.
        """
        problems, meta = Problems(), self.meta
        with problems.collect():
            _check_fingerprint(meta, gallery)
        with problems.collect():
            check_order("image_ids", meta.image_ids, gallery.image_keys)
        with problems.collect():
            check_order("caption_ids", meta.caption_ids, gallery.caption_keys)
        images, captions = gallery.shape
        limit = images * captions * 8 + 5000
        with problems.collect(), self.archive.open(MATRIX, limit) as stream:
            matrix = read_matrix(stream, MATRIX, self.archive.sizes[MATRIX], gallery.shape)
        problems.raise_any()
        return matrix


def _check_fingerprint(meta: Submission, gallery: Gallery) -> None:
    """Check that a submission was made on this release and split; else suggest which."""
    fingerprint, name = meta.dataset_fingerprint, gallery.release.name
    if fingerprint == gallery.fingerprint:
        return
    mend = "it was made on another release; pack or predict again with this one"
    other: ScoredSplit = "dev" if meta.split == "test" else "test"
    with suppress(NowError):
        if (
            read_gallery(gallery.release, other, meta.track, unpaired=True).fingerprint
            == fingerprint
        ):
            mend = f"it was made on {other} of this release: pack it with --split {other}"
    expected = f"{gallery.fingerprint[:16]}… ({meta.split} of {name}, track {meta.track})"
    field = f"{META}.dataset_fingerprint"
    raise refusal("fingerprint.mismatch", field, f"{fingerprint[:16]}…", expected, mend)


@contextmanager
def open_submission(path: Path | str) -> Iterator[OpenSubmission]:
    """Open an untrusted submission; pickle, HDF5 and torch files are never opened.

    Raises:
        FormatError: If the file does not exist.
        SubmissionError: With all problems: field, value found, value expected.
    """
    path = Path(path)
    with _open_untrusted(path) as file:
        archive = Archive(file, (META, MATRIX))
        content = archive.read(META, MAX_META)
        tree = read_object(content, META)
        problems = Problems()
        with problems.collect(), field_errors(META, Submission, tree):
            meta = Submission.model_validate_json(content, strict=True)
        with problems.collect(), archive.open(MATRIX, 2**33) as stream:
            read_array_header(stream, MATRIX)
        problems.raise_any()
        yield OpenSubmission(meta, sha256_of(path), archive)


@contextmanager
def _open_untrusted(path: Path) -> Iterator[BinaryIO]:
    """Open an untrusted file; errors about its content begin with its path."""
    if not path.is_file():
        raise FormatError(path, "a folder, expected a file" if path.is_dir() else "file not found")
    try:
        file = path.open("rb")
    except OSError as error:
        raise FormatError(path, f"cannot be read ({error.strerror})") from None
    with file:
        try:
            yield file
        except SubmissionError as error:
            raise SubmissionError(*error.problems, name=str(path)) from None
