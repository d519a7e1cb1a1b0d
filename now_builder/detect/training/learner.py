"""A detector in training and one step of it: model, losses, optimiser, moving average."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torchvision.ops import roi_align

from now_builder.detect.labels.mapping import ClassMapping
from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.clip_resnet import batch_norms, load_clip
from now_builder.detect.model.proposals import Anchors
from now_builder.detect.model.text_boxes import linked_embeddings
from now_builder.detect.model.text_encoder import TextEncoder, embed_prompts, make_text_encoder
from now_builder.detect.model.weights import choose_device, find_weights, load_detector
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.augmentation import jitter, recolour, zoom
from now_builder.detect.training.data import Screenshots, TrainPage, TrainPages, to_targets
from now_builder.detect.training.losses import (
    THUMBNAIL,
    Appearance,
    Sample,
    Targets,
    class_weights,
    proposal_loss,
    region_loss,
    sample_regions,
)
from now_builder.detect.training.recipe import Recipe, learning_rate
from now_builder.errors import ConfigError, TrainingError

_PAINT, _VIEW = 4.0, 2.0
"""Weights of the painting and the view loss."""
_CACHE_MIB = 2048
"""Memory for decoded screenshots: 3,000 pages of the tiny size; beyond it they are decoded anew."""


class Learner:
    """A detector in training.

    Random draws of a step are a pure function of the seed and the step's number, so a checkpoint
    needs no state of random generators.

    Raises:
        ConfigError: If the device, the precision on it, the text encoder or CLIP's weights cannot
            be had.
    """

    def __init__(
        self, settings: TrainDetectorSettings, recipe: Recipe, pages: TrainPages, threads: int
    ) -> None:
        self.settings, self.recipe = settings, recipe
        self.device = choose_device(settings.device)
        check_precision(settings.precision, self.device)
        self.encoder: TextEncoder = make_text_encoder(recipe.text_encoder, self.device)
        self.screenshots = Screenshots(recipe.model.input_size, _CACHE_MIB, threads)
        self.model, self.appearance = self._build(pages.mapping)
        shown = [page.labels.classes for page in pages.learn]
        self.class_weights = class_weights(shown, len(pages.mapping.classes)).to(self.device)
        self.average = make_average(self.model, settings.ema) if settings.ema else None
        self.optimizer = torch.optim.AdamW(self._parameter_groups(), weight_decay=0.01)
        self.scaler = torch.amp.GradScaler("cuda", enabled=settings.precision == "fp16")

    def _build(self, mapping: ClassMapping) -> tuple[AptDetector, Appearance]:
        prompts = embed_prompts(self.encoder, mapping.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = AptDetector(self.recipe.model, prompts)
            appearance = Appearance()
        if self.settings.from_:
            self._start_from(model, find_weights(self.settings.from_))
        if self.settings.clip_weights:
            load_clip(model.visual, self.settings.clip_weights)
            _freeze(model)
        model = model.to(memory_format=torch.channels_last).to(self.device)
        return model, appearance.to(self.device)

    def _start_from(self, model: AptDetector, weights: Path) -> None:
        """Load trained weights; the prompts stay those of the classes to learn."""
        start, card = load_detector(weights, torch.device("cpu"))
        if card.model != self.recipe.model:
            raise ConfigError(
                f"{weights}: size {card.model.size}; expected {self.recipe.model.size} and the "
                "same architecture"
            )
        model.load_state_dict({**start.state_dict(), "prompts": model.prompts})

    def _parameter_groups(self) -> list[dict[str, Any]]:
        backbone = [p for p in self.model.visual.parameters() if p.requires_grad]
        rest = [p for n, p in self.model.named_parameters() if not n.startswith("visual.")]
        rest += list(self.appearance.parameters())
        factor = 0.1 if self.settings.clip_weights else 1.0
        return [{"params": backbone, "factor": factor}, {"params": rest, "factor": 1.0}]

    @property
    def final(self) -> AptDetector:
        """The model that is measured and written: the moving average where there is one."""
        return cast(AptDetector, self.average.module) if self.average else self.model

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "model": self.model.state_dict(),
            "appearance": self.appearance.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.model.load_state_dict(state["model"])
        self.appearance.load_state_dict(state["appearance"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def step(self, number: int, pages: Sequence[TrainPage]) -> dict[str, float]:
        """Take step ``number``, from 0, on a batch and return its weighted losses.

        Raises:
            TrainingError: If a loss is not finite.
        """
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        rate = learning_rate(self.recipe, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.losses(pages, generator)
        total = torch.stack(list(losses.values())).sum()
        if not bool(torch.isfinite(total)):
            raise TrainingError(f"step {number}: the loss is not finite; try a smaller --lr")
        self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.model)
        return {name: float(value.detach()) for name, value in losses.items()}

    def _autocast(self) -> torch.autocast:
        kind = torch.float16 if self.settings.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=self.settings.precision != "fp32")

    def losses(
        self, pages: Sequence[TrainPage], generator: torch.Generator
    ) -> dict[str, Float[Tensor, ""]]:
        """Compute the weighted losses of a batch, each page in as many views as the recipe says."""
        targets = [self._targets(page, generator) for page in pages]
        pixels = self.screenshots.read(pages).to(self.device).float() / 255
        if self.settings.zoom > 1:
            pixels, targets = zoom(pixels, targets, self.settings.zoom, generator)
        views = torch.cat([recolour(pixels, generator) for _ in range(self.recipe.views)])
        with self._autocast():
            maps = self.model.maps(views)
            objectness, deltas, anchors = self.model.rpn(maps)
        objectness, deltas = objectness.float(), deltas.float()
        losses = {}
        losses["rpn"], losses["rpn box"] = proposal_loss(objectness, deltas, anchors, targets)
        first = self._sample(objectness, deltas, anchors, targets, generator)
        samples = list(first)
        size = self.recipe.model.input_size
        for _ in range(1, self.recipe.views):
            samples += [replace(s, boxes=jitter(s.boxes, size, generator)) for s in first]
        regions = [sample.boxes for sample in samples]
        with self._autocast():
            pooled = self.model.pool(maps, regions).float()
        embedded = self.model.projection(pooled)
        losses["class"], losses["box"] = self._region_losses(
            pooled, embedded, samples, targets * self.recipe.views
        )
        return losses | self._appearance_losses(embedded, views, regions)

    def _targets(self, page: TrainPage, generator: torch.Generator) -> Targets:
        size = self.recipe.model.input_size
        return to_targets(page, size, self.encoder, generator).to(self.device)

    @torch.no_grad()
    def _sample(
        self,
        objectness: Float[Tensor, "n a"],
        deltas: Float[Tensor, "n a 4"],
        anchors: Anchors,
        targets: Sequence[Targets],
        generator: torch.Generator,
    ) -> list[Sample]:
        count = len(targets)
        found = self.model.rpn.propose(
            objectness[:count], deltas[:count], anchors, self.recipe.model.proposals
        )
        regions, background = self.recipe.regions, len(self.model.prompts)
        return [
            sample_regions(proposals.boxes, page, regions, background, generator)
            for proposals, page in zip(found, targets, strict=True)
        ]

    def _region_losses(
        self,
        pooled: Float[Tensor, "all outputs"],
        embedded: Float[Tensor, "all 768"],
        samples: Sequence[Sample],
        targets: Sequence[Targets],
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        text = torch.cat([
            linked_embeddings(sample.boxes, page.texts, page.vectors)
            for sample, page in zip(samples, targets, strict=True)
        ])  # fmt: skip
        fields = Sample.__slots__
        together = Sample(*(torch.cat([getattr(s, name) for s in samples]) for name in fields))
        logits = self.model.classify(embedded, text, together.boxes)
        return region_loss(logits, self.model.regression(pooled), together, self.class_weights)

    def _appearance_losses(
        self,
        embedded: Float[Tensor, "all 768"],
        views: Float[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> dict[str, Float[Tensor, ""]]:
        thumbnails = roi_align(views, list(regions), THUMBNAIL, sampling_ratio=2)
        normed = F.layer_norm(embedded, embedded.shape[1:])
        losses = {"paint": _PAINT * self.appearance.painting_loss(normed, thumbnails)}
        if self.recipe.views > 1:
            one, two = normed.chunk(2)
            losses["view"] = _VIEW * self.appearance.view_loss(one, two)
        return losses


def _freeze(model: AptDetector) -> None:
    """Freeze stem and layer 1 of a loaded backbone, and the statistics of all its batch norms."""
    visual = model.visual
    frozen = [visual.conv1, visual.conv2, visual.conv3, visual.layer1]
    for module in [*frozen, *batch_norms(visual)]:
        for parameter in module.parameters():
            parameter.requires_grad = False
    for norm in batch_norms(visual):
        norm.eval()


def make_average(model: nn.Module, decay: float) -> AveragedModel:
    r"""Make a moving average of a model: parameters, and the statistics of batch normalisation.

    After n steps the decay is :math:`\min(d, (1 + n) / (10 + n))`, so that a short training too
    averages over its last steps and not over its first.

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


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a precision that a device cannot train in.

    Raises:
        ConfigError: If it is fp16 anywhere but on CUDA, or bf16 on a GPU without it.
    """
    if precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"precision: found fp16 on device {device}, expected fp32 or bf16; fp16 needs CUDA"
        )
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"precision: found bf16, which {device} lacks, expected fp32 or fp16")
