"""Train the detector on a crawl's train pool, with the browser's elements as labels."""

import logging
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from now_builder.detect.labels.mapping import DEFAULT, read_mapping
from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.weights import (
    DetectorCard,
    card_path,
    find_weights,
    read_card,
    write_weights,
)
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.data import Screenshots, TrainPage, TrainPages, read_train_pages
from now_builder.detect.training.history import History, remove_history
from now_builder.detect.training.learner import Learner, identity
from now_builder.detect.training.measure import Measures, find, measure
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import REGIONS
from now_builder.formats.io import atomic_write
from now_builder.program.progress import Progress

CHECKPOINT_EVERY = 100
"""Steps between checkpoints."""
_FITTED = 200  # Approximate number of pages on which the scale of the stored features is fitted
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """Steps of a training with earlier runs, seconds of this run, and held-out figures."""

    weights: Path
    pages: int
    steps: int
    seconds: float
    measures: Measures | None

    def __str__(self) -> str:
        took = f"{self.seconds:.0f} s" if self.seconds else "complete"
        figures = "no pages held out" if self.measures is None else str(self.measures)
        return f"{self.weights}: {self.pages} pages, {self.steps} steps, {took}; {figures}"


def train_detector(
    captures: Path,
    weights: Path,
    settings: TrainDetectorSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> TrainSummary:
    """Train a detector and write its weights.

    After a stop it resumes from the last checkpoint, with the same result (bit for bit on the CPU
    with the same number of threads). Complete weights are kept even if pages were crawled since,
    because features of two detectors do not mix.

    Raises:
        ConfigError: If there are weights or a checkpoint of other settings.
        TrainingError: If there are too few labelled pages, or a loss is not finite.
    """
    if weights.suffix != ".safetensors":
        raise ConfigError(f"{weights}: weights must be named *.safetensors")
    started, seconds = time.perf_counter(), 0.0
    if force or not weights.exists():
        mapping = read_mapping(settings.mapping) if settings.mapping else DEFAULT
        pages = read_train_pages(captures, settings.held_out, mapping, settings.also)
        if force:  # only now, so that unreadable captures do not delete weights
            for path in (weights, card_path(weights), checkpoint_path(weights)):
                path.unlink(missing_ok=True)
            remove_history(weights)
        counts = len(pages.learn), len(pages.held_out)
        _log.info("train-detector: %d pages to learn from, %d held out", *counts)
        finish(weights, train(weights, settings, pages))
        checkpoint_path(weights).unlink(missing_ok=True)
        seconds = time.perf_counter() - started
    card = read_card(weights)
    current = identity(settings).items()
    if changed := ", ".join(name for name, value in current if card.settings.get(name) != value):
        raise ConfigError(f"{weights}: trained with other {changed}. Give --force to start over")
    classes, learned = card.measured_by_class, card.trained_on
    measures = Measures(**card.measured, classes=classes) if card.measured else None
    return TrainSummary(weights, int(learned["pages"]), int(learned["steps"]), seconds, measures)


def train(weights: Path, settings: TrainDetectorSettings, pages: TrainPages) -> Learner:
    """Take all steps, or those after the last checkpoint.

    Raises:
        ConfigError: If the checkpoint is of other settings or pages.
        FormatError: If the checkpoint is damaged.
        TrainingError: If a loss is not finite.
    """
    learner = Learner(settings, pages)
    history = History(weights, learner)
    same = {**identity(settings), "pages": pages.fingerprint}
    state = load_checkpoint(weights, same, learner.device)
    if state is None:
        remove_history(weights)
    else:
        learner.load_state_dict(state)
        history.state = state["history"]
    total = learner.recipe.steps
    with Progress("train-detector", total, "step", learner.step) as progress:
        while learner.step < total:
            losses = learner.take_step()
            history.record(losses)
            progress.add(1, ", ".join(f"{k} {value:.3f}" for k, value in losses.items()))
            if learner.step % CHECKPOINT_EVERY == 0 and learner.step < total:
                save_checkpoint(weights, learner.state_dict() | {"history": history.state}, same)
    return learner


def checkpoint_path(weights: Path) -> Path:
    """Return the path of an unfinished training's checkpoint, next to the weights."""
    return weights.with_name(f".{weights.name}.checkpoint")


def save_checkpoint(weights: Path, state: dict[str, Any], settings: dict[str, Any]) -> None:
    """Write a checkpoint atomically, with the settings that influence the result."""
    with atomic_write(checkpoint_path(weights)) as temporary:
        torch.save({**state, "identity": repr(settings)}, temporary)


def load_checkpoint(
    weights: Path, settings: dict[str, Any], device: str | torch.device = "cpu"
) -> dict[str, Any] | None:
    """Return the saved state; ``None`` if there is no checkpoint.

    Raises:
        ConfigError: If it is of other settings.
        FormatError: If it is damaged.
    """
    path = checkpoint_path(weights)
    if not path.exists():
        return None
    try:
        zipfile.ZipFile(path).close()  # fails quickly, unlike torch.load on an old pickle
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        saved_identity = state["identity"]
    except Exception as error:  # noqa: BLE001 - a damaged pickle can raise any
        problem = f"not a readable checkpoint ({error!s:.200}). Give --force to start over"
        raise FormatError(path, problem) from None
    if saved_identity != repr(settings):
        raise ConfigError(f"{path}: of other settings or pages. Give --force to start over")
    _log.info("%s: resuming from step %d", path, state["step"])
    return state


def finish(weights: Path, learner: Learner) -> None:
    """Fix the scale of the stored features, measure on held-out pages, and write the weights."""
    model, settings, pages = learner.model, learner.settings, learner.pages
    model.load_state_dict(learner.final.state_dict())
    model.eval()
    screenshots = Screenshots(model.config.input_size, 0, torch.get_num_threads())
    learned = pages.learn[:: max(1, len(pages.learn) // _FITTED)]
    _fix_scale(model, learned, screenshots)
    if settings.half:
        model.half().float()
    names = pages.mapping.class_names
    extractor = AptExtractor(model, learner.encoder, {})
    measures = measure(find(extractor, pages.held_out, screenshots), names)
    card = DetectorCard(
        model=learner.recipe.model,
        classes=list(names),
        mapping=pages.mapping,
        prompts=model.prompts.tolist(),
        text_encoder=learner.encoder.name,
        weights_sha256="",
        settings=identity(settings),
        trained_on={
            "pages": len(pages.learn),
            "sites": len({page.site for page in pages.learn}),
            "steps": learner.recipe.steps,
            "fingerprint": pages.fingerprint,
        },
        measured=measures.figures if measures else {},
        measured_by_class=measures.classes if measures else {},
        words=read_card(find_weights(settings.from_)).words if settings.from_ else {},
    )
    stored = model.half() if settings.half else model
    write_weights(weights, {name: value.cpu() for name, value in stored.state_dict().items()}, card)


@torch.inference_mode()
def _fix_scale(model: AptDetector, pages: Sequence[TrainPage], screenshots: Screenshots) -> None:
    """Fit the scale of the best proposals' stored features, and the tiny size's patterns."""
    patches = model.patches
    if patches is not None:
        patches.fit_patterns([screenshots.read([page])[0] for page in pages], seed=0)
    described = []
    for start in range(0, len(pages), 8):
        shots = screenshots.read(pages[start : start + 8]).to(model.centre.device)
        maps = model.maps(shots)
        boxes = [page.boxes for page in model.propose(maps, REGIONS)]
        embedded = model.projection(model.pool(maps, boxes).float())
        parts = (embedded,) if patches is None else patches.describe(embedded, shots, boxes)
        described.append(parts)
    rows = [torch.cat(part) for part in zip(*described, strict=True)]
    if patches is None:
        centre, whiten = fit_scale(rows[0].double())
        model.centre.copy_(centre)
        model.whiten.copy_(whiten)
    else:
        for block, part in zip(patches.blocks, rows, strict=True):
            block.fit(part)


def fit_scale(
    rows: Float[Tensor, "n 768"],
) -> tuple[Float[Tensor, " 768"], Float[Tensor, "768 768"]]:
    """Fit an affine map that centres embeddings and partly whitens them.

    Variances below a thousandth of the largest are raised to it first.

    Returns:
        The centre and the matrix; mapped rows have a mean square of 1 per number.
    """
    centre = rows.mean(dim=0)
    centred = rows - centre
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(rows))
    spread = spread.clamp(min=float(spread.max()) * 1e-3 + 1e-12)
    whiten = axes @ torch.diag(spread**-0.25) @ axes.T
    whiten = whiten / (centred @ whiten).square().mean().sqrt()
    return centre.float(), whiten.float()
