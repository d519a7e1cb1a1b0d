"""A run that is stopped comes to the same end as one that is not."""

import pytest

from now_builder.errors import TrainingError
from pc2_baseline.modules.learner import Learner
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import read_tensors


def train_twice(release, folder, settings, epoch):
    """Train ``whole``, and ``stopped`` in an epoch and resumed; return their tensors."""
    train(release, folder / "whole", settings)
    step = Learner.step

    def stopping(learner, loss, where):
        if where.epoch == epoch:
            raise TrainingError("stopped")
        return step(learner, loss, where)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "step", stopping)
        with pytest.raises(TrainingError, match="stopped"):
            train(release, folder / "stopped", settings)
    train(release, folder / "stopped", settings)
    whole, again = (read_tensors(folder / name / "last") for name in ("whole", "stopped"))
    for group, tensors in whole.items():
        assert all((value == again[group][name]).all() for name, value in tensors.items())
    return whole
