"""Boxes from any object detector of the `transformers` library, by hub name or folder."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from safetensors import SafetensorError
from torch import Tensor
from torchvision.ops import box_convert

from now_builder.errors import ConfigError
from now_builder.hub.models import find_model, hash_of_files

_UNUSABLE = (OSError, ValueError, TypeError, RuntimeError, ImportError, SafetensorError)
_FILES = ("*.json", "*.safetensors")


def find_external(name: str) -> Path:
    """Return the folder of a detector: the one named, or the hub's, downloaded if need be.

    Raises:
        ConfigError: If it is neither a folder nor can be had, or holds no safetensors.
    """
    try:
        folder = find_model(name, _FILES)
    except ConfigError as error:
        raise _refused(name, str(error)) from None
    if not any(folder.glob("*.safetensors")):
        raise _refused(name, "no .safetensors in it, and pickled weights are not read")
    return folder


def fingerprint(folder: Path) -> str:
    """Hash weights, configuration and processor of a detector."""
    return hash_of_files(folder, _FILES)


class ExternalDetector:
    """A detector with its image processor, in float32, for boxes of any class.

    Raises:
        ConfigError: If it cannot be had, is no object detector, or lacks weights.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        # Late, because transformers is slow to import.
        from transformers import AutoImageProcessor, AutoModelForObjectDetection

        folder = find_external(name)
        try:
            model, loading = AutoModelForObjectDetection.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
            )
            processors: Any = AutoImageProcessor  # untyped
            self._processor = processors.from_pretrained(folder, local_files_only=True)
        except _UNUSABLE as error:
            raise _refused(name, str(error)) from None
        if loading["missing_keys"]:  # they would be random, and other ones each time
            missing = sorted(loading["missing_keys"])
            raise _refused(name, f"{len(missing)} parameters missing: {missing[:3]}")
        self._model: Any = model.eval().to(device)
        self._name = name

    @torch.inference_mode()
    def __call__(
        self, screenshots: UInt8[Tensor, "n 3 h w"]
    ) -> tuple[Float[Tensor, "n queries 4"], Float[Tensor, "n queries"]]:
        """Return all boxes, in shares of width and height, with the scores of their best classes.

        A detector with one class more than labels has learned "nothing here" as its last, under a
        softmax (DETR, YOLOS); the others score each class by itself.
        """
        device = self._model.device
        with torch.autocast(device.type, enabled=False):
            inputs = self._processor(images=list(screenshots), return_tensors="pt").to(device)
            found = self._model(**inputs)
        if getattr(found, "pred_boxes", None) is None:
            raise _refused(self._name, "it gives no boxes")
        logits = found.logits.float()
        nothing = logits.shape[2] > self._model.config.num_labels
        scores = logits.softmax(dim=2)[..., :-1] if nothing else logits.sigmoid()
        return box_convert(found.pred_boxes.float(), "cxcywh", "xyxy"), scores.amax(dim=2)


def _refused(name: str, reason: str) -> ConfigError:
    plain = " ".join(reason.split())
    return ConfigError(f"regions 'hf:{name}': not a usable detector ({plain:.250})")
