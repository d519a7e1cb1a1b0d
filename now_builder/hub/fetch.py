"""Download NoW as its authors published it, a zip on the hub, and unpack it."""

import logging
import lzma
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from now_builder.config import Strict, build
from now_builder.errors import FormatError, NowError
from now_builder.formats.benchmarks import NOW_NAMES
from now_builder.formats.io import (
    atomic_write,
    lock_folder,
    read_json,
    remove_leftovers,
    sha256_of,
    write_json,
)
from now_builder.formats.reader import open_release
from now_builder.formats.split import SPLITS
from now_builder.hub.client import hub_errors, size_text

REPOSITORY, ARCHIVE = "NJUyued/NoW", "NoW.zip"
"""The authors' data set on the hub, and its large file."""
MARKER = "fetched.json"
_UNPACKED = 3.2  # Ratio of unpacked to packed size: 11.1 GB of float32 features in 3.53 GB
_NO_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError,
    ValueError,
)  # fmt: skip

_REMOVED = "It was removed. Run the same command again"
_log = logging.getLogger(__name__)


class Fetched(Strict):
    """``fetched.json``: identifies the archive; written last.

    Attributes:
        revision: Commit of the data set.
        bytes: Size of the archive.
        sha256: Its verified hash; ``None`` if the hub does not give it.
    """

    repository: str
    revision: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class _Remote:
    """The archive as the hub describes it; ``headers`` have no token for another host."""

    location: str
    headers: dict[str, str]
    fetched: Fetched


def fetch_now(
    folder: Path,
    endpoint: str | None = None,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> str:
    """Download the authors' archive, check and unpack it, and write ``fetched.json`` last.

    An interrupted download is resumed. The archive is removed after unpacking.

    Returns:
        One line about the content.

    Raises:
        NowError: If the hub cannot be reached or reports an error, or the disk is too small.
        ConfigError: If another command writes in the folder.
        FormatError: If the archive is damaged or not NoW's.
    """
    marker = folder / MARKER
    if marker.exists() and not force:
        build(Fetched, read_json(marker, "file not found"), str(marker))
        return f"{folder}: downloaded already, {_summary(folder)}"
    if (folder / "manifest.json").exists():
        raise FormatError(folder, "contains a release made by package. Give another folder")
    with lock_folder(folder):
        return _fetch(folder, endpoint)


def _fetch(folder: Path, endpoint: str | None) -> str:
    marker = folder / MARKER
    remove_leftovers(folder)
    remote = _find(endpoint)  # before anything is deleted
    if marker.exists():
        marker.unlink()
        for name in (*NOW_NAMES, "vocab"):
            shutil.rmtree(folder / name, ignore_errors=True)
    archive = folder / f".{ARCHIVE}.{(remote.fetched.sha256 or remote.fetched.revision)[:12]}.part"
    for part in set(folder.glob(f".{ARCHIVE}.*.part")) - {archive}:
        part.unlink()  # of an earlier revision
    _download(remote, archive)
    _unpack(archive, folder)
    summary = _summary(folder)
    write_json(marker, remote.fetched.model_dump(mode="json"))
    archive.unlink()
    return f"{folder}: {summary}"


def _find(endpoint: str | None) -> _Remote:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    with hub_errors(f"{REPOSITORY}/{ARCHIVE}"):
        url = hf_hub_url(REPOSITORY, ARCHIVE, repo_type="dataset", endpoint=endpoint)
        headers = build_hf_headers()
        file = get_hf_file_metadata(url, headers=headers, endpoint=endpoint)
    size, revision = file.size, file.commit_hash
    if size is None or revision is None:
        raise NowError(f"{url}: the answer has no size or no commit, so this is not a hub")
    if urlsplit(file.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)
    sha256 = file.etag if file.etag and len(file.etag) == 64 else None
    fetched = Fetched(repository=REPOSITORY, revision=revision, bytes=size, sha256=sha256)
    return _Remote(file.location, headers, fetched)


def _download(remote: _Remote, path: Path) -> None:
    """Resume the download and verify its checksum."""
    from huggingface_hub.file_download import http_get

    size, start = remote.fetched.bytes, path.stat().st_size if path.exists() else 0
    if start > size:
        path.unlink()
        start = 0
    _check_room(path.parent, size - start + int(size * _UNPACKED))
    if start:
        _log.info("resuming at %s of %s", size_text(start), size_text(size))
    with hub_errors(f"{remote.fetched.repository}/{ARCHIVE}"), path.open("ab") as file:
        # hf_hub_download would start over after its process was killed.
        http_get(remote.location, file, resume_size=start, headers=remote.headers,
                 expected_size=size, displayed_filename=ARCHIVE)  # fmt: skip
    _log.info("checking %s", size_text(size))
    if remote.fetched.sha256 and sha256_of(path) != remote.fetched.sha256:
        path.unlink()
        raise FormatError(path, f"SHA-256 differs from the hub's. {_REMOVED}")


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        expected = f"expected {size_text(needed)} for the archive and its files"
        raise NowError(f"{folder}: {size_text(free)} free, {expected}")


def _unpack(archive: Path, folder: Path) -> None:
    """Write the archive's data folder and vocabularies, each file atomically."""
    try:
        with zipfile.ZipFile(archive) as file:
            places = {member: place for member in file.infolist() if (place := _place(member))}
            _check_room(folder, sum(member.file_size for member in places))
            for member, place in places.items():
                _log.info("unpacking %s, %s", place, size_text(member.file_size))
                with (
                    atomic_write(folder / place) as temporary,
                    file.open(member) as source,
                    temporary.open("wb") as out,
                ):
                    shutil.copyfileobj(source, out, 1 << 20)
    except _NO_ZIP as error:
        archive.unlink()
        raise FormatError(archive, f"not a complete zip ({error}). {_REMOVED}") from None


def _place(member: zipfile.ZipInfo) -> Path | None:
    """Return the path to which a member is unpacked; ``None`` if it is not a file of NoW.

    Leading folders, such as ``NoW/``, are left out, so no path leads out of the target folder.
    """
    parts = PurePosixPath(member.filename).parts
    is_ours = len(parts) > 1 and parts[-2] in {*NOW_NAMES, "vocab"}
    if member.is_dir() or not is_ours or parts[0] == "__MACOSX" or parts[-1].startswith("."):
        return None
    return Path(parts[-2], parts[-1])


def _summary(folder: Path) -> str:
    """Read captions and vocabularies like a training, and return their numbers in a line."""
    release = open_release(folder)
    tokenizers = release.tokenizers("train")
    for name in tokenizers:
        counts = {split: len(release.captions(split, name).keys) for split in SPLITS}
        release.vocabulary(name)
    if not tokenizers:
        raise FormatError(folder, "no train_caps_*.txt, expected the authors' layout")
    pairs = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    return f"{pairs} pairs; {', '.join(tokenizers)}"
