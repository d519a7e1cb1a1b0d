"""Losses of the detector, beside the same written out slowly."""

import math

import pytest
import torch
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou

from now_builder.detect import boxes as geometry
from now_builder.detect.model.proposals import Anchors
from now_builder.detect.training.losses import (
    Sample,
    Targets,
    assign,
    class_weights,
    proposal_loss,
    region_loss,
)

SHAPES = ((20.0, 10.0), (60.0, 60.0))
GRID = (12, 9)
STRIDE = 8
CODER = BoxCoder((10.0, 10.0, 5.0, 5.0))


@pytest.fixture
def anchors():
    boxes = geometry.anchors(GRID, STRIDE, torch.tensor(SHAPES))
    count = len(boxes)
    return Anchors(
        boxes, torch.arange(count) % 2, torch.full((count,), float(STRIDE)), torch.tensor(SHAPES)
    )


def targets(boxes, ignored=()):
    return Targets(
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.zeros(len(boxes), dtype=torch.int64),
        torch.tensor(ignored, dtype=torch.float32).reshape(-1, 4),
        torch.zeros(0, 4),
        torch.zeros(0, 768),
    )


def drawn(seed, count=6):
    generator = torch.Generator().manual_seed(seed)
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([60.0, 80])
    side = torch.rand(count, 2, generator=generator).square() * 60 + 1
    return targets(torch.cat([corner, corner + side], dim=1).tolist(), [[0, 0, 20, 10]])


def slowly(anchors, page):
    """Assign anchors one by one."""
    element = [-1] * len(anchors.boxes)
    centre = [((a[0] + a[2]) / 2, (a[1] + a[3]) / 2) for a in anchors.boxes.tolist()]
    by_area = sorted(range(len(page.boxes)), key=lambda i: -geometry.box_area(page.boxes)[i].item())
    taken = []
    for i in by_area:  # the smaller comes later, and overwrites
        x0, y0, x1, y1 = page.boxes[i].tolist()
        side = [max(x1 - x0, 1), max(y1 - y0, 1)]
        unlike = [
            abs(math.log(side[0]) - math.log(w)) + abs(math.log(side[1]) - math.log(h))
            for w, h in SHAPES
        ]
        shape = unlike.index(min(unlike))
        away = {
            a: (abs(x - (x0 + x1) / 2), abs(y - (y0 + y1) / 2))
            for a, (x, y) in enumerate(centre)
            if anchors.shape[a] == shape
        }
        mine = [
            a
            for a, (dx, dy) in away.items()
            if max(dx, dy) <= STRIDE and x0 <= centre[a][0] <= x1 and y0 <= centre[a][1] <= y1
        ]
        taken.append((i, mine or [min(away, key=lambda a: sum(away[a]))]))
    for i, mine in taken:
        for a in mine:
            element[a] = i
    return element


@pytest.mark.parametrize("seed", range(3))
def test_anchors_are_assigned_as_one_by_one(anchors, seed):
    page = drawn(seed)
    element, negative = assign(anchors, page)
    assert element.tolist() == slowly(anchors, page)
    near = box_iou(anchors.boxes, page.ignored).amax(dim=1) >= 0.4
    assert torch.equal(negative, (element < 0) & ~near)


def exact(anchors, page):
    """Logits and offsets of a network that makes no mistake."""
    element, _ = assign(anchors, page)
    mine = element >= 0
    objectness = torch.where(mine, 12.0, -12.0)[None]
    deltas = torch.zeros(1, len(element), 4)
    deltas[0, mine] = CODER.encode_single(page.boxes[element[mine]], anchors.boxes[mine])
    return objectness, deltas


def test_right_proposals_cost_nothing_and_wrong_ones_do(anchors):
    page = drawn(0)
    objectness, deltas = exact(anchors, page)
    score, box = proposal_loss(objectness, deltas, anchors, [page])
    assert score.item() == pytest.approx(0, abs=1e-3)
    assert box.item() == pytest.approx(0, abs=1e-3)
    worse, _ = proposal_loss(-objectness, deltas, anchors, [page])
    assert worse > 1
    _, moved = proposal_loss(objectness, deltas + 3, anchors, [page])
    assert moved > 0.2


def test_an_anchor_whose_box_lies_on_an_element_is_no_negative(anchors):
    page = targets([[20, 20, 60, 60]])
    objectness, deltas = exact(anchors, page)
    other = 2 * (9 * 3 + 3)  # of the flat shape, near the element, which has the large one
    deltas[0, other] = CODER.encode_single(page.boxes, anchors.boxes[other : other + 1])[0]
    objectness[0, other] = 5.0
    score, _ = proposal_loss(objectness, deltas, anchors, [page])
    assert score.item() == pytest.approx(0, abs=1e-3)
    deltas[0, other] = 0
    score, _ = proposal_loss(objectness, deltas, anchors, [page])
    assert score > 0.5


def test_pages_without_elements_have_losses_with_gradients(anchors):
    objectness = torch.zeros(2, len(anchors.boxes), requires_grad=True)
    deltas = torch.zeros(2, len(anchors.boxes), 4, requires_grad=True)
    losses = proposal_loss(objectness, deltas, anchors, [targets([]), targets([])])
    sum(losses).backward()
    assert objectness.grad.abs().sum() > 0
    assert torch.isfinite(torch.stack(losses)).all()


def test_rare_classes_weigh_more_and_elements_one_on_average():
    weights = class_weights([[0] * 900, [1] * 100, [2]], 4)
    assert weights[1] / weights[0] == pytest.approx(3)
    assert weights[2] == weights[3]  # below twenty elements they are not weighed more
    mean = (weights[:3] * torch.tensor([900, 100, 1])).sum() / 1001
    assert mean == pytest.approx(1)
    assert weights[-1] == pytest.approx(0.4)
    assert torch.isfinite(class_weights([], 3)).all()


def test_the_region_loss_is_of_classes_and_of_boxes_on_elements():
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    sample = Sample(boxes, torch.tensor([0, 2]), torch.tensor([[0.0, 0, 20, 10], [9, 9, 9, 9]]))
    logits = torch.tensor([[9.0, 0, 0], [0, 0, 9]], requires_grad=True)
    score, box = region_loss(logits, torch.zeros(2, 4), sample, torch.tensor([1.0, 1, 0.4]))
    assert score.item() == pytest.approx(0, abs=1e-2)
    assert box.item() == pytest.approx(0.5, abs=1e-4)  # half as wide as its element
    none = Sample(boxes, torch.tensor([2, 2]), boxes)
    assert region_loss(logits, torch.zeros(2, 4), none, torch.ones(3))[1].item() == 0
