"""SPS: proxy captions sought in a stable feature space (Xie et al., IJCAI 2025)."""

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
    dividing_batches,
    mixed_batches,
    pair_losses,
)
from pc2_baseline.modules.division import Division, divide, require_clean
from pc2_baseline.modules.learner import Step, stepped_rate
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import Block, CaptionCodes, ImageCodes, Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes

_LR_DECAY = 0.1
_CLEAN_ORDER = 3  # part of the stream's name


STRICT_ABOVE = 0.6
"""Clean probability above which a clean pair is strictly clean."""
PROXY_THRESHOLD = 0.5
"""Labels of noisy images with their proxy captions that are lower count 0."""
STABILITY_WEIGHT = 25.0
"""Weight of both losses that make the space stable: see :func:`instability`."""


class SpsSettings(NoisySettings, SoftmaxSettings):
    """SPS (Xie et al., IJCAI 2025): noisy images take the caption of a clean image like them."""

    clean_from_epoch: Annotated[int, Field(ge=0)] = Field(
        10, description="First epoch after the warm-up that trains on clean pairs that are not "
        "strictly so.",
    )  # fmt: skip


class Sps(CoTaught):
    r"""Co-taught peers; noisy images learn with the caption of the most alike strictly clean image.

    The warm-up learns all pairs by InfoNCE, whose losses divide them. After it, a peer takes steps
    by the other's division: one on strictly clean pairs, by InfoNCE and :func:`instability`; later
    on one on the other clean pairs, each once an epoch, weighted by labels
    :math:`w + (1 - w)\,p` with the other's clean probability :math:`w` and its own prediction
    :math:`p`; last one on noisy images, each with the caption of the strictly clean image of the
    step that is most alike by the mean of its regions, weighted by :math:`p` times that cosine.

    Source:
        The authors' code of SPS (Xie et al., IJCAI 2025), whose README names the paper. The paper's
        equations could not be had where this was written.

    Differs:
        The authors' code goes on from the best epoch of the warm-up, judged on dev; here from the
        last one. With no two strictly clean pairs it skips the epoch; here all clean ones are taken
        as such. Pairs of the lowest hundredth, where none is noisy, are noisy alone, not also
        strictly clean. It divides by a batch order drawn anew each epoch; here by one a run.
    """

    section = SpsSettings
    nets: Sequence[MatchingNetwork]

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(SpsSettings, settings.method)
        super().__init__(settings, device, partial(make_network, settings.model, sizes))

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch on all pairs."""
        self.begin(epoch, peer, 1.0)
        net = self.nets[peer]

        def loss(rows: Rows) -> Loss:
            return self._info_nce(net.score_batch(train.batch(rows))).mean()

        return self.warm_up(train, epoch, peer, loss)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train a peer for an epoch by the other's division; return the strict steps' loss."""
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
        """Return InfoNCE of each pair, the sum of both directions."""
        return 2 * info_nce(similarity, self.method.temperature)

    def _batches(self, division: Division, epoch: int, peer: int) -> list[tuple[Rows, Rows, Rows]]:
        """Put beside each strictly clean batch one of other clean pairs and one of noisy ones."""
        method, since = self.method, epoch - self.train.warmup_epochs
        strict, clean = strictly_clean(division, STRICT_ABOVE)
        size, seed = self.train.batch, self.train.seed
        noisy = division.noisy if since >= method.noisy_from_epoch else NONE
        beside = mixed_batches(strict, [noisy], size, seed, epoch, peer)
        once = cut(clean, size, stream(seed, epoch, peer, _CLEAN_ORDER))
        once = once[: len(beside)] if since >= method.clean_from_epoch else []
        once += [NONE] * (len(beside) - len(once))
        return [(rows, own, other) for (rows, other), own in zip(beside, once, strict=True)]

    def _strict_loss(self, batch: Batch, peer: int) -> Loss:
        net = self.nets[peer]
        images = net.encode_images(batch.regions)
        captions = net.encode_captions(batch.tokens, batch.lengths)
        similarity = net.score(images, captions)
        unstable = instability(similarity, cosines(images), cosines(captions))
        return self._info_nce(similarity).mean() + STABILITY_WEIGHT * unstable

    def _labels(self, train: PairSet, peer: int, clean: Rows) -> PerPair:
        """Return how far clean pairs are believed in."""
        similarity = self.nets[peer].score_batch(train.batch(clean))
        predicted = matching_probability(similarity, self.method.temperature)
        known = torch.from_numpy(self.teacher(peer).division.clean_prob[clean]).to(predicted)
        return known + (1 - known) * predicted

    def _proxies(
        self, train: PairSet, peer: int, strict: Rows, noisy: Rows
    ) -> tuple[Batch, PerPair]:
        """Return noisy images with their proxy captions, and how far these are believed in."""
        net, pairs = self.nets[peer], train.batch(noisy)
        sure = net.encode_images(train.image_batch(train.image_of[strict]))
        alike, place = cosines(net.encode_images(pairs.regions), sure).max(1)
        tokens, lengths = train.caption_batch(strict[place.cpu().numpy()])
        batch = Batch(pairs.regions, tokens, lengths, pairs.pair_index)
        predicted = matching_probability(net.score_batch(batch), self.method.temperature)
        labels = predicted * alike
        return batch, labels.masked_fill(labels < PROXY_THRESHOLD, 0.0)

    def _divide(self, train: PairSet, peer: int) -> DividedPairs:
        """Divide the pairs by a mixture of two Gaussians over their InfoNCE."""
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        title = f"divide {PEERS[peer]}"
        losses = pair_losses(self.nets[peer], train, batches, self._info_nce, title)
        return DividedPairs(losses, divide(losses, self.train.seed))


def strictly_clean(division: Division, above: float) -> tuple[Rows, Rows]:
    """Return the strictly clean pairs and the other clean ones; all are strict if no two are."""
    require_clean(division)
    is_strict = division.is_clean & (division.clean_prob > above)
    if is_strict.sum() < 2:
        is_strict = division.is_clean
    return np.flatnonzero(is_strict), np.flatnonzero(division.is_clean & ~is_strict)


def cosines(
    rows: ImageCodes | CaptionCodes, columns: ImageCodes | CaptionCodes | None = None
) -> Float[Tensor, "rows columns"]:
    """Return the cosine of each sample's mean region or word with those of others of its kind.

    Without ``columns`` they are compared with each other.
    """
    first, second = (
        functional.normalize(
            (codes.regions if isinstance(codes, ImageCodes) else codes.words).sum(1), dim=1
        )
        for codes in (rows, rows if columns is None else columns)
    )
    return first @ second.T


def instability(similarity: Block, images: Block, captions: Block) -> Loss:
    r"""Mean square by which the space is not the same seen from images and from captions.

    .. math:: \frac{1}{B^2} \sum_{ij} (S_{ij} - S_{ji})^2 + (V_{ij} - U_{ij})^2

    The similarities of images with captions are :math:`S`, the cosines of images with images
    :math:`V`, those of captions with captions :math:`U`.
    """
    return (similarity - similarity.T).square().mean() + (images - captions).square().mean()
