"""A trained detector stands between random boxes and the browser's own."""

import json
import sys
from dataclasses import asdict

import pytest
import torch

from now_builder.cli import main
from now_builder.detect.base import Page
from now_builder.detect.training.bounds import RandomBoxes, measure_detector
from now_builder.detect.training.data import read_pool
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.split import Shares, SplitPlan, write_split


@pytest.fixture(scope="module")
def found(drawn, weights):
    return measure_detector(drawn, weights, "test", threads=1)


def test_bounds_enclose_the_detector(drawn, found):
    pages, _ = read_pool(drawn, "test")
    assert found.pages == len(pages) > 0
    assert {kind.elements for kind in found.sources.values()} == {
        float(sum(len(page.labels.boxes) for page in pages))
    }
    recall = {name: figures.recall36 for name, figures in found.sources.items()}
    assert recall["dom"] > recall["detector"] > recall["random"]
    assert recall["dom"] > 0.9
    assert found.sources["dom"].ap50 > found.sources["random"].ap50
    assert found.sources["grid"].recall36 < recall["detector"]
    text = str(found)
    for said in ("AP50", "recall@36", "detector", "dom", "grid", "random", "text"):
        assert said in text


def test_the_command_prints_a_table_or_json_and_its_progress(
    drawn, weights, found, monkeypatch, capsys
):
    command = ["now-builder", "measure-detector", str(drawn), str(weights)]
    monkeypatch.setattr(sys, "argv", [*command, "--pool", "test", "--threads", "1", "--json"])
    monkeypatch.setattr("now_builder.program.progress.FIRST_S", 0.0)
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    out, told = capsys.readouterr()
    for what in ("read the test pool", "measure"):
        assert f"{what}: " in told
    tree = json.loads(out)
    assert tree == asdict(found)
    assert set(tree["sources"]) == {"detector", "dom", "grid", "random"}
    assert tree["pool"] == "test"


def test_random_boxes_have_the_sizes_of_labels_and_depend_on_seed_and_key_alone(drawn):
    pages, _ = read_pool(drawn, "train")
    boxes = RandomBoxes(pages, 0)
    one = boxes.of(Page("a"))
    assert torch.equal(one, RandomBoxes(pages, 0).of(Page("a")))
    assert not torch.equal(one, boxes.of(Page("b")))
    assert not torch.equal(one, RandomBoxes(pages, 1).of(Page("a")))
    assert (one[:, :2] >= 0).all()
    assert (one[:, 2:] <= torch.tensor([720.0, 1280.0])).all()
    labels = torch.tensor([box for page in pages for box in page.labels.boxes])
    sizes = labels[:, 2:] - labels[:, :2]
    distance = (one[:, None, 2:] - one[:, None, :2] - sizes).abs().amax(dim=2)
    assert (distance.min(dim=1).values < 1e-3).all()


def test_a_pool_without_pages_and_weights_that_are_missing_are_errors(
    drawn, draw, weights, tmp_path
):
    with pytest.raises(ConfigError, match="no such weights"):
        measure_detector(drawn, tmp_path / "none.safetensors")
    draw(tmp_path / "c", pages=4, sites=4, shards=1)
    plan = SplitPlan(seed=0, shares=Shares(train=1.0, dev=0.0, test=0.0))
    write_split(tmp_path / "c" / "split.toml", plan)
    with pytest.raises(FormatError, match="no page of the test pool has labelled elements"):
        measure_detector(tmp_path / "c", weights)
