"""Train the word reader of a detector on drawn words; the command `train-words`."""

import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from now_builder.detect.model.weights import (
    DetectorCard,
    card_path,
    find_weights,
    load_detector,
    read_card,
    write_weights,
)
from now_builder.detect.model.word_reader import WordReader
from now_builder.detect.settings import TrainWordsSettings
from now_builder.detect.training.checkpoints import (
    checkpoint_path,
    load_checkpoint,
    report_resumed,
    save_checkpoint,
)
from now_builder.detect.training.words.batch import Batch, make_batch
from now_builder.detect.training.words.drawing import Canvas, Writer
from now_builder.detect.training.words.fonts import Font, fonts_by_language
from now_builder.detect.training.words.lexicon import Lexicon, describe_sources, read_lexicon
from now_builder.errors import ConfigError, TrainingError
from now_builder.formats.word_vectors import Unit, is_unspaced, letter_vector, unit_vector

BLOCK = 512
"""Canvases that are drawn at once."""
PASSES = 4
"""Times that a block is learned from, its pixels varied anew."""
BATCH = 16
LETTERS = 72
"""Letters of a canvas that are read at most."""
_WARM = 200
_GATE = 2.0
_COSINE = 2.0
_HELD_OUT = 10**9
"""Seeds from here on draw the canvases that are measured on."""
_MEASURED = 192


@dataclass(frozen=True, slots=True)
class WordsSummary:
    """What a training of the reader came to, on drawn words that it has not seen.

    Attributes:
        figures: Mean cosine to the right vector, and share of letters whose nearest letter is the
            right one, in all and by script; recall and precision of where letters are.
    """

    weights: Path
    steps: int
    figures: dict[str, float]

    def __str__(self) -> str:
        """Return one line for the terminal."""
        told = ", ".join(f"{name} {value:.3f}" for name, value in self.figures.items())
        return f"{self.weights}: {self.steps} steps; {told}"


def train_words(
    weights: Path,
    settings: TrainWordsSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> WordsSummary:
    """Teach the detector of some weights to read, and write it with its reader.

    Lines of random words in the machine's fonts are drawn, and the reader learns where letters are
    and their vectors. Killed at any moment and run again it goes on from its last checkpoint. Of
    the detector nothing else changes.

    Args:
        weights: The safetensors file to write, with its JSON.
        settings: What to begin with, and for how long.
        force: Throw away what is there and start over.

    Raises:
        ConfigError: If weights or a checkpoint of other settings are there, or a package or fonts
            are missing, or the detector describes no pixels.
        TrainingError: If a loss is not finite.
    """
    if weights.suffix != ".safetensors":
        raise ConfigError(f"{weights}: weights must be named *.safetensors")
    if force:
        for path in (weights, card_path(weights), checkpoint_path(weights)):
            path.unlink(missing_ok=True)
    if weights.exists():
        return _summarize(weights, settings)
    start = find_weights(settings.from_)
    if not read_card(start).model.patches:
        raise ConfigError(f"{start}: the size {read_card(start).model.size} has no word reader")
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    lexicon = read_lexicon()
    fonts = fonts_by_language(lexicon, settings.fonts)
    training = Training(weights, settings, lexicon, fonts)
    training.run()
    return _finish(training, start)


class Training:
    """Steps and checkpoints.

    Attributes:
        step: Number of steps taken.
    """

    def __init__(
        self,
        weights: Path,
        settings: TrainWordsSettings,
        lexicon: Lexicon,
        fonts: Mapping[str, list[Font]],
    ) -> None:
        self.weights, self.settings, self.lexicon, self.fonts = weights, settings, lexicon, fonts
        torch.manual_seed(settings.seed)
        self.reader = WordReader().to(memory_format=torch.channels_last)
        self.scale = torch.nn.Parameter(torch.tensor(2.7))
        named = [*self.reader.named_parameters(), ("scale", self.scale)]
        groups = [
            {"params": [each for _, each in named if each.ndim > 1], "weight_decay": 0.02},
            {"params": [each for _, each in named if each.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.98))
        self.letters, self.table = _letter_table(lexicon)
        self.step = 0

    def run(self) -> None:
        """Take the steps that are left."""
        self._resume()
        total, every = self.settings.steps, max(1, self.settings.steps // 20)
        context = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(1, context, _begin, (self.lexicon, self.fonts)) as pool,
            tqdm(
                total=total, initial=self.step, desc="train-words", unit="step", disable=None
            ) as bar,
        ):
            for canvases in self._batches(pool):
                losses = self._take_step(canvases)
                bar.update()
                told = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
                bar.set_postfix_str(told)
                if self.step % every == 0:
                    bar.write(f"train-words: step {self.step}/{total}: {told}", file=sys.stderr)
                if self.step % self.settings.checkpoint_every == 0 and self.step < total:
                    self._save()

    def _batches(self, pool: Executor) -> Iterator[list[Canvas]]:
        """Yield the canvases of each step that is left; blocks are drawn ahead of need."""
        each = BLOCK // BATCH
        waiting: dict[int, Future[list[Canvas]]] = {}
        block, canvases = -1, []
        while self.step < self.settings.steps:
            number, place = divmod(self.step, each)
            if number // PASSES != block:
                block = number // PASSES
                for later in (block, block + 1):
                    if later not in waiting:
                        first = (self.settings.seed << 32) + later * BLOCK
                        waiting[later] = pool.submit(_draw, first, BLOCK)
                canvases = waiting.pop(block).result()
            order = np.random.default_rng([self.settings.seed, 1, number]).permutation(BLOCK)
            yield [canvases[i] for i in order[place * BATCH : (place + 1) * BATCH]]

    def _take_step(self, canvases: list[Canvas]) -> dict[str, float]:
        draws = np.random.default_rng([self.settings.seed, 2, self.step])
        batch = make_batch(canvases, draws, LETTERS, varied=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.reader.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.settings.precision == "bf16"):
            maps, logits = self.reader.maps(batch.pixels)
            said = self.reader.read(maps, batch.cells)
        losses = self._losses(batch, logits.float(), said.float())
        total = torch.stack(list(losses.values())).sum()
        if not bool(total.isfinite()):
            raise TrainingError(f"step {self.step}: the loss is {float(total)}")
        self.optimizer.zero_grad()
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(self.reader.parameters(), 5.0)
        self.optimizer.step()
        self.step += 1
        return {name: float(value.detach()) for name, value in losses.items()}

    def _losses(
        self,
        batch: Batch,
        logits: Float[Tensor, "n rows columns"],
        said: Float[Tensor, "cells 256"],
    ) -> dict[str, Float[Tensor, ""]]:
        """Compute where letters are, their vectors among those of the batch, and which they are."""
        known = batch.shown >= 0
        gate = F.binary_cross_entropy_with_logits(logits[known], batch.shown[known])
        units = sorted(set(batch.units))
        number = {unit: row for row, unit in enumerate(units)}
        right = torch.tensor([number[unit] for unit in batch.units])
        vectors = torch.from_numpy(np.stack([unit_vector(unit) for unit in units]))
        scale = self.scale.exp().clamp(max=30)
        cosines = said @ vectors.T
        letters = torch.tensor([self.letters.get(unit[1], -1) for unit in batch.units])
        which = F.cross_entropy(scale * said @ self.table.T, letters, ignore_index=-1)
        return {
            "where": _GATE * gate,
            "among": F.cross_entropy(scale * cosines, right),
            "which": which,
            "cosine": _COSINE * (1 - cosines.gather(1, right[:, None])).mean(),
        }

    def _rate(self) -> float:
        """Return the learning rate: it warms up, then falls along a half cosine."""
        if self.step < _WARM:
            return self.settings.lr * (self.step + 1) / _WARM
        done = (self.step - _WARM) / max(1, self.settings.steps - _WARM)
        return self.settings.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))

    @torch.inference_mode()
    def measure(self) -> dict[str, float]:
        """Return figures on canvases that were not learned from."""
        self.reader.eval()
        writer = Writer(self.lexicon, self.fonts)
        draws = np.random.default_rng(0)
        right: Counter[str] = Counter()
        seen: Counter[str] = Counter()
        cosines, hits, marked, there = 0.0, 0, 0, 0
        for first in range(0, _MEASURED, BATCH):
            drawn = [writer.draw(_HELD_OUT + first + more) for more in range(BATCH)]
            batch = make_batch(drawn, draws, LETTERS, varied=False)
            maps, logits = self.reader.maps(batch.pixels)
            said = self.reader.read(maps, batch.cells)
            goals = torch.from_numpy(np.stack([unit_vector(unit) for unit in batch.units]))
            cosines += float((said * goals).sum())
            nearest = (said @ self.table.T).argmax(1).tolist()
            for unit, found in zip(batch.units, nearest, strict=True):
                for script in ("all", _script(unit)):
                    seen[script] += 1
                    right[script] += self.letters.get(unit[1]) == found
            positive, truth = logits > 0, batch.shown > 0
            hits += int((positive & truth).sum())
            there += int(truth.sum())
            marked += int((positive & (batch.shown >= 0)).sum())
        return {
            "cosine": cosines / seen["all"],
            **{f"right letter, {name}": right[name] / seen[name] for name in sorted(seen)},
            "where: recall": hits / max(1, there),
            "where: precision": hits / max(1, marked),
        }

    def _save(self) -> None:
        state = {
            "step": self.step,
            "reader": self.reader.state_dict(),
            "scale": self.scale.detach(),
            "optimizer": self.optimizer.state_dict(),
        }
        save_checkpoint(self.weights, state, _identity(self.settings))

    def _resume(self) -> None:
        state = load_checkpoint(self.weights, _identity(self.settings))
        if state is None:
            return
        self.reader.load_state_dict(state["reader"])
        self.scale.data.copy_(state["scale"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])
        report_resumed("train-words", self.step)


_writer: Writer


def _begin(lexicon: Lexicon, fonts: Mapping[str, list[Font]]) -> None:
    """Prepare a process that draws."""
    global _writer  # noqa: PLW0603 - one a process, made once
    _writer = Writer(lexicon, fonts)


def _draw(first: int, count: int) -> list[Canvas]:
    return [_writer.draw(first + more) for more in range(count)]


def _letter_table(lexicon: Lexicon) -> tuple[dict[str, int], Float[Tensor, "letters 256"]]:
    """Number the letters of a lexicon, without their case, and return their vectors."""
    folded = {
        letter for words, _ in lexicon.values() for word in words for letter in word.casefold()
    }
    letters = sorted(letter for letter in folded if letter.isalnum())
    vectors = torch.from_numpy(np.stack([letter_vector(letter) for letter in letters]))
    return {letter: number for number, letter in enumerate(letters)}, vectors


_SCRIPTS = (("latin", 0x00, 0x24F), ("cyrillic", 0x400, 0x52F), ("hangul", 0xAC00, 0xD7A3))


def _script(unit: Unit) -> str:
    letter = unit[1]
    if is_unspaced(letter):
        return "han" if letter >= "㐀" else "kana"
    code = ord(letter[0])
    named = (name for name, first, last in _SCRIPTS if first <= code <= last)
    return next(named, "other")


def _identity(settings: TrainWordsSettings) -> dict[str, Any]:
    """Return the settings that change the outcome."""
    kept = settings.model_dump(mode="json", exclude={"threads", "checkpoint_every", "from_"})
    start = read_card(find_weights(settings.from_)).weights_sha256
    return {**kept, "from_": start, "fonts": [folder.name for folder in settings.fonts]}


def _finish(training: Training, start: Path) -> WordsSummary:
    """Put the reader into the detector, measure it as it is stored, and write both."""
    settings = training.settings
    detector, card = load_detector(start, torch.device("cpu"))
    reader = training.reader.eval()
    if settings.half:
        reader.half().float()
    figures = training.measure()
    if detector.patches is None:
        raise ConfigError(f"{start}: has no word reader")
    detector.patches = detector.patches.with_words(reader)
    stored = detector.half() if settings.half else detector
    about = {
        "steps": settings.steps,
        "settings": _identity(settings),
        "words": describe_sources(),
        "languages": len(training.fonts),
        "fonts": len({font for fonts in training.fonts.values() for font in fonts}),
        "measured": figures,
    }
    model = card.model.model_copy(update={"words": True})
    new: DetectorCard = card.model_copy(update={"model": model, "words": about})
    write_weights(training.weights, dict(stored.state_dict()), new)
    checkpoint_path(training.weights).unlink(missing_ok=True)
    return WordsSummary(training.weights, settings.steps, figures)


def _summarize(weights: Path, settings: TrainWordsSettings) -> WordsSummary:
    """Summarize weights that are complete."""
    words, wanted = read_card(weights).words, _identity(settings)
    known = words.get("settings", {})
    changed = [name for name, value in wanted.items() if known.get(name) != value]
    if changed:
        raise ConfigError(
            f"{weights}: trained with other {', '.join(changed)}; --force starts over"
        )
    return WordsSummary(weights, int(words["steps"]), dict(words["measured"]))
