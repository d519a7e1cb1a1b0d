"""An attack on the pairing of a blind round: exact recalls reveal it, rounded ones do not."""

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
    """A secret pairing, and the exact recalls of a file."""

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

    The recall of a file counts its pairs among the first K, and the sender knows the first K.
    ``answers`` return the six recalls of a file; ``strengths`` are the amounts of noise.
    """
    draw, files, replies = np.random.default_rng(1), [], []
    for answer, strength in zip(answers, strengths, strict=True):
        noisy = honest + strength * draw.standard_normal(honest.shape)
        replies.append(answer(noisy))
        files.append([within(noisy, k) for k in NEAR] + [within(noisy.T, k).T for k in NEAR])
    counts = np.array(replies) * len(honest) / 100
    weights = (counts - counts.mean(axis=0)) / np.maximum(counts.var(axis=0), 1)
    found = sum(np.tensordot(*pair, 1) for pair in zip(weights, files, strict=True))
    return honest + 0.75 * found


def within(similarity, k):
    return similarity >= np.partition(similarity, -k, axis=1)[:, [-k]]


def exactly(blind, files):
    """Answer with one digit, which gives the number of pairs."""
    return [lambda similarity: np.round(blind.exact(similarity), 1)] * files


def ladder(blind, files, people=1):
    """Answer in steps; repeat a person's best answer unless a file is a step above it."""
    recall, points = steps_of(PAIRS)
    best = {}

    def answer(person, similarity):
        exact = blind.exact(similarity)
        score, reply = to_step(exact.sum(), points), [to_step(value, recall) for value in exact]
        if person not in best or score > best[person][0]:
            best[person] = score, reply
        return best[person][1]

    return [partial(answer, file // files) for file in range(files * people)]


def test_150_exact_answers_reveal_pairs_and_five_rounded_ones_do_not():
    blind = Round()
    honest = blind.exact(blind.honest).sum()

    def gain(answers, strengths):
        return blind.exact(climb(blind.honest, answers, strengths)).sum() - honest

    assert gain(exactly(blind, 150), [0.5] * 150) > 80
    for strengths in ([0.5] * 5, [3, 2, 1.4, 0.9, 0.5]):  # the second always a step above
        for people in (1, 10):
            gained = gain(ladder(blind, 5, people), strengths * people)
            assert gained < steps_of(PAIRS)[1], "one person, or ten who share answers"
