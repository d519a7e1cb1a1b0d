"""Pseudo-captions: which clean caption stands in for a noisy pair's, and how well it fits."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pc2_baseline.networks.fused import unit


@dataclass(frozen=True, slots=True)
class PseudoCaptions:
    """The clean captions that stand in for those of noisy pairs.

    Attributes:
        chosen: Row of the clean pairs searched, for each noisy pair.
        correspondence: Cosine of the two, in [0, 1].
    """

    chosen: Int[Tensor, " noisy"]
    correspondence: Float[Tensor, " noisy"]

    @property
    def negatives(self) -> Bool[Tensor, "noisy noisy"]:
        """Pairs of noisy rows whose pseudo-captions differ: only they are negatives."""
        return self.chosen[:, None] != self.chosen[None]


def find_pseudo_captions(
    noisy: Float[Tensor, "noisy width"], clean: Float[Tensor, "clean width"]
) -> PseudoCaptions:
    """Choose for each noisy image the most similar clean pair, by cosine.

    Args:
        noisy: Pseudo-class predictions, or pooled embeddings, of the noisy images. Detached, they
            let no gradient through the correspondence.
        clean: The same of the clean images.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.3.
    """
    cosine = unit(noisy) @ unit(clean).T
    best, chosen = cosine.max(1)
    return PseudoCaptions(chosen, best.clamp(0.0, 1.0))


def rectified(
    clean_prob: Float[np.ndarray, " pairs"],
    stable_prob: Float[np.ndarray, " pairs"],
    is_stable: Bool[np.ndarray, " pairs"],
) -> Float[np.ndarray, " pairs"]:
    r"""Correspondence of clean pairs: :math:`y = w + (1-w)\,w^\circ` where stable, else w.

    Args:
        clean_prob: :math:`w`.
        stable_prob: :math:`w^\circ`, posterior of little oscillation.
        is_stable: :math:`1(w^\circ \ge \tau)`.

    Source:
        PC2 (Duan et al., ACM MM 2024), section 3.4.
    """
    return np.asarray(clean_prob + (1 - clean_prob) * np.where(is_stable, stable_prob, 0.0))
