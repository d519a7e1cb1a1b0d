"""Networks whose similarity is a cosine: of pooled vectors here; what its logits are."""

from jaxtyping import Float
from torch import Tensor

from pc2_baseline.networks.codes import CaptionCodes, ImageCodes
from pc2_baseline.networks.similarity import BlockSimilarity

_WHOLE = 1 - 1e-6


def cosine_logits(
    similarity: Float[Tensor, "*shape"], bound: float = 1.0
) -> Float[Tensor, "*shape"]:
    r"""Turn similarities in :math:`[-b, b]` into logits, :math:`2\,\mathrm{artanh}(s / b)`.

    They rank as the similarities do. They are the logits of :math:`(1 + s / b) / 2`, so that
    :func:`~pc2_baseline.modules.retrieval.ensemble`, which averages what logits stand for, ranks
    by the mean similarity of several networks. No training uses them: margins are in units of
    the similarity itself.
    """
    return 2 * (similarity / bound).clamp(-_WHOLE, _WHOLE).atanh()


class CosineSimilarity(BlockSimilarity):
    """Score by the cosine of the pooled vectors, in [-1, 1].

    There is nothing to split: each rank of a process group computes the whole product.
    """

    def forward(
        self, images: ImageCodes, captions: CaptionCodes, *, logits: bool = False
    ) -> Float[Tensor, "images captions"]:
        """Return the cosines of a block, or their logits."""
        cosine = images.pooled @ captions.pooled.T
        return cosine_logits(cosine) if logits else cosine
