"""Image side of VSRN: graph reasoning over the regions, then a GRU that reads them."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from pc2_baseline.networks.encoders import CaptionEncoder, ImageCodes, WordRows, xavier
from pc2_baseline.networks.fused import unit
from pc2_baseline.networks.pooled import CosineSimilarity
from pc2_baseline.networks.similarity import GraphSettings, MatchingNetwork


class VsrnSettings(GraphSettings):
    """VSRN (Li et al., ICCV 2019)."""

    has_parts: ClassVar[bool] = True

    def network(self, features: int, vocabulary: int) -> MatchingNetwork:
        """Build the network."""
        dim, drops = self.embed_dim, (self.dropout, self.word_dropout)
        images = RegionGraphEncoder(features, dim, self.graph_layers, self.feature_dropout)
        captions = OneWayCaptionEncoder(vocabulary, self.word_dim, dim, *drops)
        return MatchingNetwork(images, captions, CosineSimilarity())


class RegionGraphLayer(nn.Module):
    r"""Add to each region the others, weighted by their relation to it.

    .. math:: v^\star = \mathrm{BN}(W\,R\,g(v)) + v, \quad R = \theta(v)\,\phi(v)^\top / n

    The layer begins as the identity: the batch normalisation's scale is 0.

    Source:
        VSRN (Li et al., ICCV 2019), eq. 2 and 3; batch normalisation and the division by the
        number of regions n as in the authors' code.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.mix = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        nn.init.zeros_(self.norm.weight)

    def forward(
        self, regions: Float[Tensor, "images regions dim"]
    ) -> Float[Tensor, "images regions dim"]:
        """Update all regions of each image."""
        relation = self.query(regions) @ self.key(regions).transpose(1, 2) / regions.shape[1]
        mixed = self.mix(relation @ self.value(regions))
        scaled: Tensor = self.norm(mixed.flatten(0, 1))
        return regions + scaled.view_as(regions)


class RegionGraphEncoder(nn.Module):
    """Project region features, reason over their graph, and read them in order with a GRU.

    Source:
        VSRN (Li et al., ICCV 2019): the last state of the GRU is the image.

    Differs:
        Features are scaled to length 1 along the regions, before the graph and after it, as in the
        authors' code; the paper does not say so.
    """

    def __init__(
        self, feature_dim: int, dim: int, layers: int, feature_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, dim)
        xavier(self)
        self.layers = nn.ModuleList(RegionGraphLayer(dim) for _ in range(layers))
        self.read = nn.GRU(dim, dim, batch_first=True)

    def forward(self, regions: Float[Tensor, "images 36 features"]) -> ImageCodes:
        """Encode the screenshots of a batch."""
        nodes = _along_regions(self.project(self.drop(regions)))
        for layer in self.layers:
            nodes = layer(nodes)
        nodes = _along_regions(nodes)
        _, last = self.read(nodes)
        return ImageCodes(unit(nodes), unit(last[0]))


def _along_regions(
    regions: Float[Tensor, "images regions dim"],
) -> Float[Tensor, "images regions dim"]:
    """Scale each dimension to length 1 over the regions of an image."""
    return unit(regions.transpose(1, 2)).transpose(1, 2).contiguous()


class OneWayCaptionEncoder(CaptionEncoder):
    """A caption encoder with a one-way GRU, whose last state is the caption's vector."""

    attends = False
    both_ways = False

    def pooled(
        self, words: Float[Tensor, "words dim"], rows: WordRows
    ) -> Float[Tensor, "captions dim"]:
        """Return the last word of each caption."""
        last = (rows.lengths.cumsum(0) - 1).to(words.device)
        return words.index_select(0, last)
