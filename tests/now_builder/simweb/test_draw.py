"""Pictures: every topic in every variant, as SVG and as a canvas script."""

import json
import re
from random import Random
from xml.etree import ElementTree as ET

import pytest

from now_builder.simweb.draw import TOPICS, VARIANTS, draw
from now_builder.simweb.pen import Pen, hls, shade, tone


@pytest.mark.parametrize("topic", TOPICS)
def test_every_variant_is_drawn_and_differs(topic: str) -> None:
    drawn = [draw(topic, Random(1), 120, variant).to_svg() for variant in range(VARIANTS)]
    assert len(set(drawn)) == VARIANTS
    for svg in drawn:
        shapes = ET.fromstring(svg)  # noqa: S314 - our own text
        assert len(shapes) >= 4
        assert topic not in svg
        assert len({shape.get("fill") for shape in shapes}) >= 3


@pytest.mark.parametrize("width", [55, 100, 164.3, 300])
def test_a_picture_fits_any_shape_of_frame(width: float) -> None:
    for topic in TOPICS:
        svg = draw(topic, Random(2), width).to_svg()
        assert f'viewBox="0 0 {f"{width:.1f}".removesuffix(".0")} 100"' in svg
        assert "nan" not in svg
        assert "inf" not in svg


def test_the_same_draws_give_the_same_picture_and_others_another() -> None:
    pictures = [draw("cat", Random(seed), 120, 0).to_svg() for seed in (1, 1, 2)]
    assert pictures[0] == pictures[1] != pictures[2]


def test_svg_and_canvas_paint_the_same_paths() -> None:
    picture = draw("train", Random(3), 120, 0)
    script = picture.to_script("c1", (240, 200))
    rows = json.loads(re.search(r"getContext\(\'2d\'\),(\[.*\])\)$", script)[1])
    assert [row[0] for row in rows] == [shape.data for shape in picture.shapes]
    assert [row[1] for row in rows] == [shape.fill for shape in picture.shapes]


def test_what_is_drawn_inside_moved_stands_there() -> None:
    """A point (1, 0), enlarged twice and turned a quarter, then shifted by (10, 20): (10, 22)."""
    pen = Pen()
    with pen.moved(10, 20, 2, 90):
        pen.circle(0, 0, 1, "#000000")
    pen.circle(0, 0, 1, "#000000")
    a, b, c, d, e, f = pen.shapes[0].matrix
    assert (a * 1 + c * 0 + e, b * 1 + d * 0 + f) == pytest.approx((10, 22))
    assert pen.shapes[1].matrix == (1, 0, 0, 1, 0, 0)


def test_colours_stay_colours() -> None:
    assert shade("#204060", 0) == "#204060"
    assert shade("#204060", 1) == "#ffffff"
    assert hls(0, 0.5, 1) == "#ff0000"
    rng = Random(4)
    for _ in range(200):
        assert re.fullmatch("#[0-9a-f]{6}", tone(rng, "#f7d117", 0.3))
