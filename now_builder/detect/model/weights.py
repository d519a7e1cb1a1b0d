"""Detector weights on disk: a safetensors file and, beside it, a JSON that describes them."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from now_builder.config import Strict, build
from now_builder.detect.labels.mapping import ClassMapping
from now_builder.detect.model.apt import AptDetector, ModelConfig
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import read_json, replacing, sha256_of, write_json

FORMAT = "now-detector/2"
SHIPPED = "tiny-web"
"""Name of the weights that come with the package."""


class DetectorCard(Strict):
    """The JSON beside the weights.

    Attributes:
        model: Architecture.
        classes: English names of the classes, in order.
        mapping: Mapping of elements to the classes, with Chinese names; ``None``: the default.
        prompts: Frozen embedding of each class.
        text_encoder: Encoder of prompts and page text.
        weights_sha256: Hash of the safetensors file; reveals a torn or mixed-up pair.
        settings: Settings of the training.
        trained_on: Pages, sites, steps, fingerprint of the pages.
        measured: Figures on the held-out part of the train pool.
        measured_by_class: The same of each class.
        words: How the word reader was trained, on what, and figures; empty: not at all.
    """

    format: str = FORMAT
    model: ModelConfig
    classes: list[str]
    mapping: ClassMapping | None = None
    prompts: list[list[float]]
    text_encoder: str
    weights_sha256: str
    settings: dict[str, Any] = Field(default_factory=dict)
    trained_on: dict[str, Any] = Field(default_factory=dict)
    measured: dict[str, float] = Field(default_factory=dict)
    measured_by_class: dict[str, dict[str, float]] = Field(default_factory=dict)
    words: dict[str, Any] = Field(default_factory=dict)


def find_weights(named: Path | None) -> Path:
    """Return the path of weights: a file's own, or for ``tiny-web`` or ``None`` the shipped ones.

    A file of the name ``tiny-web`` goes first.
    """
    if named is None or (str(named) == SHIPPED and not named.exists()):
        return Path(__file__).with_name(f"{SHIPPED}.safetensors")
    return named


def card_path(weights: Path) -> Path:
    """Return the path of the JSON of a weights file."""
    return weights.with_suffix(".json")


def write_weights(path: Path, state: dict[str, Tensor], card: DetectorCard) -> DetectorCard:
    """Write the JSON, the hash filled in, then, last, the weights, each by rename."""
    with replacing(path) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, temporary)
        card = card.model_copy(update={"weights_sha256": sha256_of(temporary)})
        write_json(card_path(path), card.model_dump(mode="json"))
    return card


def read_card(weights: Path) -> DetectorCard:
    """Read the JSON beside a weights file, and check that it is that file's.

    Raises:
        ConfigError: If the weights are missing.
        FormatError: If the JSON is missing, torn, or of other weights.
    """
    if not weights.is_file():
        raise ConfigError(
            f"{weights}: no such weights; `now-builder train-detector` makes them, {SHIPPED} come "
            "with the package"
        )
    path = card_path(weights)
    tree = read_json(path, f"missing; it belongs to {weights.name}")
    found = tree.get("format") if isinstance(tree, dict) else type(tree).__name__
    if found != FORMAT:
        raise FormatError(path, f"format {found!r}, expected {FORMAT!r}")
    # Earlier trainings, tiny-web's among them, also mapped categories of other data sets.
    if isinstance(mapping := tree.get("mapping"), dict):
        mapping.pop("names", None)
    card = build(DetectorCard, tree, str(path))
    actual = sha256_of(weights)
    if card.weights_sha256 != actual:
        raise FormatError(
            path,
            f"weights_sha256 is {card.weights_sha256[:12]}…, but {weights.name} has "
            f"{actual[:12]}…: not the JSON of these weights",
        )
    return card


def load_detector(weights: Path, device: torch.device) -> tuple[AptDetector, DetectorCard]:
    """Load a trained detector.

    Raises:
        ConfigError: If the weights are missing.
        FormatError: If they are torn or do not fit their JSON.
    """
    card = read_card(weights)
    model = AptDetector(card.model, to_prompts(card))
    try:
        model.load_state_dict(load_file(weights))
    except (SafetensorError, OSError) as error:
        raise FormatError(weights, f"not a readable safetensors file ({error})") from None
    except RuntimeError as error:
        raise FormatError(weights, f"does not fit its JSON ({str(error)[:300]})") from None
    model = model.to(memory_format=torch.channels_last).to(device)
    return model.eval(), card


def to_prompts(card: DetectorCard) -> Float[Tensor, "classes 768"]:
    """Return the class prompts of a card as a tensor."""
    return torch.tensor(card.prompts, dtype=torch.float32)


def choose_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu``, ``cuda`` or ``cuda:N`` into a device.

    Raises:
        ConfigError: If the name is unknown, or CUDA is asked for and is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r}: expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: no CUDA device here")
    return device
