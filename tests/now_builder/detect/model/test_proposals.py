"""The pyramid and its anchors: where they stand, and that they reach every kind of element."""

import pytest
import torch
from torchvision.ops import box_iou

from now_builder.detect.model.apt import PAPER, TINY
from now_builder.detect.model.proposals import SHAPES, Pyramid, RegionProposals


def proposals(config, stride):
    torch.manual_seed(0)
    return RegionProposals(8, config.input_size, stride, config.candidates, config.overlap)


def maps_of(config, stride):
    width, height = config.input_size
    c4 = torch.randn(1, 16, height // stride, -(-width // stride))
    return Pyramid(16, 8).eval()(c4)


@pytest.mark.parametrize(("config", "stride"), [(TINY, 8), (PAPER, 16)])
def test_anchors_cover_the_screen_at_both_sizes(config, stride):
    maps = maps_of(config, stride)
    assert maps.regions.shape[1] == 16
    rpn = proposals(config, stride)
    objectness, deltas, anchors = rpn(maps)
    assert objectness.shape == (1, len(anchors.boxes))
    assert deltas.shape == (1, len(anchors.boxes), 4)
    factor = config.input_size[0] / 720
    for number, (level, width, height) in enumerate(SHAPES):
        mine = anchors.boxes[anchors.shape == number]
        assert torch.allclose(mine[0, 2:] - mine[0, :2], torch.tensor([width, height]) * factor)
        assert (anchors.stride[anchors.shape == number] == stride * 2**level).all()
        centres = (mine[:, :2] + mine[:, 2:]) / 2
        assert (centres.amin(dim=0) <= stride * 2**level).all()
        assert (centres.amax(dim=0) >= torch.tensor(config.input_size) - stride * 2**level).all()


def test_boxes_are_proposed_by_falling_score_apart_and_on_the_screen():
    rpn, maps = proposals(TINY, 8), maps_of(TINY, 8)
    for head in (*rpn.objectness, *rpn.deltas):
        torch.nn.init.normal_(head.weight, std=0.5)
    (found,) = rpn.propose(*rpn(maps), count=40)
    assert len(found.boxes) == 40
    assert (found.scores[:-1] >= found.scores[1:]).all()
    overlaps = box_iou(found.boxes, found.boxes) - torch.eye(40)
    assert overlaps.max() <= TINY.overlap
    assert (found.boxes[:, 2:] <= torch.tensor(TINY.input_size)).all()
    assert (found.boxes >= 0).all()
