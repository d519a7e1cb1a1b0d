"""Pictures: every topic in every variant, tinted and placed."""

import re
from itertools import product
from random import Random
from xml.etree import ElementTree as ET

from now_builder.simweb.draw import TOPICS, VARIANTS, draw, hls, tone
from now_builder.simweb.settings import TOPIC_COUNT
from now_builder.simweb.words import read_words


def test_every_variant_is_drawn_and_differs_in_any_shape_of_frame() -> None:
    assert set(read_words("en").topics) == set(TOPICS)
    assert len(TOPICS) == TOPIC_COUNT
    painted = {"path", "circle", "ellipse", "rect"}
    drawn = {topic: [draw(topic, Random(1), 120, n) for n in range(VARIANTS)] for topic in TOPICS}
    assert {len(set(variants)) for variants in drawn.values()} == {VARIANTS}
    for topic, svg in [(topic, svg) for topic, variants in drawn.items() for svg in variants]:
        root = ET.fromstring(svg)  # noqa: S314 - our own text
        shapes = [shape for shape in root.iter() if shape.tag.rpartition("}")[2] in painted]
        assert len(shapes) >= 4
        assert topic not in svg
        colors = {shape.get(paint) for shape in shapes for paint in ("fill", "stroke")}
        assert len(colors - {None, "none"}) >= 3
        assert set(re.findall(r"var\(--(\w)", svg)) <= set(re.findall(r"--(\w):", svg))
    for topic, width in product(TOPICS, (55, 100, 164.3, 300)):
        svg = draw(topic, Random(2), width, attributes=' class="pic"')
        assert f'viewBox="0 0 {width} 100"' in svg
        assert ET.fromstring(svg).get("class") == "pic"  # noqa: S314 - our own text
        assert not {"nan", "inf"} & set(re.findall(r"\w+", svg))
    colors = [hls(0, 0.5, 1), *(tone(Random(4), "#f7d117") for _ in range(200))]
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in colors)
