"""A page of what a run has learned: nearest captions and pages, and its surest judgements."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import write_text
from now_builder.formats.noise import own_images, read_noise
from now_builder.formats.release import Pair, check_split, is_ours, read_pairs
from now_builder.formats.screenshots import some_screenshots
from now_builder.formats.shard import open_screenshot
from now_builder.formats.split import Split
from now_builder.program.html import template_environment
from pc2_baseline.analysis.truth import Truth, find_truth, read_division
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.runs.open_run import OpenRun, mean_similarity, open_run
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import BEST, refuse_round

NEAREST = 5
_SIDES = (320, 570)
"""Maximum width and height of an embedded picture, in pixels."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A row of a split as a query, the rank and score of its right answer, and the nearest answers.

    Ranks begin at 1; the nearest are rows with their similarities, best first.
    """

    query: int
    rank: int
    score: float
    nearest: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which examples are shown.

    Attributes:
        split: ``dev`` or ``test``.
        query: Key of the one page to show; ``None``: a sample.
        count: Examples of each direction, and pairs at each end of the division.
        seed: Seed of the samples.
        truth: Which training pairs are matched, as for ``pc2-baseline division``; ``None``: as
            the run's ``data.truth``, or else its noise file says, if it has one.
    """

    split: str = "test"
    query: str | None = None
    count: int = 12
    seed: int = 0
    truth: Path | None = None


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A training pair, its clean probability, and whether it is matched, where that is known."""

    row: int
    clean_prob: float
    matched: bool | None


@dataclass(frozen=True, slots=True)
class Shown:
    """Content of the page: pairs by row, examples of both directions, and training pairs.

    Attributes:
        image_of: Row of the image assigned to each training caption.
        epoch: The selected epoch, if it has a division.
        surest: Pairs that its division is surest about: mismatched and matched ones.
    """

    pairs: Sequence[Pair]
    to_captions: list[Neighbours]
    to_pages: list[Neighbours]
    train: Sequence[Pair]
    image_of: Int[np.ndarray, " train"]
    epoch: int | None = None
    surest: tuple[list[SampledPair], list[SampledPair]] = ([], [])

    def pages(self) -> list[Pair]:
        """Return the pages whose pictures are shown."""
        rows = {found.query for found in self.to_captions + self.to_pages}
        rows |= {row for found in self.to_pages for row, _ in found.nearest}
        images = {int(self.image_of[one.row]) for side in self.surest for one in side}
        return [self.pairs[row] for row in sorted(rows)] + [
            self.train[row] for row in sorted(images)
        ]


def neighbours(scores: Float[np.ndarray, " answers"], query: int) -> Neighbours:
    """Rank the answers to a query, whose right answer has its own row; ties go to the lower row."""
    order = np.argsort(-scores, kind="stable")
    rank = int(np.flatnonzero(order == query)[0]) + 1
    nearest = [(int(row), float(scores[row])) for row in order[:NEAREST]]
    return Neighbours(query, rank, float(scores[query]), nearest)


def sample(found: list[Neighbours], count: int, seed: int) -> list[Neighbours]:
    """Draw right and wrong examples, half of each where there are so many; right ones first."""
    order = np.random.default_rng(seed).permutation(len(found))
    right = [found[row] for row in order if found[row].rank == 1]
    wrong = [found[row] for row in order if found[row].rank > 1]
    rights = min(len(right), max(count // 2, count - len(wrong)))
    return right[:rights] + wrong[: count - rights]


def examples(
    run: Path,
    captures: Path | None,
    output: Path,
    choice: Choice,
    *,
    release: Path | None = None,
    device_name: str | None = None,
) -> None:
    """Write an HTML page of examples, with the captures' pictures inside if they are given.

    Raises:
        FormatError: If run, release, captures or truth cannot be read, the release has no
            ``pairs.parquet``, or the captures have no screenshot of any page shown.
        ConfigError: If the split is ``train`` or has no page of that key.
    """
    name = check_split(choice.split)
    if name == "train":
        raise ConfigError("--split train: expected dev or test")
    opened = open_run(run, release=release, device=device_name)
    if not is_ours(opened.release):
        raise FormatError(
            opened.release, "no pairs.parquet, expected a release of now-builder package"
        )
    refuse_round(opened.release, name)
    shown = _find(opened, name, choice)
    page = template_environment("pc2_baseline.runs").get_template("examples.html.j2")
    screenshots = some_screenshots(captures, shown.pages()) if captures else {}
    pictures = {key: _data_url(shot.read(), key) for key, shot in screenshots.items()}
    text = page.render(
        run=run.resolve().name,
        method=opened.record.settings.method.name,
        split=name,
        shown=shown,
        pictures=pictures,
    )
    write_text(output, text)


def _find(opened: OpenRun, split: Split, choice: Choice) -> Shown:
    """Score a split, and choose the examples."""
    every = sorted(read_pairs(opened.release), key=lambda pair: pair.pair_index)
    pairs = [pair for pair in every if pair.split == split]
    rows = [row for row, pair in enumerate(pairs) if choice.query in (None, pair.key)]
    if not rows:
        raise ConfigError(f"--query {choice.query}: no page of the {split} split has this key")
    known = find_truth(opened.record, opened.release, choice.truth)
    similarity, _ = mean_similarity([opened], split, whole=True)
    by_page = [neighbours(similarity[row], row) for row in rows]
    by_caption = [neighbours(similarity[:, row], row) for row in rows]
    train = [pair for pair in every if pair.split == "train"]
    noise = opened.record.settings.data.noise_file
    own = own_images(len(train), len(train))
    epoch = read_state(opened.folder / BEST).best_epoch
    surest: tuple[list[SampledPair], list[SampledPair]] = ([], [])
    division = opened.folder / DIVISIONS / f"{epoch:05d}.safetensors"
    if division.exists():
        clean_prob = read_division(division, len(train))["clean_prob"]
        surest = surest_pairs(clean_prob, known, choice.count)
    return Shown(
        pairs,
        sample(by_page, choice.count, choice.seed),
        sample(by_caption, choice.count, choice.seed),
        train,
        own if noise is None else read_noise(noise, len(train), len(train)),
        epoch if division.exists() else None,
        surest,
    )


def surest_pairs(
    clean_prob: Float[np.ndarray, " pairs"], truth: Truth | None, count: int
) -> tuple[list[SampledPair], list[SampledPair]]:
    """Return the ``count`` pairs with the lowest and with the highest clean probability.

    The surest come first. Of equal probabilities the lower row counts as the lower; each end has at
    most half of all pairs.
    """
    count = min(count, len(clean_prob) // 2)
    order = np.argsort(clean_prob, kind="stable")
    low, high = (
        [
            SampledPair(
                int(row), float(clean_prob[row]), truth.matched_or_none(int(row)) if truth else None
            )
            for row in rows
        ]
        for rows in (order[:count], order[::-1][:count])
    )
    return low, high


def _data_url(picture: bytes, name: str) -> str:
    """Return a picture, scaled down, as a data URL; messages call it ``name``."""
    with open_screenshot(picture, name) as image:
        small = image.convert("RGB")
        small.thumbnail(_SIDES)
    content = io.BytesIO()
    small.save(content, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
