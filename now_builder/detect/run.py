"""Captures to a feature file: stream pages, extract 36 regions each, resume after a stop."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from now_builder.detect import detectron
from now_builder.detect.base import Detector, Page
from now_builder.detect.extract import AptExtractor
from now_builder.detect.labels import dom_boxes
from now_builder.detect.named import absolute, make_source, source_attributes
from now_builder.detect.ocr import ocr_attributes
from now_builder.detect.pixels import ahead, decode_screenshot, to_batch
from now_builder.detect.settings import DetectSettings
from now_builder.detect.text import make_text_encoder
from now_builder.detect.text_boxes import make_text_source
from now_builder.detect.weights import choose_device, load_detector, read_card
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import (
    merge_parts,
    open_features,
    parts_folder,
    read_parts,
    write_part,
)
from now_builder.formats.shard import Capture, complete_shards, read_captures, read_rows
from now_builder.ray_engine import RayEngine, RayOptions

_SHARD_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True)
class DetectSummary:
    """What a run of ``detect`` did.

    Attributes:
        pages: In the feature file.
        fresh: Extracted in this run.
        seconds: Wall time of the extraction.
        waiting_s: Of it, waiting for decoded screenshots; ``writing_s``: writing parts.
    """

    features: Path
    pages: int
    fresh: int
    seconds: float
    waiting_s: float
    writing_s: float

    def __str__(self) -> str:
        """One line for the terminal."""
        if not self.fresh:
            return f"{self.features}: complete, {self.pages} pages"
        return (
            f"{self.features}: {self.pages} pages, {self.fresh} new in {self.seconds:.1f} s "
            f"({self.fresh / max(self.seconds, 1e-9):.1f} pages/s; decoding waited for "
            f"{self.waiting_s:.1f} s, model {self.seconds - self.waiting_s - self.writing_s:.1f} s,"
            f" writing {self.writing_s:.1f} s)"
        )


def detect(
    captures: Path,
    features: Path,
    settings: DetectSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> DetectSummary:
    """Extract the regions of all captured pages into one feature file.

    Args:
        captures: The captures folder.
        features: The HDF5 file; finished batches wait beside it until it is whole.
        settings: What to run, and how.
        force: Throw away what is there and start over.

    Raises:
        ConfigError: If there is neither a trained detector nor a detectron2 model, or what is
            there was made by other weights or settings.
        FormatError: If captures, weights or features are missing or torn.
    """
    attributes = _attributes(settings)
    if force:
        features.unlink(missing_ok=True)
        shutil.rmtree(parts_folder(features), ignore_errors=True)
    wanted = [row.key for row in read_rows(captures) if row.status == "ok"]
    if not wanted:
        raise FormatError(captures, "no row with status=ok, so there is nothing to detect in")
    done = _keys_done(features, attributes)
    left = len(set(wanted) - done)
    if features.exists() and not left and not read_parts(features):
        return DetectSummary(features, len(done), 0, 0.0, 0.0, 0.0)
    started = time.perf_counter()
    waiting = writing = 0.0
    if left and settings.engine == "ray":
        _detect_on_ray(captures, features, settings, set(wanted) - done)
    elif left:
        waiting, writing = detect_shards(captures, features, settings, complete_shards(captures))
    pages = merge_parts(features, attributes, settings.half)
    seconds = time.perf_counter() - started
    return DetectSummary(features, pages, left, seconds, waiting, writing)


def detect_shards(
    captures: Path, features: Path, settings: DetectSettings, shards: Sequence[int]
) -> tuple[float, float]:
    """Extract what is missing of some shards into parts beside the feature file.

    The one function behind every engine: it knows of no other worker and may be called again.

    Returns:
        Seconds spent waiting for decoded screenshots, and writing.
    """
    attributes = _attributes(settings)
    done = _keys_done(features, attributes)
    rows = [row for shard in shards for row in read_rows(captures, shard)]
    wanted = frozenset(row.key for row in rows if row.status == "ok")
    left = len(wanted - done)
    if not left:
        return 0.0, 0.0
    detector = _load(settings, tuple(attributes.items()))
    work = _Work(detector, features, settings)
    pages = read_captures(captures, frozenset(done), shards)
    return work.run((page for page in pages if page.key in wanted), left, len(done))


def _detect_on_ray(
    captures: Path, features: Path, settings: DetectSettings, left: set[str]
) -> None:
    """Let the workers of a Ray cluster extract the pages that are left, a shard at a time."""
    shards = sorted({int(key[:5]) for key in left})
    options = RayOptions(
        address=settings.ray_address or None,
        workers=settings.workers,
        cpus=settings.worker_cpus,
        gpus=settings.worker_gpus,
    )
    threads = settings.threads or max(1, int(settings.worker_cpus))
    weights = settings.weights and settings.weights.resolve()
    regions = absolute(settings.regions)
    for_worker = settings.model_copy(
        update={"threads": threads, "weights": weights, "regions": regions}
    )
    engine: RayEngine[int] = RayEngine(
        partial(_work, captures.resolve(), features.resolve(), for_worker),
        lambda _: _SHARD_LIMIT_S,
        lambda shard: [shard],
        options,
    )
    with tqdm(total=len(shards), desc="detect", unit="shard", disable=None) as bar:
        poison = engine.run(shards, lambda _: bar.update()).poison
    if poison:
        given_up = [shard for shard, _ in poison]
        raise FormatError(
            captures,
            f"shards {given_up} failed on every worker ({poison[0][1]:.200}); all others are done, "
            "and the same command tries these again",
        )


def _work(captures: Path, features: Path, settings: DetectSettings, shard: int) -> int:
    """Do a task, in the worker."""
    detect_shards(captures, features, settings, [shard])
    return shard


def _attributes(settings: DetectSettings) -> dict[str, str]:
    reading = (settings.ocr_languages, settings.ocr_confidence)
    shared = {
        "text_source": settings.text_source,
        **(ocr_attributes(*reading) if settings.text_source == "ocr" else {}),
        "storage": "float16" if settings.half else "float32",
    }
    if settings.weights is None and settings.regions.startswith(detectron.PREFIX):
        return {**detectron.detector_attributes(settings.regions), **shared}
    if settings.weights is None:
        raise ConfigError(
            "--weights is missing: detect needs a trained detector; "
            "`now-builder train-detector CAPTURES WEIGHTS.safetensors` trains one"
        )
    card = read_card(settings.weights)
    width, height = card.model.input_size
    return {
        "detector": "apt-style",
        "weights_sha256": card.weights_sha256,
        "size": card.model.size,
        "classes": json.dumps(card.classes),
        "text_encoder": card.text_encoder,
        "input_size": f"{width}x{height}",
        "apt_mode": card.model.mode,
        **source_attributes(settings.regions, settings.region_score),
        **shared,
    }


def _keys_done(features: Path, attributes: Mapping[str, str]) -> set[str]:
    """Collect the keys in the file and its parts, refusing those of another detector."""
    done: set[str] = set()
    for path in [*([features] if features.exists() else []), *read_parts(features)]:
        with open_features(path) as there:
            for name, value in attributes.items():
                found = there.attributes.get(name)
                if found != value:
                    raise ConfigError(
                        f"{path}: made with {name} {found!r:.60}, now {value!r:.60}; "
                        "--force starts over"
                    )
            done.update(there.keys)
    return done


@lru_cache(maxsize=1)
def _load(settings: DetectSettings, attributes: tuple[tuple[str, str], ...]) -> Detector:
    """Load the detector; a worker keeps it from task to task, while all it says is the same."""
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    device = choose_device(settings.device)
    if settings.weights is None:
        network = detectron.Network(detectron.read_recipe(settings.regions), device)
        autocast = settings.autocast and device.type == "cuda"
        return detectron.Detectron2Detector(network, dict(attributes), autocast=autocast)
    model, card = load_detector(settings.weights, device)
    encoder = make_text_encoder(card.text_encoder, device)
    autocast = settings.autocast and device.type == "cuda"
    source = make_source(settings.regions, model, settings.region_score)
    return AptExtractor(model, encoder, dict(attributes), source, autocast=autocast)


class _Work:
    """The loop over pages: decode ahead in threads, extract in batches, write each as a part."""

    def __init__(self, detector: Detector, features: Path, settings: DetectSettings) -> None:
        self.detector = detector
        self.features = features
        self.settings = settings
        self.read_text = make_text_source(
            settings.text_source, settings.ocr_languages, settings.ocr_confidence
        )

    def run(self, captures: Iterator[Capture], left: int, done: int) -> tuple[float, float]:
        """Extract pages; give the seconds spent waiting and writing."""
        waiting = writing = 0.0
        stream = self._batches(captures)
        if not sys.stderr.isatty():
            sys.stderr.write(f"detect: {left} pages to do, {done} done\n")
        with tqdm(total=left, desc="detect", unit="page", disable=None) as bar:
            while True:
                start = time.perf_counter()
                batch = next(stream, None)
                waiting += time.perf_counter() - start
                if batch is None:
                    return waiting, writing
                pages, images = batch
                found = self.detector.extract(pages, to_batch(images))
                start = time.perf_counter()
                write_part(self.features, found, self.detector.attributes)
                writing += time.perf_counter() - start
                bar.update(len(pages))

    def _batches(
        self, captures: Iterator[Capture]
    ) -> Iterator[tuple[list[Page], list[np.ndarray]]]:
        threads = self.settings.threads or os.cpu_count() or 1
        pages: list[Page] = []
        images: list[np.ndarray] = []
        for page, image in ahead(self._decode, captures, threads):
            pages.append(page)
            images.append(image)
            if len(pages) == self.settings.batch_size:
                yield pages, images
                pages, images = [], []
        if pages:
            yield pages, images

    def _decode(self, capture: Capture) -> tuple[Page, np.ndarray]:
        image = decode_screenshot(capture.screenshot, self.detector.input_size, capture.key)
        boxes = dom_boxes(capture.elements) if self.settings.regions == "dom" else []
        return Page(capture.key, self.read_text(capture), boxes), image
