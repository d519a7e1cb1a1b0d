"""Training pairs for a page of examples: the surest of a division, and an explained sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from now_builder.formats.pair_statistics import read_clean_prob
from pc2_baseline.analysis.truth import Truth, read_division
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.division import THRESHOLD
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.method import Explaining, PairTraining
from pc2_baseline.training.run_folder import BEST


@dataclass(frozen=True, slots=True)
class Judged:
    """A training pair in a division, and whether it is matched if that is known."""

    row: int
    clean_prob: float
    matched: bool | None


@dataclass(frozen=True, slots=True)
class Surest:
    """Pairs with the lowest and the highest clean probability of an epoch, the surest first."""

    epoch: int
    mismatched: list[Judged]
    matched: list[Judged]

    def every(self) -> list[Judged]:
        """Return the pairs of both ends."""
        return self.mismatched + self.matched


def read_surest(run: Path, release: Path, truth: Truth | None, count: int) -> Surest | None:
    """Return the pairs that the division of the selected epoch is surest about.

    Returns:
        ``None`` if the epoch has no division.

    Raises:
        FormatError: If the division cannot be read or is of another release.
    """
    epoch = read_state(run / BEST).best_epoch
    if not (run / DIVISIONS / f"{epoch:05d}.safetensors").exists():
        return None
    clean_prob = np.array(list(read_clean_prob(run, release).values()))
    return Surest(epoch, *ends(clean_prob, truth, count))


def ends(
    clean_prob: Float[np.ndarray, " pairs"], truth: Truth | None, count: int
) -> tuple[list[Judged], list[Judged]]:
    """Return the ``count`` pairs with the lowest and with the highest clean probability.

    Of equal probabilities the lower row counts as the lower; each end has at most half of all.
    """
    count = min(count, len(clean_prob) // 2)
    order = np.argsort(clean_prob, kind="stable")

    def judged(row: int) -> Judged:
        return Judged(row, float(clean_prob[row]), truth.matched_or_none(row) if truth else None)

    return (
        [judged(int(row)) for row in order[:count]],
        [judged(int(row)) for row in order[::-1][:count]],
    )


@dataclass(frozen=True, slots=True)
class Explained:
    """A training pair, whether it is matched if known, and how each network trains with it."""

    row: int
    matched: bool | None
    networks: list[PairTraining]


@dataclass(frozen=True, slots=True)
class ExplainedPairs:
    """Pairs drawn at random from both sides of a division, the mean of the networks' divisions."""

    noisy: list[Explained]
    clean: list[Explained]

    def every(self) -> list[Explained]:
        """Return the pairs of both sides."""
        return self.noisy + self.clean


def explain_sample(
    run: Path, method: Explaining, train: PairSet, truth: Truth | None, count: int, seed: int
) -> ExplainedPairs | None:
    """Let a method explain a sample of pairs, drawn by the division of the selected epoch.

    Each side of the division has at most ``count`` of them. Without a division, return ``None``.

    Raises:
        FormatError: If the division cannot be read.
    """
    epoch = read_state(run / BEST).best_epoch
    file = run / DIVISIONS / f"{epoch:05d}.safetensors"
    if not file.exists():
        return None
    kept = {name: torch.tensor(values) for name, values in read_division(file, len(train)).items()}
    is_noisy = kept["clean_prob"].numpy() <= THRESHOLD
    order = np.random.default_rng(seed).permutation(len(is_noisy))
    noisy, clean = (order[side[order]][:count] for side in (is_noisy, ~is_noisy))
    found = method.explain_pairs(train, np.sort(np.append(noisy, clean)), {DIVISIONS: kept})
    return ExplainedPairs(_group(noisy, found, truth), _group(clean, found, truth))


def _group(
    rows: Int[np.ndarray, " rows"], found: Sequence[PairTraining], truth: Truth | None
) -> list[Explained]:
    return [
        Explained(
            int(row),
            truth.matched_or_none(int(row)) if truth else None,
            [one for one in found if one.row == row],
        )
        for row in rows
    ]
