"""The cosine of one vector a screenshot and one a caption: the network that runs anywhere."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from pc2_baseline.networks.encoders import (
    CaptionCodes,
    ImageCodes,
    embed_packed,
    read_words,
    word_rows,
    xavier,
)
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.similarity import BlockSimilarity, EmbeddingSettings, MatchingNetwork

PLACE_DIM = 32
SHARPNESS = 0.1
_WHOLE = 1 - 1e-6


class PooledSettings(EmbeddingSettings):
    """One vector a screenshot and one a caption."""

    image_pooling: Literal["mean", "gpo"] = Field(
        "mean",
        description="Mean of the regions, or their values sorted by size in each dimension with "
        "learned weights (VSE-infinity's generalized pooling).",
    )
    caption_encoder: Literal["words", "gru"] = Field(
        "words", description="Mean of the words' embeddings, or of a GRU's outputs."
    )

    def network(self, features: int, vocabulary: int) -> MatchingNetwork:
        """Build the network."""
        dim, pooling = self.embed_dim, self.image_pooling
        images = PooledImageEncoder(features, dim, pooling, self.feature_dropout)
        drops = self.dropout, self.word_dropout
        captions = PooledCaptionEncoder(
            vocabulary, self.word_dim, dim, self.caption_encoder, *drops
        )
        return MatchingNetwork(images, captions, CosineSimilarity())


class GeneralizedPooling(nn.Module):
    """Sort the vectors' values in each dimension, largest first, and average them by weights.

    The weight of a rank is learned: a GRU reads the sinusoidal codes of all ranks, and a softmax
    follows. It can become the mean, the maximum, or anything between.

    Source:
        VSE-infinity (Chen et al., CVPR 2021), Generalized Pooling Operator; its temperature of the
        softmax is 0.1 and its codes and GRU are 32 wide.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.GRU(PLACE_DIM, PLACE_DIM, batch_first=True, bidirectional=True)
        self.weigh = nn.Linear(PLACE_DIM, 1, bias=False)

    def weights(self, ranks: int) -> Float[Tensor, " ranks"]:
        """Return the weight of each rank; they sum to 1."""
        codes = _place_codes(ranks, self.weigh.weight.device).to(self.weigh.weight.dtype)
        forward, backward = self.read(codes[None])[0][0].chunk(2, dim=-1)
        scores = self.weigh((forward + backward) / 2).squeeze(-1)
        weights: Tensor = (scores / SHARPNESS).softmax(0)
        return weights

    def forward(self, vectors: Float[Tensor, "batch ranks dim"]) -> Float[Tensor, "batch dim"]:
        """Pool the vectors of each row."""
        ordered = vectors.sort(dim=1, descending=True).values
        return torch.einsum("r,brd->bd", self.weights(vectors.shape[1]), ordered)


def _place_codes(places: int, device: torch.device) -> Float[Tensor, "places code"]:
    """Return sines and cosines of each place, by frequencies from 1 down to 1/10000."""
    steps = torch.arange(0, PLACE_DIM, 2, device=device) / PLACE_DIM
    angles = torch.arange(places, device=device)[:, None] * 10_000.0**-steps
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class PooledImageEncoder(nn.Module):
    """Encode a screenshot as one unit vector.

    Note:
        The mean is taken before the projection, with which it commutes: 36 times less work.
    """

    def __init__(
        self,
        feature_dim: int,
        dim: int,
        pooling: Literal["mean", "gpo"] = "mean",
        feature_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, dim)
        xavier(self)
        self.pool = GeneralizedPooling() if pooling == "gpo" else None

    def forward(self, regions: Float[Tensor, "images 36 features"]) -> ImageCodes:
        """Encode the screenshots of a batch; each has one region, its pooled vector."""
        if self.pool is None:
            vectors = self.project(self.drop(regions.mean(1)))
        else:
            vectors = self.pool(self.project(self.drop(regions)))
        pooled = unit(vectors)
        return ImageCodes(pooled[:, None], pooled)


class PooledCaptionEncoder(nn.Module):
    """Encode a caption as one unit vector: the mean of its embeddings or GRU outputs."""

    def __init__(
        self,
        vocabulary: int,
        word_dim: int,
        dim: int,
        reader: Literal["words", "gru"] = "words",
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, word_dim)
        nn.init.uniform_(self.embed.weight, -0.1, 0.1)
        self.dropout = nn.Dropout(dropout)
        self.word_dropout = word_dropout
        self.read: nn.GRU | nn.Linear
        if reader == "gru":
            self.read = nn.GRU(word_dim, dim, batch_first=True, bidirectional=True)
        else:
            self.read = nn.Linear(word_dim, dim)
            xavier(self.read)

    def forward(
        self, tokens: Int[Tensor, "captions words"], lengths: Int[Tensor, " captions"]
    ) -> CaptionCodes:
        """Encode the captions of a batch; each has one word, its pooled vector."""
        rows = word_rows(lengths, tokens.shape[1], tokens.device)
        blanks = self.word_dropout if self.training else 0.0
        if isinstance(self.read, nn.GRU):
            embedded = embed_packed(self.embed, self.dropout, tokens, rows, blanks)
            words = read_words(self.read, embedded, rows)
        else:
            words = self.dropout(self.embed(tokens.flatten()[rows.padded]))
            if blanks:
                blank = torch.rand(len(words), device=words.device) < blanks
                words = words.masked_fill(blank[:, None], 0.0)
        sums = words.new_zeros(len(tokens), words.shape[1]).index_add(0, rows.caption, words)
        means = sums / lengths.to(words)[:, None]
        pooled = unit(means if isinstance(self.read, nn.GRU) else self.read(means))
        return CaptionCodes(pooled[:, None], pooled, torch.ones_like(lengths))


def cosine_logits(
    similarity: Float[Tensor, "*shape"], bound: float = 1.0
) -> Float[Tensor, "*shape"]:
    r"""Turn similarities in :math:`[-b, b]` into logits, :math:`2\,\mathrm{artanh}(s / b)`.

    They rank the same as the similarities. They are the logits of :math:`(1 + s / b) / 2`, so that
    :func:`~pc2_baseline.modules.retrieval.ensemble`, which averages the sigmoids of logits,
    ranks by the mean similarity of several networks. Training does not use them: margins are in
    units of the similarity itself.
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
