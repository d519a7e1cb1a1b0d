"""Results are recomputed: what agrees is said so, every figure that was touched is named."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from leaderboard.metrics import count_own, count_ranks, recalls
from leaderboard.scoring.evaluate import figures_of, fold_ranks, folds_of, score
from leaderboard.scoring.references import chance_rsum
from leaderboard.scoring.result import QueryRanks, RankRecord, query_ranks
from leaderboard.store.entries import entry_of, read_result, write_result
from leaderboard.store.verify import count_figures, recomputed, verify
from tests.leaderboard.random_entries import make_entries

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def filed(tmp_path, packed, release):
    result = score(packed, release)
    path = tmp_path / f"jieba-test-{entry_of(result).name}.json"
    write_result(path, result)
    return path


def _change(path, edit):
    tree = json.loads(path.read_text())
    edit(tree)
    changed = path.with_name("changed.json")
    changed.write_text(json.dumps(tree))
    return changed


def test_a_sound_result_agrees_with_itself_and_its_submission(
    filed, packed, release, now_leaderboard
):
    for options in ([], ["--release", release], ["--submission", packed, "--release", release]):
        code, text, _ = now_leaderboard("verify", filed, *options)
        assert code == 0
        assert text == f"{filed}: {count_figures(read_result(filed))} figures agree\n"
    assert count_figures(read_result(filed)) > 60


@pytest.mark.parametrize(
    ("field", "edit"),
    [
        ("rsum", lambda tree: tree.update(rsum=tree["rsum"] + 0.5)),
        ("i2t.R@5", lambda tree: tree["i2t"].update({"R@5": 99.0})),
        ("t2i.interval.R@1", lambda tree: tree["t2i"]["interval"].update({"R@1": [1.0, 2.0]})),
        ("ranked", lambda tree: tree.update(ranked=False)),
        ("duplicates.rsum", lambda tree: tree["duplicates"].update(rsum=600.0)),
        ("n_pairs", lambda tree: tree.update(n_pairs=25)),
    ],
)
def test_every_changed_figure_is_named(filed, now_leaderboard, field, edit):
    changed = _change(filed, edit)
    code, text, told = now_leaderboard("verify", filed, changed)
    assert (code, told) == (1, "")
    assert f"{changed}: {field}: found" in text
    assert f"{filed}: " in text.splitlines()[0]


def test_a_file_named_by_another_content_is_found(filed, now_leaderboard):
    changed = _change(filed, lambda tree: tree["method"].update(name="Other")).rename(filed)
    code, text, _ = now_leaderboard("verify", changed)
    assert (code, "name: found" in text) == (1, True)


def test_figures_of_another_submission_differ(
    filed, tmp_path, release, packed, now_leaderboard, archive
):
    other = _change(filed, lambda tree: tree["ranks"]["i2t"]["greater"].__setitem__(0, 5))
    code, text, _ = now_leaderboard("verify", other, "--submission", packed, "--release", release)
    assert (code, "ranks.i2t.greater" in text) == (1, True)
    code, text, _ = now_leaderboard("verify", filed, "--release", archive)
    assert code == 1, "the archive has no jieba track"


def test_a_submission_needs_its_release_and_one_result(filed, packed, release, now_leaderboard):
    for arguments in ([filed, "--submission", packed], [filed, filed, "--submission", packed]):
        code, _, told = now_leaderboard("verify", *arguments)
        assert (code, "expected one result, and --release" in told) == (1, True)


@pytest.mark.parametrize(
    "edit",
    [
        lambda ranks: ranks["i2t"]["greater"].pop(),
        lambda ranks: ranks["i2t"].update(greater=[]),
        lambda ranks: ranks["t2i"].update(equal=[1, 2]),
        lambda ranks: ranks["t2i"]["greater"].__setitem__(0, 24),
        lambda ranks: ranks["t2i"]["greater"].__setitem__(0, 2**40 - 1),
        lambda ranks: ranks["i2t"].update(right=[2**39] * 24, equal=[2**39] * 24),
        lambda ranks: ranks["i2t"].update(right=[0] * 24),
        lambda ranks: ranks["i2t"].update(later=[1] * 24),
        lambda ranks: ranks.update(explained=[[1, 2], []]),
    ],
)
def test_ranks_that_no_matrix_has_are_found_at_once(filed, edit):
    changed = _change(filed, lambda tree: edit(tree["ranks"]))
    start = time.monotonic()
    found = verify(changed, read_result(changed))
    assert "ranks that no matrix has" in str(found[-1])
    assert time.monotonic() - start < 2


def test_figures_of_folds_are_recomputed_from_the_ranks_within_them(monkeypatch):
    """Folds of two of four images: typed-in figures, and ranks worse than in the whole split."""
    monkeypatch.setattr("leaderboard.store.verify.FOLD", 2)
    matrix = np.array([[5, 1, 9, 1], [1, 5, 1, 9], [1, 9, 5, 1], [9, 1, 1, 5]], np.float32)
    i2t, t2i = (query_ranks(way, np.arange(4)) for way in count_ranks(matrix))
    record = RankRecord(i2t=i2t, t2i=t2i)
    figures, aware = figures_of(record)
    folds = folds_of(fold_ranks(matrix, np.arange(4), 2), 2)
    base = make_entries(1)[0].result
    duplicates = base.duplicates.model_copy(update={"rsum": aware.rsum})
    known = {"n_images": 4, "n_pairs": 4, "references": {"chance": chance_rsum(4, 4)}}
    changed = {**figures, **known, "ranks": record, "duplicates": duplicates, "folds": folds}
    result = base.model_copy(update=changed)
    assert recomputed(result) == []
    typed = folds.model_copy(update={"rsum": 512.0})
    (one,) = recomputed(result.model_copy(update={"folds": typed}))
    assert (one.field, one.found, one.expected) == ("folds.rsum", 512.0, 600.0)
    bare = typed.model_copy(update={"ranks": None, "rsum_interval": None})
    (one,) = recomputed(result.model_copy(update={"folds": bare}))
    assert str(one) == "folds.ranks: found None, expected 'the ranks within the folds'"
    worse = QueryRanks(greater=(1, 1, 1, 1))
    best = {"i2t": QueryRanks(greater=(0, 0, 0, 0)), "t2i": QueryRanks(greater=(0, 0, 0, 0))}
    whole = RankRecord(**best)
    figures, aware = figures_of(whole)
    forged = folds_of(RankRecord(i2t=worse, t2i=worse), 2)
    duplicates = duplicates.model_copy(update={"rsum": aware.rsum})
    update = {**figures, "ranks": whole, "folds": forged, "duplicates": duplicates}
    assert [one.field for one in recomputed(result.model_copy(update=update))] == ["folds.ranks"]


def test_a_stored_result_is_read_as_it_was_written_and_verified():
    (path,) = GOLDEN.iterdir()
    result = read_result(path)
    assert result.to_json() == path.read_text()
    assert verify(path, result) == []


def test_ranks_of_five_captions_are_those_of_their_best():
    """Every caption's rank is in the record, for nDCG; its best must be that of the recalls."""
    matrix = np.random.default_rng(0).integers(0, 9, (4, 20)).astype(np.float32)
    owner = np.arange(20) // 5
    i2t, t2i = count_ranks(matrix, owner)
    own = query_ranks(count_own(matrix, owner, i2t), np.arange(20))
    ways = query_ranks(i2t, np.arange(4)), query_ranks(t2i, np.arange(20))
    record = RankRecord(i2t=ways[0], t2i=ways[1], own=own)
    assert record.possible()
    assert figures_of(record)[0]["i2t"].ndcg == recalls(matrix, owner).i2t.ndcg
    better = tuple(max(0, rank - 1) for rank in own.greater)
    assert not record.model_copy(
        update={"own": own.model_copy(update={"greater": better})}
    ).possible()
    short = own.model_copy(update={"greater": own.greater[1:]})
    assert not record.model_copy(update={"own": short}).possible()
