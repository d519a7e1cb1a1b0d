"""Make the card and Croissant metadata of an export from those of its release."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.io import read_json
from now_builder.formats.split import SPLITS

PLACEHOLDER = "OWNER/NAME"
"""Name of the data set in its card, before it is published on the hub."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Instructions for loading an export.

    Attributes:
        configurations: Patterns of files by configuration of ``datasets`` and by split.
        section: Section of the card, in Markdown.
    """

    configurations: Mapping[str, Mapping[str, str]]
    section: str


_CARD = re.compile(
    r"---\n(.*?)^(?:configs:\n.*?^)?---\n+(\S.*?)\n\n(.*?)((?:^## .*)?)", re.MULTILINE | re.DOTALL
)
"""Head without the files, title, text before the first section, and the sections."""

Card = tuple[str, str, str, str]
"""The parts of a release's card."""


def read_card(path: Path) -> Card:
    """Read a release's card.

    Raises:
        FormatError: If it is missing, not a text, or not in the form that ``package`` writes.
    """
    if not path.exists():
        raise FormatError(path, "file not found. Give a release made by `now-builder package`")
    try:
        match = _CARD.fullmatch(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(path, f"cannot be read ({error})") from None
    if match is None:
        raise FormatError(path, "expected a head between lines ---, a title and text below it")
    head, title, first, sections = match.groups()
    return head, title, first, sections


def export_card(card: Card, loading: Loading, digest: str) -> str:
    """Return the card of an export, made from its release's.

    Each configuration contains ``digest``, because ``datasets`` caches by folder name and
    configurations: without it, another export to a folder of the same name would come from the
    cache.
    """
    head, title, first, sections = card
    lines = ["configs:"] if loading.configurations else []
    for name, files in loading.configurations.items():
        lines += [f"  - config_name: {name}", f'    description: "{digest}"', "    data_files:"]
        for split, path in files.items():
            lines += [f"      - split: {split}", f"        path: {path}"]
    head += "".join(f"{line}\n" for line in lines)
    section = f"## Load it\n\n{loading.section}\n\n"
    return f"---\n{head}---\n\n{title}\n\n{first}{section}{sections}"


_TYPES = {
    "image": "sc:ImageObject", "pair_index": "sc:Integer", "url": "sc:URL", "boxes": "sc:Float",
    "scores": "sc:Float", "regions": "sc:Float", "classes": "sc:Integer",
}  # fmt: skip
_MANY = re.compile(r"boxes|scores|classes|regions|flags|tokens_.*")


def read_croissant(path: Path) -> dict[str, Any]:
    """Read a release's Croissant tree.

    Raises:
        FormatError: If it is missing, or has no list ``recordSet`` of nodes with ``@id``.
    """
    tree = read_json(path, "file not found. Package the release again")
    nodes = tree.get("recordSet") if isinstance(tree, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(n, dict) and "@id" in n for n in nodes):
        raise FormatError(path, "expected a list recordSet of nodes with @id")
    return dict(tree)


def describe_parquet(release: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a release's Croissant tree with the export's files and columns."""
    records = [node for node in release["recordSet"] if node["@id"] == "splits"]
    tree: dict[str, Any] = {**release, "distribution": [], "recordSet": records}
    for split in SPLITS:
        files = {
            "encodingFormat": "application/x-parquet", "includes": f"data/{split}-*.parquet",
        }  # fmt: skip
        tree["distribution"].append(_node("cr:FileSet", f"{split}-files", **files))
        about = f"One row per pair of {split}, in pair order."
        rows = [_column(split, name) for name in columns]
        tree["recordSet"].append(_node("cr:RecordSet", split, description=about, field=rows))
    if "image" in columns:
        tree["rai:dataCollectionRawData"] = "Screenshots are included; the maker keeps the HTML."
    return tree


def _node(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    return {"@type": kind, "@id": name, "name": name, **properties}


def _column(split: str, name: str) -> dict[str, Any]:
    source: dict[str, Any] = {"fileSet": {"@id": f"{split}-files"}, "extract": {"column": name}}
    if name == "image":
        source["transform"] = {"jsonPath": "bytes"}
    data_type = _TYPES.get(name, "sc:Integer" if name.startswith("tokens_") else "sc:Text")
    repeated = {"repeated": True} if _MANY.fullmatch(name) else {}
    field = {"@type": "cr:Field", "@id": f"{split}/{name}", "name": name, "dataType": data_type}
    return {**field, **repeated, "source": source}
