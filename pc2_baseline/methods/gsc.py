"""GSC: geometrical structure consistency (Zhao et al., CVPR 2024)."""

from collections.abc import Callable
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
"""Beta: weight of an epoch's own estimates of correspondence in their running averages."""
STRUCTURE_WEIGHT = 0.01
"""Gamma: weight of the loss that aligns the structures of both modalities."""
LR_DECAY = 0.2
"""Factor of the learning rate each time ``train.lr_drop_epoch`` epochs have passed, the warm-up
included."""


class GscSettings(SoftmaxSettings):
    """GSC (Zhao et al., CVPR 2024): pairs weighted by how well they fit the geometry learned.

    The warm-up is the epochs whose pairs all have weight 1; at least the first one is such.
    """

    structures: Literal["network", "pooled"] = Field(
        "network",
        description="How images are compared with images, and captions with captions: by the "
        "network itself, which takes three times the work, or by cosines of pooled vectors.",
    )


class Gsc(OneNetwork[GscSettings]):
    """One network; each pair's loss is weighted by how well the pair fits the learned geometry.

    While it trains, the network predicts for each pair how far its halves belong together among the
    batch (across the modalities), and how much the image lies among the images as its caption among
    the captions (within each modality), from which a mixture makes a posterior. Both are averaged
    over the epochs, the newest counting most; a pair's weight is the smaller average, in its own
    loss and in the structures of the others. The first epoch takes every pair as matched.

    Attributes:
        statistics: By pair_index: the running averages ``prediction`` and ``structure``, their
            minimum ``clean_prob``, ``is_clean``, and the ``loss`` of the last epoch.

    Source:
        GSC (Zhao et al., CVPR 2024); averages over epochs are temporal ensembling (Laine and Aila,
        ICLR 2017). Formulas and schedule as in the authors' code.

    Differs:
        Structures compare as :func:`network_structures` says; theirs a little otherwise.
        The authors' checkpoints leave out the average prediction, so that theirs starts anew at a
        resume. Their variant GSC+, two networks that exchange weights, is not here.
    """

    section = GscSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.compare = STRUCTURES[self.method.structures]
        ones = torch.ones(sizes.pairs)
        self.statistics = {"prediction": ones, "structure": ones, "clean_prob": ones}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then weigh the pairs anew."""
        self.begin(epoch, stepped_rate(epoch, self.train.lr_drop_epoch, LR_DECAY))
        weights = self.statistics["clean_prob"]
        if epoch < self.train.warmup_epochs:
            weights = torch.ones(len(train))
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        found = []

        def loss(rows: Rows) -> Loss:
            own, judged = self._batch_loss(train.batch(rows), weights[rows].to(train.device))
            found.append(judged)
            return own

        mean = take_steps(self.learner, batches, loss, epoch)
        by_pair = torch.zeros(3, len(train))
        by_pair[:, np.concatenate(batches)] = torch.cat(found, 1).cpu()
        self._weigh(*by_pair)
        return {
            "loss": mean,
            "pair_loss": float(self.statistics["loss"].mean()),
            "clean": float(self.statistics["is_clean"].sum()),
        }

    def _batch_loss(self, batch: Batch, weights: PerPair) -> tuple[Loss, Float[Tensor, "3 batch"]]:
        """Compute the loss of a batch.

        Returns:
            The loss; and of each pair its InfoNCE, the probability of its halves for
            each other, and the agreement of its structures.
        """
        images = self.net.encode_images(batch.regions)
        captions = self.net.encode_captions(batch.tokens, batch.lengths)
        logs = log_matches(self.net.score(images, captions), self.method.temperature)
        own = torch.stack([way.diagonal() for way in logs])
        matching = -own.mean(0)
        structures = [found * weights for found in self.compare(self.net, images, captions)]
        inside = structure_loss(*structures)
        loss = (weights * (matching + STRUCTURE_WEIGHT * inside)).mean()
        agreement = structure_agreement(*structures)
        return loss, torch.stack([matching, own.exp().mean(0), agreement]).detach().float()

    def _weigh(
        self,
        losses: Float[Tensor, " pairs"],
        predictions: Float[Tensor, " pairs"],
        agreement: Float[Tensor, " pairs"],
    ) -> None:
        """Take an epoch's estimates into the running averages; a weight is the smaller one."""
        fit = torch.from_numpy(clean_posterior(-agreement.numpy(), self.train.seed)).float()
        new = NEWEST_WEIGHT
        prediction = new * predictions + (1 - new) * self.statistics["prediction"]
        structure_fit = new * fit + (1 - new) * self.statistics["structure"]
        clean_prob = torch.minimum(prediction, structure_fit)
        self.statistics = {
            "prediction": prediction,
            "structure": structure_fit,
            "clean_prob": clean_prob,
            "is_clean": clean_prob > THRESHOLD,
            "loss": losses,
        }


Structures = tuple[Block, Block]
"""Similarities of each image with all images of a batch, and of each caption with all captions."""


def network_structures(
    net: MatchingNetwork, images: ImageCodes, captions: CaptionCodes
) -> Structures:
    """Compare images with images, and captions with captions, by the network that matches both.

    Regions stand for words, and words for regions. It takes two more blocks of similarities.

    Differs:
        The authors' code compares the regions of two images rank by rank; here each attends to
        those of the other, as words do. In it, a caption's padding is masked; here it is filled
        with the caption's own words (:func:`as_images`).
    """
    return net.score(images, as_captions(images)), net.score(as_images(captions), captions)


def pooled_structures(_: MatchingNetwork, images: ImageCodes, captions: CaptionCodes) -> Structures:
    """Compare images, and captions, by the cosines of their pooled vectors, at little cost.

    The arguments are those of :func:`network_structures`.
    """
    vectors = unit(images.pooled), unit(captions.pooled)
    of_images, of_captions = (own @ own.T for own in vectors)
    return of_images, of_captions


STRUCTURES: dict[str, Callable[[MatchingNetwork, ImageCodes, CaptionCodes], Structures]] = {
    "network": network_structures,
    "pooled": pooled_structures,
}
"""Ways to compare samples of one modality, by their name in the settings."""


def as_captions(images: ImageCodes) -> CaptionCodes:
    """Take regions for words."""
    lengths = torch.full((len(images.regions),), images.regions.shape[1])
    return CaptionCodes(images.regions, images.pooled, lengths)


def as_images(captions: CaptionCodes) -> ImageCodes:
    """Take words for regions, again from the first one where a caption is shorter than others.

    A caption whose words all come equally often is attended to as the caption itself is.
    """
    lengths = captions.lengths[:, None]
    places = torch.arange(int(lengths.max())) % lengths
    places = places[..., None].to(captions.words.device)
    words = captions.words.gather(1, places.expand(-1, -1, captions.words.shape[2]))
    return ImageCodes(words, captions.pooled)


def structure_agreement(images: Block, captions: Block) -> PerPair:
    """Compute the cosine of each pair's two structures: high where its halves lie alike."""
    return functional.cosine_similarity(images, captions, dim=1)


def structure_loss(images: Block, captions: Block) -> PerPair:
    r"""InfoNCE of each image's structure with the captions' structures, in nats.

    .. math:: -\log \mathrm{softmax}_j (G^I_i \cdot G^T_j)_i

    The arguments are those of :func:`structure_agreement`.

    Source:
        GSC (Zhao et al., CVPR 2024); temperature and direction as in the authors' code.
    """
    return -log_matches(images @ captions.T, 1.0)[0].diagonal()
