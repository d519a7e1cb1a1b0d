"""The label folder: COCO JSON, the same of the same captures."""

import json
import shutil

import pytest

from now_builder.detect.labels.elements import label
from now_builder.detect.labels.mapping import DEFAULT, NAMES, read_mapping
from now_builder.detect.labels.run import label_captures
from now_builder.detect.settings import LabelSettings
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.shard import (
    Capture,
    CaptureRow,
    Element,
    read_captures,
    read_rows,
    write_shard,
)
from now_builder.formats.split import read_split

BOX = (100.0, 100.0, 300.0, 200.0)


def read(folder):
    return json.loads((folder / "labels.json").read_text(encoding="utf-8"))


def write_pages(captures, drawn, pages):
    """Write one shard of pages that differ in their elements and in the fields of their rows."""
    captures.mkdir()
    shutil.copy(drawn / "split.toml", captures)
    picture = next(read_captures(drawn)).screenshot
    rows, members = [], []
    for place, (elements, more) in enumerate(pages):
        key = f"00000_{place:04d}"
        row = {"url": "http://a.test/", "url_canonical": "http://a.test/", "site": "a.test", **more}
        rows.append(CaptureRow(key, status="ok", **row))
        members.append(Capture(key, picture, b"", elements))
    write_shard(captures, 0, rows, members)
    return captures


@pytest.fixture(scope="module")
def labelled(drawn, tmp_path_factory):
    folder = tmp_path_factory.mktemp("labelled") / "labels"
    return folder, label_captures(drawn, folder, LabelSettings())


def test_every_page_and_box_stands_in_the_coco_file(drawn, labelled):
    folder, summary = labelled
    coco = read(folder)
    rows = {row.key: row for row in read_rows(drawn)}
    plan = read_split(drawn / "split.toml")
    assert len(coco["images"]) == summary.pages == summary.labelled == 24
    boxes = sum(a["iscrowd"] == 0 for a in coco["annotations"])
    assert coco["info"]["boxes"] == summary.boxes == boxes
    for image in coco["images"]:
        row = rows[image["key"]]
        assert image["file_name"] == f"{row.key}.png"
        assert (image["width"], image["height"], image["site"]) == (720, 1280, row.site)
        assert image["pool"] == plan.pool_of(row.site, row.key)
    pools = {(image["site"], image["pool"]) for image in coco["images"]}
    assert len(pools) == len({site for site, _ in pools}) > 1, "a site has one pool"
    assert [item["name"] for item in coco["categories"]] == [*NAMES, "ignore"]
    assert coco["categories"][3] == {
        "id": 4, "name": "button", "name_zh": "按钮", "supercategory": "control",
    }  # fmt: skip
    for place, item in enumerate(coco["annotations"], 1):
        assert item["id"] == place
        assert item["area"] == pytest.approx(item["bbox"][2] * item["bbox"][3], abs=0.01)


def boxes_of(coco, image):
    """Return class number and edges of the labelled boxes of an image, and its ignored boxes."""
    rows = [row for row in coco["annotations"] if row["image_id"] == image["id"]]
    edges = [(x, y, x + w, y + h) for x, y, w, h in (row["bbox"] for row in rows)]
    labelled = [
        (row["category_id"] - 1, box)
        for row, box in zip(rows, edges, strict=True)
        if not row["iscrowd"]
    ]
    return labelled, [box for row, box in zip(rows, edges, strict=True) if row["iscrowd"]]


def test_the_file_has_the_labels_of_the_pages(drawn, labelled):
    coco = read(labelled[0])
    for image, capture in zip(coco["images"], read_captures(drawn), strict=True):
        expected = label(capture.elements)
        found, ignored = boxes_of(coco, image)
        assert [kind for kind, _ in found] == expected.classes
        for (_, box), wanted in zip(found, expected.boxes, strict=True):
            assert box == pytest.approx(wanted, abs=0.02)
        assert len(ignored) == len(expected.ignored)


def test_complete_labels_stay_and_other_settings_or_files_are_refused_unless_forced(
    drawn, labelled, tmp_path
):
    folder = tmp_path / "labels"
    shutil.copytree(labelled[0], folder)
    before = (folder / "labels.json").stat().st_mtime_ns
    again = label_captures(drawn, folder, LabelSettings())
    assert (again.pages, again.labelled, again.boxes, again.fresh) == (
        *(labelled[1].pages, labelled[1].labelled, labelled[1].boxes), False
    )  # fmt: skip
    assert (folder / "labels.json").stat().st_mtime_ns == before
    (tmp_path / "other.toml").write_text('looks = { banner = "image" }', encoding="utf-8")
    other = LabelSettings(mapping=tmp_path / "other.toml")
    with pytest.raises(ConfigError, match="--force"):
        label_captures(drawn, folder, other)
    assert label_captures(drawn, folder, other, force=True).fresh
    for text in ("", "{}", '{\n"info": {}}', "\xff"):
        (folder / "labels.json").write_text(text, encoding="latin-1")
        with pytest.raises(FormatError, match="not written by label"):
            label_captures(drawn, folder, other)


def test_pages_without_labels_are_left_out(drawn, tmp_path):
    wall = Element((0.0, 100.0, 720.0, 1200.0), "div", "dialog")
    image, lazy = Element(BOX, "img"), Element(BOX, "img", loaded=False)
    captures = write_pages(
        tmp_path / "captures", drawn, [([wall], {}), ([lazy], {}), ([image], {})]
    )
    summary = label_captures(captures, tmp_path / "labels", LabelSettings())
    assert (summary.pages, summary.labelled) == (3, 1)
    assert [image["key"] for image in read(tmp_path / "labels")["images"]] == ["00000_0002"]


def test_a_mistake_in_a_mapping_names_file_and_field(tmp_path):
    path = tmp_path / "m.toml"
    for text, problem in (
        ('[roles]\nbutton = "knob"', "roles.button: found class 'knob'"),
        ('[tags]\na = "lnik"', "tags.a: found class 'lnik'"),
        ('[looks]\nknob = "button"', "looks.knob"),
        ('classes = [["a", "甲"], ["a", "乙"]]', "classes.1"),
        ('classes = [["ignore", "忽略"]]', "classes.0"),
        ("[rolls]", "rolls"),
        ("roles = [", "not a readable TOML"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as caught:
            read_mapping(path)
        assert str(caught.value).startswith(str(path))
        assert problem in str(caught.value)
    assert not [*DEFAULT.problems()]


def test_captures_that_are_not_there_and_a_file_in_the_way_are_errors(drawn, tmp_path):
    with pytest.raises(FormatError, match=r"split\.toml"):
        label_captures(tmp_path / "none", tmp_path / "labels", LabelSettings())
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FormatError, match="expected a folder"):
        label_captures(drawn, tmp_path / "file", LabelSettings())
