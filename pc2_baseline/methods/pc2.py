"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024)."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.pc2 import Pc2Settings
from pc2_baseline.methods.co_taught import CoTaught
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
from pc2_baseline.modules.coteaching import PairStatistics, PeerEpoch, dividing_batches
from pc2_baseline.modules.division import clean_posterior, divide
from pc2_baseline.modules.losses import soft_margin
from pc2_baseline.modules.pc2_network import Encoded, pooled
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions
from pc2_baseline.training.method import Sizes


class Pc2(CoTaught):
    """Co-taught peers that learn noisy images from captions of clean pairs of the same class.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2Settings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 1 to 14.

    Differs:
        The authors' code departs from the equations: see
        :class:`~pc2_baseline.methods.pc2_released.Pc2Released`.
    """

    method: Pc2Settings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.search = {"batch": self._search_batch, "clean_set": self._search_clean_set}[
            self.method.search_in
        ]

    def noisy_loss(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded, _: Int[Tensor, " noisy"]
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with their pseudo-captions."""
        found, captions = self.search(own, noisy, pairs)
        similarity = own.net.matching.score(noisy, captions)
        margins = soft_margin(found.correspondence, self.method.margin, self.method.margin_base)
        _, back = torch.unique(found.chosen, return_inverse=True)
        costs = own.triplet(similarity[:, back], margins, found.negatives)
        return costs[found.correspondence >= self.method.mismatch_threshold].sum()

    def _search_batch(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption of the clean batch for each noisy image; return those that were chosen."""
        describe = own.net.predict if self.method.search_by == "prediction" else pooled
        found = find_pseudo_captions(describe(noisy).detach(), describe(pairs.images).detach())
        return found, pairs.captions[torch.unique(found.chosen)]

    def _search_clean_set(
        self, own: PeerEpoch, noisy: ImageCodes, _: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption among all clean pairs by the bank; encode each that was chosen once."""
        found = find_pseudo_captions(own.net.predict(noisy).detach(), own.clean_predictions)
        rows = own.division.clean[torch.unique(found.chosen).cpu().numpy()]
        return found, own.net.matching.encode_captions(*own.train.caption_batch(rows))

    def divide_pairs(self, train: PairSet, _: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer, divide them, and write its bank."""
        seed = self.train.seed
        batches = dividing_batches(len(train), self.method.division_batch, seed)
        losses, predictions, moved = self._evaluate(train, peer, batches)
        self.banks[peer].write(predictions)
        return PairStatistics(losses, divide(losses, seed), moved, *self._stable(moved))

    def _stable(
        self, moved: Float[np.ndarray, " pairs"]
    ) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
        """Return the posterior of little oscillation and which pairs are stable.

        No pair is where all move alike.
        """
        if np.ptp(moved) <= 1e-12 or not self.method.rectify:
            return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        stable_prob = clean_posterior(moved, self.train.seed)
        return stable_prob, np.asarray(stable_prob >= self.method.oscillation_threshold)
