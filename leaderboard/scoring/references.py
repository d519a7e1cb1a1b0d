"""Reference scores: what scorers reach that know a label alone."""

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

_TEXTS = ("ocr", "text")
_LABELS = ("lang", "topic", "caption_topic", *_TEXTS)
Categories = Sequence[str | None]


def references_of(
    release: Path, gallery: Gallery, split: str, attributes: Path | None = None
) -> dict[str, float]:
    """Return the rSum of chance, and of the scorers that know a label, as far as the release does.

    A scorer that knows a label gives 1 to pairs whose image and caption share it, else 0;
    ties count by expectation.
    """
    labels = _labels(release, gallery, split, attributes)
    corpus = []
    if any(name in labels for name in _TEXTS):
        corpus = [pair.caption for pair in read_split_pairs(release, "train")]
    known = {
        name: recalls(search(*both, corpus)).rsum if name in _TEXTS else label_rsum(*both)
        for name, both in labels.items()
    }
    return {"chance": chance_rsum(*gallery.shape), **known}


def _labels(
    release: Path, gallery: Gallery, split: str, attributes: Path | None
) -> dict[str, tuple[Categories, Categories]]:
    """Read the labels of a split's images and captions, by the name of the reference.

    Languages and sites are those of the release's ``pairs.parquet``; pages that are alone on their
    site share a label. Languages are also those of the attributes: CSV or Parquet with ``url`` or
    ``key``, and any of ``lang``, ``topic``, ``caption_topic`` (the topic of the caption, where it
    may differ), ``ocr`` and ``text``: the text on the screenshot as ``now-builder ocr`` reads it,
    and as the browser laid it out (``--elements``), which are compared with captions by letters.

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
    found: dict[str, tuple[Categories, Categories]] = {}
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
    for name in _TEXTS:
        if name in columns:
            found[name] = columns[name], [pair.caption for pair in pairs]
    return found


def _joint(first: Categories, second: Categories) -> Categories:
    return [f"{a}/{b}" for a, b in zip(first, second, strict=True)]


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


def _joined(attributes: Path, pairs: Sequence[Pair]) -> dict[str, list[str | None]]:
    """Look up each pair's attributes; return the label columns in pair order."""
    table = read_frame(attributes)
    name = next((name for name in ("key", "url") if name in table), None)
    labels = [column for column in _LABELS if column in table]
    if name is None or not {"lang", "topic", "ocr"} & {*labels}:
        expected = "expected key or url, and lang, topic (and caption_topic) or ocr among them"
        raise FormatError(attributes, f"columns {sorted(table)}, {expected}")
    table = table[[name, *labels]]
    empty = table.isna() | (table == "")
    wanted = [getattr(pair, name) for pair in pairs]
    rows = table.astype(str).astype(object).mask(empty, None)
    rows = rows[rows[name].isin(wanted)].drop_duplicates()
    twice = rows[rows.duplicated(name, keep=False)]
    if len(twice):
        found = f"two rows of {name} {twice.iloc[0, 0]!r:.200} with other labels"
        raise FormatError(attributes, f"{found}, expected the same {', '.join(labels)} in both")
    rows = rows.set_index(name)
    missing = [value for value in wanted if value not in rows.index]
    if missing:
        found = f"no row for {len(missing)} of {len(wanted)} pairs"
        raise FormatError(attributes, f"{found}, the first {name} {missing[0]!r}")
    columns: dict[str, list[str | None]] = rows.loc[wanted].to_dict("list")
    return columns
