"""The two peers of PC2: what its methods and its successors have alike."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.config import ModelSettings, Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.pc2 import Pc2CommonSettings
from pc2_baseline.methods.bases.two_peers import TakeStep, TwoPeers
from pc2_baseline.methods.networks import make_network, pooled_width
from pc2_baseline.modules.bank import PredictionBank, oscillation
from pc2_baseline.modules.coteaching import (
    DIVISIONS,
    PEERS,
    PairStatistics,
    PeerEpoch,
    Rows,
    Triplet,
    dividing_batches,
    read_statistics,
)
from pc2_baseline.modules.division import Division, clean_posterior, divide
from pc2_baseline.modules.learner import Step, under
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
from pc2_baseline.modules.pc2_network import Encoded, Pc2Network, pooled
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions, rectified
from pc2_baseline.modules.pseudo_class import CLASSIFIERS
from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.network import MatchingNetwork
from pc2_baseline.process_groups import ProcessGroup
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, PairTraining, Sizes, State

ClassLoss = Callable[[Tensor, Tensor], Tensor]
"""Loss of the images' pseudo-class logits, given the classes of their captions."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Pairs that a peer learns alike.

    Attributes:
        name: Such as ``clean``.
        rows: The pairs.
        weight: Factor of their triplet loss; 0: they are left out.
        by_pseudo_captions: Whether their images learn from pseudo-captions.
    """

    name: str
    rows: Rows
    weight: float
    by_pseudo_captions: bool


class CoTaught(TwoPeers[Pc2Network, PairStatistics]):
    """Two peers of PC2: each has a pseudo-classifier and a prediction bank besides.

    From the dividing pass that ends an epoch follow each peer's division, predictions and
    oscillation. A subclass says how noisy pairs are learned.

    Args:
        settings: Settings of the run; the method section is a :class:`Pc2CommonSettings`.
        sizes: Sizes of the data.
        device: Device of the networks.

    Source:
        PC2 (Duan et al., ACM MM 2024).
    """

    method: Pc2CommonSettings
    divided = PairStatistics
    needed_divisions = 2  # a prediction is compared with that of the epoch before

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        method = settings.method
        if not isinstance(method, Pc2CommonSettings):
            raise TypeError(f"settings of {method.name}, expected those of PC2")
        self.method = method
        super().__init__(settings, sizes, device)
        self.with_noisy = method.pseudo_captions
        self.choose = relatively_likeliest if method.relative_targets else likeliest
        self.entropy: Callable[[Tensor, Tensor], Tensor] = mean_entropy
        self.oscillation: Callable[[Tensor, Tensor], Tensor] = oscillation
        self.clean_axis: MarginAxis = "query"
        self.banks = [PredictionBank(sizes.pairs, method.classes) for _ in PEERS]

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

    def divide_pairs(
        self,
        train: PairSet,
        epoch: int,  # noqa: ARG002 - some methods divide otherwise as training goes on
        peer: int,
    ) -> PairStatistics:
        """Evaluate all pairs once with a peer, divide them, and write its bank.

        Args:
            train: The training split.
            epoch: The epoch that just ended.
            peer: The peer.
        """
        seed = self.train.seed
        batches = dividing_batches(len(train), self.method.division_batch, seed)
        losses, predictions, moved = self._evaluate(train, peer, batches)
        self.banks[peer].write(predictions)
        return PairStatistics(losses, divide(losses, seed), moved, *self._stable(moved))

    def make_net(self, model: ModelSettings, sizes: Sizes, group: ProcessGroup) -> Pc2Network:
        """Build the network of a peer: the pseudo-classifier is drawn first."""
        classify = CLASSIFIERS[self.method.class_input](
            pooled_width(model), self.method.class_hidden, self.method.classes
        )
        return Pc2Network(make_network(model, sizes, group), classify, self.method.classes)

    def matching(self, net: Pc2Network) -> MatchingNetwork:
        """Return the part of a peer's network that encodes and scores."""
        return net.matching

    def exchange(self) -> None:
        """Share both peers' predictions with all processes."""
        predictions = self.groups.for_each_peer(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)

    def summary(self, peer: int) -> dict[str, float]:
        """Return figures of a peer's statistics and predictions, for the log."""
        classes = self.banks[peer].predictions.argmax(1)
        return {
            **super().summary(peer),
            "oscillation": float(self.statistics[peer].oscillation.mean()),
            "classes_used": float(len(torch.unique(classes))),
        }

    def state_dict(self) -> State:
        """Return networks, statistics, banks and optimisers of both peers."""
        state = super().state_dict()
        for peer, bank in zip(PEERS, self.banks, strict=True):
            state["training"][f"{peer}.bank"] = bank.predictions
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if "training" in state:
            for peer, bank in zip(PEERS, self.banks, strict=True):
                bank.write(state["training"][f"{peer}.bank"])

    def peer_epoch(self, train: PairSet, peer: int, triplet: Triplet) -> PeerEpoch:
        """Return what a peer trains with after the warm-up: the division is the other's.

        Args:
            train: The training split.
            peer: The peer to train.
            triplet: Triplet loss of the epoch.
        """
        other = self.teacher(peer)
        division = other.division
        correspondence = rectified(division.clean_prob, other.stable_prob, other.is_stable)
        own = self.nets[peer], self.learners[peer], self.banks[peer]
        return PeerEpoch(train, *own, triplet, division, correspondence)

    def search_batch(
        self, own: PeerEpoch, noisy: ImageCodes, pairs: Encoded
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Find a caption of the clean batch for each noisy image; return those that were chosen."""
        found = self.find_in_batch(own.net, noisy, pairs)
        return found, pairs.captions[torch.unique(found.chosen)]

    def find_in_batch(self, net: Pc2Network, noisy: ImageCodes, pairs: Encoded) -> PseudoCaptions:
        """Choose a pair of the clean batch for each noisy image."""
        describe = net.predict if self.method.search_by == "prediction" else pooled
        return find_pseudo_captions(describe(noisy).detach(), describe(pairs.images).detach())

    def noisy_margins(self, found: PseudoCaptions) -> Float[Tensor, " noisy"]:
        """Return the margins of noisy pairs, by the cosines of their pseudo-captions."""
        return soft_margin(found.correspondence, self.method.margin, self.method.margin_base)

    def is_counted(self, found: PseudoCaptions) -> Bool[Tensor, " noisy"]:
        """Return which noisy pairs are similar enough to their pseudo-captions to be learned."""
        return found.correspondence >= self.method.mismatch_threshold

    def pseudo_caption_loss(
        self, own: PeerEpoch, noisy: ImageCodes, found: PseudoCaptions, captions: CaptionCodes
    ) -> Float[Tensor, ""]:
        """Compute the triplet loss of noisy images with pseudo-captions, margins by their cosines.

        Args:
            own: What the peer trains with.
            noisy: Images of noisy pairs.
            found: Their pseudo-captions.
            captions: The captions that were chosen, each once, in their order.
        """
        similarity = own.net.matching.score(noisy, captions)
        _, back = torch.unique(found.chosen, return_inverse=True)
        costs = own.triplet(similarity[:, back], self.noisy_margins(found), found.negatives)
        return costs[self.is_counted(found)].sum()

    def kinds(
        self,
        peer: int,  # noqa: ARG002 - some methods tell more kinds apart, by peer and outputs
        division: Division,
        kept: Mapping[str, Tensor],  # noqa: ARG002 - the same
    ) -> list[Kind]:
        """Say how a peer learns which pairs, once noisy ones are learned, too.

        Args:
            peer: The peer that learns.
            division: The division that teaches it.
            kept: The epoch's statistics as in ``divisions/``.
        """
        noisy = self.method.lambda_noisy if self.with_noisy else 0.0
        return [
            Kind("clean", division.clean, 1.0, by_pseudo_captions=False),
            Kind("noisy", division.noisy, noisy, by_pseudo_captions=self.with_noisy),
        ]

    @torch.no_grad()
    def explain_pairs(
        self, train: PairSet, rows: Rows, outputs: EpochOutputs
    ) -> list[PairTraining]:
        """Tell how each peer would train with some pairs in an epoch after the warm-up.

        Pseudo-captions are searched in the first clean batch of such an epoch, or where the
        method searches else, by the networks in evaluation mode.

        Args:
            train: The training split.
            rows: The pairs.
            outputs: What :meth:`epoch_outputs` returned; statistics are these from then on.
        """
        kept = outputs[DIVISIONS]
        self.statistics = [read_statistics(self.divided, under(kept, name)) for name in PEERS]
        found = []
        for peer in range(len(PEERS)):
            own = self.peer_epoch(train, peer, triplet_hardest)
            own.net.eval()
            for kind in self.kinds(peer, own.division, kept):
                asked = replace(kind, rows=rows[np.isin(rows, kind.rows)])
                if len(asked.rows):
                    explain = self._explain_noisy if kind.by_pseudo_captions else self._explain
                    found += explain(own, peer, asked)
        return found

    def searched_pairs(
        self, own: PeerEpoch, noisy: ImageCodes, clean: Rows, pairs: Encoded
    ) -> tuple[PseudoCaptions, Rows]:
        """Find pseudo-captions; return them and the pairs among which they were searched."""
        return self.find_in_batch(own.net, noisy, pairs), clean

    def warm_up_loss(self, train: PairSet, peer: int, rows: Rows) -> Float[Tensor, ""]:
        """Compute the loss of a batch of the warm-up."""
        return self._warm_up_loss(peer, rows, self.nets[peer].encode(train.batch(rows)))

    def teaching(self, train: PairSet, peer: int, triplet: Triplet) -> TakeStep:
        """Prepare a peer's epoch after the warm-up; return what takes its steps."""
        return partial(self._take_step, self.peer_epoch(train, peer, triplet))

    def _warm_up_loss(self, peer: int, rows: Rows, pairs: Encoded) -> Float[Tensor, ""]:
        """Triplet loss with mean negatives and one margin, and the class terms."""
        similarity = self.nets[peer].matching.score(pairs.images, pairs.captions)
        margins = torch.full((len(rows),), self.method.margin, device=self.device)
        return triplet_mean(similarity, margins).sum() + self._class_terms(self.nets[peer], pairs)

    def _take_step(self, own: PeerEpoch, rows: tuple[Rows, ...], step: Step) -> tuple[float, float]:
        """Take one step down the summed loss; images of both kinds are encoded together.

        Returns:
            The loss, and its noisy part.
        """
        clean, noisy = rows
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
        return self._matching_loss(own, pairs, rows) + self._class_terms(own.net, pairs)

    def _matching_loss(self, own: PeerEpoch, pairs: Encoded, rows: Rows) -> Float[Tensor, ""]:
        """Triplet loss of pairs with soft margins by their correspondence."""
        similarity = own.net.matching.score(pairs.images, pairs.captions)
        return own.triplet(similarity, self._margins(own, rows), None, self.clean_axis).sum()

    def _margins(self, own: PeerEpoch, rows: Rows) -> Float[Tensor, " rows"]:
        """Return the soft margins of pairs by their correspondence."""
        correspondence = torch.from_numpy(own.correspondence[rows]).float().to(self.device)
        return soft_margin(correspondence, self.method.margin, self.method.margin_base)

    def _explain(self, own: PeerEpoch, peer: int, kind: Kind) -> list[PairTraining]:
        """Tell how pairs with their own captions are learned."""
        margins = self._margins(own, kind.rows).tolist()
        return [
            PairTraining(
                int(row), PEERS[peer], kind.name, float(own.division.clean_prob[row]),
                kind.weight, margin, float(own.correspondence[row]),
            )
            for row, margin in zip(kind.rows, margins, strict=True)
        ]  # fmt: skip

    def _explain_noisy(self, own: PeerEpoch, peer: int, kind: Kind) -> list[PairTraining]:
        """Tell how pairs with pseudo-captions are learned."""
        clean, *_ = self._batches(own.division, self.train.warmup_epochs, peer)[0]
        pairs, images, _ = own.net.encode_split(own.train, clean, kind.rows)
        found, searched = self.searched_pairs(own, images, clean, pairs)
        margins, counted = self.noisy_margins(found), self.is_counted(found)
        columns = margins, found.correspondence, found.chosen, counted
        lists = (column.tolist() for column in columns)
        return [
            PairTraining(
                int(row), PEERS[peer], kind.name, float(own.division.clean_prob[row]),
                kind.weight if is_counted else 0.0, margin, cosine, int(searched[chosen]),
            )
            for row, margin, cosine, chosen, is_counted in zip(kind.rows, *lists, strict=True)
        ]  # fmt: skip

    def _class_terms(
        self, net: Pc2Network, pairs: Encoded, class_loss: ClassLoss = pseudo_class_loss
    ) -> Float[Tensor, ""]:
        """Return the pseudo-class loss less the entropy, weighted."""
        if not self.method.pseudo_classes:
            return torch.zeros((), device=self.device)
        images, captions = net.classify(pairs.images), net.classify(pairs.captions)
        loss = class_loss(images, self.choose(captions))
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
        if self.method.pseudo_classes:
            divergence = self.oscillation(bank.predictions, predictions)
            moved[bank.written.numpy()] = divergence[bank.written].numpy()
        return losses, predictions, moved

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
