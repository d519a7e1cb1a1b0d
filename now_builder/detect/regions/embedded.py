"""Regions described by the picture tower of a pre-trained dual encoder instead of the detector."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from now_builder.detect.base import Detector, Page
from now_builder.detect.pixels import to_batch, to_pixels
from now_builder.detect.regions.width import PROJECTION, to_768
from now_builder.dual_encoder import DualEncoder, encoder_name, find_encoder, hash_of_encoder
from now_builder.formats.features import DIMENSION, FeatureBatch
from now_builder.formats.shard import HEIGHT, WIDTH


def embed_attributes(name: str) -> dict[str, str]:
    """Return the attributes of a feature file that identify a picture tower."""
    sha256 = hash_of_encoder(find_encoder(name))
    return {"embed": encoder_name(name), "embed_sha256": sha256, "embed_projection": PROJECTION}


class EmbeddedRegions:
    """A detector whose regions have the features of a dual encoder's picture tower.

    Boxes, scores, classes and their order are the detector's own. Each box is cut out of the whole
    screenshot, squeezed to a square, and embedded; the unit vector is brought to 768 numbers by
    :func:`~now_builder.detect.regions.width.to_768` (which keeps inner products exactly from fewer
    numbers, and in expectation from more) with a mean square of 1 each, as the detector's are.

    Source:
        Crops resized to the tower's input, whatever their shape: R-CNN (Girshick et al., CVPR
        2014).
    """

    def __init__(
        self, detector: Detector, encoder: DualEncoder, attributes: Mapping[str, str]
    ) -> None:
        self._detector, self._encoder = detector, encoder
        self.attributes: Mapping[str, str] = dict(attributes)
        self.input_size = (WIDTH, HEIGHT)  # crops are of all pixels that there are

    @torch.inference_mode()
    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find 36 regions a page by the detector and embed their pixels."""
        shown = [
            Image.fromarray(pixels) for pixels in screenshots.permute(0, 2, 3, 1).cpu().numpy()
        ]
        size = self._detector.input_size
        if size != self.input_size:
            screenshots = to_batch([to_pixels(picture, size) for picture in shown])
        found = self._detector.extract(pages, screenshots)
        rows = [self._embed(*each) for each in zip(shown, found.boxes, strict=True)]
        return replace(found, regions=np.stack(rows))

    def _embed(
        self, picture: Image.Image, boxes: Float[np.ndarray, "36 4"]
    ) -> Float[np.ndarray, "36 768"]:
        crops = [picture.crop(_whole_pixels(box)) for box in boxes.tolist()]
        vectors = to_768(self._encoder.images(crops, squeeze=True)) * DIMENSION**0.5
        rows: Float[np.ndarray, "36 768"] = vectors.numpy()
        return rows


def _whole_pixels(box: Sequence[float]) -> tuple[int, int, int, int]:
    """Return the pixels that a box touches: one at least, and on the screen."""
    left, top = min(int(box[0]), WIDTH - 1), min(int(box[1]), HEIGHT - 1)
    right, bottom = min(math.ceil(box[2]), WIDTH), min(math.ceil(box[3]), HEIGHT)
    return left, top, max(right, left + 1), max(bottom, top + 1)
