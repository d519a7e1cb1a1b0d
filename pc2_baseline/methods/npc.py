"""NPC: pairs weighted by the effect of their step on clean pairs (Zhang et al., AAAI 2024)."""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_section import DivisionSettings, SoftmaxSettings
from pc2_baseline.methods.one_network import OneNetwork, make_network
from pc2_baseline.modules.contrastive import info_nce
from pc2_baseline.modules.coteaching import (
    DividedPairs,
    Rows,
    dividing_batches,
    pair_losses,
    warm_up_batches,
)
from pc2_baseline.modules.division import divide
from pc2_baseline.modules.learner import Learner, Step, add_prefix, rate, select_prefix
from pc2_baseline.modules.retrieval import BLOCK
from pc2_baseline.networks.encoders import Loss, PerPair
from pc2_baseline.networks.similarity import MatchingNetwork
from pc2_baseline.progress import bar
from pc2_baseline.training.method import TRAINING, Sizes, State

BANK_THRESHOLD = 0.9
"""Clean probability above which a pair enters the memory bank."""
_AHEAD = "ahead"
_BANK = ("image_entry", "caption_entry")
_FEWEST = 2
_TINY = 1e-12


class NpcSettings(SoftmaxSettings, DivisionSettings):
    """NPC (Zhang et al., AAAI 2024): pairs weighted by the effect of their step on clean pairs."""


class Npc(OneNetwork[NpcSettings]):
    r"""One network; a pair's weight is the effect of its batch's step on nearby clean pairs.

    The warm-up learns all pairs with InfoNCE. A mixture over these losses then selects the most
    certain clean pairs as the memory bank, which does not change later. Each pair has two entries
    in the bank: the pair with the nearest image and the pair with the nearest caption, by the
    network's pooled vectors.

    Before each step, a copy of the network takes this step with all weights 1; :func:`confidence`
    computes the weights from the losses of the entries before and after it. The loss is

    .. math::
        \frac{1}{n} \sum_i \big[ w_i L_i + L(m^I_i) + L(m^T_i) \big]

    with the InfoNCE :math:`L` of each pair in its batch, of each image entry among the image
    entries, and of each caption entry among the caption entries.

    Attributes:
        statistics: By pair_index: ``loss``, ``clean_prob`` and ``is_clean`` of the last evaluated
            warm-up epoch; ``image_entry`` and ``caption_entry``; ``weight`` in the last epoch.

    Source:
        NPC (Zhang et al., AAAI 2024), whose network is a pre-trained CLIP; weights, threshold and
        entries (the entry of a pair of the bank is itself) as in the authors' code.

    Differs:
        The authors' code multiplies the mean loss of a batch by its mean weight, and computes the
        losses of the entries without gradient, so nothing is learned from the bank; here both are
        as in the paper. Its mixture is fitted to unscaled losses, and its keys are not unit
        vectors. See ``docs/departures.md``.
    """

    section = NpcSettings

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        super().__init__(settings, sizes, device)
        self.ahead = make_network(self.model, sizes, self.group).to(device)
        train = self.train
        self.ahead_learner = Learner(
            self.ahead, train.lr, float("inf"), train.weight_decay, self.ahead
        )

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch; rebuild the memory bank after each epoch of the warm-up."""
        warmup = self.train.warmup_epochs
        factor = rate(epoch, warmup, self.train.lr_drop_epoch)
        self.begin(epoch, factor)
        self.ahead_learner.set_rate(factor)
        self.ahead.similarity.few_active = self.net.similarity.few_active
        batches = warm_up_batches(len(train), self.train.batch, self.train.seed, epoch, 0)
        losses, weights = [], []
        for number, rows in enumerate(bar(batches, "train", len(batches))):
            step = Step(epoch, number, None, rows)
            if epoch < warmup:
                loss = self._losses(self.net, train, rows).mean()
            else:
                weights.append(self._weigh(train, step))
                loss = self._weighed_loss(train, rows, weights[-1])
            losses.append(self.learner.step(loss, step))
        figures = {"loss": float(np.mean(losses))}
        if weights:
            by_pair = torch.zeros(len(train))
            by_pair[np.concatenate(batches)] = torch.cat(weights).cpu()
            self.statistics = self.statistics | {"weight": by_pair}
            figures["weight"] = float(by_pair.mean())
        elif self.train.evaluates(epoch):
            self._remember(train)
            figures["clean"] = float(self.statistics["is_clean"].sum())
        return figures

    def state_dict(self) -> State:
        """Return the network, its optimiser and the copy's, and the statistics."""
        state = super().state_dict()
        ahead = add_prefix(_AHEAD, self.ahead_learner.optimiser_state())
        return state | {TRAINING: state[TRAINING] | ahead}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or only its network."""
        super().load_state_dict(state)
        if TRAINING in state:
            self.ahead_learner.load_optimiser(select_prefix(state[TRAINING], _AHEAD))

    def _losses(self, net: MatchingNetwork, train: PairSet, rows: Rows) -> PerPair:
        return info_nce(net.score_batch(train.batch(rows)), self.method.temperature)

    def _entries(self, rows: Rows) -> list[Rows]:
        """Return the image entries and the caption entries of pairs."""
        return [self.statistics[name][rows].numpy() for name in _BANK]

    def _weighed_loss(self, train: PairSet, rows: Rows, weights: PerPair) -> Loss:
        """Return the loss of a batch and of its entries in the memory bank."""
        costs = weights * self._losses(self.net, train, rows)
        bank = [self._losses(self.net, train, entries) for entries in self._entries(rows)]
        return torch.stack([costs, *bank]).sum(0).mean()

    def _weigh(self, train: PairSet, step: Step) -> PerPair:
        """Return the weights of a batch, from a step that the copy of the network takes on it.

        The copy is in evaluation mode: its own dropout would add noise to the weights.
        """
        before = self._bank_losses(self.net, train, step.pair_index)
        self.ahead.load_state_dict(self.net.state_dict())
        evaluate(self.ahead)
        self.ahead_learner.step(self._losses(self.ahead, train, step.pair_index).mean(), step)
        after = self._bank_losses(self.ahead, train, step.pair_index)
        self.net.train()
        return confidence(before, after)

    @torch.no_grad()
    def _bank_losses(
        self, net: MatchingNetwork, train: PairSet, rows: Rows
    ) -> Float[Tensor, "2 batch"]:
        """Return the losses of the entries of pairs, in evaluation mode."""
        net.eval()
        return torch.stack([self._losses(net, train, part) for part in self._entries(rows)]).float()

    @torch.no_grad()
    def _remember(self, train: PairSet) -> None:
        """Divide the pairs, build the memory bank, and find each pair's entries in it."""
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        loss = partial(info_nce, temperature=self.method.temperature)
        losses = pair_losses(self.net, train, batches, loss, "divide")
        division = divide(losses, self.train.seed)
        bank = np.flatnonzero(division.clean_prob > BANK_THRESHOLD)
        bank = bank if len(bank) >= _FEWEST else division.clean
        net, entries = self.net, torch.from_numpy(bank)
        image_of = torch.from_numpy(train.image_of).to(train.device)
        images = [
            net.encode_images(train.image_batch(rows)).pooled
            for rows in cut(np.arange(train.images), BLOCK)
        ]
        captions = [
            net.encode_captions(*train.caption_batch(rows)).pooled
            for rows in cut(np.arange(len(train)), BLOCK)
        ]
        vectors = torch.cat(images)[image_of], torch.cat(captions)
        self.statistics = DividedPairs(losses, division).to_tensors() | {
            name: nearest(side, entries) for name, side in zip(_BANK, vectors, strict=True)
        }


def evaluate(net: nn.Module) -> None:
    """Set evaluation mode but for GRUs: cuDNN cannot differentiate them in this mode."""
    net.eval()
    for part in net.modules():
        if isinstance(part, nn.GRU):
            part.train()  # changes nothing: no GRU here has dropout


def nearest(
    vectors: Float[Tensor, "pairs dim"], entries: Int[Tensor, " entries"]
) -> Int[Tensor, " pairs"]:
    """Return the entry nearest to each pair, by the dot product of unit vectors, on the CPU."""
    entries = entries.to(vectors.device)
    bank = vectors[entries].T
    places = torch.cat([(block @ bank).argmax(1) for block in torch.split(vectors, BLOCK)])
    return entries[places].cpu()


def confidence(
    before: Float[Tensor, "entries batch"], after: Float[Tensor, "entries batch"]
) -> PerPair:
    r"""Return the weights of pairs from the losses of their entries before and after a step.

    .. math::
        r = \frac12 \Big( \frac{L(m^I)}{L'(m^I)} + \frac{L(m^T)}{L'(m^T)} \Big), \qquad
        w = \begin{cases} \tanh r & r < 1 \\ 1 & r \ge 1 \end{cases}

    A pair whose step increases these losses has at most weight :math:`\tanh 1 = 0.76`, others 1.

    Source:
        NPC (Zhang et al., AAAI 2024).

    Differs:
        Losses have a floor of 1e-12, to avoid a division by 0.
    """
    ratio = (before.clamp(min=_TINY) / after.clamp(min=_TINY)).mean(0)
    return ratio.tanh().where(ratio < 1, 1.0)
