"""Load the detector for the settings of ``detect``; return the feature file's attributes."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from now_builder.detect.base import Detector, Page
from now_builder.detect.model.apt import PROPOSALS
from now_builder.detect.model.patch_features import WORDS
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import (
    DetectorCard,
    choose_device,
    choose_precision,
    find_weights,
    load_detector,
    read_card,
    to_inference,
)
from now_builder.detect.model.word_reader import EDITION
from now_builder.detect.ocr import LANGUAGES, ocr_attributes
from now_builder.detect.pixels import to_batch, to_pixels
from now_builder.detect.regions import detectron2 as detectron
from now_builder.detect.regions.extraction import PROJECTION, AptExtractor, to_768
from now_builder.detect.settings import DetectSettings
from now_builder.dual_encoder import PictureEncoder, encoder_name, find_encoder, hash_of_encoder
from now_builder.errors import ConfigError
from now_builder.formats.features import DIMENSION, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH
from now_builder.formats.word_vectors import columns_attribute

_READS = {"words": columns_attribute(WORDS), "words_edition": EDITION}


def resolve_settings(settings: DetectSettings) -> DetectSettings:
    """Fill in device and precision, so that all workers on a file use the same.

    Raises:
        ConfigError: If ``regions`` is invalid, or the device or its precision is not available.
    """
    size, reads = "detectron2", False
    if settings.regions in ("proposals", "dom"):
        card = _card(settings)
        size, reads = card.model.size, _reads(settings, card)
    elif not _by_detectron2(settings):
        raise ConfigError(
            f"regions {settings.regions!r}: expected proposals, dom or detectron2:CONFIG[@WEIGHTS]"
        )
    elif settings.weights is not None:
        raise ConfigError("--weights: not possible with --regions detectron2:. Give CONFIG@WEIGHTS")
    elif settings.precision == "fp16":
        raise ConfigError(
            "precision fp16: not possible with detectron2; expected auto, fp32 or bf16"
        )
    if settings.engine == "ray":  # the workers are on other machines
        precision = settings.precision
        if precision == "auto":
            cpu = torch.device("cpu")
            on_cpu = choose_precision("auto", cpu, size, reads=reads)
            precision = "bf16" if settings.worker_gpus else on_cpu
        return settings.model_copy(update={"precision": precision})
    device = choose_device(settings.device)
    if str(device) == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    precision = choose_precision(settings.precision, device, size, reads=reads)
    return settings.model_copy(update={"device": str(device), "precision": precision})


def attributes_of(settings: DetectSettings) -> dict[str, str]:
    """Return the attributes that identify the detector and its settings in a feature file."""
    shared = {
        "text_source": settings.text_source,
        **(ocr_attributes(LANGUAGES) if settings.text_source == "ocr" else {}),
        "precision": settings.precision,
        "storage": "float16" if settings.half else "float32",
    }
    if settings.embed:
        shared["embed"] = encoder_name(settings.embed)
        shared["embed_sha256"] = hash_of_encoder(find_encoder(settings.embed))
        shared["embed_projection"] = PROJECTION
    if _by_detectron2(settings):
        return {**detectron.detector_attributes(settings.regions), **shared}
    card = _card(settings)
    width, height = card.model.input_size
    return {
        "detector": "apt-style",
        "weights_sha256": card.weights_sha256,
        "size": card.model.size,
        "classes": json.dumps(card.classes),
        "text_encoder": card.text_encoder,
        "input_size": f"{width}x{height}",
        "proposals": str(PROPOSALS),
        **(_READS if _reads(settings, card) else {}),
        "regions": settings.regions,
        **shared,
    }


@lru_cache(maxsize=1)
def load(settings: DetectSettings, attributes: tuple[tuple[str, str], ...]) -> Detector:
    """Load the detector, cached for the next task of a worker."""
    torch.set_num_threads(threads_of(settings))
    device = choose_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    named = dict(attributes)
    reads = "words" in named
    precision = choose_precision(settings.precision, device, named.get("size", ""), reads=reads)
    detector: Detector
    if _by_detectron2(settings):
        network = detectron.Network(detectron.read_model_spec(settings.regions), device)
        autocast = precision in {"bf16", "fp16"}
        detector = detectron.Detectron2Detector(network, named, autocast=autocast)
    else:
        model, card = load_detector(find_weights(settings.weights), device)
        if model.patches is not None and not reads:
            model.patches.words = None
        model = to_inference(model, precision)
        encoder = make_text_encoder(card.text_encoder, device)
        dom = settings.regions == "dom"
        detector = AptExtractor(model, encoder, named, dom=dom)
    if settings.embed:
        tower = "fp32" if precision == "mixed" else precision  # mixed concerns only words
        detector = EmbeddedRegions(detector, PictureEncoder(settings.embed, device, tower), named)
    return detector


def threads_of(settings: DetectSettings) -> int:
    """Return the CPU threads of this process; default: its share of the machine's cores."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # set by torchrun
    return settings.threads or max(1, (os.cpu_count() or 1) // processes)


def _reads(settings: DetectSettings, card: DetectorCard) -> bool:
    """Return whether the words that a detector reads are stored."""
    return card.model.words and settings.words and not settings.embed


def _by_detectron2(settings: DetectSettings) -> bool:
    """Return whether a detectron2 model finds and embeds the regions."""
    return settings.regions.startswith(detectron.PREFIX)


def _card(settings: DetectSettings) -> DetectorCard:
    return read_card(find_weights(settings.weights))


class EmbeddedRegions:
    """Extract a detector's regions with features of a dual encoder's image tower.

    Boxes, scores, classes and their order are those of the detector. Each box is cropped from the
    full screenshot, resized to a square and embedded; the unit vector is projected by
    :func:`to_768` and scaled to a mean square of 1 per number, as the detector's features are.

    Source:
        Crops resized to the tower's input, whatever their shape: R-CNN (Girshick et al., CVPR
        2014).
    """

    def __init__(
        self, detector: Detector, encoder: PictureEncoder, attributes: Mapping[str, str]
    ) -> None:
        self._detector, self._encoder = detector, encoder
        self.attributes: Mapping[str, str] = dict(attributes)
        self.input_size = (WIDTH, HEIGHT)  # crops have the full resolution

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find 36 regions per page with the detector and embed their pixels."""
        shown = [Image.fromarray(each) for each in screenshots.permute(0, 2, 3, 1).cpu().numpy()]
        size = self._detector.input_size
        if size != self.input_size:
            screenshots = to_batch([to_pixels(picture, size) for picture in shown])
        batch = self._detector.extract(pages, screenshots)
        rows = []
        for picture, boxes in zip(shown, batch.boxes.tolist(), strict=True):
            vectors = self._encoder.images([picture.crop(_whole_pixels(box)) for box in boxes])
            rows.append(to_768(vectors) * DIMENSION**0.5)
        return replace(batch, regions=torch.stack(rows).numpy())


def _whole_pixels(box: Sequence[float]) -> tuple[int, int, int, int]:
    """Return the box of all pixels that a box touches, at least one, on the screen."""
    left, top = min(int(box[0]), WIDTH - 1), min(int(box[1]), HEIGHT - 1)
    right, bottom = min(math.ceil(box[2]), WIDTH), min(math.ceil(box[3]), HEIGHT)
    return left, top, max(right, left + 1), max(bottom, top + 1)
