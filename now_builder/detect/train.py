"""Train the detector on a crawl's own train pool: the browser's elements are the labels."""

import math
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor
from torchvision.ops import roi_align
from tqdm import tqdm

from now_builder.detect.apt import PAPER, TINY, AptDetector, ModelConfig
from now_builder.detect.clip_rn import batch_norms, load_clip
from now_builder.detect.data import (
    Screenshots,
    TrainPage,
    TrainPages,
    read_train_pages,
    to_targets,
)
from now_builder.detect.extract import AptExtractor
from now_builder.detect.labels import CLASSES, NAMES
from now_builder.detect.losses import (
    Appearance,
    Sample,
    Targets,
    region_loss,
    rpn_loss,
    sample_regions,
)
from now_builder.detect.measure import Recall, measure_recall
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.text import TextEncoder, embed_prompts, make_text_encoder
from now_builder.detect.text_boxes import linked_embeddings
from now_builder.detect.views import jitter, recolour
from now_builder.detect.weights import (
    DetectorCard,
    card_path,
    choose_device,
    read_card,
    write_weights,
)
from now_builder.errors import ConfigError, FormatError, TrainingError
from now_builder.formats.atomic import replacing

_HUB_TEXT_ENCODER = "bert-base-multilingual-cased"


@dataclass(frozen=True, slots=True)
class TrainSummary:
    """What a training did.

    Attributes:
        steps: In all, those of earlier runs included; ``seconds``: of this run.
        recall: On the held-out part of the train pool; ``None`` where nothing is held out.
    """

    weights: Path
    pages: int
    steps: int
    seconds: float
    recall: Recall | None

    def __str__(self) -> str:
        """One line for the terminal."""
        said = "no pages held out" if self.recall is None else str(self.recall)
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
        batch: Pages a step, each seen in two views.
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
    """Train a detector on the train pool of a crawl and write its weights.

    Killed at any moment and run again it goes on from its last checkpoint, with the same result
    (bit for bit on the CPU with the same number of threads). Weights that are complete stay as they
    are, also when pages were crawled since: features of two detectors do not mix.

    Args:
        captures: The captures folder.
        weights: The safetensors file to write; its JSON appears beside it.
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
    if weights.exists():
        return _finished(weights, settings)
    pages = read_train_pages(captures, settings.held_out)
    started = time.perf_counter()
    _say(
        f"train-detector: {len(pages.learn)} pages to learn from, {len(pages.held_out)} held out, "
        f"{pages.walls} behind a wall"
    )
    training = Training(weights, settings, pages)
    training.run()
    recall = training.finish()
    checkpoint_path(weights).unlink(missing_ok=True)
    seconds = time.perf_counter() - started
    return TrainSummary(weights, len(pages.learn), training.recipe.steps, seconds, recall)


def _finished(weights: Path, settings: TrainDetectorSettings) -> TrainSummary:
    """Answer for weights that are there; pages crawled since then do not matter."""
    card = read_card(weights)
    made = {name: card.settings.get(name) for name in _identity(settings)}
    if made != _identity(settings):
        changed = [name for name, value in _identity(settings).items() if made[name] != value]
        raise ConfigError(
            f"{weights}: trained with other {', '.join(changed)}; --force starts over"
        )
    measured = Recall(**card.measured) if card.measured else None
    learned = card.trained_on
    return TrainSummary(weights, int(learned["pages"]), int(learned["steps"]), 0.0, measured)


def _identity(settings: TrainDetectorSettings) -> dict[str, Any]:
    """The settings that change the result."""
    without = {"device", "threads", "checkpoint_every", "cache_mib", "autocast"}
    return settings.model_dump(mode="json", exclude=without)


def checkpoint_path(weights: Path) -> Path:
    """Where an unfinished training waits."""
    return weights.with_name(f".{weights.name}.checkpoint")


def resolve(settings: TrainDetectorSettings, pages: int) -> Recipe:
    """Fill in what the settings leave to the size."""
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
        steps=settings.steps or max(fewest, epochs * pages // batch),
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
        self.recipe = resolve(settings, len(pages.learn))
        self.encoder: TextEncoder = make_text_encoder(self.recipe.text_encoder, self.device)
        size = self.recipe.model.input_size
        self.screenshots = Screenshots(size, settings.cache_mib, threads)
        self.model, self.appearance = self._build()
        self.full = Screenshots(self.model.screen, 0, threads)
        self.optimizer = torch.optim.AdamW(self._groups(), weight_decay=0.01)
        self.step = 0

    def _build(self) -> tuple[AptDetector, Appearance]:
        prompts = embed_prompts(self.encoder, CLASSES)
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

    def _take_step(self) -> dict[str, float]:
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + self.step)
        pages = self._draw()
        rate = self.recipe.lr * _schedule(self.step, self.recipe.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["factor"]
        autocast = self.settings.autocast and self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=autocast):
            losses = self.losses(pages, generator)
        total = losses.total
        if not bool(torch.isfinite(total)):
            raise TrainingError(f"step {self.step}: the loss is not finite; try a smaller --lr")
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, 5.0)
        self.optimizer.step()
        return {name: float(value.detach()) for name, value in losses.parts.items()}

    def _draw(self) -> list[TrainPage]:
        """Take the step's pages from a walk through all pages that is shuffled anew each epoch."""
        count, batch = len(self.pages.learn), self.recipe.batch
        chosen = []
        for place in range(self.step * batch, (self.step + 1) * batch):
            epoch, offset = divmod(place, count)
            seed = self.settings.seed * 7_919 + epoch
            order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
            chosen.append(self.pages.learn[int(order[offset])])
        return chosen

    def losses(self, pages: Sequence[TrainPage], generator: torch.Generator) -> Losses:
        """Work out the losses of a batch, each page in two views.

        Args:
            pages: The batch.
            generator: The source of randomness.
        """
        targets = [self._targets(page, generator) for page in pages]
        pixels = self.screenshots.read(pages).to(self.device).float() / 255
        views = torch.cat([recolour(pixels, generator), recolour(pixels, generator)])
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
        regions, background = self.recipe.regions, len(CLASSES)
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
            "optimizer": self.optimizer.state_dict(),
        }
        with replacing(checkpoint_path(self.weights)) as temporary:
            torch.save(state, temporary)

    def _resume(self) -> None:
        path = checkpoint_path(self.weights)
        if not path.exists():
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
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        _say(f"train-detector: goes on from step {self.step}")

    def finish(self) -> Recall | None:
        """Fix the scale of the stored features, measure on held-out pages, write the weights."""
        self.model.eval()
        self._fix_scale()
        extractor = AptExtractor(self.model, self.encoder, {})
        recall = measure_recall(extractor, self.pages.held_out, self.full)
        card = DetectorCard(
            model=self.recipe.model,
            classes=list(NAMES),
            prompts=self.model.prompts.tolist(),
            text_encoder=self.encoder.name,
            weights_sha256="",
            settings=_identity(self.settings),
            trained_on={
                "pages": len(self.pages.learn),
                "sites": len({page.site for page in self.pages.learn}),
                "steps": self.recipe.steps,
                "fingerprint": self.pages.fingerprint,
            },
            measured=recall.figures if recall else {},
        )
        state = {name: value.cpu() for name, value in self.model.state_dict().items()}
        write_weights(self.weights, state, card)
        return recall

    @torch.inference_mode()
    def _fix_scale(self) -> None:
        """Fit what is fixed in the stored features on about 200 pages that were learned from."""
        pages = self.pages.learn[:: max(1, len(self.pages.learn) // 200)]
        if self.model.look is not None:
            self.model.look.fit_patterns(
                [self.full.read([page])[0] for page in pages], self.settings.seed
            )
        described = [torch.cat(kind) for kind in zip(*self._described(pages), strict=True)]
        if self.model.look is None:
            centre, whiten = fit_scale(described[0].double())
            self.model.centre.copy_(centre)
            self.model.whiten.copy_(whiten)
            return
        self.model.look.fit_blocks(described)

    def _described(self, pages: Sequence[TrainPage]) -> Iterator[tuple[Tensor, ...]]:
        """Give the embeddings of the best proposals, and what else is stored of them."""
        look = self.model.look
        for start in range(0, len(pages), 8):
            shots = self.full.read(pages[start : start + 8]).to(self.device)
            maps = self.model.maps(shots)
            boxes = [page.boxes[:36] for page in self.model.propose(maps)]
            embedded = self.model.projection(self.model.pool(maps, boxes).float())
            yield (embedded,) if look is None else look.describe(embedded, shots, boxes)


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
