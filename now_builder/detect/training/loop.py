"""The steps and epochs of a training, and its checkpoints."""

import os
from pathlib import Path

import torch

from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.callbacks import History, remove_history
from now_builder.detect.training.checkpoints import (
    checkpoint_path,
    load_checkpoint,
    report_resumed,
    save_checkpoint,
)
from now_builder.detect.training.data import TrainPage, TrainPages
from now_builder.detect.training.learner import Learner
from now_builder.detect.training.recipe import identity, learning_rate, resolve_recipe
from now_builder.errors import ConfigError
from now_builder.program.progress import Progress

_MEASUREMENTS = 12
"""Measurements during a training, where ``measure_every`` is not set."""


class Training:
    """One training, from its first step or its last checkpoint to its last step.

    Checkpoint and history are written beside the weights to be.
    """

    def __init__(self, weights: Path, settings: TrainDetectorSettings, pages: TrainPages) -> None:
        self.weights, self.settings, self.pages = weights, settings, pages
        threads = settings.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        self.recipe = resolve_recipe(settings, len(pages.learn))
        self.learner = Learner(settings, self.recipe, pages, threads)
        self.history = History(weights, pages, self.learner.encoder, self.learner.screenshots)
        self.step = 0

    def run(self) -> None:
        """Take the steps that are left.

        Raises:
            ConfigError: If the checkpoint is of other settings or pages.
            FormatError: If the checkpoint is torn.
            TrainingError: If a loss is not finite.
        """
        self.resume()
        total = self.recipe.steps
        with Progress("train-detector", total, "step", self.step) as progress:
            while self.step < total:
                losses = self.take_step()
                self.history.on_step_end(losses)
                self._end_epoch()
                progress.add(1, ", ".join(f"{k} {value:.3f}" for k, value in losses.items()))
                if self.step % self.settings.checkpoint_every == 0 and self.step < total:
                    self.save()

    def take_step(self) -> dict[str, float]:
        """Take the next step and return its weighted losses."""
        losses = self.learner.step(self.step, self.batch())
        self.step += 1
        return losses

    def batch(self) -> list[TrainPage]:
        """Return the pages of the next step."""
        first = self.step * self.recipe.batch
        return [self._page(place) for place in range(first, first + self.recipe.batch)]

    def _page(self, place: int) -> TrainPage:
        """Return the page at a place of the endless sequence of shuffled epochs.

        The order is a pure function of seed and epoch, so a checkpoint need not keep it.
        """
        epoch, offset = divmod(place, len(self.pages.learn))
        generator = torch.Generator().manual_seed(self.settings.seed * 7_919 + epoch)
        order = torch.randperm(len(self.pages.learn), generator=generator)
        return self.pages.learn[int(order[offset])]

    def _end_epoch(self) -> None:
        """Record the epoch if the last step ended it; the training's last step always does."""
        batch, pages = self.recipe.batch, len(self.pages.learn)
        before, now = ((self.step - back) * batch // pages for back in (1, 0))
        last = self.step == self.recipe.steps
        if now == before and not last:
            return
        epoch = max(now, before + 1)
        epochs = -(-self.recipe.steps * batch // pages)
        every = self.settings.measure_every or -(-epochs // _MEASUREMENTS)
        rate = learning_rate(self.recipe, self.step - 1)
        due = last or epoch % every == 0
        self.history.on_epoch_end(epoch, self.step, rate, self.learner.final if due else None)

    def save(self) -> None:
        """Write a checkpoint."""
        state = {
            "step": self.step,
            "pages": self.pages.fingerprint,
            **self.learner.state_dict(),
            "watch": self.history.state_dict(),
        }
        save_checkpoint(self.weights, state, identity(self.settings))

    def resume(self) -> None:
        """Restore the checkpoint, if there is one, or raise what :meth:`run` does."""
        state = load_checkpoint(self.weights, identity(self.settings), self.learner.device)
        if state is None:
            remove_history(self.weights)
            return
        if state["pages"] != self.pages.fingerprint:
            path = checkpoint_path(self.weights)
            raise ConfigError(f"{path}: begun on other pages; --force starts over")
        self.learner.load_state_dict(state)
        self.history.load_state_dict(state["watch"])
        self.step = int(state["step"])
        report_resumed("train-detector", self.step)
