"""PC2 as its authors' released code learns, defects that change behaviour included."""

from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut, cut_full
from pc2_baseline.method_settings.pc2 import Pc2ReleasedSettings
from pc2_baseline.methods.bases.co_taught import CoTaught
from pc2_baseline.modules.bank import oscillation
from pc2_baseline.modules.coteaching import (
    NONE,
    PairStatistics,
    PeerEpoch,
    Rows,
    dividing_batches,
    full_batches,
    warm_up_batches,
)
from pc2_baseline.modules.division import THRESHOLD, Division, divide
from pc2_baseline.modules.learner import Step, stepped_rate
from pc2_baseline.modules.losses import MarginAxis, mean_entropy, own_entropy, soft_margin
from pc2_baseline.modules.pc2_network import Encoded, Pc2Network, pooled, uncounted
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions
from pc2_baseline.modules.pseudo_class import resampled
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes, word_mask
from pc2_baseline.networks.text import CaptionEncoder
from pc2_baseline.training.method import Sizes

ENTROPIES = {"batch_mean": mean_entropy, "each_image": lambda images, _: own_entropy(images)}
DIVERGENCES = {"old_new": oscillation, "new_old": lambda old, new: oscillation(new, old)}
CUTS = {"near_equal": cut, "full": cut_full}
AXES: dict[str, tuple[MarginAxis, MarginAxis]] = {
    "query": ("query", "query"),
    "broadcast": ("image", "caption"),
}
"""Margin axes of clean and of noisy pairs."""


class Pc2Released(CoTaught):
    """Two co-taught peers that learn as the released code of PC2 does.

    Each departure from :class:`~pc2_baseline.methods.pc2.Pc2` is a setting, so that its effect can
    be measured by itself; with all of them off, both methods are the same.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2ReleasedSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        The released code of PC2 (Duan et al., ACM MM 2024).

    Differs:
        ``docs/departures.md`` lists what is not copied.
    """

    method: Pc2ReleasedSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.entropy = ENTROPIES[self.method.entropy]
        self.oscillation = DIVERGENCES[self.method.divergence]
        self.clean_axis, self.noisy_axis = AXES[self.method.margin_axis]
        self.trains_bank = self.method.bank == "released"
        self.needed_divisions = 1 if self.trains_bank else 2
        self.into_batches = CUTS[self.method.batches]

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        if epoch == self.train.warmup_epochs and self.method.fresh_optimiser:
            self.learners[peer].restart()
        return super()._learn(train, epoch, peer)

    def _rate(self, epoch: int) -> float:
        if self.method.rate_drops == "once":
            return super()._rate(epoch)
        since = max(0, epoch - self.train.warmup_epochs)
        return stepped_rate(since, self.train.lr_drop_epoch, 0.1)

    def _warm_up_batches(self, pairs: int, epoch: int, peer: int) -> list[Rows]:
        size, seed = self.train.batch, self.train.seed
        batches = warm_up_batches(pairs, size, seed, epoch, peer, self.into_batches)
        return [rows for rows in batches if len(rows) > 1]

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, ...]]:
        """Cut an epoch's pairs into batches; full ones end before one with a single pair.

        An epoch that would end before it began takes one step, on clean pairs.
        """
        if self.method.batches == "near_equal":
            return super()._batches(division, epoch, peer)
        batches = full_batches(division, self.train.batch, self.train.seed, epoch, peer)
        since = epoch - self.train.warmup_epochs
        if not batches:
            return [(division.clean[: self.train.batch], NONE)]
        if self.with_noisy and since >= self.method.noisy_from_epoch:
            return batches
        return [(clean, NONE) for clean, _ in batches]

    def _warm_up_loss(self, peer: int, rows: Rows, pairs: Encoded) -> Float[Tensor, ""]:
        if self.trains_bank:
            self.banks[peer].write_rows(rows, self.nets[peer].predict(pairs.images))
        return super()._warm_up_loss(peer, rows, pairs)

    def _take_step(self, own: PeerEpoch, rows: tuple[Rows, ...], step: Step) -> tuple[float, float]:
        """Take one step down the summed loss, or one on the clean pairs and one on the noisy."""
        if self.method.steps == "summed":
            return super()._take_step(own, rows, step)
        clean, noisy = rows
        net, learner = own.net, own.learner
        batch = own.train.batch(clean)
        value = learner.step(self._clean_loss(own, net.encode(batch), clean), step)
        if not len(noisy):
            return value, 0.0
        other = own.train.batch(noisy)
        with uncounted(net):
            pairs = net.encode(batch)
        images = net.matching.encode_images(other.regions)
        loss = self.noisy_loss(own, images, pairs, other.lengths)
        if self.trains_bank:
            self._write_bank(own.division.noisy, noisy, own, images)
            self._write_bank(own.division.clean, clean, own, pairs.images)
        return value, learner.step(self.method.lambda_noisy * loss, step)

    def _write_bank(self, subset: Rows, rows: Rows, own: PeerEpoch, images: ImageCodes) -> None:
        """Write predictions by their position in the subset of clean, or of noisy, pairs."""
        with torch.no_grad():
            own.bank.write_rows(np.searchsorted(subset, rows), own.net.predict(images))

    def noisy_loss(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded, lengths: Int[Tensor, " noisy"]
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with their pseudo-captions."""
        method = self.method
        found, captions = self._search(own.net, noisy, pairs, int(lengths.max()))
        similarity = own.net.matching.score(noisy, captions)
        negatives = None if method.repeated_negatives else found.negatives
        _, back = torch.unique(found.chosen, return_inverse=True)
        margins = self.noisy_margins(found)
        costs = own.triplet(similarity[:, back], margins, negatives, self.noisy_axis)
        return costs[self.is_counted(found)].sum()

    def noisy_margins(self, found: PseudoCaptions) -> Float[Tensor, " noisy"]:
        """Return the margins of noisy pairs by their cosines; 0 where a cosine is too low."""
        low = found.correspondence < self.method.zero_below
        correspondence = found.correspondence.masked_fill(low, 0.0)
        return soft_margin(correspondence, self.method.margin, self.method.margin_base)

    def _search(
        self, net: Pc2Network, noisy: ImageCodes, pairs: Encoded, words: int
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption of the clean batch for each noisy image; return those that were chosen."""
        found = self.find_in_batch(net, noisy, pairs)
        captions = pairs.captions
        if self.method.pseudo_caption_fit == "resampled":
            captions = refit(net, captions, words)
        return found, captions[torch.unique(found.chosen)]

    def find_in_batch(self, net: Pc2Network, noisy: ImageCodes, pairs: Encoded) -> PseudoCaptions:
        """Choose a pair of the clean batch for each noisy image; its cosine may have a gradient."""
        if not self.method.margin_gradient:
            return super().find_in_batch(net, noisy, pairs)
        describe = net.predict if self.method.search_by == "prediction" else pooled
        return find_pseudo_captions(describe(noisy), describe(pairs.images))

    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer and divide them."""
        seed = self.train.seed
        order = (epoch,) if self.method.division_order == "shuffled" else ()
        batches = dividing_batches(
            len(train), self.method.division_batch, seed, *order, into_batches=self.into_batches
        )
        losses, predictions, moved = self._evaluate(train, peer, batches)
        if not self.trains_bank:
            self.banks[peer].write(predictions)
        return PairStatistics(losses, divide(losses, seed), moved, *self._stable(moved))

    def _stable(
        self, moved: Float[np.ndarray, " pairs"]
    ) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
        if self.method.stable == "from_threshold":
            return super()._stable(moved)
        if np.ptp(moved) <= 1e-12 or not self.method.rectify:
            return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        division = divide(moved, self.train.seed)
        some = bool((division.clean_prob > THRESHOLD).any())
        return division.clean_prob, division.is_clean & some


def refit(net: Pc2Network, captions: CaptionCodes, words: int) -> CaptionCodes:
    """Resample padded captions to so many words and keep their lengths, which no longer agree."""
    lengths = captions.lengths.clamp(max=words)
    laid = resampled(captions.words[:, : int(captions.lengths.max())], words)
    laid = laid * word_mask(lengths, words, laid.device)[..., None]
    encoder = cast(CaptionEncoder, net.matching.captions)
    return CaptionCodes(laid, encoder.pool(laid, lengths), lengths)
