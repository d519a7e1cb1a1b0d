"""Define the APT-style detector: proposals, region embeddings, prompts tuned by each region."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torchvision.ops import roi_align

from now_builder.config import Strict
from now_builder.detect import boxes as geometry
from now_builder.detect.model.clip_resnet import ModifiedResNet
from now_builder.detect.model.patch_features import PatchFeatures
from now_builder.detect.model.proposals import PageMaps, Proposals, Pyramid, RegionProposals
from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.formats.shard import HEIGHT, WIDTH


class ModelConfig(Strict):
    """Architecture, stored in the weights' JSON.

    Attributes:
        input_size: Width and height in px to which screenshots are scaled.
        layers: Number of blocks in each layer of the backbone.
        width: Channels of the backbone after the stem.
        outputs: Width of the attention-pooled embedding, before the projection to 768.
        side: Cells per side of a region after layer 4; RoIAlign gives twice as many before it.
        sampling: RoIAlign's sampling points per side of a cell.
        layer3_stride: 2 as published, 1 for small inputs.
        rpn_channels: Channels of the pyramid for proposals.
        candidates: Anchors kept before suppression.
        overlap: IoU above which suppression drops the weaker of two boxes; lower than the usual 0.7
            since so few are embedded.
        proposals: Boxes kept after suppression in training.
        temperature: Divisor of the cosines.
        patches: Whether stored features include :class:`PatchFeatures`.
        words: Whether these include the words that the detector reads.
    """

    size: str
    input_size: tuple[int, int]
    layers: tuple[int, int, int, int]
    width: int
    outputs: int
    side: int
    sampling: int
    layer3_stride: int
    rpn_channels: int
    candidates: int
    overlap: float
    proposals: int
    temperature: float = 0.01
    patches: bool = False
    words: bool = False


PROPOSALS = 100
"""Number of boxes per page that are embedded."""

PAPER = ModelConfig(
    size="paper", input_size=(WIDTH, HEIGHT), layers=(3, 4, 6, 3), width=64, outputs=1024, side=7,
    sampling=2, layer3_stride=2, rpn_channels=256, candidates=2000, overlap=0.6, proposals=100,
)  # fmt: skip
TINY = ModelConfig(
    size="tiny", input_size=(WIDTH // 2, HEIGHT // 2), layers=(1, 1, 1, 1), width=12, outputs=384,
    side=4, sampling=1, layer3_stride=1, rpn_channels=64, candidates=1000, overlap=0.5,
    proposals=100, temperature=0.03, patches=True,
)  # fmt: skip


class PromptTuner(nn.Module):
    r"""Compute cosines between regions and class prompts that each region adjusts.

    To each prompt ``t`` it adds a vector of the region's pixels ``v`` and text ``o``,
    :math:`\hat t = t + W_2 \mathrm{ReLU}(W_1 [v; o])`, which is zero before training.

    Source:
        APT (Gu et al., CVPR 2023): frozen prompts adjusted by visual and OCR embeddings.

    Differs:
        The exact formula of APT was not available to us; this one is ours.
    """

    def __init__(self, dimension: int = DIMENSION) -> None:
        super().__init__()
        self.reduce = nn.Linear(2 * dimension, dimension // 4)
        self.expand = nn.Linear(dimension // 4, dimension)
        nn.init.zeros_(self.expand.weight)
        nn.init.zeros_(self.expand.bias)

    def forward(
        self,
        visual: Float[Tensor, "n d"],
        text: Float[Tensor, "n d"],
        prompts: Float[Tensor, "classes d"],
    ) -> Float[Tensor, "n classes"]:
        """Return the cosine of each region with each adjusted prompt; inputs are unit vectors."""
        shift = self.expand(F.relu(self.reduce(torch.cat([visual, text], dim=1))))
        # |t + β|² and v·(t + β) as matrix products, without a tensor of regions x classes x d.
        squared = (
            torch.ones_like(shift) @ prompts.square().T
            + 2 * shift @ prompts.T
            + shift.square().sum(dim=1, keepdim=True)
        )
        inner = visual @ prompts.T + (visual * shift).sum(dim=1, keepdim=True)
        cosines: Tensor = inner / squared.clamp(min=1e-8).sqrt()
        return cosines


class AptDetector(nn.Module):
    """The complete detector; the backbone's parameters are named ``visual.*`` as in OpenAI's CLIP.

    Source:
        APT (Gu et al., CVPR 2023); region branch and classifier as in RegionCLIP (Zhong et al.,
        CVPR 2022): RoIAlign on C4, layer 4 and attention pooling on regions, cosine to frozen
        prompts, background as a zero logit, class-agnostic box regression.

    Differs:
        Ours are the projection to 768 (CLIP's joint space has 1,024), the pyramid, the anchors, and
        the use of a region's place and size for its class.
    """

    prompts: Tensor
    centre: Tensor
    whiten: Tensor

    def __init__(self, config: ModelConfig, prompts: Float[Tensor, "classes 768"]) -> None:
        super().__init__()
        self.config = config
        self.visual = ModifiedResNet(
            config.layers, config.width, config.outputs, config.side, config.layer3_stride
        )
        self.neck = Pyramid(self.visual.channels, config.rpn_channels)
        self.rpn = RegionProposals(
            config.rpn_channels, config.input_size, self.visual.stride, config.candidates,
            config.overlap,
        )  # fmt: skip
        self.projection = nn.Linear(config.outputs, DIMENSION)
        self.placing = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, DIMENSION))
        self.regression = nn.Linear(config.outputs, 4)
        nn.init.normal_(self.regression.weight, std=0.001)
        nn.init.zeros_(self.regression.bias)
        self.tuner = PromptTuner()
        self.register_buffer("prompts", prompts.clone())
        self.register_buffer("centre", torch.zeros(DIMENSION))
        self.register_buffer("whiten", torch.eye(DIMENSION))
        self.patches = PatchFeatures(words=config.words) if config.patches else None

    def maps(self, pixels: Float[Tensor, "n 3 h w"] | UInt8[Tensor, "n 3 h w"]) -> PageMaps:
        """Compute the maps of screenshots of the input size, in [0, 255] or floats in [0, 1]."""
        if not pixels.is_floating_point():
            pixels = pixels.float().div_(255)
        maps: PageMaps = self.neck(self.visual.features(pixels))
        return maps

    def propose(self, maps: PageMaps, count: int = PROPOSALS) -> list[Proposals]:
        """Return at most ``count`` class-agnostic boxes per page."""
        objectness, deltas, anchors = self.rpn(maps)
        return self.rpn.propose(objectness, deltas, anchors, count)

    def pool(
        self, maps: PageMaps, regions: Sequence[Float[Tensor, "_ 4"]]
    ) -> Float[Tensor, "all outputs"]:
        """Embed the regions of all pages in one batch."""
        cells, points = 2 * self.config.side, self.config.sampling
        crops = align(maps.regions, regions, cells, 1 / self.visual.stride, points)
        return self.visual.pool(crops.to(self.visual.dtype, memory_format=torch.channels_last))

    def classify(
        self,
        embedded: Float[Tensor, "n 768"],
        text: Float[Tensor, "n 768"],
        boxes: Float[Tensor, "n 4"],
    ) -> Float[Tensor, "n kinds"]:
        """Return class logits of projected regions; the last, for background, is always zero."""
        placed = embedded + self.placing(geometry.describe(boxes, self.config.input_size))
        cosines = self.tuner(F.normalize(placed, dim=1), text, self.prompts)
        return F.pad(cosines / self.config.temperature, (0, 1))

    def export(
        self,
        embedded: Float[Tensor, "all 768"],
        screenshots: UInt8[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> Float[Tensor, "all 768"]:
        """Map projected regions to the stored features, which depend on pixels only.

        The map was fitted to regions of the train pool.
        """
        if self.patches is None:
            stored: Tensor = (embedded - self.centre) @ self.whiten
            return stored
        features: Tensor = self.patches(embedded, screenshots, regions)
        return features


def align(
    maps: Float[Tensor, "n c i j"],
    regions: Sequence[Float[Tensor, "_ 4"]],
    cells: int,
    scale: float,
    points: int,
) -> Float[Tensor, "all c cells cells"]:
    """Crop regions from maps by RoIAlign.

    Args:
        maps: Feature maps, one per page.
        regions: Boxes of each page, in px.
        cells: Cells per side of each region.
        scale: Map cells per px.
        points: Sampling points per side of each cell; they are averaged.

    Source:
        Mask R-CNN (He et al., ICCV 2017), with the half-pixel shift of detectron2.

    Differs:
        Without gradients on a CPU, each cell is a sum over the 4 ``points``² map cells around its
        points by ``embedding_bag``, which uses all cores and the ``channels_last`` layout of maps
        and crops; torchvision's operator works on one core, channel by channel.
    """
    if maps.device.type != "cpu" or torch.is_grad_enabled():
        crops: Tensor = roi_align(maps.float(), list(regions), cells, scale, points, aligned=True)
        return crops
    count, channels, rows, columns = maps.shape
    boxes = torch.cat(list(regions)).float() * scale - 0.5
    lengths = torch.tensor([len(page) for page in regions])
    page = torch.repeat_interleave(torch.arange(count), lengths)[:, None, None, None, None]
    y, part_y = _between(boxes[:, 1], boxes[:, 3], rows, cells, points)
    x, part_x = _between(boxes[:, 0], boxes[:, 2], columns, cells, points)
    places = (page * rows + y[:, :, None, :, None]) * columns + x[:, None, :, None, :]
    parts = part_y[:, :, None, :, None] * part_x[:, None, :, None, :]
    each = (2 * points) ** 2
    summed = F.embedding_bag(
        places.reshape(-1, each),
        maps.permute(0, 2, 3, 1).reshape(-1, channels),
        mode="sum",
        per_sample_weights=parts.reshape(-1, each).to(maps.dtype),
    )
    return summed.reshape(len(boxes), cells, cells, channels).permute(0, 3, 1, 2)


def _between(
    low: Tensor, high: Tensor, length: int, cells: int, points: int
) -> tuple[Tensor, Tensor]:
    """Return the two map cells around each point along one axis, and their weights."""
    steps = (torch.arange(cells * points) + 0.5) / (cells * points)
    place = low[:, None] + steps * (high - low)[:, None]
    inside = (place >= -1) & (place <= length)
    place = place.clamp(0, length - 1)
    first = place.floor()
    share = place - first
    index = torch.stack([first, (first + 1).clamp(max=length - 1)], dim=2).long()
    weight = torch.stack([1 - share, share], dim=2) * inside[:, :, None] / points
    return index.reshape(len(low), cells, -1), weight.reshape(len(low), cells, -1)
