"""Train the detector: on a crawl's own train pool, the browser's elements as labels, or on COCO."""

import math
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor
from torch.optim.swa_utils import AveragedModel
from torchvision.ops import roi_align
from tqdm import tqdm

from now_builder.detect.labels.mapping import ClassMapping, read_mapping
from now_builder.detect.model.apt import PAPER, TINY, AptDetector, ModelConfig
from now_builder.detect.model.clip_resnet import batch_norms, load_clip
from now_builder.detect.model.losses import (
    Appearance,
    Sample,
    Targets,
    region_loss,
    rpn_loss,
    sample_regions,
)
from now_builder.detect.model.text_boxes import linked_embeddings
from now_builder.detect.model.text_encoder import TextEncoder, embed_prompts, make_text_encoder
from now_builder.detect.model.weights import (
    DetectorCard,
    card_path,
    choose_device,
    read_card,
    write_weights,
)
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.augmentation import jitter, recolour
from now_builder.detect.training.callbacks import Watch, forget
from now_builder.detect.training.data import (
    Screenshots,
    TrainPage,
    TrainPages,
    read_coco_pages,
    read_train_pages,
    to_targets,
)
from now_builder.detect.training.measure import ClassMeasures, Measures, find, measure
from now_builder.detect.training.sampling import Walk, repeat_factors
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.features import REGIONS
from now_builder.formats.io import replacing

_HUB_TEXT_ENCODER = "bert-base-multilingual-cased"
_MEASURES = 12
"""While training, where ``measure_every`` leaves it open."""


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """What a training did.

    Attributes:
        steps: In all, those of earlier runs included; ``seconds``: of this run.
        measures: On the held-out part of the train pool; ``None`` where nothing is held out.
    """

    weights: Path
    pages: int
    steps: int
    seconds: float
    measures: Measures | None

    def __str__(self) -> str:
        """One line for the terminal."""
        said = "no pages held out" if self.measures is None else str(self.measures)
        if not self.seconds:
            return f"{self.weights}: complete, {self.pages} pages, {self.steps} steps; {said}"
        return (
            f"{self.weights}: {self.pages} pages, {self.steps} steps, {self.seconds:.0f} s; {said}"
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a size is trained.

    Attributes:
        model: The architecture.
        text_encoder: Its default.
        batch: Pages in memory at once, each seen in two views.
        fewest: Steps at least, where neither epochs nor steps are asked for; ``steps``: in all.
        lr: Highest rate of what is trained from scratch; a loaded backbone takes a tenth.
        regions: Drawn for the region losses, per page.
        paint, view: Weights of the appearance losses.
    """

    model: ModelConfig
    text_encoder: str
    epochs: int
    batch: int
    lr: float
    regions: int
    fewest: int = 1
    steps: int = 0
    paint: float = 4.0
    view: float = 2.0


_RECIPES = {
    "tiny": Recipe(TINY, "hash:0", epochs=2, batch=6, lr=2e-3, regions=24, fewest=200),
    "paper": Recipe(PAPER, _HUB_TEXT_ENCODER, epochs=12, batch=8, lr=1e-4, regions=64),
}


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

    Args:
        captures: The captures folder, whose train pool is learned from; with ``settings.coco`` it
            may be a folder of images.
        weights: The safetensors file to write; its JSON, history and pictures appear beside it.
        settings: What to train, and how.
        force: Throw away what is there and start over.

    Raises:
        ConfigError: If weights or a checkpoint of other settings are there.
        TrainingError: If there is nothing to learn from, or a loss is not finite.
    """
    if weights.suffix != ".safetensors":
        raise ConfigError(f"{weights}: weights must be named *.safetensors")
    if force:
        for path in (weights, card_path(weights), checkpoint_path(weights)):
            path.unlink(missing_ok=True)
        forget(weights)
    if weights.exists():
        return _finished(weights, settings)
    pages = _read_pages(captures, settings)
    started = time.perf_counter()
    _say(
        f"train-detector: {len(pages.learn)} pages to learn from, {len(pages.held_out)} held out, "
        f"{pages.walls} behind a wall"
    )
    training = Training(weights, settings, pages)
    training.run()
    measures = training.finish()
    checkpoint_path(weights).unlink(missing_ok=True)
    seconds = time.perf_counter() - started
    return TrainSummary(weights, len(pages.learn), training.recipe.steps, seconds, measures)


def _read_pages(captures: Path, settings: TrainDetectorSettings) -> TrainPages:
    mapping = _mapping(settings)
    if settings.coco:
        return read_coco_pages(captures, settings.coco, settings.held_out, mapping)
    if mapping:
        return read_train_pages(captures, settings.held_out, mapping)
    return read_train_pages(captures, settings.held_out)


def _mapping(settings: TrainDetectorSettings) -> ClassMapping | None:
    return read_mapping(settings.mapping) if settings.mapping else None


def _finished(weights: Path, settings: TrainDetectorSettings) -> TrainSummary:
    """Answer for weights that are there; pages crawled since then do not matter."""
    card = read_card(weights)
    made = {name: card.settings.get(name) for name in _identity(settings)}
    if made != _identity(settings):
        changed = [name for name, value in _identity(settings).items() if made[name] != value]
        raise ConfigError(
            f"{weights}: trained with other {', '.join(changed)}; --force starts over"
        )
    classes = {name: ClassMeasures(**figures) for name, figures in card.measured_by_class.items()}
    measured = Measures(**card.measured, classes=classes) if card.measured else None
    learned = card.trained_on
    return TrainSummary(weights, int(learned["pages"]), int(learned["steps"]), 0.0, measured)


def _identity(settings: TrainDetectorSettings) -> dict[str, Any]:
    """The settings that change the result."""
    without = {"device", "threads", "checkpoint_every", "cache_mib", "measure_every"}
    mapping = _mapping(settings)
    content = mapping.model_dump(mode="json") if mapping else None
    return {**settings.model_dump(mode="json", exclude=without), "mapping": content}


def checkpoint_path(weights: Path) -> Path:
    """Where an unfinished training waits."""
    return weights.with_name(f".{weights.name}.checkpoint")


def resolve(settings: TrainDetectorSettings, pages: int, an_epoch: int) -> Recipe:
    """Fill in what the settings leave to the size.

    Args:
        settings: Of the training.
        pages: To learn from.
        an_epoch: How many pages are seen in an epoch, some of them more than once.
    """
    recipe = _RECIPES[settings.size]
    batch = min(settings.batch_size or recipe.batch, pages)
    epochs = settings.epochs or recipe.epochs
    fewest = 1 if settings.epochs else recipe.fewest
    return replace(
        recipe,
        model=recipe.model.model_copy(update={"mode": settings.mode}),
        text_encoder=settings.text_encoder or recipe.text_encoder,
        batch=batch,
        epochs=epochs,
        lr=settings.lr or recipe.lr,
        steps=settings.steps or max(fewest, epochs * an_epoch // (batch * settings.accumulate)),
    )


@dataclass
class Losses:
    """The parts of one step's loss, weighted."""

    parts: dict[str, Float[Tensor, ""]] = field(default_factory=dict)

    @property
    def total(self) -> Float[Tensor, ""]:
        """Their sum."""
        return torch.stack(list(self.parts.values())).sum()


class Training:
    """The life of one training: model, draws, steps, checkpoints, the finished weights.

    What a step draws is a pure function of the seed and the step's number, so a checkpoint needs no
    state of random generators.
    """

    def __init__(self, weights: Path, settings: TrainDetectorSettings, pages: TrainPages) -> None:
        self.weights, self.settings, self.pages = weights, settings, pages
        threads = settings.threads or os.cpu_count() or 1
        torch.set_num_threads(threads)
        self.device = choose_device(settings.device)
        check_precision(settings.precision, self.device)
        seen = repeat_factors([p.labels.classes for p in pages.learn], settings.repeat_threshold)
        self.walk = Walk(seen, settings.seed)
        self.recipe = resolve(settings, len(pages.learn), len(self.walk))
        self.encoder: TextEncoder = make_text_encoder(self.recipe.text_encoder, self.device)
        size = self.recipe.model.input_size
        self.screenshots = Screenshots(size, settings.cache_mib, threads)
        self.model, self.appearance = self._build()
        self.average = make_average(self.model, settings.ema) if settings.ema else None
        self.full = Screenshots(self.model.screen, 0, threads)
        self.optimizer = torch.optim.AdamW(self._groups(), weight_decay=0.01)
        self.scaler = torch.amp.GradScaler("cuda", enabled=settings.precision == "fp16")
        names = pages.mapping.class_names
        self.watch = Watch(weights, pages.held_out, names, self.encoder, self.screenshots)
        self.step = 0

    def _build(self) -> tuple[AptDetector, Appearance]:
        prompts = embed_prompts(self.encoder, self.pages.mapping.classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = AptDetector(self.recipe.model, prompts)
            appearance = Appearance()
        if self.settings.clip_weights:
            load_clip(model.visual, self.settings.clip_weights)
            _freeze(model)
        model = model.to(memory_format=torch.channels_last).to(self.device)
        return model, appearance.to(self.device)

    def _groups(self) -> list[dict[str, Any]]:
        loaded = bool(self.settings.clip_weights)
        backbone = [p for p in self.model.visual.parameters() if p.requires_grad]
        rest = [p for n, p in self.model.named_parameters() if not n.startswith("visual.")]
        rest += list(self.appearance.parameters())
        factor = 0.1 if loaded else 1.0
        return [{"params": backbone, "factor": factor}, {"params": rest, "factor": 1.0}]

    def run(self) -> None:
        """Take the steps that are left."""
        self._resume()
        self._train_mode()
        total = self.recipe.steps
        with tqdm(
            total=total, initial=self.step, desc="train-detector", unit="step", disable=None
        ) as bar:
            while self.step < total:
                losses = self._take_step()
                self.step += 1
                self.watch.add(losses)
                self._close_epoch()
                bar.update()
                bar.set_postfix({name: f"{value:.3f}" for name, value in losses.items()})
                if self.step % max(1, total // 10) == 0 and bar.disable:
                    said = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
                    _say(f"train-detector: step {self.step}/{total}: {said}")
                if self.step % self.settings.checkpoint_every == 0 and self.step < total:
                    self._save()

    def _train_mode(self) -> None:
        self.model.train()
        if self.settings.clip_weights:
            for norm in batch_norms(self.model):
                norm.eval()

    def _close_epoch(self) -> None:
        """Tell of the epoch if this step was its last; a part of one at the end is one too."""
        a_step = self.recipe.batch * self.settings.accumulate
        before, now = ((self.step - back) * a_step // len(self.walk) for back in (1, 0))
        last = self.step == self.recipe.steps
        if now == before and not last:
            return
        epoch = max(now, before + 1)
        epochs = -(-self.recipe.steps * a_step // len(self.walk))
        every = self.settings.measure_every or -(-epochs // _MEASURES)
        rate = self.recipe.lr * _schedule(self.step - 1, self.recipe.steps)
        due = last or epoch % every == 0
        self.watch.close(epoch, self.step, rate, self._best() if due else None)

    def _best(self) -> AptDetector:
        """Give the averaged model where there is one."""
        return cast(AptDetector, self.average.module) if self.average else self.model

    def _take_step(self) -> dict[str, float]:
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.step)
        rate = self.recipe.lr * _schedule(self.step, self.recipe.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.settings.accumulate
        said: dict[str, float] = {}
        for part in range(parts):
            losses = self.losses(self._draw(part), generator)
            total = losses.total / parts
            if not bool(torch.isfinite(total)):
                raise TrainingError(f"step {self.step}: the loss is not finite; try a smaller --lr")
            self.scaler.scale(total).backward()  # type: ignore[no-untyped-call]
            for name, value in losses.parts.items():
                said[name] = said.get(name, 0.0) + float(value.detach()) / parts
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update_parameters(self.model)
        return said

    def _draw(self, part: int) -> list[TrainPage]:
        """Take the pages of a part of the step."""
        batch = self.recipe.batch
        first = (self.step * self.settings.accumulate + part) * batch
        return [self.pages.learn[self.walk.page(place)] for place in range(first, first + batch)]

    def _autocast(self) -> torch.autocast:
        kind = torch.float16 if self.settings.precision == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, kind, enabled=self.settings.precision != "fp32")

    def losses(self, pages: Sequence[TrainPage], generator: torch.Generator) -> Losses:
        """Work out the losses of a batch, each page in two views.

        Args:
            pages: The batch.
            generator: The source of randomness.
        """
        targets = [self._targets(page, generator) for page in pages]
        pixels = self.screenshots.read(pages).to(self.device).float() / 255
        views = torch.cat([recolour(pixels, generator), recolour(pixels, generator)])
        with self._autocast():
            maps = self.model.visual.features(views)
            objectness, deltas, anchors = self.model.rpn(maps)
        losses = Losses()
        losses.parts["rpn"], losses.parts["rpn box"] = rpn_loss(
            objectness.float(), deltas.float(), anchors, targets, generator
        )
        first = self._sample(objectness, deltas, anchors, targets, generator)
        size = self.recipe.model.input_size
        second = [replace(s, boxes=jitter(s.boxes, size, generator)) for s in first]
        regions = [sample.boxes for sample in [*first, *second]]
        with self._autocast():
            pooled = self.model.pool(maps, regions).float()
        embedded = self.model.projection(pooled)
        self._region_losses(losses, pooled, embedded, [*first, *second], targets * 2)
        self._appearance_losses(losses, embedded, views, regions)
        return losses

    def _targets(self, page: TrainPage, generator: torch.Generator) -> Targets:
        size, hidden = self.recipe.model.input_size, self.settings.text_dropout
        there = to_targets(page, size, self.encoder, hidden, generator)
        return Targets(
            there.boxes.to(self.device),
            there.classes.to(self.device),
            there.ignored.to(self.device),
            there.texts.to(self.device),
            there.vectors.to(self.device),
        )

    @torch.no_grad()
    def _sample(
        self,
        objectness: Float[Tensor, "n a"],
        deltas: Float[Tensor, "n a 4"],
        anchors: Float[Tensor, "a 4"],
        targets: Sequence[Targets],
        generator: torch.Generator,
    ) -> list[Sample]:
        count = len(targets)
        found = self.model.rpn.propose(
            objectness[:count], deltas[:count], anchors, self.recipe.model.proposals
        )
        regions, background = self.recipe.regions, len(self.model.prompts)
        return [
            sample_regions(there.boxes, page, regions, background, generator)
            for there, page in zip(found, targets, strict=True)
        ]

    def _region_losses(
        self,
        losses: Losses,
        pooled: Float[Tensor, "all outputs"],
        embedded: Float[Tensor, "all 768"],
        samples: Sequence[Sample],
        targets: Sequence[Targets],
    ) -> None:
        text = torch.cat([
            linked_embeddings(sample.boxes, page.texts, page.vectors)
            for sample, page in zip(samples, targets, strict=True)
        ])  # fmt: skip
        together = Sample(
            torch.cat([sample.boxes for sample in samples]),
            torch.cat([sample.classes for sample in samples]),
            torch.cat([sample.goals for sample in samples]),
        )
        logits = self.model.classify(embedded, text)
        losses.parts["class"], losses.parts["box"] = region_loss(
            logits, self.model.regression(pooled), together
        )

    def _appearance_losses(
        self,
        losses: Losses,
        embedded: Float[Tensor, "all 768"],
        views: Float[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> None:
        thumbnails = roi_align(views, list(regions), self.appearance.thumbnail, sampling_ratio=2)
        look = F.layer_norm(embedded, embedded.shape[1:])
        paint = self.appearance.painting_loss(look, thumbnails)
        losses.parts["paint"] = self.recipe.paint * paint
        one, two = look.chunk(2)
        losses.parts["view"] = self.recipe.view * self.appearance.view_loss(one, two)

    def _save(self) -> None:
        state = {
            "step": self.step,
            "identity": repr(_identity(self.settings)),
            "pages": self.pages.fingerprint,
            "model": self.model.state_dict(),
            "appearance": self.appearance.state_dict(),
            "average": self.average.state_dict() if self.average else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "watch": self.watch.state,
        }
        with replacing(checkpoint_path(self.weights)) as temporary:
            torch.save(state, temporary)

    def _resume(self) -> None:
        path = checkpoint_path(self.weights)
        if not path.exists():
            self.watch.restore(None)
            return
        if not zipfile.is_zipfile(path):
            raise FormatError(path, "not a readable checkpoint; --force starts over")
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except (RuntimeError, OSError, pickle.UnpicklingError) as error:
            raise FormatError(path, f"not a readable checkpoint ({error})") from None
        if state["identity"] != repr(_identity(self.settings)):
            raise ConfigError(f"{path}: begun with other settings; --force starts over")
        if state["pages"] != self.pages.fingerprint:
            raise ConfigError(f"{path}: begun on other pages; --force starts over")
        self.model.load_state_dict(state["model"])
        self.appearance.load_state_dict(state["appearance"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.watch.restore(state["watch"])
        self.step = int(state["step"])
        _say(f"train-detector: goes on from step {self.step}")

    def finish(self) -> Measures | None:
        """Fix the scale of the stored features, measure on held-out pages, write the weights."""
        self.model.load_state_dict(self._best().state_dict())
        self.model.eval()
        learned = self.pages.learn[:: max(1, len(self.pages.learn) // 200)]
        fix_scale(self.model, learned, self.full, self.settings.seed)
        extractor = AptExtractor(self.model, self.encoder, {})
        names = self.pages.mapping.class_names
        measures = measure(find(extractor, self.pages.held_out, self.full), names)
        card = DetectorCard(
            model=self.recipe.model,
            classes=list(names),
            mapping=self.pages.mapping,
            prompts=self.model.prompts.tolist(),
            text_encoder=self.encoder.name,
            weights_sha256="",
            settings=_identity(self.settings),
            trained_on={
                "pages": len(self.pages.learn),
                "sites": len({page.site for page in self.pages.learn} - {""}),
                "steps": self.recipe.steps,
                "fingerprint": self.pages.fingerprint,
            },
            measured=measures.figures if measures else {},
            measured_by_class=measures.by_class if measures else {},
        )
        state = {name: value.cpu() for name, value in self.model.state_dict().items()}
        write_weights(self.weights, state, card)
        return measures


@torch.inference_mode()
def fix_scale(
    model: AptDetector, pages: Sequence[TrainPage], screenshots: Screenshots, seed: int
) -> None:
    """Fit what is fixed in the stored features: their scale, and the patterns of the tiny size.

    Args:
        model: In evaluation mode.
        pages: That were learned from.
        screenshots: At the model's ``screen``.
        seed: Changes the patterns.
    """
    if model.look is not None:
        model.look.fit_patterns([screenshots.read([page])[0] for page in pages], seed)
    rows = zip(*_described(model, pages, screenshots), strict=True)
    described = [torch.cat(kind) for kind in rows]
    if model.look is not None:
        model.look.fit_blocks(described)
        return
    centre, whiten = fit_scale(described[0].double())
    model.centre.copy_(centre)
    model.whiten.copy_(whiten)


def _described(
    model: AptDetector, pages: Sequence[TrainPage], screenshots: Screenshots
) -> Iterator[tuple[Tensor, ...]]:
    """Give the embeddings of the best proposals, and what else is stored of them."""
    for start in range(0, len(pages), 8):
        shots = screenshots.read(pages[start : start + 8]).to(model.centre.device)
        maps = model.maps(shots)
        boxes = [page.boxes for page in model.propose(maps, REGIONS)]
        embedded = model.projection(model.pool(maps, boxes).float())
        yield (embedded,) if model.look is None else model.look.describe(embedded, shots, boxes)


def make_average(model: AptDetector, decay: float) -> AveragedModel:
    r"""Make a moving average of a model: parameters, and the statistics of batch normalisation.

    After n steps the decay is :math:`\min(d, (1 + n) / (10 + n))`, so that a short training too
    averages over its last steps and not over its first.

    Args:
        model: What is averaged; a copy of it is made.
        decay: d, the share of the average that each step keeps in the end.

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
    """Refuse what a device cannot compute in.

    Raises:
        ConfigError: If it is fp16 anywhere but on CUDA, or bf16 on a GPU without it.
    """
    if precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"precision: found fp16 on device {device}, expected fp32 or bf16; fp16 needs CUDA"
        )
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"precision: found bf16, which {device} lacks, expected fp32 or fp16")


def fit_scale(
    rows: Float[Tensor, "n 768"], power: float = 0.5, floor: float = 1e-3
) -> tuple[Float[Tensor, " 768"], Float[Tensor, "768 768"]]:
    """Find the affine map that centres rows and evens out, in part, how far each direction spreads.

    Args:
        rows: Embeddings of regions.
        power: 0 keeps the spreads as they are, 1 makes all alike (full whitening).
        floor: Directions that spread less than this share of the widest are not blown up further.

    Returns:
        The centre, and the matrix; mapped rows have a mean square of 1 per number.
    """
    centre = rows.mean(dim=0)
    centred = rows - centre
    spread, axes = torch.linalg.eigh(centred.T @ centred / len(rows))
    spread = spread.clamp(min=float(spread.max()) * floor + 1e-12)
    whiten = axes @ torch.diag(spread ** (-power / 2)) @ axes.T
    whiten = whiten / (centred @ whiten).square().mean().sqrt()
    return centre.float(), whiten.float()


def _freeze(model: AptDetector) -> None:
    """Keep stem and layer 1 of a loaded backbone as they are, and all its statistics."""
    visual = model.visual
    frozen = [visual.conv1, visual.conv2, visual.conv3, visual.layer1]
    for module in [*frozen, *batch_norms(visual)]:
        for parameter in module.parameters():
            parameter.requires_grad = False


def _schedule(step: int, total: int) -> float:
    """Warm up over the first twentieth, then fall along a half cosine to a hundredth."""
    warm = max(1, total // 20)
    if step < warm:
        return (step + 1) / warm
    done = (step - warm) / max(1, total - warm)
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
