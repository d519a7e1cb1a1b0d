"""Publish a release on the hub as Parquet, with card and Croissant metadata."""

import logging
import multiprocessing
import re
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.export.card import PLACEHOLDER
from now_builder.export.run import export
from now_builder.export.settings import ExportSettings, IncludedSettings, PublishSettings
from now_builder.formats.io import write_text
from now_builder.formats.release import LICENCES, read_manifest, shared_licence
from now_builder.hub.client import NO_XET, BusyError, hub_errors, retry_on_rate_limit, size_text
from now_builder.package.verify import verify

_LONG_S = 30.0  # Seconds before a warning suggests how to avoid Xet

_MESSAGE = "Publish a release of noise-of-web"

_EVALUATION = """name: "{name}"
description: >-
  Web page screenshots and their descriptions. i2t finds the description of a screenshot, t2i the
  screenshot of a description, among all of the test split. The value is nDCG@10 in percent.
evaluation_framework: mteb
tasks:
  - id: i2t
    config: default
    split: test
  - id: t2i
    config: default
    split: test
"""
"""``eval.yaml``, which makes a data set a benchmark on the hub. Of the frameworks that the hub
accepts, only MTEB retrieves images and texts."""

_log = logging.getLogger(__name__)
_OURS = re.compile(r"data/(train|dev|test)-\d{5}-of-\d{5}\.parquet|licences\.csv")


@dataclass(frozen=True, slots=True)
class DatasetUpload:
    """A data set to publish as ``USER/NAME``; ``files`` are local files by path in it."""

    repository: str
    files: Mapping[str, Path]
    licence: str
    pictures: bool
    settings: PublishSettings

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.files.values())

    def __str__(self) -> str:
        lines = [f"{path.stat().st_size:>15,}  {name}" for name, path in self.files.items()]
        visibility = "private" if self.settings.private else "public"
        pictures = "with screenshots" if self.pictures else "no screenshots"
        total = f"{self.bytes:>15,}  in {len(self.files)} files ({size_text(self.bytes)})"
        about = f"{visibility} data set {self.repository}: licence {self.licence}, {pictures}"
        return "\n".join([*lines, total, about])


def prepare(
    release: Path,
    repository: str,
    settings: PublishSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in every stage
) -> DatasetUpload:
    """Export a release to ``RELEASE-hub`` like ``export --to parquet``; send nothing.

    Raises:
        ConfigError: If the name is invalid, or the licence does not allow copies of pictures.
        FormatError: If the release is damaged or changed.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
        raise ConfigError(f"{repository}: expected USER/NAME")
    manifest = read_manifest(release)
    licence = str(manifest.settings.get("licence", "other"))
    if settings.captures is not None or manifest.licences:
        licence = shared_licence(release)
    problems = verify(release)
    if problems:
        raise FormatError(release, "; ".join(problems))
    named = release if release.name not in {"", ".."} else release.resolve()
    folder = named.with_name(f"{named.name}-hub")
    pictures = settings.captures is not None
    shared = settings.model_dump(include={*IncludedSettings.model_fields})
    as_parquet = ExportSettings(to="parquet", **shared)
    names = [*export(release, folder, as_parquet, force), "croissant.json", "README.md"]
    if manifest.licences:
        names.append(LICENCES)
    write_text(folder / "eval.yaml", _EVALUATION.format(name=repository.partition("/")[2]))
    files = {name: folder / name for name in [*names, "eval.yaml"]}
    return DatasetUpload(repository, files, licence, pictures, settings)


def account() -> str:
    """Return the name of the hub's user by the stored token."""
    from huggingface_hub import HfApi

    def name() -> str:
        with hub_errors("publish"):
            return str(HfApi().whoami()["name"])

    return retry_on_rate_limit(name)


def send(upload: DatasetUpload) -> str:
    """Create the data set if necessary, and upload all files; the last commit adds the card.

    Rate-limited requests are retried. A rerun after a stop only uploads missing files. Parquet
    files and licences of an earlier release are removed.

    Returns:
        Address of the data set.

    Raises:
        NowError: If the hub cannot be reached or reports an error, or the data set is public but
            should be private.
    """
    from huggingface_hub import HfApi

    name, settings = upload.repository, upload.settings
    api = HfApi()

    def make() -> set[str]:
        with hub_errors(name):
            api.create_repo(name, repo_type="dataset", private=settings.private, exist_ok=True)
            info = api.dataset_info(name)
        if settings.private and not info.private:
            raise NowError(f"{name}: public already. Make it private on its settings page")
        return {file.rfilename for file in info.siblings or []}

    old = sorted(filter(_OURS.fullmatch, retry_on_rate_limit(make) - set(upload.files)))
    retry_on_rate_limit(partial(_send_by_process, upload, old))
    return f"{api.endpoint}/datasets/{name}"


def _send_by_process(upload: DatasetUpload, remove: Sequence[str]) -> None:
    """Send the files in a separate process, because Xet's client ignores signals."""
    from huggingface_hub.utils._runtime import is_xet_available

    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_files, args=(sender, upload, remove), daemon=True)
    process.start()
    sender.close()
    try:
        process.join(_LONG_S)
        if process.is_alive() and is_xet_available():
            hint = "still sending. If nothing moves, stop it. " + NO_XET
            _log.warning("publish: %s: %s", upload.repository, hint)
        process.join()
    finally:
        process.kill()
    with suppress(EOFError):
        problem, wait_s = receiver.recv()
        raise NowError(problem) if wait_s is None else BusyError(problem, wait_s)
    if process.exitcode:
        raise NowError(
            f"{upload.repository}: the upload process ended with code {process.exitcode}"
        )


def _send_files(sender: Connection, upload: DatasetUpload, remove: Sequence[str]) -> None:
    """Upload files, then the card; report an error of the hub's client through ``sender``."""
    from huggingface_hub import HfApi

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    name, card = upload.repository, upload.files["README.md"]
    api = HfApi()
    shared: dict[str, Any] = {"repo_id": name, "repo_type": "dataset", "commit_message": _MESSAGE}
    text = card.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
    try:
        with hub_errors(name):
            api.upload_folder(
                folder_path=card.parent,
                allow_patterns=[path for path in upload.files if path != "README.md"],
                delete_patterns=list(remove) or None,
                **shared,
            )
            api.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", **shared)
    except NowError as error:
        sender.send((str(error), error.wait_s if isinstance(error, BusyError) else None))
