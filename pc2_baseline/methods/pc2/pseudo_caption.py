"""Pseudo-captions: which clean caption stands in for a noisy pair's, and how well it fits."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.methods.pc2.peers import PeerEpoch
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.fused import unit


@dataclass(frozen=True, slots=True)
class PseudoCaptions:
    """The clean captions that stand in for those of noisy pairs.

    Attributes:
        chosen: Row of the clean pairs searched, for each noisy pair.
        correspondence: Cosine of the two, in [0, 1].
    """

    chosen: Int[Tensor, " noisy"]
    correspondence: Float[Tensor, " noisy"]

    @property
    def negatives(self) -> Bool[Tensor, "noisy noisy"]:
        """Pairs of noisy rows whose pseudo-captions differ: only they are negatives."""
        return self.chosen[:, None] != self.chosen[None]


def find_pseudo_captions(
    noisy: Float[Tensor, "noisy width"], clean: Float[Tensor, "clean width"]
) -> PseudoCaptions:
    """Choose for each noisy image the most similar clean pair, by cosine.

    The vectors are pseudo-class predictions or pooled embeddings; detached, they let no gradient
    through the correspondence.
    """
    cosine = unit(noisy) @ unit(clean).T
    best, chosen = cosine.max(1)
    return PseudoCaptions(chosen, best.clamp(0.0, 1.0))


def find_in_clean_set(own: PeerEpoch, noisy: ImageCodes) -> PseudoCaptions:
    """Choose for each noisy image the clean pair of the most similar prediction, by the bank."""
    return find_pseudo_captions(own.net.predict(noisy).detach(), own.clean_predictions)


def distinct(chosen: Int[Tensor, " noisy"]) -> tuple[Int[Tensor, " used"], Int[Tensor, " noisy"]]:
    """Return the rows that were chosen, once each and on the CPU, and the place of each among them.

    The host has to know their number; it waits for the device once.
    """
    used, column = torch.unique(chosen.cpu(), return_inverse=True)
    return used, column.to(chosen.device)


def search_clean_set(
    own: PeerEpoch, noisy: ImageCodes
) -> tuple[Float[Tensor, " noisy"], Int[Tensor, " noisy"], Int[Tensor, " noisy"], CaptionCodes]:
    """Find a caption among all clean pairs for each noisy image.

    Returns:
        Its cosine, its row of the clean pairs, its place among the captions that were chosen, and
        these, encoded once, in their order.

    Source:
        Not in PC2, which names it as future work.
    """
    found = find_in_clean_set(own, noisy)
    used, column = distinct(found.chosen)
    batch = own.train.caption_batch(own.division.clean[used.numpy()])
    captions = own.net.matching.encode_captions(*batch)
    return found.correspondence, found.chosen, column, captions
