"""The card of an export: the release's, with the export's files in its head and how to load it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from now_builder.errors import FormatError

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
