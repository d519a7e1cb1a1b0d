"""Flags: honest matrices never have one, each trick has its own, what is declared has none."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from leaderboard.metrics import count_ranks, expected_hits, recalls
from leaderboard.scoring import checks, content
from leaderboard.scoring.checks import (
    GAP_Z,
    NEAR_IDENTICAL,
    Known,
    SplitScore,
    check_matrix,
    dev_test_gap,
    near_identical,
    window_starts,
)
from leaderboard.scoring.content import LARGEST
from leaderboard.scoring.evaluate import _flags
from leaderboard.scoring.result import Flag
from leaderboard.submission.archive import Scored
from tests.leaderboard.conftest import closed_form_deviation
from tests.leaderboard.scoring.similarities import (
    HONEST,
    OF_MANY,
    TRICKS,
    TURNED,
    assigned,
    dual_softmax,
    embedded,
    mild,
    repeats,
    sinkhorn,
    softmax,
    told_apart,
    with_repeats,
)

SIZE = 300


def _codes(similarity, declared="none", owner=None, kind=np.float32, **labels):
    half = np.asarray(similarity).dtype == np.float16
    similarity = np.asarray(similarity, np.float16 if half else kind)
    owner = np.arange(len(similarity)) if owner is None else owner
    i2t, t2i = count_ranks(similarity, owner)
    hits = float(expected_hits(i2t, 1).sum()), float(expected_hits(t2i, 1).sum())
    known = Known(owner, declared=declared, **labels)
    return [flag.code for flag in check_matrix(similarity, known, hits)]


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("size", [60, 120, 300])
def test_an_honest_matrix_has_no_flag(kind, size):
    for seed in range(360 // size):
        assert _codes(HONEST[kind](np.random.default_rng(seed), size)) == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", HONEST)
def test_20_honest_matrices_of_1_000_pairs_have_no_flag(kind):
    for seed in range(20):
        assert _codes(HONEST[kind](np.random.default_rng(seed), 1000)) == [], seed


@pytest.mark.parametrize("trick", TRICKS)
def test_each_trick_has_its_flag_either_way_round(trick):
    code, make = TRICKS[trick]
    similarity = make(np.random.default_rng(0), 2 * SIZE if trick in OF_MANY else SIZE)
    assert code in _codes(similarity)
    assert TURNED.get(code, code) in _codes(similarity.T)


def _five_captions(seed, noise=1.0):
    """Five captions an image, in any order."""
    draw = np.random.default_rng(seed)
    meaning = draw.normal(size=(120, 64))
    owner = draw.permutation(np.arange(600) // 5)
    images = meaning + noise * draw.normal(size=(120, 64))
    captions = meaning[owner] + noise * draw.normal(size=(600, 64))
    return (images @ captions.T / 100).astype(np.float32), owner


def test_five_captions_an_image_have_no_flag_when_honest():
    for seed in range(20):
        similarity, owner = _five_captions(seed, 0.2 + seed / 10)
        assert _codes(similarity, owner=owner) == []


@pytest.mark.parametrize(
    ("code", "trick"),
    [
        ("identity-like", lambda values, near: values + 100 * (near == 0)),
        ("index-local", lambda values, near: values + 3 * np.exp(-near / 3)),
        ("normalised-both-ways", lambda values, _: dual_softmax(values, 0.1)),
        ("normalised-both-ways", lambda values, _: sinkhorn(values, 0.1, 20)),
        ("normalised-rows", lambda values, _: softmax(values, 1)),
        ("normalised-columns", lambda values, _: softmax(values, 0)),
        ("low-precision", lambda values, _: values.round(2)),
        ("many-ties", lambda values, _: values.round(0)),
    ],
)
def test_five_captions_an_image_have_each_trick_flagged(code, trick):
    similarity, owner = _five_captions(0)
    near = np.abs(np.arange(120)[:, None] - owner)
    assert code in _codes(trick(similarity, near), owner=owner)


@pytest.mark.parametrize("small", [1e-300, 1e-12])
def test_a_flag_says_in_short_how_far_own_pairs_are_above(small):
    noise = np.random.default_rng(0).random((SIZE, SIZE))
    hits = float(SIZE), float(SIZE)
    found = check_matrix(
        np.eye(SIZE) + small * noise, Known(np.arange(SIZE), declared="none"), hits
    )
    assert "identity-like" in [flag.code for flag in found]
    assert max(len(flag.message) for flag in found) < 300


@pytest.mark.parametrize("forged", [0, 60])
def test_a_large_matrix_is_judged_by_all_of_its_images(monkeypatch, forged):
    """Whichever half of the rows the trick is in."""
    for module in (checks, content):
        monkeypatch.setattr(module, "LARGEST", 60)
    similarity, owner = _five_captions(1)
    rows = np.arange(120)[:, None]
    near = np.abs(rows - owner)
    here = (rows >= forged) & (rows < forged + 60) & (owner >= forged) & (owner < forged + 60)
    assert _codes(similarity, owner=owner) == []
    assert "identity-like" in _codes(similarity + 100 * (near == 0) * here, owner=owner)
    assert "index-local" in _codes(similarity + 3 * np.exp(-near / 3) * here, owner=owner)
    assert _codes(softmax(similarity, 1), owner=owner) == ["normalised-rows"]


def test_windows_hold_all_images_and_none_is_short():
    for images in (50, 1000, 1001, 2500, 5000):
        starts = np.array(window_starts(images))
        assert starts[0] == 0
        assert starts[-1] + min(LARGEST, images) == images
        assert (np.diff(starts) <= LARGEST).all()


def test_every_message_fits_into_a_result():
    for _, make in TRICKS.values():
        for scale in (1e-30, 1e30):
            _codes(scale * make(np.random.default_rng(0), 50))


def test_what_is_declared_is_not_flagged():
    draw = np.random.default_rng(0)
    rows = softmax(mild(draw, SIZE) / 0.05, 1)
    assert _codes(rows) == ["normalised-rows"]
    assert _codes(rows, "per_query") == _codes(rows, "transductive") == []
    both = sinkhorn(mild(draw, SIZE), 0.1, 20)
    assert _codes(both) == _codes(both, "per_query") == ["normalised-both-ways"]
    assert _codes(both, "transductive") == []
    given = assigned(mild(draw, SIZE), 0.5)
    assert "one-to-one" in _codes(given, "per_query")
    assert _codes(given, "transductive") == []
    assert "identity-like" in _codes(np.eye(SIZE), "transductive")


def test_a_result_carries_the_flags_of_both_its_matrices_once():
    owner = np.arange(SIZE)
    rounded = mild(np.random.default_rng(0), SIZE).astype(np.float32).round(2)
    scored = Scored(count_ranks(rounded), (rounded, np.eye(SIZE, dtype=np.float32)))
    codes = [flag.code for flag in _flags(scored, Known(owner, declared="transductive"))]
    assert codes == ["low-precision", "many-ties", "identity-like"]


def test_a_few_pairs_have_no_flags():
    assert _codes(np.eye(20)) == []


def test_a_message_says_what_was_found_and_what_was_expected():
    similarity = mild(np.random.default_rng(0), SIZE).astype(np.float32).round(3)
    flag, *_ = check_matrix(similarity, Known(np.arange(SIZE), declared="transductive"), (1.0, 1.0))
    assert flag.message.startswith("1 % of 90000 sampled values are distinct, expected 50 %")


def test_the_float_type_and_memory_order_leave_the_flags():
    similarity = np.eye(SIZE) + 0.01 * np.random.default_rng(0).normal(size=(SIZE, SIZE))
    hits = (float(SIZE), float(SIZE))
    found = [
        check_matrix(kind, Known(np.arange(SIZE)), hits)
        for kind in (similarity, similarity.astype(np.float32), np.asfortranarray(similarity))
    ]
    assert found[0] == found[1] == found[2]


def _ranks(similarity):
    return count_ranks(np.asarray(similarity))


def test_rank_correlation_is_spearmans():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(0)
    first = draw.normal(size=(80, 80)).round(1) + np.eye(80)
    second = first + draw.normal(size=(80, 80)).round(1)
    entries = _ranks(first), _ranks(second)
    flat = [np.concatenate([way.greater + way.equal / 2 for way in ranks]) for ranks in entries]
    assert near_identical(*entries) == pytest.approx(stats.spearmanr(*flat).statistic)


def test_an_entry_with_a_little_noise_added_is_near_identical_and_another_training_is_not():
    """The other training has the same pages and captions, and draws of its own."""
    draw = np.random.default_rng(0)
    meaning = embedded(draw, SIZE, 1.0)
    one, other = (meaning + 0.05 * draw.normal(size=(SIZE, SIZE)) for _ in range(2))
    copy = one + 1e-4 * draw.normal(size=(SIZE, SIZE))
    assert near_identical(_ranks(one), _ranks(copy)) > NEAR_IDENTICAL
    assert 0.5 < near_identical(_ranks(one), _ranks(other)) < NEAR_IDENTICAL


def test_rank_correlation_of_the_same_and_of_perfect_entries():
    perfect, some = _ranks(np.eye(60)), _ranks(np.random.default_rng(0).normal(size=(60, 60)))
    assert near_identical(perfect, perfect) == 1
    assert near_identical(perfect, some) == 0
    with pytest.raises(ValueError, match="found 16 queries in the second, expected 120"):
        near_identical(perfect, _ranks(np.eye(8)))


def test_the_gap_between_splits_worked_by_hand():
    """30 points over the root of 3² + 4² is 6."""
    dev, test = SplitScore(150.0, 3.0, 1000), SplitScore(180.0, 4.0, 1000)
    assert dev_test_gap(dev, test) == 6
    assert dev_test_gap(test, dev) == -6


def test_splits_of_different_size_are_not_compared():
    assert dev_test_gap(SplitScore(150.0, 3.0, 500), SplitScore(180.0, 4.0, 1000)) is None
    assert dev_test_gap(SplitScore(600.0, 0.0, 9), SplitScore(600.0, 0.0, 9)) is None


def test_the_gap_of_two_draws_of_one_population_is_of_normal_size():
    gaps = []
    for seed in range(60):
        draw = np.random.default_rng(seed)
        found = [recalls(embedded(draw, 200, 1.5)) for _ in range(2)]
        scores = [SplitScore(f.rsum, closed_form_deviation(f.per_image), 200) for f in found]
        gaps.append(dev_test_gap(*scores))
    assert 0.7 < np.array(gaps, float).std() < 1.6
    assert np.abs(np.array(gaps, float)).max() < GAP_Z


def test_a_pattern_that_meets_the_step_of_a_sample_is_checked():
    """Every 15th row and column is zero off the diagonal: all that a fixed step would see."""
    for size, step in ((150, 2), (960, 15)):
        similarity = np.random.default_rng(0).random((size, size))
        _codes(_zeroed(similarity, step))


KINDS = (np.float16, np.float32, np.float64)


def _degenerate(draw, size, kind):
    """Draw a matrix with constant rows, blocks, huge and tiny values, ties or one value a row."""
    seed = draw(strategies.integers(0, 2**31))
    values = np.random.default_rng(seed).normal(size=(size, size))
    for change in draw(strategies.lists(strategies.sampled_from(sorted(CHANGES)), max_size=4)):
        values = CHANGES[change](values, draw(strategies.integers(1, size)))
    most = float(np.finfo(kind).max)
    largest = float(np.abs(values).max()) or 1.0
    scale = draw(strategies.sampled_from([1.0, most / largest / 2, 1e-30, 1e-310, 0.0, -1.0]))
    return (values * scale).astype(kind)


def _zeroed(values, step):
    zero = np.arange(len(values)) % step == 0
    return np.where((zero | zero[:, None]) & ~np.eye(len(values), dtype=bool), 0.0, values)


CHANGES = {
    "constant": lambda values, _: np.ones_like(values),
    "constant rows": lambda values, step: np.where(
        (np.arange(len(values)) % step == 0)[:, None], 1.0, values
    ),
    "constant block": lambda values, step: np.where(
        np.add.outer(np.arange(len(values)), np.arange(len(values))) < step, 0.5, values
    ),
    "zeroed": _zeroed,
    "one-hot": lambda values, step: np.roll(np.eye(len(values)), step, axis=1),
    "ties": lambda values, _: values.round(0),
    "positive": lambda values, _: np.abs(values),
    "exponential": lambda values, step: np.exp(np.clip(step * values, -700, 300)),
    "turned": lambda values, _: values.T,
    "outlier": lambda values, step: np.where(values == values.flat[step], 1e300, values),
}


@settings(max_examples=25, derandomize=True)
@given(strategies.data())
def test_no_degenerate_matrix_is_too_much_for_the_checks(data):
    """Constant, tied, huge, tiny, one-hot and patterned ones, float16 to 64, from n = 2."""
    kind = data.draw(strategies.sampled_from(KINDS))
    size = data.draw(strategies.sampled_from([2, 3, 8, 49, 50, 64, 128, 140]))
    similarity = _degenerate(data.draw, size, kind)
    assert np.isfinite(similarity).all()
    labels = np.arange(size) // data.draw(strategies.integers(1, 3))
    known = Known(np.arange(size), captions=labels, images=labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        flags = check_matrix(similarity, known, (1.0, 1.0))
    assert all(Flag.model_validate(flag.model_dump()) for flag in flags)


def test_own_pairs_explained_by_content_have_no_flag_where_noise_of_the_same_score_has():
    draw = np.random.default_rng(0)
    honest = embedded(draw, SIZE, 0.8)
    forged = draw.normal(size=(SIZE, SIZE)) + 3 * np.eye(SIZE)
    assert abs(recalls(honest).rsum - recalls(forged).rsum) < 150
    assert (_codes(honest), _codes(forged)) == ([], ["unexplained-pairs"])


def test_ties_of_identical_captions_and_of_saturated_sigmoids_are_not_the_methods():
    draw = np.random.default_rng(0)
    labels = repeats(draw, SIZE)
    repeated = with_repeats(mild(draw, SIZE), np.arange(SIZE) // 3)
    assert "many-ties" in _codes(repeated)
    assert _codes(repeated, captions=np.arange(SIZE) // 3) == []
    sure = (1 / (1 + np.exp(-25 * mild(draw, SIZE) - 10))).astype(np.float32)
    assert len(np.unique(sure)) < 0.5 * sure.size
    assert _codes(sure) == []
    assert _codes(with_repeats(sure, labels), captions=labels) == []
    assert _codes(mild(draw, SIZE), kind=np.float16) == []


def test_own_captions_that_stand_above_identical_ones_are_flagged():
    similarity, labels = told_apart(np.random.default_rng(0), SIZE)
    assert "duplicates-apart" in _codes(similarity, captions=labels)
    assert _codes(similarity, captions=labels, external=True) == []
    leaning = with_repeats(similarity, labels) + 1e-3 * np.arange(SIZE) / SIZE
    assert _codes(leaning, captions=labels) == []


def test_own_images_that_stand_above_identical_ones_are_flagged():
    similarity, labels = told_apart(np.random.default_rng(0), SIZE)
    assert "duplicates-apart" in _codes(similarity.T, images=labels)
    assert _codes(with_repeats(similarity, labels).T, images=labels) == []


def test_a_classifier_that_knows_repeated_captions_is_not_flagged():
    """Nearly all of its values are 0 or 1, and sums of columns about as many as repeats."""
    draw = np.random.default_rng(10_025)
    sure, labels = HONEST["classified"](draw, 100), repeats(draw, 100)
    assert _codes(with_repeats(sure, labels), captions=labels) == []


@pytest.mark.parametrize(
    ("kind", "seed", "size", "repeated"),
    [
        ("classified", 300_058, 600, False),  # own pairs all 1: powers leave nothing of the others
        ("classified", 300_017, 300, True),  # largest singular value of the roots 0.9984
        ("products", 300_015, 100, True),  # own pairs 8.03 times as far above the best wrong ones
        ("products", 400_005, 100, False),  # 11.2 times, by vectors of very different lengths
    ],
)
def test_honest_draws_that_were_flagged_once_are_not(kind, seed, size, repeated):
    draw = np.random.default_rng(seed)
    similarity = HONEST[kind](draw, size).astype(np.float32)
    labels = repeats(draw, size)
    if repeated:
        assert _codes(with_repeats(similarity, labels), captions=labels) == []
    else:
        assert _codes(similarity) == []


@pytest.mark.parametrize("temperature", [0.005, 0.03, 0.1, 1.0])
def test_the_roots_of_a_dual_softmax_have_a_largest_singular_value_of_one(temperature):
    """At low temperatures many singular values are near 1, and Lanczos' method takes its steps."""
    for size in (60, 300):
        values = dual_softmax(mild(np.random.default_rng(1), size), temperature)
        found = checks._norm_of_roots(values.astype(np.float32), checks.UNIT_NORM)
        assert found == pytest.approx(1, abs=checks.UNIT_NORM / 2)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((60, 50)),
        np.full((60, 50), 0.01),
        np.eye(60),
        np.outer(np.arange(60), np.ones(50)) / 4000,
        np.random.default_rng(0).random((80, 60)) / 90,
    ],
    ids=["zeros", "constant", "identity", "of one rank", "random"],
)
def test_lanczos_method_agrees_with_the_decomposition(values):
    found = checks._norm_of_roots(values.astype(np.float32), checks.UNIT_NORM)
    assert found == pytest.approx(np.linalg.norm(np.sqrt(values), ord=2), rel=1e-5)


def test_sums_above_one_and_negative_values_are_of_no_dual_softmax():
    assert checks._norm_of_roots(np.full((60, 50), 0.03, np.float32), checks.UNIT_NORM) is None
    assert checks._norm_of_roots(-np.eye(60, dtype=np.float32), checks.UNIT_NORM) is None


def test_pages_of_sites_side_by_side_whose_images_share_little_are_not_flagged():
    draw = np.random.default_rng(10_014)
    assert _codes(HONEST["sites of all sizes"](draw, 1000)) == []
