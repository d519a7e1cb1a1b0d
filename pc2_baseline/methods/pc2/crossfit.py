"""PC2 with cross-fit division: a network that did not train on a pair evaluates it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import CrossFittedSettings
from pc2_baseline.methods.pc2.network import Pc2Network, PeerEpoch
from pc2_baseline.methods.pc2.paper import rectified, stable_pairs, training_step, warm_up_loss
from pc2_baseline.methods.pc2.peers import (
    PairStatistics,
    Pc2CommonSettings,
    PredictionBank,
    evaluate_pairs,
    make_pc2_network,
    oscillation,
)
from pc2_baseline.methods.peers import CrossFitted
from pc2_baseline.modules.coteaching import NONE, dividing_batches, mixed_batches, read_statistics
from pc2_baseline.modules.division import Division, divide_by_fold, require_clean
from pc2_baseline.modules.learner import Step, mean_losses, rate, take_steps
from pc2_baseline.modules.losses import triplet_hardest, triplet_mean
from pc2_baseline.modules.seeds import stream
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State

_BANK = "bank"


class Pc2CrossFitSettings(CrossFittedSettings, Pc2CommonSettings):
    """Settings of PC2 with a cross-fit division."""


class Pc2CrossFit(CrossFitted):
    """K peers with PC2's losses; the one peer that never trained on a pair evaluates it.

    Folds, evaluation and mixtures (one per fold) are those of cross-fit division; warm-up, training
    step, pseudo-captions and rectification are those of PC2. A peer trains on the clean and noisy
    pairs outside its fold alone. The bank keeps the predictions of the peer that evaluates a pair,
    so the oscillation compares predictions of the same peer.

    Source:
        PC2 (Duan et al., ACM MM 2024) for the losses; the division is our own, see
        ``docs/departures.md``.
    """

    section = Pc2CrossFitSettings
    nets: Sequence[Pc2Network]
    judged = 2  # a prediction is compared with the previous one

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        self.method = method = cast(Pc2CrossFitSettings, settings.method)
        make = partial(make_pc2_network, settings.model, sizes, method, method.classifier)
        super().__init__(method.folds, settings, device, make)
        self.bank = PredictionBank(sizes.pairs, method.classes)

    def learn(
        self, train: PairSet, epoch: int, peer: int, outside: Bool[np.ndarray, " pairs"]
    ) -> float:
        """Train a peer for an epoch on pairs outside its fold; return the mean loss of a batch."""
        self.begin(epoch, peer, rate(epoch, self.train.warmup_epochs, self.train.lr_drop_epoch))
        method, since = self.method, epoch - self.train.warmup_epochs
        net, learner, name = self.nets[peer], self.learners[peer], self.peers[peer]
        size, seed = self.train.batch, self.train.seed
        if since < 0:
            batches = cut(np.flatnonzero(outside), size, stream(seed, epoch, peer))
            loss = partial(warm_up_loss, method, net, train)
            return take_steps(learner, batches, loss, epoch, name, "warm-up")
        triplet = triplet_mean if since < method.mean_epochs else triplet_hardest
        statistics = read_statistics(PairStatistics, self.statistics)
        division, stable = statistics.division, (statistics.stable_prob, statistics.is_stable)
        correspondence = rectified(division.clean_prob, *stable)
        setup = PeerEpoch(net, learner, train.device, triplet, division, correspondence)
        require_clean(Division(division.clean_prob[outside], division.is_clean[outside]))
        takes_noisy = method.pseudo_captions and since >= method.noisy_from_epoch
        clean = np.flatnonzero(division.is_clean & outside)
        noisy = np.flatnonzero(~division.is_clean & outside) if takes_noisy else NONE
        pairs = mixed_batches(clean, [noisy], size, seed, epoch, peer)
        losses = []
        for number, (rows, more) in enumerate(bar(pairs, f"train {name}", len(pairs))):
            step = Step(epoch, number, name, np.append(rows, more))
            batch = train.batch(step.pair_index)
            losses.append(training_step(method, setup, batch, len(rows), step))
        return mean_losses(losses)[0]

    def divide(self, train: PairSet, fold: Int[np.ndarray, " pairs"]) -> PairStatistics:
        """Divide the pairs of each fold by two mixtures, of its losses and of its oscillations."""
        method, seed = self.method, self.train.seed

        def judge(peer: int) -> tuple[np.ndarray, Tensor]:
            pairs, size = np.flatnonzero(fold == peer), method.division_batch
            batches = [pairs[rows] for rows in dividing_batches(len(pairs), size, seed)]
            title = f"divide {self.peers[peer]}"
            return evaluate_pairs(self.nets[peer], train, batches, method.margin, title)

        judged = self.groups.for_each_peer(judge)  # 0 for pairs of other folds
        losses = np.sum([loss for loss, _ in judged], 0)
        predictions = torch.stack([prediction for _, prediction in judged]).sum(0)
        moved = np.zeros_like(losses)
        if method.pseudo_classes and self.bank.written.all():
            moved = oscillation(self.bank.predictions, predictions).numpy()
        self.bank.write(predictions)
        stable_prob, is_stable = np.zeros(len(fold)), np.zeros(len(fold), dtype=bool)
        for number in range(method.folds):
            inside = fold == number
            stable_prob[inside], is_stable[inside] = stable_pairs(moved[inside], method, seed)
        threshold, scale = method.division_threshold, method.division_scale
        division = divide_by_fold(losses, fold, seed, threshold, scale)
        return PairStatistics(losses, division, moved, stable_prob, is_stable)

    def state_dict(self) -> State:
        """Return networks, optimisers, the division and the bank."""
        state = super().state_dict()
        state[TRAINING][_BANK] = self.bank.predictions
        return state

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its networks alone."""
        super().load_state_dict(state)
        if TRAINING in state:
            self.bank.write(state[TRAINING][_BANK])
