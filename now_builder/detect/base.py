"""What every detector takes and gives: screenshots and text boxes in, 36 regions a page out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import UInt8
from torch import Tensor

from now_builder.formats.features import FeatureBatch
from now_builder.formats.shard import Box


@dataclass(frozen=True, slots=True)
class TextBox:
    """A string on the screen and where it stands, read from the DOM or by optical recognition.

    Attributes:
        box: In image px.
        source: Where the string comes from; a detector must not care.
    """

    text: str
    box: Box
    source: Literal["dom", "ocr"] = "dom"


@runtime_checkable
class Detector(Protocol):
    """Anything that turns screenshots into exactly 36 regions each."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the feature file must say of this detector (name, hash of the weights …)."""
        ...

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height, in px, to which screenshots are brought before :meth:`extract`."""
        ...

    def extract(
        self,
        keys: Sequence[str],
        screenshots: UInt8[Tensor, "pages 3 height width"],
        text_boxes: Sequence[Sequence[TextBox]],
    ) -> FeatureBatch:
        """Find and embed 36 regions a page; boxes are in image px of the full screenshot.

        Args:
            keys: One per page.
            screenshots: RGB at :attr:`input_size`.
            text_boxes: Per page; they may change which regions are kept, never their features.
        """
        ...
