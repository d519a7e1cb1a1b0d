"""Matrices on disk: packed in any order of keys, scored in bounded memory."""

import subprocess
import sys

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import new_submission, pack_file
from now_builder.errors import FormatError
from tests.leaderboard.conftest import SIZES, make_similarity, the_problem

N = SIZES["test"]


def _peak(path):
    """Peak anonymous memory in MiB, minus that after the imports."""
    code = (
        "import sys, threading, time; from pathlib import Path\n"
        "import numpy as np; from leaderboard import recalls\n"
        "def anonymous():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return int(next(l for l in lines if l.startswith('RssAnon')).split()[1]) / 1024\n"
        "before = peak = anonymous()\n"
        "def watch():\n"
        "    global peak\n"
        "    while True:\n"
        "        peak = max(peak, anonymous()); time.sleep(0.002)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "recalls(np.load(sys.argv[1], mmap_mode='r'))\n"
        "print(peak - before)"
    )
    command = [sys.executable, "-c", code, str(path)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_memory_does_not_grow_with_the_matrix(tmp_path):
    peaks = []
    for images in (1000, 4000):
        path = tmp_path / f"{images}.npy"
        matrix = np.lib.format.open_memmap(path, "w+", np.float32, (images, images))
        for start in range(0, images, 500):
            matrix[start : start + 500] = np.random.default_rng(start).random((500, images))
        del matrix
        peaks.append(_peak(path))
    assert peaks[1] < peaks[0] + 12, peaks  # 4 and 61 MiB of matrix
    assert peaks[1] < 40, peaks


@pytest.fixture
def meta(release):
    return new_submission(release, "jieba", "test", "Mine")


def _save(path, array):
    np.save(path, array)
    return path


def test_a_matrix_in_another_order_is_put_in_order_by_its_keys(tmp_path, meta, release):
    """In files of keys with a byte order mark and blank last lines, too."""
    generator, matrix = np.random.default_rng(5), make_similarity()
    rows, columns = generator.permutation(N), generator.permutation(N)
    for name, keys, order in (("r", meta.image_ids, rows), ("c", meta.caption_ids, columns)):
        lines = "".join(f"{keys[place]}\n" for place in order)
        (tmp_path / name).write_text(f"\ufeff{lines}\n  \n", encoding="utf-8")
    path = _save(tmp_path / "m.npy", matrix[np.ix_(rows, columns)])
    pack_file(tmp_path / "x.zip", meta, path, tmp_path / "r", tmp_path / "c")
    assert score(tmp_path / "x.zip", release).rsum == recalls(matrix).rsum
    (tmp_path / "r").write_text("".join(f"{key}\n" for key in [*meta.image_ids[1:], "x"]))
    with pytest.raises(FormatError, match=f"r: 24 keys.*{meta.image_ids[0]!r} is missing"):
        pack_file(tmp_path / "x.zip", meta, path, tmp_path / "r", None)


def test_integers_are_packed_and_other_types_are_refused(tmp_path, meta, release):
    scores = (1000 * make_similarity()).round().astype(np.int32)
    pack_file(tmp_path / "x.zip", meta, _save(tmp_path / "m.npy", scores), None, None)
    result = score(tmp_path / "x.zip", release)
    assert (result.rsum, result.ranked) == (recalls(scores.astype(np.float64)).rsum, True)
    for kind in (np.bool_, np.uint8, np.int8, np.complex64):
        path = _save(tmp_path / "m.npy", (scores > 0).astype(kind))
        problem = the_problem(pack_file, tmp_path / "x.zip", meta, path, None, None)
        assert problem.expected == "scores as float16, float32, float64, int32 or int64"
        assert problem.mend == "similarity.astype('float32')"
