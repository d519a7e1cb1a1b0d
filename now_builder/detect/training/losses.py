"""Compute the losses of detector training: matching, proposals, sampled regions, appearance."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torchvision.ops import box_area, box_iou, generalized_box_iou_loss

from now_builder.detect import boxes as geometry
from now_builder.detect.model.proposals import Anchors
from now_builder.detect.model.text_encoder import DIMENSION

_REGION_FOREGROUND = 0.5
_IGNORED = 0.5
_NEAR_IGNORED = 0.4
_SUREST, _WELL = 300, 0.7
_BACKGROUND_WEIGHT = 0.4
"""Twice RegionCLIP's weight, which lets too much background into the 36 regions."""
THUMBNAIL = 12
"""Side of the painted thumbnails in px."""
_TEMPERATURE = 0.1
_RARE = 20  # Number of elements below which the weight of a class stays the same


@dataclass(frozen=True, slots=True)
class Targets:
    """Training targets of one page; boxes are in input px.

    ``ignored`` elements have no class: they are neither foreground nor background. ``vectors`` are
    the embeddings of the strings in ``texts``.
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
        For each box the largest overlap (IoU), its labelled element, and whether the box is
        ignored because it lies on an element without a class and on no labelled one.
    """
    none = boxes.new_zeros(len(boxes))
    overlap, element = none, none.long()
    if len(targets.boxes):
        overlap, element = box_iou(boxes, targets.boxes).max(dim=1)
    ignored = (box_iou(boxes, targets.ignored) > _IGNORED).any(dim=1)
    return overlap, element, ignored & (overlap < _REGION_FOREGROUND)


def proposal_loss(
    objectness: Float[Tensor, "views a"],
    deltas: Float[Tensor, "views a 4"],
    anchors: Anchors,
    targets: Sequence[Targets],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the losses of the proposals, divided by the number of positive anchors.

    Returns:
        Quality focal loss of positive and negative anchors (the target of a positive one is the
        overlap of its box with the element), and GIoU loss of the positive ones' boxes.

    Source:
        Generalized focal loss (Li et al., NeurIPS 2020), Sec. 3, with beta 2; GIoU (Rezatofighi et
        al., CVPR 2019).

    Differs:
        Anchors whose predicted box fits an element well are not negatives, whatever their shape.
    """
    assigned = [assign(anchors, page) for page in targets]
    score, box, count = deltas.sum() * 0, deltas.sum() * 0, 0
    for row, (logits, offsets) in enumerate(zip(objectness, deltas, strict=True)):
        page = targets[row % len(targets)]
        element, negative = assigned[row % len(targets)]
        chosen = (element >= 0).nonzero().flatten()
        decoded = geometry.decode(offsets[chosen], anchors.boxes[chosen])
        goal = page.boxes[element[chosen]]
        box = box + generalized_box_iou_loss(decoded, goal, reduction="sum")
        overlap = geometry.paired_iou(decoded, goal).detach()
        score = score + _quality_focal(logits[chosen], overlap)
        hard = negative & ~_fits_well(logits, offsets, anchors, page)
        score = score + _quality_focal(logits[hard], torch.zeros_like(logits[hard]))
        count += len(chosen)
    return score / max(count, 1), box / max(count, 1)


def assign(anchors: Anchors, targets: Targets) -> tuple[Int64[Tensor, " a"], Bool[Tensor, " a"]]:
    """Assign anchors to elements by shape and place.

    An element gets the anchors of the most similar shape (by the logarithms of width and height)
    within one stride of its centre, at least one. Of two elements the smaller one gets the anchor.

    Returns:
        For each anchor its element, -1 for none, and whether it is negative: without an element and
        not on an ignored one.
    """
    element = torch.full_like(anchors.shape, -1)
    negative = ~(box_iou(anchors.boxes, targets.ignored) >= _NEAR_IGNORED).any(dim=1)
    if not len(targets.boxes):
        return element, negative
    order = box_area(targets.boxes).argsort(stable=True)
    boxes = targets.boxes[order]
    sides = (boxes[:, 2:] - boxes[:, :2]).clamp(min=1)
    difference = (sides.log()[:, None] - anchors.shapes.log()[None]).abs().sum(dim=2)
    shaped = difference.argmin(dim=1)[:, None] == anchors.shape[None]
    centres = (anchors.boxes[:, :2] + anchors.boxes[:, 2:]) / 2
    apart = (centres[None] - ((boxes[:, :2] + boxes[:, 2:]) / 2)[:, None]).abs()
    inside = (centres[None] >= boxes[:, None, :2]) & (centres[None] <= boxes[:, None, 2:])
    candidate = shaped & (apart <= anchors.stride[:, None]).all(dim=2) & inside.all(dim=2)
    nearest = apart.sum(dim=2).masked_fill(~shaped, torch.inf).argmin(dim=1)
    without = ~candidate.any(dim=1)
    candidate[without, nearest[without]] = True
    positive = candidate.any(dim=0)
    element[positive] = order[candidate.int().argmax(dim=0)[positive]]
    return element, negative & ~positive


def _quality_focal(logits: Float[Tensor, " n"], goal: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    away = (goal - logits.sigmoid()).abs().square()
    losses = F.binary_cross_entropy_with_logits(logits, goal, reduction="none")
    return (away * losses).sum()


@torch.no_grad()
def _fits_well(logits: Tensor, offsets: Tensor, anchors: Anchors, targets: Targets) -> Tensor:
    """Return a mask of the most confident anchors whose predicted box fits an element well."""
    well = torch.zeros(len(logits), dtype=torch.bool, device=logits.device)
    if len(targets.boxes):
        surest = logits.topk(min(_SUREST, len(logits))).indices
        decoded = geometry.decode(offsets[surest], anchors.boxes[surest])
        well[surest] = box_iou(decoded, targets.boxes).amax(dim=1) > _WELL
    return well


@dataclass(frozen=True, slots=True)
class Sample:
    """Regions drawn from one page for the region losses.

    Attributes:
        boxes: Boxes in input px.
        classes: Class of each; the number of classes for background.
        goals: Box of each region's element; of a background region, its own box.
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
    """Draw ``count`` regions from proposals and labels, at most half on labelled elements."""
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


def class_weights(classes: Sequence[Sequence[int]], count: int) -> Float[Tensor, " kinds"]:
    """Weight classes by the root of their inverse frequency; the mean over elements is 1."""
    numbers = torch.tensor([number for page in classes for number in page], dtype=torch.int64)
    shown = torch.bincount(numbers, minlength=count).double()
    weights = (shown.sum() / shown.clamp(min=_RARE)).sqrt()
    weights = weights * (shown.sum() / (weights * shown).sum().clamp(min=1e-9))
    return torch.cat([weights, weights.new_tensor([_BACKGROUND_WEIGHT])]).float()


def region_loss(
    logits: Float[Tensor, "n kinds"],
    offsets: Float[Tensor, "n 4"],
    sample: Sample,
    weights: Float[Tensor, " kinds"],
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Compute the losses of sampled regions.

    Returns:
        Weighted cross-entropy of all, and mean GIoU loss of those that are not background.

    Source:
        RegionCLIP (Zhong et al., CVPR 2022).

    Differs:
        Classes are weighted by rarity, and the background twice as much.
    """
    score = F.cross_entropy(logits, sample.classes, weight=weights)
    positive = sample.classes < logits.shape[1] - 1
    decoded = geometry.decode(offsets[positive], sample.boxes[positive])
    box = generalized_box_iou_loss(decoded, sample.goals[positive], reduction="sum")
    return score, box / positive.sum().clamp(min=1)


def _draw(mask: Tensor, count: int, generator: torch.Generator) -> Tensor:
    places = mask.nonzero().flatten()
    order = torch.randperm(len(places), generator=generator)[:count]
    return places[order.to(places.device)]


class Appearance(nn.Module):
    """Compute auxiliary losses that keep a region's appearance in its embedding.

    A linear decoder paints a thumbnail of the region from its embedding, and two views of the same
    region (recoloured, shifted) must find each other among all regions of the batch.

    Source:
        The view loss is InfoNCE (van den Oord et al., 2018) as in SimCLR (Chen et al., ICML 2020).

    Differs:
        Not in APT. A detector trained only on classes of elements forgets the contents of pictures,
        which retrieval needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.paint = nn.Linear(DIMENSION, 3 * THUMBNAIL**2)
        self.view = nn.Linear(DIMENSION, 128)

    def painting_loss(
        self, embedded: Float[Tensor, "n 768"], thumbnails: Float[Tensor, "n 3 t t"]
    ) -> Float[Tensor, ""]:
        """Compute the mean squared error of the painted thumbnails, with values in [0, 1]."""
        painted = self.paint(embedded).unflatten(1, thumbnails.shape[1:])
        return F.mse_loss(painted, thumbnails)

    def view_loss(
        self, one: Float[Tensor, "n 768"], two: Float[Tensor, "n 768"]
    ) -> Float[Tensor, ""]:
        """Compute InfoNCE in both directions between two views of the same regions."""
        left, right = F.normalize(self.view(one), dim=1), F.normalize(self.view(two), dim=1)
        logits = left @ right.T / _TEMPERATURE
        goal = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, goal) + F.cross_entropy(logits.T, goal)) / 2
