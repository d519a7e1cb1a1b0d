"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024)."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings import Pc2Settings
from pc2_baseline.methods.networks import make_peers
from pc2_baseline.modules.bank import oscillation
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
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
    class_terms,
    likeliest,
    mean_entropy,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.modules.pc2_network import Encoded, Pc2Network, pooled
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.training.method import EpochOutputs, Sizes, State

Rows = Int[np.ndarray, " _"]


class Pc2:
    """Two co-taught peers, each with its prediction bank and its statistics of the pairs.

    Every epoch ends with one evaluation pass in a fixed order, from which each peer's division,
    predictions and oscillation follow; the next epoch crosses the divisions.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2Settings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 1 to 14.

    Differs:
        The authors' code departs from the equations: see
        :class:`~pc2_baseline.methods.pc2_released.Pc2Released`.
    """

    ensemble_size = len(PEERS)

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, Pc2Settings):
            raise TypeError(f"settings of {settings.method.name}, expected those of pc2")
        self.method = settings.method
        self.train = settings.train
        self.device = device
        self.peers = make_peers(settings, self.method, sizes, device)
        self.choose = relatively_likeliest if self.method.relative_targets else likeliest
        self.search = {"batch": self._search_batch, "clean_set": self._search_clean_set}[
            self.method.search_in
        ]

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        return self.peers.run_epoch(
            lambda peer: self._learn(train, epoch, peer),
            lambda peer: self.divide_pairs(train, peer),
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
        """Train one peer for an epoch; its random draws are independent of the other's."""
        seed_torch(self.train.seed, len(PEERS) + peer, epoch)
        warmup = self.train.warmup_epochs
        self.peers.learners[peer].set_rate(rate(epoch, warmup, self.train.lr_drop_epoch))
        self.peers.nets[peer].train()
        if epoch < warmup:
            return self._warm_up(train, epoch, peer)
        return self._co_teach(train, epoch, peer)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        net = self.peers.nets[peer]

        def loss_of(rows: Rows) -> Tensor:
            pairs = net.encode(train.batch(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            margins = torch.full((len(rows),), self.method.margin, device=self.device)
            return triplet_mean(similarity, margins).sum() + self._class_terms(net, pairs)

        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, peer)
        return self.peers.warm_up(peer, epoch, batches, loss_of)

    def _class_terms(self, net: Pc2Network, pairs: Encoded) -> Float[Tensor, ""]:
        """Return the pseudo-class loss less the entropy, weighted."""
        if not self.method.pseudo_classes:
            return torch.zeros((), device=self.device)
        logits = net.classify(pairs.images), net.classify(pairs.captions)
        weights = self.method.lambda_pseudo, self.method.lambda_entropy
        return class_terms(*logits, self.choose, mean_entropy, weights)

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
            peer, epoch, batches, lambda clean, noisy, step: self._step(own, clean, noisy, step)
        )

    def _step(self, own: PeerEpoch, clean: Rows, noisy: Rows, step: Step) -> tuple[float, float]:
        """Take one step down the summed loss; images of both kinds are encoded together.

        Returns:
            The loss, and its noisy part.
        """
        pairs, images, _ = own.net.encode_split(own.train, clean, noisy)
        loss = self._clean_loss(own, pairs, clean)
        noisy_loss = torch.zeros((), device=self.device)
        if len(noisy):
            noisy_loss = self.noisy_loss(own, images, pairs)
        total = loss + self.method.lambda_noisy * noisy_loss
        step = replace(step, parts={"noisy": noisy_loss.item()})
        return own.learner.step(total, step), noisy_loss.item()

    def _clean_loss(self, own: PeerEpoch, pairs: Encoded, rows: Rows) -> Float[Tensor, ""]:
        """Triplet loss with soft margins, and the class terms."""
        correspondence = torch.from_numpy(own.correspondence[rows]).float().to(self.device)
        margins = soft_margin(correspondence, self.method.margin, self.method.margin_base)
        similarity = own.net.matching.score(pairs.images, pairs.captions)
        return own.triplet(similarity, margins).sum() + self._class_terms(own.net, pairs)

    def noisy_loss(self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded) -> Float[Tensor, ""]:
        """Triplet loss of noisy images with their pseudo-captions.

        Args:
            own: What the peer trains with.
            noisy: Images of noisy pairs.
            pairs: The clean batch.
        """
        found, captions = self.search(own, noisy, pairs)
        similarity = own.net.matching.score(noisy, captions)
        margins = soft_margin(found.correspondence, self.method.margin, self.method.margin_base)
        _, back = torch.unique(found.chosen, return_inverse=True)
        costs = own.triplet(similarity[:, back], margins, found.negatives)
        return costs[found.correspondence >= self.method.mismatch_threshold].sum()

    def _search_batch(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption of the clean batch for each noisy image; return those that were chosen."""
        describe = own.net.predict if self.method.search_by == "prediction" else pooled
        found = find_pseudo_captions(describe(noisy).detach(), describe(pairs.images).detach())
        return found, pairs.captions[torch.unique(found.chosen)]

    def _search_clean_set(
        self, own: PeerEpoch, noisy: ImageCodes, _: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption among all clean pairs by the bank; encode each that was chosen once."""
        found = find_pseudo_captions(own.net.predict(noisy).detach(), own.clean_predictions)
        rows = own.division.clean[torch.unique(found.chosen).cpu().numpy()]
        return found, own.net.matching.encode_captions(*own.train.caption_batch(rows))

    def divide_pairs(self, train: PairSet, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer, divide them, and write its bank."""
        bank, seed = self.peers.banks[peer], self.train.seed
        losses, predictions = evaluate_pairs(
            self.peers.nets[peer],
            train,
            dividing_batches(len(train), self.method.division_batch, seed),
            self.method.margin,
            f"divide {PEERS[peer]}",
        )
        moved = np.zeros(len(train), dtype=np.float32)
        if not bank.is_empty and self.method.pseudo_classes:
            moved = oscillation(bank.predictions, predictions).numpy()
        bank.write(predictions)
        return PairStatistics(losses, divide(losses, seed), moved, *self._stable(moved))

    def _stable(
        self, moved: Float[np.ndarray, " pairs"]
    ) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
        """Return the posterior of little oscillation and which pairs are stable.

        No pair is where all move alike.
        """
        if np.ptp(moved) <= 1e-12 or not self.method.rectify:
            return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        stable_prob = clean_posterior(moved, self.train.seed)
        return stable_prob, np.asarray(stable_prob >= self.method.oscillation_threshold)
