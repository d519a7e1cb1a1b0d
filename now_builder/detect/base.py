"""What every detector takes and gives: screenshots and hints in, 36 regions a page out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float, UInt8
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


@dataclass(frozen=True, slots=True)
class Page:
    """What is known of a page beside its pixels.

    Attributes:
        text_boxes: Strings that can be seen; they may change which regions are kept, never their
            features.
        boxes: Elements that can be seen, from the DOM, in image px.
    """

    key: str
    text_boxes: Sequence[TextBox] = ()
    boxes: Sequence[Box] = ()


@dataclass(frozen=True, slots=True)
class Proposals:
    """Class-agnostic boxes of one page, best first, in detector input px.

    Attributes:
        scores: In [0, 1]: how likely each is to hold something at all.
    """

    boxes: Float[Tensor, "n 4"]
    scores: Float[Tensor, " n"]


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
        pages: Sequence[Page],
        screenshots: UInt8[Tensor, "pages 3 height width"],
    ) -> FeatureBatch:
        """Find and embed 36 regions a page; boxes are in image px of the full screenshot.

        Args:
            pages: What is known of each.
            screenshots: RGB at :attr:`input_size`.
        """
        ...
