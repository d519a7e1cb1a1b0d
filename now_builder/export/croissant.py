"""Croissant metadata of an export as Parquet: what the release's says, but for its files."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from now_builder.errors import FormatError
from now_builder.formats.io import read_json
from now_builder.formats.split import SPLITS

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
