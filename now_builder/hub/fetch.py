"""Fetch NoW as its authors published it: one zip on the hub, unpacked for ``pc2-baseline``."""

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
"""The authors' data set on the hub, and its one large file."""
MARKER = "fetched.json"
_UNPACKED = 3.2
"""Bytes unpacked for a byte of the archive: 11.1 GB of float32 features in 3.53 GB."""
_NO_ZIP = (
    zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError,
    ValueError,
)  # fmt: skip

_log = logging.getLogger(__name__)


class Fetched(Strict):
    """``fetched.json``: identifies the archive; written last.

    Attributes:
        revision: Commit of the data set.
        bytes: Size of the archive.
        sha256: Its hash, checked; ``None`` where the hub names none.
    """

    repository: str
    revision: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True, slots=True)
class _Remote:
    """The archive as the hub describes it; another host that stores it gets no token."""

    location: str
    headers: dict[str, str]
    fetched: Fetched


def fetch_now(
    folder: Path,
    endpoint: str | None = None,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> str:
    """Download the authors' archive, check and unpack it, and write ``fetched.json`` last.

    A download that was cut goes on where it was. The archive is removed when it is unpacked.

    Returns:
        One line about the content.

    Raises:
        NowError: If the hub cannot be reached or refuses, or the disk is too small.
        ConfigError: If another command writes in the folder.
        FormatError: If the archive is torn, or is not NoW's.
    """
    marker = folder / MARKER
    if marker.exists() and not force:
        build(Fetched, read_json(marker, "no such file"), str(marker))
        return f"{folder}: there already, {_described(folder)}"
    if (folder / "manifest.json").exists():
        raise FormatError(folder, "a release made by package, expected another folder")
    with lock_folder(folder):
        return _fetch(folder, endpoint)


def _fetch(folder: Path, endpoint: str | None) -> str:
    marker = folder / MARKER
    remove_leftovers(folder)
    remote = _find(endpoint)  # what cannot be had costs nothing that is there
    if marker.exists():
        marker.unlink()
        for name in (*NOW_NAMES, "vocab"):
            shutil.rmtree(folder / name, ignore_errors=True)
    archive = folder / f".{ARCHIVE}.{(remote.fetched.sha256 or remote.fetched.revision)[:12]}.part"
    for part in set(folder.glob(f".{ARCHIVE}.*.part")) - {archive}:
        part.unlink()  # of what the hub had before
    _download(remote, archive)
    _unpack(archive, folder)
    described = _described(folder)
    write_json(marker, remote.fetched.model_dump(mode="json"))
    archive.unlink()
    return f"{folder}: {described}"


def _find(endpoint: str | None) -> _Remote:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    with hub_errors(f"{REPOSITORY}/{ARCHIVE}"):
        url = hf_hub_url(REPOSITORY, ARCHIVE, repo_type="dataset", endpoint=endpoint)
        headers = build_hf_headers()
        found = get_hf_file_metadata(url, headers=headers, endpoint=endpoint)
    if found.size is None or found.commit_hash is None:
        raise NowError(f"{url}: no size or no commit in the answer: not a hub")
    if urlsplit(found.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)
    sha256 = found.etag if found.etag and len(found.etag) == 64 else None
    fetched = Fetched(
        repository=REPOSITORY, revision=found.commit_hash, bytes=found.size, sha256=sha256
    )
    return _Remote(found.location, headers, fetched)


def _download(remote: _Remote, path: Path) -> None:
    """Append to the part that is there what it lacks, and check the whole."""
    from huggingface_hub.file_download import http_get

    size, start = remote.fetched.bytes, path.stat().st_size if path.exists() else 0
    if start > size:
        path.unlink()
        start = 0
    _check_room(path.parent, size - start + int(size * _UNPACKED))
    if start:
        _log.info("going on at %s of %s", size_text(start), size_text(size))
    with hub_errors(f"{remote.fetched.repository}/{ARCHIVE}"), path.open("ab") as file:
        # Its own hf_hub_download begins again when its process was killed.
        http_get(
            remote.location,
            file,
            resume_size=start,
            headers=remote.headers,
            expected_size=size,
            displayed_filename=ARCHIVE,
        )
    _log.info("checking %s", size_text(size))
    if remote.fetched.sha256 and sha256_of(path) != remote.fetched.sha256:
        path.unlink()
        raise FormatError(
            path, "its SHA-256 is not the hub's; it was removed: run the same command again"
        )


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NowError(
            f"{folder}: {size_text(free)} free, expected {size_text(needed)} for the archive "
            "and what is in it"
        )


def _unpack(archive: Path, folder: Path) -> None:
    """Write the archive's data folder and vocabularies, each file by rename."""
    try:
        with zipfile.ZipFile(archive) as file:
            members = {member: _place(member) for member in file.infolist()}
            wanted = {member: place for member, place in members.items() if place is not None}
            _check_room(folder, sum(member.file_size for member in wanted))
            for member, place in wanted.items():
                _log.info("unpacking %s, %s", place, size_text(member.file_size))
                with (
                    atomic_write(folder / place) as temporary,
                    file.open(member) as source,
                    temporary.open("wb") as out,
                ):
                    shutil.copyfileobj(source, out, 1 << 20)
    except _NO_ZIP as error:
        archive.unlink()
        problem = f"not a whole zip ({error}); it was removed: run the same command again"
        raise FormatError(archive, problem) from None


def _place(member: zipfile.ZipInfo) -> Path | None:
    """Return the place of a file of the archive; ``None`` if it is none of NoW's.

    What the names begin with, such as ``NoW/``, is left out, so nothing leads out of the folder.
    """
    parts = PurePosixPath(member.filename).parts
    known = len(parts) > 1 and parts[-2] in {*NOW_NAMES, "vocab"}
    if member.is_dir() or not known or parts[0] == "__MACOSX" or parts[-1].startswith("."):
        return None
    return Path(parts[-2], parts[-1])


def _described(folder: Path) -> str:
    """Read captions and vocabularies as a training does; return their numbers in a line."""
    release = open_release(folder)
    tokenizers = release.tokenizers("train")
    for name in tokenizers:
        counts = {split: len(release.captions(split, name).keys) for split in SPLITS}
        release.vocabulary(name)
    if not tokenizers:
        raise FormatError(folder, "no train_caps_*.txt, expected the authors' layout")
    pairs = ", ".join(f"{split} {count:,}" for split, count in counts.items())
    return f"{pairs} pairs; {', '.join(tokenizers)}"
