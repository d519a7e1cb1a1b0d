"""Croissant 1.1 metadata of a release, with the fields for responsible use."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from now_builder.formats.release import DATA_FOLDER, SPDX, FileEntry, Pair
from now_builder.package.card import ReleaseDescription, as_counts, language_codes
from now_builder.package.settings import PackageSettings
from now_builder.program.html import template_environment

_MEDIA_TYPES = {
    ".h5": ("application/x-hdf5", "Region features, boxes and scores; rows in pair order;"),
    ".npy": ("application/octet-stream", "Region features for the authors' loader;"),
    ".txt": ("text/plain", "Lines in pair order: comma-separated content token ids, or keys"),
    ".json": ("application/json", "Vocabulary or tokenizer"),
    ".parquet": ("application/x-parquet", "Table"),
    ".md": ("text/markdown", "Dataset card"),
    ".csv": ("text/csv", "Sites with repository, commit and licence, for attribution"),
}
"""Media type and description of files by suffix."""


def make_croissant(
    about: ReleaseDescription, settings: PackageSettings, entries: Mapping[str, FileEntry]
) -> dict[str, Any]:
    """Describe a release as JSON-LD.

    Source:
        Croissant 1.1 and Croissant-RAI 1.0, MLCommons.
    """
    spdx = SPDX.get(settings.licence)
    licence = f"https://spdx.org/licenses/{spdx}.html" if spdx else settings.licence
    environment = template_environment("now_builder.package")
    environment.filters["counts"] = as_counts
    text = environment.get_template("croissant.json.j2").render(
        about=about,
        settings=settings,
        licence=[licence, *about.licences] if about.licences else licence,
        languages=language_codes(about.statistics.languages),
        files=[
            {"name": name, "entry": entry, "type": _MEDIA_TYPES[name[name.rindex(".") :]]}
            for name, entry in entries.items()
        ],
        folder=DATA_FOLDER,
        columns=[
            (item.name, "sc:Integer" if item.type is int else "sc:Text") for item in fields(Pair)
        ],
    )
    tree: dict[str, Any] = json.loads(text)
    return tree
