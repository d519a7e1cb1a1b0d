"""Score a submission to a blind round on Codabench, with the evaluator's code and NumPy alone.

Codabench runs it as ``score.py INPUT OUTPUT``. ``INPUT/ref/reference.json`` holds the pairing,
``INPUT/res`` the members of the submission's zip; ``OUTPUT/scores.json`` gets the figures. A
refusal is one line on stderr, and no figures are written. Codabench does not count refused files,
so that none is refused for what follows from the pairing.
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
    Matrix,
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
    read_json,
    read_matrix,
    refusal,
    shown,
)
from now_builder.errors import NowError

_META, _MATRIX = "submission.json", "similarity.npy"


def scores_of(result: Path, reference: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a submission, in the steps of an open blind round.

    Raises:
        SubmissionError: With all problems: fields of the description, order, type, values.
    """
    folders = (path.parent for path in sorted(result.rglob(_META)) if "__MACOSX" not in path.parts)
    folder = next(folders, result)
    problems = Problems()
    with problems.noted():
        track = _track_of(_read_meta(folder / _META), reference)
    with problems.noted():
        matrix = _read_matrix(folder / _MATRIX, len(reference["owner"]))
    problems.refuse_any()
    owner, images, captions = map(
        np.array, (reference["owner"], reference["images"], track["captions"])
    )
    figures = recalls(matrix, owner)
    ties = explained_ties(matrix, images, captions, owner)
    recall, points = steps_of(len(owner))
    scores = {"rsum": to_step(figures.rsum, points)}
    for way, found in (("i2t", figures.i2t), ("t2i", figures.t2i)):
        scores |= {f"{way}_r{cutoff}": to_step(found.recall(cutoff), recall) for cutoff in CUTOFFS}
    if groups := [np.array(rows) for rows in reference.get("sites", ())]:
        sizes = [*map(len, groups)]
        within = macro_mean(recalls_within(count_within(matrix, owner, groups), sizes))
        rsum, step = float(100 * sum(within[0] + within[1])), steps_of(sum(sizes))[1]
        scores["within_site_rsum"] = to_step(rsum, step)
    return scores | {"ties": float(tie_width(figures.ranks, ties) > MAX_TIE_WIDTH)}


def _read_meta(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise refusal("zip.missing", "zip", "no submission.json", f"{_META} and {_MATRIX} in it")
    tree = read_json(path.read_bytes(), _META)
    if not isinstance(tree, dict):
        raise refusal("json.format", _META, shown(tree), "an object")
    return tree


def _track_of(meta: Mapping[str, Any], reference: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the reference of a submission's track; refuse what is of other data or order."""
    tracks: dict[str, dict[str, Any]] = reference["tracks"]
    track = tracks.get(str(meta.get("track")))
    if track is None:
        names = f"one of {', '.join(tracks)}"
        raise refusal("field.track", f"{_META}.track", shown(meta.get("track")), names)
    wanted = {"split": "test", "payload": "matrix", "dataset_fingerprint": track["fingerprint"]}
    problems = Problems()
    for field, expected in wanted.items():
        with problems.noted():
            if meta.get(field) != expected:
                mend = "pack it with the participants' part of this round"
                name = f"{_META}.{field}"
                raise refusal(f"field.{field}", name, shown(meta.get(field)), expected, mend)
    for field in ("image_ids", "caption_ids"):
        with problems.noted():
            keys = meta.get(field)
            if not isinstance(keys, list | None) or not all(isinstance(k, str) for k in keys or ()):
                raise refusal("field.keys", f"{_META}.{field}", shown(keys), "keys, or nothing")
            check_order(field, keys, reference["keys"])
    problems.refuse_any()
    return track


def _read_matrix(path: Path, pairs: int) -> Matrix:
    if not path.is_file():
        raise refusal("zip.missing", "zip", f"no {_MATRIX}", f"{_META} and {_MATRIX} in it")
    with path.open("rb") as stream:
        return read_matrix(stream, _MATRIX, path.stat().st_size, (pairs, pairs))


def main(source: Path, output: Path) -> None:
    """Score ``source/res`` by ``source/ref``, and write ``output/scores.json``."""
    reference = json.loads((source / "ref" / "reference.json").read_text(encoding="utf-8"))
    try:
        scores = scores_of(source / "res", reference)
    except NowError as error:
        sys.exit(f"refused: {error}")
    (output / "scores.json").write_text(json.dumps(scores) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
