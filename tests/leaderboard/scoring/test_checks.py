"""Flags: honest matrices never have one, each trick has its own."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings, strategies

from leaderboard.metrics import recalls
from leaderboard.scoring import checks, content
from leaderboard.scoring.checks import check_matrix, window_starts
from leaderboard.scoring.content import WINDOW
from leaderboard.scoring.result import Flag
from tests.leaderboard.scoring.similarities import (
    HONEST,
    OF_MANY,
    TRICKS,
    embedded,
    repeats,
    with_repeats,
)

SIZE = 300


def _codes(similarity, owner=None, captions=None):
    similarity = np.asarray(similarity)
    if similarity.dtype == np.float64:
        similarity = similarity.astype(np.float32)
    images, texts = similarity.shape
    owner = np.arange(images) if owner is None else owner
    captions = np.arange(texts) if captions is None else captions
    return [flag.code for flag in check_matrix(similarity, owner, captions)]


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("size", [60, 120, 300])
def test_an_honest_matrix_has_no_flag(kind, size):
    """With and without captions that occur several times."""
    for seed in range(180 // size or 1):
        draw = np.random.default_rng(seed)
        similarity, labels = HONEST[kind](draw, size), repeats(draw, size)
        assert _codes(similarity) == [], seed
        assert _codes(with_repeats(similarity, labels), captions=labels) == [], seed


@pytest.mark.slow
@pytest.mark.parametrize("kind", HONEST)
def test_20_honest_matrices_of_1_000_pairs_have_no_flag(kind):
    for seed in range(20):
        assert _codes(HONEST[kind](np.random.default_rng(seed), 1000)) == [], seed


@pytest.mark.parametrize(
    ("kind", "seed", "size", "repeated"),
    [
        ("classified", 300_058, 600, False),  # own pairs all 1
        ("products", 300_015, 100, True),  # own pairs 8.03 times as far above the best wrong ones
        ("products", 400_005, 100, False),  # 11.2 times, by vectors of very different lengths
        ("sites of all sizes", 10_014, 1000, False),  # images of a site share little
    ],
)
def test_honest_draws_that_were_flagged_once_are_not(kind, seed, size, repeated):
    draw = np.random.default_rng(seed)
    similarity = HONEST[kind](draw, size)
    labels = repeats(draw, size) if repeated else np.arange(size)
    assert _codes(with_repeats(similarity, labels), captions=labels) == []


@pytest.mark.parametrize("trick", TRICKS)
def test_each_trick_has_its_flag_either_way_round(trick):
    code, make = TRICKS[trick]
    similarity = make(np.random.default_rng(0), 2 * SIZE if trick in OF_MANY else SIZE)
    assert code in _codes(similarity)
    assert code in _codes(similarity.T)


def test_own_pairs_explained_by_content_have_no_flag_where_noise_of_the_same_score_has():
    draw = np.random.default_rng(0)
    honest = embedded(draw, SIZE, 0.8)
    forged = draw.normal(size=(SIZE, SIZE)) + 3 * np.eye(SIZE)
    assert abs(recalls(honest).rsum - recalls(forged).rsum) < 150
    assert (_codes(honest), _codes(forged)) == ([], ["unexplained-pairs"])


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
        assert _codes(similarity, owner) == []


@pytest.mark.parametrize(
    "window", [slice(0, 120), slice(0, 60), slice(60, 120)], ids=["all", "first", "second"]
)
def test_a_trick_is_found_in_whichever_window_it_is(monkeypatch, window):
    for module in (checks, content):
        monkeypatch.setattr(module, "WINDOW", window.stop - window.start)
    similarity, owner = _five_captions(1)
    near = np.abs(np.arange(120)[:, None] - owner)
    forged = np.isin(np.arange(120), np.r_[window])
    here = forged[:, None] & forged[owner]
    assert _codes(similarity, owner) == []
    assert "identity-like" in _codes(similarity + 100 * (near == 0) * here, owner)
    assert "index-local" in _codes(similarity + 3 * np.exp(-near / 3) * here, owner)


def test_windows_hold_all_images_and_none_is_short():
    for images in (50, 1000, 1001, 2500, 5000):
        starts = np.array(window_starts(images))
        assert starts[0] == 0
        assert starts[-1] + min(WINDOW, images) == images
        assert (np.diff(starts) <= WINDOW).all()


def test_a_few_pairs_have_no_flags():
    assert _codes(np.eye(20)) == []


@pytest.mark.parametrize("small", [1e-300, 1e-12, 0.01])
def test_a_message_says_in_short_what_was_found_and_expected(small):
    noise = np.random.default_rng(0).random((SIZE, SIZE))
    rows = np.arange(SIZE)
    flag, *_ = check_matrix(np.eye(SIZE) + small * noise, rows, rows)
    assert flag.code == "identity-like"
    assert "expected 8.3 times at most: the rest is nearly constant" in flag.message
    assert len(flag.message) < 300


def test_every_message_fits_into_a_result():
    for _, make in TRICKS.values():
        for scale in (1e-30, 1e30):
            _codes(scale * make(np.random.default_rng(0), 50))


def test_the_float_type_and_memory_order_leave_the_flags():
    similarity, rows = np.eye(SIZE), np.arange(SIZE)
    similarity = similarity + 0.01 * np.random.default_rng(0).normal(size=(SIZE, SIZE))
    kinds = similarity, similarity.astype(np.float32), np.asfortranarray(similarity)
    found = [check_matrix(kind, rows, rows) for kind in kinds]
    assert found[0] == found[1] == found[2]


def _zeroed(values, step):
    zero = np.arange(len(values)) % step == 0
    return np.where((zero | zero[:, None]) & ~np.eye(len(values), dtype=bool), 0.0, values)


def test_a_pattern_that_meets_the_step_of_a_sample_is_checked():
    """Every 15th row and column is zero off the diagonal: all that a fixed step would see."""
    for size, step in ((150, 2), (960, 15)):
        _codes(_zeroed(np.random.default_rng(0).random((size, size)), step))


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


def _degenerate(draw, size, kind):
    """Draw a matrix with constant rows, blocks, huge and tiny values, ties or one value a row."""
    seed = draw(strategies.integers(0, 2**31))
    values = np.random.default_rng(seed).normal(size=(size, size))
    for change in draw(strategies.lists(strategies.sampled_from(sorted(CHANGES)), max_size=4)):
        values = CHANGES[change](values, draw(strategies.integers(1, size)))
    most = float(np.finfo(kind).max)
    largest = float(np.abs(values).max()) or 1.0
    scale = draw(strategies.sampled_from([1.0, np.inf, 1e-30, 1e-310, 0.0, -1.0]))
    scale = np.clip(scale, -most / largest / 2, most / largest / 2)
    return (values * scale).astype(kind)


@settings(max_examples=25, derandomize=True)
@given(strategies.data())
def test_no_degenerate_matrix_is_too_much_for_the_checks(data):
    """Constant, tied, huge, tiny, one-hot and patterned ones, float16 to 64, from n = 2."""
    kind = data.draw(strategies.sampled_from((np.float16, np.float32, np.float64)))
    size = data.draw(strategies.sampled_from([2, 3, 8, 49, 50, 64, 128, 140]))
    similarity = _degenerate(data.draw, size, kind)
    assert np.isfinite(similarity).all()
    labels = np.arange(size) // data.draw(strategies.integers(1, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        flags = check_matrix(similarity, np.arange(size), labels)
    assert all(Flag.model_validate(flag.model_dump()) for flag in flags)
