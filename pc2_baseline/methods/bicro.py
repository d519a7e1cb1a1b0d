"""BiCro: bidirectional cross-modal similarity consistency (Yang et al., CVPR 2023)."""

from functools import partial
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import Share
from pc2_baseline.methods.relabelling import (
    Labels,
    Relabelling,
    RelabellingSettings,
    anchors,
    closeness,
)
from pc2_baseline.modules.coteaching import DividedPairs, Rows, full_margin_loss
from pc2_baseline.modules.division import divide_by_beta
from pc2_baseline.networks.encoders import Block, Loss, PerPair

_TINY = 1e-12


class BiCroSettings(RelabellingSettings):
    """BiCro (Yang et al., CVPR 2023): labels from a comparison with clean pairs."""

    warmup_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.3,
        description="Share of a batch that the warm-up learns: the pairs with the lowest losses.",
    )
    mismatch_threshold: Share = Field(
        0.0, description="Label below which noisy pairs are left out (BiCro*: 0.5); 0 keeps all."
    )


class BiCro(Relabelling[BiCroSettings]):
    r"""Two co-taught peers that label pairs by a comparison with clean pairs.

    The other peer's network estimates the labels. Its anchors are the closest tenth of the clean
    batch. The label is :math:`r` of :func:`consistency` for a noisy pair, :math:`(1 + r) / 2` for a
    clean one, and 1 for an anchor. The warm-up learns only the lowest losses of each batch.

    Source:
        BiCro (Yang et al., CVPR 2023); anchors, clean labels and the share of the warm-up as in
        its released code.

    Differs:
        The released code learns from noisy pairs only in the second half of the epochs, in a step
        of their own before the clean one (``method.noisy_from_epoch``, ``method.steps``); pairs
        with low labels have a margin of 0 in it. Its margins are those of the negative caption in
        one direction; here a margin is the query's. It skips the epoch of a peer whose mixture
        calls no pair clean; here 99 % of the pairs are clean then, as if it calls all clean.
        Batches for the division have the same order in every epoch.
    """

    section = BiCroSettings

    def warm_up_loss(self, similarity: Block) -> Loss:
        """Return the sum of the lowest losses of a batch of the warm-up."""
        costs = full_margin_loss(similarity, self.method.margin)
        kept = max(1, int(self.method.warmup_share * len(costs)))
        return costs.topk(kept, largest=False).values.sum()

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer with labels from the comparison with the anchors."""
        threshold = self.method.mismatch_threshold
        return self.learn_labelled(train, epoch, peer, threshold, noisy_first=True)

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Label a batch with the other peer's network."""
        net, batch = self.others[peer], train.batch(np.append(clean, noisy))
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        size, regions, words = len(clean), images.regions.sum(1), captions.words.sum(1)
        similarity = net.score(images[:size], captions[:size])
        places = anchors(closeness(similarity, self.method.margin))
        labels = consistency(cosines(regions, regions[places]), cosines(words, words[places]))
        return ((1 + labels[:size]) / 2).index_fill(0, places, 1.0), labels[size:]

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two beta distributions over their losses."""
        loss = partial(full_margin_loss, margin=self.method.margin)
        losses = self.losses(train, peer, loss, self.method.division_batch)
        return DividedPairs(losses, divide_by_beta(losses))


def cosines(
    rows: Float[Tensor, "rows dim"], columns: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """Return the cosine of each row with each column."""
    return functional.normalize(rows, dim=1) @ functional.normalize(columns, dim=1).T


def consistency(
    images: Float[Tensor, "batch anchors"], captions: Float[Tensor, "batch anchors"]
) -> PerPair:
    r"""Estimate how consistently each pair's image and caption lie to those of clean pairs.

    .. math::
        r_i = \frac{1}{2} \sum_{a} \frac{\min(x_{ia}, y_{ia})}{\max(x_{ia}, y_{ia})},\quad
        a \in \{\arg\max_a x_{ia}, \arg\max_a y_{ia}\}

    :math:`x` are the cosines of the images with those of the clean pairs, :math:`y` those of the
    captions. A pair whose cosines are the same on both sides has 1.

    Differs:
        A ratio with a negative cosine counts as 0; the released code adds it, then clips.
    """
    low = torch.minimum(images, captions).clamp(min=0)
    ratios = low / torch.maximum(images, captions).clamp(min=_TINY)
    nearest = torch.stack([images.argmax(1), captions.argmax(1)], 1)
    return ratios.gather(1, nearest).mean(1).clamp(max=1)
