"""Extract 36 regions of each captured page into a feature file; resume after a stop."""

import ctypes
import fcntl
import glob
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from now_builder.detect.base import Detector, Page, TextBox
from now_builder.detect.labels.elements import dom_boxes
from now_builder.detect.model.text_encoder import dom_text_boxes
from now_builder.detect.model.weights import choose_device
from now_builder.detect.ocr import LANGUAGES, Recognizer
from now_builder.detect.pixels import (
    calls_in_background,
    decode_screenshot,
    in_background,
    prefetch,
    to_batch,
)
from now_builder.detect.regions.detectron2 import with_absolute_paths
from now_builder.detect.regions.loading import attributes_of, load, resolve_settings, threads_of
from now_builder.detect.settings import DetectSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.feature_parts import (
    check_attributes,
    merge_parts,
    parts_folder,
    read_begun,
    read_part,
    read_parts,
    write_begun,
    write_part,
)
from now_builder.formats.features import (
    CAPTURES,
    FeatureBatch,
    captures_hash,
    check_captures,
    open_features,
)
from now_builder.formats.shard import Capture, CaptureRow, complete_shards, read_captures, read_rows
from now_builder.machine.distribution import read_share
from now_builder.machine.ray_engine import RayEngine
from now_builder.program.progress import Progress

_log = logging.getLogger(__name__)
_SHARD_LIMIT_S = 3600.0
_AHEAD = 2  # Maximum number of batches on the device that wait for the model
_UNWRITTEN = 4  # Maximum number of batches that wait for the disk
_MOST_LANES = 16  # Maximum number of batches in the model at once; each needs about 200 MB

_MALLOC = {-1: 2**30, -3: 2**25, -8: 1}
"""Options of glibc's ``mallopt``: bytes kept after ``free``, minimum size of a separately mapped
block (32 MiB is the largest allowed), and number of memory pools."""

_Batch = tuple[list[Page], Tensor]


@dataclass(frozen=True, slots=True)
class DetectSummary:
    """Counts of a run of ``detect``.

    Attributes:
        fresh: Pages extracted in this run.
        seconds: Wall time of the extraction.
        missing: Pages left to other shares; the last share writes the file.
    """

    features: Path
    pages: int
    fresh: int
    seconds: float = 0.0
    missing: int = 0

    def __str__(self) -> str:
        rate = self.fresh / max(self.seconds, 1e-9)
        if self.missing:
            return (
                f"{self.features}: this share is done, {self.fresh} pages in {self.seconds:.1f} s; "
                f"{self.missing} pages are left to other shares, and the last one writes the file"
            )
        if not self.fresh:
            return f"{self.features}: complete, {self.pages} pages"
        return (
            f"{self.features}: {self.pages} pages, {self.fresh} new in {self.seconds:.1f} s "
            f"({rate:.1f} pages/s)"
        )


def detect(
    captures: Path,
    features: Path,
    settings: DetectSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - every stage's switch
) -> DetectSummary:
    """Extract the regions of all captured pages into one feature file.

    Raises:
        ConfigError: If there is neither a trained detector nor a detectron2 model, or existing
            features were made with other weights or settings.
        FormatError: If captures, weights or features are missing or damaged, or the features were
            made from other screenshots.
    """
    share = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if settings.shards_from:
        share = read_share(settings.shards_from)
    if share[1] > 1 and (force or settings.engine == "ray"):
        raise ConfigError("--force, --engine ray: not possible with --shards-from or torchrun")
    screenshots = _screenshots(read_rows(captures))
    if not screenshots:
        raise FormatError(captures, "no row with status=ok, so there are no pages to extract")
    shards = complete_shards(captures)[share[0] :: share[1]]
    numbers = set(shards)
    mine = {key: sha256 for key, sha256 in screenshots.items() if _shard(key) in numbers}
    with _alone(features, share):
        settings, attributes = _begin(features, settings, force)
        for leftover in features.parent.glob(f".{glob.escape(features.name)}.*.tmp"):
            leftover.unlink(missing_ok=True)
        done, tied = _keys_done(features, attributes, screenshots)
        left = mine.keys() - done
        if features.exists() and screenshots.keys() <= done and not read_parts(features):
            return DetectSummary(features, len(done), 0)
    started = time.perf_counter()
    if left and settings.engine == "ray":
        _detect_on_ray(captures, features, settings, left)
    elif left:
        _extract(captures, features, settings, shards, done, mine)
    with _alone(features, share):
        # No share waits for another: the one that finds all pages done writes the file.
        if share[1] > 1:
            done, tied = _keys_done(features, attributes, screenshots)
        else:
            done |= mine.keys()
        missing = len(screenshots.keys() - done)
        pages = len(done)
        if not missing and read_parts(features):  # else another share has written the file
            origin = {CAPTURES: captures_hash(done, screenshots)} if tied else {}
            pages = merge_parts(features, attributes | origin, settings.half)
    seconds = time.perf_counter() - started
    return DetectSummary(features, pages, len(left), seconds, missing)


def _begin(
    features: Path,
    settings: DetectSettings,
    force: bool = False,  # noqa: FBT001, FBT002 - as in detect
) -> tuple[DetectSettings, dict[str, str]]:
    """Resolve settings and attributes, and record them with a new output.

    The precision ``auto`` depends on the machine, so a resumed output keeps its first precision.

    Raises:
        ConfigError: If the output was started with other settings.
    """
    resolved = resolve_settings(settings)
    attributes = attributes_of(resolved)
    if force:  # only now, so that unreadable captures or weights do not delete features
        features.unlink(missing_ok=True)
        shutil.rmtree(parts_folder(features), ignore_errors=True)
    begun = read_begun(features)
    if not begun:
        write_begun(features, attributes)
        return resolved, attributes
    if settings.precision == "auto" and "precision" in begun:
        attributes["precision"] = str(begun["precision"])
    check_attributes(features, begun, attributes)
    kept = {"precision": attributes["precision"]}
    return resolve_settings(resolved.model_copy(update=kept)), attributes


@contextmanager
def _alone(features: Path, share: tuple[int, int]) -> Iterator[None]:
    """Lock the feature file and its parts against other shares."""
    if share[1] == 1:
        yield
        return
    features.parent.mkdir(parents=True, exist_ok=True)
    with features.with_name(f".{features.name}.lock").open("w") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise ConfigError(
                f"{features}: cannot be locked ({error.strerror}), but shares write it together. "
                "Detect in one process, or write to a local disk"
            ) from None
        yield


def detect_shards(captures: Path, features: Path, settings: DetectSettings, *shards: int) -> None:
    """Extract the missing pages of some shards into parts, in a worker; safe to repeat."""
    settings, attributes = _begin(features, settings)
    screenshots = _screenshots(row for shard in shards for row in read_rows(captures, shard))
    done, _ = _keys_done(features, attributes, screenshots, shards)
    if screenshots.keys() - done:
        _extract(captures, features, settings, shards, done, screenshots)


def _extract(
    captures: Path,
    features: Path,
    settings: DetectSettings,
    shards: Sequence[int],
    done: set[str],
    screenshots: Mapping[str, str | None],
) -> None:
    """Extract the remaining pages and write them as parts."""
    left = len(screenshots.keys() - done)
    _log.info("detect: %d of %d pages to do; loading the detector", left, len(screenshots))
    attributes = attributes_of(settings)
    detector = load(settings, tuple(attributes.items()))
    batch_size = settings.batch_size or choose_batch_size(settings.device, attributes.get("size"))
    pipeline = Pipeline(detector, features, settings, batch_size, screenshots)
    pages = read_captures(captures, frozenset(done), shards)
    pipeline.run((page for page in pages if page.key in screenshots), left, len(done))


def choose_batch_size(device: str, size: str | None) -> int:
    """Return the number of pages per batch for a detector of a size.

    On a CPU a batch's maps must fit its cache: at size tiny a page takes 10 % more time in a batch
    of 8 than of 4, and another 20 % in a batch of 16.
    """
    if choose_device(device).type != "cpu":
        return 16
    return 2 if size == "paper" else 4


def _detect_on_ray(
    captures: Path, features: Path, settings: DetectSettings, left: set[str]
) -> None:
    """Extract the remaining pages with the workers of a Ray cluster, a shard at a time."""
    shards = sorted({_shard(key) for key in left})
    elsewhere: dict[str, Any] = {
        "threads": settings.threads or max(1, int(settings.worker_cpus)),
        "regions": with_absolute_paths(settings.regions),
    }
    if settings.weights is not None and settings.weights.exists():  # else the name tiny-web
        elsewhere["weights"] = settings.weights.resolve()
    if settings.embed and Path(settings.embed).is_dir():  # else a name on the hub
        elsewhere["embed"] = str(Path(settings.embed).resolve())
    for_worker = settings.model_copy(update=elsewhere)
    engine: RayEngine[int] = RayEngine(
        partial(detect_shards, captures.resolve(), features.resolve(), for_worker),
        lambda _: _SHARD_LIMIT_S,
        lambda shard: [shard],
        settings,
        gpus=settings.worker_gpus,
    )
    with Progress("detect", len(shards), "shard") as progress:
        poison = engine.run(shards, lambda _: progress.add()).poison
    if poison:
        failed = f"shards {[shard for shard, _ in poison]} failed on every worker"
        retry = "The others are done. Run the same command to retry these"
        raise FormatError(captures, f"{failed} ({poison[0][1]:.200}). {retry}")


def _screenshots(rows: Iterable[CaptureRow]) -> dict[str, str | None]:
    """Return the sha256 of each captured page's screenshot, by key."""
    return {row.key: row.sha256 for row in rows if row.status == "ok"}


def _keys_done(
    features: Path,
    attributes: Mapping[str, str],
    screenshots: Mapping[str, str | None],
    shards: Sequence[int] | None = None,
) -> tuple[set[str], bool]:
    """Collect the keys in the file and its parts (of all shards, or some).

    Damaged parts are removed, so that their pages are extracted again.

    Returns:
        The keys, and whether file and parts all identify their screenshots.

    Raises:
        ConfigError: If a part is of a detector with other attributes.
        FormatError: If the file or a part is of other screenshots.
    """
    done: set[str] = set()
    tied = True
    if features.exists():
        with open_features(features) as stored:
            if shards is None:  # else ``screenshots`` lacks some of the file's
                tied = check_captures(features, stored.keys, stored.attributes, screenshots)
            done.update(stored.keys)
    prefixes = [""] if shards is None else [f"{shard:05d}_" for shard in shards]
    for part in (part for prefix in prefixes for part in read_parts(features, prefix)):
        try:
            batch, part_attributes = read_part(part)
        except FormatError as error:
            _log.warning("detect: %s; its pages are extracted again", error)
            part.unlink()
            continue
        check_attributes(part, part_attributes, attributes)
        tied &= check_captures(part, batch.keys, part_attributes, screenshots)
        done.update(batch.keys)
    return done, tied


class Pipeline:
    """Decode pages, extract their regions in batches, and write each batch as a part.

    Decoding, the copy to the device, the model and writing run at once in separate threads.
    Threads decode as fast as processes, since Pillow releases the GIL.

    Parts are written next to ``features``. They record the hashes (sha256) in ``screenshots``.
    """

    def __init__(
        self,
        detector: Detector,
        features: Path,
        settings: DetectSettings,
        batch_size: int,
        screenshots: Mapping[str, str | None] | None = None,
    ) -> None:
        self.detector, self.features = detector, features
        self.screenshots = screenshots
        self.settings, self.batch_size = settings, batch_size
        self.device = choose_device(settings.device)
        self.read_screen = Recognizer(LANGUAGES) if settings.text_source == "ocr" else None

    def run(self, captures: Iterator[Capture], left: int, done: int) -> None:
        """Extract pages and write each batch as a part."""
        if self.device.type == "cpu":
            _keep_freed_memory()
        batches = in_background(self._on_device(captures), _AHEAD)
        with (
            self._lanes() as lanes,
            Progress("detect", left) as progress,
            calls_in_background(self._write, _UNWRITTEN) as write,
        ):
            _log.info("detect: %d pages to do, %d done", left, done)
            # A single lane is this thread, which has the detector's CUDA device.
            extract = lambda batch: self.detector.extract(*batch)  # noqa: E731
            parallel = prefetch(extract, batches, lanes) if lanes > 1 else map(extract, batches)
            for extracted in parallel:
                write(extracted)
                progress.add(len(extracted.keys))

    @contextmanager
    def _lanes(self) -> Iterator[int]:
        """Yield the number of batches in the model at once.

        On a CPU the tiny size runs a batch in each thread: many of its operations are too small to
        be split between threads.
        """
        tiny = self.detector.attributes.get("size") == "tiny" and not self.settings.embed
        threads, lanes = torch.get_num_threads(), 1
        if tiny and self.device.type == "cpu":
            lanes = min(threads_of(self.settings), _MOST_LANES)
        torch.set_num_threads(max(1, threads // lanes))
        try:
            yield lanes
        finally:
            torch.set_num_threads(threads)

    def _write(self, batch: FeatureBatch) -> None:
        attributes = dict(self.detector.attributes)
        if self.screenshots is not None:
            attributes[CAPTURES] = captures_hash(batch.keys, self.screenshots)
        write_part(self.features, batch, attributes, self.settings.half)

    def _on_device(self, captures: Iterator[Capture]) -> Iterator[_Batch]:
        """Yield batches with pixels on the device; runs in a separate thread."""
        if self.device.type != "cuda":
            yield from ((pages, to_batch(images)) for pages, images in self._batches(captures))
            return
        copies = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        for pages, images in self._batches(captures):
            with torch.cuda.stream(copies):  # else pinning would use another device
                pixels = to_batch(images).pin_memory().to(self.device, non_blocking=True)
            copies.synchronize()  # only this thread waits, not the model's
            # The model's stream reads memory that was allocated on this one.
            pixels.record_stream(torch.cuda.default_stream(self.device))
            yield pages, pixels

    def _batches(
        self, captures: Iterator[Capture]
    ) -> Iterator[tuple[list[Page], list[np.ndarray]]]:
        """Collect batches; none crosses shards, so they are the same in every worker."""
        pages: list[Page] = []
        images: list[np.ndarray] = []
        for page, image in prefetch(self._decode, captures, threads_of(self.settings)):
            full = len(pages) == self.batch_size
            if full or (pages and _shard(pages[0].key) != _shard(page.key)):
                yield pages, images
                pages, images = [], []
            pages.append(page)
            images.append(image)
        if pages:
            yield pages, images

    def _decode(self, capture: Capture) -> tuple[Page, np.ndarray]:
        image = decode_screenshot(capture.screenshot, self.detector.input_size, capture.key)
        boxes = dom_boxes(capture.elements) if self.settings.regions == "dom" else []
        texts: list[TextBox] = []
        if self.read_screen is not None:
            texts = self.read_screen(capture)
        elif self.settings.text_source == "dom":
            texts = dom_text_boxes(capture.elements)
        return Page(capture.key, texts, boxes), image


def _keep_freed_memory() -> None:
    """Let glibc reuse freed memory.

    By default it returns each large tensor to the system, which clears the next one page by page:
    10 % of a detector's time on a CPU.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, without mallopt
        for option, value in _MALLOC.items():
            ctypes.CDLL(None).mallopt(option, value)


def _shard(key: str) -> int:
    return int(key.partition("_")[0])
