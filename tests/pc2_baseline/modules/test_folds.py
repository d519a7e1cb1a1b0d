"""Folds are balanced, hold what repeats together, and are divided one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.errors import TrainingError
from pc2_baseline.modules.division import assign_folds, divide, divide_by_fold


def own_captions(pairs):
    """No two captions are alike."""
    return [np.array([row]) for row in range(pairs)]


@given(st.integers(2, 7), st.integers(0, 40), st.integers(0, 5))
def test_folds_are_balanced_and_a_function_of_the_seed_alone(folds, more, seed):
    image_of = np.arange(2 * folds + more)
    found = assign_folds(image_of, own_captions(len(image_of)), folds, seed)
    sizes = np.bincount(found, minlength=folds)
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    np.random.default_rng(seed).random(100)  # whatever else is drawn
    assert np.array_equal(assign_folds(image_of, own_captions(len(image_of)), folds, seed), found)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=40))
def test_no_image_and_no_caption_is_in_two_folds(drawn):
    """Images 0 to 12 and captions 0 to 12 at random, and enough others to fill the folds."""
    drawn = [*drawn, *((13 + more, 13 + more) for more in range(6))]
    image_of = np.unique([image for image, _ in drawn], return_inverse=True)[1]
    found = assign_folds(image_of, [np.array([caption]) for _, caption in drawn], 3, 0)
    for side in (0, 1):
        for own in {pair[side] for pair in drawn}:
            assert (
                len({int(f) for f, pair in zip(found, drawn, strict=True) if pair[side] == own})
                == 1
            )


@pytest.mark.parametrize("many", [150, 190])
def test_a_fold_that_one_caption_fills_gets_a_negative_for_it(many):
    captions = [np.array([7]) if row < many else np.array([row + 8]) for row in range(200)]
    found = assign_folds(np.arange(200), captions, 3, 0)
    groups = [{row for row in np.flatnonzero(found == fold) if row >= many} |
              ({0} if found[0] == fold else set()) for fold in range(3)]  # fmt: skip
    assert min(map(len, groups)) == 2
    assert len(set(found[:many])) == 1


def test_too_few_images_for_the_folds_end_in_one_line():
    said = r"7 groups of training pairs.*in 4 folds.*lower method\.folds"
    with pytest.raises(TrainingError, match=said):
        assign_folds(np.arange(7), own_captions(7), 4, 0)


def test_each_fold_is_divided_by_a_mixture_of_its_own():
    """The second fold's losses are ten times the first's: one mixture would tell folds apart."""
    rng = np.random.default_rng(0)
    fold = rng.integers(2, size=400)
    matched = rng.random(400) < 0.6
    loss = np.where(matched, rng.normal(0.1, 0.02, 400), rng.normal(0.3, 0.03, 400))
    scaled = np.where(fold == 1, 10 * loss, loss)
    found = divide_by_fold(scaled, fold, seed=0)
    assert (found.is_clean == matched).mean() > 0.98
    assert (divide(scaled, seed=0).is_clean == matched).mean() < 0.9
    own = divide(scaled[fold == 1], seed=0)
    assert np.array_equal(found.clean_prob[fold == 1], own.clean_prob)
    strict = divide_by_fold(np.linspace(0, 1, 400), fold, 0, threshold=0.9)
    assert np.array_equal(strict.is_clean, strict.clean_prob > 0.9)
    assert ((strict.clean_prob > 0.5) & ~strict.is_clean).any()
