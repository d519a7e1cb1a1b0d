"""Networks whose similarity is a cosine: of pooled vectors here; what its logits are."""

import torch
from jaxtyping import Float
from torch import Tensor

from pc2_baseline.modules.codes import CaptionCodes, ImageCodes
from pc2_baseline.modules.similarity import Similarity

SLACK = 1.01
"""Factor on the largest similarity: rounding does not pass it."""


def cosine_logits(similarity: Float[Tensor, "*shape"], bound: float) -> Float[Tensor, "*shape"]:
    r"""Turn similarities in :math:`[-b, b]` into logits, :math:`2\,\mathrm{artanh}(s / b)`.

    They rank as the similarities do. They are the logits of :math:`(1 + s / b) / 2`, so that
    :func:`~pc2_baseline.modules.retrieval.ensemble`, which averages what logits stand for, ranks
    by the mean similarity of several networks. No training uses them: margins are in units of
    the similarity itself.

    Args:
        similarity: Any similarities.
        bound: More than the largest of them in size.
    """
    return 2 * torch.atanh(similarity / bound)


class PooledSimilarity(Similarity):
    """Cosine of an image's pooled vector and a caption's, in [-1, 1].

    It has no weights and is cheap: every rank of a process group computes all of it.
    """

    def __init__(self) -> None:
        super().__init__(1)

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the cosines of a block, or :func:`cosine_logits`."""
        similarity = images.pooled @ captions.pooled.T
        return cosine_logits(similarity, SLACK) if logits else similarity
