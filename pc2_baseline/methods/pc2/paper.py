"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024), as its paper says.

Read it from the top: an epoch, a training step, then what the step is prepared by. On the way from
a batch to its loss there are two more files: the network, ``methods/pc2/pseudo_class.py``, and the
losses, ``modules/losses.py``.
Symbols and sections are the paper's; where it is not followed, ``docs/departures.md`` says why.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from pydantic import Field, model_validator
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import own_section
from pc2_baseline.methods.pc2.bank import oscillation
from pc2_baseline.methods.pc2.peers import (
    PairStatistics,
    Pc2CommonSettings,
    Pc2Peers,
    PeerEpoch,
    evaluate_pairs,
)
from pc2_baseline.methods.pc2.pseudo_caption import (
    distinct,
    search_clean_set,
)
from pc2_baseline.methods.pc2.pseudo_class import CLASSIFIERS, Encoded, Pc2Network
from pc2_baseline.modules.coteaching import (
    PEERS,
    Rows,
    Triplet,
    by_peer,
    clean_and_noisy_batches,
    dividing_batches,
    full_margin_loss,
)
from pc2_baseline.modules.division import clean_posterior, divide, require_clean
from pc2_baseline.modules.learner import Step, mean_losses, rate
from pc2_baseline.modules.losses import (
    likeliest,
    mean_entropy,
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.networks.codes import ImageCodes
from pc2_baseline.networks.fused import unit
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes


class Pc2Settings(Pc2CommonSettings):
    """PC2 (Duan et al., ACM MM 2024)."""

    name: Literal["pc2"] = "pc2"
    search_in: Literal["batch", "clean_set"] = Field(
        "batch",
        description="Where pseudo-captions are searched: in the clean batch, or among the bank's "
        "clean pairs.",
    )

    @model_validator(mode="after")
    def _search_fits(self) -> "Pc2Settings":
        if self.search_by == "embedding" and self.search_in == "clean_set":
            raise ValueError('search_by = "embedding" needs search_in = "batch"')
        return self


class Pc2(Pc2Peers):
    """Co-taught peers that learn noisy images from captions of clean pairs of the same class.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 1 to 14.

    Differs:
        The authors' code departs from the equations: see
        :class:`~pc2_baseline.methods.pc2.released.Pc2Released`.
    """

    section = Pc2Settings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = own_section(settings.method, Pc2Settings)
        classifier = CLASSIFIERS[self.method.class_input]
        super().__init__(settings, sizes, device, self.method, classifier)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then let each divide the pairs for the other."""
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        judged = self.train.judges(epoch, last=2)  # a prediction is compared with the one before
        if judged:
            self.statistics = each(lambda peer: self.divide_pairs(train, peer))
        self.share_banks()
        if judged:
            figures = [own | self.summary(peer) for peer, own in enumerate(figures)]
        return by_peer(figures)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch: on all pairs at first, then by the other's division."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        learn = self._warm_up if epoch < self.train.warmup_epochs else self._co_teach
        return learn(train, epoch, peer)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Learn all pairs with mean negatives and one margin, and their pseudo-classes."""
        loss = partial(warm_up_loss, self.method, self.nets[peer], train)
        return self.warm_up(train, epoch, peer, loss)

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Learn the pairs that the other peer calls clean, and as many noisy ones beside them."""
        method, since, name = self.method, epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        own = peer_epoch(self, train, peer, triplet)
        require_clean(own.division)
        batches = clean_and_noisy_batches(
            own.division, self.train.batch, self.train.seed, epoch, peer,
            with_noisy=method.pseudo_captions and since >= method.noisy_from_epoch,
        )  # fmt: skip
        losses = []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, np.append(clean, noisy))
            losses.append(training_step(method, own, clean, noisy, step, method.search_in))
        loss, noisy_loss = mean_losses(losses)
        return {"loss": loss, "loss_noisy": noisy_loss}

    def divide_pairs(self, train: PairSet, peer: int) -> PairStatistics:
        """Divide the pairs with a peer, for the other: see :func:`co_divide`."""
        return co_divide(self, self.method, train, peer)


def warm_up_loss(
    method: Pc2CommonSettings, net: Pc2Network, train: PairSet, rows: Rows
) -> Float[Tensor, ""]:
    """Return the loss of a batch of the warm-up: mean negatives, one margin, and class terms."""
    pairs = net.encode(train.batch(rows))
    similarity = net.matching.score(pairs.images, pairs.captions)
    return full_margin_loss(similarity, method.margin).sum() + class_terms(net, pairs, method)


def training_step(
    method: Pc2CommonSettings,
    own: PeerEpoch,
    clean: Rows,
    noisy: Rows,
    step: Step,
    search_in: Literal["batch", "clean_set"] = "batch",
) -> tuple[float, Float[Tensor, ""]]:
    r"""Take one step down the total loss.

    .. math:: L = L^c + \lambda_n L^n + \lambda_{pse} L^{pse} - \lambda_{ent} L^{ent}

    Args:
        method: Its settings.
        own: What the peer trains with.
        clean: Pairs that the division calls clean.
        noisy: Pairs that it calls noisy; none before their epoch.
        step: The step, for the message if it fails.
        search_in: Where pseudo-captions are searched.

    Returns:
        The loss, and its noisy part L^n, on the device: the host need not wait for it.
    """
    net, device = own.net, own.train.device
    pairs, images = net.encode_split(own.train, clean, noisy)  # all images at once

    # L^c, eq. 5: triplets of clean pairs, margins soft by their rectified correspondence y.
    y = torch.from_numpy(own.correspondence[clean]).float().to(device)
    similarity = own.score(pairs.images, pairs.captions)
    margins = soft_margin(y, method.margin, method.margin_base)
    loss = own.triplet(similarity, margins).sum()

    # Pseudo-classification (section 3.2), on clean pairs alone.
    loss = loss + class_terms(net, pairs, method)

    noisy_loss = torch.zeros((), device=device)
    if len(noisy):
        # Pseudo-captioning (section 3.3): the caption of the clean image whose
        # pseudo-prediction is the nearest by cosine. Nothing learns from the choice itself.
        if search_in == "batch":
            asked, keys = (describe(net, codes, method) for codes in (images, pairs.images))
            cosine, chosen = (unit(asked) @ unit(keys).T).max(1)
            used, column = distinct(chosen)
            captions = pairs.captions[used]
        else:  # not in the paper
            cosine, chosen, column, captions = search_clean_set(own, images)

        # L^n, eq. 8: triplets of noisy images with pseudo-captions, margins soft by the
        # cosines. Images with one pseudo-caption are not negatives of each other: both columns
        # are the same, and the hinge between them a constant. PC2* leaves out low cosines.
        y = cosine.clamp(0.0, 1.0)
        similarity = own.score(images, captions, column)
        margins = soft_margin(y, method.margin, method.margin_base)
        costs = own.triplet(similarity, margins, chosen[:, None] != chosen[None])
        noisy_loss = costs.masked_fill(y < method.mismatch_threshold, 0.0).sum()

    total, of_noisy = loss + method.lambda_noisy * noisy_loss, noisy_loss.detach()
    step = replace(step, parts={"noisy": of_noisy})
    return own.learner.step(total, step), of_noisy


def describe(
    net: Pc2Network, codes: ImageCodes, method: Pc2CommonSettings
) -> Float[Tensor, "images width"]:
    """Return the vectors to search by: pseudo-predictions, or embeddings without P-Cls."""
    own = net.predict(codes) if method.search_by == "prediction" else codes.pooled
    return own.detach()


def co_divide(
    peers: Pc2Peers, method: Pc2CommonSettings, train: PairSet, peer: int
) -> PairStatistics:
    """Evaluate all pairs once with a peer, divide them, and write its bank.

    Co-dividing: a mixture of two Gaussians over the losses gives the posterior w of each pair to be
    clean. Rectification (section 3.4): another over the oscillation of its image's
    pseudo-prediction since the epoch before gives the posterior w° to be stable.
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


def class_terms(
    net: Pc2Network,
    pairs: Encoded,
    method: Pc2CommonSettings,
    class_loss: Callable[[Tensor, Tensor], Tensor] = pseudo_class_loss,
) -> Float[Tensor, ""]:
    r"""Return :math:`\lambda_{pse} L^{pse} - \lambda_{ent} L^{ent}` of some pairs.

    The likeliest class of a caption is the label of its image; the entropy of the mean prediction
    is raised, so that predictions spread over the classes.
    """
    if not method.pseudo_classes:
        return torch.zeros((), device=pairs.images.pooled.device)
    images, captions = net.classify(pairs.images), net.classify(pairs.captions)
    choose = relatively_likeliest if method.relative_targets else likeliest
    loss = class_loss(images, choose(captions))
    entropy = mean_entropy(images, captions)
    return method.lambda_pseudo * loss - method.lambda_entropy * entropy


def peer_epoch(peers: Pc2Peers, train: PairSet, peer: int, triplet: Triplet) -> PeerEpoch:
    """Return the state that a peer trains with after the warm-up; the division is the other's."""
    other = peers.teacher(peer)
    correspondence = rectified(other.division.clean_prob, other.stable_prob, other.is_stable)
    own = peers.nets[peer], peers.learners[peer], peers.banks[peer]
    return PeerEpoch(train, *own, triplet, other.division, correspondence)


def rectified(
    clean_prob: Float[np.ndarray, " pairs"],
    stable_prob: Float[np.ndarray, " pairs"],
    is_stable: Bool[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    r"""Correspondence of clean pairs: :math:`y = w + (1-w)\,w^\circ` where stable, else w.

    ``clean_prob`` is :math:`w`, ``stable_prob`` :math:`w^\circ`, the posterior of little
    oscillation.
    """
    return np.asarray(clean_prob + (1 - clean_prob) * np.where(is_stable, stable_prob, 0.0))


def stable_pairs(
    moved: Float[np.ndarray, " pairs"], method: Pc2CommonSettings, seed: int
) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
    r"""Return the posterior :math:`w^\circ` of little oscillation and which pairs are stable.

    No pair is where all move alike.
    """
    if np.ptp(moved) <= 1e-12 or not method.rectify:
        return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
    stable_prob = clean_posterior(moved, seed)
    return stable_prob, np.asarray(stable_prob >= method.oscillation_threshold)
