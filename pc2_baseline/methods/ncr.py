"""NCR: noisy correspondence rectifier (Huang et al., NeurIPS 2021)."""

from functools import partial

import torch

from pc2_baseline.data.pairs import PairSet
from pc2_baseline.methods.relabelling import (
    Labels,
    Relabelling,
    RelabellingSettings,
    anchors,
    closeness,
)
from pc2_baseline.modules.coteaching import DividedPairs, Rows, full_margin_loss
from pc2_baseline.modules.division import divide
from pc2_baseline.networks.encoders import Block, Loss, PerPair

_TINY = 1e-12


class NcrSettings(RelabellingSettings):
    """NCR (Huang et al., NeurIPS 2021): labels that the networks predict."""


class Ncr(Relabelling[NcrSettings]):
    r"""Two co-taught peers; the networks predict the labels of the pairs.

    The label of a clean pair is :math:`w + (1 - w)\,p`: :math:`w` is its clean probability in the
    other peer's division, :math:`p` the prediction of the network in training. The label of a noisy
    pair is the mean of both networks' predictions. The warm-up has mean negatives and one margin.

    Source:
        NCR (Huang et al., NeurIPS 2021).

    Differs:
        The released code learns from noisy pairs only in the second half of the epochs, in a step
        of their own (``method.noisy_from_epoch``, ``method.steps``). Its clean labels become a
        matrix by broadcasting, so a hinge mixes two pairs; its noisy margins are those of the
        negative image in one direction. Here a margin is the query's. Batches for the division have
        the same order in every epoch.
    """

    section = NcrSettings

    def warm_up_loss(self, similarity: Block) -> Loss:
        """Return the loss of a batch of the warm-up: mean negatives, one margin."""
        return full_margin_loss(similarity, self.method.margin).sum()

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer with rectified labels."""
        return self.learn_labelled(train, epoch, peer)

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Rectify the labels of a batch."""
        margin, net = self.method.margin, self.nets[peer]
        predicted = predicted_labels(net.score_batch(train.batch(clean)), margin)
        clean_prob = torch.from_numpy(self.teacher(peer).division.clean_prob[clean])
        clean_prob = clean_prob.to(predicted)
        rectified = clean_prob + (1 - clean_prob) * predicted
        if not len(noisy):
            return rectified, rectified[:0]
        pairs = train.batch(noisy)
        scores = [network.score_batch(pairs) for network in (net, self.others[peer])]
        first, second = (predicted_labels(similarity, margin) for similarity in scores)
        return rectified, (first + second) / 2

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their losses."""
        loss = partial(full_margin_loss, margin=self.method.margin)
        losses = self.losses(train, peer, loss, self.method.division_batch)
        return DividedPairs(losses, divide(losses, self.train.seed))


def predicted_labels(similarity: Block, margin: float) -> PerPair:
    """Predict the label of each pair of a batch, in [0, 1]: its closeness relative to the anchors'.

    See :func:`~pc2_baseline.methods.relabelling.closeness`; pairs that are as close as the mean of
    the :func:`~pc2_baseline.methods.relabelling.anchors` or closer have label 1.
    """
    close = closeness(similarity, margin)
    return (close / close[anchors(close)].mean().clamp(min=_TINY)).clamp(max=1)
