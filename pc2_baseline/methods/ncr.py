"""NCR: noisy correspondence rectifier (Huang et al., NeurIPS 2021)."""

from functools import partial

import torch

from pc2_baseline.data.pairs import PairSet
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
from pc2_baseline.modules.division import divide
from pc2_baseline.networks.encoders import Block, Loss, PerPair

_TINY = 1e-12


class NcrSettings(RelabellingSettings):
    """NCR (Huang et al., NeurIPS 2021): labels that the networks predict."""


class Ncr(Relabelling[NcrSettings]):
    r"""Co-taught peers that learn pairs by labels which the networks themselves predict.

    The label of a clean pair is :math:`w + (1 - w)\,p`, with the clean probability :math:`w` of the
    other peer's division and the prediction :math:`p` of the network that is trained. The label of
    a noisy pair is the mean of both networks' predictions.

    Source:
        NCR (Huang et al., NeurIPS 2021).

    Differs:
        The released code learns from noisy pairs in the second half of the epochs alone, and takes
        a step for each kind of pairs (``method.noisy_from_epoch``, ``method.steps``). Its clean
        labels become a matrix by broadcasting, so that a hinge mixes two pairs, and its noisy
        margins belong to the negative image in one direction; here a margin is the query's.
        Dividing batches have one order a run.
    """

    section = NcrSettings

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer on all pairs, with mean negatives and one margin."""
        self.begin(epoch, peer, 1.0)
        margin, net = self.method.margin, self.nets[peer]

        def loss(rows: Rows) -> Loss:
            return full_margin_loss(net.score_batch(train.batch(rows)), margin).sum()

        return self.warm_up(train, epoch, peer, loss)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer with rectified labels."""
        return learn_labelled(
            self, train, epoch, peer, Labelling(partial(self.labels, train, peer))
        )

    def labels(self, train: PairSet, peer: int, clean: Rows, noisy: Rows) -> Labels:
        """Rectify the labels of a batch."""
        margin, own = self.method.margin, self.nets[peer]
        predicted = predicted_labels(own.score_batch(train.batch(clean)), margin)
        clean_prob = torch.from_numpy(self.teacher(peer).division.clean_prob[clean])
        clean_prob = clean_prob.to(predicted)
        rectified = clean_prob + (1 - clean_prob) * predicted
        if not len(noisy):
            return rectified, rectified[:0]
        pairs = train.batch(noisy)
        both = [
            predicted_labels(net.score_batch(pairs), margin) for net in (own, self.others[peer])
        ]
        return rectified, (both[0] + both[1]) / 2

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their losses."""
        losses = self.losses(train, peer, self.method.margin, self.method.division_batch)
        return DividedPairs(losses, divide(losses, self.train.seed))


def predicted_labels(similarity: Block, margin: float) -> PerPair:
    """Predict the label of each pair of a batch: its closeness, in units of the batch's highest.

    The arguments are those of :func:`~pc2_baseline.methods.relabelling.closeness`.

    Returns:
        In [0, 1]; 1 from the mean closeness of the
        :func:`~pc2_baseline.methods.relabelling.anchors` on.
    """
    close = closeness(similarity, margin)
    return (close / close[anchors(close)].mean().clamp(min=_TINY)).clamp(max=1)
