"""The training pairs that a run is surest about."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from now_builder.formats.pair_statistics import read_clean_prob
from pc2_baseline.analysis.truth import Truth
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import BEST


@dataclass(frozen=True, slots=True)
class Judged:
    """A training pair as a division has it.

    Attributes:
        row: Its ``pair_index``.
        clean_prob: Probability that it is clean.
        matched: Whether it is matched; ``None`` where that is not known.
    """

    row: int
    clean_prob: float
    matched: bool | None


@dataclass(frozen=True, slots=True)
class Surest:
    """Pairs at both ends of a division; the surest first.

    Attributes:
        epoch: The selected epoch, from 0.
        mismatched: Pairs with the lowest clean probability.
        matched: Pairs with the highest.
    """

    epoch: int
    mismatched: list[Judged]
    matched: list[Judged]

    def every(self) -> list[Judged]:
        """Return the pairs of both ends."""
        return self.mismatched + self.matched


def read_surest(run: Path, release: Path, truth: Truth | None, count: int) -> Surest | None:
    """Read the pairs that the division of the selected epoch is surest about.

    Args:
        run: The run folder.
        release: Its release, one of ours.
        truth: What is known of the pairs.
        count: Pairs at each end, at most half of all.

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
    """Take the pairs with the lowest and with the highest clean probability.

    Args:
        clean_prob: Clean probability of each pair; of equal ones the lower row counts as the lower.
        truth: What is known of the pairs.
        count: Pairs at each end, at most half of all.
    """
    count = min(count, len(clean_prob) // 2)
    order = np.argsort(clean_prob, kind="stable")

    def judged(row: int) -> Judged:
        return Judged(row, float(clean_prob[row]), truth.matched_or_none(row) if truth else None)

    return (
        [judged(int(row)) for row in order[:count]],
        [judged(int(row)) for row in order[::-1][:count]],
    )
