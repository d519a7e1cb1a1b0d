"""Training pairs for a page of examples: the surest of a division, and an explained sample."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from pc2_baseline.analysis.truth import Truth, read_division
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.division import THRESHOLD
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.method import Explaining, PairTraining
from pc2_baseline.training.run_folder import BEST


@dataclass(frozen=True, slots=True)
class SampledPair:
    """A training pair in a division.

    Attributes:
        matched: Whether it is matched, if that is known.
        networks: How each network trains with it, if the method explains that.
    """

    row: int
    clean_prob: float
    matched: bool | None
    networks: list[PairTraining]


@dataclass(frozen=True, slots=True)
class BestDivision:
    """The division of the selected epoch, the mean of the networks' divisions.

    Attributes:
        statistics: Its arrays by name.
        threshold: Clean probability above which pairs are clean.
    """

    epoch: int
    statistics: dict[str, np.ndarray]
    truth: Truth | None
    threshold: float = THRESHOLD

    def surest(self, count: int) -> tuple[list[SampledPair], list[SampledPair]]:
        """Return the ``count`` pairs with the lowest and with the highest clean probability.

        The surest come first. Of equal probabilities the lower row counts as the lower; each end
        has at most half of all pairs.
        """
        clean_prob = self.statistics["clean_prob"]
        count = min(count, len(clean_prob) // 2)
        order = np.argsort(clean_prob, kind="stable")
        return self._pairs(order[:count]), self._pairs(order[::-1][:count])

    def explained(
        self, method: Explaining, train: PairSet, count: int, seed: int
    ) -> tuple[list[SampledPair], list[SampledPair]]:
        """Let a method explain at most ``count`` noisy and ``count`` clean pairs, at random."""
        is_noisy = self.statistics["clean_prob"] <= self.threshold
        order = np.random.default_rng(seed).permutation(len(is_noisy))
        noisy, clean = (order[side[order]][:count] for side in (is_noisy, ~is_noisy))
        kept = {name: torch.tensor(values) for name, values in self.statistics.items()}
        told = method.explain_pairs(train, np.sort(np.append(noisy, clean)), {DIVISIONS: kept})
        return self._pairs(noisy, told), self._pairs(clean, told)

    def _pairs(self, rows: np.ndarray, told: Iterable[PairTraining] = ()) -> list[SampledPair]:
        clean_prob: Float[np.ndarray, " pairs"] = self.statistics["clean_prob"]
        return [
            SampledPair(
                int(row),
                float(clean_prob[row]),
                self.truth.matched_or_none(int(row)) if self.truth else None,
                [one for one in told if one.row == row],
            )
            for row in rows
        ]


def read_best_division(
    run: Path, pairs: int, truth: Truth | None, threshold: float = THRESHOLD
) -> BestDivision | None:
    """Read the division of the selected epoch; ``None`` if it has none.

    Raises:
        FormatError: If the division cannot be read or is of another number of pairs.
    """
    epoch = read_state(run / BEST).best_epoch
    file = run / DIVISIONS / f"{epoch:05d}.safetensors"
    if not file.exists():
        return None
    return BestDivision(epoch, read_division(file, pairs), truth, threshold)
