"""Part 5: some minutes of training the detector on labelled screenshots: does it learn?"""

import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.extract import drawn
from benchmarks.gpu.machine import ROOT, Check
from benchmarks.gpu.report import Goal
from benchmarks.gpu.screenshots import LABELS, write_screenshots
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.callbacks import history_path
from now_builder.detect.training.data import TrainPages, read_coco_pages
from now_builder.detect.training.loop import Training
from now_builder.detect.training.run import train_detector

TRAIN_S = 300.0
WARM, TIMED = 3, 12
HELD_OUT = 0.15
FEW = 8
"""Pages of a rehearsal."""

LEARNS = Goal(0.8, at_least=False)
SAME = {"text_encoder": "hash:0", "held_out": HELD_OUT}


def run(check: Check) -> None:
    """Time some steps, choose how many fill the time, train, and look at the story.

    Raises:
        RuntimeError: If there are no screenshots, or nothing was learned.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = screenshots(check, Path(scratch))
        labels = folder / LABELS
        if check.tiny:
            labels = first(labels, FEW, Path(scratch) / LABELS)
        pages = read_coco_pages(folder, labels, HELD_OUT)
        check.add("pages to learn from", len(pages.learn), "pages",
                  note=f"{len(pages.held_out)} of other sites held out")  # fmt: skip
        base = TrainDetectorSettings(
            **SAME, coco=labels, device=str(check.device),
            size="tiny" if check.tiny else "paper", threads=1 if check.tiny else 0,
            precision="fp32" if check.device.type == "cpu" else "bf16",
            batch_size=2 if check.tiny else 0,
        )  # fmt: skip
        each = time_steps(check, base, pages, Path(scratch) / "timed.safetensors")
        room = min(TRAIN_S, 0.6 * check.left_s)
        steps = 16 if check.tiny else max(50, int(room / each))
        settings = base.model_copy(update={"steps": steps, "measure_every": 10**6})
        weights = Path(scratch) / "detector.safetensors"
        check.forget_peak()
        begun = time.perf_counter()
        summary = train_detector(folder, weights, settings)
        check.add("training", time.perf_counter() - begun, "s", note=f"{steps} steps, and measures")
        check.add("training, peak memory", check.peak_gib(), "GiB")
        if summary.measures is not None:
            for name, value in summary.measures.figures.items():
                check.add(f"held-out pages, {name}", value, "", note="after the last step")
        judge(check, history_path(weights))


def screenshots(check: Check, scratch: Path) -> Path:
    """Find the labelled screenshots of the bundle; a rehearsal may draw some.

    Raises:
        RuntimeError: If there are none.
    """
    bundle = Path(os.environ.get("BUNDLE", ROOT / ".gpu-bundle"))
    found = (bundle if bundle.is_absolute() else ROOT / bundle) / "screenshots"
    if (found / LABELS).exists():
        return found
    if not check.tiny:
        raise RuntimeError(f"{found / LABELS} is missing; scripts/gpu_bundle.sh makes it")
    sites = (f"site{number % 4}.test" for number in range(FEW))
    write_screenshots(zip(sites, drawn(FEW), strict=True), scratch / "drawn")
    return scratch / "drawn"


def first(labels: Path, count: int, copy: Path) -> Path:
    """Copy the labels of the first few images; give the copy."""
    tree = json.loads(labels.read_text(encoding="utf-8"))
    images = tree["images"][:count]
    kept = {image["id"] for image in images}
    boxes = [box for box in tree["annotations"] if box["image_id"] in kept]
    copy.write_text(json.dumps({**tree, "images": images, "annotations": boxes}), encoding="utf-8")
    return copy


def time_steps(
    check: Check, settings: TrainDetectorSettings, pages: TrainPages, weights: Path
) -> float:
    """Time single steps of a training that is thrown away; give the median."""
    warm, timed = (1, 2) if check.tiny else (WARM, TIMED)
    training = Training(weights, settings.model_copy(update={"steps": 1000}), pages)
    seconds = []
    for _ in range(warm + timed):
        check.synchronize()
        begun = time.perf_counter()
        training.take_step()
        check.synchronize()
        seconds.append(time.perf_counter() - begun)
    median = float(np.median(seconds[warm:]))
    recipe = training.recipe
    views = f"{recipe.batch} pages in {recipe.views} view(s)"
    note = f"{views}, {settings.precision}, median of {timed}"
    check.add("a step", median, "s", note=note)
    check.add("steps", 1 / median, "steps/s")
    check.profile("A step of training", training.take_step)
    return median


def judge(check: Check, history: Path) -> None:
    """Hold the losses at the end against those at the beginning.

    Raises:
        RuntimeError: If they did not fall.
    """
    lines = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    totals = [sum(line["losses"].values()) for line in lines]
    rows: list[list[str | float]] = [
        [float(line["epoch"]), float(line["step"]), total,
         ", ".join(f"{name} {value:.3f}" for name, value in line["losses"].items())]
        for line, total in zip(lines, totals, strict=True)
    ]  # fmt: skip
    check.table("Losses by epoch", ["epoch", "step", "total", "parts"], rows)
    taken = np.diff([0, *(line["step"] for line in lines)])
    last = int(np.flatnonzero(taken == taken[0])[-1])  # the very last one may be a part
    fall = totals[last] / totals[0]
    check.add("loss of the last whole epoch to the first", fall, "×", LEARNS)
    if fall >= 1.0:
        raise RuntimeError(f"nothing was learned: the loss went from {totals[0]} to {totals[last]}")
