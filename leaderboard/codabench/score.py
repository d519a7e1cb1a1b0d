"""Score a submission to a blind round on Codabench, with the evaluator's code and only NumPy.

Codabench runs ``score.py INPUT OUTPUT``. ``INPUT/ref/reference.json`` contains the pairing,
``INPUT/res`` the members of the submission's zip. The figures are written to
``OUTPUT/scores.json``. An invalid submission gets one line on stderr and no figures. Codabench does
not count such submissions, so whether one is invalid must not depend on the pairing.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leaderboard.metrics import (
    CUTOFFS,
    MAX_TIE_WIDTH,
    count_within,
    explained_ties,
    macro_mean,
    recalls,
    recalls_within,
    steps_of,
    tie_width,
    to_step,
)
from leaderboard.submission.untrusted import (
    Problems,
    check_order,
    read_matrix,
    read_object,
    refusal,
    shown,
)
from now_builder.errors import NowError

_META, _MATRIX = "submission.json", "similarity.npy"


def scores_of(result: Path, reference: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a submission, rounded to the steps of an open blind round.

    Raises:
        SubmissionError: With all problems: fields of the description, order, type, values.
    """
    folders = (path.parent for path in sorted(result.rglob(_META)) if "__MACOSX" not in path.parts)
    folder = next(folders, result)
    problems = Problems()
    with problems.collect():
        meta = read_object(_existing(folder / _META).read_bytes(), _META)
        track = _track_of(meta, reference)
    pairs = len(reference["owner"])
    with problems.collect(), _existing(folder / _MATRIX).open("rb") as stream:
        size = (folder / _MATRIX).stat().st_size
        matrix = read_matrix(stream, _MATRIX, size, (pairs, pairs))
    problems.raise_any()
    owner, images, captions = map(
        np.array, (reference["owner"], reference["images"], track["captions"])
    )
    figures = recalls(matrix, owner)
    ties = explained_ties(matrix, images, captions, owner)
    recall, points = steps_of(pairs)
    scores = {"rsum": to_step(figures.rsum, points)}
    for name, way in (("i2t", figures.i2t), ("t2i", figures.t2i)):
        scores |= {f"{name}_r{cutoff}": to_step(way.recall(cutoff), recall) for cutoff in CUTOFFS}
    if groups := [np.array(rows) for rows in reference.get("sites", ())]:
        sizes = [*map(len, groups)]
        within = macro_mean(recalls_within(count_within(matrix, owner, groups), sizes))
        rsum, step = float(100 * sum(within[0] + within[1])), steps_of(sum(sizes))[1]
        scores["within_site_rsum"] = to_step(rsum, step)
    return scores | {"ties": float(tie_width(figures.ranks, ties) > MAX_TIE_WIDTH)}


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise refusal("zip.missing", "zip", f"no {path.name}", f"{_META} and {_MATRIX} in it")
    return path


def _track_of(meta: Mapping[str, Any], reference: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference of a submission's track; check the submission's data and order."""
    tracks: dict[str, dict[str, Any]] = reference["tracks"]
    track = tracks.get(str(meta.get("track")))
    if track is None:
        names = f"one of {', '.join(tracks)}"
        raise refusal("field.track", f"{_META}.track", shown(meta.get("track")), names)
    fields = {"split": "test", "payload": "matrix", "dataset_fingerprint": track["fingerprint"]}
    problems = Problems()
    for field, expected in fields.items():
        with problems.collect():
            if meta.get(field) != expected:
                mend = "pack it with the participants' part of this round"
                name = f"{_META}.{field}"
                raise refusal(f"field.{field}", name, shown(meta.get(field)), expected, mend)
    for field in ("image_ids", "caption_ids"):
        with problems.collect():
            keys = meta.get(field)
            if not isinstance(keys, list | None) or not all(isinstance(k, str) for k in keys or ()):
                raise refusal("field.keys", f"{_META}.{field}", shown(keys), "keys, or nothing")
            check_order(field, keys, reference["keys"])
    problems.raise_any()
    return track


def main(source: Path, output: Path) -> None:
    """Score ``source/res`` with ``source/ref`` and write ``output/scores.json``."""
    reference = json.loads((source / "ref" / "reference.json").read_text(encoding="utf-8"))
    try:
        scores = scores_of(source / "res", reference)
    except NowError as error:
        sys.exit(f"refused: {error}")
    (output / "scores.json").write_text(json.dumps(scores) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
