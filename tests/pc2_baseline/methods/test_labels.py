"""Soft labels agree with slow references and with values worked by hand."""

import math

import numpy as np
import pytest
import torch

from pc2_baseline.methods.bicro import consistency, cosines
from pc2_baseline.methods.ncr import predicted_labels
from pc2_baseline.methods.relabelling import anchors, closeness


def slow_closeness(matrix, margin):
    """0.2 less half of a pair's mean-negative losses of both directions, within [0, 0.2]."""
    size, found = len(matrix), []
    for i in range(size):
        loss = 0.0
        for j in range(size):
            if j != i:
                loss += max(0.0, margin + matrix[i][j] - matrix[i][i]) / size
                loss += max(0.0, margin + matrix[j][i] - matrix[i][i]) / size
        found.append(min(margin, max(0.0, margin - loss / 2)))
    return found


def slow_consistency(images, captions):
    found = []
    for x, y in zip(images, captions, strict=True):
        total = 0.0
        for nearest in (x.index(max(x)), y.index(max(y))):
            first, second = x[nearest], y[nearest]
            if first > 0 and second > 0:
                total += min(first / second, second / first) / 2
        found.append(total)
    return found


def test_labels_agree_with_the_slow_version():
    torch.manual_seed(0)
    for size in (2, 7, 23):
        matrix = torch.rand(size, size, dtype=torch.float64)
        slow = slow_closeness(matrix.tolist(), 0.2)
        assert np.allclose(closeness(matrix, 0.2), slow)
        top = sorted(slow)[-(size // 10 + 1) :]
        assert np.allclose(
            predicted_labels(matrix, 0.2), [min(1, p / (sum(top) / len(top))) for p in slow]
        )
        x, y = torch.rand(2, size, 5, dtype=torch.float64) * 2 - 1
        assert np.allclose(consistency(x, y), slow_consistency(x.tolist(), y.tolist()))


def test_labels_by_hand():
    """The first pair loses nothing. The second loses 0.2 + 0.6 - 0.7 = 0.1 as an image, nothing as
    a caption: 0.05 on average over two, half of which is taken from 0.2.
    """
    matrix = torch.tensor([[0.9, 0.4], [0.6, 0.7]])
    assert closeness(matrix, 0.2).tolist() == pytest.approx([0.2, 0.175])
    assert predicted_labels(matrix, 0.2).tolist() == pytest.approx([1.0, 0.875])
    x, y = torch.tensor([[0.8, 0.2], [0.5, -0.1]]), torch.tensor([[0.4, 0.6], [-0.2, -0.3]])
    assert consistency(x, y).tolist() == pytest.approx([(0.5 + 1 / 3) / 2, 0.0])


def test_anchors_are_a_tenth_and_one_more():
    assert sorted(anchors(torch.arange(20.0)).tolist()) == [17, 18, 19]
    assert anchors(torch.tensor([0.1, 0.3, 0.2])).tolist() == [1]


def test_cosines_do_not_depend_on_length():
    rows, columns = torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0], [0.0, 7.0]])
    assert cosines(rows, columns)[0].tolist() == pytest.approx([0.6, 0.8])


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_labels_are_finite_where_all_scores_are_equal(value):
    assert predicted_labels(torch.full((2, 2), value), 0.2).tolist() == [1.0, 1.0]
    hopeless = value - 2 * torch.eye(4)
    assert predicted_labels(hopeless, 0.2).tolist() == [0.0] * 4
    equal = torch.full((3, 2), value)
    assert all(math.isfinite(label) for label in consistency(equal, equal).tolist())
    assert consistency(torch.zeros(1, 2), torch.zeros(1, 2)).tolist() == [0.0]
