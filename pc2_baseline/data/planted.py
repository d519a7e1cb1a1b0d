"""Planted releases: pages and captions drawn at random, so that the truth is known.

A page has a topic and some details. Each of these concepts has its own picture, shown in some
regions, and its own word in the caption. The captions of some training pages are shuffled.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Int64

from now_builder.config import build, read_toml, to_toml
from now_builder.errors import ConfigError
from now_builder.formats.captions import SPECIALS, make_vocabulary, to_line, write_vocabulary
from now_builder.formats.features import DIMENSION, REGIONS, FeatureBatch, write_features
from now_builder.formats.io import remove_leftovers, sha256_of, write_text
from now_builder.formats.release import (
    DATA_FOLDER,
    FileEntry,
    Manifest,
    Pair,
    fingerprint,
    hash_of,
    write_manifest,
    write_pairs,
    write_rejects,
)
from now_builder.formats.split import Shares, SplitPlan
from pc2_baseline.config import Plan

TOKENIZER = "jieba"
"""Track of the captions, which no tokenizer made."""

RECIPE = "planted.toml"
TOPICAL = 0.3
"""Share of the topic among a page's remaining regions and words."""
_VOCABULARY = f"vocab/{DATA_FOLDER}_vocab_{TOKENIZER}.json"
_BLOCK = 128
_URL = "http://planted.test/"


@dataclass(frozen=True, slots=True)
class Pages:
    """Concepts and captions of the pages of one split.

    Attributes:
        concepts: Numbers of each page's topic and of its details.
        caption_of: Row of the page whose caption each page has.
    """

    concepts: Int64[np.ndarray, "pages each"]
    caption_of: Int64[np.ndarray, " pages"]

    @property
    def matched(self) -> Bool[np.ndarray, " pages"]:
        """Whether each page has its own caption."""
        return np.asarray(self.caption_of == np.arange(len(self.caption_of)))


def plant(folder: Path | str, plan: Plan) -> Path:
    """Write a release with ``truth.csv`` and ``planted.toml``; the same plan gives the same bytes.

    Raises:
        ConfigError: If the folder is neither new, nor empty, nor a release of the same plan.
    """
    folder = Path(folder)
    _claim(folder, plan)
    draw = np.random.default_rng(plan.seed)
    pictures = draw.standard_normal((plan.concepts, DIMENSION), dtype=np.float32)
    sizes = {"train": plan.train, "dev": plan.dev, "test": plan.test}
    pairs: list[Pair] = []
    truth = ["url,key,matched,caption_of,concepts\n"]
    prints: dict[str, dict[str, str]] = {}
    for split, size in sizes.items():
        pages = draw_pages(draw, plan, size, plan.mismatch if split == "train" else 0.0)
        captions = [draw_caption(draw, plan, pages.concepts[row]) for row in pages.caption_of]
        keys = [f"{split}_{row:05d}" for row in range(size)]
        regions = _regions(draw, plan, pictures, pages.concepts)
        hashes = _write_split(folder / DATA_FOLDER, split, keys, captions, regions)
        prints[split] = {TOKENIZER: fingerprint(keys, captions)}
        texts = (" ".join(f"w{token - len(SPECIALS)}" for token in ids) for ids in captions)
        pairs += [
            Pair(key, split, row, _URL + key, "planted.test", text, "served", None, None, own)
            for row, (key, text, own) in enumerate(zip(keys, texts, hashes, strict=True))
        ]
        truth += [
            f"{_URL}{key},{key},{matched},{keys[source]},{' '.join(map(str, concepts))}\n"
            for key, matched, source, concepts in zip(
                keys, pages.matched, pages.caption_of, pages.concepts, strict=True
            )
        ]
    words = (f"w{number}" for number in range(plan.concepts * plan.words))
    vocabulary = make_vocabulary(words, TOKENIZER, "planted", "train")
    write_vocabulary(folder / _VOCABULARY, vocabulary)
    write_pairs(folder / "pairs.parquet", pairs)
    write_rejects(folder / "rejects.parquet", [])
    write_text(folder / "truth.csv", "".join(truth))
    write_manifest(folder, _manifest(folder, plan, sizes, prints))
    return folder


def draw_pages(draw: np.random.Generator, plan: Plan, size: int, mismatch: float) -> Pages:
    """Draw topics and details; rotate the captions of a random share of the pages."""
    topics = draw.integers(plan.topics, size=(size, 1))
    order = draw.random((size, plan.vocabulary)).argsort(1)[:, : plan.details]
    caption_of = np.arange(size)
    wrong = draw.permutation(size)[: int(mismatch * size)]
    caption_of[wrong] = np.roll(wrong, 1)
    return Pages(np.hstack([topics, plan.topics + order]).astype(np.int64), caption_of)


def draw_caption(
    draw: np.random.Generator, plan: Plan, concepts: Int64[np.ndarray, " each"]
) -> list[int]:
    """Draw the token ids of a caption: each concept at least once, in random order."""
    fewest = max(len(concepts), plan.tokens // 2)
    length = int(draw.integers(fewest, plan.tokens + 1))
    shown = _fill(draw, plan, concepts, length)
    ids: list[int] = (4 + shown * plan.words + draw.integers(plan.words, size=length)).tolist()
    return ids


def _fill(
    draw: np.random.Generator, plan: Plan, concepts: Int64[np.ndarray, " each"], places: int
) -> Int64[np.ndarray, " places"]:
    """Fill regions or words with concepts: each once, then the topic or random ones."""
    further = places - len(concepts)
    topic = draw.random(further) < TOPICAL
    more = np.where(topic, concepts[0], draw.choice(concepts, further))
    clutter = draw.random(further) < plan.clutter
    more = np.where(clutter, draw.integers(plan.concepts, size=further), more)
    return draw.permutation(np.append(concepts, more))


def _regions(
    draw: np.random.Generator,
    plan: Plan,
    pictures: Float32[np.ndarray, "concepts dim"],
    concepts: Int64[np.ndarray, "pages each"],
) -> Iterator[Float32[np.ndarray, "pages 36 dim"]]:
    """Yield the regions of blocks of pages."""
    for start in range(0, len(concepts), _BLOCK):
        rows = concepts[start : start + _BLOCK]
        shown = pictures[np.stack([_fill(draw, plan, row, REGIONS) for row in rows])]
        yield shown + np.float32(plan.noise) * draw.standard_normal(shown.shape, dtype=np.float32)


def _write_split(
    data: Path,
    split: str,
    keys: list[str],
    captions: list[list[int]],
    blocks: Iterator[Float32[np.ndarray, "pages 36 dim"]],
) -> list[str]:
    """Write a split's regions, keys and captions; return the regions' hashes."""
    hashes: list[str] = []

    def batches() -> Iterator[FeatureBatch]:
        for regions in blocks:
            start, pages = len(hashes), len(regions)
            hashes.extend(hash_of(page) for page in regions)
            yield FeatureBatch(
                keys[start : len(hashes)],
                regions,
                boxes=np.tile(np.array([0, 0, 720, 1280], dtype=np.float32), (pages, REGIONS, 1)),
                scores=np.full((pages, REGIONS), 0.5, dtype=np.float32),
                classes=np.zeros((pages, REGIONS), dtype=np.int16),
                source=np.zeros((pages, REGIONS), dtype=np.int8),
                n_regions=np.full(pages, REGIONS, dtype=np.int16),
            )

    write_features(data / f"{split}.h5", batches(), {"detector": "planted"}, pages=len(keys))
    write_text(data / f"{split}_ids.txt", "".join(f"{key}\n" for key in keys))
    lines = "".join(f"{to_line(ids)}\n" for ids in captions)
    write_text(data / f"{split}_caps_{TOKENIZER}.txt", lines)
    return hashes


def _claim(folder: Path, plan: Plan) -> None:
    """Check that a folder is new, empty or of the same plan; write the plan to it."""
    recipe = folder / RECIPE
    for part in (folder, folder / DATA_FOLDER, folder / "vocab"):
        remove_leftovers(part)
    if recipe.exists():
        if build(Plan, read_toml(recipe), str(recipe)) != plan:
            raise ConfigError(f"{folder}: contains a release of another plan ({RECIPE})")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: not a planted release, expected a new or empty folder")
    write_text(recipe, to_toml(plan))


def _manifest(
    folder: Path, plan: Plan, sizes: dict[str, int], prints: dict[str, dict[str, str]]
) -> Manifest:
    pairs = sum(sizes.values())
    written = ["pairs.parquet", "rejects.parquet", "truth.csv", RECIPE, _VOCABULARY]
    for ending in (".h5", "_ids.txt", f"_caps_{TOKENIZER}.txt"):
        written += [f"{DATA_FOLDER}/{split}{ending}" for split in sizes]
    shares = Shares(**{split: size / pairs for split, size in sizes.items()})
    return Manifest(
        name="planted",
        created_at="2024-01-01T00:00:00Z",  # the same plan gives the same bytes
        split=SplitPlan(shares=shares),
        counts=sizes,
        rejects={},
        fingerprints=prints,
        detector={"name": "planted"},
        settings=plan.model_dump(),
        versions={},
        files={
            name: FileEntry(sha256=sha256_of(folder / name), bytes=(folder / name).stat().st_size)
            for name in sorted(written)
        },
    )
