"""Score submissions, keep results and show them on a board.

The public functions, imported on first use:

>>> import leaderboard
>>> import numpy as np
>>> figures = leaderboard.recalls(np.array([[0.9, 0.1], [0.8, 0.7]]))
>>> figures.i2t.recall(1), figures.t2i.recall(1), figures.rsum
(50.0, 100.0, 550.0)

A submission to the test split of a release (here with 24 pairs) is a matrix of similarities,
images x captions, with a description:

>>> description = leaderboard.new_submission(release, "jieba", "test", method="Ours")
>>> leaderboard.pack(f"{folder}/x.zip", np.eye(24, dtype=np.float32), description)
>>> with leaderboard.open_submission(f"{folder}/x.zip") as submission:
...     submission.meta.method.name
'Ours'
>>> result = leaderboard.score(f"{folder}/x.zip", release)
>>> result.rsum, result.ranked
(600.0, True)
>>> leaderboard.write_result(f"{folder}/x.json", result)
>>> leaderboard.read_result(f"{folder}/x.json") == result
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from leaderboard.metrics import recalls
    from leaderboard.scoring.evaluate import score
    from leaderboard.store.entries import read_result, write_result
    from leaderboard.submission.archive import new_submission, open_submission, pack

__all__ = [
    "new_submission",
    "open_submission",
    "pack",
    "read_result",
    "recalls",
    "score",
    "write_result",
]

_MODULES = {
    "new_submission": "submission.archive",
    "open_submission": "submission.archive",
    "pack": "submission.archive",
    "read_result": "store.entries",
    "recalls": "metrics",
    "score": "scoring.evaluate",
    "write_result": "store.entries",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
