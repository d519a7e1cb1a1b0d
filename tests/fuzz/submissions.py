"""The reader of submissions: zips of a description and arrays, and matrices as they are."""

import random
import tempfile
from pathlib import Path

import numpy as np
from changes import Change, change_json, change_zip

from leaderboard.core.errors import SubmissionError
from leaderboard.submission.archive import open_submission, pack_arrays, parse
from leaderboard.submission.gallery import Gallery
from leaderboard.submission.matrix import recall_file
from now_builder.errors import FormatError

ERRORS = (SubmissionError, FormatError)
LONGEST = 2**14
_FOLDER = Path(tempfile.mkdtemp(prefix="now-fuzz-"))
_KEYS = ["a", "b", "c"]
_ROWS = np.arange(3)
_GALLERY = Gallery(_KEYS, _KEYS, _ROWS, _ROWS, _ROWS, "0" * 64, "rebuilt")


def seeds() -> list[bytes]:
    """Return a small submission of each payload, and a matrix in a file."""
    scores = np.eye(3, dtype=np.float32)
    lists = np.tile(np.arange(3, dtype=np.int32), (3, 1))
    found = [
        _packed("matrix", scores),
        _packed("matrix", scores.astype(np.float16)),
        _packed("ranked", lists, lists.astype(np.int64)),
    ]
    path = _FOLDER / "seed.npy"
    np.save(path, scores)
    return [*found, path.read_bytes()]


def _packed(payload: str, *arrays: np.ndarray) -> bytes:
    meta = {
        "track": "jieba",
        "split": "test",
        "dataset_fingerprint": "0" * 64,
        "payload": payload,
        "image_ids": _KEYS,
        "method": {"name": "Mine", "abstract": "text"},
        "links": {"code": "https://example.org/code", "code_commit": "0123456"},
        "training": {"seeds": [1, 2], "ensemble_size": 2},
        "compute": {"hours": 1.5},
    }
    path = _FOLDER / "seed.zip"
    pack_arrays(path, arrays, parse(meta))
    return path.read_bytes()


def read(content: bytes) -> None:
    """Read a zip as a submission, anything else as a matrix."""
    path = _FOLDER / "input"
    path.write_bytes(content)
    if content[:2] == b"PK":
        with open_submission(path) as submission:
            submission.read(_GALLERY)
    else:
        recall_file(path)


def mutate(content: bytes, longest: int, seed: int) -> bytes:
    """Change bytes of the file, or of a member inside a zip that stays whole."""
    import atheris

    chance = random.Random(seed)
    if content[:2] != b"PK" or chance.random() < 0.3:
        return atheris.Mutate(content, longest)

    def inside(name: str) -> Change:
        if name.endswith(".json") and chance.random() < 0.6:
            return lambda old: change_json(chance, old)
        return lambda old: atheris.Mutate(old, len(old) + 64)

    return change_zip(chance, content, inside)[:longest]
