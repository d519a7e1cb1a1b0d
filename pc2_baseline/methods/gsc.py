"""GSC: geometrical structure consistency (Zhao et al., CVPR 2024)."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet, cut
from pc2_baseline.method_section import SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork
from pc2_baseline.modules.contrastive import log_matches
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.modules.division import THRESHOLD, clean_posterior
from pc2_baseline.modules.learner import stepped_rate, take_steps
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, CaptionCodes, ImageCodes, Loss, PerPair
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.training.method import Sizes

NEWEST_WEIGHT = 0.7
"""Beta: weight of the last epoch's estimates in the running averages."""
STRUCTURE_WEIGHT = 0.01
"""Gamma: weight of the loss that aligns the structures of both modalities."""
LR_DECAY = 0.2
"""Factor of the learning rate after every ``train.lr_drop_epoch`` epochs, warm-up included."""


class GscSettings(SoftmaxSettings):
    """GSC (Zhao et al., CVPR 2024): pairs weighted by their fit to the learned geometry.

    In the warm-up, which has at least one epoch, all pairs have weight 1.
    """

    structures: Literal["network", "pooled"] = Field(
        "network",
        description="Similarity of images with images and captions with captions: the network's, "
        "at three times the cost, or cosines of pooled vectors.",
    )


class Gsc(OneNetwork[GscSettings]):
    """One network; each pair is weighted by its fit to the learned geometry.

    During an epoch the network computes two estimates for each pair: the matching probability in
    its batch (across modalities), and the agreement between the image's similarities to the other
    images and the caption's to the other captions (within modalities), which a mixture turns into
    a posterior. Both are averaged over the epochs. The smaller average is the weight of the pair in
    its loss and in the structures of other pairs. In the first epoch all weights are 1.

    Attributes:
        statistics: By pair_index: the running averages ``prediction`` and ``structure``, their
            minimum ``clean_prob``, ``is_clean``, and the ``loss`` of the last epoch.

    Source:
        GSC (Zhao et al., CVPR 2024); averages over epochs are temporal ensembling (Laine and Aila,
        ICLR 2017). Formulas and schedule as in the authors' code.

    Differs:
        The comparison within a modality differs a little: see :func:`network_structures`. The
        authors' checkpoints omit the average prediction, so it is reset on resume. Their variant
        GSC+, two networks that exchange weights, is not implemented.
    """

    section = GscSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        by_network = self.method.structures == "network"
        self.compare = network_structures if by_network else pooled_structures
        ones = torch.ones(sizes.pairs)
        self.statistics = {"prediction": ones, "structure": ones, "clean_prob": ones}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then update the weights of the pairs."""
        self.begin(epoch, stepped_rate(epoch, self.train.lr_drop_epoch, LR_DECAY))
        weights = self.statistics["clean_prob"]
        if epoch < self.train.warmup_epochs:
            weights = torch.ones(len(train))
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        estimates = []

        def loss(rows: Rows) -> Loss:
            cost, estimate = self._batch_loss(train.batch(rows), weights[rows].to(train.device))
            estimates.append(estimate)
            return cost

        mean = take_steps(self.learner, batches, loss, epoch)
        by_pair = torch.zeros(3, len(train))
        by_pair[:, np.concatenate(batches)] = torch.cat(estimates, 1).cpu()
        self._weigh(*by_pair)
        return {
            "loss": mean,
            "pair_loss": float(self.statistics["loss"].mean()),
            "clean": float(self.statistics["is_clean"].sum()),
        }

    def _batch_loss(self, batch: Batch, weights: PerPair) -> tuple[Loss, Float[Tensor, "3 batch"]]:
        """Compute the loss of a batch.

        Returns:
            The loss; and for each pair its InfoNCE, its matching probability, and the agreement
            of its structures: the cosine of the image's with the caption's.
        """
        images = self.net.encode_images(batch.regions)
        captions = self.net.encode_captions(batch.tokens, batch.lengths)
        logs = log_matches(self.net.score(images, captions), self.method.temperature)
        logs_of_pairs = torch.stack([way.diagonal() for way in logs])
        matching = -logs_of_pairs.mean(0)
        first, second = (block * weights for block in self.compare(self.net, images, captions))
        loss = (weights * (matching + STRUCTURE_WEIGHT * structure_loss(first, second))).mean()
        agreement = functional.cosine_similarity(first, second, dim=1)
        estimates = matching, logs_of_pairs.exp().mean(0), agreement
        return loss, torch.stack(estimates).detach().float()

    def _weigh(
        self,
        losses: Float[Tensor, " pairs"],
        predictions: Float[Tensor, " pairs"],
        agreement: Float[Tensor, " pairs"],
    ) -> None:
        """Update the running averages with an epoch's estimates; the weight is the smaller one."""
        fit = torch.from_numpy(clean_posterior(-agreement.numpy(), self.train.seed)).float()
        new, averages = NEWEST_WEIGHT, self.statistics
        prediction = new * predictions + (1 - new) * averages["prediction"]
        structure = new * fit + (1 - new) * averages["structure"]
        clean_prob = torch.minimum(prediction, structure)
        self.statistics = {
            "prediction": prediction,
            "structure": structure,
            "clean_prob": clean_prob,
            "is_clean": clean_prob > THRESHOLD,
            "loss": losses,
        }


Structures = tuple[Block, Block]
"""Similarities of each image with all images of a batch, and of each caption with all captions."""


def network_structures(
    net: MatchingNetwork, images: ImageCodes, captions: CaptionCodes
) -> Structures:
    """Return the network's similarities of images with images and of captions with captions.

    The second image's regions take the place of words, the first caption's words that of regions.

    Differs:
        The authors' code compares the regions of two images rank by rank; here the regions of one
        attend to those of the other, as words do. It masks the padding of captions; here padding is
        replaced by the caption's own words (:func:`as_images`).
    """
    return net.score(images, as_captions(images)), net.score(as_images(captions), captions)


def pooled_structures(_: MatchingNetwork, images: ImageCodes, captions: CaptionCodes) -> Structures:
    """Return the cosines of the pooled vectors of images and of captions."""
    image_vectors, caption_vectors = unit(images.pooled), unit(captions.pooled)
    return image_vectors @ image_vectors.T, caption_vectors @ caption_vectors.T


def as_captions(images: ImageCodes) -> CaptionCodes:
    """Use regions as words."""
    lengths = torch.full((len(images.regions),), images.regions.shape[1])
    return CaptionCodes(images.regions, images.pooled, lengths)


def as_images(captions: CaptionCodes) -> ImageCodes:
    """Use words as regions; captions that are shorter than the longest one repeat their words.

    If each word comes equally often, attention gives the same result as without repetition.
    """
    lengths = captions.lengths[:, None]
    places = torch.arange(int(lengths.max())) % lengths
    places = places[..., None].to(captions.words.device)
    words = captions.words.gather(1, places.expand(-1, -1, captions.words.shape[2]))
    return ImageCodes(words, captions.pooled)


def structure_loss(images: Block, captions: Block) -> PerPair:
    r"""Return the InfoNCE of each image's structure with the captions' structures, in nats.

    .. math:: -\log \mathrm{softmax}_j (G^I_i \cdot G^T_j)_i

    Source:
        GSC (Zhao et al., CVPR 2024); temperature and direction as in the authors' code.
    """
    return -log_matches(images @ captions.T, 1.0)[0].diagonal()
