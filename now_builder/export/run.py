"""Write a release in another tool's format, file by file; existing files are kept.

A format is a module: ``parts`` lists its files or folders, ``write`` writes one atomically, and
``finish`` writes the other files and returns instructions for loading.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pyarrow as pa

from now_builder import __version__
from now_builder.config import Strict, build
from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.export.card import export_card, read_card
from now_builder.export.pairs import Part, Source, read_source
from now_builder.export.settings import ExportSettings
from now_builder.formats.io import (
    check_folder_is_ours,
    lock_folder,
    read_json,
    remove_leftovers,
    sha256_of,
    write_json,
    write_text,
)
from now_builder.formats.release import LICENCES, read_manifest
from now_builder.program.progress import track_progress

_OTHER_FILES = {
    "parquet": ("croissant.json",),
    "webdataset": ("sizes.json",),
    "openclip": ("train.csv", "dev.csv", "test.csv"),
    "mteb": ("now_tasks.py",),
}
"""Files that ``finish`` writes, by format."""
RECORD = "export.json"
"""Export metadata (source, settings); written first."""


class ExportRecord(Strict):
    """``export.json``.

    Attributes:
        to: Format.
        digest: Hash of manifest, pairs, screenshots, settings and versions.
        files: Paths in the export that ``--force`` removes.
    """

    to: str
    digest: str
    files: list[str]


def export(
    release: Path,
    out: Path,
    settings: ExportSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> dict[str, int]:
    """Write a release in the format ``settings.to`` and, last, its card ``README.md``.

    Every copy of a release of licensed pages gets their ``licences.csv``. Existing files are kept,
    so a killed run can be resumed; the same release, captures and settings give the same bytes.

    Returns:
        Number of pairs by file.

    Raises:
        ConfigError: If settings contradict each other, or ``out`` contains other files or, without
            ``force``, an export of another release or settings.
        FormatError: If release or captures are damaged, the captures are of another release, or
            card or metadata are not in the form that ``package`` writes; nothing is written then.
    """
    source = read_source(release, settings)
    card = read_card(release / "DATASET_CARD.md")
    module = "beir" if settings.to == "mteb" else settings.to
    writer = import_module(f"now_builder.export.{module}")
    parts = writer.parts(source)
    licensed = LICENCES in read_manifest(release).files
    last = [*([LICENCES] if licensed else []), "README.md"]
    names = [*(part.name for part in parts), *_OTHER_FILES.get(settings.to, ()), *last]
    record = ExportRecord(to=settings.to, digest=_digest(source, parts), files=names)
    with lock_folder(out):
        _make_room(out, record, force=force)
        for part in track_progress(parts, "export", "file"):
            if not (out / part.name).exists():
                writer.write(source, part, out / part.name)
        loading = writer.finish(source, out, parts)
        if licensed:
            write_text(out / LICENCES, (release / LICENCES).read_text(encoding="utf-8"))
        write_text(out / "README.md", export_card(card, loading, record.digest))
    return {part.name: len(part.pairs) for part in parts}


def _digest(source: Source, parts: Sequence[Part]) -> str:
    """Hash the inputs and settings of an export."""
    settings = source.settings.model_dump(exclude={"captures"})
    hashed = [sha256_of(source.release / name) for name in ("manifest.json", "pairs.parquet")]
    tree = [
        hashed, settings,
        [(part.name, len(part.pairs)) for part in parts],
        {key: shot.sha256 for key, shot in source.screenshots.items()}, pa.__version__, __version__,
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(tree).encode()).hexdigest()


def _make_room(out: Path, record: ExportRecord, *, force: bool) -> None:
    """Delete partial output and, with ``force``, an existing export."""
    check_folder_is_ours(out, RECORD)
    path = out / RECORD
    for folder in {out, *((out / name).parent for name in record.files)}:
        remove_leftovers(folder)
    try:
        old = build(ExportRecord, read_json(path, ""), str(path)) if path.exists() else None
    except NowError as error:
        problem = str(error).removeprefix(f"{path}: ")
        raise FormatError(path, f"{problem}. Delete the folder") from None
    ours = old.files if old else []
    taken = [name for name in record.files if name not in ours and (out / name).exists()]
    if taken:
        raise ConfigError(f"{out / taken[0]}: exists, but not from an export. Give another OUT")
    if old == record and not force:
        return
    if old and not force:
        problem = "exported from another release or with other settings. Give --force to replace it"
        raise ConfigError(f"{out}: {problem}")
    for name in reversed(ours):  # README.md first, so that the rest is incomplete
        path = out / name
        if out.resolve() not in path.resolve().parents:
            raise FormatError(out / RECORD, f"files: {name!r:.80} lies outside the folder")
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    write_json(out / RECORD, record.model_dump())
