"""Train the detector on a crawl's own train pool, with the browser's elements as labels."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

from now_builder.detect.labels.mapping import DEFAULT, read_mapping
from now_builder.detect.model.weights import card_path, read_card
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.callbacks import remove_history
from now_builder.detect.training.checkpoints import checkpoint_path
from now_builder.detect.training.data import read_train_pages
from now_builder.detect.training.finish import finish
from now_builder.detect.training.loop import Training
from now_builder.detect.training.measure import ClassMeasures, Measures
from now_builder.detect.training.recipe import identity
from now_builder.errors import ConfigError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """Steps of a training, earlier runs included, seconds of this run, and held-out figures."""

    weights: Path
    pages: int
    steps: int
    seconds: float
    measures: Measures | None

    def __str__(self) -> str:
        figures = "no pages held out" if self.measures is None else str(self.measures)
        if not self.seconds:
            return f"{self.weights}: complete, {self.pages} pages, {self.steps} steps; {figures}"
        return (
            f"{self.weights}: {self.pages} pages, {self.steps} steps, {self.seconds:.0f} s; "
            f"{figures}"
        )


def train_detector(
    captures: Path,
    weights: Path,
    settings: TrainDetectorSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> TrainSummary:
    """Train a detector and write its weights.

    Killed at any moment and run again it goes on from its last checkpoint, with the same result
    (bit for bit on the CPU with the same number of threads). Weights that are complete stay as they
    are, also when pages were crawled since: features of two detectors do not mix.

    Raises:
        ConfigError: If weights or a checkpoint of other settings are there.
        TrainingError: If there is nothing to learn from, or a loss is not finite.
    """
    if weights.suffix != ".safetensors":
        raise ConfigError(f"{weights}: weights must be named *.safetensors")
    if weights.exists() and not force:
        return _summarize(weights, settings)
    mapping = read_mapping(settings.mapping) if settings.mapping else DEFAULT
    pages = read_train_pages(captures, settings.held_out, mapping, settings.also)
    if force:  # only now: captures that cannot be read cost no weights
        for path in (weights, card_path(weights), checkpoint_path(weights)):
            path.unlink(missing_ok=True)
        remove_history(weights)
    started = time.perf_counter()
    _log.info(
        "train-detector: %d pages to learn from, %d held out, %d behind a dialog",
        len(pages.learn), len(pages.held_out), pages.dialog_pages,
    )  # fmt: skip
    training = Training(weights, settings, pages)
    training.run()
    measures = finish(weights, training.learner, pages)
    checkpoint_path(weights).unlink(missing_ok=True)
    seconds = time.perf_counter() - started
    return TrainSummary(weights, len(pages.learn), training.recipe.steps, seconds, measures)


def _summarize(weights: Path, settings: TrainDetectorSettings) -> TrainSummary:
    """Summarize weights that are complete; pages crawled since then do not matter."""
    card, wanted = read_card(weights), identity(settings)
    changed = [name for name, value in wanted.items() if card.settings.get(name) != value]
    if changed:
        raise ConfigError(
            f"{weights}: trained with other {', '.join(changed)}; --force starts over"
        )
    classes = {name: ClassMeasures(**figures) for name, figures in card.measured_by_class.items()}
    measured = Measures(**card.measured, classes=classes) if card.measured else None
    learned = card.trained_on
    return TrainSummary(weights, int(learned["pages"]), int(learned["steps"]), 0.0, measured)
