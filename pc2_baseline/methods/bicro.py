"""BiCro: bidirectional cross-modal similarity consistency (Yang et al., CVPR 2023)."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.bicro import BiCroSettings
from pc2_baseline.methods.bases.relabelling import Labels, Relabelling
from pc2_baseline.modules.beta_mixture import divide_by_beta
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.division import Division
from pc2_baseline.modules.labels import anchors, closeness, consistency, cosines
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.training.method import Sizes


class BiCro(Relabelling):
    r"""Co-taught peers that label a pair by how alike its halves differ from a clean pair's halves.

    The other peer's network labels: the closest tenth of the clean batch are its anchors. With
    :math:`r` of :func:`~pc2_baseline.modules.labels.consistency`, the label is :math:`r` for a
    noisy pair, :math:`(1 + r) / 2` for a clean one, and 1 for an anchor. The warm-up learns the
    pairs of each batch that have the lowest losses.

    Args:
        settings: Settings of the run; the method section is :class:`BiCroSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        BiCro (Yang et al., CVPR 2023); anchors, clean labels and the share of the warm-up as in
        its released code.

    Differs:
        The released code learns from noisy pairs in the second half of the epochs alone, in a step
        of their own before the clean one (``method.noisy_from_epoch``, ``method.steps``), and gives
        those of low label a margin of 0 (``method.zero_below``). Its margins belong to the negative
        caption in one direction; here a margin is the query's. A peer whose mixture calls no pair
        clean skips the epoch; here all but a hundredth are clean then, as where it calls all so.
        Dividing batches have one order a run.
    """

    method: BiCroSettings
    order = ("noisy", "clean")

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, BiCroSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of bicro")
        self.method = settings.method
        self.label_threshold = self.method.mismatch_threshold
        super().__init__(settings, sizes, device)

    def warm_up_loss(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, ""]:
        """Sum the lowest of the triplet losses with mean negatives."""
        costs = self._warm_up_costs(train, peer, rows)
        kept = max(1, int(self.method.warmup_share * len(costs)))
        return costs.topk(kept, largest=False).values.sum()

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Label a batch with the other peer's network."""
        net, batch = self.others[peer], train.batch(np.append(clean, noisy))
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        whole, size = _means(images, captions), len(clean)
        similarity = net.score(images[:size], captions[:size])
        found = anchors(closeness(similarity, self.method.margin))
        own = consistency(*(cosines(codes, codes[found]) for codes in whole))
        noisy_labels = own[size:].masked_fill(own[size:] < self.method.zero_below, 0.0)
        return ((1 + own[:size]) / 2).index_fill(0, found, 1.0), noisy_labels

    def divide(self, losses: Float[np.ndarray, " pairs"]) -> Division:
        """Divide the pairs by a mixture of two beta distributions."""
        return divide_by_beta(losses)


def _means(
    images: ImageCodes, captions: CaptionCodes
) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "batch dim"]]:
    """Return the sums of regions and of words, whose directions are those of the means."""
    return images.regions.sum(1), captions.words.sum(1)
