"""The ridge reference against numpy's least squares, and who judges whom."""

import dataclasses

import numpy as np
import pytest
import torch

from pc2_baseline.config import read_settings
from pc2_baseline.data.pairs import PairSet, open_pairs
from pc2_baseline.data.words import SeenWords
from pc2_baseline.methods.ridge import Problem, Ridge, fit_lsa
from pc2_baseline.modules.division import assign_folds, divide
from pc2_baseline.training.method import Sizes

CPU = torch.device("cpu")
SMALL = ["data.tokenizer=jieba", "method.dim=6", "method.folds=3", "train.epochs=2",
         "train.device=cpu", "train.tensorboard=false", "train.pictures=false"]  # fmt: skip


def make(settings, pairs, words=28):
    return Ridge(settings, Sizes(len(pairs), pairs.features, words), CPU)


def lines(values):
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


@pytest.fixture
def captions():
    generator = np.random.default_rng(0)
    drawn = [generator.integers(4, 18, generator.integers(1, 9)) for _ in range(30)]
    return [np.array([2, *ids, 3]) for ids in drawn]


def test_a_captions_vector_is_its_tf_idf_on_the_first_singular_vectors(captions):
    counts = np.zeros((30, 20))
    for row, caption in enumerate(captions):
        for token in caption[1:-1]:
            counts[row, token] += 1
    table = lines(counts * (1 + np.log(31 / (1 + (counts > 0).sum(0)))))
    right = np.linalg.svd(table)[2][:5]
    slow = lines(table @ right.T)
    slow -= slow.mean(0)
    found = fit_lsa(captions, 20, 5, seed=0).vectors(captions).numpy()
    np.testing.assert_allclose(found @ found.T, slow @ slow.T, atol=1e-6)
    again = fit_lsa(captions, 20, 5, seed=0).vectors(captions).numpy()
    assert np.array_equal(found, again)


def problem(pairs=40, features=7):
    generator = np.random.default_rng(1)
    pages = torch.from_numpy(generator.normal(size=(pairs, features)))
    fold = generator.permutation(np.arange(pairs) % 3)
    captions = torch.from_numpy(generator.normal(size=(pairs, 4)))
    return Problem(pages, captions, fold, torch.zeros_like(captions), captions.new_zeros(pairs))


def least_squares(pages, captions, penalty):
    """Ridge as plain least squares with a row for each feature's penalty."""
    rows = np.sqrt(penalty * len(pages)) * np.eye(pages.shape[1])
    more = np.zeros((pages.shape[1], captions.shape[1]))
    return np.linalg.lstsq(np.vstack([pages, rows]), np.vstack([captions, more]), rcond=None)[0]


@pytest.mark.parametrize("penalty", [1e-3, 0.5, 100.0])
def test_weights_are_those_of_least_squares_with_penalty_rows(penalty):
    given = problem()
    pages, captions = given.pages.numpy(), given.captions.numpy()
    expected = least_squares(pages, captions, penalty)
    np.testing.assert_allclose(given.solve(penalty).numpy(), expected, atol=1e-10)
    kept = given.fold != 1
    expected = least_squares(pages[kept], captions[kept], penalty)
    np.testing.assert_allclose(given.solve(penalty, without=1).numpy(), expected, atol=1e-10)


def test_a_pair_is_judged_by_a_fit_to_the_other_folds():
    given = problem()
    pages, captions = given.pages.numpy(), given.captions.numpy()
    found = given.held_out(0.3).numpy()
    for row in range(len(pages)):
        kept = given.fold != given.fold[row]
        weights = least_squares(pages[kept], captions[kept], 0.3)
        predicted = lines(pages[row] @ weights)
        assert found[row] == pytest.approx(predicted @ lines(captions[row]), abs=1e-6)


def test_pages_are_standardised_mean_regions_and_scores_are_logits_of_cosines(tiny):
    settings = read_settings("ridge", SMALL)
    with (
        open_pairs(tiny, "train", settings.data, CPU) as pairs,
        open_pairs(tiny, "dev", settings.data, CPU) as dev,
    ):
        dead = np.array(pairs.regions)
        dead[:, :, 5] = 7.0  # a feature that never changes divides by nothing
        method = make(settings, pairs)
        method.fit_epoch(dataclasses.replace(pairs, regions=dead), 1)
        own = {name: value.numpy() for name, value in method.state_dict()["networks"].items()}
        means = dead.astype(np.float64).mean(1)
        spread = np.where(means.std(0) > 1e-9, means.std(0), 1)
        words = fit_lsa(pairs.captions, 28, 6, seed=0)
        fit = least_squares((means - means.mean(0)) / spread, words.vectors(pairs.captions).numpy(),
                            method.penalties[1])  # fmt: skip
        np.testing.assert_allclose(own["weights"], fit, atol=1e-8)
        features = np.asarray(dev.regions, dtype=np.float64).mean(1)
        predicted = lines(((features - means.mean(0)) / spread) @ fit)
        expected = predicted @ lines(words.vectors(dev.captions).numpy()).T
        np.testing.assert_allclose(np.tanh(method.similarity(dev) / 2), expected, atol=1e-5)


def test_an_epoch_is_a_penalty_and_they_grow_by_equal_factors(tiny):
    own = ["method.penalty_from=0.1", "train.epochs=4"]
    settings = read_settings("ridge", [*SMALL, *own])
    with open_pairs(tiny, "train", settings.data, CPU) as pairs:
        method = make(settings, pairs)
        found = [method.fit_epoch(pairs, epoch)["penalty"] for epoch in range(5)]
        assert found == pytest.approx([0.1, 1, 10, 100, 1000])
        assert torch.equal(method.state_dict()["networks"]["weights"], method.problem.solve(1000.0))
        loss = method.statistics["loss"].numpy()
        np.testing.assert_allclose(loss, 1 - method.problem.held_out(1000.0).numpy())
        assert np.array_equal(
            method.statistics["fold"].numpy(), assign_folds(pairs.image_of, pairs.captions, 3, 0)
        )
        assert np.array_equal(method.statistics["clean_prob"], divide(loss, 0).clean_prob)


READ = slice(3, 259)
"""Columns of the words in the drawn releases below, behind three that say nothing."""


def reading_pairs(texts, noise, seed):
    """Draw a split whose pages show the words of their captions, in vectors with some noise."""
    generator = np.random.default_rng(seed)
    seen = SeenWords(READ, lambda: texts)
    size = len(texts), 36, 256
    read = seen.sketches.reshape(size) + noise * generator.normal(size=size)
    other = generator.normal(size=(len(texts), 36, 3))
    regions = np.concatenate([other, read], 2).astype(np.float32)
    return PairSet(regions, list(seen.sketches), "", CPU, np.arange(len(texts)), None, seen)


def texts(letters, count, seed):
    generator = np.random.default_rng(seed)
    words = ["".join(generator.choice(list(letters), 6)) for _ in range(4 * count)]
    return [" ".join(generator.choice(words, 5)) for _ in range(count)]


def reading(**changes):
    return read_settings("reading", [f"{name}={value}" for name, value in changes.items()])


def fitted(method, pairs, epoch):
    method.fit_epoch(pairs, epoch)
    return method


def even_out(fitted, rows):
    """Centre rows, divide their spreads by their 0.8th power, and scale them to unit length."""
    covariance = np.cov(fitted.T, ddof=0)
    spread, axes = np.linalg.eigh(covariance)
    scale = (np.maximum(spread, 0) + 0.02 * spread.max() + 1e-12) ** -0.4
    return lines((rows - fitted.mean(0)) @ axes @ np.diag(scale) @ axes.T)


def slow_reading(pairs):
    """Return evened-out vectors of pages and of captions, and the cosines of their sketches."""
    regions = pairs.regions[:, :, READ].astype(np.float64)
    written = pairs.words.sketches.astype(np.float64).reshape(regions.shape)
    page, caption = regions.mean(1), written.mean(1)
    weights = 1 + np.log((1 + len(regions)) / (1 + (regions != 0).sum(0)))
    own, other = ((each * weights).reshape(len(regions), -1) for each in (regions, written))
    return even_out(page, page), even_out(caption, caption), lines(own) @ lines(other).T


def test_below_it_the_fit_is_least_squares_of_what_is_missing():
    """On scaled pages, with the factor of the least squares of captions on what was read."""
    pairs = reading_pairs(texts("abcdef", 300, 0), 0.5, 1)
    method = fitted(Ridge(reading(), Sizes(300, 259, 3000), CPU), pairs, 3)
    raw = pairs.regions.mean(1, dtype=np.float64)
    scaled = (raw - raw.mean(0)) / raw.std(0)
    page, caption, cosines = slow_reading(pairs)
    factor = (page * caption).sum() / np.square(page).sum()
    weights = np.linalg.solve(
        scaled.T @ scaled + method.penalties[3] * 300 * np.eye(259),
        scaled.T @ (caption - factor * page),
    )
    slow = lines(scaled @ weights + factor * page) @ caption.T + 4 * cosines
    np.testing.assert_allclose(5 * np.tanh(method.similarity(pairs) / 2), slow, atol=5e-3)
    held_out = method.problem.nearest.numpy()
    np.testing.assert_allclose(held_out, 4 * cosines.diagonal(), atol=5e-3)
