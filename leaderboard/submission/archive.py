"""Submissions: a zip of a description and similarities; writer and safe reader."""

import platform
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
    read_json,
    read_matrix,
    refusal,
    shown,
)
from now_builder import __version__
from now_builder.config import Sha256, Strict, expected_by
from now_builder.errors import FormatError
from now_builder.formats.captions import TOKENIZERS
from now_builder.formats.io import atomic_write, read_lines, sha256_of
from now_builder.formats.noise import Noise

FORMAT: Literal["now-submission/1"] = "now-submission/1"
META, MATRIX = "submission.json", "similarity.npy"
MAX_META = 4 * 2**20
MAX_LINE = 120
"""Characters of a line of text, as readers count them."""

Precision = Literal["float16", "float32", "float64"]

_REFUSED = regex.compile(r"[\p{C}\p{Default_Ignorable_Code_Point}]")
"""Control, format, private and unassigned characters, surrogates, and what is invisible."""

_REFUSED_IN_PROSE = regex.compile(
    rf"[{_REFUSED.pattern}--[\u200c\u200d\p{{Variation_Selector}}]]", regex.V1
)
"""The same but for the joiners and variation selectors that Persian, Hindi and emoji need."""

# U+2800 is a symbol by its category, and blank.
_VISIBLE = regex.compile(r"[[\p{L}\p{N}\p{P}\p{S}]--[\u2800]]", regex.V1)
_STACK = regex.compile(r"\p{M}{4,}")


def plain_text(text: str, refused: regex.Pattern[str] = _REFUSED) -> str:
    """Return text as one line in Unicode NFC with single spaces.

    Raises:
        ValueError: If it contains control, bidi, invisible or unassigned characters, or four
            combining marks in a row.
    """
    text = " ".join(unicodedata.normalize("NFC", text).split())
    if found := refused.search(text):
        code = f"U+{ord(found[0]):04X}"
        raise ValueError(f"text without control or invisible characters such as {code}")
    if _STACK.search(text):
        raise ValueError("three combining marks in a row at most")
    return text


def _prose(text: str) -> str:
    return plain_text(text, _REFUSED_IN_PROSE)


def visible_text(text: str) -> str:
    """Return the text if it has a visible character once normalised (NFKC)."""
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
Prose = Annotated[str, Field(max_length=500), AfterValidator(_prose)]
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
        payload: member of the zip: ``similarity.npy``.
        image_ids: key of each row, optional; if given, a wrong order is an error.
        caption_ids: key of each column, optional; a wrong order is an error too.
    """

    schema_version: Literal["now-submission/1"] = FORMAT
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
    """Write a submission atomically; the same matrix and description give the same bytes.

    Rows are images and columns captions, in the order of the split. The precision is kept: float32
    is best, float16 makes ties.

    Raises:
        SubmissionError: If the matrix is empty, not finite, too large for a zip, or does not fit
            the keys of ``meta``.
    """
    path, name = Path(path), f"{path}: {MATRIX}"
    shape = similarity.shape
    wanted = (shape[0], shape[0]) if meta.track in TOKENIZERS else shape
    if meta.image_ids is not None and meta.caption_ids is not None:
        wanted = len(meta.image_ids), len(meta.caption_ids)
    if 0 in shape or shape != wanted:
        raise refusal("matrix.shape", name, f"shape {shape}", f"{wanted}, images x captions")
    if similarity.nbytes >= 2**31:
        raise refusal("zip.size", name, f"{similarity.nbytes} bytes", "less than 2 GiB")
    check_finite(similarity, name)
    text = meta.model_dump_json(indent=2, exclude_none=True) + "\n"
    plain = np.ascontiguousarray(similarity, dtype=similarity.dtype.newbyteorder("<"))
    with atomic_write(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        archive.writestr(member(META), text)
        with archive.open(member(MATRIX), "w") as stream:
            np.lib.format.write_array(stream, plain, version=(1, 0), allow_pickle=False)


def pack_file(
    path: Path,
    meta: Submission,
    matrix: Path,
    image_ids: Path | None = None,
    caption_ids: Path | None = None,
) -> None:
    """Pack a matrix of floats or whole numbers, reordered by files of keys.

    Args:
        path: the submission to write.
        meta: its description, with the keys of the split.
        matrix: the ``.npy`` file.
        image_ids: keys of the rows, if they are not in the order of the split.
        caption_ids: keys of the columns, if they are in another order.
    """
    rows = _order(image_ids, meta.image_ids or ())
    columns = _order(caption_ids, meta.caption_ids or ())
    with opened(matrix) as file:
        size, shape = matrix.stat().st_size, (len(rows), len(columns))
        similarity = read_matrix(file, "matrix", size, shape, whole=True)
    pack(path, similarity[np.ix_(rows, columns)], meta)


def _order(path: Path | None, keys: Sequence[str]) -> Labels:
    """Return the position of each key of the split in a file of keys."""
    if path is None:
        return np.arange(len(keys))
    found = read_lines(path, "no such file")
    if found:
        found[0] = found[0].removeprefix("\ufeff")  # a byte order mark, which some editors write
    while found and not found[-1].strip():
        found.pop()
    places = {key: place for place, key in enumerate(found)}
    missing = [key for key in keys if key not in places]
    if missing or len(found) != len(keys):
        short = f"{missing[0]!r} is missing" if missing else "some occur twice, or are too many"
        raise FormatError(
            path, f"{len(found)} keys, expected the {len(keys)} of the split once each: {short}"
        )
    return np.array([places[key] for key in keys], dtype=np.int64)


def member(name: str) -> zipfile.ZipInfo:
    """Return a member of a zip whose bytes do not depend on the time or the machine."""
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
            SubmissionError: With all problems: size, type, order, values.
        """
        problems = Problems()
        with problems.noted():
            check_order("image_ids", self.meta.image_ids, gallery.image_keys)
        with problems.noted():
            check_order("caption_ids", self.meta.caption_ids, gallery.caption_keys)
        images, captions = gallery.shape
        limit = images * captions * 8 + 5000
        with problems.noted(), self.archive.open(MATRIX, limit) as stream:
            matrix = read_matrix(stream, MATRIX, self.archive.sizes[MATRIX], gallery.shape)
        problems.refuse_any()
        return matrix


@contextmanager
def open_submission(path: Path | str) -> Iterator[OpenSubmission]:
    """Open an untrusted submission. Pickle, HDF5 and torch files are never opened.

    Raises:
        FormatError: If there is no such file.
        SubmissionError: With all problems: field, value found, value expected.
    """
    path = Path(path)
    with opened(path) as file:
        archive = Archive(file, (META, MATRIX))
        content = archive.read(META, MAX_META)
        tree = read_json(content, META)
        if not isinstance(tree, dict):
            raise refusal("json.format", META, shown(tree), "an object")
        problems = Problems()
        with problems.noted(), refusing_fields(META, Submission, tree):
            meta = Submission.model_validate_json(content, strict=True)
        with problems.noted(), archive.open(MATRIX, 2**33) as stream:
            read_array_header(stream, MATRIX)
        problems.refuse_any()
        yield OpenSubmission(meta, sha256_of(path), archive)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open an untrusted file; errors about its content give its path."""
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
            raise SubmissionError(*error.problems, name=str(path)) from None
