"""Reference scores: what trivial scorers reach on the same split."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np

from leaderboard.metrics import CUTOFFS, recalls
from leaderboard.submission.gallery import Gallery
from now_builder.errors import FormatError
from now_builder.formats.release import Pair, read_pairs
from now_builder.formats.tables import read_frame
from now_builder.formats.word_vectors import text_vector

REFERENCES = ("chance", "lang", "lang+topic", "ocr")
"""Names of all reference scorers."""

Categories = Sequence[str | None]


def references(
    release: Path, gallery: Gallery, split: str, attributes: Path | None = None
) -> dict[str, float]:
    """Return the rSum of trivial scorers: ``chance``, ``lang``, ``lang+topic``, ``ocr``.

    A scorer that knows a label gives 1 to pairs whose image and caption share it, else 0;
    ties count by expectation. Languages are those of the release's ``pairs.parquet``, or of the
    attributes: CSV or Parquet with ``url`` or ``key``, and any of ``lang``, ``topic``,
    ``caption_topic`` (the topic of the caption, where it may differ) and ``ocr`` (the text on the
    screenshot, as ``now-builder ocr`` reads it), which is compared with the caption's text.
    """
    found = {"chance": chance_rsum(*gallery.shape)}
    known = read_pairs(release) if gallery.origin == "rebuilt" else []
    pairs = sorted((p for p in known if p.split == split), key=lambda pair: pair.pair_index)
    if attributes is not None and not pairs:
        raise FormatError(release, "no pairs.parquet to join the attributes through")
    columns = _joined(attributes, pairs) if attributes is not None else {}
    lang = columns.get("lang", [pair.lang for pair in pairs])
    if any(label is not None for label in lang):
        found["lang"] = label_rsum(lang, lang)
    if "topic" in columns:
        seen = [f"{a}/{b}" for a, b in zip(lang, columns["topic"], strict=True)]
        topics = columns.get("caption_topic", columns["topic"])
        read = [f"{a}/{b}" for a, b in zip(lang, topics, strict=True)]
        found["lang+topic"] = label_rsum(seen, read)
    if "ocr" in columns:
        found["ocr"] = text_rsum(columns["ocr"], [pair.caption for pair in pairs])
    return found


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


def text_rsum(pages: Categories, captions: Sequence[str]) -> float:
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
    rows = {value: row for row, value in enumerate(table[name])}
    wanted = [getattr(pair, name) for pair in pairs]
    missing = [value for value in wanted if value not in rows]
    if missing:
        raise FormatError(
            attributes,
            f"no row for {len(missing)} of {len(wanted)} pairs, the first {name} {missing[0]!r}",
        )
    known = ("lang", "topic", "caption_topic", "ocr")
    labels = [column for column in known if column in table]
    return {column: [table[column][rows[value]] for value in wanted] for column in labels}


def _read(attributes: Path) -> Mapping[str, list[str | None]]:
    table = read_frame(attributes)
    empty = table.isna() | (table == "")
    columns: dict[str, list[str | None]] = (
        table.astype(str).astype(object).mask(empty, None).to_dict("list")
    )
    return columns
