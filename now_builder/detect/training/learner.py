"""Train a detector step by step: recipe, model, losses, optimiser, moving average."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torchvision.ops import roi_align

from now_builder.detect.labels.mapping import read_mapping
from now_builder.detect.model.apt import PAPER, TINY, AptDetector, ModelConfig
from now_builder.detect.model.clip_resnet import load_clip
from now_builder.detect.model.text_encoder import (
    TextEncoder,
    embed_prompts,
    linked_embeddings,
    make_text_encoder,
)
from now_builder.detect.model.weights import choose_device, find_weights, load_detector, read_card
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.data import (
    Screenshots,
    TrainPage,
    TrainPages,
    jitter,
    recolour,
    to_targets,
    zoom,
)
from now_builder.detect.training.losses import (
    THUMBNAIL,
    Appearance,
    Sample,
    class_weights,
    proposal_loss,
    region_loss,
    sample_regions,
)
from now_builder.errors import ConfigError, TrainingError

_PAINT, _VIEW = 4.0, 2.0
"""Weights of the painting loss and the view loss."""
_CACHE_MIB = 2048  # Size of the cache for decoded screenshots: 3,000 pages at size tiny

_HUB_TEXT_ENCODER = "bert-base-multilingual-cased"


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of a size.

    Attributes:
        batch: Pages per step.
        fewest: Minimum number of steps, if the settings have none.
        lr: Maximum learning rate; a backbone of CLIP gets a tenth of it.
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
    """Complete the settings by the size's defaults for a number of training pages."""
    recipe = _RECIPES[settings.size]
    batch = min(settings.batch_size or recipe.batch, pages)
    reads = settings.from_ is not None and read_card(find_weights(settings.from_)).model.words
    return replace(
        recipe,
        model=recipe.model.model_copy(update={"words": reads}),
        batch=batch,
        lr=settings.lr or recipe.lr,
        steps=settings.steps or max(recipe.fewest, recipe.epochs * pages // batch),
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate at a step: linear warm-up for 5 % of them, then cosine to 1 %."""
    warm = max(1, recipe.steps // 20)
    if step < warm:
        return recipe.lr * ((step + 1) / warm)
    done = (step - warm) / max(1, recipe.steps - warm)
    return recipe.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def identity(settings: TrainDetectorSettings) -> dict[str, Any]:
    """Return the settings that influence the result."""
    without = {"device", "threads", "also"}
    content = read_mapping(settings.mapping).model_dump(mode="json") if settings.mapping else None
    start = read_card(find_weights(settings.from_)).weights_sha256 if settings.from_ else None
    changed = {"mapping": content, "from_": start}
    return {**settings.model_dump(mode="json", exclude=without), **changed}


class Learner:
    """A detector in training, after ``step`` steps.

    The pages of a step and its random draws only depend on its number, so a checkpoint contains
    neither their order nor the state of random generators.

    Raises:
        ConfigError: If the device, its precision, the text encoder or CLIP's weights are not
            available.
    """

    def __init__(self, settings: TrainDetectorSettings, pages: TrainPages) -> None:
        self.settings, self.pages = settings, pages
        self.recipe = resolve_recipe(settings, len(pages.learn))
        self.step = 0
        self.device = choose_device(settings.device)
        on_gpu = self.device.type == "cuda"
        if settings.precision == "fp16" and not on_gpu:
            raise ConfigError(f"precision: found fp16 on device {self.device}. fp16 needs CUDA")
        if settings.precision == "bf16" and on_gpu and not torch.cuda.is_bf16_supported():
            raise ConfigError(f"precision: found bf16, which {self.device} lacks. Use fp16")
        threads = settings.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        self.encoder: TextEncoder = make_text_encoder(self.recipe.text_encoder, self.device)
        self.screenshots = Screenshots(self.recipe.model.input_size, _CACHE_MIB, threads)
        prompts = embed_prompts(self.encoder, pages.mapping.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model, appearance = AptDetector(self.recipe.model, prompts), Appearance()
        self._load(model)
        self.model = model.to(memory_format=torch.channels_last).to(self.device)
        self.appearance = appearance.to(self.device)
        shown = [page.labels.classes for page in pages.learn]
        self.class_weights = class_weights(shown, len(pages.mapping.classes)).to(self.device)
        self.average = make_average(self.model, settings.ema) if settings.ema else None
        backbone = [p for p in self.model.visual.parameters() if p.requires_grad]
        rest = [p for n, p in self.model.named_parameters() if not n.startswith("visual.")]
        groups = [
            {"params": backbone, "factor": 0.1 if settings.clip_weights else 1.0},
            {"params": [*rest, *self.appearance.parameters()], "factor": 1.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
        self.scaler = torch.amp.GradScaler("cuda", enabled=settings.precision == "fp16")

    def _load(self, model: AptDetector) -> None:
        """Load the weights to start from, if any."""
        if self.settings.from_:
            weights = find_weights(self.settings.from_)
            start, card = load_detector(weights, torch.device("cpu"))
            if card.model != self.recipe.model:
                raise ConfigError(
                    f"{weights}: size {card.model.size}; expected {self.recipe.model.size} and the "
                    "same architecture"
                )
            # Keep the prompts of the new classes.
            model.load_state_dict({**start.state_dict(), "prompts": model.prompts})
        if self.settings.clip_weights:
            load_clip(model.visual, self.settings.clip_weights)
            _freeze(model)

    @property
    def final(self) -> AptDetector:
        """The model to measure and write: the moving average if there is one."""
        return cast(AptDetector, self.average.module) if self.average else self.model

    def _parts(self) -> dict[str, Any]:
        names = ("model", "appearance", "average", "optimizer", "scaler")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        parts = {name: part.state_dict() for name, part in self._parts().items()}
        return {"step": self.step, **parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.step = int(state["step"])

    def batch(self) -> list[TrainPage]:
        """Return the pages of the next step, from the endless sequence of shuffled epochs."""
        pages, chosen = self.pages.learn, []
        first = self.step * self.recipe.batch
        for place in range(first, first + self.recipe.batch):
            epoch, offset = divmod(place, len(pages))
            order = torch.randperm(len(pages), generator=torch.Generator().manual_seed(epoch))
            chosen.append(pages[int(order[offset])])
        return chosen

    def take_step(self) -> dict[str, float]:
        """Take the next step and return its weighted losses.

        Raises:
            TrainingError: If a loss is not finite.
        """
        rate = learning_rate(self.recipe, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.losses(self.batch(), torch.Generator().manual_seed(self.step))
        total = torch.stack(list(losses.values())).sum()
        if not bool(torch.isfinite(total)):
            raise TrainingError(f"step {self.step}: the loss is not finite. Try a smaller --lr")
        self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        return {name: float(value.detach()) for name, value in losses.items()}

    def losses(
        self, pages: Sequence[TrainPage], generator: torch.Generator
    ) -> dict[str, Float[Tensor, ""]]:
        """Compute the weighted losses of a batch."""
        model, size, count = self.model, self.recipe.model.input_size, self.recipe.views
        on_cpu = [to_targets(page, size, self.encoder, generator) for page in pages]
        targets = [page.to(self.device) for page in on_cpu]
        pixels = self.screenshots.read(pages).to(self.device).float() / 255
        if self.settings.zoom > 1:
            pixels, targets = zoom(pixels, targets, self.settings.zoom, generator)
        views = torch.cat([recolour(pixels, generator) for _ in range(count)])
        precision = self.settings.precision
        dtype = torch.float16 if precision == "fp16" else torch.bfloat16
        autocast = partial(torch.autocast, self.device.type, dtype, enabled=precision != "fp32")
        with autocast():
            maps = model.maps(views)
            objectness, deltas, anchors = model.rpn(maps)
        objectness, deltas = objectness.float(), deltas.float()
        losses = {}
        losses["rpn"], losses["rpn box"] = proposal_loss(objectness, deltas, anchors, targets)
        with torch.no_grad():
            of_first = objectness[: len(pages)], deltas[: len(pages)]
            proposals = model.rpn.propose(*of_first, anchors, self.recipe.model.proposals)
            samples = [
                sample_regions(
                    of_page.boxes, page, self.recipe.regions, len(model.prompts), generator
                )
                for of_page, page in zip(proposals, targets, strict=True)
            ]
        for _ in range(1, count):
            first = samples[: len(pages)]
            samples += [replace(s, boxes=jitter(s.boxes, size, generator)) for s in first]
        regions = [sample.boxes for sample in samples]
        with autocast():
            pooled = model.pool(maps, regions).float()
        embedded = model.projection(pooled)
        text = torch.cat([
            linked_embeddings(boxes, page.texts, page.vectors)
            for boxes, page in zip(regions, targets * count, strict=True)
        ])  # fmt: skip
        fields = Sample.__slots__
        together = Sample(*(torch.cat([getattr(s, name) for s in samples]) for name in fields))
        logits = model.classify(embedded, text, together.boxes)
        losses["class"], losses["box"] = region_loss(
            logits, model.regression(pooled), together, self.class_weights
        )
        thumbnails = roi_align(views, regions, THUMBNAIL, sampling_ratio=2)
        normed = F.layer_norm(embedded, embedded.shape[1:])
        losses["paint"] = _PAINT * self.appearance.painting_loss(normed, thumbnails)
        if count > 1:
            losses["view"] = _VIEW * self.appearance.view_loss(*normed.chunk(2))
        return losses


def _freeze(model: AptDetector) -> None:
    """Freeze stem, layer 1 and all batch norms of a loaded backbone."""
    visual = model.visual
    norms = [child for child in visual.modules() if isinstance(child, nn.BatchNorm2d)]
    for module in [visual.conv1, visual.conv2, visual.conv3, visual.layer1, *norms]:
        module.requires_grad_(requires_grad=False)
    for norm in norms:
        norm.eval()


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    r"""Make a moving average of a model's parameters and batch norm statistics.

    After n steps the decay is :math:`\min(d, (1 + n) / (10 + n))`, so that even a short training
    averages over its last steps.

    Source:
        ``tf.train.ExponentialMovingAverage`` with ``num_updates``, for the decay.
    """

    def move(average: Sequence[Tensor], current: Sequence[Tensor], steps: Tensor | int) -> None:
        count = float(steps)
        keep = min(decay, (1 + count) / (10 + count))
        for old, new in zip(average, current, strict=True):
            if old.is_floating_point():
                old.lerp_(new, 1 - keep)
            else:
                old.copy_(new)

    return AveragedModel(model, multi_avg_fn=torch.no_grad()(move), use_buffers=True)
