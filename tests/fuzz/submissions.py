"""Readers of submissions: zips of a description and arrays, matrices as they are, TREC runs."""

from pathlib import Path

import numpy as np
from kinds import Kinds

from leaderboard.core.errors import SubmissionError
from leaderboard.scoring.trec import score_run
from leaderboard.submission.archive import open_submission, pack_arrays, parse
from leaderboard.submission.gallery import Gallery
from leaderboard.submission.matrix import recall_file
from now_builder.errors import FormatError

_KEYS = ["a", "b", "c"]
_ROWS = np.arange(3)
_PAIRS = [("a", "a"), ("a", "b"), ("b", "c"), ("c", "a")]
_GALLERY = Gallery(_KEYS, _KEYS, _ROWS, _ROWS, _ROWS, "0" * 64, "rebuilt")


_META = {
    "track": "jieba",
    "split": "test",
    "dataset_fingerprint": "0" * 64,
    "image_ids": _KEYS,
    "method": {"name": "Mine", "abstract": "text"},
    "links": {"code": "https://example.org/code", "code_commit": "0123456"},
    "training": {"seeds": [1, 2], "ensemble_size": 2},
    "compute": {"hours": 1.5},
}


def _write_all(folder: Path) -> None:
    scores = np.eye(3, dtype=np.float32)
    lists = np.tile(np.arange(3, dtype=np.int32), (3, 1))
    payloads = {"matrix": [scores], "ranked": [lists, lists.astype(np.int64)]}
    for payload, arrays in payloads.items():
        pack_arrays(folder / f"{payload}.zip", arrays, parse({"payload": payload, **_META}))
    np.save(folder / "scores.npy", scores)
    lines = [f"{query} Q0 {place} 1 {2.5 - rank} tag" for rank, (query, place) in enumerate(_PAIRS)]
    (folder / "run.trec").write_text("\n".join(lines))


def _judge(path: Path) -> None:
    score_run(path, _GALLERY, "test", "jieba")


def _read(path: Path) -> None:
    with open_submission(path) as submission:
        submission.read(_GALLERY)


READER = Kinds(
    _write_all,
    {"matrix.zip": _read, "ranked.zip": _read, "scores.npy": recall_file, "run.trec": _judge},
    errors=(SubmissionError, FormatError),
)
