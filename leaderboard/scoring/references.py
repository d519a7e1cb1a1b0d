"""Reference scores: what scorers reach that know a label alone, and who follows one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb
from pathlib import Path
from typing import Literal

import numpy as np

from leaderboard.metrics import CUTOFFS, Matrix, recalls
from leaderboard.scoring.result import Code, Note
from leaderboard.submission.gallery import Gallery
from now_builder.errors import FormatError
from now_builder.formats.release import Pair, read_split_pairs
from now_builder.formats.tables import read_frame
from now_builder.formats.word_vectors import text_vector

REFERENCES = ("chance", "lang", "site", "lang+site", "lang+topic", "ocr")
"""Names of all reference scorers."""

FOLLOWED: dict[str, tuple[Code, float]] = {
    "lang": ("follows-language", 0.995),
    "site": ("follows-site", 0.9),
}
"""By label the note on a matrix that follows it, and from which share of pairs of candidates in the
label's order it does. Methods that look at pages come to 0.99 for languages, 0.8 for sites."""

_LABELS = ("lang", "topic", "caption_topic", "ocr")
_QUERIES = 500
_FEW = 20
_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")

Categories = Sequence[str | None]
KnownLabels = dict[str, tuple[Categories, Categories]]
"""KnownLabels of images and of captions, by the name of the reference that knows them."""


def references(
    release: Path, gallery: Gallery, split: str, attributes: Path | None = None
) -> dict[str, float]:
    """Return the rSum of trivial scorers: those of :data:`REFERENCES` that the release allows.

    A scorer that knows a label gives 1 to pairs whose image and caption share it, else 0;
    ties count by expectation.
    """
    return references_of(read_labels(release, gallery, split, attributes), gallery)


def references_of(labels: KnownLabels, gallery: Gallery) -> dict[str, float]:
    """Return the rSum of chance, and of the scorers that know labels."""
    known = {
        name: (text_rsum if name == "ocr" else label_rsum)(*both) for name, both in labels.items()
    }
    return {"chance": chance_rsum(*gallery.shape), **known}


def read_labels(
    release: Path, gallery: Gallery, split: str, attributes: Path | None = None
) -> KnownLabels:
    """Read the labels of a split's pairs.

    Languages and sites are those of the release's ``pairs.parquet``; pages that are alone on their
    site share a label. Languages are also those of the attributes: CSV or Parquet with ``url`` or
    ``key``, and any of ``lang``, ``topic``, ``caption_topic`` (the topic of the caption, where it
    may differ) and ``ocr``: the text on the screenshot, as ``now-builder ocr`` reads it, which is
    compared with the caption's text.

    Raises:
        FormatError: If the attributes have no such columns, lack a pair, or have two rows of one
            with other labels.
    """
    pairs = read_split_pairs(release, split) if gallery.origin == "rebuilt" else []
    if attributes is not None and not pairs:
        raise FormatError(release, "no pairs.parquet to join the attributes through")
    columns = _joined(attributes, pairs) if attributes is not None else {}
    lang = columns.get("lang", [pair.lang for pair in pairs])
    pages = Counter(pair.site for pair in pairs)
    # the only page of a site would be found by its name alone
    site = [pair.site if pages[pair.site] > 1 else None for pair in pairs]
    found: KnownLabels = {}
    if any(label is not None for label in lang):
        found["lang"] = lang, lang
    if len(set(site)) > 1:
        found["site"] = site, site
    if len(found) == 2:
        both = _joint(lang, site)
        found["lang+site"] = both, both
    if "topic" in columns:
        topics = columns.get("caption_topic", columns["topic"])
        found["lang+topic"] = _joint(lang, columns["topic"]), _joint(lang, topics)
    if "ocr" in columns:
        found["ocr"] = columns["ocr"], [pair.caption for pair in pairs]
    return found


def _joint(first: Categories, second: Categories) -> Categories:
    return [f"{a}/{b}" for a, b in zip(first, second, strict=True)]


def followed(similarity: Matrix, labels: KnownLabels) -> tuple[Note, ...]:
    """Say which of language and site a matrix follows, as one that is told the label does."""
    found = []
    for name, (code, limit) in FOLLOWED.items():
        share = followed_share(similarity, labels[name][0]) if name in labels else 0.0
        if share >= limit:
            message = (
                f"{100 * share:.1f} % of all candidates with the query's own label stand above"
                f" those with another, expected less than {100 * limit:g} %"
            )
            found.append(Note(code=code, message=message))
    return tuple(found)


def followed_share(similarity: Matrix, labels: Categories) -> float:
    """Return how often a candidate with the query's label stands above one with another.

    It is the mean over both directions' queries, 500 of each at most; equal values count half. 0 if
    fewer than 20 queries have both kinds of candidates.
    """
    _, numbers = np.unique([repr(label) for label in labels], return_inverse=True)
    chosen = np.random.default_rng(0).permutation(len(numbers))[:_QUERIES]
    shares = []
    for values in (similarity, similarity.T):
        for query in chosen.tolist():
            alike = numbers == numbers[query]
            others = np.sort(values[query][~alike])
            alike[query] = False
            own = values[query][alike]
            if len(own) and len(others) and labels[query] is not None:
                below = sum(np.searchsorted(others, own, side).mean() for side in _SIDES)
                shares.append(float(below) / 2 / len(others))
    return sum(shares) / len(shares) if len(shares) >= _FEW else 0.0


def chance_rsum(images: int, captions: int) -> float:
    """Return the rSum of constant similarities."""
    wrong = captions - captions // images
    found = Fraction(0)
    for cutoff in CUTOFFS:
        first = min(cutoff, captions)
        found += 1 - Fraction(comb(wrong, first), comb(captions, first))
        found += Fraction(min(cutoff, images), images)
    return float(100 * found)


def label_rsum(images: Categories, captions: Categories) -> float:
    """Return the rSum of the scorer that gives 1 to the same labels, else 0; None equals None."""
    _, numbers = np.unique([repr(label) for label in [*images, *captions]], return_inverse=True)
    rows, columns = numbers[: len(images)], numbers[len(images) :]
    return recalls((rows[:, None] == columns[None, :]).astype(np.float32)).rsum


def text_rsum(pages: Categories, captions: Categories) -> float:
    """Return the rSum of the cosine of texts by their hashed letters, each side less its mean."""
    sides = [np.stack([text_vector(text or "") for text in side]) for side in (pages, captions)]
    centred = [side - side.mean(0) for side in sides]
    page, caption = (
        side / np.maximum(np.linalg.norm(side, axis=1, keepdims=True), 1e-6) for side in centred
    )
    return recalls(np.round(page @ caption.T, 5)).rsum  # the last digits depend on the machine


def _joined(attributes: Path, pairs: Sequence[Pair]) -> dict[str, list[str | None]]:
    """Look up each pair's attributes; return the label columns in pair order."""
    table = _read(attributes)
    name = next((name for name in ("key", "url") if name in table), None)
    if name is None:
        raise FormatError(attributes, f"columns {sorted(table)}, expected key or url among them")
    if not {"lang", "topic", "ocr"} & table.keys():
        expected = "expected lang, topic (and caption_topic) or ocr among them"
        raise FormatError(attributes, f"columns {sorted(table)}, {expected}")
    labels = [column for column in _LABELS if column in table]
    wanted = [getattr(pair, name) for pair in pairs]
    asked = set(wanted)
    rows: dict[str | None, tuple[str | None, ...]] = {}
    cells = zip(*(table[column] for column in labels), strict=True)
    for value, row in zip(table[name], cells, strict=True):
        if value in asked and rows.setdefault(value, row) != row:
            found = f"two rows of {name} {value!r}, {rows[value]!r:.200} and {row!r:.200}"
            raise FormatError(attributes, f"{found}, expected the same {', '.join(labels)} in both")
    missing = [value for value in wanted if value not in rows]
    if missing:
        raise FormatError(
            attributes,
            f"no row for {len(missing)} of {len(wanted)} pairs, the first {name} {missing[0]!r}",
        )
    return {column: [rows[value][n] for value in wanted] for n, column in enumerate(labels)}


def _read(attributes: Path) -> Mapping[str, list[str | None]]:
    table = read_frame(attributes)
    empty = table.isna() | (table == "")
    columns: dict[str, list[str | None]] = (
        table.astype(str).astype(object).mask(empty, None).to_dict("list")
    )
    return columns
