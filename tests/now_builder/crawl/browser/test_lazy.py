"""Lazy pages: what a reader would see on the first screen is there without a scroll or a touch."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from now_builder.formats.shard import Capture, CaptureRow, read_captures
from tests.now_builder.crawl.awkward import Awkward, page
from tests.now_builder.crawl.cases import read_cases
from tests.now_builder.crawl.crawls import visit

pytestmark = [pytest.mark.browser]

LAZY = read_cases(Path(__file__).with_name("lazy.toml"))["lazy"]
BELOW = "<p>text</p>" * 200 + "<img loading=lazy src=/below.png width=100 height=100>"
MOST_RED = 200 * 200


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CaptureRow, Capture]]:
    folder = tmp_path_factory.mktemp("lazy")
    with Awkward() as server:
        for name, body in LAZY.items():
            server.pages[f"/lazy/{name}"] = page(name, body + BELOW)
        paths = [f"/lazy/{name}" for name in LAZY]
        rows = visit(folder, server, paths, concurrency=2, settle_s=6.0, page_timeout_s=30.0)
        assert not server.hits["/below.png"]  # what is far below the screen stays lazy
    captures = read_captures(folder / "captures")
    pairs = zip(rows.items(), captures, strict=True)
    return {path.rpartition("/")[2]: (row, capture) for (path, row), capture in pairs}


@pytest.mark.parametrize("name", LAZY)
def test_what_is_lazy_on_the_first_screen_is_in_the_screenshot(crawled, name: str) -> None:
    row, capture = crawled[name]
    with Image.open(io.BytesIO(capture.screenshot)) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    red = (pixels[..., 0] > 150) & (pixels[..., 1] < 80) & (pixels[..., 2] < 80)
    assert red.sum() > 0.95 * MOST_RED
    assert row.load_state == "settled"
