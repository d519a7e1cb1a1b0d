"""Matrices on disk: the same recalls as in memory, in memory that does not grow with them."""

import json
import subprocess
import sys

import numpy as np
import pytest

from leaderboard.core.errors import SubmissionError
from leaderboard.metrics import recalls
from leaderboard.submission.matrix import recall_file
from now_builder.errors import FormatError


def write(path, images=40, each=1, seed=0, **how):
    """A matrix with ties, in any precision."""
    rng = np.random.default_rng(seed)
    matrix = rng.integers(0, 30, (images, images * each)).astype(how.get("dtype", "<f4"))
    owner = np.arange(images * each) // each
    matrix[owner, np.arange(images * each)] += 12
    np.save(path, matrix)
    return matrix, owner


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4"])
@pytest.mark.parametrize("each", [1, 5])
@pytest.mark.parametrize("images", [1, 7, 300])
def test_recalls_are_those_of_the_matrix_in_memory(tmp_path, dtype, each, images):
    matrix, owner = write(tmp_path / "m.npy", images, each, dtype=dtype)
    found, expected = recall_file(tmp_path / "m.npy", each), recalls(matrix, owner)
    assert found.rsum == expected.rsum
    assert (found.i2t, found.t2i) == (expected.i2t, expected.t2i)
    assert found.rsum_argsort == expected.rsum_argsort
    for way, other in zip(found.ranks, expected.ranks, strict=True):
        assert np.array_equal(way.equal, other.equal)
        assert np.array_equal(way.later, other.later)


def header(descr="'<f4'", order="False", shape="(4, 4)"):
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BODY = bytes(64)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"", "a .npy file"),
        (b"PK\x03\x04" + BODY, "a .npy file"),
        (header("'<i4'") + BODY, "dtype '<i4'"),
        (header("'|O'") + BODY, "dtype|header"),
        (header("'<f4'", "True") + BODY, "columns in one piece, expected rows in one piece"),
        (header(shape="(16,)") + BODY, r"shape \(16,\)"),
        (header(shape="(2, 2, 4)") + BODY, r"shape \(2, 2, 4\)"),
        (header(shape="(0, 4)"), r"shape \(0, 4\)"),
        (header() + BODY[:-1], "143|bytes, expected"),
        (header() + BODY + b"x", "bytes, expected"),
        (header(shape="(4294967296, 4294967296)") + BODY, "bytes, expected"),
        (header(shape="(__import__('os').getpid(), 4)") + BODY, "header"),
        (header(shape="(2, 8)") + BODY, "--captions-per-image"),
    ],
)
def test_what_is_no_matrix_is_refused(tmp_path, content, pattern):
    path = tmp_path / "m.npy"
    path.write_bytes(content)
    with pytest.raises(SubmissionError, match=pattern) as caught:
        recall_file(path)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(3, 3), (3, 4), (0, 39)])
def test_a_value_that_is_not_finite_is_refused(tmp_path, value, place):
    matrix, _ = write(tmp_path / "m.npy")
    matrix[place] = value
    np.save(tmp_path / "m.npy", matrix)
    with pytest.raises(FormatError, match="not finite"):
        recall_file(tmp_path / "m.npy")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        recall_file(tmp_path / "m.npy")


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
