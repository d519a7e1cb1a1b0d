"""`detect --regions dom` on captures: exact boxes first, 36 rows whatever the record says."""

from dataclasses import replace

import numpy as np
import pytest

from now_builder.detect.labels.elements import dom_boxes
from now_builder.detect.run import detect
from now_builder.detect.settings import DetectSettings
from now_builder.formats.features import SOURCES, open_features
from now_builder.formats.shard import Element, read_captures, read_rows, write_shard
from tests.now_builder.detect.conftest import check_rows

DOM = SOURCES.index("dom")
OWN = {SOURCES.index(name) for name in ("detector", "relaxed", "grid")}
WALL = Element((0.0, 100.0, 720.0, 1200.0), "div", "dialog")
BOX = (100.0, 400.0, 620.0, 800.0)
RECORDS = {
    "as drawn": None,
    "wall": "behind",
    "nothing": [],
    "unseen": [
        Element(BOX, "img", visible=False),
        Element(BOX, "img", visible_fraction=0.2),
        Element((0.0, 0.0, 10.0, 10.0), "img"),
        Element((0.0, 0.0, 720.0, 1280.0), "article"),
        Element((900.0, 0.0, 1000.0, 100.0), "img"),
        Element((300.0, 300.0, 200.0, 200.0), "img"),
    ],
    "one": [Element(BOX, "img")],
    "outside": [Element((-40.0, 1000.0, 800.0, 1400.0), "img")],
    "unknown": [Element(BOX, "x-map", interactive=True)],
    "crowd": [
        Element((x * 36.0, y * 32.0, x * 36.0 + 34, y * 32.0 + 30), "svg")
        for y in range(40) for x in range(20)
    ],
    "same place": [Element(BOX, "img"), Element(BOX, "button"), Element(BOX, "x-map", "feed")],
}  # fmt: skip


@pytest.fixture(scope="module")
def captures(draw, tmp_path_factory):
    """Pages whose pixels are drawn and whose records are ours."""
    folder = tmp_path_factory.mktemp("dom") / "captures"
    draw(folder, pages=len(RECORDS), sites=3, shards=1)
    pages = []
    for page, record in zip(read_captures(folder), RECORDS.values(), strict=True):
        elements = [WALL, *page.elements] if record == "behind" else record
        pages.append(page if record is None else replace(page, elements=elements))
    write_shard(folder, 0, read_rows(folder), pages)
    return folder


@pytest.fixture(scope="module")
def settings(weights):
    return DetectSettings(
        weights=weights, batch_size=4, threads=1, device="cpu", regions="dom", words=False
    )


@pytest.fixture(scope="module")
def found(captures, settings, tmp_path_factory):
    """The rows of each page by the name of its record, and the elements' boxes."""
    features = tmp_path_factory.mktemp("f") / "features.h5"
    assert detect(captures, features, settings).fresh == len(RECORDS)
    with open_features(features) as file:
        assert file.attributes["regions"] == "dom"
        batch = file.read(slice(None))
    pages = {page.key: page for page in read_captures(captures)}
    assert batch.keys == list(pages)
    return {
        name: (batch.take(np.array([row])), dom_boxes(pages[key].elements))
        for row, (name, key) in enumerate(zip(RECORDS, batch.keys, strict=True))
    }


@pytest.mark.parametrize("name", RECORDS)
def test_every_page_has_36_rows_and_boxes_of_the_dom_stand_first_and_exactly(found, name):
    batch, boxes = found[name]
    check_rows(batch, 1)
    first = batch.n_regions[0]
    assert (batch.source[0, :first] == DOM).all()
    assert set(batch.source[0, first:].tolist()) <= OWN
    exact = {tuple(box) for box in batch.boxes[0, :first].tolist()}
    assert exact <= set(boxes)
    if name in ("wall", "nothing", "unseen"):
        assert (boxes, first) == ([], 0)
        assert (batch.source[0] == SOURCES.index("detector")).any()
    elif name in ("one", "outside", "unknown"):
        assert (exact, first) == (set(boxes), 1)
    elif name == "as drawn":
        everywhere = {tuple(box) for box in batch.boxes[0].tolist()}
        assert len(boxes) >= 8
        assert len(everywhere & set(boxes)) >= 0.9 * min(len(boxes), 36)
    elif name == "crowd":  # beyond the cap they are ignored in training, but they are elements
        assert (len(boxes), first) == (800, 36)
    else:
        assert first == 1, "elements in one place are one region"
