"""Losses of detector training: matching, sampling, proposals, regions, appearance."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torchvision.ops import box_iou

from now_builder.detect import boxes as geometry
from now_builder.detect.model.apt import BACKGROUND_WEIGHT
from now_builder.detect.model.text_encoder import DIMENSION

_FOREGROUND, _BACKGROUND = 0.6, 0.3
_REGION_FOREGROUND = 0.5
_IGNORED = 0.5


@dataclass(frozen=True, slots=True)
class Targets:
    """Training targets of one page, in input px.

    Attributes:
        boxes: Boxes of the labelled elements.
        ignored: Boxes of visible elements of no class: neither foreground nor background.
        texts: Boxes of the page's strings.
        vectors: Embeddings of the strings.
    """

    boxes: Float[Tensor, "n 4"]
    classes: Int64[Tensor, " n"]
    ignored: Float[Tensor, "i 4"]
    texts: Float[Tensor, "t 4"]
    vectors: Float[Tensor, "t 768"]

    def to(self, device: torch.device) -> "Targets":
        """Copy all tensors to a device."""
        return Targets(*(getattr(self, name).to(device) for name in self.__slots__))


def match(
    boxes: Float[Tensor, "n 4"], targets: Targets
) -> tuple[Float[Tensor, " n"], Int64[Tensor, " n"], Bool[Tensor, " n"]]:
    """Match boxes to labelled elements.

    Returns:
        Of each box the best overlap (IoU), the labelled element it is with, and whether the box is
        ignored: it lies on an element of no class and on no labelled one.
    """
    if len(targets.boxes):
        overlap, element = box_iou(boxes, targets.boxes).max(dim=1)
    else:
        overlap = boxes.new_zeros(len(boxes))
        element = torch.zeros(len(boxes), dtype=torch.int64, device=boxes.device)
    ignored = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    if len(targets.ignored):
        ignored = box_iou(boxes, targets.ignored).amax(dim=1) > _IGNORED
    return overlap, element, ignored & (overlap < _REGION_FOREGROUND)


def rpn_loss(
    objectness: Float[Tensor, "views a"],
    deltas: Float[Tensor, "views a 4"],
    anchors: Float[Tensor, "a 4"],
    targets: Sequence[Targets],
    generator: torch.Generator,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the losses of 128 sampled anchors a page.

    Args:
        objectness: Logits; the views of the same pages one after the other.
        deltas: Regression offsets.
        anchors: Anchor boxes in input px.
        targets: One per page; used for each of its views.
        generator: Source of randomness.

    Returns:
        Binary cross-entropy of all, and smooth L1 of the positive ones.

    Source:
        Faster R-CNN (Ren et al., NeurIPS 2015), Sec. 3.1.2.

    Differs:
        Positive from an overlap of 0.6 (flat elements rarely reach 0.7), 128 anchors, not 256.
    """
    score, box, pages = [], [], len(objectness)
    matched = [_match_anchors(anchors, page) for page in targets]
    for row, (logits, offsets) in enumerate(zip(objectness, deltas, strict=True)):
        page = targets[row % len(targets)]
        positive, negative, element = matched[row % len(targets)]
        chosen = _draw(positive, 64, generator)
        rest = _draw(negative, 128 - len(chosen), generator)
        both = torch.cat([chosen, rest])
        wanted = positive[both].to(logits.dtype)
        score.append(F.binary_cross_entropy_with_logits(logits[both], wanted))
        if len(chosen):
            goal = geometry.encode(page.boxes[element[chosen]], anchors[chosen])
            box.append(F.smooth_l1_loss(offsets[chosen], goal, beta=1.0, reduction="sum") / 128)
    zero = deltas.sum() * 0
    return torch.stack(score).sum() / pages, sum(box, start=zero) / pages


def _match_anchors(
    anchors: Float[Tensor, "a 4"], targets: Targets
) -> tuple[Bool[Tensor, " a"], Bool[Tensor, " a"], Int64[Tensor, " a"]]:
    """Find which anchors are positive, which negative, and the element that each is with.

    The best anchor of each element is positive, however little they overlap.
    """
    overlap, element, ignored = match(anchors, targets)
    positive = overlap >= _FOREGROUND
    if len(targets.boxes):
        best = box_iou(targets.boxes, anchors).argmax(dim=1)
        positive[best] = True
        element[best] = torch.arange(len(best), device=best.device)
    return positive, (overlap < _BACKGROUND) & ~positive & ~ignored, element


@dataclass(frozen=True, slots=True)
class Sample:
    """Regions drawn from one page for the region losses.

    Attributes:
        boxes: Boxes in input px.
        classes: Class of each; the number of classes stands for background.
        goals: Box of the element that each is on; its own for background.
    """

    boxes: Float[Tensor, "r 4"]
    classes: Int64[Tensor, " r"]
    goals: Float[Tensor, "r 4"]


def sample_regions(
    proposals: Float[Tensor, "n 4"],
    targets: Targets,
    count: int,
    background: int,
    generator: torch.Generator,
) -> Sample:
    """Draw ``count`` regions, at most half of them on labelled elements.

    Args:
        proposals: Boxes in input px; the labelled boxes themselves are added.
        targets: Targets of the page.
        count: Number of regions to draw; fewer where there are fewer.
        background: Class number that stands for background.
        generator: Source of randomness.
    """
    everything = torch.cat([proposals, targets.boxes])
    overlap, element, ignored = match(everything, targets)
    positive = overlap >= _REGION_FOREGROUND
    chosen = _draw(positive, count // 2, generator)
    rest = _draw(~positive & ~ignored, count - len(chosen), generator)
    both = torch.cat([chosen, rest])
    classes = torch.full_like(both, background)
    goals = everything[both].clone()
    if len(chosen):
        classes[: len(chosen)] = targets.classes[element[chosen]]
        goals[: len(chosen)] = targets.boxes[element[chosen]]
    return Sample(everything[both], classes, goals)


def region_loss(
    logits: Float[Tensor, "n kinds"],
    offsets: Float[Tensor, "n 4"],
    sample: Sample,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the losses of sampled regions.

    Returns:
        Weighted cross-entropy of all, and smooth L1 of those that are not background.

    Source:
        RegionCLIP (Zhong et al., CVPR 2022): background weight 0.2.
    """
    weights = logits.new_ones(logits.shape[1])
    weights[-1] = BACKGROUND_WEIGHT
    score = F.cross_entropy(logits, sample.classes, weight=weights)
    positive = sample.classes < logits.shape[1] - 1
    goal = geometry.encode(sample.goals[positive], sample.boxes[positive])
    box = F.smooth_l1_loss(offsets[positive], goal, beta=1.0, reduction="sum")
    return score, box / max(len(logits), 1)


def _draw(
    mask: Bool[Tensor, " n"], count: int, generator: torch.Generator
) -> Int64[Tensor, " drawn"]:
    places = mask.nonzero().flatten()
    order = torch.randperm(len(places), generator=generator)[:count]
    return places[order.to(places.device)]


class Appearance(nn.Module):
    """Auxiliary losses that keep a region's appearance in its embedding; used in training only.

    A linear decoder paints a thumbnail of the region from its embedding, and two views of the same
    region (recoloured, shifted) must find each other among all regions of the batch.

    Source:
        The contrast is InfoNCE (van den Oord et al., 2018) as in SimCLR (Chen et al., ICML 2020).

    Differs:
        Not in APT. A detector trained on nothing but kinds of elements forgets what a picture
        shows, and the retrieval model downstream needs just that. Pixels only, no text.
    """

    def __init__(self, thumbnail: int = 12, width: int = 128) -> None:
        super().__init__()
        self.thumbnail = thumbnail
        self.paint = nn.Linear(DIMENSION, 3 * thumbnail**2)
        self.view = nn.Linear(DIMENSION, width)

    def painting_loss(
        self, embedded: Float[Tensor, "n 768"], thumbnails: Float[Tensor, "n 3 t t"]
    ) -> Float[Tensor, ""]:
        """Compute the mean squared error of the painted thumbnail, of pixel values in [0, 1]."""
        painted = self.paint(embedded).unflatten(1, thumbnails.shape[1:])
        return F.mse_loss(painted, thumbnails)

    def view_loss(
        self, one: Float[Tensor, "n 768"], two: Float[Tensor, "n 768"], temperature: float = 0.1
    ) -> Float[Tensor, ""]:
        """Compute InfoNCE in both directions between two views of the same regions."""
        left, right = F.normalize(self.view(one), dim=1), F.normalize(self.view(two), dim=1)
        logits = left @ right.T / temperature
        goal = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2
