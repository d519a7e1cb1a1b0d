"""Classifiers for both halves of a pair: regions or words to pseudo-class logits."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from now_builder.formats.features import REGIONS
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes


def _layers(width: int, hidden: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class FlatClassifier(nn.Module):
    """Classify 36 vectors laid end to end: regions by rank, words by place.

    Args:
        dim: Width of regions and words.
        hidden: Width of the hidden layer.
        classes: Pseudo-classes K.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.2; layer sizes from the authors' code.

    Differs:
        The authors' code resamples the *padded* words: see :class:`PaddedClassifier`.
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


class PaddedClassifier(FlatClassifier):
    """Classify a caption's words together with the padding of its batch, resampled to 36.

    A caption's class then depends on the longest caption of its batch.

    Source:
        The authors' code of PC2.
    """

    def lay(self, captions: CaptionCodes) -> Float[Tensor, "captions 36 dim"]:
        """Resample words and padding alike."""
        return resampled(captions.words[:, : int(captions.lengths.max())], REGIONS)


class PooledClassifier(nn.Module):
    """Classify the pooled vector of a screenshot or caption, whatever the order of its parts.

    The unit vector is scaled to unit variance first: fresh layers take nothing from a vector of
    values near zero.

    Args:
        dim: Width of the pooled vector.
        hidden: Width of the hidden layer.
        classes: Pseudo-classes K.

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


CLASSIFIERS: dict[str, type[FlatClassifier | PooledClassifier]] = {
    "slots": FlatClassifier,
    "padded": PaddedClassifier,
    "pooled": PooledClassifier,
}
"""Classifiers by the name of their input in the settings."""


def to_slots(
    words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
) -> Float[Tensor, "captions 36 dim"]:
    """Lay each caption's words on the 36 slots of the classifier, whatever its batch mates.

    A caption of up to 36 words stands in the middle of zeros; a longer one is interpolated
    linearly (pixel centres aligned, as in image resizing).

    Args:
        words: Zeros from ``lengths`` on.
        lengths: On any device.
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


def resampled(
    words: Float[Tensor, "captions words dim"], size: int
) -> Float[Tensor, "captions size dim"]:
    """Interpolate padded captions linearly to fewer places, or centre them in zeros.

    Args:
        words: Words and padding.
        size: Number of places.

    Source:
        The authors' code of PC2, for the classifier and for pseudo-captions.
    """
    have = words.shape[1]
    if have > size:
        # as interpolate(mode="linear") does, whose gradient CUDA cannot repeat bit for bit
        slots = torch.arange(size, device=words.device, dtype=words.dtype)
        place = ((slots + 0.5) * (have / size) - 0.5).clamp(min=0)
        left = place.long()
        share = (place - left)[:, None]
        return words[:, left] * (1 - share) + words[:, (left + 1).clamp(max=have - 1)] * share
    front = (size - have) // 2
    return functional.pad(words, (0, 0, front, size - have - front))
