"""SPS: proxy captions found in a stable feature space (Xie et al., IJCAI 2025)."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet, cut
from pc2_baseline.method_section import NoisySettings, SoftmaxSettings
from pc2_baseline.methods.one_network import make_network
from pc2_baseline.methods.peers import CoTaught
from pc2_baseline.modules.contrastive import info_nce, matching_probability
from pc2_baseline.modules.coteaching import (
    NONE,
    PEERS,
    DividedPairs,
    Rows,
    mixed_batches,
)
from pc2_baseline.modules.division import Division, divide, require_clean
from pc2_baseline.modules.learner import Step, stepped_rate
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, CaptionCodes, ImageCodes, Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes

PROXY_THRESHOLD = 0.5
"""Minimum label of a noisy image with its proxy caption; lower ones become 0."""
STABILITY_WEIGHT = 25.0
"""Weight of :func:`instability`."""
STRICT_ABOVE = 0.6
"""Clean probability above which a clean pair is strictly clean."""
_CLEAN_ORDER = 3  # last number in the name of the stream
_LR_DECAY = 0.1


class SpsSettings(NoisySettings, SoftmaxSettings):
    """SPS (Xie et al., IJCAI 2025): noisy images learn with captions of similar clean images."""

    clean_from_epoch: Annotated[int, Field(ge=0)] = Field(
        10,
        description="First epoch after the warm-up that trains on the other clean pairs.",
    )


class Sps(CoTaught):
    r"""Two co-taught peers; noisy images learn with the caption of a similar clean image.

    The warm-up learns all pairs with InfoNCE; these losses divide the pairs. After it, a peer takes
    up to three steps a batch, with the other's division :math:`w`. The first, on strictly clean
    pairs, has InfoNCE and :func:`instability`. The second, from ``method.clean_from_epoch`` on, has
    the other clean pairs, each once an epoch, with weights :math:`w + (1 - w)\,p`, where :math:`p`
    is the peer's own prediction. The third, from ``method.noisy_from_epoch`` on, has noisy images,
    each with the caption of the most similar strictly clean image of the step. Their similarity is
    the cosine of mean regions; the weight is :math:`p` times this cosine.

    Source:
        The authors' code of SPS (Xie et al., IJCAI 2025), whose README names the paper. The paper's
        equations were not available when this was written.

    Differs:
        After the warm-up the authors' code continues from the epoch with the best dev score; here
        from the last one. With fewer than two strictly clean pairs it skips the epoch; here all
        clean pairs count as strictly clean then. If no pair is noisy, the lowest hundredth becomes
        noisy; in the code these pairs also stay strictly clean. It shuffles the batches of the
        division in each epoch; here their order is the same in every epoch.
    """

    section = SpsSettings
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(SpsSettings, settings.method)
        super().__init__(settings, device, partial(make_network, settings.model, sizes))

    def warm_up_loss(self, similarity: Block) -> Loss:
        """Return the loss of a batch of the warm-up."""
        return self._info_nce(similarity).mean()

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer with the other's division; return the mean loss of strictly clean pairs."""
        since = epoch - self.train.warmup_epochs
        self.begin(epoch, peer, stepped_rate(since, self.train.lr_drop_epoch, _LR_DECAY))
        net, learner, name = self.nets[peer], self.learners[peer], PEERS[peer]
        batches = self._batches(self.teacher(peer).division, epoch, peer)
        losses = []
        for number, (strict, clean, noisy) in enumerate(
            bar(batches, f"learn {name}", len(batches))
        ):
            net.eval()
            with torch.no_grad():
                labelled = []
                if len(clean) > 1:
                    labelled.append((train.batch(clean), self._labels(train, peer, clean)))
                if len(noisy) > 1:
                    labelled.append(self._proxies(train, peer, strict, noisy))
            net.train()
            step = Step(epoch, number, name, strict)
            losses.append(learner.step(self._strict_loss(train.batch(strict), peer), step))
            for batch, labels in labelled:
                costs = labels * self._info_nce(net.score_batch(batch))
                learner.step(costs.mean(), Step(epoch, number, name, batch.pair_index.numpy()))
        return {"loss": float(np.mean(losses))}

    def _info_nce(self, similarity: Block) -> PerPair:
        """Return the InfoNCE of each pair, the sum of both directions."""
        return 2 * info_nce(similarity, self.method.temperature)

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, Rows, Rows]]:
        """Return batches of strictly clean, other clean and noisy pairs; the others may be none."""
        method, since = self.method, epoch - self.train.warmup_epochs
        strict, clean = strictly_clean(division, STRICT_ABOVE)
        size, seed = self.train.batch, self.train.seed
        noisy = division.noisy if since >= method.noisy_from_epoch else NONE
        mixed = mixed_batches(strict, [noisy], size, seed, epoch, peer)
        once = cut(clean, size, stream(seed, epoch, peer, _CLEAN_ORDER))
        once = once[: len(mixed)] if since >= method.clean_from_epoch else []
        once += [NONE] * (len(mixed) - len(once))
        return [(first, second, third) for (first, third), second in zip(mixed, once, strict=True)]

    def _strict_loss(self, batch: Batch, peer: int) -> Loss:
        net = self.nets[peer]
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        similarity = net.score(images, captions)
        unstable = instability(similarity, cosines(images), cosines(captions))
        return self._info_nce(similarity).mean() + STABILITY_WEIGHT * unstable

    def _labels(self, train: PairSet, peer: int, clean: Rows) -> PerPair:
        """Return the labels of clean pairs."""
        similarity = self.nets[peer].score_batch(train.batch(clean))
        predicted = matching_probability(similarity, self.method.temperature)
        clean_prob = torch.from_numpy(self.teacher(peer).division.clean_prob[clean]).to(predicted)
        return clean_prob + (1 - clean_prob) * predicted

    def _proxies(
        self, train: PairSet, peer: int, strict: Rows, noisy: Rows
    ) -> tuple[Batch, PerPair]:
        """Return noisy images with their proxy captions, and the labels of these pairs."""
        net, pairs = self.nets[peer], train.batch(noisy)
        clean = net.encode_images(train.image_batch(train.image_of[strict]))
        highest, places = cosines(net.encode_images(pairs.regions), clean).max(1)
        tokens, lengths = train.caption_batch(strict[places.cpu().numpy()])
        batch = Batch(pairs.regions, tokens, lengths, pairs.pair_index)
        predicted = matching_probability(net.score_batch(batch), self.method.temperature)
        labels = predicted * highest
        return batch, labels.masked_fill(labels < PROXY_THRESHOLD, 0.0)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their InfoNCE."""
        losses = self.losses(train, peer, self._info_nce, self.method.division_batch)
        return DividedPairs(losses, divide(losses, self.train.seed))


def strictly_clean(division: Division, above: float) -> tuple[Rows, Rows]:
    """Return strictly clean and other clean pairs; fewer than two strict ones: all are strict."""
    require_clean(division)
    is_strict = division.is_clean & (division.clean_prob > above)
    if is_strict.sum() < 2:
        is_strict = division.is_clean
    return np.flatnonzero(is_strict), np.flatnonzero(division.is_clean & ~is_strict)


def cosines(
    rows: ImageCodes | CaptionCodes, columns: ImageCodes | CaptionCodes | None = None
) -> Float[Tensor, "rows columns"]:
    """Return the cosines of the samples' mean regions or words with those of ``columns``.

    Without ``columns``, compare them with each other.
    """
    first, second = (
        functional.normalize(
            (codes.regions if isinstance(codes, ImageCodes) else codes.words).sum(1), dim=1
        )
        for codes in (rows, rows if columns is None else columns)
    )
    return first @ second.T


def instability(similarity: Block, images: Block, captions: Block) -> Loss:
    r"""Return the mean squared asymmetry of S plus the mean squared difference of V and U.

    .. math:: \frac{1}{B^2} \sum_{ij} (S_{ij} - S_{ji})^2 + (V_{ij} - U_{ij})^2

    :math:`S` are the similarities of images with captions, :math:`V` the cosines of images with
    images, :math:`U` those of captions with captions.
    """
    return (similarity - similarity.T).square().mean() + (images - captions).square().mean()
