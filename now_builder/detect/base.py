"""The interface of detectors: screenshots, strings and boxes of pages in, 36 regions out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import UInt8
from torch import Tensor

from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import Box


@dataclass(frozen=True, slots=True)
class TextBox:
    """A string on the screen, read from the DOM or by optical recognition.

    Attributes:
        box: Box in image px.
        source: Where the string comes from; detectors must not depend on it.
    """

    text: str
    box: Box
    source: Literal["dom", "ocr"] = "dom"


@dataclass(frozen=True, slots=True)
class Page:
    """A page's key, strings and element boxes, beside its pixels.

    Attributes:
        text_boxes: Visible strings; they may change which regions are kept, never their features.
        boxes: Boxes of visible elements, from the DOM, in image px.
    """

    key: str
    text_boxes: Sequence[TextBox] = ()
    boxes: Sequence[Box] = ()


@runtime_checkable
class Detector(Protocol):
    """A detector: it turns each screenshot into exactly 36 regions."""

    attributes: Mapping[str, str]
    """Attributes of the feature file that identify this detector (name, hash of weights …)."""

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height, in px, of the screenshots that :meth:`extract` takes."""
        ...

    def extract(
        self, pages: Sequence[Page], screenshots: UInt8[Tensor, "pages 3 height width"]
    ) -> FeatureBatch:
        """Find and embed 36 regions a page in RGB screenshots; boxes are in image px."""
        ...
