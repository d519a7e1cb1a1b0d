"""Image side: regions to unit vectors, and their attention pooling."""

from jaxtyping import Float
from torch import Tensor, nn

from now_builder.formats.features import REGIONS
from pc2_baseline.networks.codes import ImageCodes, xavier
from pc2_baseline.networks.fused import unit


class ImagePooling(nn.Module):
    """Pool regions by self-attention to their mean.

    Source:
        VisualSA of SGRAF (Diao et al., AAAI 2021): batch normalisation over the region slots in
        the local branch and over the width in the global one.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Linear(dim, dim), nn.BatchNorm1d(REGIONS), nn.Tanh(), nn.Dropout(dropout)
        )
        self.whole = nn.Sequential(
            nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.Tanh(), nn.Dropout(dropout)
        )
        self.weigh = nn.Linear(dim, 1)
        xavier(self)

    def forward(self, regions: Float[Tensor, "images 36 dim"]) -> Float[Tensor, "images dim"]:
        """Return one unit vector per image."""
        query = self.whole(regions.mean(1))
        weights = self.weigh(self.local(regions) * query[:, None]).softmax(1)
        return unit((weights * regions).sum(1))


class RegionMean(nn.Module):
    """Pool regions by their mean; it has no weights."""

    def __init__(self, _dim: int, _dropout: float) -> None:
        super().__init__()

    def forward(self, regions: Float[Tensor, "images 36 dim"]) -> Float[Tensor, "images dim"]:
        """Return one unit vector per image."""
        return unit(regions.mean(1))


class ImageEncoder(nn.Module):
    """Project region features to unit vectors and pool them."""

    pooling: type[nn.Module] = ImagePooling

    def __init__(
        self, feature_dim: int, dim: int, dropout: float, feature_dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(feature_dropout)
        self.project = nn.Linear(feature_dim, dim)
        xavier(self)
        self.pool = self.pooling(dim, dropout)

    def forward(self, regions: Float[Tensor, "images 36 features"]) -> ImageCodes:
        """Encode the screenshots of a batch."""
        vectors = unit(self.project(self.drop(regions)))
        return ImageCodes(vectors, self.pool(vectors))


class LocalImageEncoder(ImageEncoder):
    """An image encoder for networks that compare regions alone: the pooled vector is their mean."""

    pooling = RegionMean
