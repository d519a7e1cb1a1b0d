"""How a size is trained: architecture, batch, steps, learning rate, weights of losses."""

import math
from dataclasses import dataclass, replace
from typing import Any

from now_builder.detect.labels.mapping import read_mapping
from now_builder.detect.model.apt import PAPER, TINY, ModelConfig
from now_builder.detect.model.weights import find_weights, read_card
from now_builder.detect.settings import TrainDetectorSettings

_HUB_TEXT_ENCODER = "bert-base-multilingual-cased"


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a size is trained.

    Attributes:
        batch: Pages in memory at once.
        fewest: Minimum number of steps where neither epochs nor steps are set.
        lr: Highest learning rate from scratch; a loaded backbone takes a tenth.
        regions: Regions drawn per page for the region losses.
        views: Recoloured copies of each page in a batch: 1, or 2 for the view loss.
    """

    model: ModelConfig
    text_encoder: str
    epochs: int
    batch: int
    lr: float
    regions: int
    fewest: int = 1
    steps: int = 0
    views: int = 1


_RECIPES = {
    "tiny": Recipe(TINY, "hash:0", epochs=2, batch=6, lr=2e-3, regions=48, fewest=200),
    "paper": Recipe(PAPER, _HUB_TEXT_ENCODER, epochs=12, batch=8, lr=1e-4, regions=64, views=2),
}


def resolve_recipe(settings: TrainDetectorSettings, pages: int) -> Recipe:
    """Fill in the size's defaults where the settings have none, for so many pages to learn from."""
    recipe = _RECIPES[settings.size]
    batch = min(settings.batch_size or recipe.batch, pages)
    epochs = settings.epochs or recipe.epochs
    fewest = 1 if settings.epochs else recipe.fewest
    reads = settings.from_ is not None and read_card(find_weights(settings.from_)).model.words
    return replace(
        recipe,
        model=recipe.model.model_copy(update={"words": reads}),
        text_encoder=settings.text_encoder or recipe.text_encoder,
        batch=batch,
        epochs=epochs,
        lr=settings.lr or recipe.lr,
        steps=settings.steps or max(fewest, epochs * pages // batch),
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the highest learning rate at a step.

    It warms up over the first twentieth of the steps, then falls along a half cosine to a
    hundredth.
    """
    warm = max(1, recipe.steps // 20)
    if step < warm:
        return recipe.lr * ((step + 1) / warm)
    done = (step - warm) / max(1, recipe.steps - warm)
    return recipe.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def identity(settings: TrainDetectorSettings) -> dict[str, Any]:
    """Return the settings that change the result."""
    without = {"device", "threads", "checkpoint_every", "measure_every", "also"}
    content = read_mapping(settings.mapping).model_dump(mode="json") if settings.mapping else None
    start = read_card(find_weights(settings.from_)).weights_sha256 if settings.from_ else None
    changed = {"mapping": content, "from_": start}
    return {**settings.model_dump(mode="json", exclude=without), **changed}
