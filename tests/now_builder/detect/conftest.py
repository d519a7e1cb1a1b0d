"""Captures drawn with Pillow: real shards on disk, known boxes, no browser."""

import io
import json
import math
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from now_builder.detect.labels.coco import CocoWriter, scratch
from now_builder.detect.labels.elements import label
from now_builder.detect.labels.mapping import DEFAULT
from now_builder.detect.model.weights import find_weights
from now_builder.detect.settings import TrainDetectorSettings
from now_builder.detect.training.data import read_train_pages
from now_builder.detect.training.finish import finish
from now_builder.detect.training.loop import Training
from now_builder.formats.shard import (
    HEIGHT,
    WIDTH,
    Capture,
    CaptureRow,
    Element,
    Planned,
    write_plan,
    write_shard,
)
from now_builder.formats.split import Shares, SplitPlan, write_split

TOPICS = (
    "sun", "house", "tree", "fish", "star", "cup", "boat", "key", "flag", "ladder", "face", "kite",
)  # fmt: skip
_WORDS = {
    "aa": [
        "lorem",
        "ipsum",
        "dolor",
        "sit",
        "amet",
        "consectetur",
        "adipiscing",
        "elit",
        "sed",
        "do",
    ],
    "bb": ["KVANTO", "ZURBLE", "XEKTIR", "WOMPLAT", "JIVRAK", "QUNTOR", "BRAZEK", "FLUMIX"],
    "cc": ["0417", "88-31", "2,950", "17:45", "§§", "331/4", "%%72", "#6621"],
}


@dataclass
class Page:
    """A page under the pen."""

    random: random.Random
    palette: list[tuple[int, int, int]]
    words: list[str]
    image: Image.Image = field(init=False)
    elements: list[Element] = field(default_factory=list)

    def __post_init__(self):
        self.image = Image.new("RGB", (WIDTH, HEIGHT), self.palette[0])
        self.draw = ImageDraw.Draw(self.image)

    def line(self, x, y, size, words, colour=None):
        text = " ".join(self.random.choices(self.words, k=words))
        font = ImageFont.load_default(size)
        box = self.draw.textbbox((x, y), text, font=font)
        self.draw.text((x, y), text, fill=colour or self.palette[1], font=font)
        return text, (box[0], box[1], min(box[2], WIDTH), min(box[3], HEIGHT))

    def add(self, tag, box, **more):
        box = tuple(float(min(max(v, 0), m)) for v, m in zip(box, (WIDTH, HEIGHT) * 2, strict=True))
        if "text_box" in more:
            more["text_box"] = tuple(float(v) for v in more["text_box"])
        self.elements.append(Element(box=box, tag=tag, **more))
        return len(self.elements) - 1


def _picture(page, topic, box):
    """Draw the sign of a topic in colours of the page's own choice."""
    r = page.random
    left, top, right, bottom = box
    colour = [tuple(r.randrange(256) for _ in range(3)) for _ in range(3)]
    page.draw.rectangle(box, fill=colour[0])
    side = min(right - left, bottom - top) * r.uniform(0.6, 0.9)
    cx = (left + right) / 2 + r.uniform(-0.1, 0.1) * side
    cy = (top + bottom) / 2 + r.uniform(-0.05, 0.05) * side
    h = side / 2
    _SIGNS[topic](page.draw, cx, cy, h, colour[1], colour[2])


def _sun(d, x, y, h, a, b):
    for i in range(12):
        t = i * math.pi / 6
        d.line([x, y, x + h * math.cos(t), y + h * math.sin(t)], fill=b, width=max(2, int(h / 9)))
    d.ellipse([x - h / 2, y - h / 2, x + h / 2, y + h / 2], fill=a)


def _house(d, x, y, h, a, b):
    d.rectangle([x - 0.7 * h, y - 0.1 * h, x + 0.7 * h, y + h], fill=a)
    d.polygon([(x - h, y), (x + h, y), (x, y - h)], fill=b)


def _tree(d, x, y, h, a, b):
    d.rectangle([x - 0.1 * h, y, x + 0.1 * h, y + h], fill=b)
    for i in range(3):
        w = h * (0.4 + 0.2 * i)
        top = y - h + i * 0.45 * h
        d.polygon([(x - w, top + 0.7 * h), (x + w, top + 0.7 * h), (x, top)], fill=a)


def _fish(d, x, y, h, a, b):
    d.ellipse([x - h, y - 0.45 * h, x + 0.5 * h, y + 0.45 * h], fill=a)
    d.polygon([(x + 0.3 * h, y), (x + h, y - 0.5 * h), (x + h, y + 0.5 * h)], fill=b)


def _star(d, x, y, h, a, _b):
    r = [h if i % 2 == 0 else 0.4 * h for i in range(10)]
    t = [i * math.pi / 5 - math.pi / 2 for i in range(10)]
    d.polygon([(x + q * math.cos(s), y + q * math.sin(s)) for q, s in zip(r, t, strict=True)], a)


def _cup(d, x, y, h, a, b):
    d.ellipse([x + 0.2 * h, y - 0.4 * h, x + h, y + 0.4 * h], outline=b, width=max(2, int(h / 6)))
    d.rectangle([x - 0.8 * h, y - 0.7 * h, x + 0.5 * h, y + 0.8 * h], fill=a)


def _boat(d, x, y, h, a, b):
    d.polygon([(x - h, y + 0.3 * h), (x + h, y + 0.3 * h), (x + 0.6 * h, y + h),
               (x - 0.6 * h, y + h)], fill=a)  # fmt: skip
    d.polygon([(x, y - h), (x, y + 0.2 * h), (x + 0.8 * h, y + 0.2 * h)], fill=b)


def _key(d, x, y, h, a, _b):
    w = max(2, int(h / 6))
    d.ellipse([x - h, y - 0.4 * h, x - 0.2 * h, y + 0.4 * h], outline=a, width=w)
    d.line([x - 0.2 * h, y, x + h, y], fill=a, width=w)
    for i in (0.5, 0.75):
        d.line([x + i * h, y, x + i * h, y + 0.4 * h], fill=a, width=w)


def _flag(d, x, y, h, a, b):
    d.line([x - 0.7 * h, y - h, x - 0.7 * h, y + h], fill=b, width=max(2, int(h / 8)))
    d.rectangle([x - 0.7 * h, y - h, x + h, y], fill=a)


def _ladder(d, x, y, h, a, _b):
    w = max(2, int(h / 8))
    for i in (-0.4, 0.4):
        d.line([x + i * h, y - h, x + i * h, y + h], fill=a, width=w)
    for i in range(6):
        s = y - 0.8 * h + i * 0.32 * h
        d.line([x - 0.4 * h, s, x + 0.4 * h, s], fill=a, width=w)


def _face(d, x, y, h, a, b):
    d.ellipse([x - h, y - h, x + h, y + h], fill=a)
    for i in (-0.4, 0.4):
        d.ellipse([x + (i - 0.12) * h, y - 0.4 * h, x + (i + 0.12) * h, y - 0.1 * h], fill=b)
    d.arc([x - 0.5 * h, y - 0.3 * h, x + 0.5 * h, y + 0.6 * h], 20, 160, b, max(2, int(h / 8)))


def _kite(d, x, y, h, a, b):
    w, s = 0.6 * h, y - 0.2 * h
    d.polygon([(x, y - h), (x + w, s), (x, y + w), (x - w, s)], fill=a)
    d.line([x, y + 0.6 * h, x + 0.3 * h, y + 0.8 * h, x - 0.1 * h, y + h], fill=b, width=3)


_SIGNS = {
    "sun": _sun, "house": _house, "tree": _tree, "fish": _fish, "star": _star, "cup": _cup,
    "boat": _boat, "key": _key, "flag": _flag, "ladder": _ladder, "face": _face, "kite": _kite,
}  # fmt: skip


def draw_page(seed, palette, words, topic):
    """Draw one page; give its PNG bytes and elements."""
    r = random.Random(seed)
    page = Page(r, palette, words)
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
    kinds = r.sample(["hero", "cards", "list", "form", "text"], 5)
    kinds.remove("hero")
    kinds.insert(r.randrange(2), "hero")
    for kind in kinds:
        if y > HEIGHT - 160:
            break
        y = _BLOCKS[kind](page, topic, y) + r.randrange(12, 32)
    return _png(page.image), page.elements


def _hero(page, topic, y):
    height = page.random.randrange(220, 380)
    left = page.random.choice([0, 24, 48])
    box = (left, y, WIDTH - left, min(y + height, HEIGHT))
    _picture(page, topic, box)
    page.add("img", box, role="img")
    return y + height


def _cards(page, topic, y):
    for i in range(2):
        x = 24 + i * 344
        card = page.add("article", (x, y, x + 328, min(y + 300, HEIGHT)), role="article")
        page.draw.rectangle([x, y, x + 328, y + 300], fill=page.palette[3])
        _picture(page, topic, (x, y, x + 328, y + 200))
        page.add("img", (x, y, x + 328, min(y + 200, HEIGHT)), role="img", parent=card)
        text, box = page.line(x + 12, y + 220, 26, 2)
        page.add("p", box, role="paragraph", text=text, text_box=box, parent=card)
    return y + 300


def _list(page, _topic, y):
    for _ in range(page.random.randrange(2, 5)):
        item = page.add("li", (24, y, 696, min(y + 80, HEIGHT)), role="listitem")
        page.draw.ellipse([32, y + 20, 72, y + 60], fill=page.palette[2])
        page.add("svg", (32, y + 20, 72, min(y + 60, HEIGHT)), role="img", parent=item)
        text, box = page.line(96, y + 24, 28, 3)
        page.add("a", box, role="link", text=text, text_box=box, interactive=True, parent=item)
        page.draw.line([24, y + 78, 696, y + 78], fill=page.palette[1])
        y += 80
        if y > HEIGHT - 80:
            break
    return y


def _form(page, _topic, y):
    page.draw.rectangle([24, y, 500, y + 72], outline=page.palette[1], width=3)
    page.add("input", (24, y, 500, min(y + 72, HEIGHT)), role="textbox", interactive=True)
    page.draw.rounded_rectangle([520, y, 696, y + 72], 16, fill=page.palette[4])
    text, box = page.line(548, y + 20, 28, 1)
    page.add(
        "button", (520, y, 696, min(y + 72, HEIGHT)), role="button", text=text, text_box=box,
        interactive=True,
    )  # fmt: skip
    return y + 72


def _text(page, _topic, y):
    top, lines, boxes = y, [], []
    for _ in range(page.random.randrange(2, 6)):
        text, box = page.line(24, y, 26, 5)
        lines.append(text)
        boxes.append(box)
        y += 40
    union = (24, boxes[0][1], max(b[2] for b in boxes), boxes[-1][3])
    page.add(
        "p", (24, top, 696, min(y, HEIGHT)), role="paragraph", text=" ".join(lines), text_box=union
    )
    return y


_BLOCKS = {"hero": _hero, "cards": _cards, "list": _list, "form": _form, "text": _text}


def _png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def draw_captures(captures: Path, pages: int, sites: int, shards: int = 2, seed: int = 0):
    """Write captures of drawn pages; give the topic of each key."""
    captures.mkdir(parents=True, exist_ok=True)
    shares = Shares(train=0.7, dev=0.15, test=0.15)
    write_split(captures / "split.toml", SplitPlan(seed=seed, shares=shares))
    r = random.Random(seed)
    looks = [_look(r) for _ in range(sites)]
    topics, plan, rows, members = {}, [], {}, {}
    for number in range(pages):
        shard = number % shards
        key = f"{shard:05d}_{number // shards:04d}"
        site = number % sites
        topics[key] = TOPICS[r.randrange(len(TOPICS))]
        host = f"site{site:02d}.test"
        url = f"http://{host}/{number}"
        palette, words = looks[site]
        png, elements = draw_page(seed * 100_003 + number, palette, words, topics[key])
        plan.append(Planned(key, shard, url, url, host))
        rows.setdefault(shard, []).append(CaptureRow(key, url, url, host, "ok"))
        members.setdefault(shard, []).append(Capture(key, png, b"<html></html>", elements))
    write_plan(captures, plan)
    for shard, lines in rows.items():
        failed = f"{shard:05d}_9999"
        lines.append(CaptureRow(failed, "http://x.test/", "http://x.test/", "x.test", "failed"))
        write_shard(captures, shard, lines, members[shard])
    return topics


def _look(r):
    dark = r.random() < 0.3
    ground = tuple(r.randrange(10, 60) if dark else r.randrange(225, 256) for _ in range(3))
    ink = tuple(r.randrange(200, 250) if dark else r.randrange(0, 70) for _ in range(3))
    rest = [tuple(r.randrange(60, 230) for _ in range(3)) for _ in range(3)]
    return [ground, ink, *rest], _WORDS[r.choice(sorted(_WORDS))]


def draw_captured(pages: int, seed: int = 0) -> list[Capture]:
    """Draw pages in memory."""
    r = random.Random(seed)
    looks = [_look(r) for _ in range(8)]
    found = []
    for number in range(pages):
        png, elements = draw_page(seed + number, *looks[number % 8], TOPICS[number % len(TOPICS)])
        found.append(Capture(f"00000_{number:04d}", png, b"<html></html>", elements))
    return found


@pytest.fixture(scope="session")
def captured():
    """Ten drawn captures in memory: no Parquet anywhere."""
    return draw_captured(10)


@pytest.fixture(scope="session")
def pictured(captured, tmp_path_factory):
    """The same as a folder of pictures with a COCO file beside them."""
    folder = tmp_path_factory.mktemp("pictured")
    with scratch(folder) as images, scratch(folder) as annotations:
        draft = CocoWriter(images, annotations, DEFAULT)
        for page in captured:
            (folder / f"{page.key}.png").write_bytes(page.screenshot)
            draft.add(f"{page.key}.png", label(page.elements, DEFAULT))
        draft.write(folder / "labels.json", {})
    return folder / "labels.json"


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


@pytest.fixture(scope="session")
def trained(train_pages, shared):
    """Weights after forty steps, and the loss of each step."""
    settings = TrainDetectorSettings(steps=40, batch_size=3, threads=1, device="cpu", held_out=0.2)

    def make(folder):
        folder.mkdir()
        path = folder / "w.safetensors"
        training = Training(path, settings, train_pages)
        totals = [float(sum(training.take_step().values())) for _ in range(40)]
        finish(path, training.learner, training.pages)
        (folder / "losses.json").write_text(json.dumps(totals))

    folder = shared("trained", make)
    return folder / "w.safetensors", json.loads((folder / "losses.json").read_text())
