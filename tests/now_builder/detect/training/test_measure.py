"""Recall and average precision against the slow obvious way to work them out."""

import json
import sys
from dataclasses import asdict

import numpy as np
import pytest

from now_builder.cli import main
from now_builder.detect.labels.elements import Labels
from now_builder.detect.training.data import read_pool
from now_builder.detect.training.measure import Found, measure, measure_detector
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.split import Shares, SplitPlan, write_split

NAMES = ("a", "b", "c", "never there")


def iou(one, two):
    width = min(one[2], two[2]) - max(one[0], two[0])
    height = min(one[3], two[3]) - max(one[1], two[1])
    common = max(width, 0) * max(height, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, two)]
    return common / (sum(areas) - common)


def slow_recall(pages):
    """Over all elements: found, and found by a best region of the right class."""
    hits = []
    for page in pages:
        for box, kind in zip(page.labels.boxes, page.labels.classes, strict=True):
            overlaps = [iou(box, region) for region in page.boxes]
            best = max(range(len(overlaps)), key=overlaps.__getitem__)
            hit = overlaps[best] >= 0.5
            hits.append((hit, hit and page.classes[best] == kind))
    return np.mean(hits, axis=0)


def slow_precision(pages, kind, threshold):
    """Average precision of one class at one overlap: greedy matching, 101 recalls."""
    wanted = sum(page.labels.classes.count(kind) for page in pages)
    guesses = []
    for page in pages:
        free = [b for b, k in zip(page.labels.boxes, page.labels.classes, strict=True) if k == kind]
        rows = [row for row in range(len(page.boxes)) if page.classes[row] == kind]
        for row in sorted(rows, key=lambda row: -page.scores[row]):
            region = page.boxes[row]
            if any(iou(region, box) > 0.5 for box in page.labels.ignored) and all(
                iou(region, box) < 0.5 for box in page.labels.boxes
            ):
                continue
            best = max(free, key=lambda box: iou(region, box), default=None)
            right = best is not None and iou(region, best) >= threshold
            if right:
                free.remove(best)
            guesses.append((page.scores[row], right))
    guesses.sort(key=lambda guess: -guess[0])
    right = np.cumsum([hit for _, hit in guesses])
    recall, precision = right / wanted, right / np.arange(1, len(guesses) + 1)
    levels = [max(precision[recall >= level], default=0.0) for level in np.linspace(0, 1, 101)]
    return np.mean(levels)


def some_pages(seed, count=6):
    """Pages whose regions are shifted copies of their elements, and others."""
    r = np.random.default_rng(seed)
    pages = []
    for _ in range(count):
        corner = r.uniform(0, 500, (9, 2))
        boxes = np.concatenate([corner, corner + r.uniform(60, 200, (9, 2))], axis=1)
        near = np.concatenate([boxes] * 3) + r.normal(0, 9, (27, 4))
        near[[0, 9, 18]] += 400  # the first element is missed
        far = np.concatenate([r.uniform(0, 300, (9, 2)), r.uniform(310, 600, (9, 2))], axis=1)
        kinds = r.integers(0, 3, 9)
        guessed = np.concatenate([np.where(r.random(27) < 0.7, np.tile(kinds, 3), 1), -np.ones(9)])
        as_boxes = [tuple(map(float, box)) for box in boxes]
        labels = Labels(as_boxes[:7], kinds[:7].tolist(), as_boxes[7:])
        regions = np.concatenate([near, far]).astype(np.float32)
        scores = r.random(36).astype(np.float32)
        pages.append(Found(labels, regions, scores, guessed.astype(np.int16)))
    return pages


def test_figures_are_those_of_the_slow_way():
    pages = some_pages(0)
    found = measure(pages, NAMES)
    recall, classified = slow_recall(pages)
    assert found.recall36 == pytest.approx(recall)
    assert found.classified36 == pytest.approx(classified)
    assert 0.2 < classified < recall < 1
    levels = np.arange(10) * 0.05 + 0.5
    table = np.array([[slow_precision(pages, kind, t) for kind in range(3)] for t in levels])
    assert found.ap == pytest.approx(table.mean(), abs=1e-6)
    assert found.ap50 == pytest.approx(table[0].mean(), abs=1e-6)
    assert found.ap75 == pytest.approx(table[5].mean(), abs=1e-6)
    assert list(found.classes) == ["a", "b", "c"]
    for kind, name in enumerate("abc"):
        assert found.classes[name]["ap50"] == pytest.approx(table[0, kind], abs=1e-6)
        assert found.classes[name]["ap"] == pytest.approx(table[:, kind].mean(), abs=1e-6)


def one_page(boxes, scores, classes, labels):
    boxes, scores = np.array(boxes, dtype=np.float32), np.array(scores, dtype=np.float32)
    return [Found(labels, boxes, scores, np.array(classes, dtype=np.int16))]


def test_a_perfect_detector_has_one_and_a_blind_one_nothing():
    box = (10.0, 10.0, 50.0, 60.0)
    labels = Labels([box], [2], [])
    perfect = measure(one_page([box], [0.9], [2], labels), NAMES)
    figures = (perfect.ap, perfect.ap50, perfect.recall36, perfect.classified36)
    assert figures == pytest.approx((1, 1, 1, 1))
    nameless = measure(one_page([box], [0.0], [-1], labels), NAMES)
    assert (nameless.ap, nameless.recall36, nameless.classified36) == (0, 1, 0)
    assert measure(one_page([box], [0.9], [2], Labels([], [], [])), NAMES) is None


def test_a_region_on_an_ignored_element_does_not_count_against():
    box, other = (10.0, 10.0, 50.0, 60.0), (200.0, 200.0, 300.0, 300.0)
    regions = ([other, box], [0.9, 0.5], [2, 2])
    assert measure(one_page(*regions, Labels([box], [2], [])), NAMES).ap50 == pytest.approx(0.5)
    assert measure(one_page(*regions, Labels([box], [2], [other])), NAMES).ap50 > 0.99


def test_the_command_prints_the_figures_of_all_pages_of_a_pool(drawn, weights, monkeypatch, capsys):
    found = measure_detector(drawn, weights, "test", threads=1)
    pages = read_pool(drawn, "test")
    assert found.measured.pages == len(pages) > 0
    assert found.measured.elements == sum(len(page.labels.boxes) for page in pages)
    assert 0.3 < found.measured.recall36 < 1
    for said in ("test pool", "AP50", "recall36", "heading"):
        assert said in str(found)
    command = ["now-builder", "measure-detector", str(drawn), str(weights)]
    monkeypatch.setattr(sys, "argv", [*command, "--pool", "test", "--threads", "1", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert json.loads(capsys.readouterr().out) == asdict(found)


def test_a_pool_without_pages_and_weights_that_are_missing_are_errors(
    drawn, draw, weights, tmp_path
):
    with pytest.raises(ConfigError, match="file not found"):
        measure_detector(drawn, tmp_path / "none.safetensors")
    draw(tmp_path / "c", pages=4, sites=4, shards=1)
    plan = SplitPlan(seed=0, shares=Shares(train=1.0, dev=0.0, test=0.0))
    write_split(tmp_path / "c" / "split.toml", plan)
    with pytest.raises(FormatError, match="no page of the test pool has labelled elements"):
        measure_detector(tmp_path / "c", weights)
