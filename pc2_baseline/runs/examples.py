"""Write a page of a run's retrievals and of the training pairs that it is surest about."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import write_text
from now_builder.formats.noise import images_of_captions, read_noise
from now_builder.formats.release import check_split, is_ours, read_pairs
from now_builder.formats.screenshots import find_some_screenshots
from now_builder.formats.shard import open_screenshot
from now_builder.program.html import template_environment
from pc2_baseline.analysis.truth import Truth, find_truth, read_division
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.runs.open_run import mean_similarity, open_run
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
    """Selection of the examples.

    Attributes:
        split: ``dev`` or ``test``.
        query: Key of the one page to show; ``None``: a sample.
        count: Examples of each direction, and pairs at each end of the division.
        seed: Seed of the samples.
        truth: Truth file, as for ``pc2-baseline division``; ``None``: the run's ``data.truth`` or
            noise file, if any.
    """

    split: str = "test"
    query: str | None = None
    count: int = 12
    seed: int = 0
    truth: Path | None = None


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A training pair, its clean probability, and whether it is matched, if known."""

    row: int
    clean_prob: float
    matched: bool | None


def neighbours(scores: Float[np.ndarray, " answers"], query: int) -> Neighbours:
    """Rank the answers to a query; the right one has the query's row, and ties go to lower rows."""
    order = np.argsort(-scores, kind="stable")
    rank = int(np.flatnonzero(order == query)[0]) + 1
    nearest = [(int(row), float(scores[row])) for row in order[:NEAREST]]
    return Neighbours(query, rank, float(scores[query]), nearest)


def sample(queries: list[Neighbours], count: int, seed: int) -> list[Neighbours]:
    """Draw right and wrong examples, if possible half of each; right ones first."""
    shuffled = [queries[row] for row in np.random.default_rng(seed).permutation(len(queries))]
    right = [query for query in shuffled if query.rank == 1]
    wrong = [query for query in shuffled if query.rank > 1]
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
    """Write an HTML page of examples, with embedded screenshots if captures are given.

    Raises:
        FormatError: If run, release, captures or truth cannot be read, the release has no
            ``pairs.parquet``, or the captures have no screenshot of any page shown.
        ConfigError: If the split is ``train`` or has no page with this key.
    """
    name = check_split(choice.split)
    if name == "train":
        raise ConfigError("--split train: expected dev or test")
    opened = open_run(run, release=release, device=device_name)
    if not is_ours(opened.release):
        problem = "no pairs.parquet, expected a release of now-builder package"
        raise FormatError(opened.release, problem)
    refuse_round(opened.release, name)
    every = sorted(read_pairs(opened.release), key=lambda pair: pair.pair_index)
    pairs, train = ([pair for pair in every if pair.split == part] for part in (name, "train"))
    rows = [row for row, pair in enumerate(pairs) if choice.query in (None, pair.key)]
    if not rows:
        raise ConfigError(f"--query {choice.query}: no page of the {name} split has this key")
    truth = find_truth(opened.record, opened.release, choice.truth)
    similarity, _ = mean_similarity([opened], name, whole=True)
    to_captions, to_pages = (
        sample([neighbours(scores[row], row) for row in rows], choice.count, choice.seed)
        for scores in (similarity, similarity.T)
    )
    noise, size = opened.record.settings.data.noise_file, len(train)
    image_of = images_of_captions(size, size) if noise is None else read_noise(noise, size, size)
    epoch = read_state(run / BEST).best_epoch
    division = run / DIVISIONS / f"{epoch:05d}.safetensors"
    surest: tuple[list[SampledPair], list[SampledPair]] = ([], [])
    if division.exists():
        surest = surest_pairs(read_division(division, size)["clean_prob"], truth, choice.count)
    seen = {example.query for example in to_captions + to_pages}
    seen |= {row for example in to_pages for row, _ in example.nearest}
    images = {int(image_of[one.row]) for side in surest for one in side}
    shown = [pairs[row] for row in sorted(seen)] + [train[row] for row in sorted(images)]
    screenshots = find_some_screenshots(captures, shown) if captures else {}
    page = template_environment("pc2_baseline.runs").get_template("examples.html.j2")
    text = page.render(
        run=run.resolve().name,
        method=opened.record.settings.method.name,
        split=name,
        pairs=pairs,
        to_captions=to_captions,
        to_pages=to_pages,
        train=train,
        image_of=image_of,
        epoch=epoch if division.exists() else None,
        surest=surest,
        pictures={key: _data_url(shot.read(), key) for key, shot in screenshots.items()},
    )
    write_text(output, text)


def surest_pairs(
    clean_prob: Float[np.ndarray, " pairs"], truth: Truth | None, count: int
) -> tuple[list[SampledPair], list[SampledPair]]:
    """Return the ``count`` pairs with the lowest and with the highest clean probability.

    The surest come first, lower rows first among the lowest; each list has at most half of all
    pairs.
    """
    count = min(count, len(clean_prob) // 2)
    order = np.argsort(clean_prob, kind="stable")

    def sampled(row: int) -> SampledPair:
        matched = truth.matched_or_none(row) if truth else None
        return SampledPair(row, float(clean_prob[row]), matched)

    low, high = order[:count].tolist(), order[::-1][:count].tolist()
    return [sampled(row) for row in low], [sampled(row) for row in high]


def _data_url(picture: bytes, name: str) -> str:
    """Return a scaled-down picture as a data URL; ``name`` is for messages."""
    with open_screenshot(picture, name) as image:
        small = image.convert("RGB")
        small.thumbnail(_SIDES)
    content = io.BytesIO()
    small.save(content, "JPEG", quality=70)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
