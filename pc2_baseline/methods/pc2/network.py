"""The network of a peer of PC2: matching, pseudo-classifier, and the search of pseudo-captions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from now_builder.formats.features import REGIONS
from pc2_baseline.data.pairs import Batch
from pc2_baseline.modules.coteaching import Rows, Triplet
from pc2_baseline.modules.division import Division, PairValues
from pc2_baseline.modules.learner import Learner
from pc2_baseline.networks.encoders import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import AT_ONCE, MatchingNetwork


class PooledClassifier(nn.Module):
    """Classify the pooled vector of a screenshot or caption; the order of its parts has no effect.

    The unit vector is first scaled to unit variance: new layers learn nothing from values near
    zero.

    Differs:
        Not in PC2: meant for small data, where a flat classifier learns each place separately.
    """

    parts = 1

    def __init__(self, dim: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(self.parts * dim, hidden), nn.ReLU(), nn.Linear(hidden, classes)
        )

    def forward(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return logits."""
        logits: Tensor = self.layers(self.vectors(codes))
        return logits

    def vectors(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch width"]:
        """Return one vector per screenshot or caption."""
        pooled: Tensor = codes.pooled * codes.pooled.shape[1] ** 0.5
        return pooled


class FlatClassifier(PooledClassifier):
    """Classify 36 concatenated vectors: regions by rank, words by place.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.2; layer sizes from the authors' code.
    """

    parts = REGIONS

    def vectors(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch width"]:
        """Concatenate the regions, or the words on their slots."""
        vectors: Tensor = codes.regions if isinstance(codes, ImageCodes) else self.lay(codes)
        return vectors.flatten(1)

    def lay(self, captions: CaptionCodes) -> Float[Tensor, "captions 36 dim"]:
        """Assign words to 36 slots."""
        return to_slots(captions.words, captions.lengths)


def to_slots(
    words: Float[Tensor, "captions words dim"], lengths: Int[Tensor, " captions"]
) -> Float[Tensor, "captions 36 dim"]:
    """Assign each caption's words to the 36 slots of the classifier, independently of its batch.

    A caption of up to 36 words is centred between zeros; a longer one is interpolated linearly
    (pixel centres aligned, as in image resizing).
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
    """Encoded images and captions of a batch."""

    images: ImageCodes
    captions: CaptionCodes

    def __getitem__(self, rows: slice) -> "Encoded":
        return Encoded(self.images[rows], self.captions[rows])


class Pc2Network(nn.Module):
    """The matching network, and the pseudo-classifier of both images and captions."""

    def __init__(self, matching: MatchingNetwork, classify: PooledClassifier, classes: int) -> None:
        super().__init__()
        self.matching = matching
        self.classify = classify
        self.classes = classes

    def encode(self, batch: Batch, whole: int) -> tuple[Encoded, ImageCodes]:
        """Encode the first ``whole`` pairs of a batch, and only the images of the others."""
        images = self.matching.encode_images(batch.regions)
        captions = self.matching.encode_captions(batch.tokens[:whole], batch.lengths[:whole])
        return Encoded(images[:whole], captions), images[whole:]

    def predict(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Return pseudo-class predictions; rows sum to 1."""
        logits: Tensor = self.classify(codes)
        return logits.softmax(1)

    def score_both(
        self, pairs: Encoded, noisy: ImageCodes, chosen: Int[Tensor, " noisy"]
    ) -> tuple[Float[Tensor, "clean clean"], Float[Tensor, "noisy noisy"]]:
        """Score clean pairs, and noisy images with the captions chosen for them.

        A GPU scores all images with all clean captions in one block: half the operations, and the
        host need not wait for the choice. The CPU scores only the chosen captions, as does a
        network whose scores depend on the other images of a block.
        """
        matching, clean = self.matching, len(pairs.images.pooled)
        if chosen.device.type in AT_ONCE or not matching.similarity.by_cell:
            similarity = matching.score(pairs.images, pairs.captions)
            return similarity, self.score_chosen(noisy, pairs.captions, chosen)
        images = ImageCodes(
            torch.cat([pairs.images.regions, noisy.regions]),
            torch.cat([pairs.images.pooled, noisy.pooled]),
        )
        scores = matching.score(images, pairs.captions)
        return scores[:clean], scores[clean:].index_select(1, chosen)

    def score_chosen(
        self, images: ImageCodes, captions: CaptionCodes, chosen: Int[Tensor, " images"]
    ) -> Float[Tensor, "images images"]:
        """Score images with the captions chosen for them, each caption once."""
        used, column = torch.unique(chosen.cpu(), return_inverse=True)
        return self.matching.score(images, captions[used])[:, column.to(chosen.device)]


@dataclass(frozen=True, slots=True)
class PseudoCaptions:
    """The clean captions that replace those of noisy pairs.

    Attributes:
        cosine: Cosine of each noisy image with its clean image, in [0, 1].
        chosen: Row of the clean pair of each noisy image.
    """

    cosine: Float[Tensor, " noisy"]
    chosen: Int[Tensor, " noisy"]


def find_pseudo_captions(
    noisy: Float[Tensor, "noisy width"], clean: Float[Tensor, "clean width"]
) -> PseudoCaptions:
    """Choose for each noisy image the most similar clean pair, by cosine.

    The vectors are pseudo-class predictions or pooled embeddings; if they are detached, the cosine
    has no gradient.
    """
    cosine, chosen = (unit(noisy) @ unit(clean).T).max(1)
    return PseudoCaptions(cosine.clamp(0.0, 1.0), chosen)


@dataclass(frozen=True, slots=True)
class PeerEpoch:
    """Network and division of one peer in one epoch after the warm-up.

    Attributes:
        division: Division of the *other* peer.
        correspondence: Correspondence of each pair, for the margins of clean ones.
    """

    net: Pc2Network
    learner: Learner
    device: torch.device
    triplet: Triplet
    division: Division
    correspondence: PairValues

    def labels(self, rows: Rows) -> Float[Tensor, " rows"]:
        """Return the correspondence of some pairs, on the device."""
        return torch.from_numpy(self.correspondence[rows]).float().to(self.device)
