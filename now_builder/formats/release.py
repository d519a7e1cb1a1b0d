"""Releases in the published layout: ours with keys and manifest, the authors' archive without."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import zip_longest
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from jaxtyping import Shaped
from pydantic import Field

from now_builder.config import Strict, build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import NOW_NAMES, NowName
from now_builder.formats.captions import Vocabulary, from_line, read_vocabulary, to_line
from now_builder.formats.io import read_json, read_lines, sha256_of, stream_lines, write_json
from now_builder.formats.split import SPLITS, Split, SplitPlan
from now_builder.formats.tables import schema_of, stream_rows, write_rows

FORMAT = "now-release/1"
DATA_FOLDER: NowName = "now100k_precomp"
LICENCES = "licences.csv"
"""File of a release or an export: the sites of its pairs and their licences, for attribution."""
SPDX = {
    "apache-2.0": "Apache-2.0", "cc0-1.0": "CC0-1.0", "cc-by-4.0": "CC-BY-4.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0", "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by-nc-sa-4.0": "CC-BY-NC-SA-4.0", "mit": "MIT", "odbl": "ODbL-1.0",
}  # fmt: skip
"""SPDX names of the hub's licences that allow copies."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of ``pairs.parquet``, sorted by ``split`` and ``pair_index``.

    Attributes:
        pair_index: Row of the split.
        regions_sha256: Hash of the region features; identical images have the same.
        flags: Names of flags, sorted, separated by commas.
    """

    key: str
    split: str
    pair_index: int
    url: str
    site: str
    caption: str
    caption_source: str | None
    lang: str | None
    phash: str | None
    regions_sha256: str
    flags: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """A row of ``rejects.parquet``: a listed URL that is in no split, and the reason."""

    key: str
    url: str
    site: str
    split: str
    reason: str
    detail: str | None = None


class FileEntry(Strict):
    """Hash and size of a released file."""

    sha256: str
    bytes: int
    shape: list[int] | None = None


class Manifest(Strict):
    """``manifest.json``: written last, so that a release with it is complete.

    Attributes:
        learned_split: Pools of the crawl, if they differ from ``split``. Vocabularies were learned
            on their train pool, and so were detector weights trained on the same captures.
        counts: Number of pairs by split.
        rejects: Number of pages by reason.
        licences: Number of pairs by licence of their site, if pages were selected by licence.
        fingerprints: By split and tokenizer, see :func:`fingerprint`.
        settings: Packaging settings, the defaults of a later run.
        versions: Versions of this toolkit and of the libraries that affect the data.
        inputs: Hashes of the input files.
        files: By path relative to the release.
    """

    format: str = FORMAT
    name: str
    created_at: str
    split: SplitPlan
    learned_split: SplitPlan | None = None
    counts: dict[str, int]
    rejects: dict[str, int]
    licences: dict[str, int] = Field(default_factory=dict)
    fingerprints: dict[str, dict[str, str]]
    detector: dict[str, str]
    settings: dict[str, Any]
    versions: dict[str, str]
    inputs: dict[str, str] = Field(default_factory=dict)
    files: dict[str, FileEntry]

    @property
    def tracks(self) -> list[str]:
        """Names of the tokenizers."""
        return list(next(iter(self.fingerprints.values()), {}))

    @property
    def summary(self) -> str:
        """One line with the pairs by split and the rejects by reason."""
        counts = ", ".join(f"{split} {count}" for split, count in self.counts.items())
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.rejects.items())
        rejects = sum(self.rejects.values())
        return f"{counts} pairs; {rejects} rejects{f' ({reasons})' if reasons else ''}"


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write ``pairs.parquet`` atomically."""
    write_rows(path, pairs, schema_of(Pair))


def read_pairs(release: Path) -> list[Pair]:
    """Return all rows of ``RELEASE/pairs.parquet``."""
    return list(stream_pairs(release))


def _required(row: type) -> set[str]:
    """Return the fields of a dataclass that cannot be ``None``."""
    return {field.name for field in fields(row) if field.type in {str, int}}


def stream_pairs(release: Path) -> Iterator[Pair]:
    """Yield the rows of ``RELEASE/pairs.parquet``, with a few in memory at a time."""
    rows = stream_rows(release / "pairs.parquet", schema_of(Pair), _required(Pair), {"flags"})
    return (Pair(**row) for row in rows)


def read_split_pairs(release: Path, split: str) -> list[Pair]:
    """Return the pairs of a split, sorted by ``pair_index``."""
    rows = (pair for pair in stream_pairs(release) if pair.split == split)
    return sorted(rows, key=lambda pair: pair.pair_index)


def read_texts(release: Path, split: Split) -> dict[str, str]:
    """Return the caption texts of a split by key, from ``RELEASE/pairs.parquet``."""
    schema = schema_of(Pair, names=("key", "split", "caption"))
    rows = stream_rows(release / "pairs.parquet", schema, schema.names)
    return {row["key"]: row["caption"] for row in rows if row["split"] == split}


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write ``rejects.parquet`` atomically."""
    write_rows(path, rejects, schema_of(Reject))


def stream_rejects(release: Path) -> Iterator[Reject]:
    """Yield the rows of ``RELEASE/rejects.parquet``, with a few in memory at a time."""
    rows = stream_rows(release / "rejects.parquet", schema_of(Reject), _required(Reject))
    return (Reject(**row) for row in rows)


def write_manifest(release: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``; it must be the last file of a release."""
    write_json(release / "manifest.json", manifest.model_dump(mode="json"))


def read_manifest(release: Path, name: str = "manifest.json") -> Manifest:
    """Read ``RELEASE/manifest.json``."""
    path = release / name
    tree = read_json(path, "no manifest: the release is unfinished or not made by this toolkit")
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        version = tree.get("format") if isinstance(tree, dict) else type(tree).__name__
        raise FormatError(path, f"format {version!r:.60}, expected {FORMAT!r}")
    return build(Manifest, tree, str(path))


def shared_licence(release: Path) -> str:
    """Return the licences that allow copies of a release's screenshots: its own, or its pages'.

    Raises:
        ConfigError: If there is none.
    """
    manifest = read_manifest(release)
    licence = str(manifest.settings.get("licence", "other"))
    if licence not in SPDX and not manifest.licences:
        raise ConfigError(
            f"{release / 'manifest.json'}: licence {licence!r} does not let others have the "
            "screenshots. Package with --licence, such as cc-by-4.0, or with --licensed, or leave "
            "out --captures"
        )
    pages = ", ".join(f"{name} {count:,}" for name, count in manifest.licences.items())
    return f"{licence}, pages {pages}" if pages else licence


def check_files(release: Path) -> list[str]:
    """Hash every file of the manifest and return one line for each that differs."""
    problems = []
    root = release.resolve()
    for name, entry in read_manifest(release).files.items():
        path = release / name
        try:
            is_inside, exists = path.resolve().is_relative_to(root), path.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links
            problems.append(f"{name:.80}: not the name of a file ({error!s:.80})")
            continue
        if not is_inside:
            problems.append(f"{name}: points outside the release")
        elif not exists:
            problems.append(f"{name}: missing")
        elif path.stat().st_size != entry.bytes:
            problems.append(f"{name}: {path.stat().st_size} bytes, expected {entry.bytes}")
        elif sha256_of(path) != entry.sha256:
            problems.append(f"{name}: content differs from its sha256")
    return problems


def fingerprint(keys: Iterable[str], captions: Iterable[Sequence[int]]) -> str:
    r"""Return the SHA-256 of the ``key<TAB>1,2,3\n`` lines of a split under one tokenizer."""
    digest = hashlib.sha256()
    for key, ids in zip(keys, captions, strict=True):
        digest.update(fingerprint_line(key, ids))
    return digest.hexdigest()


def fingerprint_line(key: str, ids: Sequence[int]) -> bytes:
    """Return the line of a pair in its :func:`fingerprint`."""
    return f"{key}\t{to_line(ids)}\n".encode()


@dataclass(frozen=True, slots=True)
class Captions:
    """The captions of a split, in pair order.

    Attributes:
        keys: Page keys; in the authors' archive, which has none, row numbers.
        captions: Content ids of each pair.
    """

    keys: list[str]
    captions: list[list[int]]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the captions, see :func:`fingerprint`."""
        return fingerprint(self.keys, self.captions)


def data_folder(release: Path) -> Path:
    """Return the folder of a release's arrays, under one of its published names."""
    if not release.is_dir():
        raise FormatError(release, "no such release folder")
    for folder in [*(release / name for name in NOW_NAMES), release]:
        if any(folder.glob("*_caps_*.txt")):
            return folder
    raise FormatError(release, f"no folder {' or '.join(NOW_NAMES)} with caption files in it")


def is_ours(release: Path) -> bool:
    """Return whether a release was made by ``package``; the authors' archive has no keys."""
    return (release / "manifest.json").exists()


def check_split(split: str) -> Split:
    """Return the name of a split, or raise a FormatError if there is no such split."""
    for name in SPLITS:
        if split == name:
            return name
    raise FormatError("--split", f"found {split!r}, expected one of {', '.join(SPLITS)}")


def read_split_captions(release: Path, split: Split, tokenizer: str) -> Captions:
    """Read keys and caption ids of a split, without features."""
    pairs = list(stream_split_captions(release, split, tokenizer))
    return Captions([key for key, _ in pairs], [ids for _, ids in pairs])


def stream_split_captions(
    release: Path, split: Split, tokenizer: str
) -> Iterator[tuple[str, list[int]]]:
    """Yield key and caption ids of each pair of a split.

    Raises:
        FormatError: At the end, if there are more keys than captions or fewer.
    """
    folder = data_folder(release)
    path = folder / f"{split}_caps_{tokenizer}.txt"
    present = sorted(p.name for p in folder.glob(f"{split}_caps_*.txt"))
    lines = stream_lines(path, f"no such file; there are {present}")
    if is_ours(release):
        keys, name = stream_lines(folder / f"{split}_ids.txt"), "keys"
    else:
        keys, name = _row_numbers(folder / f"{split}_ims.npy"), "images"
    captions = count = 0
    for number, (line, key) in enumerate(zip_longest(lines, keys), 1):
        ids = None if line is None else from_line(path, number, line)
        captions, count = captions + (ids is not None), count + (key is not None)
        if ids is not None and key is not None:
            yield key, ids
    if count != captions:
        raise FormatError(path, f"{captions} captions and {count} {name}, expected as many of each")


def _row_numbers(path: Path) -> Iterator[str]:
    # A generator, so that missing captions are reported before missing images.
    yield from map(str, range(len(read_published_regions(path))))


def read_image_identities(release: Path, split: Split) -> list[str]:
    """Return a hash of each pair's region features; identical images have the same.

    The authors' archive stores no hashes: all features of the split are read.
    """
    if is_ours(release):
        return [pair.regions_sha256 for pair in stream_pairs(release) if pair.split == split]
    path = data_folder(release) / f"{split}_ims.npy"
    return [hash_of(row) for row in read_published_regions(path)]


def hash_of(regions: Shaped[np.ndarray, "36 dim"]) -> str:
    """Return the SHA-256 of an image's region features as float32."""
    return hashlib.sha256(np.ascontiguousarray(regions, dtype="<f4").tobytes()).hexdigest()


def read_published_regions(path: Path) -> Shaped[np.ndarray, "pairs regions dim"]:
    """Map ``{split}_ims.npy`` into memory."""
    regions: Shaped[np.ndarray, "pairs regions dim"]
    regions = map_array(path, "no such file, and no .h5 of this split")
    if regions.ndim != 3 or regions.dtype.kind != "f":
        raise FormatError(
            path, f"found {regions.dtype} {regions.shape}, expected floats (pairs, regions, dim)"
        )
    return regions


def map_array(path: Path, missing: str) -> Any:
    """Map a ``.npy`` file into memory, without ``np.load``, which also reads zips and pickles.

    Raises:
        FormatError: If the file cannot be read; with the message ``missing`` if there is none.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except NO_ARRAY as error:
        problem = f"not a readable .npy array ({error!r:.200})"
        if "ast.Call" in problem:  # NumPy 2 writes np.int64(9) into a header and cannot read it
            problem = "numpy's own numbers in its header, expected shape=(int(n), …)"
        raise FormatError(path, problem) from None


NO_ARRAY = (
    OSError, EOFError, SyntaxError, TokenError, ValueError, TypeError, LookupError, ArithmeticError,
    RecursionError, MemoryError,
)  # fmt: skip
"""Exceptions raised by NumPy for files that are not numeric arrays."""


@contextmanager
def open_regions(release: Path, split: Split) -> Iterator[Any]:
    """Open a split's regions for reading: an unread array-like (pairs, 36, dim).

    Raises:
        FormatError: If they cannot be read, or belong to other pages than the captions.
    """
    folder = data_folder(release)
    path, ids = folder / f"{split}.h5", folder / f"{split}_ids.txt"
    if path.exists():
        from now_builder.formats.features import open_features

        with open_features(path) as features:
            if ids.exists() and features.keys != read_lines(ids):
                raise FormatError(path, f"keys are not those of {ids.name}")
            yield features.dataset
    else:
        yield read_published_regions(folder / f"{split}_ims.npy")


def region_attributes(release: Path, split: Split) -> dict[str, str]:
    """Return the attributes of a split's feature file; empty for the authors' arrays."""
    path = data_folder(release) / f"{split}.h5"
    if not path.exists():
        return {}
    from now_builder.formats.features import open_features

    with open_features(path) as features:
        return {name: str(value) for name, value in features.attributes.items()}


def features_hashes(release: Path) -> dict[Split, str]:
    """Return the hash of each split's feature file from the manifest; empty without manifest."""
    if not is_ours(release):
        return {}
    files = read_manifest(release).files
    names = {split: f"{DATA_FOLDER}/{split}.h5" for split in SPLITS}
    return {split: files[name].sha256 for split, name in names.items() if name in files}


def read_release_vocabulary(release: Path, tokenizer: str, path: Path | None = None) -> Vocabulary:
    """Read the vocabulary of a tokenizer from ``path``, by default from ``RELEASE/vocab``."""
    if path is not None:
        return read_vocabulary(path)
    folders = [release / "vocab", data_folder(release).parent / "vocab", data_folder(release)]
    for folder in folders:
        for name in NOW_NAMES:
            candidate = folder / f"{name}_vocab_{tokenizer}.json"
            if candidate.exists():
                return read_vocabulary(candidate)
    raise FormatError(folders[0] / f"{DATA_FOLDER}_vocab_{tokenizer}.json", "no such vocabulary")
