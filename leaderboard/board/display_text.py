"""Display text of the pages: names of boards, sections, evidence and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leaderboard.board.charts import Style
from leaderboard.board.tables import SectionKind
from leaderboard.store.entries import Entry
from now_builder.formats.benchmarks import BOARD_FACTS, BoardName
from now_builder.formats.captions import TOKENIZERS

TITLES: Mapping[BoardName, str] = {name: facts.title for name, facts in BOARD_FACTS.items()}
ABOUT: Mapping[BoardName, str] = {name: facts.about for name, facts in BOARD_FACTS.items()}
WAYS = ("Image → caption", "Caption → image")
REFERENCES: Mapping[str, str] = {
    "chance": "Chance",
    "lang": "Language alone",
    "site": "Site alone",
    "lang+site": "Language and site",
    "lang+topic": "Language and topic",
    "ocr": "Text on the screenshot, read",
    "text": "Text on the first screen",
}
EVIDENCE: Mapping[str, str] = {
    name: "file scored" if name == "scored" else name
    for name in ("reported", "scored", "contradicted", "reproduced", "blind")
}
WITHIN: Mapping[str, str] = {
    "within_site": "Within sites",
    "across_owners": "Across owners, one page of each",
    "within_language": "Within languages",
}
"""Figures among the candidates of a group, by the result's field."""

SERIES: Mapping[bool, Mapping[Style, str]] = {
    True: {"a": "rebuilt release or blind round", "c": "the authors’ test set"},
    False: {
        "a": "captions shuffled one by one",
        "b": "images shuffled with all their captions",
        "c": "no noise added, or other noise",
    },
}
"""Meaning of the line styles of a progress chart: of Noise of Web, and of the other data sets."""


@dataclass(frozen=True, slots=True)
class Note:
    """A short note next to a method's name."""

    text: str
    warning: bool = False


def section_title(kind: SectionKind, board: BoardName) -> str:
    """Return the title of a section."""
    if board not in TOKENIZERS:
        return kind.noise.title[:1].upper() + kind.noise.title[1:]
    where = {
        "rebuilt": "Rebuilt release",
        "archive": "The authors’ test set" if kind.published else "Another archive",
        "blind": "Blind round",
        "closed": "Closed blind round",
        "field": "Another data set",
    }[kind.origin]
    return where if kind.noise.protocol == "web" else f"{where}, {kind.noise.title}"


def series_of(kind: SectionKind, board: BoardName) -> tuple[Style, str, str]:
    """Return a section's style, short label and title in a progress chart."""
    title = f"{TITLES[board]}, {section_title(kind, board)}"
    if board in TOKENIZERS:
        short = TITLES[board].removeprefix("NoW ")
        where = "" if kind.published or not kind.fingerprint else f" {kind.fingerprint[:4]}"
        return "c" if kind.published else "a", f"{short}{where}", title
    styles: Mapping[str, Style] = {"captions": "a", "images": "b"}
    share = f"{100 * kind.noise.mismatch:.0f} %" if kind.noise.mismatch else kind.noise.protocol
    return styles.get(kind.noise.protocol, "c"), share, title


def size_of(kind: SectionKind) -> str:
    """Describe the size of the gallery."""
    if kind.sites:
        return f"{kind.n_pairs:,} pairs, ranked within each of {kind.sites} sites"
    if kind.folds > 1:
        return f"{kind.folds} folds of {kind.n_images // kind.folds:,} images"
    if kind.n_images == kind.n_pairs:
        return f"{kind.n_pairs:,} pairs"
    return f"{kind.n_images:,} images, {kind.n_pairs:,} captions"


def listed(values: Sequence[object], most: int) -> str:
    """Join the first ``most`` values with commas, and count the rest."""
    rest = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + rest


def row_notes(row: Mapping[str, Any]) -> list[Note]:
    """Return the notes that a reader needs before comparing a row."""
    size, item = row["ensemble"], row["item"]
    networks = [Note("one network" if size == 1 else f"{size} networks")] if size else []
    if not isinstance(item, Entry):
        return networks
    result = item.shown
    step = result.postprocessing.kind
    post = Note(f"{step.replace('_', '-')} post-processing", warning=step == "transductive")
    chosen = result.training.checkpoint_selection == "test"
    return [
        *([Note(f"ranks of {row['equal_to']}", warning=True)] if row["equal_to"] else []),
        *([] if row["ranked"] else [Note("not ranked", warning=True)]),
        *networks,
        *([Note("epoch chosen on test", warning=True)] if chosen else []),
        *([Note("trained on test images", warning=True)] * result.training.uses_test_images),
        *([Note("external data")] if result.training.has_external_data else []),
        *([post] if step != "none" else []),
        *(Note(code.replace("-", " the ")) for code in row["notes"]),
        *([Note("float16")] if result.precision == "float16" else []),
    ]


def filter_classes(row: Mapping[str, Any]) -> str:
    """Return the CSS classes that the page's filters select; unknown properties match no filter."""
    item, classes = row["item"], [row["evidence"]]
    if isinstance(item, Entry):
        classes += ["raw"] * (item.shown.postprocessing.kind == "none")
        classes += ["own"] * (not item.shown.training.has_external_data)
    return " ".join(classes + ["one"] * (row["ensemble"] == 1) + ["unranked"] * (not row["ranked"]))
