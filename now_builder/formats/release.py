"""Releases: the published layout, ours with keys and manifest or the authors' archive without."""

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
"""File of a release or an export: the sites of its pairs with their licences, for attribution."""
SPDX = {
    "apache-2.0": "Apache-2.0", "cc0-1.0": "CC0-1.0", "cc-by-4.0": "CC-BY-4.0",
    "cc-by-sa-4.0": "CC-BY-SA-4.0", "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by-nc-sa-4.0": "CC-BY-NC-SA-4.0", "mit": "MIT", "odbl": "ODbL-1.0",
}  # fmt: skip
"""Licences of the hub that let others have copies, by their names elsewhere."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of ``pairs.parquet``, in the order of ``split`` and ``pair_index``.

    Attributes:
        pair_index: Row of the split.
        regions_sha256: Hash of the pair's region features: equal for identical images.
        flags: Names of flags, with commas between, in the order of the alphabet.
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
    """A row of ``rejects.parquet``: a listed URL that is in no split, and why."""

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
    """``manifest.json``: written last; it makes the release complete.

    Attributes:
        learned_split: The pools that vocabularies were learned on, and detector weights if they
            were trained on the same captures, where they are others than those of ``split``.
        counts: Pairs per split.
        rejects: Pages per reason.
        licences: Pairs by licence of their site, where pages were chosen by it.
        fingerprints: Per split and tokenizer, see :func:`fingerprint`.
        settings: The packaging settings, to be taken again by a later run.
        versions: Versions of this toolkit and of the libraries that shape the data.
        inputs: Hashes of the files that the release was made from.
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
        """The tokenizers that its captions are cut by."""
        return list(next(iter(self.fingerprints.values()), {}))

    @property
    def summary(self) -> str:
        """Pairs by split, and rejects by reason."""
        counts = ", ".join(f"{split} {count}" for split, count in self.counts.items())
        reasons = ", ".join(f"{reason} {count}" for reason, count in self.rejects.items())
        rejects = sum(self.rejects.values())
        return f"{counts} pairs; {rejects} rejects{f' ({reasons})' if reasons else ''}"


_REQUIRED = {field.name for field in fields(Pair) if field.type in {str, int}}


def write_pairs(path: Path, pairs: Sequence[Pair]) -> None:
    """Write ``pairs.parquet`` atomically."""
    write_rows(path, pairs, schema_of(Pair))


def read_pairs(release: Path) -> list[Pair]:
    """Read ``RELEASE/pairs.parquet`` as :func:`stream_pairs` does."""
    return list(stream_pairs(release))


def stream_pairs(release: Path) -> Iterator[Pair]:
    """Read ``RELEASE/pairs.parquet`` a few rows at a time, for releases of any size."""
    rows = stream_rows(release / "pairs.parquet", schema_of(Pair), _REQUIRED, {"flags"})
    return (Pair(**row) for row in rows)


def read_split_pairs(release: Path, split: str) -> list[Pair]:
    """Read the pairs of a split in ``RELEASE/pairs.parquet``, in the order of ``pair_index``."""
    rows = (pair for pair in stream_pairs(release) if pair.split == split)
    return sorted(rows, key=lambda pair: pair.pair_index)


def read_texts(release: Path, split: Split) -> dict[str, str]:
    """Read the captions of a split in ``RELEASE/pairs.parquet`` as texts, by key."""
    schema = schema_of(Pair, names=("key", "split", "caption"))
    rows = stream_rows(release / "pairs.parquet", schema, schema.names)
    return {row["key"]: row["caption"] for row in rows if row["split"] == split}


def write_rejects(path: Path, rejects: Sequence[Reject]) -> None:
    """Write ``rejects.parquet`` atomically."""
    write_rows(path, rejects, schema_of(Reject))


def stream_rejects(release: Path) -> Iterator[Reject]:
    """Read ``RELEASE/rejects.parquet`` a few rows at a time."""
    required = ("key", "url", "site", "split", "reason")
    rows = stream_rows(release / "rejects.parquet", schema_of(Reject), required)
    return (Reject(**row) for row in rows)


def write_manifest(release: Path, manifest: Manifest) -> None:
    """Write ``manifest.json``: the final act of packaging."""
    write_json(release / "manifest.json", manifest.model_dump(mode="json"))


def read_manifest(release: Path, name: str = "manifest.json") -> Manifest:
    """Read ``RELEASE/manifest.json``."""
    path = release / name
    tree = read_json(path, "no manifest: the release is unfinished or not ours")
    if not isinstance(tree, dict) or tree.get("format") != FORMAT:
        found = tree.get("format") if isinstance(tree, dict) else type(tree).__name__
        raise FormatError(path, f"format {found!r:.60}, expected {FORMAT!r}")
    return build(Manifest, tree, str(path))


def shared_licence(release: Path) -> str:
    """Return the licence by which others may have a release's screenshots: its own, or its pages'.

    Raises:
        ConfigError: If it has none.
    """
    manifest = read_manifest(release)
    licence = str(manifest.settings.get("licence", "other"))
    if licence not in SPDX and not manifest.licences:
        raise ConfigError(
            f"{release / 'manifest.json'}: licence {licence!r} does not let others have the "
            "screenshots; package with --licence, such as cc-by-4.0, or --licensed, or leave "
            "out --captures"
        )
    pages = ", ".join(f"{name} {count:,}" for name, count in manifest.licences.items())
    return f"{licence}, pages {pages}" if pages else licence


def check_files(release: Path) -> list[str]:
    """Hash every file of the manifest again and return one line per file that differs."""
    problems = []
    root = release.resolve()
    for name, entry in read_manifest(release).files.items():
        path = release / name
        try:
            inside, there = path.resolve().is_relative_to(root), path.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, a circle of links
            problems.append(f"{name:.80}: no name of a file ({error!s:.80})")
            continue
        if not inside:
            problems.append(f"{name}: points outside the release")
        elif not there:
            problems.append(f"{name}: missing")
        elif path.stat().st_size != entry.bytes:
            problems.append(f"{name}: {path.stat().st_size} bytes, expected {entry.bytes}")
        elif sha256_of(path) != entry.sha256:
            problems.append(f"{name}: content differs from its sha256")
    return problems


def fingerprint(keys: Iterable[str], captions: Iterable[Sequence[int]]) -> str:
    r"""Identify a (split, tokenizer): sha256 of its ``key<TAB>1,2,3\n`` lines in order."""
    digest = hashlib.sha256()
    for key, ids in zip(keys, captions, strict=True):
        digest.update(fingerprint_line(key, ids))
    return digest.hexdigest()


def fingerprint_line(key: str, ids: Sequence[int]) -> bytes:
    """Return what a pair adds to a :func:`fingerprint`."""
    return f"{key}\t{to_line(ids)}\n".encode()


@dataclass(frozen=True, slots=True)
class Captions:
    """The caption side of a split, in pair order.

    Attributes:
        keys: Page keys; row numbers in the authors' archive, which has no keys.
        captions: Content ids of each pair.
    """

    keys: list[str]
    captions: list[list[int]]

    @property
    def fingerprint(self) -> str:
        """See :func:`fingerprint`."""
        return fingerprint(self.keys, self.captions)


def data_folder(release: Path) -> Path:
    """Find the folder of arrays in a release, under the published names."""
    if not release.is_dir():
        raise FormatError(release, "no such release folder")
    for folder in [*(release / name for name in NOW_NAMES), release]:
        if any(folder.glob("*_caps_*.txt")):
            return folder
    raise FormatError(release, f"no folder {' or '.join(NOW_NAMES)} with caption files in it")


def is_ours(release: Path) -> bool:
    """Whether a release was packaged here (it then has keys), or is the authors' archive."""
    return (release / "manifest.json").exists()


def check_split(split: str) -> Split:
    """Check the name of a split."""
    for name in SPLITS:
        if split == name:
            return name
    raise FormatError("--split", f"found {split!r}, expected one of {', '.join(SPLITS)}")


def read_split_captions(release: Path, split: Split, tokenizer: str) -> Captions:
    """Read keys and caption ids of a split; no features are read."""
    pairs = list(stream_split_captions(release, split, tokenizer))
    return Captions([key for key, _ in pairs], [ids for _, ids in pairs])


def stream_split_captions(
    release: Path, split: Split, tokenizer: str
) -> Iterator[tuple[str, list[int]]]:
    """Yield key and caption ids of each pair of a split, as :func:`read_split_captions` has them.

    That line counts disagree is known, and raised, at the end.
    """
    folder = data_folder(release)
    path = folder / f"{split}_caps_{tokenizer}.txt"
    present = sorted(p.name for p in folder.glob(f"{split}_caps_*.txt"))
    lines = stream_lines(path, f"no such file; there are {present}")
    ours = is_ours(release)
    keys: Iterable[str]
    if ours:
        keys = stream_lines(folder / f"{split}_ids.txt", "no such file")
    else:
        keys = _row_numbers(folder / f"{split}_ims.npy")
    captions = named = 0
    for number, (line, key) in enumerate(zip_longest(lines, keys), 1):
        ids = None if line is None else from_line(path, number, line)
        captions, named = captions + (ids is not None), named + (key is not None)
        if ids is not None and key is not None:
            yield key, ids
    if named != captions:
        count = f"{named} {'keys' if ours else 'images'}"
        raise FormatError(path, f"{captions} captions and {count}, expected as many of each")


def _row_numbers(path: Path) -> Iterator[str]:
    """Count the images of the authors' archive, late: missing captions are the first error."""
    yield from map(str, range(len(read_published_regions(path))))


def read_image_identities(release: Path, split: Split) -> list[str]:
    """Read a hash of each pair's region features: equal entries mean identical images.

    Of the authors' archive, which stores no hashes, all features of the split are read.
    """
    if is_ours(release):
        return [pair.regions_sha256 for pair in stream_pairs(release) if pair.split == split]
    path = data_folder(release) / f"{split}_ims.npy"
    return [hash_of(row) for row in read_published_regions(path)]


def hash_of(regions: Shaped[np.ndarray, "36 dim"]) -> str:
    """Hash an image's region features as float32 bytes."""
    return hashlib.sha256(np.ascontiguousarray(regions, dtype="<f4").tobytes()).hexdigest()


def read_published_regions(path: Path) -> Shaped[np.ndarray, "pairs regions dim"]:
    """Map ``{split}_ims.npy`` into memory, unread."""
    regions: Shaped[np.ndarray, "pairs regions dim"]
    regions = map_array(path, "no such file, and no .h5 of that split")
    if regions.ndim != 3 or regions.dtype.kind != "f":
        raise FormatError(
            path, f"found {regions.dtype} {regions.shape}, expected floats (pairs, regions, dim)"
        )
    return regions


def map_array(path: Path, missing: str) -> Any:
    """Map a ``.npy`` file into memory, unread; not by np.load, which also takes zips and pickles.

    Raises:
        FormatError: If it cannot be read; ``missing`` is the message if there is no such file.
    """
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise FormatError(path, missing) from None
    except NO_ARRAY as error:
        problem = f"not a readable .npy array ({error!r:.200})"
        if "ast.Call" in problem:  # numpy 2 writes np.int64(9) into a header, and cannot read it
            problem = "numpy's own numbers in its header, expected shape=(int(n), …) at its making"
        raise FormatError(path, problem) from None


NO_ARRAY = (
    OSError, EOFError, SyntaxError, TokenError, ValueError, TypeError, LookupError, ArithmeticError,
    RecursionError, MemoryError,
)  # fmt: skip
"""Errors of numpy, and of the parser behind it, on a file that is no array of plain numbers."""


@contextmanager
def open_regions(release: Path, split: Split) -> Iterator[Any]:
    """Open a split's regions for reading: an array-like (pairs, 36, dim), unread.

    Raises:
        FormatError: If they cannot be read, or are of other pages than the captions.
    """
    folder = data_folder(release)
    path, ids = folder / f"{split}.h5", folder / f"{split}_ids.txt"
    if path.exists():
        from now_builder.formats.features import open_features

        with open_features(path) as features:
            if ids.exists() and features.keys != read_lines(ids, "no such file"):
                raise FormatError(path, f"keys are not those of {ids.name}")
            yield features.dataset
    else:
        yield read_published_regions(folder / f"{split}_ims.npy")


def region_attributes(release: Path, split: Split) -> dict[str, str]:
    """Return the attributes of a split's feature file; none for the authors' arrays."""
    path = data_folder(release) / f"{split}.h5"
    if not path.exists():
        return {}
    from now_builder.formats.features import open_features

    with open_features(path) as features:
        return {name: str(value) for name, value in features.attributes.items()}


def features_hashes(release: Path) -> dict[Split, str]:
    """Return the hash of each split's feature file, as the manifest has it; nothing is read of it.

    Empty for releases that have no manifest.
    """
    if not is_ours(release):
        return {}
    files = read_manifest(release).files
    names = {split: f"{DATA_FOLDER}/{split}.h5" for split in SPLITS}
    return {split: files[name].sha256 for split, name in names.items() if name in files}


def read_release_vocabulary(release: Path, tokenizer: str, path: Path | None = None) -> Vocabulary:
    """Read the vocabulary of a tokenizer from ``RELEASE/vocab`` (or ``path``)."""
    if path is not None:
        return read_vocabulary(path)
    folders = [release / "vocab", data_folder(release).parent / "vocab", data_folder(release)]
    for folder in folders:
        for name in NOW_NAMES:
            candidate = folder / f"{name}_vocab_{tokenizer}.json"
            if candidate.exists():
                return read_vocabulary(candidate)
    raise FormatError(folders[0] / f"{DATA_FOLDER}_vocab_{tokenizer}.json", "no such vocabulary")
