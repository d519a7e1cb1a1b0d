"""What a training would take on a GPU: hours and memory by phase, counted without one."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stderr
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import numpy as np
import torch
from jaxtyping import Int

from now_builder.errors import ConfigError
from now_builder.formats.features import REGIONS
from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.analysis.fake_device import FAKE, FakeDevice, fake_gpu
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.data.readers import check_layout, make_reader
from pc2_baseline.methods import make_method
from pc2_baseline.methods.networks import encoder_inputs
from pc2_baseline.modules.retrieval import BLOCK
from pc2_baseline.training.method import Sizes

_BATCHES = 4
"""Batches of an epoch that is counted, half of whose pairs are clean."""
_PRODUCTS, _COPIES = 0.7, 0.8
"""Shares of a data sheet's rates that large products and copies are taken to reach."""
_LAUNCH_S = 45e-6
"""What each operation takes beside that.

By it, ten of twelve steps of PC² that were timed on an H100 (docs/gpu.md) come out within a fifth,
and two in TF32 a quarter and a third too short.
"""
_FROM = ("noisy_from_epoch", "ambiguous_from_epoch", "hard_from_epoch")
_GIB = 2**30

Work = Mapping[tuple[torch.dtype | None, int, int], float | int]
"""How often an operation ran: see :class:`FakeDevice`."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's data sheet: dense TFLOP/s by precision, TB/s and GiB of memory."""

    fp32: float
    tf32: float
    bf16: float
    memory_tb_s: float
    memory_gib: float

    def seconds(self, work: Work, *, tf32: bool) -> float:
        """Return the time of some work, each operation by what it is short of."""
        rates = {torch.float32: self.tf32 if tf32 else self.fp32, torch.bfloat16: self.bf16}
        found = 0.0
        for (kind, flops, moved), times in work.items():
            rate = rates.get(kind or torch.float32, self.fp32 / 2)
            copying = moved / (_COPIES * self.memory_tb_s * 1e12)
            computing = flops / (_PRODUCTS * rate * 1e12)
            found += times * (max(computing, copying) + _LAUNCH_S)
        return found


GPUS = {
    "a100": Gpu(19.5, 156.0, 312.0, 2.0, 80.0),
    "h100": Gpu(67.0, 495.0, 989.0, 3.35, 80.0),
    "h200": Gpu(67.0, 495.0, 989.0, 4.8, 141.0),
    "l40s": Gpu(91.6, 183.0, 362.0, 0.864, 48.0),
}


@dataclass(frozen=True, slots=True)
class Data:
    """Sizes of what is trained on.

    Attributes:
        pairs: Training pairs, each with its image.
        dev: Pairs to select by.
        lengths: Tokens of some captions.
        features: Width of a region.
        vocabulary: Tokens that there are.
    """

    pairs: int
    dev: int
    lengths: Int[np.ndarray, " _"]
    features: int = 768
    vocabulary: int = 30_000

    @classmethod
    def like_now(cls, pairs: int, dev: int = 1000) -> "Data":
        """Return captions with lengths as NoW's: skewed, 54 tokens in the mean, 412 at most."""
        drawn = np.random.default_rng(0).gamma(3.0, 18.0, 4096)
        return cls(pairs, dev, np.clip(np.round(drawn), 3, 412).astype(int) + 2)

    @classmethod
    def of_release(cls, release: Path, settings: Settings) -> "Data":
        """Read the sizes of a release.

        Raises:
            FormatError: If it cannot be read.
        """
        check_layout(release, settings.data)
        reader = make_reader(release, settings.data, settings.model)
        with ExitStack() as stack:
            _, regions, captions = reader.read("train", stack)
            dev = len(reader.read("dev", stack)[2])
            lengths = np.array([len(caption) for caption in captions])
            width = int(regions.shape[2])
        return cls(len(lengths), dev, lengths, width, len(reader.vocabulary.word2idx))


@dataclass(frozen=True, slots=True)
class Phase:
    """Part of a training.

    Attributes:
        name: warm-up, clean, noisy, division or dev.
        epochs: Epochs that have it.
        tflop: Operations of the products of a step, of a peer's batch in the division, or of a
            peer's block of 128 by 128 pairs in dev; ``seconds``: their time.
        hours: All of it in a training; ``pflop``: its operations.
        peak_gib: Most memory beside features and weights.
    """

    name: str
    epochs: int
    tflop: float
    seconds: float
    hours: float
    pflop: float
    peak_gib: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A training that is planned.

    Attributes:
        held_gib: Memory of features and of all networks' weights.
    """

    gpu: str
    pairs: int
    clean_share: float
    phases: list[Phase]
    held_gib: float

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it, with its sums."""
        sums = {name: getattr(self, name) for name in ("hours", "pflop", "memory_gib")}
        return {**asdict(self), **sums}

    @property
    def hours(self) -> float:
        """Time of all phases."""
        return sum(phase.hours for phase in self.phases)

    @property
    def pflop(self) -> float:
        """Operations of all products."""
        return sum(phase.pflop for phase in self.phases)

    @property
    def memory_gib(self) -> float:
        """Memory that the training takes in all."""
        return self.held_gib + max(phase.peak_gib for phase in self.phases)

    def __str__(self) -> str:
        lines = [f"{'phase':10}{'epochs':>7}{'TFLOP':>10}{'seconds':>10}{'hours':>8}{'GiB':>7}"]
        lines += [
            f"{each.name:10}{each.epochs:7}{each.tflop:10.4g}{each.seconds:10.3g}"
            f"{each.hours:8.2f}{each.peak_gib:7.1f}"
            for each in self.phases
        ]
        room = GPUS[self.gpu].memory_gib
        fits = "" if self.memory_gib <= room else ": more than it has"
        hours = f"{self.hours:.1f} h and {self.pflop:,.0f} PFLOP on one {self.gpu}: "
        memory = f"{self.memory_gib:.1f} of {room:.0f} GiB, {self.held_gib:.1f} of them "
        assumed = f"assumed: products at {_PRODUCTS:.0%} of the data sheet's rate, memory at "
        each_us = 1e6 * _LAUNCH_S
        lines += [
            hours + f"{self.pairs:,} pairs, {self.clean_share:.0%} of them clean",
            memory + f"features and weights{fits}",
            assumed + f"{_COPIES:.0%}, {each_us:.0f} µs an operation; not counted: mixtures",
        ]
        return "\n".join(lines)


def plan(settings: Settings, data: Data, gpu: str, clean_share: float) -> Plan:
    """Count a step of each phase on a GPU that is not there, and project a whole training.

    Raises:
        ConfigError: If the GPU is not known, or the method does not train on one.
    """
    if gpu not in GPUS:
        raise ConfigError(f"--gpu {gpu}: not known, expected one of {', '.join(GPUS)}")
    bf16 = settings.model.similarity == "dual_encoder" and settings.model.precision == "bf16"
    if bf16:  # autocast knows no GPU that is not there: products alone are counted as bf16
        model = settings.model.model_copy(update={"precision": "fp32"})
        settings = settings.model_copy(update={"model": model})
    with (
        redirect_stderr(StringIO()),  # the bars of a training that is none
        catch_warnings(action="ignore"),
        fake_gpu() as device,
    ):
        rehearsal = Rehearsal(settings, data, device)
        counted = [*rehearsal.epochs(clean_share), *rehearsal.passes()]
    speed, tf32 = GPUS[gpu], settings.train.tf32
    phases = []
    for each in counted:
        work = {
            (torch.bfloat16 if bf16 and kind else kind, products, moved): times
            for (kind, products, moved), times in each.work.items()
        }
        seconds = speed.seconds(work, tf32=tf32)
        hours, flops = seconds * each.times / 3600, _flops(each.work)
        pflop = flops * each.times / 1e15
        phases.append(
            Phase(each.name, each.epochs, flops / 1e12, seconds, hours, pflop, each.peak / _GIB)
        )
    held = (data.pairs * rehearsal.image.nbytes + rehearsal.weights) / _GIB
    return Plan(gpu, data.pairs, clean_share, phases, held)


@dataclass(frozen=True, slots=True)
class Counted:
    """The mean work of a step, a batch or a block, and how often a training has it."""

    name: str
    epochs: int
    work: Work
    times: float
    peak: int


class Rehearsal:
    """A few batches of each kind of epoch, on a GPU that is not there.

    Attributes:
        weights: Bytes of all networks' weights.
        image: What an image is held as.
    """

    def __init__(self, settings: Settings, data: Data, device: FakeDevice) -> None:
        self.image = torch.empty(1, REGIONS, data.features, device=FAKE)
        if settings.model.similarity == "dual_encoder":
            inputs = encoder_inputs(settings.model.encoder)
            self.image = torch.empty(1, 1, inputs.values, device=FAKE, dtype=torch.uint8)
            least = inputs.text_limit if inputs.full_length else 1
            data = replace(data, lengths=np.clip(data.lengths, least, inputs.text_limit))
        self.settings, self.data, self.device = settings, data, device
        self.pairs = _BATCHES * settings.train.batch
        sizes = Sizes(self.pairs, data.features, data.vocabulary)
        self.method: Any = make_method(_shortened(settings), sizes, FAKE)
        self.learners = getattr(self.method, "learners", None) or [
            getattr(self.method, "learner", None)
        ]
        if self.learners == [None]:
            name = settings.method.name
            raise ConfigError(f"method {name}: it trains on the CPU, whatever the GPU")
        parameters = [value for own in self.learners for value in own.net.parameters()]
        self.weights = sum(value.nbytes for value in parameters)
        self._division: tuple[Work, int] = Counter(), 0

    def epochs(self, clean_share: float) -> Iterator[Counted]:
        """Count the steps of each kind of epoch.

        Of those after the warm-up a method that takes fewer steps learns from clean pairs alone.
        """
        pairs, first = self._draw(self.pairs), 0
        for number, (name, epochs) in enumerate(_kinds(self.settings)):
            if not epochs:
                continue
            self.device.every_cell = not number  # at first all negatives break the margin
            steps = self._steps(pairs, number)
            own = max(1, len(steps) // len(self.learners) - 1)
            steady = [work for work, _ in steps[-own:]]
            first = first or len(steps)
            share = 2 * clean_share if len(steps) < first else 1.0
            times = epochs * len(steps) * share * self.data.pairs / self.pairs
            peak = max(peak for _, peak in steps)
            yield Counted(name, epochs, _mean(steady), times, peak)

    def passes(self) -> Iterator[Counted]:
        """Count the division of all pairs, and the scoring of dev."""
        train, device = self.settings.train, self.device
        epochs = sum(train.judges(epoch) for epoch in range(train.total_epochs))
        work, peak = self._division
        if _flops(work):
            batches = _BATCHES * len(self.learners)
            times = epochs * batches * self.data.pairs / self.pairs
            yield Counted("division", epochs, _mean([work], batches), times, peak)
        device.restart()
        self.method.similarity(self._draw(2 * BLOCK))
        blocks = 4 * len(self.learners)
        times = epochs * blocks * (self.data.dev / (2 * BLOCK)) ** 2
        yield Counted("dev", epochs, _mean([device.work], blocks), times, device.peak)

    def _steps(self, pairs: PairSet, epoch: int) -> list[tuple[Work, int]]:
        """Return work and peak of each step of an epoch; the rest of it is the division's."""
        device = self.device
        found: list[tuple[Work, int]] = []

        def note(*_: object) -> None:
            found.append((Counter(device.work), device.peak))
            device.restart()

        hooks = [own.optimiser.register_step_post_hook(note) for own in self.learners]
        device.restart()
        self.method.fit_epoch(pairs, epoch)
        for hook in hooks:
            hook.remove()
        self._division = Counter(device.work), device.peak
        return found

    def _draw(self, count: int) -> PairSet:
        draw = np.random.default_rng(1)
        lengths = draw.choice(self.data.lengths, count)
        captions = [draw.integers(4, self.data.vocabulary, length) for length in lengths]
        if self.settings.reads:
            captions = list(draw.normal(size=(count, WIDTH)).astype(np.float32))
        regions = torch.empty_like(self.image.expand(count, -1, -1))
        own = np.arange(count)
        return PairSet(regions, captions, "counted", FAKE, own, own >= 0)


def _kinds(settings: Settings) -> list[tuple[str, int]]:
    """Return the kinds of epoch, in their order, and how many a training has of each."""
    train, noisy_from = settings.train, getattr(settings.method, "noisy_from_epoch", None)
    if noisy_from is None:
        return [("warm-up", train.warmup_epochs), ("after it", train.epochs)]
    clean = min(noisy_from, train.epochs)
    return [("warm-up", train.warmup_epochs), ("clean", clean), ("noisy", train.epochs - clean)]


def _shortened(settings: Settings) -> Settings:
    """Return settings whose first epochs are one of each kind."""
    own = {name: 1 for name in _FROM if hasattr(settings.method, name)} | {"mean_epochs": 0}
    method = settings.method.model_copy(update={**own, "schedules": ()})
    train = settings.train.model_copy(update={"warmup_epochs": 1, "epochs": 2})
    return settings.model_copy(update={"method": method, "train": train})


def _mean(works: Sequence[Work], parts: int = 1) -> Work:
    """Return the mean of some work, or of parts of it: how often each operation ran."""
    found: dict[tuple[torch.dtype | None, int, int], float] = {}
    for work in works:
        for each, times in work.items():
            found[each] = found.get(each, 0.0) + times / len(works) / parts
    return found


def _flops(work: Work) -> float:
    return float(sum(flops * times for (_, flops, _), times in work.items()))
