"""Pages whose first screen is shown late, in many ways: the picture is what a phone shows."""

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

BLUE = (0x20, 0x60, 0xC0)
CASES = read_cases(Path(__file__).with_name("rest.toml"))
PAGES = CASES["revealed"] | CASES["at-rest"] | CASES["restless"]


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[CaptureRow, Capture]]:
    folder = tmp_path_factory.mktemp("rest")
    with Awkward() as server:
        for name, body in PAGES.items():
            server.pages[f"/rest/{name}"] = page(name, body, text="")
        paths = [f"/rest/{name}" for name in PAGES]
        rows = visit(folder, server, paths, settle_s=6.0, concurrency=3, page_timeout_s=30.0)
    captures = {capture.key: capture for capture in read_captures(folder / "captures")}
    assert [(path, row.error) for path, row in rows.items() if row.status != "ok"] == []
    return {row.caption or "": (row, captures[row.key]) for row in rows.values()}


def _blue(capture: Capture) -> float:
    """Share of the blocks' colour."""
    with Image.open(io.BytesIO(capture.screenshot)) as picture:
        pixels = np.asarray(picture.convert("RGB"), dtype=np.int16)
    return float((np.abs(pixels - BLUE).max(axis=2) <= 12).mean())


@pytest.mark.parametrize("name", CASES["revealed"])
def test_what_is_shown_late_is_in_the_picture(crawled, name: str) -> None:
    assert _blue(crawled[name][1]) > 0.4


@pytest.mark.parametrize("name", CASES["at-rest"])
def test_a_page_at_rest_is_not_waited_for(crawled, name: str) -> None:
    row, capture = crawled[name]
    assert row.load_state == "settled"
    assert _blue(capture) > 0.4
    assert (row.ink or 0) > 0.1


@pytest.mark.parametrize("name", CASES["restless"])
def test_a_page_that_moves_for_ever_or_stays_empty_says_so(crawled, name: str) -> None:
    assert crawled[name][0].load_state == "partial"


def test_an_empty_page_has_no_ink(crawled) -> None:
    row, _ = crawled["nothing"]
    assert (row.ink, row.ink_middle) == (0.0, 0.0)
    header, _ = crawled["header-alone"]
    assert (header.ink or 0) > 0.0
    assert header.ink_middle == 0.0
