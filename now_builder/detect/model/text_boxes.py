"""Text boxes of a page, from its DOM or its pixels, and their linking to regions."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float
from torch import Tensor

from now_builder.detect.base import Page, TextBox
from now_builder.detect.boxes import intersection_over_minimum
from now_builder.detect.model.text_encoder import DIMENSION, TextEncoder
from now_builder.detect.ocr import Recognizer
from now_builder.formats.shard import HEIGHT, WIDTH, Capture, Element

LINK_THRESHOLD = 0.5


def dom_text_boxes(elements: Sequence[Element]) -> list[TextBox]:
    """Return the strings that are visible on a page.

    Only elements of the body have boxes, so neither ``<title>`` nor ``<meta>`` is among them.
    """
    return [
        TextBox(element.text, element.text_box)
        for element in elements
        if element.visible and element.text.strip() and element.text_box is not None
    ]


TextSource = Callable[[Capture], Sequence[TextBox]]
"""Finds the strings of a page; called from several threads."""


def make_text_source(name: Literal["dom", "ocr", "none"], languages: str) -> TextSource:
    """Make a source of strings; ``languages`` are Tesseract's names, joined by ``+``.

    Raises:
        ConfigError: If what optical recognition needs is missing.
    """
    if name == "ocr":
        return Recognizer(languages)
    if name == "dom":
        return lambda capture: dom_text_boxes(capture.elements)
    return lambda _: ()


def link(
    regions: Float[Tensor, "regions 4"], texts: Float[Tensor, "texts 4"]
) -> Bool[Tensor, "regions texts"]:
    """Return which strings belong to which regions: intersection over minimum above one half."""
    return intersection_over_minimum(regions, texts) > LINK_THRESHOLD


def linked_embeddings(
    regions: Float[Tensor, "regions 4"],
    texts: Float[Tensor, "texts 4"],
    vectors: Float[Tensor, "texts 768"],
) -> Float[Tensor, "regions 768"]:
    """Average the embeddings of the strings linked to each region, to unit length; else zero."""
    if not len(texts):
        return regions.new_zeros(len(regions), DIMENSION)
    return F.normalize(link(regions, texts).to(vectors.dtype) @ vectors, dim=1)


def embed_text_boxes(
    encoder: TextEncoder, boxes: Sequence[TextBox], scale: tuple[float, float]
) -> tuple[Float[Tensor, "texts 4"], Float[Tensor, "texts 768"]]:
    """Return boxes, scaled from image px to detector input px, and embeddings of text boxes."""
    places = torch.tensor([box.box for box in boxes], dtype=torch.float32).reshape(-1, 4)
    factors = torch.tensor([*scale, *scale], dtype=torch.float32)
    return places * factors, encoder.encode([box.text for box in boxes])


def page_text(
    encoder: TextEncoder,
    pages: Sequence[Page],
    regions: Sequence[Float[Tensor, "_ 4"]],
    size: tuple[int, int],
) -> Float[Tensor, "all 768"]:
    """Average the embeddings of the strings linked to each region (in detector input px)."""
    rows = []
    for page, boxes in zip(pages, regions, strict=True):
        scale = (size[0] / WIDTH, size[1] / HEIGHT)
        places, vectors = embed_text_boxes(encoder, page.text_boxes, scale)
        rows.append(linked_embeddings(boxes, places.to(boxes.device), vectors.to(boxes.device)))
    return torch.cat(rows)
