"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024), by its paper.

Read it from the top: an epoch, a training step, then its preparation. From a batch to its loss
there are two more files: the network, ``methods/pc2/network.py``, and ``modules/losses.py``.
Symbols and sections are the paper's; ``docs/departures.md`` explains the departures from it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet
from pc2_baseline.methods.pc2.network import Encoded, Pc2Network, PeerEpoch, find_pseudo_captions
from pc2_baseline.methods.pc2.peers import (
    PairStatistics,
    Pc2CommonSettings,
    Pc2Peers,
    evaluate_pairs,
    oscillation,
)
from pc2_baseline.modules.coteaching import (
    NONE,
    PEERS,
    Rows,
    Triplet,
    by_peer,
    dividing_batches,
    full_margin_loss,
    mixed_batches,
)
from pc2_baseline.modules.division import PairValues, clean_posterior, divide, require_clean
from pc2_baseline.modules.learner import Step, mean_losses, rate
from pc2_baseline.modules.losses import (
    mean_entropy,
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.networks.encoders import Block, ImageCodes, Loss
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes


class Pc2Settings(Pc2CommonSettings):
    """PC2 (Duan et al., ACM MM 2024)."""


class Pc2(Pc2Peers):
    """Co-taught peers that train noisy images on captions of clean pairs of the same class.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 1 to 14.

    Differs:
        The authors' code departs from the equations: see
        :class:`~pc2_baseline.methods.pc2.released.Pc2Released`.
    """

    section = Pc2Settings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(Pc2Settings, settings.method)
        super().__init__(settings, sizes, device, self.method, self.method.classifier)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then let each divide the pairs for the other."""
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        judged = self.train.evaluates(
            epoch, last=2
        )  # a prediction is compared with the previous one
        if judged:
            self.statistics = each(lambda peer: self.divide_pairs(train, peer))
        self.share_banks()
        if judged:
            figures = [row | self.summary(peer) for peer, row in enumerate(figures)]
        return by_peer(figures)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch: first on all pairs, then by the other's division."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        if epoch >= self.train.warmup_epochs:
            return self._co_teach(train, epoch, peer)
        return self.warm_up(
            train, epoch, peer, partial(warm_up_loss, self.method, self.nets[peer], train)
        )

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train on the pairs that the other peer calls clean, and on as many noisy ones."""
        method, since, name = self.method, epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        setup = peer_epoch(self, train, peer, triplet)
        require_clean(setup.division)
        learns_noisy = method.pseudo_captions and since >= method.noisy_from_epoch
        kinds = setup.division.clean, [setup.division.noisy if learns_noisy else NONE]
        batches = mixed_batches(*kinds, self.train.batch, self.train.seed, epoch, peer)
        losses = []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, np.append(clean, noisy))
            batch = train.batch(step.pair_index)
            losses.append(training_step(method, setup, batch, len(clean), step))
        loss, noisy_loss = mean_losses(losses)
        return {"loss": loss, "loss_noisy": noisy_loss}

    def divide_pairs(self, train: PairSet, peer: int) -> PairStatistics:
        """Divide the pairs with a peer, for the other: see :func:`co_divide`."""
        return co_divide(self, self.method, train, peer)


def warm_up_loss(method: Pc2CommonSettings, net: Pc2Network, train: PairSet, rows: Rows) -> Loss:
    """Return the loss of a warm-up batch: mean negatives, the same margin for all, class terms."""
    batch = train.batch(rows)
    pairs, _ = net.encode(batch, len(rows))
    net.matching.similarity.most_active = None  # all cells that break the margin
    similarity = net.matching.score(pairs.images, pairs.captions)
    return full_margin_loss(similarity, method.margin).sum() + class_terms(net, pairs, method)


def training_step(
    method: Pc2CommonSettings, setup: PeerEpoch, batch: Batch, clean: int, step: Step
) -> tuple[float, Loss]:
    r"""Take one step down the total loss.

    .. math:: L = L^c + \lambda_n L^n + \lambda_{pse} L^{pse} - \lambda_{ent} L^{ent}

    Args:
        method: Settings of the method.
        setup: Network and division of the peer.
        batch: Pairs that the division calls clean, then noisy ones (none before their epoch).
        clean: Number of clean pairs.
        step: Names the step in an error message.

    Returns:
        The loss, and its noisy part L^n on the device, so that the host need not wait for it.
    """
    net = setup.net
    pairs, noisy_images = net.encode(batch, clean)  # all images at once
    # With hardest negatives an image has a gradient in two cells and in that of its pair.
    net.matching.similarity.most_active = 3 if setup.triplet is triplet_hardest else None
    noisy_loss = torch.zeros((), device=batch.regions.device)
    if len(batch.regions) > clean:
        similarity, noisy_loss = score_with_noisy(method, setup, pairs, noisy_images)
    else:
        similarity = net.matching.score(pairs.images, pairs.captions)

    # L^c, eq. 5: triplets of clean pairs, margins softened by their rectified correspondence y.
    y = setup.labels(step.pair_index[:clean])
    loss = setup.triplet(similarity, soft_margin(y, method.margin, method.margin_base)).sum()

    # Pseudo-classification (section 3.2), on clean pairs alone.
    loss = loss + class_terms(net, pairs, method)

    total, of_noisy = loss + method.lambda_noisy * noisy_loss, noisy_loss.detach()
    step = replace(step, parts={"noisy": of_noisy})
    return setup.learner.step(total, step), of_noisy


def score_with_noisy(
    method: Pc2CommonSettings, setup: PeerEpoch, pairs: Encoded, noisy: ImageCodes
) -> tuple[Block, Loss]:
    """Score clean pairs; also return L^n of noisy images with captions of these pairs.

    Pseudo-captioning (section 3.3): the caption of the clean image with the nearest
    pseudo-prediction, by cosine. The choice itself has no gradient.
    """
    queries, keys = (describe(setup.net, codes, method) for codes in (noisy, pairs.images))
    pseudo = find_pseudo_captions(queries, keys)
    clean, similarity = setup.net.score_both(pairs, noisy, pseudo.chosen)

    # L^n, eq. 8: triplets of noisy images with pseudo-captions, margins softened by cosines y.
    # Images with one pseudo-caption are not negatives of each other: both columns are the same, and
    # the hinge between them a constant. PC2* leaves out low cosines.
    margins = soft_margin(pseudo.cosine, method.margin, method.margin_base)
    costs = setup.triplet(similarity, margins, pseudo.chosen[:, None] != pseudo.chosen[None])
    return clean, costs.masked_fill(pseudo.cosine < method.mismatch_threshold, 0.0).sum()


def describe(
    net: Pc2Network, codes: ImageCodes, method: Pc2CommonSettings
) -> Float[Tensor, "images width"]:
    """Return the vectors to search by: pseudo-predictions, or embeddings without P-Cls."""
    vectors = net.predict(codes) if method.search_by == "prediction" else codes.pooled
    return vectors.detach()


def class_terms(
    net: Pc2Network,
    pairs: Encoded,
    method: Pc2CommonSettings,
    class_loss: Callable[[Tensor, Tensor], Tensor] = pseudo_class_loss,
) -> Loss:
    r"""Return :math:`\lambda_{pse} L^{pse} - \lambda_{ent} L^{ent}` of some pairs.

    The likeliest class of a caption is the label of its image; a high entropy of the mean
    prediction spreads predictions over the classes.
    """
    if not method.pseudo_classes:
        return torch.zeros((), device=pairs.images.pooled.device)
    images, captions = net.classify(pairs.images), net.classify(pairs.captions)
    labels = relatively_likeliest(captions) if method.relative_targets else captions.argmax(1)
    loss = class_loss(images, labels)
    entropy = mean_entropy(images, captions)
    return method.lambda_pseudo * loss - method.lambda_entropy * entropy


def co_divide(
    peers: Pc2Peers, method: Pc2CommonSettings, train: PairSet, peer: int
) -> PairStatistics:
    """Evaluate all pairs once with a peer, divide them, and write its bank.

    Co-dividing: a mixture of two Gaussians over the losses gives each pair's posterior w of being
    clean. Rectification (section 3.4): another mixture, over the oscillation of the image's
    pseudo-prediction since the previous epoch, gives the posterior w° of being stable.
    """
    seed, bank, title = peers.train.seed, peers.banks[peer], f"divide {PEERS[peer]}"
    batches = dividing_batches(len(train), method.division_batch, seed)
    losses, predictions = evaluate_pairs(peers.nets[peer], train, batches, method.margin, title)
    moved = np.zeros_like(losses)
    if method.pseudo_classes:
        divergence = oscillation(bank.predictions, predictions)
        moved[bank.written.numpy()] = divergence[bank.written].numpy()
    bank.write(predictions)
    stable = stable_pairs(moved, method, seed)
    divided = divide(losses, seed, method.division_threshold, method.division_scale)
    return PairStatistics(losses, divided, moved, *stable)


def peer_epoch(peers: Pc2Peers, train: PairSet, peer: int, triplet: Triplet) -> PeerEpoch:
    """Return the network of a peer after the warm-up with the other peer's division."""
    other = peers.teacher(peer)
    correspondence = rectified(other.division.clean_prob, other.stable_prob, other.is_stable)
    net, learner = peers.nets[peer], peers.learners[peer]
    return PeerEpoch(net, learner, train.device, triplet, other.division, correspondence)


def rectified(
    clean_prob: PairValues, stable_prob: PairValues, is_stable: Bool[np.ndarray, " pairs"]
) -> PairValues:
    r"""Return the correspondence :math:`y = w + (1-w)\,w^\circ` of stable pairs, else w.

    ``clean_prob`` is :math:`w`, ``stable_prob`` :math:`w^\circ`, the posterior of little
    oscillation.
    """
    return np.asarray(clean_prob + (1 - clean_prob) * np.where(is_stable, stable_prob, 0.0))


def stable_pairs(
    moved: PairValues, method: Pc2CommonSettings, seed: int
) -> tuple[PairValues, Bool[np.ndarray, " pairs"]]:
    r"""Return the posterior :math:`w^\circ` of little oscillation and which pairs are stable.

    No pair is stable if all oscillate equally.
    """
    if np.ptp(moved) <= 1e-12 or not method.rectify:
        return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
    stable_prob = clean_posterior(moved, seed)
    return stable_prob, np.asarray(stable_prob >= method.oscillation_threshold)
