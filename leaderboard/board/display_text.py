"""Display text of the pages: names of boards, sections, evidence and notes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leaderboard.board.groups import Seeds
from leaderboard.board.tables import Row, Section, SectionKind
from leaderboard.scoring.result import Result
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
    "ocr": "Text on the screenshot",
}
EVIDENCE: Mapping[str, str] = {
    "reported": "reported",
    "scored": "file scored",
    "contradicted": "contradicted",
    "reproduced": "reproduced",
    "blind": "blind",
}
EVIDENCE_MEANS: Mapping[str, str] = {
    "reported": "a claim: printed in a paper; no file was scored here",
    "scored": "a claim: a file of similarities was scored, whose author knew the order of the rows",
    "contradicted": "a claim that the keeper’s run of the code did not reach; the figures are that"
    " run’s",
    "reproduced": "proof: a keeper of the board ran the code and scored the run, which agrees; the"
    " figures are that run’s",
    "blind": "proof: scored on a round whose pairing only the judge had, and merged by the keepers",
}
CLAIM = (
    "a claim: whoever has the release has its pairing; a blind round, or a keeper’s own run of the"
    " code (reproduce), makes it proof"
)
"""Standing of a result outside an open blind round, for the terminal."""
PARTS: Mapping[str, str] = {
    "Proof": "Scored on a pairing that only the judge had, or by the keeper’s own run of the code.",
    "Claims": "Sent as a file, whose author knew the pairing and can reach any score, or printed in"
    " a paper: sorted, not numbered.",
}
"""Reason for each part of a table, by its title."""
NOTE_MEANS: Mapping[str, str] = {
    "distances": "The reversed similarities score far above chance: distances may have been"
    " submitted.",
    "follows-language": "Nearly all candidates in the query’s language stand above the others.",
    "follows-site": "Nearly all candidates of the query’s site stand above the others.",
}


@dataclass(frozen=True, slots=True)
class Note:
    """A short note next to a method's name."""

    text: str
    warning: bool = False


def section_title(section: Section, board: BoardName) -> str:
    """Return the title of a section."""
    kind = section.kind
    if board not in TOKENIZERS:
        return kind.noise.title[:1].upper() + kind.noise.title[1:]
    where = {
        "rebuilt": "Rebuilt release",
        "archive": "The authors’ test set" if section.with_reported else "Another archive",
        "blind": "Blind round",
        "closed": "Closed blind round",
        "field": "Another data set",
    }[kind.origin]
    return where if kind.noise.protocol == "web" else f"{where}, {kind.noise.title}"


def full_title(section: Section, board: BoardName) -> str:
    """Return a title that is unique among sections, for use outside the site."""
    title = section_title(section, board)
    mark = f" {section.kind.fingerprint[:8]}" if section.kind.fingerprint else ""
    return f"{title}{mark}, {section.kind.split}, {size_of(section.kind)}"


def size_of(kind: SectionKind) -> str:
    """Describe the size of the gallery."""
    if kind.folds > 1:
        return f"{kind.folds} folds of {kind.n_images // kind.folds:,} images"
    if kind.n_images == kind.n_pairs:
        return f"{kind.n_pairs:,} pairs"
    return f"{kind.n_images:,} images, {kind.n_pairs:,} captions"


def listed(values: Sequence[object], most: int) -> str:
    """Join the first ``most`` values with commas, and count the rest."""
    rest = f" and {len(values) - most:,} more" if len(values) > most else ""
    return ", ".join(map(str, values[:most])) + rest


def seed_mean(seeds: Seeds) -> str:
    """Describe the mean over seeds."""
    return f"{seeds.count} seeds: {seeds.mean:.1f} ± {seeds.deviation:.1f}"


def row_notes(row: Row) -> list[Note]:
    """Return the notes that a reader needs before comparing a row."""
    if row.entry is not None:
        equal = [Note(f"ranks of {row.equal_to}", warning=True)] if row.equal_to else []
        return equal + _notes(row, row.entry.shown)
    size = row.reported.ensemble if row.reported else None
    return [_networks(size)] if size else []


def _notes(row: Row, result: Result) -> list[Note]:
    training = result.training
    found = []
    if not row.ranked:
        found.append(Note("not ranked", warning=True))
    if training.ensemble_size is not None:
        found.append(_networks(training.ensemble_size))
    if training.checkpoint_selection == "test":
        found.append(Note("epoch chosen on test", warning=True))
    if training.uses_test_images:
        found.append(Note("trained on test images", warning=True))
    if training.has_external_data:
        found.append(Note("external data"))
    kind = result.postprocessing.kind
    if kind != "none":
        words = f"{kind.replace('_', '-')} post-processing"
        found.append(Note(words, warning=kind == "transductive"))
    found += [Note(note.code.replace("-", " the ")) for note in result.notes]
    if result.precision is None:
        found.append(Note("ranked lists"))
    if result.precision == "float16":
        found.append(Note("float16"))
    return found


def filter_classes(row: Row) -> str:
    """Return the CSS classes that the page's filters select; unknown properties match no filter."""
    classes: list[str] = [row.evidence]
    size = row.reported.ensemble if row.reported else None
    if row.entry is not None:
        result = row.entry.result
        size = result.training.ensemble_size
        classes += ["raw"] * (result.postprocessing.kind == "none")
        classes += ["own"] * (not result.training.has_external_data)
    classes += ["one"] * (size == 1)
    classes += ["unranked"] * (not row.ranked)
    return " ".join(classes)


def _networks(size: int) -> Note:
    return Note("one network" if size == 1 else f"{size} networks")
