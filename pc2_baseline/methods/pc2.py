"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import cut
from pc2_baseline.method_settings.pc2 import Pc2Settings
from pc2_baseline.methods.bases.co_taught import CoTaught
from pc2_baseline.modules.coteaching import PeerEpoch, Rows
from pc2_baseline.modules.pc2_network import Encoded
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
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
        self.search = {"batch": self.search_batch, "clean_set": self._search_clean_set}[
            self.method.search_in
        ]

    def noisy_loss(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded, _: Int[Tensor, " noisy"]
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with their pseudo-captions."""
        return self.pseudo_caption_loss(own, noisy, *self.search(own, noisy, pairs))

    def _search_clean_set(
        self, own: PeerEpoch, noisy: ImageCodes, _: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption among all clean pairs by the bank; encode each that was chosen once."""
        found = self._find_in_clean_set(own, noisy)
        rows = own.division.clean[torch.unique(found.chosen).cpu().numpy()]
        return found, own.net.matching.encode_captions(*own.train.caption_batch(rows))

    def _find_in_clean_set(self, own: PeerEpoch, noisy: ImageCodes) -> PseudoCaptions:
        """Choose a clean pair by the bank for each noisy image."""
        return find_pseudo_captions(own.net.predict(noisy).detach(), own.clean_predictions)

    def searched_pairs(
        self, own: PeerEpoch, noisy: ImageCodes, clean: Rows, pairs: Encoded
    ) -> tuple[PseudoCaptions, Rows]:
        """Find pseudo-captions; return them and the pairs among which they were searched.

        The bank is written anew: the checkpoint of the best epoch does not hold it.
        """
        if self.method.search_in == "batch":
            return super().searched_pairs(own, noisy, clean, pairs)
        every = own.division.clean
        for rows in cut(every, self.method.division_batch):
            regions = own.train.image_batch(own.train.image_of[rows])
            own.bank.write_rows(rows, own.net.predict(own.net.matching.encode_images(regions)))
        return self._find_in_clean_set(own, noisy), every
