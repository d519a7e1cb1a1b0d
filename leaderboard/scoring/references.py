"""Reference scores: rSum of scorers that use only a label of each page."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import comb
from pathlib import Path

import numpy as np

from leaderboard.metrics import CUTOFFS, recalls
from leaderboard.scoring.text_search import search
from leaderboard.submission.gallery import Gallery
from now_builder.errors import FormatError
from now_builder.formats.release import Pair, read_split_pairs
from now_builder.formats.tables import read_frame

REFERENCES = ("chance", "lang", "site", "lang+site", "lang+topic", "ocr", "text")
"""Names of all reference scorers."""

_TEXTS = ("ocr", "text")  # compared as texts; the other references compare labels
_LABELS = ("lang", "topic", "caption_topic", *_TEXTS)
Categories = Sequence[str | None]


def references_of(
    release: Path, gallery: Gallery, split: str, attributes: Path | None = None
) -> dict[str, float]:
    """Return the rSum of chance and of every scorer whose labels the release or attributes have.

    A scorer gives 1 to pairs whose image and caption have the same label, else 0; ties count by
    expectation.
    """
    labels = _labels(release, gallery, split, attributes)
    corpus = []
    if any(name in labels for name in _TEXTS):
        corpus = [pair.caption for pair in read_split_pairs(release, "train")]
    return {"chance": chance_rsum(*gallery.shape)} | {
        name: recalls(search(*both, corpus)).rsum if name in _TEXTS else label_rsum(*both)
        for name, both in labels.items()
    }


def _labels(
    release: Path, gallery: Gallery, split: str, attributes: Path | None
) -> dict[str, tuple[Categories, Categories]]:
    """Read the labels of a split's images and captions, by the name of the reference.

    Sites come from ``pairs.parquet``; pages that are alone on their site share a label. Languages
    come from the attributes, else from ``pairs.parquet``. The attributes are a CSV or Parquet file
    with ``url`` or ``key``, and any of ``lang``, ``topic``, ``caption_topic`` (default: the same as
    ``topic``), ``ocr`` (text on the screenshot, read by ``now-builder ocr``) and ``text`` (text
    of the page's layout, ``ocr --elements``).

    Raises:
        FormatError: If the attributes lack these columns or a pair, or have two different rows for
            a pair.
    """
    pairs = read_split_pairs(release, split) if gallery.origin == "rebuilt" else []
    if attributes is not None and not pairs:
        raise FormatError(release, "no pairs.parquet to join the attributes through")
    columns = _join_attributes(attributes, pairs) if attributes is not None else {}
    lang = columns.get("lang", [pair.lang for pair in pairs])
    pages = Counter(pair.site for pair in pairs)
    # the name of a site with one page would identify the page
    site = [pair.site if pages[pair.site] > 1 else None for pair in pairs]
    labels: dict[str, tuple[Categories, Categories]] = {}
    if any(label is not None for label in lang):
        labels["lang"] = lang, lang
    if len(set(site)) > 1:
        labels["site"] = site, site
    if len(labels) == 2:
        both = _combine(lang, site)
        labels["lang+site"] = both, both
    if "topic" in columns:
        topics = columns.get("caption_topic", columns["topic"])
        labels["lang+topic"] = _combine(lang, columns["topic"]), _combine(lang, topics)
    for name in _TEXTS:
        if name in columns:
            labels[name] = columns[name], [pair.caption for pair in pairs]
    return labels


def _combine(first: Categories, second: Categories) -> Categories:
    return [f"{a}/{b}" for a, b in zip(first, second, strict=True)]


def chance_rsum(images: int, captions: int) -> float:
    """Return the rSum of constant similarities."""
    wrong, share = captions - captions // images, Fraction(0)
    for cutoff in CUTOFFS:
        first = min(cutoff, captions)
        share += 1 - Fraction(comb(wrong, first), comb(captions, first))
        share += Fraction(min(cutoff, images), images)
    return float(100 * share)


def label_rsum(images: Categories, captions: Categories) -> float:
    """Return the rSum of the scorer that gives 1 to equal labels, else 0; None equals None."""
    _, numbers = np.unique([repr(label) for label in [*images, *captions]], return_inverse=True)
    rows, columns = numbers[: len(images)], numbers[len(images) :]
    return recalls((rows[:, None] == columns[None, :]).astype(np.float32)).rsum


def _join_attributes(attributes: Path, pairs: Sequence[Pair]) -> dict[str, list[str | None]]:
    """Look up the attributes of each pair; return the label columns in the order of pairs."""
    table = read_frame(attributes)
    name = next((name for name in ("key", "url") if name in table), None)
    labels = [column for column in _LABELS if column in table]
    if name is None or not {"lang", "topic", *_TEXTS} & {*labels}:
        expected = "expected key or url, and lang, topic (and caption_topic), ocr or text"
        raise FormatError(attributes, f"columns {sorted(table)}, {expected}")
    table = table[[name, *labels]]
    empty = table.isna() | (table == "")
    keys = [getattr(pair, name) for pair in pairs]
    rows = table.astype(str).astype(object).mask(empty, None)
    rows = rows[rows[name].isin(keys)].drop_duplicates()
    conflicts = rows[rows.duplicated(name, keep=False)]
    if len(conflicts):
        problem = f"two rows of {name} {conflicts.iloc[0, 0]!r:.200} with other labels"
        raise FormatError(attributes, f"{problem}, expected the same {', '.join(labels)} in both")
    rows = rows.set_index(name)
    missing = [key for key in keys if key not in rows.index]
    if missing:
        problem = f"no row for {len(missing)} of {len(keys)} pairs"
        raise FormatError(attributes, f"{problem}, the first {name} {missing[0]!r}")
    columns: dict[str, list[str | None]] = rows.loc[keys].to_dict("list")
    return columns
