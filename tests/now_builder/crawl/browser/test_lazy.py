"""Lazy pages: what a reader would see on the first screen is there without a scroll or a touch."""

import io

import numpy as np
import pytest
from PIL import Image

from now_builder.crawl.run import crawl
from now_builder.crawl.settings import CrawlSettings
from now_builder.formats.shard import Capture, CaptureRow, read_captures, read_rows
from tests.now_builder.crawl.awkward import Awkward, page

pytestmark = [pytest.mark.browser]

EMPTY = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
PICTURE = "<img {} width=100 height=100>"
LATER = PICTURE.format(f"src='{EMPTY}' data-src=/red.png class=later")
SHOW = (
    "const show = () => document.querySelectorAll('.later').forEach((i) => i.src = i.dataset.src);"
)
WATCH = (
    "new IntersectionObserver((seen, watch) => seen.forEach((one) => {"
    " if (!one.isIntersecting) return; watch.unobserve(one.target); %s }))"
    ".observe(document.querySelector('.later'))"
)
DELAYED = (
    "const load = () => { removeEventListener('touchstart', load);"
    " const s = document.createElement('script'); s.src = '/slow-script.js';"
    " document.body.append(s) };"
    "addEventListener('touchstart', load, { passive: true })"
)

LAZY: dict[str, str] = {
    "attribute": PICTURE.format("loading=lazy src=/red.png"),
    "slow-attribute": PICTURE.format("loading=lazy src=/slow-red.png"),
    "observer": LATER + f"<script>{WATCH % 'one.target.src = one.target.dataset.src'}</script>",
    "slow-observer": LATER.replace("/red", "/slow-red")
    + f"<script>{WATCH % 'one.target.src = one.target.dataset.src'}</script>",
    "observer-that-loads-first": LATER.replace("/red", "/slow-red") + "<script>"
    + WATCH % "const i = new Image(); i.onload = () => { one.target.src = i.src };"
    " i.src = one.target.dataset.src" + "</script>",
    "scroll": LATER + f"<script>{SHOW} addEventListener('scroll', show)</script>",
    "scroll-of-document": LATER
    + f"<script>{SHOW} document.addEventListener('scroll', show, true)</script>",
    "touch": LATER + f"<script>{SHOW} document.addEventListener('touchstart', (event) => {{"
    " if (event.touches[0].clientX >= 0) show() }, { passive: true })</script>",
    "delayed-script": LATER + f"<script>{DELAYED}</script>",
    "content-visibility": "<section style='content-visibility:auto; contain-intrinsic-size:100px'>"
    + PICTURE.format("loading=lazy src=/red.png") + "</section>",
}  # fmt: skip
MOST_RED = 200 * 200


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CaptureRow, Capture]]:
    folder = tmp_path_factory.mktemp("lazy")
    with Awkward() as server:
        for name, body in LAZY.items():
            below = "<p>text</p>" * 200 + PICTURE.format("loading=lazy src=/below.png")
            server.pages[f"/lazy/{name}"] = page(name, body + below)
        lines = [server.url(f"/lazy/{name}") for name in LAZY]
        (folder / "urls.txt").write_text("\n".join(lines), encoding="utf-8")
        settings = CrawlSettings(allow_private=True, resolve=server.resolve, concurrency=2)
        crawl(folder / "urls.txt", folder / "captures", settings)
        assert not server.hits["/below.png"]  # what is far below the screen stays lazy
    rows = read_rows(folder / "captures")
    found = zip(rows, read_captures(folder / "captures"), strict=True)
    return {row.url.rpartition("/")[2]: (row, capture) for row, capture in found}


@pytest.mark.parametrize("name", LAZY)
def test_what_is_lazy_on_the_first_screen_is_in_the_screenshot(crawled, name: str) -> None:
    row, capture = crawled[name]
    with Image.open(io.BytesIO(capture.screenshot)) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    red = (pixels[..., 0] > 150) & (pixels[..., 1] < 80) & (pixels[..., 2] < 80)
    assert red.sum() > 0.95 * MOST_RED
    assert row.load_state == "settled"
