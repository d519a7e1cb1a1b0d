"""Flags: honest matrices never have one, each trick has its own, what is declared has none."""

import numpy as np
import pytest

from leaderboard.metrics import count_ranks, expected_hits, recalls
from leaderboard.scoring import checks
from leaderboard.scoring.checks import (
    GAP_Z,
    NEAR_IDENTICAL,
    SplitScore,
    check_matrix,
    dev_test_gap,
    near_identical,
)
from leaderboard.scoring.evaluate import _flags
from leaderboard.submission.archive import Scored
from leaderboard.submission.gallery import Gallery
from tests.leaderboard.conftest import closed_form_deviation

SIZE = 300


def _embedded(draw, size, noise, dim=64, groups=0, *, side_by_side=False):
    """Cosines of pages and captions that share a meaning; pages of a group (a site) are alike."""
    meaning = draw.normal(size=(size, dim))
    if groups:
        group = draw.integers(0, groups, size)
        group = np.sort(group) if side_by_side else group
        meaning = meaning * 0.7 + 1.2 * draw.normal(size=(groups, dim))[group]
    images = meaning + noise * draw.normal(size=(size, dim))
    captions = meaning + noise * draw.normal(size=(size, dim))
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    captions /= np.linalg.norm(captions, axis=1, keepdims=True)
    return images @ captions.T


def _noisy(draw, size):
    return draw.normal(size=(size, size)) + draw.uniform(0, 6) * np.eye(size)


def _hubs(draw, size):
    """A few captions and images that are near to everything."""
    similarity = _embedded(draw, size, draw.uniform(0.3, 3))
    return similarity + 0.1 * draw.gamma(1, 1, size) + 0.1 * draw.gamma(1, 1, size)[:, None]


def _sigmoid(draw, size):
    similarity = _embedded(draw, size, draw.uniform(0.5, 2), groups=draw.integers(0, 40))
    return 1 / (1 + np.exp(-draw.uniform(5, 25) * (similarity - draw.uniform(0.2, 0.6))))


HONEST = {
    "noise and signal": _noisy,
    "cosines": lambda draw, size: _embedded(
        draw, size, draw.uniform(0.1, 4), draw.integers(8, 512)
    ),
    "hubs": _hubs,
    "clusters": lambda draw, size: _embedded(draw, size, draw.uniform(0.1, 3), groups=40),
    "clusters side by side": lambda draw, size: _embedded(
        draw, size, draw.uniform(0.1, 3), groups=draw.integers(5, 100), side_by_side=True
    ),
    "sigmoid": _sigmoid,
    "shifted cosines": lambda draw, size: (1 + _embedded(draw, size, draw.uniform(0.1, 3))) / 2,
    "of two models": lambda draw, size: (_hubs(draw, size) + _noisy(draw, size) / 10) / 2,
    "nothing learned": lambda draw, size: draw.normal(size=(size, size)),
    "exponentials": lambda draw, size: np.exp(10 * _embedded(draw, size, draw.uniform(0.3, 3))),
}


def _softmax(values, axis):
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _dual_softmax(values, temperature):
    return _softmax(values / temperature, 0) * _softmax(values / temperature, 1)


def _sinkhorn(values, temperature, rounds):
    powers = np.exp((values - values.max()) / temperature)
    for _ in range(rounds):
        powers /= powers.sum(axis=1, keepdims=True)
        powers /= powers.sum(axis=0, keepdims=True)
    return powers


def _assigned(values, times):
    optimize = pytest.importorskip("scipy.optimize")
    rows, columns = optimize.linear_sum_assignment(-values)
    raised = values.copy()
    raised[rows, columns] += times
    return raised


def _centred(values):
    return values - values.mean(axis=0) - values.mean(axis=1, keepdims=True)


def _near(size):
    place = np.arange(size)
    return np.abs(place[:, None] - place)


def _some_own(draw, size):
    """A third of the pairs are looked up, the rest is noise."""
    known = np.diag((draw.random(size) < 1 / 3).astype(float))
    return known + 0.01 * draw.normal(size=(size, size))


def _mild(draw, size):
    return _embedded(draw, size, draw.uniform(1.2, 2.5))


TRICKS = {
    "identity": ("identity-like", lambda _, size: np.eye(size)),
    "identity and noise": (
        "identity-like",
        lambda draw, size: np.eye(size) + 0.01 * draw.normal(size=(size, size)),
    ),
    "identity and positive noise": (
        "identity-like",
        lambda draw, size: np.eye(size) + 0.01 * np.abs(draw.normal(size=(size, size))),
    ),
    "identity and noise within 0 and 1": (
        "identity-like",
        lambda draw, size: np.clip(np.eye(size) + 0.01 * draw.normal(size=(size, size)), 0, 1),
    ),
    "own pairs looked up, some": ("identity-like", _some_own),
    "own pairs raised": (
        "identity-like",
        lambda draw, size: _mild(draw, size) + 20 * np.eye(size),
    ),
    "distance of rows": ("index-local", lambda _, size: -_near(size) / size),
    "distance of rows and noise": (
        "index-local",
        lambda draw, size: -3 * _near(size) / size + draw.normal(size=(size, size)),
    ),
    "narrow band": ("index-local", lambda _, size: np.exp(-_near(size) / 3)),
    "narrow band and noise": (
        "index-local",
        lambda draw, size: np.exp(-_near(size) / 3) + 0.1 * draw.normal(size=(size, size)),
    ),
    "wide band": ("index-local", lambda _, size: np.exp(-_near(size) / 50)),
    "band upon cosines": (
        "index-local",
        lambda draw, size: _mild(draw, size) + 2 * (_near(size) < 4),
    ),
    "assigned": ("one-to-one", lambda draw, size: _assigned(_mild(draw, size), 3)),
    "assigned, slightly": ("one-to-one", lambda draw, size: _assigned(_mild(draw, size), 0.5)),
    "logarithm of Sinkhorn": (
        "one-to-one",
        lambda draw, size: np.log(_sinkhorn(_mild(draw, size), 0.01, 50)),
    ),
    **{
        f"dual softmax, temperature {t}": (
            "normalised-both-ways",
            lambda draw, size, t=t: _dual_softmax(_mild(draw, size), t),
        )
        for t in (0.01, 0.03, 0.1, 1.0)
    },
    **{
        f"Sinkhorn, {rounds} rounds, temperature {t}": (
            "normalised-both-ways",
            lambda draw, size, t=t, rounds=rounds: _sinkhorn(_mild(draw, size), t, rounds),
        )
        for t in (0.03, 0.1)
        for rounds in (3, 20)
    },
    "Sinkhorn, scaled": (
        "normalised-both-ways",
        lambda draw, size: 1000 * _sinkhorn(_mild(draw, size), 0.05, 20),
    ),
    "centred both ways": (
        "normalised-both-ways",
        lambda draw, size: _centred(_hubs(draw, size)),
    ),
    "softmax of rows": (
        "normalised-rows",
        lambda draw, size: _softmax(_mild(draw, size) / 0.05, 1),
    ),
    "softmax of columns": (
        "normalised-columns",
        lambda draw, size: _softmax(_mild(draw, size) / 0.05, 0),
    ),
    "half precision": (
        "low-precision",
        lambda draw, size: _mild(draw, size).astype(np.float16).astype(np.float64),
    ),
    "bfloat16": (
        "low-precision",
        lambda draw, size: (
            (_mild(draw, size).astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000))
            .view(np.float32)
            .astype(np.float64)
        ),
    ),
    "three decimals": ("low-precision", lambda draw, size: _mild(draw, size).round(3)),
    "one decimal": ("many-ties", lambda draw, size: _mild(draw, size).round(1)),
    "constant": ("many-ties", lambda _, size: np.zeros((size, size))),
}
TURNED = {"normalised-rows": "normalised-columns", "normalised-columns": "normalised-rows"}


def _codes(similarity, declared="none", owner=None):
    similarity = np.asarray(similarity, np.float32)
    owner = np.arange(len(similarity)) if owner is None else owner
    i2t, t2i = count_ranks(similarity, owner)
    hits = float(expected_hits(i2t, 1).sum()), float(expected_hits(t2i, 1).sum())
    return [flag.code for flag in check_matrix(similarity, owner, hits, declared)]


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("size", [60, 120, 300])
def test_an_honest_matrix_has_no_flag(kind, size):
    for seed in range(2400 // size):
        assert _codes(HONEST[kind](np.random.default_rng(seed), size)) == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", HONEST)
def test_200_honest_matrices_of_1_000_pairs_have_no_flag(kind):
    for seed in range(200):
        assert _codes(HONEST[kind](np.random.default_rng(seed), 1000)) == [], seed


@pytest.mark.parametrize("trick", TRICKS)
def test_each_trick_has_its_flag_either_way_round(trick):
    code, make = TRICKS[trick]
    for seed in range(3):
        similarity = make(np.random.default_rng(seed), SIZE)
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
        ("normalised-both-ways", lambda values, _: _dual_softmax(values, 0.1)),
        ("normalised-both-ways", lambda values, _: _sinkhorn(values, 0.1, 20)),
        ("normalised-rows", lambda values, _: _softmax(values, 1)),
        ("normalised-columns", lambda values, _: _softmax(values, 0)),
        ("low-precision", lambda values, _: values.round(2)),
        ("many-ties", lambda values, _: values.round(0)),
    ],
)
def test_five_captions_an_image_have_each_trick_flagged(code, trick):
    similarity, owner = _five_captions(0)
    near = np.abs(np.arange(120)[:, None] - owner)
    assert code in _codes(trick(similarity, near), owner=owner)


def test_a_large_matrix_is_judged_by_its_first_images_and_its_sums(monkeypatch):
    monkeypatch.setattr(checks, "_LARGEST", 60)
    similarity, owner = _five_captions(1)
    near = np.abs(np.arange(120)[:, None] - owner)
    assert _codes(similarity, owner=owner) == []
    assert _codes(similarity + 100 * (near == 0), owner=owner) == ["identity-like"]
    assert _codes(_softmax(similarity, 1), owner=owner) == ["normalised-rows"]
    assert "index-local" in _codes(similarity + 3 * np.exp(-near / 3), owner=owner)


def test_every_message_fits_into_a_result():
    for _, make in TRICKS.values():
        for scale in (1e-30, 1.0, 1e30):
            _codes(scale * make(np.random.default_rng(0), 60))


def test_what_is_declared_is_not_flagged():
    draw = np.random.default_rng(0)
    rows = _softmax(_mild(draw, SIZE) / 0.05, 1)
    assert _codes(rows) == ["normalised-rows"]
    assert _codes(rows, "per_query") == _codes(rows, "transductive") == []
    both = _sinkhorn(_mild(draw, SIZE), 0.1, 20)
    assert _codes(both) == _codes(both, "per_query") == ["normalised-both-ways"]
    assert _codes(both, "transductive") == []
    assigned = _assigned(_mild(draw, SIZE), 0.5)
    assert _codes(assigned, "per_query") == ["one-to-one"]
    assert _codes(assigned, "transductive") == []
    assert "identity-like" in _codes(np.eye(SIZE), "transductive")


def test_a_result_carries_the_flags_of_both_its_matrices_once():
    keys, owner = [str(row) for row in range(SIZE)], np.arange(SIZE)
    gallery = Gallery(keys, keys, owner, owner, owner, "0" * 64, "rebuilt")
    rounded = _mild(np.random.default_rng(0), SIZE).astype(np.float32).round(2)
    scored = Scored(count_ranks(rounded), (rounded, np.eye(SIZE, dtype=np.float32)))
    codes = [flag.code for flag in _flags(scored, gallery, "transductive")]
    assert codes == ["low-precision", "many-ties", "identity-like"]


def test_a_few_pairs_have_no_flags():
    assert _codes(np.eye(20)) == []


def test_a_message_says_what_was_found_and_what_was_expected():
    similarity = _mild(np.random.default_rng(0), SIZE).astype(np.float32).round(3)
    flag, *_ = check_matrix(similarity, np.arange(SIZE), (1.0, 1.0), "transductive")
    assert flag.message.startswith("1 % of 90000 sampled values are distinct, expected 50 %")


def test_the_float_type_and_memory_order_leave_the_flags():
    similarity = np.eye(SIZE) + 0.01 * np.random.default_rng(0).normal(size=(SIZE, SIZE))
    hits = (float(SIZE), float(SIZE))
    found = [
        check_matrix(kind, np.arange(SIZE), hits, "none")
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
    meaning = _embedded(draw, SIZE, 1.0)
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
        found = [recalls(_embedded(draw, 200, 1.5)) for _ in range(2)]
        scores = [SplitScore(f.rsum, closed_form_deviation(f.per_image), 200) for f in found]
        gaps.append(dev_test_gap(*scores))
    assert 0.7 < np.std(gaps) < 1.6
    assert np.abs(gaps).max() < GAP_Z
