"""The history of pseudo-classes: leads by hand, and a threshold that follows its aim."""

import pytest
import torch

from pc2_baseline.methods.pc2.pcsr import ClassHistory


def of(classes, count=4):
    """Predictions of which the given classes are the likeliest."""
    return torch.eye(count)[torch.tensor(classes)] * 0.6 + 0.1


@pytest.fixture
def history():
    """Three passes: pair 0 always in class 2, pair 1 twice in class 0, pair 2 never twice."""
    found = ClassHistory(3, 4)
    for classes in ([2, 0, 1], [2, 3, 0], [2, 0, 3]):
        found.add(of(classes))
    return found


def test_the_lead_is_that_of_the_most_frequent_class_over_the_second(history):
    assert history.counts.tolist() == [[0, 0, 3, 0], [2, 0, 0, 1], [1, 1, 0, 1]]
    assert history.lead().tolist() == [3, 1, 0]


def test_a_pair_is_consistent_with_a_lead_above_the_threshold_not_at_it(history):
    history.start_threshold()
    assert history.threshold == pytest.approx(4 / 3)
    assert history.is_consistent().tolist() == [True, False, False]
    history.threshold = torch.tensor(1.0)
    assert history.is_consistent().tolist() == [True, False, False]
    history.threshold = torch.tensor(0.9)
    assert history.is_consistent().tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, -0.06 * (0.4 - 1 / 3)), (0.5, -0.06 * (0.65 - 1 / 3)), (1.0, -0.06 * (0.9 - 1 / 3))],
)
def test_the_threshold_falls_where_too_few_are_consistent_for_the_progress(
    history, progress, expected
):
    history.start_threshold()
    history.track_threshold(progress)
    assert float(history.threshold) == pytest.approx(4 / 3 + expected)


def test_the_threshold_rises_where_too_many_are(history):
    history.threshold = torch.tensor(-1.0)
    history.track_threshold(0.0)
    assert float(history.threshold) == pytest.approx(-1 + 0.06 * 0.6)


def test_a_history_goes_on_from_its_state(history):
    history.start_threshold()
    other = ClassHistory(3, 4)
    other.load(history.state())
    history.add(of([2, 2, 2]))
    assert other.lead().tolist() == [3, 1, 0], "a copy, not the same counts"
    other.add(of([2, 2, 2]))
    assert torch.equal(other.counts, history.counts)
    assert other.threshold == history.threshold
