"""Captures drawn with Pillow: real shards on disk, known boxes, no browser."""

import io
import json
import random
import shutil
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from now_builder.detect.labels.elements import label
from now_builder.detect.model.apt import TINY, AptDetector
from now_builder.detect.model.text_encoder import dom_text_boxes
from now_builder.detect.model.weights import find_weights
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training import learner
from now_builder.detect.training.data import TrainPage, TrainPages, read_train_pages
from now_builder.detect.training.run import finish
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Element,
    Planned,
    ScreenshotPlace,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan, write_split

TOPICS = range(3, 9)
"""Numbers of corners of the polygon in a page's pictures."""
_WORDS = {
    "aa": ["lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "elit", "sed"],
    "bb": ["KVANTO", "ZURBLE", "XEKTIR", "WOMPLAT", "JIVRAK", "QUNTOR", "BRAZEK", "FLUMIX"],
    "cc": ["0417", "88-31", "2,950", "17:45", "§§", "331/4", "%%72", "#6621"],
}


class Page:
    """A page under the pen, in colours and words of its own."""

    def __init__(self, seed, palette, words):
        self.random, self.palette, self.words = random.Random(seed), palette, words
        self.image = Image.new("RGB", (WIDTH, HEIGHT), palette[0])
        self.draw = ImageDraw.Draw(self.image)
        self.elements = []

    def line(self, x, y, size, words):
        text = " ".join(self.random.choices(self.words, k=words))
        font = ImageFont.load_default(size)
        box = self.draw.textbbox((x, y), text, font=font)
        self.draw.text((x, y), text, fill=self.palette[1], font=font)
        return text, (box[0], box[1], min(box[2], WIDTH), min(box[3], HEIGHT))

    def add(self, tag, box, **more):
        box = tuple(float(min(max(v, 0), m)) for v, m in zip(box, (WIDTH, HEIGHT) * 2, strict=True))
        if "text_box" in more:
            more["text_box"] = tuple(float(v) for v in more["text_box"])
        self.elements.append(Element(box=box, tag=tag, **more))
        return len(self.elements) - 1


def _picture(page, topic, box):
    """Draw a polygon of ``topic`` corners in colours of the page's own choice."""
    r = page.random
    left, top, right, bottom = box
    colours = [tuple(r.randrange(256) for _ in range(3)) for _ in range(3)]
    page.draw.rectangle(box, fill=colours[0])
    side = min(right - left, bottom - top) * r.uniform(0.6, 0.9)
    x = (left + right) / 2 + r.uniform(-0.1, 0.1) * side
    y = (top + bottom) / 2 + r.uniform(-0.05, 0.05) * side
    page.draw.regular_polygon((x, y, side / 2), topic, fill=colours[1])
    page.draw.regular_polygon((x, y, side / 4), topic, fill=colours[2])


def draw_page(seed, palette, words, topic):
    """Draw one page; give its PNG bytes and elements."""
    page = Page(seed, palette, words)
    r = page.random
    bar = r.choice([80, 96, 112])
    page.draw.rectangle([0, 0, WIDTH, bar], fill=palette[2])
    nav = page.add("nav", (0, 0, WIDTH, bar), role="navigation", fixed=True)
    page.draw.rectangle([24, 24, 64, 64], outline=palette[1], width=6)
    page.add("svg", (24, 24, 64, 64), role="img", parent=nav)
    text, box = page.line(96, 28, 30, 2)
    page.add("a", box, role="link", text=text, text_box=box, interactive=True, parent=nav)
    y = bar + r.randrange(16, 40)
    text, box = page.line(24, y, 44, 3)
    page.add("h1", (24, y, 696, y + 60), role="heading", text=text, text_box=box)
    y += 76
    height = r.randrange(220, 380)
    left = r.choice([0, 24, 48])
    box = (left, y, WIDTH - left, y + height)
    _picture(page, topic, box)
    page.add("img", box, role="img")
    y += height + 20
    for block in r.sample([_list, _form, _text], 3):
        y = block(page, y) + r.randrange(12, 32)
    file = io.BytesIO()
    page.image.save(file, "PNG", compress_level=1)
    return file.getvalue(), page.elements


def _list(page, y):
    for _ in range(page.random.randrange(2, 5)):
        item = page.add("li", (24, y, 696, y + 80), role="listitem")
        page.draw.ellipse([32, y + 20, 72, y + 60], fill=page.palette[2])
        page.add("svg", (32, y + 20, 72, y + 60), role="img", parent=item)
        text, box = page.line(96, y + 24, 28, 3)
        page.add("a", box, role="link", text=text, text_box=box, interactive=True, parent=item)
        page.draw.line([24, y + 78, 696, y + 78], fill=page.palette[1])
        y += 80
    return y


def _form(page, y):
    page.draw.rectangle([24, y, 500, y + 72], outline=page.palette[1], width=3)
    page.add("input", (24, y, 500, y + 72), role="textbox", interactive=True)
    page.draw.rounded_rectangle([520, y, 696, y + 72], 16, fill=page.palette[4])
    text, box = page.line(548, y + 20, 28, 1)
    page.add(
        "button", (520, y, 696, y + 72), role="button", text=text, text_box=box,
        interactive=True,
    )  # fmt: skip
    return y + 72


def _text(page, y):
    top, lines, boxes = y, [], []
    for _ in range(page.random.randrange(2, 6)):
        text, box = page.line(24, y, 26, 5)
        lines.append(text)
        boxes.append(box)
        y += 40
    union = (24, boxes[0][1], max(b[2] for b in boxes), boxes[-1][3])
    page.add("p", (24, top, 696, y), role="paragraph", text=" ".join(lines), text_box=union)
    return y


def draw_captures(captures: Path, pages: int, sites: int, shards: int = 2):
    """Write captures of drawn pages."""
    captures.mkdir(parents=True, exist_ok=True)
    shares = Shares(train=0.7, dev=0.15, test=0.15)
    write_split(captures / "split.toml", SplitPlan(seed=0, shares=shares))
    r = random.Random(0)
    looks = [_look(r) for _ in range(sites)]
    plan, rows, members = [], {}, {}
    for number in range(pages):
        shard = number % shards
        key = f"{shard:05d}_{number // shards:04d}"
        site = number % sites
        host = f"site{site:02d}.test"
        url = f"http://{host}/{number}"
        png, elements = draw_page(number, *looks[site], r.choice(TOPICS))
        plan.append(Planned(key, shard, url, url, host))
        rows.setdefault(shard, []).append(CaptureRow(key, url, url, host, "ok"))
        members.setdefault(shard, []).append(Capture(key, png, b"<html></html>", elements))
    write_plan(captures, plan)
    for shard, lines in rows.items():
        failed = f"{shard:05d}_9999"
        lines.append(CaptureRow(failed, "http://x.test/", "http://x.test/", "x.test", "failed"))
        write_shard(captures, shard, lines, members[shard])


def _look(r):
    dark = r.random() < 0.3
    ground = tuple(r.randrange(10, 60) if dark else r.randrange(225, 256) for _ in range(3))
    ink = tuple(r.randrange(200, 250) if dark else r.randrange(0, 70) for _ in range(3))
    rest = [tuple(r.randrange(60, 230) for _ in range(3)) for _ in range(3)]
    return [ground, ink, *rest], _WORDS[r.choice(sorted(_WORDS))]


def check_rows(batch, pages):
    """Assert that each page has 36 boxes on the screen, none empty, with finite features."""
    assert batch.regions.shape == (pages, 36, 768)
    assert np.isfinite(batch.regions).all()
    assert (np.abs(batch.regions).sum(axis=2) > 0).all()
    assert np.isfinite(batch.boxes).all()
    assert (batch.boxes[..., 2:] > batch.boxes[..., :2]).all()
    assert (batch.boxes >= 0).all()
    assert (batch.boxes <= np.array([WIDTH, HEIGHT] * 2) + 1e-3).all()


@pytest.fixture(scope="session")
def captured():
    """Ten drawn captures in memory: no Parquet anywhere."""
    r = random.Random(0)
    looks = [_look(r) for _ in range(8)]
    pages = [draw_page(number, *looks[number % 8], 5) for number in range(10)]
    return [
        Capture(f"00000_{number:04d}", png, b"<html></html>", elements)
        for number, (png, elements) in enumerate(pages)
    ]


@pytest.fixture(scope="session")
def pictured(captured, tmp_path_factory):
    """The same as pages to train on, a file each; two are held out."""
    folder = tmp_path_factory.mktemp("pictured")
    pages = []
    for page in captured:
        path = folder / f"{page.key}.png"
        path.write_bytes(page.screenshot)
        place = ScreenshotPlace(path, 0, len(page.screenshot))
        texts = dom_text_boxes(page.elements)
        pages.append(TrainPage(page.key, f"{page.key}.test", place, label(page.elements), texts))
    return TrainPages(pages[2:], pages[:2])


@pytest.fixture(scope="session")
def draw():
    """Return the function that writes drawn captures."""
    return draw_captures


@pytest.fixture(scope="session")
def drawn(shared):
    """Twenty-four drawn pages of eight sites in two shards."""
    return shared("drawn", lambda captures: draw_captures(captures, pages=24, sites=8))


@pytest.fixture(scope="session")
def few(shared):
    """Eight drawn pages of four sites in one shard, six of them in the train pool."""
    return shared("few", lambda captures: draw_captures(captures, pages=8, sites=4, shards=1))


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """The shipped detector as a file of one's own: for what holds for any weights."""
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    for suffix in (".safetensors", ".json"):
        shutil.copy(find_weights(None).with_suffix(suffix), path.with_suffix(suffix))
    return path


@pytest.fixture(scope="session")
def train_pages(drawn):
    """The train pool of the drawn pages, a fifth of its sites held out."""
    return read_train_pages(drawn, 0.2)


@contextmanager
def _small_screens(*, patches=True):
    tiny = learner._RECIPES["tiny"]
    model = tiny.model.model_copy(update={"input_size": (180, 320), "patches": patches})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(learner._RECIPES, "tiny", replace(tiny, model=model))
        yield


@pytest.fixture(scope="module")
def small_screens():
    """Let detectors of the tiny size learn from screenshots of 180 x 320 px, for a quarter."""
    with _small_screens():
        yield


@pytest.fixture(scope="session")
def trained(train_pages, shared):
    """Weights after 20 steps on small screens, and the loss of each step."""
    settings = TrainDetectorSettings(steps=20, batch_size=3, threads=1, device="cpu", held_out=0.2)

    def make(folder):
        folder.mkdir()
        path = folder / "w.safetensors"
        with _small_screens(patches=False):
            training = learner.Learner(settings, train_pages)
        totals = [float(sum(training.take_step().values())) for _ in range(20)]
        finish(path, training)
        (folder / "losses.json").write_text(json.dumps(totals))

    folder = shared("trained", make)
    return folder / "w.safetensors", json.loads((folder / "losses.json").read_text())


@pytest.fixture
def make_model():
    """The function that makes a tiny model whose batch norms are not what they begin as."""

    def make():
        torch.manual_seed(0)
        model = AptDetector(TINY, nn.functional.normalize(torch.randn(18, 768), dim=1)).eval()
        for norm in (child for child in model.modules() if isinstance(child, nn.BatchNorm2d)):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.2)
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.5, 2)
        return model

    return make
