"""The APT-style detector: proposals, region embeddings, prompts tuned by pixels and text."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torchvision.ops import nms

from now_builder.config import Strict
from now_builder.detect import boxes as geometry
from now_builder.detect.base import Proposals
from now_builder.detect.model.clip_resnet import ModifiedResNet
from now_builder.detect.model.patch_features import PatchFeatures
from now_builder.detect.model.roi_align import align
from now_builder.detect.model.text_encoder import DIMENSION
from now_builder.formats.shard import HEIGHT, WIDTH


class ModelConfig(Strict):
    """The architecture, stored beside the weights.

    Attributes:
        input_size: Width and height, in px, to which screenshots are scaled.
        layers: Number of blocks in each layer of the backbone.
        width: Channels of the backbone behind the stem.
        outputs: Width of the attention-pooled embedding, before the projection to 768.
        side: Cells a side of a region behind layer 4.
        sampling: Points a side in each cell of twice that grid, as RoIAlign reads it.
        layer3_stride: 2 as published, 1 for small inputs.
        anchor_sizes: Square roots of the anchors' areas, in input px.
        anchor_ratios: Height over width; screens are full of wide, flat elements.
        rpn_channels: Hidden channels of the proposal network.
        candidates: Anchors kept before suppression.
        overlap: IoU above which suppression drops the weaker of two boxes; lower than the usual 0.7
            since so few are embedded.
        proposals: Boxes kept after suppression in training.
        temperature: Divisor of the cosines.
        look: Scale, relative to the input, of the screenshots that patch features are computed from
            (see :class:`PatchFeatures`); 1: there are no patch features.
        mode: How prompts are tuned.
    """

    size: str
    input_size: tuple[int, int]
    layers: tuple[int, int, int, int]
    width: int
    outputs: int
    side: int
    sampling: int
    layer3_stride: int
    anchor_sizes: tuple[float, ...]
    anchor_ratios: tuple[float, ...] = (0.1, 0.25, 0.5, 1.0, 2.0)
    rpn_channels: int
    candidates: int
    overlap: float
    proposals: int
    temperature: float = 0.01
    look: int = 1
    mode: Literal["shift", "film", "attn"] = "shift"


PROPOSALS = 100
"""Boxes a page that are embedded, unless a user says otherwise."""
BACKGROUND_WEIGHT = 0.2
"""Weight of the background in the classifier's cross-entropy, as in RegionCLIP."""

PAPER = ModelConfig(
    size="paper",
    input_size=(WIDTH, HEIGHT),
    layers=(3, 4, 6, 3),
    width=64,
    outputs=1024,
    side=7,
    sampling=2,
    layer3_stride=2,
    anchor_sizes=(16, 32, 64, 128, 256, 512),
    rpn_channels=1024,
    candidates=2000,
    overlap=0.6,
    proposals=100,
)
TINY = ModelConfig(
    size="tiny",
    input_size=(WIDTH // 4, HEIGHT // 4),
    layers=(1, 1, 1, 1),
    width=12,
    outputs=384,
    side=4,
    sampling=1,
    layer3_stride=1,
    anchor_sizes=(8, 16, 32, 64, 128),
    rpn_channels=64,
    candidates=1000,
    overlap=0.5,
    proposals=64,
    look=2,
)


class RegionProposals(nn.Module):
    """Propose boxes from a C4 map.

    Source:
        Faster R-CNN (Ren et al., NeurIPS 2015), Sec. 3.1.
    """

    shapes: Tensor

    def __init__(self, channels: int, config: ModelConfig, stride: int) -> None:
        super().__init__()
        shapes = geometry.anchor_shapes(config.anchor_sizes, config.anchor_ratios)
        self.register_buffer("shapes", shapes, persistent=False)
        self.stride, self.size = stride, config.input_size
        self.candidates, self.overlap = config.candidates, config.overlap
        self.conv = nn.Conv2d(channels, config.rpn_channels, 3, padding=1)
        self.objectness = nn.Conv2d(config.rpn_channels, len(shapes), 1)
        self.deltas = nn.Conv2d(config.rpn_channels, len(shapes) * 4, 1)
        for layer in (self.conv, self.objectness, self.deltas):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(
        self, maps: Float[Tensor, "n c i j"]
    ) -> tuple[Float[Tensor, "n a"], Float[Tensor, "n a 4"], Float[Tensor, "a 4"]]:
        """Return objectness logits and regression offsets of every anchor, and the anchors."""
        hidden = F.relu(self.conv(maps))
        objectness = self.objectness(hidden).permute(0, 2, 3, 1).flatten(1)
        deltas = self.deltas(hidden).permute(0, 2, 3, 1).reshape(len(maps), -1, 4)
        grid = (int(maps.shape[2]), int(maps.shape[3]))
        return objectness, deltas, geometry.anchors(grid, self.stride, self.shapes)

    def propose(
        self,
        objectness: Float[Tensor, "n a"],
        deltas: Float[Tensor, "n a 4"],
        anchors: Float[Tensor, "a 4"],
        count: int,
    ) -> list[Proposals]:
        """Keep the best boxes of each page after class-agnostic suppression, by objectness."""
        best, places = objectness.float().topk(min(self.candidates, objectness.shape[1]), dim=1)
        offsets = deltas.gather(1, places[:, :, None].expand(-1, -1, 4)).float()
        found = geometry.decode(offsets.flatten(0, 1), anchors[places.flatten()])
        found = geometry.clip(found, self.size).reshape(offsets.shape)
        pages = []
        for boxes, logits in zip(found, best, strict=True):
            kept = nms(boxes, logits, self.overlap)[:count]
            pages.append(Proposals(boxes[kept], logits[kept].sigmoid()))
        return pages


class PromptTuner(nn.Module):
    r"""Cosines between regions and class prompts that each region tunes by its pixels and its text.

    ``shift`` adds one vector per region, :math:`\hat t = t + W_2 \mathrm{ReLU}(W_1 [v; o])`;
    ``film`` scales and shifts, :math:`\hat t = \gamma \odot t + \beta`; ``attn`` lets each prompt
    ask a memory of the two tokens ``v`` and ``o``. All begin as the untuned prompts.

    Source:
        APT (Gu et al., CVPR 2023): frozen prompts adjusted by visual and OCR embeddings.

    Differs:
        APT's formula is not public in a form we could read; these three are ours.
    """

    def __init__(self, mode: Literal["shift", "film", "attn"], dimension: int = DIMENSION) -> None:
        super().__init__()
        self.mode = mode
        hidden = dimension // 4
        outputs = {"shift": dimension, "film": 2 * dimension, "attn": dimension}[mode]
        inputs = dimension if mode == "attn" else 2 * dimension
        self.reduce = nn.Linear(inputs, hidden)
        self.expand = nn.Linear(hidden, outputs)
        nn.init.zeros_(self.expand.weight)
        nn.init.zeros_(self.expand.bias)
        if mode == "attn":
            self.query = nn.Linear(dimension, hidden)
            self.key = nn.Linear(dimension, hidden)

    def forward(
        self,
        visual: Float[Tensor, "n d"],
        text: Float[Tensor, "n d"],
        prompts: Float[Tensor, "classes d"],
    ) -> Float[Tensor, "n classes"]:
        """Return the cosine of each region with each of its tuned prompts.

        Args:
            visual: Unit vectors.
            text: Unit vectors, or zero where a region has no text.
            prompts: Unit vectors, frozen.
        """
        if self.mode == "attn":
            return self._attend(visual, text, prompts)
        tuned = self.expand(F.relu(self.reduce(torch.cat([visual, text], dim=1))))
        if self.mode == "film":
            scale, shift = tuned.chunk(2, dim=1)
            scale = 1 + scale
        else:
            scale, shift = torch.ones_like(tuned), tuned
        # |γ⊙t + β|² and v·(γ⊙t + β) in matrix products, without a tensor of regions x classes x d.
        squared = (
            scale.square() @ prompts.square().T
            + 2 * (scale * shift) @ prompts.T
            + shift.square().sum(dim=1, keepdim=True)
        )
        inner = (visual * scale) @ prompts.T + (visual * shift).sum(dim=1, keepdim=True)
        cosines: Tensor = inner / squared.clamp(min=1e-8).sqrt()
        return cosines

    def _attend(
        self,
        visual: Float[Tensor, "n d"],
        text: Float[Tensor, "n d"],
        prompts: Float[Tensor, "classes d"],
    ) -> Float[Tensor, "n classes"]:
        memory = torch.stack([visual, text], dim=1)
        weights = torch.einsum("ch,nmh->ncm", self.query(prompts), self.key(memory))
        weights = (weights / self.query.out_features**0.5).softmax(dim=2)
        values = self.expand(F.relu(self.reduce(memory)))
        tuned = F.normalize(prompts + torch.einsum("ncm,nmd->ncd", weights, values), dim=2)
        return torch.einsum("nd,ncd->nc", visual, tuned)


class AptDetector(nn.Module):
    """The whole model; its backbone's parameters are named ``visual.*`` as in OpenAI's CLIP.

    Args:
        config: The architecture.
        prompts: Frozen class prompts, unit vectors.

    Source:
        APT (Gu et al., CVPR 2023); region branch and classifier as in RegionCLIP (Zhong et al.,
        CVPR 2022): RoIAlign on C4, layer 4 and attention pooling on regions, cosine to frozen
        prompts, background as a zero logit, class-agnostic box regression.

    Differs:
        The projection to 768 is ours (CLIP's joint space has 1,024), and so are the anchors.
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
        self.rpn = RegionProposals(self.visual.channels, config, self.visual.stride)
        self.projection = nn.Linear(config.outputs, DIMENSION)
        self.regression = nn.Linear(config.outputs, 4)
        nn.init.normal_(self.regression.weight, std=0.001)
        nn.init.zeros_(self.regression.bias)
        self.tuner = PromptTuner(config.mode)
        self.register_buffer("prompts", prompts.clone())
        self.register_buffer("centre", torch.zeros(DIMENSION))
        self.register_buffer("whiten", torch.eye(DIMENSION))
        # Weights on disk have the name "look".
        self.look = PatchFeatures(config.look) if config.look > 1 else None

    @property
    def screen(self) -> tuple[int, int]:
        """Width and height of the screenshots that are read."""
        width, height = self.config.input_size
        return width * self.config.look, height * self.config.look

    def maps(self, screenshots: UInt8[Tensor, "n 3 h w"]) -> Float[Tensor, "n c i j"]:
        """Compute the C4 maps of screenshots of :attr:`screen` or of the input size."""
        pixels = screenshots.float() / 255
        if pixels.shape[3] != self.config.input_size[0]:
            pixels = F.avg_pool2d(pixels, self.config.look)
        return self.visual.features(pixels)

    def propose(self, maps: Float[Tensor, "n c i j"], count: int = PROPOSALS) -> list[Proposals]:
        """Return at most ``count`` class-agnostic boxes of each page."""
        objectness, deltas, anchors = self.rpn(maps)
        return self.rpn.propose(objectness, deltas, anchors, count)

    def pool(
        self, maps: Float[Tensor, "n c i j"], regions: Sequence[Float[Tensor, "_ 4"]]
    ) -> Float[Tensor, "all outputs"]:
        """Embed the regions of each page, all pages' regions in one batch."""
        crops = align(
            maps, regions, 2 * self.config.side, 1 / self.visual.stride, self.config.sampling
        )
        return self.visual.pool(crops.to(self.visual.dtype, memory_format=torch.channels_last))

    def classify(
        self, embedded: Float[Tensor, "n 768"], text: Float[Tensor, "n 768"]
    ) -> Float[Tensor, "n kinds"]:
        """Return class logits of projected regions; the last is the background's, always zero."""
        cosines = self.tuner(F.normalize(embedded, dim=1), text, self.prompts)
        return F.pad(cosines / self.config.temperature, (0, 1))

    def export(
        self,
        embedded: Float[Tensor, "all 768"],
        screenshots: UInt8[Tensor, "n 3 h w"],
        regions: Sequence[Float[Tensor, "_ 4"]],
    ) -> Float[Tensor, "all 768"]:
        """Map projected regions to the features that are stored, from pixels only.

        The map was fitted in training on the train pool's regions.

        Args:
            embedded: Projected regions of all pages in a row.
            screenshots: Screenshots of :attr:`screen`.
            regions: Boxes of each page, in input px.
        """
        if self.look is None:
            stored: Tensor = (embedded - self.centre) @ self.whiten
            return stored
        features: Tensor = self.look(embedded, screenshots, regions)
        return features
