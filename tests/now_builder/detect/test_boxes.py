"""Geometry by hand."""

import math

import pytest
import torch
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import box_iou

from now_builder.detect import boxes
from now_builder.detect.model.text_encoder import linked_embeddings
from now_builder.detect.training.losses import Targets, match, sample_regions


def test_intersection_over_minimum_is_one_when_one_box_lies_in_the_other():
    """A 10 x 10 box in a 100 x 100 one: 100/100. Two halves of it overlapping by a half: 50/100."""
    a = torch.tensor([[0.0, 0, 100, 100], [0, 0, 10, 10]])
    b = torch.tensor([[20.0, 20, 30, 30], [5, 0, 15, 10], [200, 200, 210, 210]])
    found = boxes.intersection_over_minimum(a, b)
    torch.testing.assert_close(found, torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.5, 0.0]]))


def test_a_string_is_linked_above_one_half_and_not_at_it():
    regions = torch.tensor([[0.0, 0, 10, 10]])
    texts = torch.tensor([[5.0, 0, 15, 10], [4, 0, 14, 10], [2, 2, 4, 4]])
    linked = linked_embeddings(regions, texts, torch.eye(3))
    assert (linked > 0).tolist() == [[False, True, True]]


def test_linked_strings_are_averaged_to_unit_length_and_none_gives_zero():
    regions = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60]])
    texts = torch.tensor([[0.0, 0, 5, 5], [5, 5, 10, 10]])
    vectors = torch.zeros(2, 768)
    vectors[0, 0] = vectors[1, 1] = 1
    found = linked_embeddings(regions, texts, vectors)
    assert found[0, :3].tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0])
    assert not found[1].any()
    assert not linked_embeddings(regions, texts[:0], vectors[:0]).any()


def test_decoding_by_hand_and_it_inverts_the_encoding_of_torchvision():
    """Anchor 0,0-10,20 to box 1,2-11,22: shifts 1/10 and 2/20, times 10; growth log 1 = 0."""
    found = boxes.decode(torch.tensor([[1.0, 1, 0, 0]]), torch.tensor([[0.0, 0, 10, 20]]))
    torch.testing.assert_close(found, torch.tensor([[1.0, 2, 11, 22]]))
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(50, 2, generator=generator) * 50
    many = torch.cat([corners, corners + 1 + torch.rand(50, 2, generator=generator) * 50], dim=1)
    base = many.flip(0)
    offsets = BoxCoder((10.0, 10.0, 5.0, 5.0)).encode_single(many, base)
    torch.testing.assert_close(boxes.decode(offsets, base), many)


def test_anchors_have_their_shapes_and_sit_on_cell_centres():
    found = boxes.anchors((1, 2), 8, torch.tensor([[32.0, 8.0], [16.0, 16.0]]))
    assert found[1].tolist() == [-4, -4, 12, 12]  # round the centre of the first cell, 4, 4
    assert found[3].tolist() == [4, -4, 20, 12]


def test_a_box_is_described_by_its_place_and_its_size():
    (found,) = boxes.describe(torch.tensor([[0.0, 100, 100, 150]]), (200, 200)).tolist()
    logarithms = [math.log(0.5), math.log(0.25), math.log(2), math.log(5000) / 10]
    assert found == pytest.approx([0, 0.5, 0.5, 0.75, *logarithms])


def test_the_overlap_of_pairs_is_the_diagonal_of_the_overlap_of_all():
    generator = torch.Generator().manual_seed(0)
    corner, side = torch.rand(2, 30, 2, generator=generator)
    one = torch.cat([corner, corner + side], dim=1)
    two = one.flip(0)
    torch.testing.assert_close(boxes.paired_iou(one, two), box_iou(one, two).diagonal())
    assert boxes.paired_iou(torch.zeros(1, 4), torch.zeros(1, 4)).tolist() == [0.0]


def test_suppression_is_relaxed_only_when_boxes_run_short():
    """Three copies shifted by 1 of 10 overlap by 9/11 = 0.82: one survives 0.5, all survive 0.9."""
    found = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [30, 30, 40, 40]])
    scores = torch.tensor([0.9, 0.8, 0.7])
    kept, strict = boxes.select(found, scores, 2)
    assert (kept.tolist(), strict.tolist()) == ([0, 2], [True, True])
    kept, strict = boxes.select(found, scores, 3)
    assert (kept.tolist(), strict.tolist()) == ([0, 2, 1], [True, True, False])


def test_identical_boxes_come_back_when_nothing_else_is_left():
    found = torch.tensor([[0.0, 0, 10, 10]] * 4)
    kept, strict = boxes.select(found, torch.tensor([0.1, 0.4, 0.3, 0.2]), 3)
    assert kept.tolist() == [1, 2, 3]
    assert strict.tolist() == [True, False, False]
    kept, _ = boxes.select(found, torch.tensor([0.1, 0.4, 0.3, 0.2]), 36)
    assert len(kept) == 4


def test_an_element_of_no_class_is_neither_foreground_nor_background():
    targets = Targets(
        torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([3]), torch.tensor([[50.0, 50, 60, 60]]),
        torch.zeros(0, 4), torch.zeros(0, 768),
    )  # fmt: skip
    candidates = torch.tensor([[0.0, 0, 10, 9], [50, 50, 60, 60], [80, 80, 90, 90]])
    overlap, _, ignored = match(candidates, targets)
    assert overlap.tolist() == pytest.approx([0.9, 0, 0])
    assert ignored.tolist() == [False, True, False]
    sample = sample_regions(candidates, targets, 10, 18, torch.Generator().manual_seed(0))
    assert sorted(sample.classes.tolist()) == [3, 3, 18]
    assert [50.0, 50.0, 60.0, 60.0] not in sample.boxes.tolist()
