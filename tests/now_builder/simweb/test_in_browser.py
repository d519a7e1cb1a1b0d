"""Chromium sees a phone page: large pictures in the first screen, told apart by their topic."""

import io
import shutil
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from PIL import Image

from now_builder.program.web_server import serving
from now_builder.simweb.answer import Answers
from now_builder.simweb.draw import TOPICS, draw
from now_builder.simweb.make import make, read_world
from now_builder.simweb.settings import SimwebSettings
from now_builder.simweb.world import World, build_world

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api")

PICTURES = """() => [...document.querySelectorAll('.pic')].filter(e => {
  const b = e.getBoundingClientRect();
  const w = Math.min(b.right, innerWidth) - Math.max(b.left, 0);
  const h = Math.min(b.bottom, innerHeight) - Math.max(b.top, 0);
  return w > 90 && h > 60 && (e.tagName !== 'IMG' || e.naturalWidth > 0);
}).length"""


@pytest.fixture(scope="module")
def world() -> World:
    return build_world(SimwebSettings(pages=400))


@pytest.fixture(scope="module")
def context(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    folder = tmp_path_factory.mktemp("served")
    make(folder, world.settings)
    path = shutil.which("chromium-headless-shell")
    with serving(Answers(read_world(folder))) as address, playwright.sync_playwright() as driver:
        rules = f"--host-resolver-rules=MAP *.test {address}"
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", rules])
        yield browser.new_context(
            viewport={"width": 360, "height": 640}, device_scale_factor=2, is_mobile=True
        )
        browser.close()


def test_pages_show_large_pictures_of_their_topic_without_a_script_error(
    world: World, context: Any
) -> None:
    chosen = {page.site: page for page in world.pages if page.kind == "page"}
    counts = []
    for page in list(chosen.values())[:16]:
        tab = context.new_page()
        problems: list[str] = []
        tab.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
        tab.on("requestfailed", lambda request, problems=problems: problems.append(request.url))
        tab.goto(page.url)
        assert not problems
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        described = tab.locator("meta[name=description i]").first.get_attribute("content")
        assert described == page.description
        counts.append(tab.evaluate(PICTURES))
        tab.close()
    assert min(counts) >= 1
    assert np.mean(counts) >= 2


def test_a_browser_reads_legacy_pages_and_scripted_descriptions(world: World, context: Any) -> None:
    kinds = ("legacy_header", "legacy_meta", "legacy_late", "legacy_conflict", "script_description")
    pages = [page for page in world.pages if page.kind in kinds]
    assert {page.kind for page in pages} == set(kinds)
    for page in pages:
        tab = context.new_page()
        tab.goto(page.url)
        described = tab.locator("meta[name=description i]").first.get_attribute("content")
        assert described == page.description, page
        tab.close()


@pytest.mark.slow
def test_a_linear_probe_tells_the_topics_apart(context: Any) -> None:
    """24 x 24 px of a picture, any variant, are enough for more than 85 % of twelve topics."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    topics = sorted(Random("0/world").sample(TOPICS, 12))
    tab = context.new_page()
    features, labels = [], []
    style = ' style="width:60px;height:46px;display:block;float:left"'
    for number in range(60):
        pictures = [
            draw(topic, Random(f"{topic}/{number}"), 130, attributes=style) for topic in topics
        ]
        phone = "<meta name=viewport content=width=device-width>"
        tab.set_content(f"{phone}<body style='margin:0'>{''.join(pictures)}")
        screen = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        for place, topic in enumerate(topics):
            x, y = place % 6 * 120, place // 6 * 92
            crop = screen.crop((x, y, x + 120, y + 92)).resize((24, 24))
            features.append(np.asarray(crop, np.float32).ravel() / 255)
            labels.append(topic)
    tab.close()
    half = len(labels) * 3 // 4
    probe = linear_model.LogisticRegression(max_iter=5000, C=0.1)
    probe.fit(np.array(features[:half]), labels[:half])
    assert probe.score(np.array(features[half:]), labels[half:]) > 0.85
