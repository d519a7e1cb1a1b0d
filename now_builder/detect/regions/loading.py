"""From the settings of detect to a detector, and to the attributes of the feature file."""

import json
import os
from functools import lru_cache
from pathlib import Path

import torch

from now_builder.detect.base import Detector
from now_builder.detect.model.inference import Computed, choose_precision, to_inference
from now_builder.detect.model.patch_features import WORDS
from now_builder.detect.model.text_encoder import make_text_encoder
from now_builder.detect.model.weights import (
    DetectorCard,
    choose_device,
    find_weights,
    load_detector,
    read_card,
)
from now_builder.detect.model.word_reader import EDITION
from now_builder.detect.ocr import ocr_attributes
from now_builder.detect.regions import detectron2 as detectron
from now_builder.detect.regions.embedded import EmbeddedRegions, embed_attributes
from now_builder.detect.regions.external import ExternalDetector, find_external, fingerprint
from now_builder.detect.regions.extraction import AptExtractor
from now_builder.detect.regions.sources import DomBoxes, ExternalBoxes, RegionSource
from now_builder.detect.settings import DetectSettings
from now_builder.dual_encoder import DualEncoder
from now_builder.errors import ConfigError
from now_builder.formats.word_vectors import columns_attribute

_HUB = "hf:"
_READS = {"words": columns_attribute(WORDS), "words_edition": EDITION}


def resolve_settings(settings: DetectSettings) -> DetectSettings:
    """Fill in device and precision, so that all workers on a file compute alike.

    Raises:
        ConfigError: If the device or the precision on it cannot be had.
    """
    card = None if _by_detectron2(settings) else _card(settings)
    size = card.model.size if card else "detectron2"
    reads = card is not None and _reads(settings, card)
    if size == "detectron2" and settings.precision == "fp16":
        raise ConfigError("precision fp16: not of a detectron2 model; expected auto, fp32 or bf16")
    if settings.engine == "ray":  # the workers are elsewhere
        cpu = torch.device("cpu")
        auto = "bf16" if settings.worker_gpus else choose_precision("auto", cpu, size, reads=reads)
        precision = auto if settings.precision == "auto" else settings.precision
        return settings.model_copy(update={"precision": precision})
    device = choose_device(settings.device)
    if str(device) == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    precision = choose_precision(settings.precision, device, size, reads=reads)
    return settings.model_copy(update={"device": str(device), "precision": precision})


def attributes_of(settings: DetectSettings) -> dict[str, str]:
    """Return the attributes of a feature file, so that no other detector adds to it."""
    shared = {
        "text_source": settings.text_source,
        **(ocr_attributes(settings.ocr_languages) if settings.text_source == "ocr" else {}),
        "precision": settings.precision,
        "storage": "float16" if settings.half else "float32",
        **(embed_attributes(settings.embed) if settings.embed else {}),
    }
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
        "proposals": str(settings.proposals),
        **(_READS if _reads(settings, card) else {}),
        **_source_attributes(settings.regions, settings.region_score),
        **shared,
    }


@lru_cache(maxsize=1)
def load(settings: DetectSettings, attributes: tuple[tuple[str, str], ...]) -> Detector:
    """Load the detector; a worker keeps it from task to task."""
    torch.set_num_threads(threads_of(settings))
    device = choose_device(settings.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    found = dict(attributes)
    precision = choose_precision(
        settings.precision, device, found.get("size", ""), reads="words" in found
    )
    detector = _load_detector(settings, dict(attributes), device, precision)
    if not settings.embed:
        return detector
    tower = "fp32" if precision == "mixed" else precision  # there are no words here
    encoder = DualEncoder(settings.embed, device, tower)
    return EmbeddedRegions(detector, encoder, dict(attributes))


def _load_detector(
    settings: DetectSettings, attributes: dict[str, str], device: torch.device, precision: Computed
) -> Detector:
    if _by_detectron2(settings):
        network = detectron.Network(detectron.read_model_spec(settings.regions), device)
        return detectron.Detectron2Detector(
            network, attributes, autocast=precision in {"bf16", "fp16"}
        )
    model, card = load_detector(find_weights(settings.weights), device)
    if model.patches is not None and not _reads(settings, card):
        model.patches.words = None
    model = to_inference(model, precision)
    encoder = make_text_encoder(card.text_encoder, device)
    source = _make_source(settings.regions, device, settings.region_score)
    return AptExtractor(model, encoder, attributes, source, settings.proposals)


def threads_of(settings: DetectSettings) -> int:
    """Return the CPU threads of this process: its share of the machine's, unless set."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's, on this machine
    return settings.threads or max(1, (os.cpu_count() or 1) // processes)


def _reads(settings: DetectSettings, card: DetectorCard) -> bool:
    """Return whether the words that a detector reads are stored."""
    return card.model.words and settings.words and not settings.embed


def _by_detectron2(settings: DetectSettings) -> bool:
    """Return whether a detectron2 model finds and embeds regions by itself."""
    return settings.weights is None and settings.regions.startswith(detectron.PREFIX)


def _card(settings: DetectSettings) -> DetectorCard:
    return read_card(find_weights(settings.weights))


def _make_source(name: str, device: torch.device, least: float) -> RegionSource | None:
    """Make a source: ``proposals``, ``dom``, ``hf:MODEL`` or ``detectron2:CONFIG[@WEIGHTS]``.

    Raises:
        ConfigError: If there is no such source, or it cannot be had.
    """
    if name == "proposals":
        return None  # the model's own
    if name == "dom":
        return DomBoxes()
    if name.startswith(_HUB):
        return ExternalBoxes(ExternalDetector(name.removeprefix(_HUB), device), least)
    if name.startswith(detectron.PREFIX):
        return detectron.Detectron2Boxes(detectron.Network(detectron.read_model_spec(name), device))
    raise ConfigError(
        f"regions {name!r}: expected proposals, dom, hf:NAME_OR_FOLDER or "
        "detectron2:CONFIG[@WEIGHTS]"
    )


def _source_attributes(name: str, least: float) -> dict[str, str]:
    """Return the attributes of a feature file that identify a source.

    A folder is named without its path; its hash distinguishes it from others.
    """
    if name.startswith(detectron.PREFIX):
        return detectron.source_attributes(name)
    if not name.startswith(_HUB):
        return {"regions": name}
    external = name.removeprefix(_HUB)
    local = Path(external).is_dir()
    return {
        "regions": _HUB + (Path(external).resolve().name if local else external),
        "regions_sha256": fingerprint(find_external(external)),
        "region_score": str(least),
    }


def absolute(name: str) -> str:
    """Return the name of a source with absolute paths, for processes in other folders."""
    if name.startswith(detectron.PREFIX):
        return detectron.with_absolute_paths(name)
    folder = Path(name.removeprefix(_HUB))
    return f"{_HUB}{folder.resolve()}" if name.startswith(_HUB) and folder.is_dir() else name
