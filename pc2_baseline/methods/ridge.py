"""Ridge regression from screenshots to the vectors of their captions: a reference in seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from now_builder.formats.word_vectors import WIDTH
from pc2_baseline.config import Settings
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.method_section import MethodSettings
from pc2_baseline.modules.coteaching import DIVISIONS, DividedPairs
from pc2_baseline.modules.division import assign_folds, divide
from pc2_baseline.modules.reading import (
    Reading,
    centre_and_scale,
    fit_reading,
    guess_scale,
    mean_regions,
)
from pc2_baseline.modules.seeds import stream
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import cosine_logits
from pc2_baseline.networks.reading import BOUND
from pc2_baseline.progress import bar
from pc2_baseline.training.method import EpochOutputs, Sizes, State

_LAST_PENALTY = 1000.0
_ROUNDS = 8
_MORE = 10
_SKETCH = 5  # part of the stream's name

Captions = Sequence[Int[np.ndarray, " _"]]
"""Ids of each caption between ``<start>`` and ``<end>``."""


class RidgeSettings(MethodSettings):
    """Ridge regression from screenshots to captions, in closed form."""

    dim: PositiveInt = Field(64, description="Width of a caption's vector (LSA).")
    words: bool = Field(
        default=False,
        description="Begin with the words that the detector read, and compare letters instead of "
        "LSA vectors; needs the features of a detector that reads.",
    )
    penalty_from: PositiveFloat = Field(
        0.1,
        description="Penalty of the first epoch, in units of a feature's variance; that of the "
        "last is 1000, those between grow by equal factors, and dev chooses.",
    )
    folds: Annotated[int, Field(ge=2)] = Field(
        5, description="Folds of the pairs; those of one are judged by a fit to the others."
    )


@dataclass(frozen=True)
class Problem:
    """A regression from pages to captions, and its moments by fold.

    Attributes:
        pages: Standardised features of each pair's page.
        read: First guess at the caption's vector, before anything is learned: zeros, or the words
            that the detector has read.
        nearest: Constant that is added to each pair's similarity.
    """

    pages: Float[Tensor, "pairs features"]
    captions: Float[Tensor, "pairs dim"]
    fold: Int[np.ndarray, " pairs"]
    read: Float[Tensor, "pairs dim"]
    nearest: Float[Tensor, " pairs"]

    @cached_property
    def moments(self) -> list[tuple[Tensor, Tensor, int]]:
        """Products of pages with pages and with targets, and the number of pairs, by fold."""
        found, unknown = [], self.captions - self.read
        for number in bar(range(int(self.fold.max()) + 1), "moments", int(self.fold.max()) + 1):
            own = torch.from_numpy(self.fold == number)
            pages = self.pages[own]
            found.append((pages.T @ pages, pages.T @ unknown[own], len(pages)))
        return found

    def solve(self, penalty: float, without: int | None = None) -> Float[Tensor, "features dim"]:
        r"""Return the weights :math:`(X^\top X + \lambda n I)^{-1} X^\top (Y - R)`.

        :math:`X` are the pages, :math:`Y` the captions, :math:`R` the first guesses at them.
        """
        kept = [own for number, own in enumerate(self.moments) if number != without]
        squares, products = (torch.stack(own).sum(0) for own in list(zip(*kept, strict=True))[:2])
        squares.diagonal().add_(penalty * sum(pairs for *_, pairs in kept))
        return torch.cholesky_solve(products, torch.linalg.cholesky(squares)).contiguous()

    def predict(self, penalty: float) -> Float[Tensor, "pairs dim"]:
        """Return a unit vector of each pair's page, by a fit to the other folds."""
        predicted = torch.zeros_like(self.read)
        for number in range(len(self.moments)):
            own = torch.from_numpy(self.fold == number)
            predicted[own] = unit(self.read[own] + self.pages[own] @ self.solve(penalty, number))
        return predicted

    def held_out(self, penalty: float) -> Float[Tensor, " pairs"]:
        """Return each pair's similarity by a fit to the other folds."""
        return (self.predict(penalty) * unit(self.captions)).sum(1) + self.nearest


class Ridge:
    """Linear regression from a page's mean region to its caption's vector, by the ridge formula.

    A page is the mean of its regions, standardised; a caption its LSA vector, learned from the
    training captions. The similarity is the cosine of the predicted vector and the caption's. An
    epoch is one penalty: they grow from ``penalty_from`` to 1000 by equal factors, and
    dev selects one as it selects an epoch. Everything is float64 on the CPU, whatever the device.

    With ``method.words`` pages and captions have sketches of their letters. A caption's vector is
    the whitened mean row of its sketch. That of the page, times one factor, is the first guess;
    ridge regression learns the difference, less of it the higher the penalty. The cosine of both
    sketches, weighted by the inverse frequency in the training pages, is added
    (:class:`~pc2_baseline.modules.reading.Reading`).

    Each epoch also divides the pairs: a pair's statistic is 1 less the cosine that a fit to the
    other folds gives it. All folds have the same features and vectors, and so one scale and one
    mixture.

    Source:
        Ridge regression: Hoerl and Kennard, Technometrics 1970. Judging a pair by a fit to the
        others is cross-validation, as in :class:`~pc2_baseline.methods.crossfit.CrossFit`.
    """

    section = RidgeSettings
    ensemble_size = 1

    def __init__(self, settings: Settings, sizes: Sizes, device: torch.device) -> None:
        del device  # everything is done on the CPU
        self.method = cast(RidgeSettings, settings.method)
        self.seed = settings.train.seed
        self.vocabulary = sizes.vocabulary
        penalties = self.method.penalty_from, _LAST_PENALTY, settings.train.total_epochs
        self.penalties = np.geomspace(*penalties)
        self.problem: Problem | None = None
        self.fitted: dict[str, Tensor] = {}
        self.statistics: dict[str, Tensor] = {}

    def fit_epoch(self, train: PairSet, epoch: int) -> dict[str, float]:
        """Solve for the penalty of the epoch, and divide the pairs."""
        if self.problem is None:
            self.problem = self._prepare(train)
        penalty = float(self.penalties[epoch])
        self.fitted["weights"] = self.problem.solve(penalty)
        loss = 1 - self.problem.held_out(penalty).numpy()
        division = divide(loss, self.seed)
        fold = torch.from_numpy(self.problem.fold)
        self.statistics = DividedPairs(loss, division).to_tensors() | {"fold": fold}
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
            predicted += own["factor"] * reading.page_vectors(split)
            cosines = unit(predicted) @ reading.caption_vectors(split).T
            cosines += reading.sketch_scores(split, reading.caption_sketches(split))
            bound = BOUND
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
            factor = guess_scale(read, captions).expand(WIDTH)
            self.fitted |= {**reading.state(), "factor": factor}
            sketches, each = reading.caption_sketches(train), torch.arange(len(train))[:, None]
            scores = reading.sketch_scores_of(train, sketches, each)[:, 0]
            return Problem(pages[own], captions, fold, factor * read, scores)
        lsa = fit_lsa(train.captions, self.vocabulary, self.method.dim, self.seed)
        self.fitted |= {"idf": lsa.idf, "tokens": lsa.tokens, "caption_mean": lsa.mean}
        captions = lsa.vectors(train.captions)
        nothing = torch.zeros_like(captions)
        return Problem(pages[own], captions, fold, nothing, nothing[:, 0])


@dataclass(frozen=True, slots=True)
class Lsa:
    """TF-IDF, projected on the first singular vectors of the captions that it was fitted to.

    Attributes:
        idf: Weight of each token.
        tokens: Vector of each token: a right singular vector a column; zeros for tokens that no
            fitted caption has.
        mean: Mean of the fitted captions' unit vectors.
    """

    idf: Float[Tensor, " vocabulary"]
    tokens: Float[Tensor, "vocabulary dim"]
    mean: Float[Tensor, " dim"]

    def vectors(self, captions: Captions) -> Float[Tensor, "captions dim"]:
        """Return a vector a caption: its projection, scaled to unit length, less the mean."""
        return unit(torch.sparse.mm(_tf_idf(captions, self.idf), self.tokens)) - self.mean


def fit_lsa(captions: Captions, vocabulary: int, dim: int, seed: int) -> Lsa:
    r"""Fit the analysis to captions.

    Counts are weighed by :math:`1 + \log\frac{1 + n}{1 + n_t}`, with :math:`n_t` of :math:`n`
    captions that have token :math:`t`, and rows scaled to unit length. The singular vectors come
    from subspace iteration, begun at random.

    There are fewer singular vectors than ``dim`` where there are fewer captions or tokens.

    Source:
        Deerwester et al., JASIS 1990; the smoothed weight as in scikit-learn; the iteration as in
        Halko et al., SIAM Review 2011, algorithm 4.4.
    """
    counted = [np.unique(caption[1:-1]) for caption in captions]
    having = np.bincount(np.concatenate(counted), minlength=vocabulary)
    idf = torch.from_numpy(1 + np.log((1 + len(captions)) / (1 + having)))
    table = _tf_idf(captions, idf)
    width = min(dim + _MORE, *table.shape)
    sketch = stream(seed, len(captions), _SKETCH).normal(size=(vocabulary, width))
    basis = torch.from_numpy(sketch)
    for _ in range(_ROUNDS):
        left = torch.linalg.qr(torch.sparse.mm(table, basis)).Q
        basis = torch.linalg.qr(torch.sparse.mm(table.t(), left)).Q
    right = torch.linalg.svd(torch.sparse.mm(table, basis), full_matrices=False).Vh
    tokens = (basis @ right.T)[:, :dim] * torch.from_numpy(having > 0)[:, None]
    fresh = Lsa(idf, tokens, tokens.new_zeros(tokens.shape[1]))
    return Lsa(idf, tokens, fresh.vectors(captions).mean(0))


def _tf_idf(
    captions: Captions, idf: Float[Tensor, " vocabulary"]
) -> Float[Tensor, "captions vocabulary"]:
    """Return the sparse table of weighed counts, its rows of unit length."""
    rows = np.repeat(np.arange(len(captions)), [len(caption) - 2 for caption in captions])
    columns = np.concatenate([caption[1:-1] for caption in captions])
    cells, counts = np.unique(rows * len(idf) + columns, return_counts=True)
    rows, columns = np.divmod(cells, len(idf))
    values = counts * idf.numpy()[columns]
    norms = np.sqrt(np.bincount(rows, values**2, minlength=len(captions)))
    return torch.sparse_coo_tensor(
        torch.from_numpy(np.stack([rows, columns])),
        torch.from_numpy(values / norms[rows]),
        (len(captions), len(idf)),
        check_invariants=False,
        is_coalesced=True,
    )
