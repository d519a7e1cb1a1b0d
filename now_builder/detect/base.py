"""Interface of detectors: screenshots, strings and element boxes in, 36 regions a page out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import UInt8
from torch import Tensor

from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import Box


@dataclass(frozen=True, slots=True)
class TextBox:
    """A string on the screen.

    Attributes:
        box: Box in image px.
        source: Origin, DOM or OCR; detectors must not depend on it.
    """

    text: str
    box: Box
    source: Literal["dom", "ocr"] = "dom"


@dataclass(frozen=True, slots=True)
class Page:
    """A page without its pixels.

    Attributes:
        text_boxes: Visible strings; they may influence the choice of regions, never the features.
        boxes: Boxes of visible DOM elements in image px.
    """

    key: str
    text_boxes: Sequence[TextBox] = ()
    boxes: Sequence[Box] = ()


@runtime_checkable
class Detector(Protocol):
    """A detector of exactly 36 regions per screenshot."""

    attributes: Mapping[str, str]
    """Attributes of the feature file that identify the detector (name, hash of weights …)."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height in px of the screenshots for :meth:`extract`."""
        ...

    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions a page in RGB screenshots; boxes are in image px."""
        ...
