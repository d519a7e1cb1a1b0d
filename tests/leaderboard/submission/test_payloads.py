"""Submissions of ranked lists, and arrays in another order."""

import io
import zipfile

import numpy as np
import pytest

from leaderboard.core.errors import SubmissionError
from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import LISTS_REASON, score
from leaderboard.submission.archive import new_submission, open_submission, pack, pack_arrays
from leaderboard.submission.pack import Sources, pack_files
from now_builder.errors import FormatError
from tests.leaderboard.conftest import SIZES, make_similarity, the_problem

N = SIZES["test"]


@pytest.fixture
def meta(release):
    return new_submission(release, "jieba", "test", "Mine")


@pytest.fixture
def ranked(meta):
    return meta.model_copy(update={"payload": "ranked"})


def _save(path, array):
    np.save(path, array)
    return path


def _lists(matrix, depth):
    """Ranked lists of both directions from a matrix without ties."""
    return [np.argsort(-way, axis=1)[:, :depth].astype(np.int32) for way in (matrix, matrix.T)]


@pytest.mark.parametrize("depth", [10, N])
def test_ranked_lists_give_the_recalls_of_their_matrix_and_no_place(
    tmp_path, ranked, release, depth
):
    matrix = make_similarity()
    pack_arrays(tmp_path / "x.zip", _lists(matrix, depth), ranked)
    result, expected = score(tmp_path / "x.zip", release), recalls(matrix)
    assert result.rsum == expected.rsum
    assert (result.precision, result.ranked, result.reason) == (None, False, LISTS_REASON)
    assert result.notes == ()
    assert result.i2t.median_rank == expected.i2t.median_rank
    if depth == N:
        assert result.i2t.mean_rank == expected.i2t.mean_rank
        assert result.t2i.mrr == pytest.approx(expected.t2i.mrr)
    else:
        assert expected.t2i.mean_rank is not None
        assert (result.t2i.mean_rank, result.t2i.mrr) == (None, None)  # one stands at place 11


def test_duplicates_count_in_ranked_lists_as_in_their_matrix(tmp_path, meta, ranked, release):
    """Rows 6 and 7 share a caption, 8 and 9 an image: finding the twin is as good."""
    matrix = np.random.default_rng(3).standard_normal((N, N)).astype(np.float32)
    pack(tmp_path / "m.zip", matrix, meta)
    pack_arrays(tmp_path / "r.zip", _lists(matrix, N), ranked)
    of_matrix, of_lists = (score(tmp_path / name, release) for name in ("m.zip", "r.zip"))
    assert of_lists.duplicates == of_matrix.duplicates
    assert of_lists.duplicates.rsum > of_lists.rsum


@pytest.mark.parametrize(("before", "after"), [("", ""), ("\ufeff", "\n  \n")])
def test_arrays_in_another_order_are_put_in_order_by_their_keys(
    tmp_path, meta, release, before, after
):
    """In files of keys with a byte order mark and blank last lines, too."""
    generator, matrix = np.random.default_rng(5), make_similarity()
    rows, columns = generator.permutation(N), generator.permutation(N)
    for name, keys, order in (
        ("rows", meta.image_ids, rows),
        ("columns", meta.caption_ids, columns),
    ):
        lines = "".join(f"{keys[place]}\n" for place in order)
        (tmp_path / name).write_text(f"{before}{lines}{after}", encoding="utf-8")
    shuffled = matrix[np.ix_(rows, columns)]
    keys = {"image_ids": tmp_path / "rows", "caption_ids": tmp_path / "columns"}
    i2t, t2i = _lists(shuffled, 12)
    for arrays in ([shuffled], [i2t, t2i]):
        files = [_save(tmp_path / f"{way}.npy", array) for way, array in enumerate(arrays)]
        pack_files(tmp_path / "x.zip", meta, Sources(*files, **keys))
        assert score(tmp_path / "x.zip", release).rsum == recalls(matrix).rsum


def test_keys_that_are_not_the_splits_are_named(tmp_path, meta):
    path = _save(tmp_path / "m.npy", make_similarity())
    (tmp_path / "keys").write_text("".join(f"{key}\n" for key in [*meta.image_ids[1:], "x"]))
    with pytest.raises(FormatError, match=f"keys: 24 keys.*{meta.image_ids[0]!r} is missing"):
        pack_files(tmp_path / "x.zip", meta, Sources(path, image_ids=tmp_path / "keys"))


@pytest.mark.parametrize("option", ["--lists", "--t2i"])
def test_ranked_lists_of_one_direction_are_not_packed(tmp_path, release, now_leaderboard, option):
    path = _save(tmp_path / "l.npy", np.tile(np.arange(10), (N, 1)))
    command = ["pack", path, "-o", tmp_path / "x.zip", "--release", release, "--track", "jieba"]
    more = [option, path] if option == "--t2i" else [option]
    code, _, problem = now_leaderboard(*command, "--method", "Mine", *more)
    assert code == 1
    assert f"{option} without" in problem


def _ten():
    return np.tile(np.arange(10, dtype=np.int32), (N, 1))


def _with(row, place, value):
    lists = _ten()
    lists[row, place] = value
    return lists


@pytest.mark.parametrize(
    ("lists", "code", "message"),
    [
        (_ten()[:, :9], "ranked.shape", "K from 10 to 24"),
        (_ten()[1:], "ranked.shape", r"found shape \(23, 10\)"),
        (_with(3, 4, 24), "ranked.range", "24 in list 3, place 4, expected rows from 0 to 23"),
        (_with(0, 0, -1), "ranked.range", "-1 in list 0, place 0"),
        (_with(5, 9, 0), "ranked.twice", "twice in list 5"),
        (_with(1, 4, 5), "ranked.twice", "twice in list 1"),
        (make_similarity(), "array.dtype", "expected ranked lists as int32 or int64"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path, ranked, release, lists, code, message):
    pack_arrays(tmp_path / "x.zip", [lists, _ten()], ranked)
    with pytest.raises(SubmissionError, match=message) as caught:
        score(tmp_path / "x.zip", release)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_all_that_is_wrong_is_said_at_once(tmp_path, meta, release):
    """Fingerprint, keys of both sides, and a value of the matrix."""
    wrong = meta.model_copy(
        update={
            "dataset_fingerprint": "0" * 64,
            "image_ids": meta.image_ids[::-1],
            "caption_ids": (*meta.caption_ids[:-1], "x"),
        }
    )
    matrix = make_similarity()
    pack(tmp_path / "x.zip", matrix, wrong)
    spoilt = np.array([matrix[2, 2], np.nan], np.float32).tobytes()
    content = (tmp_path / "x.zip").read_bytes().replace(matrix[2, 2:4].tobytes(), spoilt, 1)
    (tmp_path / "x.zip").write_bytes(_resealed(content))
    with pytest.raises(SubmissionError) as caught:
        score(tmp_path / "x.zip", release)
    assert [problem.code for problem in caught.value.problems] == [
        "fingerprint.mismatch",
        "keys.order",
        "keys.foreign",
        "matrix.finite",
    ]
    assert all(
        problem.field and problem.found and problem.expected for problem in caught.value.problems
    )


def _resealed(content):
    """Zip the members again, with the checksums that they now have."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for info in old.infolist():
            start = info.header_offset + 30 + len(info.filename)
            new.writestr(info.filename, content[start : start + info.file_size])
    return buffer.getvalue()


@pytest.mark.parametrize("payload", ["matrix", "ranked"])
def test_members_that_do_not_fit_the_payload_are_refused(tmp_path, meta, payload):
    pack(tmp_path / "x.zip", make_similarity(), meta)
    content = (tmp_path / "x.zip").read_bytes()
    if payload == "matrix":
        (tmp_path / "x.zip").write_bytes(content.replace(b"similarity.npy", b"ranked_i2t.npy"))
        message = r"there is no similarity\.npy"
    else:
        with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
            archive.writestr("ranked_i2t.npy", archive.read("similarity.npy"))
        message = r"found ranked_i2t\.npy, similarity\.npy, submission\.json, expected sub\S+ sim"
    with (
        pytest.raises(SubmissionError, match=message) as caught,
        open_submission(tmp_path / "x.zip"),
    ):
        pass
    assert [problem.code for problem in caught.value.problems] == ["zip.payload"]


@pytest.mark.parametrize("kind", [np.bool_, np.uint8, np.int8, np.complex64])
def test_types_that_are_no_scores_are_told_which_are(tmp_path, meta, kind):
    path = _save(tmp_path / "m.npy", (make_similarity() > 0).astype(kind))
    problem = the_problem(pack_files, tmp_path / "x.zip", meta, Sources(path))
    assert problem.expected == "scores as float16, float32, float64, int32 or int64"
    assert problem.mend == "similarity.astype('float32')"


def test_whole_numbers_are_scores_unless_there_are_lists_of_captions_too(tmp_path, meta, release):
    scores = (1000 * make_similarity()).round().astype(np.int32)
    pack_files(tmp_path / "x.zip", meta, Sources(_save(tmp_path / "m.npy", scores)))
    result = score(tmp_path / "x.zip", release)
    assert (result.rsum, result.ranked) == (recalls(scores.astype(np.float64)).rsum, True)
    lists = _save(tmp_path / "l.npy", _lists(make_similarity(), 10)[0])
    with pytest.raises(SubmissionError, match="--lists"):
        pack_files(tmp_path / "y.zip", meta, Sources(lists))


def test_distances_get_a_hint_and_bad_similarities_do_not(tmp_path, meta, release):
    for sign, codes in ((-1, ["distances"]), (1, [])):
        strong = sign * (make_similarity() + 4 * np.eye(N, dtype=np.float32))
        pack(tmp_path / "x.zip", strong, meta)
        assert [note.code for note in score(tmp_path / "x.zip", release).notes] == codes
    pack(tmp_path / "x.zip", np.zeros((N, N), np.float32), meta)
    assert score(tmp_path / "x.zip", release).notes == ()
