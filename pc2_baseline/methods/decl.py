"""DECL: deep evidential learning with noisy correspondence (Qin et al., ACM MM 2022)."""

from itertools import count

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet, cut
from pc2_baseline.method_settings.decl import DeclSettings
from pc2_baseline.methods.bases.one_network import OneNetwork
from pc2_baseline.modules.coteaching import Rows, dividing_batches
from pc2_baseline.modules.evidence import evidence, evidential_loss, match_probabilities
from pc2_baseline.modules.learner import rate
from pc2_baseline.modules.losses import triplet_top
from pc2_baseline.modules.seeds import stream
from pc2_baseline.progress import bar
from pc2_baseline.training.method import Sizes


class Decl(OneNetwork):
    """One network that learns how much evidence there is for each match of a batch.

    Of every pair it learns a Dirichlet distribution over the captions, and over the images, of the
    batch: for clean pairs that their own is right, for noisy ones that none is. A hinge of the
    clean pairs against their n hardest negatives is added; n falls with every step. A pair is clean
    if it was the likeliest match of its image in the dividing pass of the epoch before; in the
    warm-up all are.

    Args:
        settings: Settings of the run; the method section is :class:`DeclSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Source:
        DECL (Qin et al., ACM MM 2022), and its released code.

    Differs:
        Dividing batches have one order a run; in the released code a new one each epoch. A batch
        has at most as many negatives as there are: the code's n may count the pair itself.
    """

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, DeclSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of decl")
        self.method = settings.method
        super().__init__(settings, sizes, device)

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then divide the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.
        """
        warmup = self.train.warmup_epochs
        everything = torch.ones(len(train), dtype=torch.bool)
        is_clean = everything if epoch < warmup else self.statistics["is_clean"]
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        steps = count(epoch * len(batches) + 1)

        def loss_of(rows: Rows) -> Float[Tensor, ""]:
            clean = is_clean[torch.from_numpy(rows)].to(train.device)
            logits = self.score(train, rows, logits=True)
            return self._loss(logits, clean, self.negatives(next(steps)))

        self.learner.set_rate(rate(epoch, warmup, self.train.lr_drop_epoch))
        loss = self.take_steps(epoch, [(rows,) for rows in batches], loss_of)
        self.statistics = self._divide(train)
        return {"loss": loss, "clean": float(self.statistics["is_clean"].sum())}

    def negatives(self, step: int) -> int:
        """Return how many hardest negatives count in a step, from 1, of a full batch."""
        method = self.method
        return max(int(self.train.batch - method.hardening * step), method.fewest_negatives)

    def _loss(
        self, logits: Float[Tensor, "batch batch"], clean: Tensor, negatives: int
    ) -> Float[Tensor, ""]:
        """Mean evidential loss of all pairs, and the weighted sum of the clean pairs' hinges."""
        method = self.method
        found = evidence(logits, method.temperature)
        margins = logits.new_full((len(logits),), method.margin)
        hinges = triplet_top(logits.tanh(), margins, negatives)
        evidential = evidential_loss(found, clean, method.lambda_kl).mean()
        return evidential + method.lambda_hinge * hinges[clean].sum()

    @torch.no_grad()
    def _divide(self, train: PairSet) -> dict[str, Tensor]:
        """Call clean which pairs are the likeliest of their image, in evaluation mode.

        Returns:
            Probability of each pair's own match, whether it is the highest, and the evidential
            loss of the pair as a match.
        """
        self.net.eval()
        found = {
            "clean_prob": torch.zeros(len(train)),
            "is_clean": torch.zeros(len(train), dtype=torch.bool),
            "loss": torch.zeros(len(train)),
        }
        batches = dividing_batches(len(train), self.method.division_batch, self.train.seed)
        for rows in bar(batches, "divide", len(batches)):
            for name, values in self._judge(train, rows).items():
                found[name][torch.from_numpy(rows)] = values.to(found[name])
        return found

    def _judge(self, train: PairSet, rows: Rows) -> dict[str, Tensor]:
        logits = self.score(train, rows, logits=True)
        found = evidence(logits, self.method.temperature)
        matches = match_probabilities(found)
        own = torch.arange(len(rows), device=matches.device)
        everything = torch.ones(len(rows), dtype=torch.bool, device=matches.device)
        return {
            "clean_prob": matches.diagonal(),
            "is_clean": matches.argmax(1) == own,
            "loss": evidential_loss(found, everything, self.method.lambda_kl),
        }
