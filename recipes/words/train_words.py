"""Train the word reader of a detector on drawn words; see README.md in this folder."""

import argparse
import math
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from now_builder.detect.model.patch_features import PatchFeatures
from now_builder.detect.model.weights import find_weights, load_detector, read_card, write_weights
from now_builder.detect.model.word_reader import WordReader
from now_builder.detect.training.learner import make_average
from now_builder.detect.training.run import checkpoint_path, load_checkpoint, save_checkpoint
from now_builder.errors import ConfigError, NowError, TrainingError
from now_builder.formats.word_vectors import Unit, is_unspaced, letter_vector, unit_vector
from now_builder.program.command_line import set_up_logging
from recipes.words.drawing import Batch, Canvas, Writer, make_batch
from recipes.words.lexicon import SOURCES, Font, Lexicon, fonts_by_language, read_lexicon

BLOCK = 512
"""Number of canvases drawn at once."""
PASSES = 4
"""Number of passes over a block, each with other random changes of the pixels."""
BATCH = 16
LETTERS = 72
"""Maximum number of letters to read of a canvas."""
CHECKPOINT_EVERY = 50
MEASURED = 192
"""Number of canvases for the figures."""
_WARM = 200
_AVERAGED = 0.998
"""Decay of the moving average of the weights."""
_GATE = 2.0
_COSINE = 2.0
_HELD_OUT = 10**9
"""First seed of the canvases for the figures."""
_SCRIPTS = (("latin", 0x00, 0x24F), ("cyrillic", 0x400, 0x52F), ("hangul", 0xAC00, 0xD7A3))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("weights", type=Path, help="File to write (.safetensors), with a .json next to it.")
    add("--from", dest="start", type=Path, help="Detector of the size tiny; default: tiny-web.")
    add(
        "--steps",
        type=int,
        default=12_000,
        help="Number of steps, each with 16 canvases of 320 x 96 px.",
    )
    add("--lr", type=float, default=2e-3, help="Maximum learning rate.")
    add("--seed", type=int, default=0, help="Seed of the initial weights and of every draw.")
    add("--fonts", type=Path, nargs="*", default=[], help="Folders of additional fonts.")
    add("--threads", type=int, default=os.cpu_count(), help="Number of CPU threads.")
    add("--precision", choices=("fp32", "bf16"), default="fp32", help="Precision of the network.")
    add("--half", action="store_true", help="Write and measure the weights as float16.")
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> dict[str, float]:
    """Train the word reader of a detector, and write the detector with the averaged weights.

    An existing reader is trained further; an interrupted training resumes from its checkpoint.

    Returns:
        Figures on unseen drawn words.

    Raises:
        ConfigError: If the weights exist, a checkpoint has other options, a package or fonts are
            missing, or the detector has no patch features.
        TrainingError: If a loss is not finite.
    """
    if options.weights.suffix != ".safetensors" or options.weights.exists():
        raise ConfigError(f"{options.weights}: expected a new *.safetensors file")
    start = find_weights(options.start)
    if not read_card(start).model.patches:
        raise ConfigError(f"{start}: the size {read_card(start).model.size} has no word reader")
    torch.set_num_threads(options.threads)
    lexicon = read_lexicon()
    training = Training(options, lexicon, fonts_by_language(lexicon, options.fonts))
    patches = load_detector(start, torch.device("cpu"))[0].patches
    if patches is not None and patches.words is not None:
        training.start_from(patches.words)
    training.run()
    return training.finish(start)


class Training:
    """Training of the reader: steps, checkpoints, figures."""

    def __init__(
        self, options: argparse.Namespace, lexicon: Lexicon, fonts: Mapping[str, list[Font]]
    ) -> None:
        self.options, self.lexicon, self.fonts = options, lexicon, fonts
        torch.manual_seed(options.seed)
        self.reader = WordReader().to(memory_format=torch.channels_last)
        self.average = make_average(self.reader, _AVERAGED)
        self.scale = torch.nn.Parameter(torch.tensor(2.7))
        named = [*self.reader.named_parameters(), ("scale", self.scale)]
        groups = [
            {"params": [each for _, each in named if each.ndim > 1], "weight_decay": 0.02},
            {"params": [each for _, each in named if each.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.98))
        self.letters, self.table = letter_table(lexicon)
        self.step = 0

    def start_from(self, reader: WordReader) -> None:
        """Start from a trained reader."""
        self.reader.load_state_dict(reader.state_dict())
        self.average.module.load_state_dict(reader.state_dict())

    def run(self) -> None:
        """Take the remaining steps."""
        self._resume()
        total, every = self.options.steps, max(1, self.options.steps // 20)
        context = multiprocessing.get_context("spawn")
        with (
            ProcessPoolExecutor(1, context, _begin, (self.lexicon, self.fonts)) as pool,
            tqdm(total=total, initial=self.step, desc="train-words", disable=None) as bar,
        ):
            for canvases in self._batches(pool):
                losses = self.take_step(canvases)
                bar.update()
                if self.step % every == 0:
                    text = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
                    bar.write(f"train-words: step {self.step}/{total}: {text}", file=sys.stderr)
                if self.step % CHECKPOINT_EVERY == 0 and self.step < total:
                    self._save()

    def _batches(self, pool: Executor) -> Iterator[list[Canvas]]:
        """Yield the canvases of each remaining step; the next block is drawn meanwhile."""
        each = BLOCK // BATCH
        waiting: dict[int, Future[list[Canvas]]] = {}
        block, canvases = -1, []
        while self.step < self.options.steps:
            number, place = divmod(self.step, each)
            if number // PASSES != block:
                block = number // PASSES
                for later in (block, block + 1):
                    if later not in waiting:
                        first = (self.options.seed << 32) + later * BLOCK
                        waiting[later] = pool.submit(_draw, first, BLOCK)
                canvases = waiting.pop(block).result()
            order = np.random.default_rng([self.options.seed, 1, number]).permutation(BLOCK)
            yield [canvases[i] for i in order[place * BATCH : (place + 1) * BATCH]]

    def take_step(self, canvases: list[Canvas]) -> dict[str, float]:
        """Take one step; return its weighted losses."""
        draws = np.random.default_rng([self.options.seed, 2, self.step])
        batch = make_batch(canvases, draws, LETTERS, varied=True)
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate()
        self.reader.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.precision == "bf16"):
            maps, logits = self.reader.maps(batch.pixels)
            vectors = self.reader.read(maps, batch.cells)
        losses = self._losses(batch, logits.float(), vectors.float())
        total = torch.stack(list(losses.values())).sum()
        if not bool(total.isfinite()):
            raise TrainingError(f"step {self.step}: the loss is {float(total)}")
        self.optimizer.zero_grad()
        torch.autograd.backward(total)
        torch.nn.utils.clip_grad_norm_(self.reader.parameters(), 5.0)
        self.optimizer.step()
        self.average.update_parameters(self.reader)
        self.step += 1
        return {name: float(value.detach()) for name, value in losses.items()}

    def _losses(
        self,
        batch: Batch,
        logits: Float[Tensor, "n rows columns"],
        vectors: Float[Tensor, "cells 256"],
    ) -> dict[str, Float[Tensor, ""]]:
        """Return the losses: places of letters, their vectors in the batch, and which they are."""
        counts = batch.shown >= 0
        gate = F.binary_cross_entropy_with_logits(logits[counts], batch.shown[counts])
        units = sorted(set(batch.units))
        number = {unit: row for row, unit in enumerate(units)}
        right = torch.tensor([number[unit] for unit in batch.units])
        goals = torch.from_numpy(np.stack([unit_vector(unit) for unit in units]))
        scale = self.scale.exp().clamp(max=30)
        cosines = vectors @ goals.T
        letters = torch.tensor([self.letters.get(unit[1], -1) for unit in batch.units])
        which = F.cross_entropy(scale * vectors @ self.table.T, letters, ignore_index=-1)
        return {
            "where": _GATE * gate,
            "among": F.cross_entropy(scale * cosines, right),
            "which": which,
            "cosine": _COSINE * (1 - cosines.gather(1, right[:, None])).mean(),
        }

    def _rate(self) -> float:
        """Return the learning rate: a warm-up, then a half cosine."""
        if self.step < _WARM:
            return float(self.options.lr * (self.step + 1) / _WARM)
        done = (self.step - _WARM) / max(1, self.options.steps - _WARM)
        return float(self.options.lr * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done))))

    @torch.inference_mode()
    def measure(self) -> dict[str, float]:
        """Return mean cosine, shares of right letters by script, recall and precision of places."""
        self.reader.eval()
        writer = Writer(self.lexicon, self.fonts)
        draws = np.random.default_rng(0)
        right, seen = Counter[str](), Counter[str]()
        cosines, hits, marked, there = 0.0, 0, 0, 0
        for first in range(0, MEASURED, BATCH):
            drawn = [writer.draw(_HELD_OUT + first + more) for more in range(BATCH)]
            batch = make_batch(drawn, draws, LETTERS, varied=False)
            maps, logits = self.reader.maps(batch.pixels)
            vectors = self.reader.read(maps, batch.cells)
            goals = torch.from_numpy(np.stack([unit_vector(unit) for unit in batch.units]))
            cosines += float((vectors * goals).sum())
            nearest = (vectors @ self.table.T).argmax(1).tolist()
            for unit, letter in zip(batch.units, nearest, strict=True):
                for script in ("all", _script(unit)):
                    seen[script] += 1
                    right[script] += self.letters.get(unit[1]) == letter
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

    def _identity(self) -> dict[str, Any]:
        """Return the options that change the result."""
        kept = {name: getattr(self.options, name) for name in ("steps", "lr", "seed", "precision")}
        start = read_card(find_weights(self.options.start)).weights_sha256
        fonts = [folder.name for folder in self.options.fonts]
        return {**kept, "fonts": fonts, "half": self.options.half, "from_": start}

    def _save(self) -> None:
        state = {
            "step": self.step,
            "reader": self.reader.state_dict(),
            "average": self.average.state_dict(),
            "scale": self.scale.detach(),
            "optimizer": self.optimizer.state_dict(),
        }
        save_checkpoint(self.options.weights, state, self._identity())

    def _resume(self) -> None:
        state = load_checkpoint(self.options.weights, self._identity())
        if state is None:
            return
        self.reader.load_state_dict(state["reader"])
        self.average.load_state_dict(state["average"])
        self.scale.data.copy_(state["scale"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = int(state["step"])

    def finish(self, start: Path) -> dict[str, float]:
        """Put the averaged reader into the detector, measure it as stored, and write both."""
        detector, card = load_detector(start, torch.device("cpu"))
        reader = self.reader = cast(WordReader, self.average.module).eval()
        if self.options.half:
            reader.half().float()
        figures = self.measure()
        if detector.patches is not None:
            detector.patches = with_words(detector.patches, reader)
        stored = detector.half() if self.options.half else detector
        about = {
            "steps": self.options.steps,
            "settings": self._identity(),
            "words": {name: version(name) for name in SOURCES},
            "languages": len(self.fonts),
            "fonts": len({font for fonts in self.fonts.values() for font in fonts}),
            "measured": figures,
        }
        model = card.model.model_copy(update={"words": True})
        new = card.model_copy(update={"model": model, "words": about})
        write_weights(self.options.weights, dict(stored.state_dict()), new)
        checkpoint_path(self.options.weights).unlink(missing_ok=True)
        return figures


def with_words(features: PatchFeatures, reader: WordReader) -> PatchFeatures:
    """Return patch features with a reader; other parts lose their least directions."""
    wider = PatchFeatures(words=True)
    state = features.state_dict()
    for name, share in zip(("network", "strokes", "shapes"), wider.shares, strict=True):
        state[f"of_{name}.matrix"] = state[f"of_{name}.matrix"][:, :share].clone()
    others = {name: value for name, value in state.items() if not name.startswith("words.")}
    read = {f"words.{name}": value for name, value in reader.state_dict().items()}
    wider.load_state_dict(others | read)
    return wider


_writer: Writer


def _begin(lexicon: Lexicon, fonts: Mapping[str, list[Font]]) -> None:
    """Prepare a drawing process."""
    global _writer  # noqa: PLW0603 - one per process
    _writer = Writer(lexicon, fonts)


def _draw(first: int, count: int) -> list[Canvas]:
    return [_writer.draw(first + more) for more in range(count)]


def letter_table(lexicon: Lexicon) -> tuple[dict[str, int], Float[Tensor, "letters 256"]]:
    """Return the index of each case-folded letter of a lexicon, and the letters' vectors."""
    folded = {
        letter for words, _ in lexicon.values() for word in words for letter in word.casefold()
    }
    letters = sorted(letter for letter in folded if letter.isalnum())
    vectors = torch.from_numpy(np.stack([letter_vector(letter) for letter in letters]))
    return {letter: number for number, letter in enumerate(letters)}, vectors


def _script(unit: Unit) -> str:
    letter = unit[1]
    if is_unspaced(letter):
        return "han" if letter >= "㐀" else "kana"
    code = ord(letter[0])
    return next((name for name, first, last in _SCRIPTS if first <= code <= last), "other")


def main(arguments: Sequence[str] | None = None) -> None:
    """Train and print the figures; a user's mistake is one line and exit status 1."""
    options = parse(arguments)
    try:
        set_up_logging()
        figures = train(options)
    except NowError as error:
        sys.exit(str(error))
    text = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
    print(f"{options.weights}: {text}")


if __name__ == "__main__":
    main()
