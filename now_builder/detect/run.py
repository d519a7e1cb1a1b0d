"""Captures to a feature file: stream pages, extract 36 regions each, resume after a stop."""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from now_builder.detect.apt import AptExtractor
from now_builder.detect.base import Detector, TextBox
from now_builder.detect.pixels import ahead, decode_screenshot, to_batch
from now_builder.detect.settings import DetectSettings
from now_builder.detect.sources import dom_text_boxes
from now_builder.detect.text import make_text_encoder
from now_builder.detect.weights import choose_device, load_detector, read_card
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.features import (
    merge_parts,
    open_features,
    parts_folder,
    read_parts,
    write_part,
)
from now_builder.formats.shard import Capture, read_captures, read_rows


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
        ConfigError: If no weights are given, or what is there was made by other weights or
            settings.
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
    if left:
        detector = _load(settings, attributes)
        work = _Work(detector, features, settings)
        waiting, writing = work.run(captures, frozenset(wanted), frozenset(done), left)
    pages = merge_parts(features, attributes, settings.half)
    seconds = time.perf_counter() - started
    return DetectSummary(features, pages, left, seconds, waiting, writing)


def _attributes(settings: DetectSettings) -> dict[str, str]:
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
        "text_source": settings.text_source,
        "storage": "float16" if settings.half else "float32",
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


def _load(settings: DetectSettings, attributes: Mapping[str, str]) -> Detector:
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)
    device = choose_device(settings.device)
    if settings.weights is None:
        raise ConfigError("--weights is missing")
    model, card = load_detector(settings.weights, device)
    encoder = make_text_encoder(card.text_encoder, device)
    autocast = settings.autocast and device.type == "cuda"
    return AptExtractor(model, encoder, attributes, autocast=autocast)


class _Work:
    """The loop over pages: decode ahead in threads, extract in batches, write each as a part."""

    def __init__(self, detector: Detector, features: Path, settings: DetectSettings) -> None:
        self.detector = detector
        self.features = features
        self.settings = settings

    def run(
        self, captures: Path, wanted: frozenset[str], done: frozenset[str], left: int
    ) -> tuple[float, float]:
        """Extract the pages that are left; give the seconds spent waiting and writing."""
        parts = read_parts(self.features)
        number = int(parts[-1].stem) + 1 if parts else 0
        waiting = writing = 0.0
        stream = self._batches(captures, wanted, done)
        if not sys.stderr.isatty():
            sys.stderr.write(f"detect: {left} pages to do, {len(done)} done\n")
        with tqdm(total=left, desc="detect", unit="page", disable=None) as bar:
            while True:
                start = time.perf_counter()
                batch = next(stream, None)
                waiting += time.perf_counter() - start
                if batch is None:
                    return waiting, writing
                keys, images, texts = batch
                found = self.detector.extract(keys, to_batch(images), texts)
                start = time.perf_counter()
                write_part(self.features, number, found, self.detector.attributes)
                writing += time.perf_counter() - start
                number += 1
                bar.update(len(keys))

    def _batches(
        self, captures: Path, wanted: frozenset[str], done: frozenset[str]
    ) -> Iterator[tuple[list[str], list[np.ndarray], list[list[TextBox]]]]:
        threads = self.settings.threads or os.cpu_count() or 1
        pages = (page for page in read_captures(captures, done) if page.key in wanted)
        keys: list[str] = []
        images: list[np.ndarray] = []
        texts: list[list[TextBox]] = []
        for key, image, strings in ahead(self._decode, pages, threads):
            keys.append(key)
            images.append(image)
            texts.append(strings)
            if len(keys) == self.settings.batch_size:
                yield keys, images, texts
                keys, images, texts = [], [], []
        if keys:
            yield keys, images, texts

    def _decode(self, page: Capture) -> tuple[str, np.ndarray, list[TextBox]]:
        image = decode_screenshot(page.screenshot, self.detector.input_size, page.key)
        texts = dom_text_boxes(page.elements) if self.settings.text_source == "dom" else []
        return page.key, image, texts
