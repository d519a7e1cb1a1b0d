"""The network of a PC2 peer: matching, and a pseudo-classifier for both halves of a pair."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor, nn

from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.modules.pseudo_class import FlatClassifier, PooledClassifier
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.network import MatchingNetwork


@dataclass(frozen=True, slots=True)
class Encoded:
    """Both halves of a batch, encoded."""

    images: ImageCodes
    captions: CaptionCodes

    def __getitem__(self, rows: slice) -> "Encoded":
        return Encoded(self.images[rows], self.captions[rows])


class Pc2Network(nn.Module):
    """The matching network and the pseudo-classifier that both halves of a pair share.

    Args:
        matching: Encodes and scores.
        classify: Turns codes into logits.
        classes: Number of pseudo-classes.
    """

    def __init__(
        self, matching: MatchingNetwork, classify: FlatClassifier | PooledClassifier, classes: int
    ) -> None:
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
    ) -> tuple[Encoded, ImageCodes, Int[Tensor, " noisy"]]:
        """Encode clean pairs, and of noisy pairs the images alone; all images at once.

        Returns:
            The clean pairs, the noisy images, and the lengths of the noisy pairs' captions.
        """
        batch, size = train.batch(np.append(clean, noisy)), len(clean)
        images = self.matching.encode_images(batch.regions)
        captions = self.matching.encode_captions(batch.tokens[:size], batch.lengths[:size])
        return Encoded(images[:size], captions), images[size:], batch.lengths[size:]

    def predict(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return pseudo-class predictions; rows sum to 1."""
        logits: Tensor = self.classify(codes)
        return logits.softmax(1)


@contextmanager
def uncounted(net: nn.Module) -> Iterator[None]:
    """Let batch normalisation leave its running statistics as they are, in training mode too."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def pooled(images: ImageCodes) -> Float[Tensor, "images dim"]:
    """Return the pooled embeddings of images."""
    return images.pooled
