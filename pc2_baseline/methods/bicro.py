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
    Labelling,
    Labels,
    Relabelling,
    RelabellingSettings,
    anchors,
    closeness,
    learn_labelled,
)
from pc2_baseline.modules.coteaching import DividedPairs, Rows, full_margin_loss
from pc2_baseline.modules.division import divide_by_beta
from pc2_baseline.networks.encoders import Loss, PerPair

_TINY = 1e-12


class BiCroSettings(RelabellingSettings):
    """BiCro (Yang et al., CVPR 2023): labels by comparison with clean pairs."""

    warmup_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.3, description="Share of a batch of the warm-up that is learned: its lowest losses."
    )
    mismatch_threshold: Share = Field(
        0.0, description="Noisy pairs with a lower label are left out (BiCro*: 0.5); 0: none."
    )


class BiCro(Relabelling[BiCroSettings]):
    r"""Co-taught peers that label a pair by how alike its halves differ from a clean pair's halves.

    The other peer's network labels: the closest tenth of the clean batch are its anchors. With
    :math:`r` of :func:`consistency`, the label is :math:`r` for a
    noisy pair, :math:`(1 + r) / 2` for a clean one, and 1 for an anchor. The warm-up learns the
    pairs of each batch that have the lowest losses.

    Source:
        BiCro (Yang et al., CVPR 2023); anchors, clean labels and the share of the warm-up as in
        its released code.

    Differs:
        The released code learns from noisy pairs in the second half of the epochs alone, in a step
        of their own before the clean one (``method.noisy_from_epoch``, ``method.steps``), and gives
        those of low label a margin of 0. Its margins belong to the negative
        caption in one direction; here a margin is the query's. A peer whose mixture calls no pair
        clean skips the epoch; here all but a hundredth are clean then, as where it calls all so.
        Dividing batches have one order a run.
    """

    section = BiCroSettings

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer on the pairs of each batch that have the lowest losses."""
        self.begin(epoch, peer, 1.0)
        method = self.method

        def loss(rows: Rows) -> Loss:
            costs = full_margin_loss(self.nets[peer].score_batch(train.batch(rows)), method.margin)
            kept = max(1, int(method.warmup_share * len(costs)))
            return costs.topk(kept, largest=False).values.sum()

        return self.warm_up(train, epoch, peer, loss)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer with labels by comparison with the anchors."""
        labels_of, threshold = partial(self.labels, train, peer), self.method.mismatch_threshold
        labelling = Labelling(labels_of, threshold, noisy_first=True)
        return learn_labelled(self, train, epoch, peer, labelling)

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Label a batch with the other peer's network."""
        net, batch = self.others[peer], train.batch(np.append(clean, noisy))
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        whole, size = (images.regions.sum(1), captions.words.sum(1)), len(clean)
        similarity = net.score(images[:size], captions[:size])
        found = anchors(closeness(similarity, self.method.margin))
        own = consistency(*(cosines(codes, codes[found]) for codes in whole))
        return ((1 + own[:size]) / 2).index_fill(0, found, 1.0), own[size:]

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two beta distributions over their losses."""
        losses = self.losses(train, peer, self.method.margin, self.method.division_batch)
        return DividedPairs(losses, divide_by_beta(losses))


def cosines(
    rows: Float[Tensor, "rows dim"], columns: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """Return the cosine of each row with each column."""
    return functional.normalize(rows, dim=1) @ functional.normalize(columns, dim=1).T


def consistency(
    images: Float[Tensor, "batch anchors"], captions: Float[Tensor, "batch anchors"]
) -> PerPair:
    r"""Compare how similar a pair's two halves are to the halves of the nearest clean pair.

    .. math::
        r_i = \frac{1}{2} \sum_{a} \frac{\min(x_{ia}, y_{ia})}{\max(x_{ia}, y_{ia})},\quad
        a \in \{\arg\max_a x_{ia}, \arg\max_a y_{ia}\}

    The cosines of the images with those of clean pairs are :math:`x`, those of the captions
    :math:`y`.

    Differs:
        A ratio with a negative cosine is 0; the released code adds it as it is, then clips.
    """
    low = torch.minimum(images, captions).clamp(min=0)
    ratios = low / torch.maximum(images, captions).clamp(min=_TINY)
    nearest = torch.stack([images.argmax(1), captions.argmax(1)], 1)
    return ratios.gather(1, nearest).mean(1).clamp(max=1)
