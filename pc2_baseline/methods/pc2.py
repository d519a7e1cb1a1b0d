"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pc2_baseline.bank import PredictionBank, oscillation
from pc2_baseline.config import Pc2Settings, Settings
from pc2_baseline.coteaching import PEERS, Beliefs, crossed
from pc2_baseline.data import Batch, PairSet, cut, endless
from pc2_baseline.division import Division, clean_posterior, divide, require_clean
from pc2_baseline.learner import Learner, Step
from pc2_baseline.losses import (
    batch_entropy,
    likeliest,
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.methods.base import Sizes, State, make_network, rate
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
from pc2_baseline.modules.fused import unit
from pc2_baseline.modules.network import SgrNetwork
from pc2_baseline.modules.pseudo_class import FlatClassifier, PooledClassifier
from pc2_baseline.progress import bar
from pc2_baseline.retrieval import ensemble, similarity_matrix
from pc2_baseline.seeds import seed_torch, stream

Triplet = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_ORDER, _CLEAN, _NOISY = range(3)


class Pc2Network(nn.Module):
    """The SGR network and the pseudo-classifier that both halves of a pair share."""

    def __init__(self, matching: SgrNetwork, classify: FlatClassifier | PooledClassifier) -> None:
        super().__init__()
        self.matching = matching
        self.classify = classify

    def image_logits(self, images: ImageCodes) -> Float[Tensor, "images classes"]:
        """Pseudo-class logits of screenshots."""
        logits: Tensor = self.classify(images)
        return logits

    def caption_logits(self, captions: CaptionCodes) -> Float[Tensor, "captions classes"]:
        """Pseudo-class logits of captions."""
        logits: Tensor = self.classify(captions)
        return logits


@dataclass(frozen=True, slots=True)
class PseudoCaptions:
    """The clean captions that stand in for those of noisy pairs.

    Attributes:
        chosen: Row of the clean batch, for each noisy pair.
        correspondence: Cosine of the two pseudo-predictions, in [0, 1].
    """

    chosen: Int[Tensor, " noisy"]
    correspondence: Float[Tensor, " noisy"]

    @property
    def negatives(self) -> Bool[Tensor, "noisy noisy"]:
        """Pairs of noisy rows whose pseudo-captions differ: only they are negatives."""
        return self.chosen[:, None] != self.chosen[None]


def find_pseudo_captions(
    noisy: Float[Tensor, "noisy classes"], clean: Float[Tensor, "clean classes"]
) -> PseudoCaptions:
    """Choose for each noisy image the clean pair with the likest pseudo-prediction.

    No gradient flows through the choice or the correspondence.

    Args:
        noisy: Predictions of the noisy images; rows sum to 1.
        clean: Predictions of the clean images.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.3.

    Differs:
        The authors' code lets the gradient through the cosine into the margin, and sets cosines
        below 0.5 to zero.
    """
    cosine = unit(noisy.detach()) @ unit(clean.detach()).T
    best, chosen = cosine.max(1)
    return PseudoCaptions(chosen, best.clamp(0.0, 1.0))


def rectified(
    clean_prob: Float[np.ndarray, " pairs"],
    stable_prob: Float[np.ndarray, " pairs"],
    threshold: float,
) -> Float[np.ndarray, " pairs"]:
    r"""Correspondence of clean pairs: :math:`y = w + (1-w)\,w^\circ\,1(w^\circ \ge \tau)`.

    Args:
        clean_prob: :math:`w`.
        stable_prob: :math:`w^\circ`, posterior of little oscillation.
        threshold: :math:`\tau`; above 1 rectifies nothing.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.4.
    """
    lifted: Float[np.ndarray, " pairs"] = np.where(stable_prob >= threshold, stable_prob, 0.0)
    return np.asarray(clean_prob + (1 - clean_prob) * lifted)


class Pc2:
    """Two co-taught peers, each with its prediction bank and its beliefs.

    Every epoch ends with one evaluation pass in a fixed order, from which each peer's division,
    predictions and oscillation follow; the next epoch crosses the divisions.

    Args:
        settings: Of the run; its method section is :class:`Pc2Settings`.
        sizes: Of the data.
        device: Where to learn.

    Source:
        PC2 (Duan et al., ACM MM 2024), eq. 1 to 14.
    """

    ensemble_size = len(PEERS)

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, Pc2Settings):
            raise TypeError(f"settings of {settings.method.name}, expected those of pc2")
        self.method = settings.method
        self.device = device
        self.train = settings.train
        self.nets = [self._make(settings, sizes, peer).to(device) for peer in range(len(PEERS))]
        self.learners = [
            Learner(net, self.train.lr, self.train.clip, self.train.weight_decay)
            for net in self.nets
        ]
        self.banks = [PredictionBank(sizes.pairs, self.method.classes) for _ in PEERS]
        self.beliefs: list[Beliefs] = []

    def _make(self, settings: Settings, sizes: Sizes, peer: int) -> Pc2Network:
        seed_torch(self.train.seed, peer)
        kind = PooledClassifier if self.method.pooled_classes else FlatClassifier
        classify = kind(settings.model.embed_dim, self.method.class_hidden, self.method.classes)
        return Pc2Network(make_network(settings.model, sizes), classify)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Learn for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        seed_torch(self.train.seed, len(PEERS), epoch)
        factor = rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch)
        for learner in self.learners:
            learner.set_rate(factor)
        if epoch < self.train.warmup_epochs:
            figures = [self._warm_up(train, epoch, peer) for peer in range(len(PEERS))]
        else:
            figures = [
                self._co_teach(train, epoch, peer, beliefs)
                for peer, beliefs in crossed(self.beliefs)
            ]
        self.beliefs = [self._believe(train, peer) for peer in range(len(PEERS))]
        return {
            f"{name}_{peer}": value
            for peer, own, beliefs, bank in zip(
                PEERS, figures, self.beliefs, self.banks, strict=True
            )
            for name, value in {**own, **_summary(beliefs, bank)}.items()
        }

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average both peers' similarity matrices."""
        return ensemble([similarity_matrix(net.matching, split) for net in self.nets])

    def state_dict(self) -> State:
        """Both networks; both divisions; both banks and optimisers."""
        state: State = {"networks": {}, "beliefs": {}, "training": {}}
        for peer, learner, bank in zip(PEERS, self.learners, self.banks, strict=True):
            _prefixed(state["networks"], peer, learner.network_state())
            _prefixed(state["training"], f"{peer}.optimiser", learner.optimiser_state())
            state["training"][f"{peer}.bank"] = bank.predictions
        for peer, beliefs in zip(PEERS, self.beliefs, strict=False):
            _prefixed(state["beliefs"], peer, _to_tensors(beliefs))
        if self.beliefs:
            mean = np.mean([beliefs.division.clean_prob for beliefs in self.beliefs], axis=0)
            state["beliefs"]["clean_prob"] = torch.from_numpy(mean)
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Take a state back, or its networks alone."""
        for peer, learner, bank in zip(PEERS, self.learners, self.banks, strict=True):
            learner.load_network(_under(state["networks"], peer))
            if "training" in state:
                learner.load_optimiser(_under(state["training"], f"{peer}.optimiser"))
                bank.write(state["training"][f"{peer}.bank"])
        if "beliefs" in state:
            self.beliefs = [_from_tensors(_under(state["beliefs"], peer)) for peer in PEERS]

    def _warm_up(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        net, learner = self.nets[peer].train(), self.learners[peer]
        batches = cut(
            np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch, peer, _CLEAN)
        )
        losses = []
        for number, rows in enumerate(bar(batches, f"warm-up {PEERS[peer]}", len(batches))):
            batch = train.batch(rows)
            images = net.matching.encode_images(batch.regions)
            captions = net.matching.encode_captions(batch.tokens, batch.lengths)
            similarity = net.matching.score(images, captions)
            triplet = triplet_mean(similarity, self._full_margins(rows)).sum()
            loss = triplet + self._class_terms(
                net.image_logits(images), net.caption_logits(captions)
            )
            losses.append(learner.step(loss, Step(epoch, number, PEERS[peer], rows)))
        return {"loss": float(np.mean(losses))}

    def _full_margins(self, rows: Int[np.ndarray, " batch"]) -> Float[Tensor, " batch"]:
        return torch.full((len(rows),), self.method.margin, device=self.device)

    def _class_terms(
        self,
        image_logits: Float[Tensor, "batch classes"],
        caption_logits: Float[Tensor, "batch classes"],
    ) -> Float[Tensor, ""]:
        choose = relatively_likeliest if self.method.relative_targets else likeliest
        pseudo = pseudo_class_loss(image_logits, choose(caption_logits))
        of_images, of_captions = (
            batch_entropy(logits.softmax(1)) for logits in (image_logits, caption_logits)
        )
        entropy = (of_images + of_captions) / 2
        return self.method.lambda_pseudo * pseudo - self.method.lambda_entropy * entropy

    def _co_teach(
        self, train: PairSet, epoch: int, peer: int, beliefs: Beliefs
    ) -> dict[str, float]:
        require_clean(beliefs.division)
        net, learner = self.nets[peer].train(), self.learners[peer]
        stable = beliefs.stable_prob if self.method.rectify else np.zeros(len(train))
        correspondence = rectified(
            beliefs.division.clean_prob, stable, self.method.oscillation_threshold
        )
        batches = self._batches(beliefs.division, epoch, peer)
        steps = len(cut(beliefs.division.clean, self.train.batch))
        hardest = epoch - self.train.warmup_epochs >= self.method.mean_epochs
        triplet = triplet_hardest if hardest else triplet_mean
        losses, noisy_losses = [], []
        for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {PEERS[peer]}", steps)):
            margins = soft_margin(
                torch.from_numpy(correspondence[clean]).float().to(train.device),
                self.method.margin,
                self.method.margin_base,
            )
            rows = np.append(clean, noisy)
            loss, noisy_loss = self._losses(net, train.batch(rows), margins, triplet)
            parts = {"noisy": noisy_loss}
            losses.append(learner.step(loss, Step(epoch, number, PEERS[peer], rows, parts)))
            noisy_losses.append(noisy_loss)
        return {"loss": float(np.mean(losses)), "loss_noisy": float(np.mean(noisy_losses))}

    def _batches(
        self, division: Division, epoch: int, peer: int
    ) -> Iterator[tuple[Int[np.ndarray, " clean"], Int[np.ndarray, " noisy"]]]:
        """Pair each clean batch with as many noisy pairs, or fewer where there are fewer."""
        seed = self.train.seed
        clean = cut(division.clean, self.train.batch, stream(seed, epoch, peer, _CLEAN))
        noisy = endless(division.noisy, self.train.batch, stream(seed, epoch, peer, _NOISY))
        none = np.array([], dtype=np.int64)
        for rows in clean:
            yield rows, next(noisy, none) if self.method.pseudo_captions else none

    def _losses(
        self, net: Pc2Network, batch: Batch, margins: Float[Tensor, " clean"], triplet: Triplet
    ) -> tuple[Float[Tensor, ""], float]:
        """One summed loss over the clean pairs, which come first, and the noisy ones.

        Returns:
            The loss, and the value of its noisy part.
        """
        size = len(margins)
        images = net.matching.encode_images(batch.regions)
        logits = net.image_logits(images)
        captions = net.matching.encode_captions(batch.tokens[:size], batch.lengths[:size])
        similarity = net.matching.score(images[:size], captions)
        loss = triplet(similarity, margins, None).sum()
        loss = loss + self._class_terms(logits[:size], net.caption_logits(captions))
        if len(batch.lengths) == size:
            return loss, 0.0
        predictions = logits.softmax(1)
        found = find_pseudo_captions(predictions[size:], predictions[:size])
        noisy_loss = self._noisy_loss(net, images[size:], captions, found, triplet)
        return loss + self.method.lambda_noisy * noisy_loss, noisy_loss.item()

    def _noisy_loss(
        self,
        net: Pc2Network,
        noisy: ImageCodes,
        captions: CaptionCodes,
        found: PseudoCaptions,
        triplet: Triplet,
    ) -> Float[Tensor, ""]:
        """Triplet loss of noisy images with their pseudo-captions."""
        needed, back = torch.unique(found.chosen, return_inverse=True)
        similarity = net.matching.score(noisy, captions[needed])[:, back]
        margins = soft_margin(found.correspondence, self.method.margin, self.method.margin_base)
        costs = triplet(similarity, margins, found.negatives)
        return costs[found.correspondence >= self.method.mismatch_threshold].sum()

    @torch.no_grad()
    def _believe(self, train: PairSet, peer: int) -> Beliefs:
        """Look at all pairs once, in a fixed order, and write the bank."""
        net, bank = self.nets[peer].eval(), self.banks[peer]
        losses = np.zeros(len(train), dtype=np.float32)
        predictions = torch.zeros_like(bank.predictions)
        order = stream(self.train.seed, len(train), _ORDER)
        batches = cut(np.arange(len(train)), self.method.division_batch, order)
        for rows in bar(batches, f"divide {PEERS[peer]}", len(batches)):
            batch = train.batch(rows)
            images = net.matching.encode_images(batch.regions)
            captions = net.matching.encode_captions(batch.tokens, batch.lengths)
            similarity = net.matching.score(images, captions)
            losses[rows] = triplet_mean(similarity, self._full_margins(rows)).cpu().numpy()
            predictions[batch.pair_index] = net.image_logits(images).softmax(1).cpu()
        moved = torch.zeros(len(train))
        if not bank.is_empty:
            moved = oscillation(bank.predictions, predictions)
        bank.write(predictions)
        seed = self.train.seed
        division = divide(losses, seed)
        return Beliefs(losses, division, moved.numpy(), _stable(moved.numpy(), seed))


def _stable(moved: Float[np.ndarray, " pairs"], seed: int) -> Float[np.ndarray, " pairs"]:
    """Posterior of little oscillation; zeros where all pairs oscillate alike."""
    if np.ptp(moved) <= 1e-12:
        return np.zeros(len(moved))
    return clean_posterior(moved, seed)


def _summary(beliefs: Beliefs, bank: PredictionBank) -> dict[str, float]:
    return {
        "clean": float(beliefs.division.is_clean.sum()),
        "pair_loss": float(beliefs.loss.mean()),
        "oscillation": float(beliefs.oscillation.mean()),
        "classes_used": float(len(torch.unique(bank.predictions.argmax(1)))),
    }


def _prefixed(into: dict[str, Tensor], prefix: str, state: Mapping[str, Tensor]) -> None:
    into.update({f"{prefix}.{name}": value for name, value in state.items()})


def _under(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in state.items()
        if name.startswith(f"{prefix}.")
    }


def _to_tensors(beliefs: Beliefs) -> dict[str, Tensor]:
    return {
        "loss": torch.from_numpy(beliefs.loss),
        "clean_prob": torch.from_numpy(beliefs.division.clean_prob),
        "is_clean": torch.from_numpy(beliefs.division.is_clean),
        "oscillation": torch.from_numpy(beliefs.oscillation),
        "stable_prob": torch.from_numpy(beliefs.stable_prob),
    }


def _from_tensors(state: Mapping[str, Tensor]) -> Beliefs:
    values = {name: value.numpy() for name, value in state.items()}
    return Beliefs(
        values["loss"],
        Division(values["clean_prob"], values["is_clean"]),
        values["oscillation"],
        values["stable_prob"],
    )
