"""The network of a peer: matching, and a pseudo-classifier for both halves of a pair."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from now_builder.formats.features import REGIONS
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.network import MatchingNetwork


def _layers(width: int, hidden: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class FlatClassifier(nn.Module):
    """Classify 36 vectors laid end to end: regions by rank, words by place.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.2; layer sizes from the authors' code.
    """

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = _layers(REGIONS * dim, hidden, classes)

    def forward(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return logits."""
        vectors = codes.regions if isinstance(codes, ImageCodes) else self.lay(codes)
        logits: Tensor = self.layers(vectors.flatten(1))
        return logits

    def lay(self, captions: CaptionCodes) -> Float[Tensor, "captions 36 dim"]:
        """Lay words on 36 slots."""
        return to_slots(captions.words, captions.lengths)


class PooledClassifier(nn.Module):
    """Classify the pooled vector of a screenshot or caption, whatever the order of its parts.

    The unit vector is scaled to unit variance first: fresh layers take nothing from a vector of
    values near zero.

    Differs:
        Not in PC2: for small data, where a flat classifier learns each place by itself.
    """

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = _layers(dim, hidden, classes)

    def forward(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return logits."""
        logits: Tensor = self.layers(codes.pooled * codes.pooled.shape[1] ** 0.5)
        return logits


Classifier = FlatClassifier | PooledClassifier

CLASSIFIERS: dict[str, type[Classifier]] = {"slots": FlatClassifier, "pooled": PooledClassifier}
"""Classifiers by the name of their input in the settings."""


def to_slots(
    words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
) -> Float[Tensor, "captions 36 dim"]:
    """Lay each caption's words on the 36 slots of the classifier, whatever its batch mates.

    A caption of up to 36 words stands in the middle of zeros; a longer one is interpolated
    linearly (pixel centres aligned, as in image resizing).
    """
    lengths = lengths.to(words.device)[:, None]
    slots = torch.arange(REGIONS, device=words.device)[None]
    short = lengths <= REGIONS
    scale = lengths.to(words) / REGIONS
    place = torch.where(short, slots - (REGIONS - lengths) // 2, (slots + 0.5) * scale - 0.5)
    outside = short & ((place < 0) | (place >= lengths))
    place = place.clamp(min=0).minimum((lengths - 1).to(place))
    left = place.floor().long()
    right = (left + 1).minimum(lengths - 1)
    share = (place - left).to(words)[..., None]
    rows = torch.arange(len(words), device=words.device)[:, None]
    laid = words[rows, left] * (1 - share) + words[rows, right] * share
    return laid.masked_fill(outside[..., None], 0.0)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Both halves of a batch, encoded."""

    images: ImageCodes
    captions: CaptionCodes

    def __getitem__(self, rows: slice) -> "Encoded":
        return Encoded(self.images[rows], self.captions[rows])


class Pc2Network(nn.Module):
    """The matching network and the pseudo-classifier that both halves of a pair share."""

    def __init__(self, matching: MatchingNetwork, classify: Classifier, classes: int) -> None:
        super().__init__()
        self.matching = matching
        self.classify = classify
        self.classes = classes

    def encode(self, batch: Batch) -> Encoded:
        """Encode images and captions."""
        return Encoded(
            self.matching.encode_images(batch.regions),
            self.matching.encode_captions(batch.tokens, batch.lengths),
        )

    def encode_split(
        self, train: PairSet, clean: Int[np.ndarray, " _"], noisy: Int[np.ndarray, " _"]
    ) -> tuple[Encoded, ImageCodes]:
        """Encode clean pairs, and of noisy pairs the images alone; all images at once."""
        batch, size = train.batch(np.append(clean, noisy)), len(clean)
        images = self.matching.encode_images(batch.regions)
        captions = self.matching.encode_captions(batch.tokens[:size], batch.lengths[:size])
        return Encoded(images[:size], captions), images[size:]

    def predict(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return pseudo-class predictions; rows sum to 1."""
        logits: Tensor = self.classify(codes)
        return logits.softmax(1)
