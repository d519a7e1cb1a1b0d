"""Pages magnified and shrunk at random: pixels and boxes move together."""

import pytest
import torch

from now_builder.detect.labels.elements import SMALLEST
from now_builder.detect.training.data import jitter, recolour, zoom
from now_builder.detect.training.losses import Targets

WIDTH, HEIGHT = 180, 320


def page(*boxes: tuple[float, float, float, float]) -> Targets:
    given = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    return Targets(
        boxes=given, classes=torch.arange(len(given)), ignored=torch.zeros(0, 4), texts=given,
        vectors=torch.rand(len(given), 768),
    )  # fmt: skip


def painted(targets: Targets) -> torch.Tensor:
    screen = torch.zeros(1, 3, HEIGHT, WIDTH)
    for left, top, right, bottom in targets.boxes.int().tolist():
        screen[0, :, top:bottom, left:right] = 1.0
    return screen


@pytest.mark.parametrize("seed", range(2))
def test_the_boxes_stay_on_what_they_were_around(seed: int) -> None:
    before = page((60, 120, 110, 190))
    shots, (after,) = zoom(painted(before), [before], 1.3, torch.Generator().manual_seed(seed))
    rows, columns = (shots[0, 0] > 0.5).nonzero(as_tuple=True)
    seen = torch.tensor([
        columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    ])  # fmt: skip
    assert torch.equal(after.boxes, after.texts)
    assert (after.boxes[0] - seen).abs().max() <= 1.5


def test_half_of_the_pages_change_shrunk_by_the_factor_or_magnified_by_its_root() -> None:
    before = page((60, 120, 110, 190))
    sides = []
    for seed in range(100):
        shots = torch.zeros(1, 3, HEIGHT, WIDTH)
        _, (after,) = zoom(shots, [before], 2.25, torch.Generator().manual_seed(seed))
        sides.append(float(after.boxes[0, 2] - after.boxes[0, 0]) / 50)
    changed = [side for side in sides if abs(side - 1) > 1e-5]
    assert 35 < len(changed) < 65
    assert 1 / 2.25 - 1e-5 <= min(changed) < 0.5
    assert 1.4 < max(changed) <= 1.5 + 1e-5
    assert 0.5 < sum(side < 1 for side in changed) / len(changed) < 0.8


def test_what_gets_too_small_to_be_labelled_is_ignored() -> None:
    before = page((60, 120, 110, 124), (60, 140, 110, 160))
    counts = set()
    for seed in range(15):
        shots = torch.zeros(1, 3, HEIGHT, WIDTH)
        _, (after,) = zoom(shots, [before], 4.0, torch.Generator().manual_seed(seed))
        sides = after.boxes[:, 2:] - after.boxes[:, :2]
        assert (sides.amin(dim=1) >= SMALLEST / 720 * WIDTH).all()
        assert len(after.boxes) + len(after.ignored) == 2
        assert len(after.texts) == 2
        counts.add(len(after.boxes))
    assert counts == {1, 2}


def test_what_leaves_the_screen_is_no_element_any_more() -> None:
    border = page((0, 0, 20, 20), (160, 300, 180, 320), (0, 300, 20, 320), (160, 0, 180, 20))
    lost = 0
    for seed in range(20):
        _, (after,) = zoom(painted(border), [border], 2.0, torch.Generator().manual_seed(seed))
        assert len(after.boxes) == len(after.classes)
        assert len(after.texts) == len(after.vectors) == len(after.boxes)
        assert len(after.boxes) + len(after.ignored) <= 4
        for boxes in (after.boxes, after.ignored):
            assert (boxes >= 0).all()
            assert (boxes[:, 2] <= WIDTH).all()
            assert (boxes[:, 3] <= HEIGHT).all()
            assert (boxes[:, 2:] > boxes[:, :2]).all()
        lost += 4 - len(after.boxes)
    assert lost > 10


def test_recolouring_keeps_pixels_in_range_and_jitter_keeps_boxes_on_screen() -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(8, 3, 20, 10, generator=generator)
    views = recolour(pixels, generator)
    assert 0 <= views.min() <= views.max() <= 1
    assert not torch.equal(views, pixels)
    boxes = torch.tensor([[0.0, 0, 180, 320], [100, 100, 110, 120]])
    moved = jitter(boxes, (180, 320), generator)
    assert (moved[:, :2] >= 0).all()
    assert (moved[:, 2:] <= torch.tensor([180.0, 320.0])).all()
    assert (moved - boxes)[1].abs().max() <= 2.0
