"""Extraction by the plain loop against `detect`'s: pages/s, the 36 boxes of both, memory, profile.

The plain loop takes one page at a time: decode, backbone in float32, 300 proposals, RoIAlign, layer
4 and attention pool on each of them, classify, suppress, keep 36. That is how extraction scripts of
the RegionCLIP kind work. Ours is the stage itself: its threads, batches, folded batch norms,
precision, 100 proposals, parts on disk. Both have the same weights, pages and thresholds, in one
process, by turns, so that whatever else the machine does bothers both alike.

    python benchmarks/extract.py --size paper --pages 8                    # random weights
    python benchmarks/extract.py --weights detector.safetensors --captures captures --pages 64
    python benchmarks/extract.py --size paper --device cuda --pages 512 --turn 128 --peak 989
"""

import argparse
import contextlib
import io
import os
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from torchvision.ops import box_iou, nms, roi_align

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page
from now_builder.detect.model import text_encoder as encoders
from now_builder.detect.model import weights as detector_weights
from now_builder.detect.model.apt import PAPER, TINY, AptDetector, ModelConfig
from now_builder.detect.model.proposals import PageMaps
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.run import Pipeline, choose_batch_size
from now_builder.detect.settings import DetectSettings
from now_builder.formats.feature_parts import read_part, read_parts
from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, Element, read_captures

KEEP, PLAIN_PROPOSALS, NMS = 36, 300, 0.5


class Plain:
    """One page at a time, in float32, every proposal through layer 4."""

    def __init__(self, model: AptDetector, encoder: encoders.TextEncoder, proposals: int) -> None:
        self.model, self.encoder, self.proposals = model, encoder, proposals
        self.size = model.config.input_size
        self.embedded: list[int] = []

    @torch.inference_mode()
    def __call__(self, capture: Capture) -> np.ndarray:
        """Return the 36 boxes of a page, in input px; its features are made and thrown away."""
        model = self.model
        image = to_batch([decode_screenshot(capture.screenshot, self.size, capture.key)])
        image = image.to(model.centre.device)
        maps = model.maps(image)
        boxes, objectness = self.propose(maps)
        self.embedded.append(len(boxes))
        half = 2 * model.config.side
        scale, points = 1 / model.visual.stride, model.config.sampling
        crops = roi_align(maps.regions, [boxes], half, scale, points, aligned=True)
        pooled = model.visual.attnpool(model.visual.layer4(crops))
        embedded = model.projection(pooled)
        probabilities = model.classify(embedded, self.texts(capture, boxes), boxes).softmax(dim=1)
        best = probabilities[:, :-1].max(dim=1).values
        regressed = geometry.decode(model.regression(pooled), boxes)
        regressed = geometry.clip(regressed, self.size)
        kept, _ = geometry.select(regressed, (best * objectness).sqrt(), KEEP, NMS)
        model.export(embedded[kept], image, [boxes[kept]]).cpu()
        found: np.ndarray = regressed[kept].cpu().numpy()
        return found

    def propose(self, maps: PageMaps) -> tuple[Tensor, Tensor]:
        """Suppress the best anchors' boxes at the model's own threshold."""
        objectness, deltas, anchors = self.model.rpn(maps)
        best, places = objectness[0].topk(min(self.model.config.candidates, len(anchors.boxes)))
        found = geometry.decode(deltas[0][places], anchors.boxes[places])
        boxes = geometry.clip(found, self.size)
        kept = nms(boxes, best, self.model.config.overlap)[: self.proposals]
        return boxes[kept], best[kept].sigmoid()

    def texts(self, capture: Capture, boxes: Tensor) -> Tensor:
        """Embed the strings in each box."""
        factors = (self.size[0] / WIDTH, self.size[1] / HEIGHT)
        texts = encoders.dom_text_boxes(capture.elements)
        places, vectors = encoders.embed_text_boxes(self.encoder, texts, factors)
        return encoders.linked_embeddings(boxes, places.to(boxes.device), vectors.to(boxes.device))


class Memory:
    """The highest memory seen while it runs, MiB: the GPU's if there is one, else the process's."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.highest = device, 0.0
        self._stop = threading.Event()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch a block."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            yield
            self.highest = max(self.highest, torch.cuda.max_memory_allocated(self.device) / 2**20)
            return
        self._stop.clear()
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        yield
        self._stop.set()
        watcher.join()

    def _watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._stop.wait(0.02):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * page / 2**20
            self.highest = max(self.highest, resident)


def drawn(count: int, seed: int = 0) -> list[Capture]:
    """Draw pages of bars, pictures and lines of text: something to compute on, not a test set."""
    captures = []
    for number in range(count):
        draw = random.Random(seed * 100_003 + number)
        image = Image.new("RGB", (WIDTH, HEIGHT), (draw.randrange(200, 256),) * 3)
        pen, elements, y = ImageDraw.Draw(image), [], 20
        while y < HEIGHT - 160:
            colour = tuple(draw.randrange(230) for _ in range(3))
            if draw.random() < 0.4:
                right, bottom = draw.randrange(200, WIDTH), y + draw.randrange(60, 300)
                box = (24.0, float(y), float(right), float(bottom))
                pen.rectangle(box, fill=colour)
                pen.ellipse((60, y + 10, 120, y + 50), fill=colour[::-1])
                elements.append(Element(box, "img", "img"))
                y = bottom + 16
            else:
                text = " ".join(f"{draw.randrange(10**6):x}" for _ in range(draw.randrange(2, 7)))
                font = ImageFont.load_default(draw.choice([22, 30, 44]))
                box = tuple(map(float, pen.textbbox((24, y), text, font=font)))
                pen.text((24, y), text, fill=colour, font=font)
                box = (box[0], box[1], min(box[2], WIDTH), box[3])
                elements.append(Element(box, "p", "paragraph", text, box))
                y = int(box[3]) + 14
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        captures.append(Capture(f"00000_{number:04d}", buffer.getvalue(), b"", elements))
    return captures


def load(options: argparse.Namespace, device: torch.device) -> tuple[AptDetector, str]:
    """Load the weights, or draw some; and the name of the text encoder."""
    if options.weights:
        model, card = detector_weights.load_detector(options.weights, device)
        return model, card.text_encoder
    return draw_model(PAPER if options.size == "paper" else TINY, device), "hash:0"


def draw_model(config: ModelConfig, device: torch.device) -> AptDetector:
    """Draw the weights of a detector, always the same."""
    torch.manual_seed(0)
    # Random weights prefer one large anchor everywhere, of which suppression would leave a dozen;
    # trained ones leave hundreds.
    config = config.model_copy(update={"overlap": 1.0})
    model = AptDetector(config, normalize(torch.randn(18, 768), dim=1)).eval()
    return model.to(memory_format=torch.channels_last).to(device)


def overlap(plain: np.ndarray, ours: np.ndarray) -> tuple[float, float]:
    """Return the share of the plain loop's boxes that ours holds at IoU 0.9, and at 0.5."""
    best = box_iou(torch.from_numpy(plain), torch.from_numpy(ours)).amax(dim=1)
    return float((best >= 0.9).float().mean()), float((best >= 0.5).float().mean())


class Ours:
    """The stage's own loop over captures that are in memory.

    Attributes:
        waited_s: Seconds of the last call that the model waited for decoded screenshots.
        wrote_s: And for the disk.
    """

    def __init__(
        self, model: AptDetector, encoder: encoders.TextEncoder, settings: DetectSettings
    ) -> None:
        self.settings = settings
        size = model.config.size
        self.batch = settings.batch_size or choose_batch_size(settings.device, size)
        self.extractor = AptExtractor(model, encoder, {"size": size}, proposals=settings.proposals)
        self.waited_s = self.wrote_s = 0.0
        self.factors = np.array([*model.config.input_size] * 2) / ([WIDTH, HEIGHT] * 2)

    def __call__(self, captures: Sequence[Capture]) -> tuple[float, dict[str, np.ndarray]]:
        """Return the seconds from bytes to parts on disk, and the boxes by key in input px."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            features = Path(folder) / "f.h5"
            start = time.perf_counter()
            pipeline = Pipeline(self.extractor, features, self.settings, self.batch)
            self.waited_s, self.wrote_s = pipeline.run(iter(captures), len(captures), 0)
            seconds = time.perf_counter() - start
            batches = [read_part(part)[0] for part in read_parts(features)]
        scaled = {
            key: (boxes * self.factors).astype(np.float32)
            for batch in batches
            for key, boxes in zip(batch.keys, batch.boxes, strict=True)
        }
        return seconds, scaled

    def once(self, captures: Sequence[Capture]) -> FeatureBatch:
        """Run the model alone on a batch."""
        size = self.extractor.input_size
        images = [decode_screenshot(one.screenshot, size, one.key) for one in captures]
        pages = [Page(one.key, encoders.dom_text_boxes(one.elements)) for one in captures]
        return self.extractor.extract(pages, to_batch(images))


def flops_of(ours: Ours, capture: Capture) -> float:
    """Count multiplications and additions of a page."""
    with FlopCounterMode(display=False) as counter:
        ours.once([capture])
    return float(counter.get_total_flops())


def profiled(ours: Ours, captures: Sequence[Capture], device: torch.device) -> str:
    """Return the table of where the time of a batch goes."""
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=kinds) as recorded:
        ours.once(captures)
    order = f"self_{device.type}_time_total"
    table: str = recorded.key_averages().table(
        sort_by=order, row_limit=15, max_name_column_width=32
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", type=Path, help="trained; without, random ones of --size")
    parser.add_argument("--size", choices=["tiny", "paper"], default="paper")
    parser.add_argument("--captures", type=Path, help="without, pages are drawn")
    parser.add_argument("--pages", type=int, default=8)
    parser.add_argument("--turn", type=int, default=0, help="pages at a turn; 0: a batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    precisions = ["auto", "fp32", "mixed", "bf16", "fp16"]
    parser.add_argument("--precision", default="auto", choices=precisions)
    parser.add_argument("--proposals", type=int, nargs="+", default=[100], help="of ours")
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--peak", type=float, default=0.0, help="of the device, TFLOP/s")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    device = detector_weights.choose_device(options.device)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    given, count = options.captures, options.pages
    captures = list(islice(read_captures(given), count)) if given else drawn(count)
    model, encoder_name = load(options, device)
    encoder = encoders.make_text_encoder(encoder_name, device)
    plain = Plain(model, encoder, PLAIN_PROPOSALS)
    precision = detector_weights.choose_precision(
        options.precision, device, model.config.size, reads=model.config.words
    )
    threads = torch.get_num_threads()
    print(
        f"{model.config.size} {model.config.input_size}, {device}, {threads} threads, "
        f"{len(captures)} pages; plain: {PLAIN_PROPOSALS} proposals, fp32; ours: {precision}"
    )
    for proposals in options.proposals:
        compare(plain, captures, device, precision, proposals, options)


def compare(
    plain: Plain,
    captures: Sequence[Capture],
    device: torch.device,
    precision: detector_weights.Computed,
    proposals: int,
    options: argparse.Namespace,
) -> None:
    """Run both by turns, and print what was seen."""
    fast, _ = load(options, device)
    fast = detector_weights.to_inference(fast, precision)
    settings = DetectSettings(
        device=str(device),
        threads=options.threads,
        batch_size=options.batch_size,
        proposals=proposals,
    )
    ours = Ours(fast, plain.encoder, settings)
    turn = options.turn or ours.batch
    plain(captures[0])
    ours(captures[:turn])
    slow_s = fast_s = slow_cpu_s = fast_cpu_s = 0.0
    slow_mib, fast_mib = Memory(device), Memory(device)
    shares = []
    for start in range(0, len(captures), turn):
        some = captures[start : start + turn]
        with slow_mib.watched():
            begun, begun_cpu = time.perf_counter(), time.process_time()
            expected = {capture.key: plain(capture) for capture in some}
            slow_s += time.perf_counter() - begun
            slow_cpu_s += time.process_time() - begun_cpu
        with fast_mib.watched():
            begun_cpu = time.process_time()
            seconds, found = ours(some)
            fast_cpu_s += time.process_time() - begun_cpu
        fast_s += seconds
        shares += [overlap(boxes, found[key]) for key, boxes in expected.items()]
    count = len(captures)
    print(f"ours with {proposals} proposals:")
    print(
        f"  plain {count / slow_s:.3f} pages/s, ours {count / fast_s:.3f}: {slow_s / fast_s:.2f}x"
    )
    print(f"  the plain loop embeds {np.mean(plain.embedded):.0f} proposals a page")
    print(f"  CPU-s a page: plain {slow_cpu_s / count:.2f}, ours {fast_cpu_s / count:.2f}")
    close, near = np.mean(shares, axis=0)
    meaning = "" if options.weights else " (random weights: not meaningful)"
    print(f"  overlap of the top {KEEP}: {close:.3f} at IoU 0.9, {near:.3f} at 0.5{meaning}")
    print(f"  peak memory: plain {slow_mib.highest:.0f} MiB, ours {fast_mib.highest:.0f} MiB")
    flops = flops_of(ours, captures[0])
    rate = flops * count / fast_s / 1e12
    roof = f", {rate / options.peak:.1%} of {options.peak:g}" if options.peak else ""
    print(f"  {flops / 1e9:.0f} GFLOP a page, {rate:.3f} TFLOP/s{roof}")
    if options.profile:
        print(profiled(ours, captures[: ours.batch], device))


if __name__ == "__main__":
    main()
