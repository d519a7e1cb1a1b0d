"""Ridge regression from screenshots to the vectors of their captions: a reference in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pc2_baseline.config import Settings
from pc2_baseline.data.page_means import centre_and_scale, mean_regions
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_settings.ridge import RidgeSettings
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.division import divide
from pc2_baseline.modules.folds import assign_folds
from pc2_baseline.modules.lsa import Lsa, fit_lsa
from pc2_baseline.modules.reading import Reading, fit_reading
from pc2_baseline.networks.cosine import cosine_logits
from pc2_baseline.networks.fused import unit
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State


@dataclass(frozen=True)
class Problem:
    """A regression from pages to captions, and its moments by fold.

    Attributes:
        pages: Standardised features of each pair's page.
        captions: Vector of each pair's caption.
        fold: Fold of each pair.
        read: What is known of the caption's vector before anything is learned; zeros, or what the
            detector has read.
        nearest: What is added to each pair's similarity, whatever is learned.
    """

    pages: Float[Tensor, "pairs features"]
    captions: Float[Tensor, "pairs dim"]
    fold: Int[np.ndarray, " pairs"]
    read: Float[Tensor, "pairs dim"]
    nearest: Float[Tensor, " pairs"]

    @cached_property
    def moments(self) -> list[tuple[Tensor, Tensor, int]]:
        """Products of the pages with themselves and with what is to be learned, by fold; pairs."""
        found, unknown = [], self.captions - self.read
        for number in bar(range(int(self.fold.max()) + 1), "moments", int(self.fold.max()) + 1):
            own = torch.from_numpy(self.fold == number)
            pages = self.pages[own]
            found.append((pages.T @ pages, pages.T @ unknown[own], len(pages)))
        return found

    def solve(self, penalty: float, without: int | None = None) -> Float[Tensor, "features dim"]:
        r"""Return the weights :math:`(X^\top X + \lambda n I)^{-1} X^\top (Y - R)`.

        :math:`X` are the pages, :math:`Y` the captions, :math:`R` what is known without learning.

        Args:
            penalty: :math:`\lambda`.
            without: Fold that is left out, if any.
        """
        kept = [own for number, own in enumerate(self.moments) if number != without]
        squares, products = (torch.stack(own).sum(0) for own in list(zip(*kept, strict=True))[:2])
        squares.diagonal().add_(penalty * sum(pairs for *_, pairs in kept))
        return torch.cholesky_solve(products, torch.linalg.cholesky(squares)).contiguous()

    def held_out(self, penalty: float) -> Float[Tensor, " pairs"]:
        """Return each pair's similarity by a fit to the other folds."""
        cosines = self.pages.new_zeros(len(self.pages))
        for number in range(len(self.moments)):
            own = torch.from_numpy(self.fold == number)
            predicted = unit(self.read[own] + self.pages[own] @ self.solve(penalty, number))
            cosines[own] = (predicted * unit(self.captions[own])).sum(1)
        return cosines + self.nearest


class Ridge:
    """Linear regression from a page's mean region to its caption's vector, by the ridge formula.

    A page is the mean of its regions, standardised; a caption its LSA vector, learned from the
    training captions. The similarity is the cosine of the predicted vector and the caption's. An
    epoch is one penalty: they grow from ``penalty_from`` to ``penalty_to`` by equal factors, and
    dev selects one as it selects an epoch. Everything is float64 on the CPU, whatever the device.

    With ``method.words`` a caption's vector is the evened-out sum of its letters' vectors, and what
    the detector read on the page, times one factor, is the first guess at it: ridge regression
    learns what is missing, less of it the higher the penalty. The cosine of the caption with the
    region whose words are nearest to it is added (:class:`~pc2_baseline.modules.reading.Reading`).

    Each epoch also divides the pairs: a pair's statistic is 1 less the cosine that a fit to the
    other folds gives it. All folds have the same features and vectors, and so one scale and one
    mixture.

    Args:
        settings: Settings of the run; the method section is :class:`RidgeSettings`.
        sizes: Sizes of the data.
        device: Not used.

    Source:
        Ridge regression: Hoerl and Kennard, Technometrics 1970. Judging a pair by a fit to the
        others is cross-validation, as in :class:`~pc2_baseline.methods.crossfit.CrossFit`.
    """

    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        del device
        if not isinstance(settings.method, RidgeSettings):
            raise TypeError(f"settings of {settings.method.name}, expected those of ridge")
        self.method = settings.method
        self.seed = settings.train.seed
        self.vocabulary = sizes.vocabulary
        penalties = self.method.penalty_from, self.method.penalty_to
        self.penalties = np.geomspace(*penalties, settings.train.total_epochs)
        self.problem: Problem | None = None
        self.fitted: dict[str, Tensor] = {}
        self.statistics: dict[str, Tensor] = {}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Solve for the penalty of the epoch, and divide the pairs.

        Args:
            train: The training split.
            epoch: From 0.
        """
        if self.problem is None:
            self.problem = self._prepare(train)
        penalty = float(self.penalties[epoch])
        self.fitted["weights"] = self.problem.solve(penalty)
        loss = 1 - self.problem.held_out(penalty).numpy()
        division = divide(loss, self.seed)
        arrays = {
            "clean_prob": division.clean_prob, "is_clean": division.is_clean,
            "loss": loss, "fold": self.problem.fold,
        }  # fmt: skip
        self.statistics = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return {
            "penalty": penalty,
            "held_out_loss": float(loss.mean()),
            "clean": float(division.is_clean.sum()),
        }

    def similarity(self, split: PairSet) -> Float[np.ndarray, "images captions"]:
        """Score every image of a split against every caption; the scores are logits."""
        own = self.fitted
        pages = (mean_regions(split) - own["page_mean"]) / own["page_scale"]
        predicted = pages @ own["weights"]
        if self.method.words:
            reading = Reading.from_state(own)
            captions = reading.caption_vectors(split)
            predicted += own["factor"] * reading.page_vectors(split)
            cosines = unit(predicted) @ captions.T + reading.best_regions(split, captions)
            bound = 2.0
        else:
            captions = Lsa(own["idf"], own["tokens"], own["caption_mean"]).vectors(split.captions)
            cosines, bound = unit(predicted) @ unit(captions).T, 1.0
        return np.asarray(cosine_logits(cosines, bound).numpy(), dtype=np.float32)

    def state_dict(self) -> State:
        """Return the fit; further epochs need nothing of it."""
        return {
            "networks": {name: own.clone() for name, own in self.fitted.items()},
            "training": {},
        }

    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Load a fit."""
        self.fitted = dict(state["networks"])

    def epoch_outputs(self) -> EpochOutputs:
        """Return the division, the held-out losses and the folds, for ``divisions/``."""
        return {DIVISIONS: self.statistics} if self.statistics else {}

    def _prepare(self, train: PairSet) -> Problem:
        """Standardise the pages and analyse the captions."""
        pages = mean_regions(train)
        mean, scale = centre_and_scale(pages)
        self.fitted = {"page_mean": mean, "page_scale": scale}
        pages = (pages - mean) / scale
        own = torch.from_numpy(train.image_of)
        fold = assign_folds(train.image_of, train.captions, self.method.folds, self.seed)
        if self.method.words:
            reading = fit_reading(train)
            captions, read = reading.caption_vectors(train), reading.page_vectors(train)[own]
            factor = (read * captions).sum(1).mean().clamp(min=0)  # least squares, of unit vectors
            self.fitted |= {**reading.state(), "factor": factor[None]}
            nearest = reading.own_best_regions(train, captions)
            return Problem(pages[own], captions, fold, factor * read, nearest)
        lsa = fit_lsa(train.captions, self.vocabulary, self.method.dim, self.seed)
        self.fitted |= {"idf": lsa.idf, "tokens": lsa.tokens, "caption_mean": lsa.mean}
        captions = lsa.vectors(train.captions)
        nothing = torch.zeros_like(captions)
        return Problem(pages[own], captions, fold, nothing, nothing[:, 0])
