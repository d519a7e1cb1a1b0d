"""Extraction by the plain loop against `detect`'s: pages a second, and operations a page.

The plain loop processes one page at a time: decode, backbone in float32, 300 proposals, RoIAlign,
layer 4 and attention pool on each of them, classify, suppress, keep 36, as extraction scripts like
RegionCLIP's do. Ours is the stage itself: threads, batches, folded batch norms, precision, 100
proposals, parts on disk. Both have the same weights, pages and thresholds and take turns in one
process, so that other load on the machine slows both.

    python benchmarks/extract.py --size paper --pages 8
    python benchmarks/extract.py --size paper --device cuda --pages 512 --turn 128
"""

import argparse
import contextlib
import io
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode
from torchvision.ops import nms, roi_align

from now_builder.detect import boxes as geometry
from now_builder.detect.base import Page
from now_builder.detect.model.apt import PAPER, TINY, AptDetector, ModelConfig
from now_builder.detect.model.proposals import PageMaps
from now_builder.detect.model.text_encoder import (
    TextEncoder,
    dom_text_boxes,
    embed_text_boxes,
    linked_embeddings,
    make_text_encoder,
)
from now_builder.detect.model.weights import Computed, choose_device, choose_precision, to_inference
from now_builder.detect.pixels import decode_screenshot, to_batch
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.run import Pipeline, choose_batch_size
from now_builder.detect.settings import DetectSettings
from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, Element

KEEP, PLAIN_PROPOSALS, NMS = 36, 300, 0.5


class Plain:
    """Extract one page at a time, in float32, with every proposal through layer 4."""

    def __init__(self, model: AptDetector, encoder: TextEncoder, proposals: int) -> None:
        self.model, self.encoder, self.proposals = model, encoder, proposals
        self.size = model.config.input_size
        self.embedded: list[int] = []

    @torch.inference_mode()
    def __call__(self, capture: Capture) -> np.ndarray:
        """Return the 36 boxes of a page, in input px; compute its features and drop them."""
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
        selected: np.ndarray = regressed[kept].cpu().numpy()
        return selected

    def propose(self, maps: PageMaps) -> tuple[Tensor, Tensor]:
        """Suppress the best anchors' boxes at the model's threshold."""
        objectness, deltas, anchors = self.model.rpn(maps)
        best, places = objectness[0].topk(min(self.model.config.candidates, len(anchors.boxes)))
        decoded = geometry.decode(deltas[0][places], anchors.boxes[places])
        boxes = geometry.clip(decoded, self.size)
        kept = nms(boxes, best, self.model.config.overlap)[: self.proposals]
        return boxes[kept], best[kept].sigmoid()

    def texts(self, capture: Capture, boxes: Tensor) -> Tensor:
        """Embed the texts in each box."""
        factors = (self.size[0] / WIDTH, self.size[1] / HEIGHT)
        texts = dom_text_boxes(capture.elements)
        places, vectors = embed_text_boxes(self.encoder, texts, factors)
        return linked_embeddings(boxes, places.to(boxes.device), vectors.to(boxes.device))


def drawn(count: int, seed: int = 0) -> list[Capture]:
    """Draw pages of bars, pictures and lines of text, as input for timing alone."""
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


def draw_model(config: ModelConfig, device: torch.device) -> AptDetector:
    """Build a detector with random weights, the same in every call."""
    torch.manual_seed(0)
    # Random weights prefer one large anchor everywhere: suppression would leave a dozen boxes,
    # where it leaves hundreds with trained ones.
    config = config.model_copy(update={"overlap": 1.0})
    model = AptDetector(config, normalize(torch.randn(18, 768), dim=1)).eval()
    return model.to(memory_format=torch.channels_last).to(device)


class Ours:
    """Run the stage's loop over captures in memory."""

    def __init__(
        self, model: AptDetector, encoder: TextEncoder, settings: DetectSettings, proposals: int
    ) -> None:
        self.settings = settings
        size = model.config.size
        self.batch = settings.batch_size or choose_batch_size(settings.device, size)
        self.extractor = AptExtractor(model, encoder, {"size": size}, proposals=proposals)

    def __call__(self, captures: Sequence[Capture]) -> float:
        """Return the seconds from bytes to parts on disk."""
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            start = time.perf_counter()
            pipeline = Pipeline(self.extractor, Path(folder) / "f.h5", self.settings, self.batch)
            pipeline.run(iter(captures), len(captures), 0)
            return time.perf_counter() - start

    def once(self, captures: Sequence[Capture]) -> FeatureBatch:
        """Run the model alone on a batch."""
        size = self.extractor.input_size
        images = [decode_screenshot(one.screenshot, size, one.key) for one in captures]
        pages = [Page(one.key, dom_text_boxes(one.elements)) for one in captures]
        return self.extractor.extract(pages, to_batch(images))


def flops_of(ours: Ours, capture: Capture) -> float:
    """Count multiplications and additions of a page."""
    with FlopCounterMode(display=False) as counter:
        ours.once([capture])
    return float(counter.get_total_flops())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", choices=["tiny", "paper"], default="paper")
    parser.add_argument("--pages", type=int, default=8)
    parser.add_argument("--turn", type=int, default=0, help="pages at a turn; 0: a batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    precisions = ["auto", "fp32", "mixed", "bf16", "fp16"]
    parser.add_argument("--precision", default="auto", choices=precisions)
    parser.add_argument("--proposals", type=int, nargs="+", default=[100], help="of ours")
    parser.add_argument("--batch-size", type=int, default=0)
    options = parser.parse_args()
    device = choose_device(options.device)
    torch.set_num_threads(options.threads or os.cpu_count() or 1)
    captures, config = drawn(options.pages), PAPER if options.size == "paper" else TINY
    model = draw_model(config, device)
    plain = Plain(model, make_text_encoder("hash:0", device), PLAIN_PROPOSALS)
    precision = choose_precision(
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
    precision: Computed,
    proposals: int,
    options: argparse.Namespace,
) -> None:
    """Run both by turns and print their figures."""
    fast = to_inference(draw_model(plain.model.config, device), precision)
    settings = DetectSettings(
        device=str(device),
        threads=options.threads,
        batch_size=options.batch_size,
    )
    ours = Ours(fast, plain.encoder, settings, proposals)
    turn = options.turn or ours.batch
    plain(captures[0])
    ours(captures[:turn])
    slow_s = fast_s = 0.0
    for start in range(0, len(captures), turn):
        some = captures[start : start + turn]
        begun = time.perf_counter()
        for capture in some:
            plain(capture)
        slow_s += time.perf_counter() - begun
        fast_s += ours(some)
    count = len(captures)
    print(f"ours with {proposals} proposals:")
    print(
        f"  plain {count / slow_s:.3f} pages/s, ours {count / fast_s:.3f}: {slow_s / fast_s:.2f}x"
    )
    print(f"  the plain loop embeds {np.mean(plain.embedded):.0f} proposals a page")
    flops = flops_of(ours, captures[0])
    rate = flops * count / fast_s / 1e12
    print(f"  {flops / 1e9:.0f} GFLOP a page, {rate:.3f} TFLOP/s")


if __name__ == "__main__":
    main()
