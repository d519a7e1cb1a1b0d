"""How a peer trains with single pairs: with which caption, margin and weight, for a user to see."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from torch import Tensor

from pc2_baseline.methods.pc2.peers import PeerEpoch
from pc2_baseline.methods.pc2.pseudo_caption import PseudoCaptions
from pc2_baseline.modules.coteaching import Rows
from pc2_baseline.training.method import PairTraining


@dataclass(frozen=True, slots=True)
class Kind:
    """Pairs that a peer learns alike.

    Attributes:
        name: Such as ``clean``.
        weight: Factor of their triplet loss; 0: they are left out.
        by_pseudo_captions: Whether their images learn from pseudo-captions.
    """

    name: str
    rows: Rows
    weight: float
    by_pseudo_captions: bool = False


@dataclass(frozen=True, slots=True)
class Searched:
    """Pseudo-captions of noisy pairs, and how their images learn from them.

    Attributes:
        among: Pairs among which they were searched.
        margins: Margins of the noisy pairs.
        is_counted: Noisy pairs that are learned at all.
    """

    found: PseudoCaptions
    among: Rows
    margins: Float[Tensor, " noisy"]
    is_counted: Bool[Tensor, " noisy"]


def explain(
    own: PeerEpoch,
    peer: str,
    kinds: Sequence[Kind],
    margins_of: Callable[[Tensor], Tensor],
    search: Callable[[Rows], Searched],
) -> list[PairTraining]:
    """Return how a peer would train with some pairs."""
    told = []
    for kind in kinds:
        if not len(kind.rows):
            continue
        if kind.by_pseudo_captions:
            told += _by_pseudo_captions(own, peer, kind, search(kind.rows))
        else:
            margins = margins_of(own.clean_labels(kind.rows)).tolist()
            told += [
                PairTraining(
                    int(row), peer, kind.name, float(own.division.clean_prob[row]), kind.weight,
                    margin, float(own.correspondence[row]),
                )
                for row, margin in zip(kind.rows, margins, strict=True)
            ]  # fmt: skip
    return told


def _by_pseudo_captions(
    own: PeerEpoch, peer: str, kind: Kind, searched: Searched
) -> list[PairTraining]:
    found = searched.found
    columns = searched.margins, found.correspondence, found.chosen, searched.is_counted
    lists = (column.tolist() for column in columns)
    return [
        PairTraining(
            int(row), peer, kind.name, float(own.division.clean_prob[row]),
            kind.weight if is_counted else 0.0, margin, cosine, int(searched.among[chosen]),
        )
        for row, margin, cosine, chosen, is_counted in zip(kind.rows, *lists, strict=True)
    ]  # fmt: skip


def among(rows: Rows, asked: Rows) -> Rows:
    """Return the asked pairs that are among some, in their order."""
    return np.asarray(asked[np.isin(asked, rows)])
