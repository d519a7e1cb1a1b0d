"""Chromium sees a phone page: large pictures of its topic in the first screen."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from now_builder.program.web_server import serving
from now_builder.simweb.answer import Answers
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
    """Also of pages in old encodings, and with a description that a script puts there."""
    kinds = ("script_description", "legacy_header", "legacy_meta", "legacy_late", "legacy_conflict")
    odd = [page for page in world.pages if page.kind in kinds]
    assert {page.kind for page in odd} == set(kinds)
    chosen = {page.site: page for page in world.pages if page.kind == "page"}
    counts = []
    for page in [*odd, *list(chosen.values())[:12]]:
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
