"""GSC: geometrical structure consistency (Zhao et al., CVPR 2024)."""

from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import Batch, PairSet, cut
from pc2_baseline.method_settings.gsc import GscSettings
from pc2_baseline.methods.networks import make_learner, make_network
from pc2_baseline.modules.contrastive import log_matches
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.division import THRESHOLD, clean_posterior
from pc2_baseline.modules.learner import Step, stepped_rate
from pc2_baseline.modules.retrieval import similarity_matrix
from pc2_baseline.modules.seeds import seed_torch, stream
from pc2_baseline.modules.structure import STRUCTURES, structure_agreement, structure_loss
from pc2_baseline.process_groups import join_process_groups
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State

_STATISTICS = "beliefs"  # the group's name in checkpoints


class Gsc:
    """One network; each pair's loss has the weight of how well the pair fits what was learned.

    While it trains, the network predicts for each pair how far its halves belong together among the
    batch (across the modalities), and how much the image lies among the images as its caption among
    the captions (within each modality), from which a mixture makes a posterior. Both are averaged
    over the epochs, the newest counting most; a pair's weight is the smaller average, in its own
    loss and in the structures of the others. The first epoch takes every pair as matched.

    Args:
        settings: Settings of the run; the method section is :class:`GscSettings`.
        sizes: Sizes of the data.
        device: Device of the network.

    Attributes:
        statistics: By pair_index: the running averages ``prediction`` and ``structure``, their
            minimum ``clean_prob``, ``is_clean``, and the ``loss`` of the last epoch.

    Source:
        GSC (Zhao et al., CVPR 2024); averages over epochs are temporal ensembling (Laine and Aila,
        ICLR 2017). Formulas and schedule as in the authors' code.

    Differs:
        Structures compare as :mod:`pc2_baseline.modules.structure` says; theirs a little otherwise.
        The authors' checkpoints leave out the average prediction, so that theirs starts anew at a
        resume. Their variant GSC+, two networks that exchange weights, is not here.
    """

    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        if not isinstance(settings.method, GscSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of gsc")
        self.method = settings.method
        self.compare = STRUCTURES[self.method.structures]
        self.train = settings.train
        seed_torch(self.train.seed, 0)
        self.net = make_network(settings.model, sizes, join_process_groups(1).groups[0]).to(device)
        self.learner = make_learner(self.net, self.net, self.train)
        ones = torch.ones(sizes.pairs)
        self.statistics = {"prediction": ones, "structure": ones, "clean_prob": ones}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Train for one epoch, then weigh the pairs anew.

        Args:
            train: The training split.
            epoch: From 0, the warm-up included.

        Raises:
            TrainingError: If all pairs' structures agree alike.
        """
        seed_torch(self.train.seed, 2, epoch)
        factor = stepped_rate(epoch, self.train.lr_drop_epoch, self.method.lr_decay)
        self.learner.set_rate(factor)
        weights = self.statistics["clean_prob"]
        if epoch < self.train.warmup_epochs:
            weights = torch.ones(len(train))
        self.net.train()
        batches = cut(np.arange(len(train)), self.train.batch, stream(self.train.seed, epoch))
        found, losses = torch.zeros(3, len(train)), []
        for number, rows in enumerate(bar(batches, "train", len(batches))):
            own = weights[rows].to(train.device)
            loss, found[:, rows] = self._batch_loss(train.batch(rows), own)
            losses.append(self.learner.step(loss, Step(epoch, number, None, rows)))
        self._weigh(*found)
        return {
            "loss": float(np.mean(losses)),
            "pair_loss": float(self.statistics["loss"].mean()),
            "clean": float(self.statistics["is_clean"].sum()),
        }

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption."""
        return similarity_matrix(self.net, split)

    def state_dict(self) -> State:
        """Return the network, its optimiser and the statistics of the pairs."""
        return {
            "networks": self.learner.network_state(),
            _STATISTICS: {name: values.clone() for name, values in self.statistics.items()},
            "training": self.learner.optimiser_state(),
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a state, or its network alone."""
        self.learner.load_network(state["networks"])
        if "training" in state:
            self.learner.load_optimiser(state["training"])
        if _STATISTICS in state:
            self.statistics = dict(state[_STATISTICS])

    def epoch_outputs(self) -> EpochOutputs:
        """Return the pairs' weights and what they come from, for ``divisions/``."""
        return {DIVISIONS: self.statistics}

    def _batch_loss(
        self, batch: Batch, weights: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "3 batch"]]:
        """Compute the loss of a batch.

        Returns:
            The loss; and of each pair, on the CPU, its InfoNCE, the probability of its halves for
            each other, and the agreement of its structures.
        """
        images = self.net.encode_images(batch.regions)
        captions = self.net.encode_captions(batch.tokens, batch.lengths)
        logs = log_matches(self.net.score(images, captions), self.method.temperature)
        own = torch.stack([way.diagonal() for way in logs])
        matching = -own.mean(0)
        structures = [found * weights for found in self.compare(self.net, images, captions)]
        inside = structure_loss(*structures)
        loss = (weights * (matching + self.method.structure_weight * inside)).mean()
        agreement = structure_agreement(*structures)
        return loss, torch.stack([matching, own.exp().mean(0), agreement]).detach().float().cpu()

    def _weigh(
        self,
        losses: Float[Tensor, " pairs"],
        predictions: Float[Tensor, " pairs"],
        agreement: Float[Tensor, " pairs"],
    ) -> None:
        """Take an epoch's estimates into the running averages; a weight is the smaller one."""
        fit = torch.from_numpy(clean_posterior(-agreement.numpy(), self.train.seed)).float()
        new = self.method.newest_weight
        prediction = new * predictions + (1 - new) * self.statistics["prediction"]
        structure_fit = new * fit + (1 - new) * self.statistics["structure"]
        clean_prob = torch.minimum(prediction, structure_fit)
        self.statistics = {
            "prediction": prediction,
            "structure": structure_fit,
            "clean_prob": clean_prob,
            "is_clean": clean_prob > THRESHOLD,
            "loss": losses,
        }
