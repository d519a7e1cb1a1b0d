"""Part e: extraction at the paper's size in bf16, against the plain loop."""

import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.extract import PLAIN_PROPOSALS, Ours, Plain, draw_model, drawn, flops_of
from benchmarks.gpu.machine import Check, measure_ceilings
from benchmarks.gpu.report import Goal
from now_builder.detect.model.apt import PAPER, TINY
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import to_inference
from now_builder.detect.pixels import decode_screenshot
from now_builder.detect.settings import DetectSettings
from now_builder.formats.feature_parts import merge_parts, write_part
from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import Capture

WEB = 100_000
DRAWN, REPEATED = 32, 8
BATCH = 16
MINUTES = Goal(30.0, at_least=False)
KEEPS_UP = 10.0
"""Percent of the time that the model may wait for others before they are said to hold it up."""


def run(check: Check) -> None:
    """Draw pages, then time the plain loop, ours, decoding and writing."""
    config, proposals = (TINY, 36) if check.tiny else (PAPER, 100)
    ceiling = measure_ceilings(check).flops["bf16"]
    pages = drawn(2 if check.tiny else DRAWN)
    many = pages if check.tiny else repeated(pages, REPEATED)
    encoder = make_text_encoder("hash:0", check.device)
    plain = Plain(draw_model(config, check.device), encoder, PLAIN_PROPOSALS)
    slow = time_plain(check, plain, pages[: DRAWN // 4])
    time_decoding(check, pages, config.input_size)
    settings = DetectSettings(
        device=str(check.device), threads=1 if check.tiny else 0, proposals=proposals,
        batch_size=2 if check.tiny else BATCH,
    )  # fmt: skip
    ours = Ours(to_inference(draw_model(config, check.device), "bf16"), encoder, settings)
    time_ours(check, f"bf16, {proposals} proposals", ours, many, slow, ceiling)
    time_writing(check, ours.once(pages[: ours.batch]), ours)
    work = partial(ours.once, pages[: ours.batch])
    check.profile(f"a batch of {ours.batch}", work)


def repeated(pages: Sequence[Capture], times: int) -> list[Capture]:
    """Yield pages again and again under other keys."""
    numbered = (page for _ in range(times) for page in pages)
    return [replace(page, key=f"00000_{number:04d}") for number, page in enumerate(numbered)]


def time_plain(check: Check, plain: Plain, pages: Sequence[Capture]) -> float:
    """Time the plain loop; give its pages/s."""
    plain(pages[0])
    check.forget_peak()
    begun = time.perf_counter()
    for page in pages:
        plain(page)
    rate = len(pages) / (time.perf_counter() - begun)
    check.add("plain loop", rate, "pages/s", note=f"fp32, {PLAIN_PROPOSALS} proposals, "
              f"{len(pages)} pages one at a time")  # fmt: skip
    check.add("plain loop, peak memory", check.peak_gib(), "GiB")
    return rate


def time_ours(
    check: Check, label: str, ours: Ours, pages: Sequence[Capture], slow: float, ceiling: float
) -> None:
    """Time the stage from bytes to parts on disk, and say what holds it up."""
    ours(pages[: ours.batch])
    check.forget_peak()
    seconds, _ = ours(pages)
    rate = len(pages) / seconds
    check.add(f"{label}", rate, "pages/s", note=f"{len(pages)} pages, batches of {ours.batch}")
    check.add(f"{label}: to the plain loop", rate / slow, "× as fast")
    flops = flops_of(ours, pages[0]) * rate
    check.add(f"{label}: of the product's ceiling", 100 * flops / ceiling, "%",
              note=f"{flops / rate / 1e9:.0f} GFLOP a page")  # fmt: skip
    check.add(f"{label}: peak memory", check.peak_gib(), "GiB")
    for name, waited in (("decoding", ours.waited_s), ("the disk", ours.wrote_s)):
        share = 100 * waited / seconds
        word = "keeps up" if share < KEEPS_UP else "holds the model up"
        check.add(f"{label}: waiting for {name}", share, "% of the time", note=word)
    check.add(f"{label}: {WEB} pages", WEB / rate / 60, "min", MINUTES)
    one = check.median_s(lambda: ours.once(pages[: ours.batch]), 5)
    check.add(f"{label}: a batch alone", len(pages[: ours.batch]) / one, "pages/s",
              note="decoded in one thread, then the model: no overlap")  # fmt: skip


def time_decoding(check: Check, pages: Sequence[Capture], size: tuple[int, int]) -> None:
    """Time the decoding of screenshots by itself, in as many threads as there are cores."""
    threads = 1 if check.tiny else os.cpu_count() or 1
    with ThreadPoolExecutor(threads) as pool:
        begun = time.perf_counter()
        list(pool.map(lambda page: decode_screenshot(page.screenshot, size, page.key), pages))
        seconds = time.perf_counter() - begun
    check.add("decoding alone", len(pages) / seconds, "pages/s", note=f"{threads} threads")


def time_writing(check: Check, batch: FeatureBatch, ours: Ours) -> None:
    """Time parts, and their merging into one feature file, by themselves."""
    parts = 2 if check.tiny else 64
    attributes = dict(ours.extractor.attributes)
    with tempfile.TemporaryDirectory() as folder:
        features = Path(folder) / "f.h5"
        batches = [
            replace(batch, keys=[f"00000_{part * len(batch.keys) + row:04d}"
                                 for row in range(len(batch.keys))])
            for part in range(parts)
        ]  # fmt: skip
        begun = time.perf_counter()
        for one in batches:
            write_part(features, one, attributes, half=False)
        middle = time.perf_counter()
        merge_parts(features, attributes, half=False)
        end = time.perf_counter()
    pages = parts * len(batch.keys)
    check.add("writing parts alone", pages / (middle - begun), "pages/s", note="one thread, synced")
    check.add(
        "merging parts into one HDF5 file", pages / (end - middle), "pages/s", note="at the end"
    )
