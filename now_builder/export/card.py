"""Card and Croissant metadata of an export: the release's, with the export's own files in them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.io import read_json
from now_builder.formats.split import SPLITS

PLACEHOLDER = "OWNER/NAME"
"""Name of the data set in its card, until it has one on the hub."""


@dataclass(frozen=True, slots=True)
class Loading:
    """How an export is loaded.

    Attributes:
        configurations: Files by split, as patterns, of each configuration for ``datasets``.
        section: Text of the card, in Markdown.
    """

    configurations: Mapping[str, Mapping[str, str]]
    section: str


_CARD = re.compile(
    r"---\n(.*?)^(?:configs:\n.*?^)?---\n+(\S.*?)\n\n(.*?)((?:^## .*)?)", re.MULTILINE | re.DOTALL
)
"""Head without the files, title, what stands before the first section, and the sections."""

Card = tuple[str, str, str, str]
"""The parts of a release's card."""


def read_card(path: Path) -> Card:
    """Read a release's card.

    Raises:
        FormatError: If it is missing, no text, or not made as ``package`` makes it.
    """
    if not path.exists():
        made = "a release made by `now-builder package`, not one that was planted or drawn from it"
        raise FormatError(path, f"file not found, expected {made}")
    try:
        found = _CARD.fullmatch(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(path, f"no card that can be read ({error})") from None
    if found is None:
        raise FormatError(path, "expected a head between lines ---, a title and a text under it")
    head, title, first, sections = found.groups()
    return head, title, first, sections


def export_card(card: Card, loading: Loading, digest: str) -> str:
    """Return the card of an export, by that of its release.

    ``digest`` stands in each configuration: ``datasets`` caches by the folder's last name and the
    configurations, so that it would go on with an earlier export to a folder of that name.
    """
    head, title, first, sections = card
    lines = ["configs:"] if loading.configurations else []
    for name, files in loading.configurations.items():
        lines += [f"  - config_name: {name}", f'    description: "{digest}"', "    data_files:"]
        for split, path in files.items():
            lines += [f"      - split: {split}", f"        path: {path}"]
    head += "".join(f"{line}\n" for line in lines)
    told = f"## Load it\n\n{loading.section}\n\n"
    return f"---\n{head}---\n\n{title}\n\n{first}{told}{sections}"


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
    tree = read_json(path, "no such file; package the release again")
    nodes = tree.get("recordSet") if isinstance(tree, dict) else None
    if not isinstance(nodes, list) or not all(isinstance(n, dict) and "@id" in n for n in nodes):
        raise FormatError(path, "expected a list recordSet of nodes with @id")
    return dict(tree)


def describe_parquet(release: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Return a release's Croissant tree with the export's files and columns in it."""
    records = [node for node in release["recordSet"] if node["@id"] == "splits"]
    tree: dict[str, Any] = {**release, "distribution": [], "recordSet": records}
    for split in SPLITS:
        files = {
            "encodingFormat": "application/x-parquet", "includes": f"data/{split}-*.parquet",
        }  # fmt: skip
        tree["distribution"].append(_node("cr:FileSet", f"{split}-files", **files))
        about = f"One row a pair of {split}, in pair order."
        rows = [_column(split, name) for name in columns]
        tree["recordSet"].append(_node("cr:RecordSet", split, description=about, field=rows))
    if "image" in columns:
        tree["rai:dataCollectionRawData"] = "Screenshots are in it; HTML is kept by the maker."
    return tree


def _node(kind: str, name: str, **properties: Any) -> dict[str, Any]:
    return {"@type": kind, "@id": name, "name": name, **properties}


def _column(split: str, name: str) -> dict[str, Any]:
    source: dict[str, Any] = {"fileSet": {"@id": f"{split}-files"}, "extract": {"column": name}}
    if name == "image":
        source["transform"] = {"jsonPath": "bytes"}
    kind = _TYPES.get(name, "sc:Integer" if name.startswith("tokens_") else "sc:Text")
    repeated = {"repeated": True} if _MANY.fullmatch(name) else {}
    field = {"@type": "cr:Field", "@id": f"{split}/{name}", "name": name, "dataType": kind}
    return {**field, **repeated, "source": source}
