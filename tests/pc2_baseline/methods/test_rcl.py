"""RCL: learns among mismatched pairs by what does not match, and by nothing else."""

import pytest

from pc2_baseline.methods import rcl


def test_its_loss_sums_the_other_pairs_of_both_directions_alone(on_tiny, steps, spy):
    """The slow form, straight from the equation, of the very similarities that it learned from."""
    calls = spy(rcl, "complementary")
    method, pairs = on_tiny("rcl")
    method.fit_epoch(pairs, 0)
    assert len(calls) == len(steps) == 2
    for (_, (similarity, tau), _), (loss, _) in zip(calls, steps, strict=True):
        assert tau == 0.05
        expected = 0.0
        for scores in (similarity.detach(), similarity.detach().T):
            for i, row in enumerate((scores / 0.05).softmax(1)):
                expected -= sum(float((1 - p).log()) for j, p in enumerate(row) if j != i)
        assert loss == pytest.approx(expected / len(similarity), rel=1e-4)
