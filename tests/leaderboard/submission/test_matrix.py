"""Matrices on disk: the same recalls as in memory, in memory that does not grow with them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import new_submission
from leaderboard.submission.matrix import pack_file, recall_file
from leaderboard.submission.untrusted import SubmissionError
from now_builder.errors import FormatError
from tests.leaderboard.conftest import SIZES, make_similarity, the_problem

N = SIZES["test"]


def write(path, images=40, each=1, seed=0, **how):
    """A matrix with ties, in any precision."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 30, (images, images * each)).astype(how.get("dtype", "<f4"))
    owner = np.arange(images * each) // each
    matrix[owner, np.arange(images * each)] += 12
    np.save(path, matrix)
    return matrix, owner


def test_recalls_are_those_of_the_matrix_in_memory(tmp_path):
    for dtype, each, images in (("<f2", 1, 1), ("<f4", 5, 300), ("<f8", 1, 300), (">f4", 5, 7)):
        matrix, owner = write(tmp_path / "m.npy", images, each, dtype=dtype)
        found, expected = recall_file(tmp_path / "m.npy", each), recalls(matrix, owner)
        assert (found.rsum, found.rsum_argsort) == (expected.rsum, expected.rsum_argsort)
        assert (found.i2t, found.t2i) == (expected.i2t, expected.t2i)
        for way, other in zip(found.ranks, expected.ranks, strict=True):
            assert np.array_equal(way.equal, other.equal)
            assert np.array_equal(way.later, other.later)


def header(descr="'<f4'", order="False", shape="(4, 4)"):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BODY = bytes(64)


HOSTILE = [
    (b"", "a .npy file"),
    (header("'<i4'") + BODY, "dtype '<i4'"),
    (header("'|O'") + BODY, "dtype|header"),
    (header("'<f4'", "True") + BODY, "columns in one piece, expected rows in one piece"),
    (header(shape="(16,)") + BODY, r"shape \(16,\)"),
    (header(shape="(0, 4)"), r"shape \(0, 4\)"),
    (header() + BODY[:-1], "143|bytes, expected"),
    (header() + BODY + b"x", "bytes, expected"),
    (header(shape="(4294967296, 4294967296)") + BODY, "bytes, expected"),
    (header(shape="(__import__('os').getpid(), 4)") + BODY, "header"),
    (header(shape="(2, 8)") + BODY, "--captions-per-image"),
]


def test_what_is_no_matrix_is_refused(tmp_path):
    path = tmp_path / "m.npy"
    for content, pattern in HOSTILE:
        path.write_bytes(content)
        with pytest.raises(SubmissionError, match=pattern) as caught:
            recall_file(path)
        assert str(caught.value).startswith(f"{path}: ")
    for value, place in ((np.nan, (3, 3)), (np.inf, (3, 4)), (-np.inf, (0, 39))):
        matrix, _ = write(path)
        matrix[place] = value
        np.save(path, matrix)
        with pytest.raises(FormatError, match="not finite"):
            recall_file(path)


def test_the_command_prints_figures_and_json(tmp_path, now_leaderboard):
    matrix, owner = write(tmp_path / "m.npy", 30, 5)
    options = ["recall", tmp_path / "m.npy", "--captions-per-image", 5]
    code, text, _ = now_leaderboard(*options)
    expected = recalls(matrix, owner)
    assert code == 0
    assert f"rSum {expected.rsum:.2f}" in text
    assert "if all ties are lost" in text
    code, text, _ = now_leaderboard(*options, "--json")
    tree = json.loads(text)
    assert tree["rsum"] == expected.rsum
    assert tree["t2i"]["R@5"] == expected.t2i.recall(5)
    assert (tree["i2t"]["queries"], tree["t2i"]["queries"]) == (30, 150)
    code, _, told = now_leaderboard("recall", tmp_path / "m.npy")
    assert (code, "--captions-per-image" in told, told.count("\n")) == (1, True, 1)


def _peak(path):
    """The most anonymous memory, in MiB above what the imports take."""
    code = (
        "import sys, threading, time; from pathlib import Path\n"
        "from leaderboard.submission.matrix import recall_file\n"
        "def anonymous():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return int(next(l for l in lines if l.startswith('RssAnon')).split()[1]) / 1024\n"
        "before = peak = anonymous()\n"
        "def watch():\n"
        "    global peak\n"
        "    while True:\n"
        "        peak = max(peak, anonymous()); time.sleep(0.002)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        "recall_file(Path(sys.argv[1]))\n"
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
        pack_file(tmp_path / "x.zip", meta, path, tmp_path / "r")


def test_whole_numbers_are_packed_and_other_types_are_told_which_are_scores(
    tmp_path, meta, release
):
    scores = (1000 * make_similarity()).round().astype(np.int32)
    pack_file(tmp_path / "x.zip", meta, _save(tmp_path / "m.npy", scores))
    result = score(tmp_path / "x.zip", release)
    assert (result.rsum, result.ranked) == (recalls(scores.astype(np.float64)).rsum, True)
    for kind in (np.bool_, np.uint8, np.int8, np.complex64):
        path = _save(tmp_path / "m.npy", (scores > 0).astype(kind))
        problem = the_problem(pack_file, tmp_path / "x.zip", meta, path)
        assert problem.expected == "scores as float16, float32, float64, int32 or int64"
        assert problem.mend == "similarity.astype('float32')"
