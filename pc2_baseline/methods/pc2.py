"""PC2: pseudo-classification based pseudo-captioning (Duan et al., ACM MM 2024)."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from pc2_baseline.config import Pc2Settings, Settings
from pc2_baseline.data.pairs import Batch, PairSet, cut, endless
from pc2_baseline.methods.base import Sizes, State, make_learner, make_network, rate
from pc2_baseline.modules.bank import PredictionBank, oscillation
from pc2_baseline.modules.codes import CaptionCodes, ImageCodes, word_mask
from pc2_baseline.modules.coteaching import PEERS, Beliefs, taught_by
from pc2_baseline.modules.division import Division, clean_posterior, divide, require_clean
from pc2_baseline.modules.learner import Learner, Step
from pc2_baseline.modules.losses import (
    MarginAxis,
    batch_entropy,
    likeliest,
    own_entropy,
    pseudo_class_loss,
    relatively_likeliest,
    soft_margin,
    triplet_hardest,
    triplet_mean,
)
from pc2_baseline.modules.network import MatchingNetwork
from pc2_baseline.modules.pseudo_caption import PseudoCaptions, find_pseudo_captions, rectified
from pc2_baseline.modules.pseudo_class import (
    FlatClassifier,
    PaddedClassifier,
    PooledClassifier,
    resampled,
)
from pc2_baseline.modules.retrieval import ensemble, similarity_matrix
from pc2_baseline.training.process_groups import join_world
from pc2_baseline.training.progress import bar
from pc2_baseline.training.seeds import seed_torch, stream

Rows = Int[np.ndarray, " _"]
Triplet = Callable[[Tensor, Tensor, Tensor | None, MarginAxis], Tensor]

CLASSIFIERS: dict[str, type[FlatClassifier | PooledClassifier]] = {
    "slots": FlatClassifier,
    "padded": PaddedClassifier,
    "pooled": PooledClassifier,
}

_ORDER, _CLEAN, _NOISY = range(3)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Both halves of a batch, encoded."""

    images: ImageCodes
    captions: CaptionCodes


class Pc2Network(nn.Module):
    """The SGR network and the pseudo-classifier that both halves of a pair share."""

    def __init__(
        self, matching: MatchingNetwork, classify: FlatClassifier | PooledClassifier
    ) -> None:
        super().__init__()
        self.matching = matching
        self.classify = classify

    def encode(self, batch: Batch) -> Encoded:
        """Encode images and captions."""
        return Encoded(
            self.matching.encode_images(batch.regions),
            self.matching.encode_captions(batch.tokens, batch.lengths),
        )

    def predict(self, codes: ImageCodes | CaptionCodes) -> Float[Tensor, "batch classes"]:
        """Give pseudo-class predictions; rows sum to 1."""
        logits: Tensor = self.classify(codes)
        return logits.softmax(1)

    def refit(self, captions: CaptionCodes, words: int) -> CaptionCodes:
        """Resample padded captions to so many words and keep their lengths, as was released."""
        lengths = captions.lengths.clamp(max=words)
        laid = resampled(captions.words[:, : int(captions.lengths.max())], words)
        laid = laid * word_mask(lengths, words, laid.device)[..., None]
        return CaptionCodes(laid, self.matching.captions.pool(laid, lengths), lengths)


class Pc2:
    """Two co-taught peers, each with its prediction bank and its beliefs.

    Every epoch ends with one evaluation pass, in a fixed order unless set otherwise, from which
    each peer's division, predictions and oscillation follow; the next epoch crosses the divisions.

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
        self.world = join_world(len(PEERS))
        self.nets = [self._make(settings, sizes, peer).to(device) for peer in range(len(PEERS))]
        self.learners = [make_learner(net, net.matching, self.train) for net in self.nets]
        self.banks = [PredictionBank(sizes.pairs, self.method.classes) for _ in PEERS]
        self.beliefs: list[Beliefs] = []

    def _make(self, settings: Settings, sizes: Sizes, peer: int) -> Pc2Network:
        seed_torch(self.train.seed, peer)
        kind = CLASSIFIERS[self.method.class_input]
        classify = kind(settings.model.embed_dim, self.method.class_hidden, self.method.classes)
        team = self.world.teams[peer]
        return Pc2Network(make_network(settings.model, sizes, team), classify)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Learn for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        figures = self.world.for_each_peer(lambda peer: self._learn(train, epoch, peer))
        self.beliefs = self.world.for_each_peer(lambda peer: self.believe(train, epoch, peer))
        predictions = self.world.for_each_peer(lambda peer: self.banks[peer].predictions)
        for bank, held in zip(self.banks, predictions, strict=True):
            bank.write(held)
        return {
            f"{name}_{peer}": value
            for peer, own, beliefs, bank in zip(
                PEERS, figures, self.beliefs, self.banks, strict=True
            )
            for name, value in {**own, **_summary(beliefs, bank)}.items()
        }

    def _learn(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        """Train one peer for an epoch; what it draws hangs on nothing that the other does."""
        seed_torch(self.train.seed, len(PEERS) + peer, epoch)
        learner, warmup = self.learners[peer], self.train.warmup_epochs
        if epoch == warmup and self.method.fresh_optimiser:
            learner.restart()
        learner.set_rate(rate(epoch, warmup, self.train.lr_drop_epoch))
        self.nets[peer].train()
        if epoch < warmup:
            return self._warm_up(train, epoch, peer)
        return self._co_teach(train, epoch, peer)

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Average both peers' similarity matrices."""
        return ensemble(
            self.world.for_each_peer(
                lambda peer: similarity_matrix(self.nets[peer].matching, split)
            )
        )

    def state_dict(self) -> State:
        """Both networks; both divisions; both banks and optimisers."""
        state: State = {"networks": {}, "beliefs": {}, "training": {}}
        own = self.world.for_each_peer(
            lambda peer: (
                self.learners[peer].network_state(),
                self.learners[peer].optimiser_state(),
            )
        )
        for peer, (network, optimiser), bank in zip(PEERS, own, self.banks, strict=True):
            _prefixed(state["networks"], peer, network)
            _prefixed(state["training"], f"{peer}.optimiser", optimiser)
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
        net, learner = self.nets[peer], self.learners[peer]
        batches = cut(
            np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch, peer, _CLEAN)
        )
        losses = []
        for number, rows in enumerate(bar(batches, f"warm-up {PEERS[peer]}", len(batches))):
            pairs = net.encode(train.batch(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            triplet = triplet_mean(similarity, self._full_margins(rows)).sum()
            loss = triplet + self._class_terms(net, pairs)
            if self.method.bank == "released":
                self.banks[peer].write_rows(rows, net.predict(pairs.images))
            losses.append(learner.step(loss, Step(epoch, number, PEERS[peer], rows)))
        return {"loss": float(np.mean(losses))}

    def _full_margins(self, rows: Int[np.ndarray, " batch"]) -> Float[Tensor, " batch"]:
        return torch.full((len(rows),), self.method.margin, device=self.device)

    def _class_terms(self, net: Pc2Network, pairs: Encoded) -> Float[Tensor, ""]:
        """Cross-entropy of the images with their captions' classes, less the entropy."""
        if not self.method.pseudo_classes:
            return torch.zeros((), device=self.device)
        of_images, of_captions = net.classify(pairs.images), net.classify(pairs.captions)
        choose = relatively_likeliest if self.method.relative_targets else likeliest
        pseudo = pseudo_class_loss(of_images, choose(of_captions))
        if self.method.entropy == "each_image":
            entropy = own_entropy(of_images)
        else:
            means = [batch_entropy(logits.softmax(1)) for logits in (of_images, of_captions)]
            entropy = (means[0] + means[1]) / 2
        return self.method.lambda_pseudo * pseudo - self.method.lambda_entropy * entropy

    def lesson(self, train: PairSet, since: int, peer: int) -> "_Lesson":
        """Lay out what a peer learns by: the division is the other's.

        Args:
            train: The training split.
            since: Epochs since the warm-up.
            peer: Who learns.
        """
        beliefs = taught_by(self.beliefs, peer)
        return _Lesson(
            train,
            self.nets[peer],
            self.learners[peer],
            self.banks[peer],
            triplet_mean if since < self.method.mean_epochs else triplet_hardest,
            beliefs.division,
            rectified(beliefs.division.clean_prob, beliefs.stable_prob, beliefs.is_stable),
        )

    def _co_teach(self, train: PairSet, epoch: int, peer: int) -> dict[str, float]:
        since = epoch - self.train.warmup_epochs
        lesson = self.lesson(train, since, peer)
        require_clean(lesson.division)
        with_noisy = self.method.pseudo_captions and since >= self.method.noisy_from_epoch
        batches = self._batches(lesson.division, epoch, peer, with_noisy=with_noisy)
        steps = len(cut(lesson.division.clean, self.train.batch))
        teach = self._two_steps if self.method.steps == "two" else self._summed_step
        found = [
            teach(lesson, clean, noisy, Step(epoch, number, PEERS[peer], np.append(clean, noisy)))
            for number, (clean, noisy) in enumerate(bar(batches, f"co-teach {PEERS[peer]}", steps))
        ]
        loss, noisy_loss = np.mean(found, axis=0).tolist()
        return {"loss": loss, "loss_noisy": noisy_loss}

    def _batches(
        self, division: Division, epoch: int, peer: int, *, with_noisy: bool
    ) -> Iterator[tuple[Int[np.ndarray, " clean"], Int[np.ndarray, " noisy"]]]:
        """Pair each clean batch with as many noisy pairs, or fewer where there are fewer."""
        seed = self.train.seed
        clean = cut(division.clean, self.train.batch, stream(seed, epoch, peer, _CLEAN))
        noisy = endless(division.noisy, self.train.batch, stream(seed, epoch, peer, _NOISY))
        none = np.array([], dtype=np.int64)
        for rows in clean:
            yield rows, next(noisy, none) if with_noisy else none

    def _summed_step(
        self, lesson: "_Lesson", clean: Rows, noisy: Rows, step: Step
    ) -> tuple[float, float]:
        """Take one step down the summed loss; images of both kinds are encoded together.

        Returns:
            The loss, and its noisy part.
        """
        net = lesson.net
        batch = lesson.train.batch(np.append(clean, noisy))
        size = len(clean)
        images = net.matching.encode_images(batch.regions)
        captions = net.matching.encode_captions(batch.tokens[:size], batch.lengths[:size])
        pairs = Encoded(images[:size], captions)
        loss = self._clean_loss(lesson, pairs, clean)
        noisy_loss = torch.zeros((), device=self.device)
        if len(noisy):
            noisy_loss = self.noisy_loss(lesson, images[size:], pairs, batch.lengths[size:])
        total = loss + self.method.lambda_noisy * noisy_loss
        step = replace(step, parts={"noisy": noisy_loss.item()})
        return lesson.learner.step(total, step), noisy_loss.item()

    def _two_steps(
        self, lesson: "_Lesson", clean: Rows, noisy: Rows, step: Step
    ) -> tuple[float, float]:
        """Take a step on the clean pairs, then one on the noisy ones, as the released code does.

        Returns:
            The loss of the first step, and of the second.
        """
        net, learner = lesson.net, lesson.learner
        batch = lesson.train.batch(clean)
        value = learner.step(self._clean_loss(lesson, net.encode(batch), clean), step)
        if not len(noisy):
            return value, 0.0
        pairs, other = net.encode(batch), lesson.train.batch(noisy)
        images = net.matching.encode_images(other.regions)
        loss = self.noisy_loss(lesson, images, pairs, other.lengths)
        if self.method.bank == "released":
            for own, rows, codes in (
                (lesson.division.clean, clean, pairs.images),
                (lesson.division.noisy, noisy, images),
            ):
                lesson.bank.write_rows(np.searchsorted(own, rows), net.predict(codes))
        return value, learner.step(self.method.lambda_noisy * loss, step)

    def _clean_loss(self, lesson: "_Lesson", pairs: Encoded, rows: Rows) -> Float[Tensor, ""]:
        """Triplet loss with soft margins, and the class terms."""
        correspondence = torch.from_numpy(lesson.correspondence[rows]).float().to(self.device)
        margins = soft_margin(correspondence, self.method.margin, self.method.margin_base)
        similarity = lesson.net.matching.score(pairs.images, pairs.captions)
        axis: MarginAxis = "image" if self.method.margin_axis == "broadcast" else "query"
        costs = lesson.triplet(similarity, margins, None, axis)
        return costs.sum() + self._class_terms(lesson.net, pairs)

    def noisy_loss(
        self,
        lesson: "_Lesson",
        noisy: ImageCodes,
        pairs: Encoded,
        lengths: Int[Tensor, " noisy"],
    ) -> Float[Tensor, ""]:
        """Triplet loss of noisy images with their pseudo-captions.

        Args:
            lesson: What is learned by.
            noisy: Images.
            pairs: The clean batch.
            lengths: Of the captions that the noisy images came with.
        """
        method, net = self.method, lesson.net
        found, captions = self.pseudo_captions(lesson, noisy, pairs, int(lengths.max()))
        similarity = net.matching.score(noisy, captions)
        correspondence = found.correspondence.masked_fill(
            found.correspondence < method.zero_below, 0.0
        )
        margins = soft_margin(correspondence, method.margin, method.margin_base)
        negatives = None if method.repeated_negatives else found.negatives
        axis: MarginAxis = "caption" if method.margin_axis == "broadcast" else "query"
        _, back = torch.unique(found.chosen, return_inverse=True)
        costs = lesson.triplet(similarity[:, back], margins, negatives, axis)
        return costs[found.correspondence >= method.mismatch_threshold].sum()

    def pseudo_captions(
        self, lesson: "_Lesson", noisy: ImageCodes, pairs: Encoded, words: int
    ) -> tuple[PseudoCaptions, CaptionCodes]:
        """Search a clean caption for each noisy image; encode each that was chosen once.

        Args:
            lesson: What is learned by.
            noisy: Images.
            pairs: The clean batch.
            words: Of the longest caption that the noisy images came with.
        """
        describe = lesson.net.predict if self.method.search_by == "prediction" else _pooled
        asked = describe(noisy)
        asked = asked if self.method.margin_gradient else asked.detach()
        if self.method.search_in == "clean_set":
            found = find_pseudo_captions(asked, self._clean_predictions(lesson))
            rows = lesson.division.clean[torch.unique(found.chosen).cpu().numpy()]
            return found, lesson.net.matching.encode_captions(*lesson.train.caption_batch(rows))
        keys = describe(pairs.images)
        keys = keys if self.method.margin_gradient else keys.detach()
        found = find_pseudo_captions(asked, keys)
        captions = pairs.captions
        if self.method.pseudo_caption_fit == "resampled":
            captions = lesson.net.refit(captions, words)
        return found, captions[torch.unique(found.chosen)]

    def _clean_predictions(self, lesson: "_Lesson") -> Float[Tensor, "clean classes"]:
        """What the peer's bank holds of the clean pairs, on its device; moved there once."""
        if lesson.clean_predictions is None:
            clean = lesson.bank.predictions[lesson.division.clean]
            lesson.clean_predictions = clean.to(self.device)
        return lesson.clean_predictions

    @torch.no_grad()
    def believe(self, train: PairSet, epoch: int, peer: int) -> Beliefs:
        """Look at all pairs once, and write the bank."""
        net, bank, seed = self.nets[peer].eval(), self.banks[peer], self.train.seed
        losses = np.zeros(len(train), dtype=np.float32)
        predictions = torch.zeros_like(bank.predictions)
        anew = (epoch,) if self.method.division_order == "shuffled" else ()
        order = stream(seed, len(train), _ORDER, *anew)
        batches = cut(np.arange(len(train)), self.method.division_batch, order)
        for rows in bar(batches, f"divide {PEERS[peer]}", len(batches)):
            pairs = net.encode(train.batch(rows))
            similarity = net.matching.score(pairs.images, pairs.captions)
            losses[rows] = triplet_mean(similarity, self._full_margins(rows)).cpu().numpy()
            predictions[rows] = net.predict(pairs.images).cpu()
        moved = np.zeros(len(train), dtype=np.float32)
        if not bank.is_empty and self.method.pseudo_classes:
            both = (bank.predictions, predictions)
            both = both if self.method.divergence == "old_new" else both[::-1]
            moved = oscillation(*both).numpy()
        if self.method.bank == "each_epoch":
            bank.write(predictions)
        return Beliefs(losses, divide(losses, seed), moved, *self._stable(moved))

    def _stable(
        self, moved: Float[np.ndarray, " pairs"]
    ) -> tuple[Float[np.ndarray, " pairs"], Bool[np.ndarray, " pairs"]]:
        """Posterior of little oscillation, and who is stable; nobody where all move alike."""
        if np.ptp(moved) <= 1e-12 or not self.method.rectify:
            return np.zeros(len(moved)), np.zeros(len(moved), dtype=bool)
        if self.method.stable == "divided":
            division = divide(moved, self.train.seed)
            return division.clean_prob, division.is_clean
        stable_prob = clean_posterior(moved, self.train.seed)
        return stable_prob, np.asarray(stable_prob >= self.method.oscillation_threshold)


@dataclass(slots=True)
class _Lesson:
    """What one peer learns by in one epoch.

    Attributes:
        correspondence: Of each pair, for the clean ones' margins.
        clean_predictions: See :meth:`Pc2._clean_predictions`.
    """

    train: PairSet
    net: Pc2Network
    learner: Learner
    bank: PredictionBank
    triplet: Triplet
    division: Division
    correspondence: Float[np.ndarray, " pairs"]
    clean_predictions: Tensor | None = None


def _pooled(images: ImageCodes) -> Float[Tensor, "images dim"]:
    return images.pooled


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
        "is_stable": torch.from_numpy(beliefs.is_stable),
    }


def _from_tensors(state: Mapping[str, Tensor]) -> Beliefs:
    values = {name: value.numpy() for name, value in state.items()}
    return Beliefs(
        values["loss"],
        Division(values["clean_prob"], values["is_clean"]),
        values["oscillation"],
        values["stable_prob"],
        values["is_stable"],
    )
