"""The card of an export: the release's, with the export's files in its head and how to load it."""

from collections.abc import Mapping
from dataclasses import dataclass

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


def export_card(release_card: str, loading: Loading, digest: str) -> str:
    """Return the card of an export.

    ``digest`` stands in each configuration: ``datasets`` caches by the folder's last name and the
    configurations, so that it would go on with an earlier export to a folder of that name.
    """
    _, head, body = release_card.split("---\n", 2)
    lines = ["configs:"] if loading.configurations else []
    for name, files in loading.configurations.items():
        lines += [f"  - config_name: {name}", f'    description: "{digest}"', "    data_files:"]
        for split, path in files.items():
            lines += [f"      - split: {split}", f"        path: {path}"]
    head = head.partition("configs:")[0] + "".join(f"{line}\n" for line in lines)
    title, rest = body.lstrip("\n").split("\n\n", 1)
    first, section, others = rest.partition("## ")
    told = f"## Load it\n\n{loading.section}\n\n"
    return f"---\n{head}---\n\n{title}\n\n{first}{told}{section}{others}"
