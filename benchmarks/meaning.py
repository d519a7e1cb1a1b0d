"""Do region features carry meaning? What a linear probe reads off them, and PC²'s retrieval.

The probe reads the topics of a simulated web, or of any crawl each caption's language, on sites
that it has not seen, or the site, on other pages of it. The same pages are described by the trained
detector, by parts of it, by the same network untrained, and by fixed windows in place of regions.
The probe (logistic regression on the mean of a page's 36 rows) learns on the train pool's pages,
its strength is chosen on dev, and its accuracy is that on test, the mean over the labels; languages
and sites of fewer than 30 pages are left out.

    make demo && python benchmarks/meaning.py demo              # the probe
    python benchmarks/meaning.py demo --rsum trained grid       # and PC2 trained on these
    python benchmarks/meaning.py crawl --of language --pages 1500   # crawl/captures, of any web
"""

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page, Proposals
from now_builder.detect.labels.elements import dom_boxes
from now_builder.detect.model.apt import AptDetector
from now_builder.detect.model.text_boxes import dom_text_boxes
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import find_weights, load_detector, to_prompts
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.regions.sources import DomBoxes, PageBatch, RegionSource
from now_builder.detect.training.data import Screenshots, TrainPage, read_train_pages
from now_builder.detect.training.finish import fix_scale
from now_builder.formats.features import FeatureBatch, open_features, write_features
from now_builder.formats.shard import read_captures, read_rows
from now_builder.formats.split import read_split, registrable_domain

WAYS = {
    "trained": "the detector as it is",
    "trained, DOM boxes": "its features at the browser's boxes",
    "grid": "its features at 36 fixed windows",
    "network": "its network alone, without the pixel patterns of the tiny size",
    "untrained": "the same network with random weights, pixel patterns fitted",
    "untrained network": "random weights alone",
    "untrained network, grid": "random weights at 36 fixed windows",
}


FEWEST = 30
"""Pages of a label below which it is left out."""


class Windows:
    """The 36 windows that otherwise fill up pages."""

    kind = "grid"

    def propose(self, batch: PageBatch) -> list[Proposals]:
        """Return the same windows for each page."""
        windows = geometry.windows(batch.size).to(batch.screenshots.device)
        return [Proposals(windows, windows.new_ones(len(windows))) for _ in batch.pages]


def build(folder: Path, way: str) -> AptExtractor:
    """Make the extractor of a way."""
    model, card = load_detector(find_weights(None), torch.device("cpu"))
    encoder = make_text_encoder(card.text_encoder)
    if "network" in way or "untrained" in way:
        state = model.state_dict()
        config = card.model.model_copy(update={"patches": False} if "network" in way else {})
        torch.manual_seed(0)
        model = AptDetector(config, to_prompts(card))
        if "untrained" not in way:
            wanted = model.state_dict()
            model.load_state_dict({name: state.get(name, wanted[name]) for name in wanted})
        pages = read_train_pages(folder / "captures", 0.1).learn
        screenshots = Screenshots(config.input_size, 0, 2)
        fix_scale(model.eval(), some(pages, 200), screenshots, seed=0)
    source: RegionSource | None = None
    if "grid" in way:
        source = Windows()
    if "DOM" in way:
        source = DomBoxes()
    return AptExtractor(model, encoder, {"detector": way}, source)


def some(pages: list[TrainPage], count: int) -> list[TrainPage]:
    """About so many, evenly."""
    return pages[:: max(1, len(pages) // count)]


def chosen_keys(folder: Path, count: int) -> set[str]:
    """Choose captured pages by the hash of their keys; all of them where ``count`` is 0."""
    keys = [row.key for row in read_rows(folder / "captures") if row.status == "ok"]
    keys.sort(key=lambda key: hashlib.sha256(key.encode()).digest())
    return set(keys[: count or None])


def extract(
    folder: Path, detector: AptExtractor, count: int, batch: int = 16
) -> Iterator[FeatureBatch]:
    """Describe captured pages."""
    wanted = chosen_keys(folder, count)
    pages, images = [], []
    for capture in read_captures(folder / "captures"):
        if capture.key in wanted:
            elements = capture.elements
            pages.append(Page(capture.key, dom_text_boxes(elements), dom_boxes(elements)))
            images.append(decode_screenshot(capture.screenshot, detector.input_size, capture.key))
        if len(pages) == batch:
            yield detector.extract(pages, to_batch(images))
            pages, images = [], []
    if pages:
        yield detector.extract(pages, to_batch(images))


def features_of(folder: Path, way: str, count: int) -> Path:
    """Make the feature file of a way, unless it is there."""
    path = folder / "meaning" / f"{way.replace(', ', '-').replace(' ', '-')}-{count}.h5"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        detector = build(folder, way)
        write_features(path, extract(folder, detector, count), detector.attributes, half=True)
    return path


def labels(folder: Path, kind: str) -> pd.DataFrame:
    """Return a table of pages: key, pool, and the label to be read off them."""
    if kind == "topic":
        return topics(folder)
    plan = read_split(folder / "captures" / "split.toml")
    rows: list[tuple[str, str, str]] = []
    for row in read_rows(folder / "captures"):
        if row.status == "ok" and kind == "language" and row.lang not in (None, "und"):
            rows.append((row.key, plan.pool_of(row.site, row.key), row.lang))
        if row.status == "ok" and kind == "site":
            draw = int(hashlib.sha256(row.key.encode()).hexdigest(), 16) % 10
            pool = "test" if draw < 3 else "dev" if draw < 4 else "train"
            rows.append((row.key, pool, registrable_domain(row.site)))
    table = pd.DataFrame(rows, columns=["key", "pool", "label"])
    return table[table.groupby("label").key.transform("size") >= FEWEST]


def topics(folder: Path) -> pd.DataFrame:
    """Return key, pool and topic of every plain page."""
    truth = pd.read_parquet(folder / "truth.parquet").set_index("url")
    plan = read_split(folder / "captures" / "split.toml")
    rows = [
        (row.key, plan.pool_of(row.site, row.key), truth.topic[row.url])
        for row in read_rows(folder / "captures")
        if row.status == "ok" and row.url in truth.index and truth.kind[row.url] == "page"
    ]
    return pd.DataFrame(rows, columns=["key", "pool", "label"])


def balanced_accuracy(truth: pd.Series, found: np.ndarray) -> float:
    """Return the balanced accuracy: the recall of each label, averaged over the labels."""
    kinds = sorted(set(truth))
    return float(recall_score(truth, found, labels=kinds, average="macro", zero_division=0))


def probe(path: Path, table: pd.DataFrame) -> tuple[float, float]:
    """Learn labels from mean features on train; give the balanced accuracy on dev and test."""
    with open_features(path) as file:
        place = {key: row for row, key in enumerate(file.keys)}
        table = table[table.key.isin(set(place))]
        rows = file.read(np.array([place[key] for key in table.key]))
        means = rows.regions.astype(np.float32).mean(axis=1)
    mask = {pool: (table.pool == pool).to_numpy() for pool in ("train", "dev", "test")}
    best = (-1.0, 0.0)
    for strength in (1e-4, 1e-3, 1e-2, 1e-1, 1.0):
        regression = LogisticRegression(C=strength, max_iter=500, class_weight="balanced")
        learner = make_pipeline(StandardScaler(), regression)
        learner.fit(means[mask["train"]], table.label[mask["train"]])
        dev, test = (
            balanced_accuracy(table.label[mask[pool]], learner.predict(means[mask[pool]]))
            for pool in ("dev", "test")
        )
        best = max(best, (float(dev), float(test)), key=lambda pair: pair[0])
    return best


def rsum(folder: Path, features: Path) -> tuple[float, list[float]]:
    """Package, train PC² by its demo preset, and score the test split; rSum and its interval."""
    stem = features.with_suffix("")
    truth = folder / "truth.parquet"
    captions = folder / "captions"
    inputs = f"{folder / 'captures'} {features} {captions}"
    commands = [
        f"now-builder package {inputs} {stem}-release --matched {truth} --dev 64 --test 96",
        f"pc2-baseline train {stem}-release {stem}-run --config pc2-demo",
        f"pc2-baseline predict {stem}-run --split test -o {stem}.zip",
        f"now-leaderboard score {stem}.zip --release {stem}-release -o {stem}-result.json",
    ]
    for command in commands:
        subprocess.run(command.split(), check=True, stdout=sys.stderr)
    result = json.loads(Path(f"{stem}-result.json").read_text(encoding="utf-8"))
    return result["rsum"], result["rsum_interval"]


def main() -> None:
    """Take the options and print the table."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument(
        "folder", type=Path, nargs="?", default="demo", help="what make demo made: captures, truth"
    )
    options.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS)
    options.add_argument("--of", choices=("topic", "language", "site"), default="topic")
    options.add_argument("--pages", type=int, default=0, help="how many, drawn; 0: all")
    options.add_argument("--rsum", nargs="*", default=[], choices=WAYS, help="train PC² on these")
    chosen = options.parse_args()
    table = labels(chosen.folder, chosen.of)
    table = table[table.key.isin(chosen_keys(chosen.folder, chosen.pages))]
    kinds = table[table.pool == "test"].label.nunique()
    counts = table.pool.value_counts().to_dict()
    print(f"pages {counts}, {kinds} labels in test: chance {1 / kinds:.3f}")
    for way in chosen.ways:
        start = time.perf_counter()
        dev, test = probe(features_of(chosen.folder, way, chosen.pages), table)
        took = time.perf_counter() - start
        print(f"{way:26} dev {dev:.3f}  test {test:.3f}  ({WAYS[way]}; {took:.0f} s)", flush=True)
    for way in chosen.rsum:
        value, interval = rsum(chosen.folder, features_of(chosen.folder, way, 0))
        print(f"{way:26} test rSum {value:.1f}, 95 % interval {interval}", flush=True)


if __name__ == "__main__":
    main()
