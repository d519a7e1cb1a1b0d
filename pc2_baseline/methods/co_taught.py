"""Two co-taught peers: the epochs, statistics and state that both methods of PC2 have alike."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.pc2 import Pc2CommonSettings
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.bank import PredictionBank, oscillation
from pc2_baseline.modules.codes import ImageCodes
from pc2_baseline.modules.coteaching import (
    DIVISIONS,
    PEERS,
    PairStatistics,
    PeerEpoch,
    Rows,
    Triplet,
    clean_and_noisy_batches,
    warm_up_batches,
)
from pc2_baseline.modules.division import require_clean
from pc2_baseline.modules.learner import Step, peer_states, prefixed, rate, under
from pc2_baseline.modules.losses import (
    MarginAxis,
    likeliest,
    mean_entropy,
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.modules.pc2_network import Encoded, Pc2Network
from pc2_baseline.modules.pseudo_caption import rectified
from pc2_baseline.modules.pseudo_class import CLASSIFIERS
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.modules.seeds import seed_torch
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State

_STATISTICS = "beliefs"  # the group's name in checkpoints


class CoTaught(ABC):
    """Two networks, each with its optimiser, prediction bank and statistics of the pairs.

    Every epoch ends with one evaluation pass, from which each peer's division, predictions and
    oscillation follow; the next epoch crosses the divisions. A subclass says how noisy pairs are
    learned and how the pairs are divided.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2CommonSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        NCR (Huang et al., NeurIPS 2021); PC2 (Duan et al., ACM MM 2024).
    """

    ensemble_size = len(PEERS)
    method: Pc2CommonSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        method = settings.method
        if not isinstance(method, Pc2CommonSettings):
            raise TypeError(f"settings of {method.name}, expected those of PC2")
        self.method = method
        self.train = settings.train
        self.device = device
        self.choose = relatively_likeliest if method.relative_targets else likeliest
        self.entropy: Callable[[Tensor, Tensor], Tensor] = mean_entropy
        self.oscillation: Callable[[Tensor, Tensor], Tensor] = oscillation
        self.clean_axis: MarginAxis = "query"
        self.groups = join_process_groups(len(PEERS))
        self.nets = []
        for peer, group in enumerate(self.groups.groups):
            seed_torch(self.train.seed, peer)
            classify = CLASSIFIERS[method.class_input](
                settings.model.embed_dim, method.class_hidden, method.classes
            )
            matching = make_network(settings.model, sizes, group)
            self.nets.append(Pc2Network(matching, classify, method.classes).to(device))
        self.learners = [make_learner(net, net.matching, self.train) for net in self.nets]
        self.banks = [PredictionBank(sizes.pairs, method.classes) for _ in PEERS]
        self.statistics: list[PairStatistics] = []

    @abstractmethod
    def noisy_loss(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded, lengths: Int[Tensor, " noisy"]
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with their pseudo-captions.

        Args:
            own: What the peer trains with.
            noisy: Images of noisy pairs.
            pairs: The clean batch.
            lengths: Lengths of the captions that the noisy images came with.
        """

    @abstractmethod
    def divide_pairs(self, train: PairSet, epoch: int, peer: int) -> PairStatistics:
        """Evaluate all pairs once with a peer and divide them."""

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train both peers for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        each = self.groups.for_each_peer
        figures = each(lambda peer: self._learn(train, epoch, peer))
        self.statistics = each(lambda peer: self.divide_pairs(train, epoch, peer))
        predictions = each(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)
        return {
            f"{name}_{peer}": value
            for peer, own, statistics, bank in zip(
                PEERS, figures, self.statistics, self.banks, strict=True
            )
            for name, value in {**own, **_summary(statistics, bank)}.items()
        }

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average both peers' similarity matrices."""
        return ensemble(self.similarities(split))

    def similarities(self, split: PairSet) -> list[Float[np.ndarray, "images captions"]]:
        """Score a split with each peer."""
        return self.groups.for_each_peer(
            lambda peer: similarity_matrix(self.nets[peer].matching, split)
        )

    def state_dict(self) -> State:
        """Return networks, statistics, banks and optimisers of both peers."""
        networks: dict[str, Tensor] = {}
        training: dict[str, Tensor] = {}
        own = peer_states(self.learners, self.groups)
        for peer, (network, optimiser), bank in zip(PEERS, own, self.banks, strict=True):
            networks |= prefixed(peer, network)
            training |= prefixed(f"{peer}.optimiser", optimiser)
            training[f"{peer}.bank"] = bank.predictions
        return {"networks": networks, _STATISTICS: self._statistics_state(), "training": training}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        for peer, learner, bank in zip(PEERS, self.learners, self.banks, strict=True):
            learner.load_network(under(state["networks"], peer))
            if "training" in state:
                learner.load_optimiser(under(state["training"], f"{peer}.optimiser"))
                bank.write(state["training"][f"{peer}.bank"])
        if _STATISTICS in state:
            own = (under(state[_STATISTICS], peer) for peer in PEERS)
            self.statistics = [PairStatistics.from_tensors(tensors) for tensors in own]

    def epoch_outputs(self) -> EpochOutputs:
        """Return both peers' statistics and the mean clean probability, for ``divisions/``."""
        return {DIVISIONS: self._statistics_state()} if self.statistics else {}

    def peer_epoch(self, train: PairSet, peer: int, triplet: Triplet) -> PeerEpoch:
        """Return what a peer trains with after the warm-up: the division is the other's.

        Args:
            train: The training split.
            peer: The peer to train.
            triplet: Triplet loss of the epoch.
        """
        other = self.statistics[1 - peer]
        division = other.division
        correspondence = rectified(division.clean_prob, other.stable_prob, other.is_stable)
        own = self.nets[peer], self.learners[peer], self.banks[peer]
        return PeerEpoch(train, *own, triplet, division, correspondence)

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch; its random draws are independent of the other's."""
        seed_torch(self.train.seed, len(PEERS) + peer, epoch)
        warmup = self.train.warmup_epochs
        self.learners[peer].set_rate(rate(epoch, warmup, self.train.lr_drop_epoch))
        self.nets[peer].train()
        learn = self._warm_up if epoch < warmup else self._co_teach
        return learn(train, epoch, peer)

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Take one step for each batch of all pairs."""
        net, name, losses = self.nets[peer], PEERS[peer], []
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, peer)
        for number, rows in enumerate(bar(batches, f"warm-up {name}", len(batches))):
            loss = self._warm_up_loss(peer, rows, net.encode(train.batch(rows)))
            losses.append(self.learners[peer].step(loss, Step(epoch, number, name, rows)))
        return {"loss": float(np.mean(losses))}

    def _warm_up_loss(self, peer: int, rows: Rows, pairs: Encoded) -> Float[Tensor, ""]:
        """Triplet loss with mean negatives and one margin, and the class terms."""
        similarity = self.nets[peer].matching.score(pairs.images, pairs.captions)
        margins = torch.full((len(rows),), self.method.margin, device=self.device)
        return triplet_mean(similarity, margins).sum() + self._class_terms(self.nets[peer], pairs)

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Take a step for each batch of clean pairs, with as many noisy ones once it is time."""
        since, name = epoch - self.train.warmup_epochs, PEERS[peer]
        triplet = triplet_mean if since < self.method.mean_epochs else triplet_hardest
        own = self.peer_epoch(train, peer, triplet)
        require_clean(own.division)
        batches = clean_and_noisy_batches(
            own.division, self.train.batch, self.train.seed, epoch, peer,
            with_noisy=self.method.pseudo_captions and since >= self.method.noisy_from_epoch,
        )  # fmt: skip
        found = []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {name}", len(batches))):
            step = Step(epoch, number, name, np.append(clean, noisy))
            found.append(self._take_step(own, clean, noisy, step))
        loss, noisy_loss = np.mean(found, axis=0).tolist()
        return {"loss": loss, "loss_noisy": noisy_loss}

    def _take_step(
        self, own: PeerEpoch, clean: Rows, noisy: Rows, step: Step
    ) -> tuple[float, float]:
        """Take one step down the summed loss; images of both kinds are encoded together.

        Returns:
            The loss, and its noisy part.
        """
        pairs, images, lengths = own.net.encode_split(own.train, clean, noisy)
        loss = self._clean_loss(own, pairs, clean)
        noisy_loss = torch.zeros((), device=self.device)
        if len(noisy):
            noisy_loss = self.noisy_loss(own, images, pairs, lengths)
        step = replace(step, parts={"noisy": noisy_loss.item()})
        total = loss + self.method.lambda_noisy * noisy_loss
        return own.learner.step(total, step), noisy_loss.item()

    def _clean_loss(self, own: PeerEpoch, pairs: Encoded, rows: Rows) -> Float[Tensor, ""]:
        """Triplet loss with soft margins, and the class terms."""
        correspondence = torch.from_numpy(own.correspondence[rows]).float().to(self.device)
        margins = soft_margin(correspondence, self.method.margin, self.method.margin_base)
        similarity = own.net.matching.score(pairs.images, pairs.captions)
        costs = own.triplet(similarity, margins, None, self.clean_axis)
        return costs.sum() + self._class_terms(own.net, pairs)

    def _class_terms(self, net: Pc2Network, pairs: Encoded) -> Float[Tensor, ""]:
        """Return the pseudo-class loss less the entropy, weighted."""
        if not self.method.pseudo_classes:
            return torch.zeros((), device=self.device)
        images, captions = net.classify(pairs.images), net.classify(pairs.captions)
        loss = pseudo_class_loss(images, self.choose(captions))
        entropy = self.entropy(images, captions)
        return self.method.lambda_pseudo * loss - self.method.lambda_entropy * entropy

    @torch.no_grad()
    def _evaluate(
        self, train: PairSet, peer: int, batches: Sequence[Rows]
    ) -> tuple[
        Float[np.ndarray, " pairs"], Float[Tensor, "pairs classes"], Float[np.ndarray, " pairs"]
    ]:
        """Evaluate each pair once with a peer, in evaluation mode.

        Returns:
            Mean-negative triplet losses, the images' pseudo-class predictions on the CPU, and how
            far these moved since the bank was written, all by pair_index.
        """
        net, bank = self.nets[peer].eval(), self.banks[peer]
        losses = np.zeros(len(train), dtype=np.float32)
        moved = np.zeros_like(losses)
        predictions = torch.zeros(len(train), net.classes)
        for rows in bar(batches, f"divide {PEERS[peer]}", len(batches)):
            pairs = net.encode(train.batch(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            margins = similarity.new_full((len(rows),), self.method.margin, dtype=torch.float32)
            losses[rows] = triplet_mean(similarity, margins).cpu().numpy()
            predictions[rows] = net.predict(pairs.images).cpu()
        if not bank.is_empty and self.method.pseudo_classes:
            moved = self.oscillation(bank.predictions, predictions).numpy()
        return losses, predictions, moved

    def _statistics_state(self) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for peer, statistics in zip(PEERS, self.statistics, strict=False):
            state |= prefixed(peer, statistics.to_tensors())
        if self.statistics:
            mean = np.mean([own.division.clean_prob for own in self.statistics], axis=0)
            state["clean_prob"] = torch.from_numpy(mean)
        return state


def _summary(statistics: PairStatistics, bank: PredictionBank) -> dict[str, float]:
    return {
        "clean": float(statistics.division.is_clean.sum()),
        "pair_loss": float(statistics.loss.mean()),
        "oscillation": float(statistics.oscillation.mean()),
        "classes_used": float(len(torch.unique(bank.predictions.argmax(1)))),
    }
