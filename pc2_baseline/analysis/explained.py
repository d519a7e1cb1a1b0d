"""How a run trains with some of its pairs: pseudo-captions, margins and weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int

from pc2_baseline.analysis.truth import Truth, read_division
from pc2_baseline.data.pairs import PairSet
from pc2_baseline.modules.coteaching import DIVISIONS
from pc2_baseline.modules.division import THRESHOLD
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.method import Explaining, PairTraining
from pc2_baseline.training.run_folder import BEST


@dataclass(frozen=True, slots=True)
class Explained:
    """A training pair, and how each network of a method trains with it.

    Attributes:
        row: Its ``pair_index``.
        matched: Whether it is matched; ``None`` where that is not known.
        networks: One entry for each network.
    """

    row: int
    matched: bool | None
    networks: list[PairTraining]


@dataclass(frozen=True, slots=True)
class ExplainedPairs:
    """Pairs drawn at random from both sides of a division.

    Attributes:
        noisy: Pairs that are more probably mismatched, by the mean of the networks' divisions.
        clean: The others.
    """

    noisy: list[Explained]
    clean: list[Explained]

    def every(self) -> list[Explained]:
        """Return the pairs of both sides."""
        return self.noisy + self.clean


def explain_sample(
    run: Path, method: Explaining, train: PairSet, truth: Truth | None, count: int, seed: int
) -> ExplainedPairs | None:
    """Ask a method how it trains with a sample of pairs, by the division of the selected epoch.

    Args:
        run: The run folder.
        method: Its method, the networks of the selected epoch loaded.
        train: Its training split.
        truth: What is known of the pairs.
        count: Pairs of each side at most.
        seed: Seed of the sample.

    Returns:
        ``None`` if the epoch has no division.

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
