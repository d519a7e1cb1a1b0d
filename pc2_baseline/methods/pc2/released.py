"""PC2 as in its authors' released code, including defects that change its behaviour."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from now_builder.formats.features import REGIONS
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet, cycle_batches, full_batches
from pc2_baseline.methods.pc2.network import (
    Encoded,
    FlatClassifier,
    Pc2Network,
    PeerEpoch,
    find_pseudo_captions,
)
from pc2_baseline.methods.pc2.paper import peer_epoch
from pc2_baseline.methods.pc2.peers import (
    PairStatistics,
    Pc2Peers,
    PredictionBank,
    PseudoClassSettings,
    evaluate_pairs,
    oscillation,
)
from pc2_baseline.modules.coteaching import (
    CLEAN,
    NOISY,
    NONE,
    ORDER,
    PEERS,
    Rows,
    by_peer,
    full_margin_loss,
)
from pc2_baseline.modules.division import THRESHOLD, Division, divide, require_clean
from pc2_baseline.modules.learner import Step, stepped_rate, take_steps
from pc2_baseline.modules.losses import (
    pseudo_class_loss,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.encoders import CaptionCodes, CaptionEncoder, Loss, word_mask, word_rows
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes

ZERO_BELOW = 0.5
"""Cosine below which a noisy pair's margin is 0: ``--p_threshold`` of the released code."""


class Pc2ReleasedSettings(PseudoClassSettings):
    """Settings of PC2 as in its released code."""

    noisy_from_epoch: Annotated[int, Field(ge=0)] = Field(
        25, description="First epoch after the warm-up that trains on noisy pairs."
    )


class Pc2Released(Pc2Peers):
    """Two co-taught peers that train as the released code of PC2 does.

    Source:
        The released code of PC2 (Duan et al., ACM MM 2024).

    Differs:
        ``docs/departures.md`` lists the departures from the paper, and defects that are not copied.
    """

    section = Pc2ReleasedSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = cast(Pc2ReleasedSettings, settings.method)
        super().__init__(settings, sizes, device, self.method, PaddedClassifier)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then let each divide the pairs for the other."""
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        judged = self.train.evaluates(epoch)  # the bank does not depend on the division
        if judged:
            self.statistics = each(lambda peer: self.divide_pairs(train, epoch, peer))
        self.share_banks()
        if judged:
            figures = [row | self.summary(peer) for peer, row in enumerate(figures)]
        return by_peer(figures)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch; reset the optimiser after the warm-up."""
        since = epoch - self.train.warmup_epochs
        if since == 0:
            self.learners[peer].restart()
        self.begin(epoch, peer, stepped_rate(max(0, since), self.train.lr_drop_epoch, 0.1))
        learn = self._warm_up if since < 0 else self._co_teach
        return learn(train, epoch, peer)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train on all pairs with mean negatives, and write the bank in training mode."""
        net, margin, learner = self.nets[peer], self.method.margin, self.learners[peer]
        size, seed = self.train.batch, self.train.seed
        batches = full_batches(np.arange(len(train)), size, stream(seed, epoch, peer, CLEAN))
        batches = [
            rows for rows in batches if len(rows) > 1
        ]  # a single one breaks batch normalisation

        def loss(rows: Rows) -> Loss:
            pairs, _ = net.encode(train.batch(rows), len(rows))
            self.banks[peer].write_rows(rows, net.predict(pairs.images))
            similarity = net.matching.score(pairs.images, pairs.captions)
            return full_margin_loss(similarity, margin).sum() + self._class_terms(net, pairs)

        return {"loss": take_steps(learner, batches, loss, epoch, PEERS[peer], "warm-up")}

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Take a step on each clean batch; from ``noisy_from_epoch`` on, also on a noisy one."""
        since, name = epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < self.method.mean_epochs else triplet_hardest
        setup = peer_epoch(self, train, peer, triplet)
        require_clean(setup.division)
        batches = self._batches(setup.division, epoch, peer)
        losses = []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            rows = noisy if since >= self.method.noisy_from_epoch else NONE
            step = Step(epoch, number, name, np.append(clean, rows))
            batch, noisy_loss = train.batch(clean), 0.0
            loss = self._clean_step(setup, batch, step)
            if len(rows):
                more = self.banks[peer], batch, train.batch(rows)
                noisy_loss = self._noisy_step(setup, *more, step)
            losses.append((loss, noisy_loss))
        mean, noisy_mean = np.mean(losses, axis=0).tolist()
        return {"loss": mean, "loss_noisy": noisy_mean}

    def _batches(self, division: Division, epoch: int, peer: int) -> Sequence[tuple[Rows, ...]]:
        """Cut an epoch's pairs into batches; one without any takes a step on clean pairs."""
        size = self.train.batch
        batches = divided_batches(division, size, self.train.seed, epoch, peer)
        return batches or [(division.clean[:size], NONE)]

    def _clean_step(self, setup: PeerEpoch, batch: Batch, step: Step) -> float:
        """Take a step on clean pairs; margins are broadcast along the images in both directions."""
        pairs, _ = setup.net.encode(batch, len(batch.regions))
        similarity = setup.net.matching.score(pairs.images, pairs.captions)
        y = setup.labels(batch.pair_index.numpy())
        margins = soft_margin(y, self.method.margin, self.method.margin_base)
        loss = setup.triplet(similarity, margins, None, "image").sum()
        return setup.learner.step(loss + self._class_terms(setup.net, pairs), step)

    def _noisy_step(
        self, setup: PeerEpoch, bank: PredictionBank, clean: Batch, noisy: Batch, step: Step
    ) -> float:
        """Take a step on noisy images with pseudo-captions, and write the bank.

        The gradient flows through the cosines into the margins, which are broadcast along the
        captions in both directions; images with one pseudo-caption are negatives of each other. The
        bank is written by position among the noisy, then among the clean pairs.
        """
        net = setup.net
        with uncounted(net):
            pairs, _ = net.encode(clean, len(clean.regions))
        images = net.matching.encode_images(noisy.regions)
        pseudo = find_pseudo_captions(net.predict(images), net.predict(pairs.images))
        captions = refit(net, pairs.captions, int(noisy.lengths.max()))
        similarity = net.score_chosen(images, captions, pseudo.chosen)
        loss = setup.triplet(similarity, self.noisy_margins(pseudo.cosine), None, "caption").sum()
        with torch.no_grad():
            for subset, batch, codes in (
                (setup.division.noisy, noisy, images), (setup.division.clean, clean, pairs.images)
            ):  # fmt: skip
                places = np.searchsorted(subset, batch.pair_index.numpy())
                bank.write_rows(places, net.predict(codes))
        return setup.learner.step(loss, step)

    def noisy_margins(self, cosines: Float[Tensor, " noisy"]) -> Float[Tensor, " noisy"]:
        """Return the margins of noisy pairs; 0 for low cosines, whose hinges remain active."""
        kept = cosines.masked_fill(cosines < ZERO_BELOW, 0.0)
        return soft_margin(kept, self.method.margin, self.method.margin_base)

    def _class_terms(self, net: Pc2Network, pairs: Encoded) -> Loss:
        """Return the pseudo-class loss less the weighted entropy of each image's prediction."""
        images, captions = net.classify(pairs.images), net.classify(pairs.captions)
        loss = pseudo_class_loss(images, captions.argmax(1))
        return loss - self.method.lambda_entropy * own_entropy(images)

    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer, in an order drawn for the epoch, and divide them.

        The oscillation is the divergence of the bank from the new predictions; stable pairs are
        those that a division by it calls clean. The bank is not changed.
        """
        method, seed, bank = self.method, self.train.seed, self.banks[peer]
        order = stream(seed, len(train), ORDER, epoch)
        batches = full_batches(np.arange(len(train)), method.division_batch, order)
        title = f"divide {PEERS[peer]}"
        losses, predictions = evaluate_pairs(self.nets[peer], train, batches, method.margin, title)
        moved = np.zeros_like(losses)
        divergence = oscillation(predictions, bank.predictions)
        moved[bank.written.numpy()] = divergence[bank.written].numpy()
        stable_prob, is_stable = np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        if np.ptp(moved) > 1e-12:
            stable = divide(moved, seed)
            stable_prob = stable.clean_prob
            is_stable = stable.is_clean & bool((stable_prob > THRESHOLD).any())
        return PairStatistics(losses, divide(losses, seed), moved, stable_prob, is_stable)


def divided_batches(
    division: Division, size: int, seed: int, epoch: int, peer: int
) -> list[tuple[Rows, ...]]:
    """Combine clean batches, the last one with the remainder, with noisy ones of the same sizes.

    They end before a batch with a single pair, which may be the first one.
    """
    clean = full_batches(division.clean, size, stream(seed, epoch, peer, CLEAN))
    noisy = cycle_batches(division.noisy, size, stream(seed, epoch, peer, NOISY), full_batches)
    batches = ((rows, next(noisy, NONE)) for rows in clean)
    return list(takewhile(lambda parts: all(len(rows) != 1 for rows in parts), batches))


def own_entropy(logits: Float[Tensor, "batch classes"]) -> Loss:
    r"""Return the mean entropy :math:`H(p_i)` of the single predictions, in nats.

    Source:
        The authors' code of PC2. With K = 128 and weight 10 its optimum against the cross-entropy
        is 0.05 for the likeliest class: predictions stay near uniform.
    """
    logs = logits.log_softmax(1)
    return -(logs.exp() * logs).sum(1).mean()


class PaddedClassifier(FlatClassifier):
    """Classify a caption's words together with the padding of its batch, resampled to 36.

    So a caption's class depends on the longest caption of its batch.
    """

    def lay(self, captions: CaptionCodes) -> Float[Tensor, "captions 36 dim"]:
        """Resample words and padding."""
        return resampled(captions.words[:, : int(captions.lengths.max())], REGIONS)


def resampled(
    words: Float[Tensor, "captions words dim"], size: int
) -> Float[Tensor, "captions size dim"]:
    """Interpolate padded captions linearly to fewer places, or centre them between zeros."""
    have = words.shape[1]
    if have > size:
        # as interpolate(mode="linear"), whose gradient CUDA cannot repeat bit for bit
        slots = torch.arange(size, device=words.device, dtype=words.dtype)
        place = ((slots + 0.5) * (have / size) - 0.5).clamp(min=0)
        left = place.long()
        share = (place - left)[:, None]
        return words[:, left] * (1 - share) + words[:, (left + 1).clamp(max=have - 1)] * share
    front = (size - have) // 2
    return functional.pad(words, (0, 0, front, size - have - front))


def refit(net: Pc2Network, captions: CaptionCodes, words: int) -> CaptionCodes:
    """Resample padded captions to ``words`` words; their lengths stay and no longer agree."""
    lengths = captions.lengths.clamp(max=words)
    laid = resampled(captions.words[:, : int(captions.lengths.max())], words)
    laid = laid * word_mask(lengths, words, laid.device)[..., None]
    encoder = cast(CaptionEncoder, net.matching.captions)
    rows = word_rows(lengths, words, laid.device)
    pooled = encoder.pooled(laid.flatten(0, 1).index_select(0, rows.padded), rows)
    return CaptionCodes(laid, pooled, lengths)


@contextmanager
def uncounted(net: nn.Module) -> Iterator[None]:
    """Keep batch normalisation from updating its running statistics in training mode."""
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm1d)]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
