"""PC2 as its authors' released code learns, defects that change behaviour included."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings import Pc2ReleasedSettings
from pc2_baseline.methods.networks import make_peers
from pc2_baseline.modules.bank import oscillation
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes, word_mask
from pc2_baseline.modules.coteaching import (
    PEERS,
    PairStatistics,
    PeerEpoch,
    clean_and_noisy_batches,
    dividing_batches,
    evaluate_pairs,
    warm_up_batches,
)
from pc2_baseline.modules.division import clean_posterior, divide, require_clean
from pc2_baseline.modules.learner import Step, rate
from pc2_baseline.modules.losses import (
    MarginAxis,
    class_terms,
    likeliest,
    mean_entropy,
    own_entropy,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.modules.pc2_network import Encoded, Pc2Network, pooled
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions
from pc2_baseline.modules.pseudo_class import resampled
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.training.method import EpochOutputs, Sizes, State

Rows = Int[np.ndarray, " _"]


def _entropy_of_each_image(images: Tensor, _: Tensor) -> Tensor:
    return own_entropy(images)


def _reverse_oscillation(old: Tensor, new: Tensor) -> Tensor:
    return oscillation(new, old)


ENTROPIES = {"batch_mean": mean_entropy, "each_image": _entropy_of_each_image}
DIVERGENCES = {"old_new": oscillation, "new_old": _reverse_oscillation}
AXES: dict[str, tuple[MarginAxis, MarginAxis]] = {
    "query": ("query", "query"),
    "broadcast": ("image", "caption"),
}
"""Margin axes of clean and of noisy pairs."""


class Pc2Released:
    """Two co-taught peers that learn as the released code of PC2 does.

    Each departure from :class:`~pc2_baseline.methods.pc2.Pc2` is a setting, so that its effect can
    be measured by itself; with all of them off, both methods are the same.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2ReleasedSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        The released code of PC2 (Duan et al., ACM MM 2024).

    Differs:
        Batches stay near-equal in size; ``docs/departures.md`` lists what else is not copied.
    """

    ensemble_size = len(PEERS)

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, Pc2ReleasedSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of pc2-released")
        self.method = settings.method
        self.train = settings.train
        self.device = device
        self.peers = make_peers(settings, self.method, sizes, device)
        self.choose = relatively_likeliest if self.method.relative_targets else likeliest
        self.entropy = ENTROPIES[self.method.entropy]
        self.oscillation = DIVERGENCES[self.method.divergence]
        self.axes = AXES[self.method.margin_axis]
        self.step = {"summed": self._summed_step, "two": self._two_steps}[self.method.steps]
        self.trains_bank = self.method.bank == "released"

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        return self.peers.run_epoch(
            lambda peer: self._learn(train, epoch, peer),
            lambda peer: self.divide_pairs(train, epoch, peer),
        )

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average both peers' similarity matrices."""
        return self.peers.similarity(split)

    def state_dict(self) -> State:
        """Return networks, statistics, banks and optimisers of both peers."""
        return self.peers.state_dict()

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        self.peers.load_state_dict(state)

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics of the pairs."""
        return self.peers.epoch_outputs()

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        seed_torch(self.train.seed, len(PEERS) + peer, epoch)
        learner, warmup = self.peers.learners[peer], self.train.warmup_epochs
        if epoch == warmup and self.method.fresh_optimiser:
            learner.restart()
        learner.set_rate(rate(epoch, warmup, self.train.lr_drop_epoch))
        self.peers.nets[peer].train()
        if epoch < warmup:
            return self._warm_up(train, epoch, peer)
        return self._co_teach(train, epoch, peer)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        net, bank = self.peers.nets[peer], self.peers.banks[peer]

        def loss_of(rows: Rows) -> Tensor:
            pairs = net.encode(train.batch(rows))
            if self.trains_bank:
                bank.write_rows(rows, net.predict(pairs.images))
            similarity = net.matching.score(pairs.images, pairs.captions)
            margins = torch.full((len(rows),), self.method.margin, device=self.device)
            return triplet_mean(similarity, margins).sum() + self._class_terms(net, pairs)

        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, peer)
        return self.peers.warm_up(peer, epoch, batches, loss_of)

    def _class_terms(self, net: Pc2Network, pairs: Encoded) -> Float[Tensor, ""]:
        if not self.method.pseudo_classes:
            return torch.zeros((), device=self.device)
        logits = net.classify(pairs.images), net.classify(pairs.captions)
        weights = self.method.lambda_pseudo, self.method.lambda_entropy
        return class_terms(*logits, self.choose, self.entropy, weights)

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        since = epoch - self.train.warmup_epochs
        triplet = triplet_mean if since < self.method.mean_epochs else triplet_hardest
        own = self.peers.epoch(train, peer, triplet)
        require_clean(own.division)
        batches = clean_and_noisy_batches(
            own.division, self.train.batch, self.train.seed, epoch, peer,
            with_noisy=self.method.pseudo_captions and since >= self.method.noisy_from_epoch,
        )  # fmt: skip
        return self.peers.co_teach(
            peer, epoch, batches, lambda clean, noisy, step: self.step(own, clean, noisy, step)
        )

    def _summed_step(
        self, own: PeerEpoch, clean: Rows, noisy: Rows, step: Step
    ) -> tuple[float, float]:
        """Take one step down the summed loss, as the paper has it; return it and its noisy part."""
        pairs, images, lengths = own.net.encode_split(own.train, clean, noisy)
        loss = self._clean_loss(own, pairs, clean)
        noisy_loss = torch.zeros((), device=self.device)
        if len(noisy):
            noisy_loss = self.noisy_loss(own, images, pairs, lengths)
        step = replace(step, parts={"noisy": noisy_loss.item()})
        total = loss + self.method.lambda_noisy * noisy_loss
        return own.learner.step(total, step), noisy_loss.item()

    def _two_steps(
        self, own: PeerEpoch, clean: Rows, noisy: Rows, step: Step
    ) -> tuple[float, float]:
        """Take a step on the clean pairs, then one on the noisy ones; return both losses."""
        net, learner = own.net, own.learner
        batch = own.train.batch(clean)
        value = learner.step(self._clean_loss(own, net.encode(batch), clean), step)
        if not len(noisy):
            return value, 0.0
        pairs, other = net.encode(batch), own.train.batch(noisy)
        images = net.matching.encode_images(other.regions)
        loss = self.noisy_loss(own, images, pairs, other.lengths)
        if self.trains_bank:
            self._write_bank(own.division.clean, clean, own, pairs.images)
            self._write_bank(own.division.noisy, noisy, own, images)
        return value, learner.step(self.method.lambda_noisy * loss, step)

    def _write_bank(self, subset: Rows, rows: Rows, own: PeerEpoch, images: ImageCodes) -> None:
        """Write predictions by their position in the subset of clean, or of noisy, pairs."""
        own.bank.write_rows(np.searchsorted(subset, rows), own.net.predict(images))

    def _clean_loss(self, own: PeerEpoch, pairs: Encoded, rows: Rows) -> Float[Tensor, ""]:
        """Triplet loss with soft margins, and the class terms."""
        correspondence = torch.from_numpy(own.correspondence[rows]).float().to(self.device)
        margins = soft_margin(correspondence, self.method.margin, self.method.margin_base)
        similarity = own.net.matching.score(pairs.images, pairs.captions)
        costs = own.triplet(similarity, margins, None, self.axes[0])
        return costs.sum() + self._class_terms(own.net, pairs)

    def noisy_loss(
        self,
        own: PeerEpoch,
        noisy: ImageCodes,
        pairs: Encoded,
        lengths: Int[Tensor, " noisy"],
    ) -> Float[Tensor, ""]:
        """Triplet loss of noisy images with their pseudo-captions.

        Args:
            own: What the peer trains with.
            noisy: Images of noisy pairs.
            pairs: The clean batch.
            lengths: Lengths of the captions that the noisy images came with.
        """
        method = self.method
        found, captions = self._search(own.net, noisy, pairs, int(lengths.max()))
        similarity = own.net.matching.score(noisy, captions)
        low = found.correspondence < method.zero_below
        correspondence = found.correspondence.masked_fill(low, 0.0)
        margins = soft_margin(correspondence, method.margin, method.margin_base)
        negatives = None if method.repeated_negatives else found.negatives
        _, back = torch.unique(found.chosen, return_inverse=True)
        costs = own.triplet(similarity[:, back], margins, negatives, self.axes[1])
        return costs[found.correspondence >= method.mismatch_threshold].sum()

    def _search(
        self, net: Pc2Network, noisy: ImageCodes, pairs: Encoded, words: int
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption of the clean batch for each noisy image; return those that were chosen."""
        describe = net.predict if self.method.search_by == "prediction" else pooled
        asked, keys = describe(noisy), describe(pairs.images)
        if not self.method.margin_gradient:
            asked, keys = asked.detach(), keys.detach()
        found = find_pseudo_captions(asked, keys)
        captions = pairs.captions
        if self.method.pseudo_caption_fit == "resampled":
            captions = refit(net, captions, words)
        return found, captions[torch.unique(found.chosen)]

    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer and divide them."""
        bank, seed = self.peers.banks[peer], self.train.seed
        own_order = (epoch,) if self.method.division_order == "shuffled" else ()
        losses, predictions = evaluate_pairs(
            self.peers.nets[peer],
            train,
            dividing_batches(len(train), self.method.division_batch, seed, *own_order),
            self.method.margin,
            f"divide {PEERS[peer]}",
        )
        moved = np.zeros(len(train), dtype=np.float32)
        if not bank.is_empty and self.method.pseudo_classes:
            moved = self.oscillation(bank.predictions, predictions).numpy()
        if not self.trains_bank:
            bank.write(predictions)
        return PairStatistics(losses, divide(losses, seed), moved, *self._stable(moved))

    def _stable(
        self, moved: Float[np.ndarray, " pairs"]
    ) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
        if np.ptp(moved) <= 1e-12 or not self.method.rectify:
            return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        if self.method.stable == "divided":
            division = divide(moved, self.train.seed)
            return division.clean_prob, division.is_clean
        stable_prob = clean_posterior(moved, self.train.seed)
        return stable_prob, np.asarray(stable_prob >= self.method.oscillation_threshold)


def refit(net: Pc2Network, captions: CaptionCodes, words: int) -> CaptionCodes:
    """Resample padded captions to so many words and keep their lengths, which no longer agree."""
    lengths = captions.lengths.clamp(max=words)
    laid = resampled(captions.words[:, : int(captions.lengths.max())], words)
    laid = laid * word_mask(lengths, words, laid.device)[..., None]
    return CaptionCodes(laid, net.matching.captions.pool(laid, lengths), lengths)
