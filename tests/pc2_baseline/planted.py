"""A planted release: topics and languages in regions and words, some training captions shuffled."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from now_builder.formats.atomic import write_text
from now_builder.formats.captions import make_vocabulary, to_line, write_vocabulary
from now_builder.formats.features import DIMENSION, REGIONS, FeatureBatch, write_features
from now_builder.formats.release import (
    DATA_FOLDER,
    Manifest,
    Pair,
    fingerprint,
    hash_of,
    write_manifest,
    write_pairs,
)
from now_builder.formats.split import Shares, SplitPlan

TOKENIZER = "jieba"


@dataclass(frozen=True)
class Plan:
    """What is planted.

    Attributes:
        train, dev, test: Pairs; dev and test are all matched.
        mismatch: Share of training pairs that get another training pair's caption.
        topics, languages: Each page has one of each; a word belongs to one of each.
        words: Per topic and language.
        tokens: Shortest and longest caption.
        topical: Fewest and most regions that show the topic; the others show the language.
        noise: Standard deviation of the noise, the signal's being 1.
        stray: Share of words drawn from the language's other topics.
    """

    train: int = 160
    dev: int = 40
    test: int = 40
    mismatch: float = 0.4
    topics: int = 8
    languages: int = 1
    words: int = 6
    tokens: tuple[int, int] = (4, 8)
    topical: tuple[int, int] = (12, 20)
    noise: float = 0.5
    stray: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Split:
    """One split's truth and contents."""

    topics: np.ndarray
    languages: np.ndarray
    matched: np.ndarray
    regions: np.ndarray
    captions: list[list[int]]


def plant(folder: Path, plan: Plan) -> Path:
    """Write a release and ``truth.csv`` beside its manifest; give the folder."""
    rng = np.random.default_rng(plan.seed)
    pictures = rng.normal(size=(plan.topics + plan.languages, DIMENSION)).astype(np.float32)
    sizes = {"train": plan.train, "dev": plan.dev, "test": plan.test}
    splits = {
        name: draw(rng, plan, pictures, size, plan.mismatch if name == "train" else 0.0)
        for name, size in sizes.items()
    }
    write_release(folder, plan, splits)
    return folder


def draw(rng, plan, pictures, size, mismatch):
    topics = rng.integers(plan.topics, size=size)
    languages = rng.integers(plan.languages, size=size)
    regions = np.empty((size, REGIONS, DIMENSION), dtype=np.float32)
    for row in range(size):
        shown = np.full(REGIONS, plan.topics + languages[row])
        count = rng.integers(plan.topical[0], plan.topical[1] + 1)
        shown[rng.permutation(REGIONS)[:count]] = topics[row]
        regions[row] = pictures[shown]
    regions += plan.noise * rng.normal(size=regions.shape).astype(np.float32)
    matched = np.ones(size, dtype=bool)
    source = np.arange(size)
    wrong = rng.permutation(size)[: int(mismatch * size)]
    if len(wrong) > 1:
        source[wrong] = np.roll(wrong, 1)
        matched[wrong] = False
    captions = [caption(rng, plan, topics[row], languages[row]) for row in source]
    return Split(topics, languages, matched, regions, captions)


def caption(rng, plan, topic, language):
    length = rng.integers(plan.tokens[0], plan.tokens[1] + 1)
    strays = rng.random(length) < plan.stray
    of = np.where(strays, rng.integers(plan.topics, size=length), topic)
    group = language * plan.topics + of
    return (4 + group * plan.words + rng.integers(plan.words, size=length)).tolist()


def write_release(folder: Path, plan: Plan, splits: dict[str, Split]) -> None:
    data = folder / DATA_FOLDER
    pairs, rows, prints = [], [], {}
    for name, split in splits.items():
        keys = [f"{name}_{row:05d}" for row in range(len(split.captions))]
        write_features(data / f"{name}.h5", [batch(keys, split.regions)], {"detector": "planted"})
        write_text(data / f"{name}_ids.txt", "".join(f"{key}\n" for key in keys))
        lines = "".join(f"{to_line(ids)}\n" for ids in split.captions)
        write_text(data / f"{name}_caps_{TOKENIZER}.txt", lines)
        prints[name] = {TOKENIZER: fingerprint(keys, split.captions)}
        for row, key in enumerate(keys):
            url = f"http://site{split.languages[row]:02d}.test/{key}"
            pair = Pair(
                key, name, row, url, f"site{split.languages[row]:02d}.test", "planted", "served",
                None, None, hash_of(split.regions[row]),
            )  # fmt: skip
            pairs.append(pair)
            rows.append({"url": url, "key": key, "matched": bool(split.matched[row])})
    count = plan.languages * plan.topics * plan.words
    vocabulary = make_vocabulary((f"w{i}" for i in range(count)), TOKENIZER, "planted", "train")
    write_vocabulary(folder / "vocab" / f"{DATA_FOLDER}_vocab_{TOKENIZER}.json", vocabulary)
    write_pairs(folder / "pairs.parquet", pairs)
    with (folder / "truth.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["url", "key", "matched"])
        writer.writeheader()
        writer.writerows(rows)
    write_manifest(folder, manifest(splits, prints))


def batch(keys, regions):
    pages = len(keys)
    return FeatureBatch(
        keys,
        regions,
        np.tile(np.float32([0, 0, 720, 1280]), (pages, REGIONS, 1)),
        np.full((pages, REGIONS), 0.5, dtype=np.float32),
        np.zeros((pages, REGIONS), dtype=np.int16),
        np.zeros((pages, REGIONS), dtype=np.int8),
        np.full(pages, REGIONS, dtype=np.int16),
    )


def manifest(splits, prints):
    return Manifest(
        name="planted",
        created_at="2024-01-01T00:00:00Z",
        split=SplitPlan(shares=Shares(train=0.8, dev=0.1, test=0.1)),
        counts={name: len(split.captions) for name, split in splits.items()},
        rejects={},
        fingerprints=prints,
        detector={"name": "planted"},
        settings={},
        versions={},
        files={},
    )
