"""An open blind round cannot be climbed: the attack, by recalls alone, before and after."""

from functools import partial

import numpy as np

from leaderboard.metrics import recalls, steps_of, to_step

PAIRS, NEAR = 200, (1, 5, 10)


def test_steps_are_round_numbers_near_the_largest_standard_error():
    assert [steps_of(pairs) for pairs in (20, 100, 200, 1000, 2000, 5000)] == [
        (10, 50),
        (5, 20),
        (5, 20),
        (2, 10),
        (1, 5),
        (0.5, 5),
    ]
    for pairs in range(20, 3000, 7):
        for step, whole, bound in zip(steps_of(pairs), (100.0, 600.0), (50, 300), strict=True):
            assert 0.63 <= step / (bound / pairs**0.5) <= 1.6
            assert to_step(whole, step) == whole
    assert to_step(31.3, 2.0) == 32
    assert to_step(0.3, 0.1) == 0.3


class Round:
    """A secret pairing, and the recalls that an open round shows of a file."""

    def __init__(self, seed=0):
        draw = np.random.default_rng(seed)
        self.owner = draw.permutation(PAIRS)
        pairs = np.arange(PAIRS)[:, None] == self.owner
        self.honest = 1.7 * (draw.standard_normal((PAIRS, PAIRS)) + 1.7 * pairs)

    def exact(self, similarity):
        found = recalls(similarity, self.owner)
        return np.array([way.recall(k) for way in (found.i2t, found.t2i) for k in NEAR])


def climb(honest, answers, strengths):
    """Recover pairs from the recalls of files with noise: the log-odds of each pair, by regression.

    A file's recall counts the pairs within its K first; which candidates are there, its sender
    knows. ``answers`` give the six recalls of each file; ``strengths`` are those of the noise.
    """
    draw, files, told = np.random.default_rng(1), [], []
    for answer, strength in zip(answers, strengths, strict=True):
        noisy = honest + strength * draw.standard_normal(honest.shape)
        told.append(answer(noisy))
        files.append([within(noisy, k) for k in NEAR] + [within(noisy.T, k).T for k in NEAR])
    counts = np.array(told) * len(honest) / 100
    weights = (counts - counts.mean(axis=0)) / np.maximum(counts.var(axis=0), 1)
    found = sum(np.tensordot(*pair, 1) for pair in zip(weights, files, strict=True))
    return honest + 0.75 * found


def within(similarity, k):
    return similarity >= np.partition(similarity, -k, axis=1)[:, [-k]]


def exactly(blind, files):
    """Answer as before: to one digit, which is a count of pairs."""
    return [lambda similarity: np.round(blind.exact(similarity), 1)] * files


def ladder(blind, files, people=1):
    """Answer as the service: in steps, and only what is a step above a person's best before."""
    recall, points = steps_of(PAIRS)
    best = {}

    def answer(person, similarity):
        exact = blind.exact(similarity)
        score, told = to_step(exact.sum(), points), [to_step(value, recall) for value in exact]
        if person not in best or score > best[person][0]:
            best[person] = score, told
        return best[person][1]

    return [partial(answer, file // files) for file in range(files * people)]


def test_five_files_a_day_for_thirty_days_climbed_and_a_round_of_five_cannot_be():
    blind = Round()
    honest = blind.exact(blind.honest).sum()

    def gain(answers, strengths):
        return blind.exact(climb(blind.honest, answers, strengths)).sum() - honest

    assert gain(exactly(blind, 150), [0.5] * 150) > 80, "as it was"
    for strengths in ([0.5] * 5, [3, 2, 1.4, 0.9, 0.5]):  # the second always a step above
        for people in (1, 10):
            gained = gain(ladder(blind, 5, people), strengths * people)
            assert gained < steps_of(PAIRS)[1], "of one person, of ten who tell each other"
