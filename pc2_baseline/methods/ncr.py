"""NCR: noisy correspondence rectifier (Huang et al., NeurIPS 2021)."""

import numpy as np
import torch
from jaxtyping import Float

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.ncr import NcrSettings
from pc2_baseline.methods.bases.relabelling import Labels, Relabelling
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.division import Division, divide
from pc2_baseline.modules.labels import predicted_labels
from pc2_baseline.training.method import Sizes


class Ncr(Relabelling):
    r"""Co-taught peers that learn pairs by labels which the networks themselves predict.

    The label of a clean pair is :math:`w + (1 - w)\,p`, with the clean probability :math:`w` of the
    other peer's division and the prediction :math:`p` of the network that is trained. The label of
    a noisy pair is the mean of both networks' predictions.

    Args:
        settings: Settings of the run; the method section is :class:`NcrSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        NCR (Huang et al., NeurIPS 2021).

    Differs:
        The released code learns from noisy pairs in the second half of the epochs alone, and takes
        a step for each kind of pairs (``method.noisy_from_epoch``, ``method.steps``). Its clean
        labels become a matrix by broadcasting, so that a hinge mixes two pairs, and its noisy
        margins belong to the negative image in one direction; here a margin is the query's.
        Dividing batches have one order a run.
    """

    method: NcrSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, NcrSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of ncr")
        self.method = settings.method
        super().__init__(settings, sizes, device)

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

    def divide(self, losses: Float[np.ndarray, " pairs"]) -> Division:
        """Divide the pairs by a mixture of two Gaussians."""
        return divide(losses, self.train.seed)
