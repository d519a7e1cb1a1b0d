"""TREC runs: figures of the tools that score them, ties, and lines that are none."""

import json

import numpy as np
import pytest

from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import LISTS_REASON, score
from leaderboard.scoring.trec import score_run, write_trec
from leaderboard.submission.archive import new_submission, pack, pack_arrays
from leaderboard.submission.gallery import read_gallery
from now_builder.errors import FormatError
from tests.leaderboard.conftest import SIZES, make_similarity

N = SIZES["test"]
FIGURES = ("R@1", "R@5", "R@10", "MRR", "nDCG@10")


@pytest.fixture
def coco(tmp_path):
    """A split of twelve images with five captions each, in the field's layout."""
    data = tmp_path / "data" / "coco_precomp"
    data.mkdir(parents=True)
    text = "".join(f"caption {row}\n" for row in range(60))
    (data / "testall_caps.txt").write_text(text)
    return data.parent


def _packed(folder, release, track, matrix):
    pack(folder / "x.zip", matrix, new_submission(release, track, "test", "My method"))
    return folder / "x.zip"


def _figures(tree):
    return [tree[name] for name in FIGURES]


def _cells(path):
    return [line.split() for line in path.read_text().splitlines()]


def _run(path):
    run = {}
    for query, _, document, _, value, _ in _cells(path):
        run.setdefault(query, {})[document] = float(value)
    return run


def _qrels(path):
    found = {}
    for query, _, document, relevance in _cells(path):
        found.setdefault(query, {})[document] = int(relevance)
    return found


def _run_score(path, release, track="jieba", way=None):
    return score_run(path, read_gallery(release, "test", track), "test", track, way)


def _scored(path, release, track="jieba"):
    """The figures by the direction that they are of."""
    found = _run_score(path, release, track)
    return {way: getattr(found, way) for way in ("i2t", "t2i") if getattr(found, way)}


def _by_pytrec_eval(run, qrels):
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier not installed")
    names = {"success_1", "success_5", "success_10", "recip_rank", "ndcg_cut_10"}
    by_query = pytrec_eval.RelevanceEvaluator(_qrels(qrels), names).evaluate(_run(run))
    order = ("success_1", "success_5", "success_10", "recip_rank", "ndcg_cut_10")
    return [np.mean([found[name] for found in by_query.values()]) for name in order]


def _by_ir_measures(run, qrels):
    ir_measures = pytest.importorskip("ir_measures", reason="ir-measures is not installed")
    measures = [*(ir_measures.Success @ k for k in (1, 5, 10)), ir_measures.RR]
    measures.append(ir_measures.nDCG @ 10)
    found = ir_measures.calc_aggregate(
        measures,
        list(ir_measures.read_trec_qrels(str(qrels))),
        list(ir_measures.read_trec_run(str(run))),
    )
    return [found[measure] for measure in measures]


def _by_ranx(run, qrels):
    ranx = pytest.importorskip("ranx", reason="ranx is not installed")
    measures = ["hit_rate@1", "hit_rate@5", "hit_rate@10", "mrr", "ndcg@10"]
    read = ranx.Qrels.from_file(str(qrels), kind="trec")
    found = ranx.evaluate(read, ranx.Run.from_file(str(run), kind="trec"), measures)
    return [found[measure] for measure in measures]


SLOW = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*unsafe cast")]  # in colours


@pytest.mark.parametrize(
    "judge", [_by_pytrec_eval, _by_ir_measures, pytest.param(_by_ranx, marks=SLOW)]
)
@pytest.mark.parametrize("each", [1, 5])
def test_figures_are_those_of_the_tools_of_trec(tmp_path, release, coco, judge, each):
    """Of a matrix without ties: the recalls, MRR and nDCG@10, of one and of five captions."""
    if each == 1:
        matrix, track, data = make_similarity(strength=1.0), "jieba", release
    else:
        matrix = np.random.default_rng(0).standard_normal((12, 60)).astype(np.float32)
        track, data = "coco", coco
    packed = _packed(tmp_path, data, track, matrix)
    result = json.loads(score(packed, data).to_json())
    write_trec(packed, data, tmp_path / "out")
    for way in ("i2t", "t2i"):
        paths = (tmp_path / "out" / f"{way}.trec", tmp_path / "out" / f"{way}.qrels")
        *hits, mrr, ndcg = judge(*paths)
        expected = [*(100 * hit for hit in hits), mrr, ndcg]
        assert 0 < ndcg < 1
        assert _figures(result[way]) == pytest.approx(expected)
        found = _scored(paths[0], data, track)
        assert list(found) == [way]
        assert _figures(found[way].model_dump(by_alias=True)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("each", [1, 5])
def test_a_submission_written_and_read_has_all_its_figures_ties_too(
    tmp_path, release, coco, kind, each
):
    """All of a direction: bounds, intervals, duplicates, ranks, tied queries."""
    data, track, shape = (release, "jieba", (N, N)) if each == 1 else (coco, "coco", (12, 60))
    matrix = (np.random.default_rng(1).integers(0, 9, shape) / 7).astype(kind)
    packed = _packed(tmp_path, data, track, matrix)
    result = score(packed, data)
    assert result.ties.width > 0
    write_trec(packed, data, tmp_path / "out")
    for way in ("i2t", "t2i"):
        found = _scored(tmp_path / "out" / f"{way}.trec", data, track)
        assert found[way] == getattr(result, way)


def test_a_run_is_cut_after_all_that_tie_with_the_last(tmp_path, release, monkeypatch):
    monkeypatch.setattr("leaderboard.scoring.trec.DEPTH", 10)
    matrix = make_similarity()
    matrix[0] = 0
    packed = _packed(tmp_path, release, "jieba", matrix)
    write_trec(packed, release, tmp_path / "out")
    run = _run(tmp_path / "out" / "i2t.trec")
    assert [len(lines) for lines in run.values()] == [N] + [10] * (N - 1)
    result, found = score(packed, release).i2t, _scored(tmp_path / "out" / "i2t.trec", release)
    for name in ("hits", "ndcg", "optimistic", "pessimistic"):
        assert getattr(found["i2t"], name) == getattr(result, name)


def test_ranked_lists_are_written_by_their_places(tmp_path, release):
    matrix = make_similarity()
    lists = [np.argsort(-way, axis=1)[:, :12].astype(np.int32) for way in (matrix, matrix.T)]
    meta = new_submission(release, "jieba", "test", "Mine")
    meta = meta.model_copy(update={"payload": "ranked"})
    pack_arrays(tmp_path / "x.zip", lists, meta)
    write_trec(tmp_path / "x.zip", release, tmp_path / "out")
    found = _scored(tmp_path / "out" / "t2i.trec", release)
    assert found == {"t2i": score(tmp_path / "x.zip", release).t2i}


def _lines(gallery, scores):
    keys = gallery.image_keys
    return [f"{keys[q]} Q0 {keys[d]} 1 {value} mine" for q, d, value in scores]


def _written(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@pytest.mark.parametrize(("tag", "way"), [("t2i", "t2i"), ("my_t2i", "t2i"), ("best2i", "i2t")])
def test_the_tag_says_the_direction(tmp_path, release, gallery, tag, way):
    (line,) = _lines(gallery, [(0, 0, 3)])
    path = _written(tmp_path / "r.trec", [line.replace("mine", tag)])
    assert list(_scored(path, release)) == [way]


def test_what_a_run_lacks_counts_as_missed_and_scores_alone_order_it(tmp_path, release, gallery):
    """Three queries of 24 have lines: a first place, a second, a tie of two at the top.

    R@1 = (1 + 0 + 1/2) / 24; the column of ranks, always 1, says nothing.
    """
    lines = _lines(
        gallery, [(0, 0, 3), (0, 5, 1), (1, 2, 9), (1, 1, 8), (2, 2, "0"), (2, 3, "-0.0")]
    )
    found = _run_score(_written(tmp_path / "r.trec", lines), release)
    assert (found.queries, found.queries_found, found.t2i) == (N, 3, None)
    assert found.i2t.r1 == pytest.approx(100 * 1.5 / N)
    gains = 1 + 1 / np.log2(3) + (1 + 1 / np.log2(3)) / 2
    assert found.i2t.ndcg == pytest.approx(gains / N)
    assert (found.i2t.mrr, found.i2t.mean_rank) == (None, None)


def test_where_one_candidate_is_in_no_list_its_rank_is_not_known(tmp_path, release, gallery):
    """All candidates but the last, in the order of the split, for every query."""
    scores = [(query, place, -place) for query in range(N) for place in range(N - 1)]
    path = _written(tmp_path / "r.trec", _lines(gallery, scores))
    found = _run_score(path, release).i2t
    expected = recalls(np.tile(-np.arange(N, dtype=np.float32), (N, 1))).i2t
    assert (found.r10, found.median_rank) == (expected.recall(10), expected.median_rank)
    assert (found.mrr, found.mean_rank) == (None, None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda cells: cells[:5], "line 2: 5 columns, expected 6: query Q0 document rank score"),
        (
            lambda cells: ["x", *cells[1:]],
            r"line 2: query 'x', expected a key of the images of the split, .*\(--direction\)",
        ),
        (
            lambda cells: [*cells[:2], "\x07x", *cells[3:]],
            r"line 2: document '\\x07x', expected",
        ),
        (lambda cells: [*cells[:4], "nan", "t"], "line 2: score 'nan', expected a finite number"),
        (lambda cells: [*cells[:4], "high", "t"], "line 2: score 'high', expected a finite number"),
    ],
)
def test_a_line_that_is_none_is_named(tmp_path, release, gallery, change, problem):
    first, second = _lines(gallery, [(0, 0, 2), (0, 1, 1)])
    path = _written(tmp_path / "r.trec", [first, " ".join(change(second.split()))])
    with pytest.raises(FormatError, match=problem):
        _run_score(path, release)


def test_a_document_twice_an_empty_run_and_bytes_are_refused(tmp_path, release, gallery):
    one = _lines(gallery, [(4, 5, 1)])
    key = gallery.image_keys[5]
    with pytest.raises(FormatError, match=f"document '{key}' twice for query"):
        _run_score(_written(tmp_path / "r.trec", one * 2), release)
    with pytest.raises(FormatError, match="no lines"):
        _run_score(_written(tmp_path / "r.trec", []), release)
    (tmp_path / "r.trec").write_bytes(b"\xff\xfe\0")
    with pytest.raises(FormatError, match="not a readable UTF-8 text"):
        _run_score(tmp_path / "r.trec", release)


def test_the_commands_write_and_score_runs(tmp_path, packed, release, now_leaderboard):
    code, text, told = now_leaderboard(
        "export", packed, "--to", "trec", "--release", release, "-o", tmp_path / "out"
    )
    assert (code, told) == (0, "")
    assert [line.rpartition("/")[2] for line in text.split()] == [
        "i2t.trec", "i2t.qrels", "t2i.trec", "t2i.qrels"
    ]  # fmt: skip
    run = ["score", tmp_path / "out" / "t2i.trec", "--release", release]
    code, text, _ = now_leaderboard(*run, "--track", "jieba", "--json", "-o", tmp_path / "r.json")
    tree = json.loads(text)
    assert (code, tree["ranked"], tree["reason"]) == (0, False, LISTS_REASON)
    assert tree["t2i"] == json.loads(score(packed, release).to_json())["t2i"]
    assert json.loads((tmp_path / "r.json").read_text()) == tree
    code, text, _ = now_leaderboard(*run, "--track", "jieba", "--direction", "i2t")
    assert code == 0
    assert "24 of 24 queries of test, track jieba; not ranked: ranked lists" in text
    assert "image to caption" in text
    for more, line in (
        ([], "--track is not given"),
        (["--track", "jieba", "--direction", "both"], "found 'both', expected i2t or t2i"),
        (["--track", "x"], "track: found 'x'"),
        (["--split", "dev"], "--track is not given"),
        (["--track", "jieba", "--attributes", tmp_path / "a.csv"], "expected a submission: X.zip"),
        (["--track", "jieba", "--split", "train"], "split: found 'train'"),
    ):
        code, _, told = now_leaderboard(*run, *more)
        assert (code, line in told, told.count("\n")) == (1, True, 1)
    code, _, told = now_leaderboard("export", packed, "--to", "trec")
    assert (code, "expected X.zip, --release RELEASE and -o FOLDER" in told) == (1, True)
