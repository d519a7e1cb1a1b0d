"""Cookie and consent overlays: hidden on request, the page beneath as it would be without them."""

from pathlib import Path

import pytest

from now_builder.formats.shard import Capture, CaptureRow, read_captures
from tests.now_builder.crawl.awkward import Awkward, page
from tests.now_builder.crawl.cases import read_cases
from tests.now_builder.crawl.crawls import visit

pytestmark = [pytest.mark.browser]

CONTENT = (
    "<style>body { margin: 0; font: 16px/20px sans-serif } nav { position: sticky; top: 0;"
    " height: 50px; background: #246 } .on { position: fixed; left: 0; right: 0; bottom: 0;"
    " padding: 20px; background: #fff; z-index: 9 } .veil { position: fixed; inset: 0;"
    " background: rgba(0, 0, 0, 0.5) }</style>"
    "<nav><a href=/>Home</a> <a href=/cookies>Cookies</a></nav>"
    "<main><h1>News of the day</h1>" + "<p>It rained on the hills, and then it shone.</p>" * 60
)
CASES = read_cases(Path(__file__).with_name("overlays.toml"))
HIDDEN, KEPT = CASES["hidden"], CASES["kept"]


def crawled(folder: Path, overlays: str) -> dict[str, tuple[CaptureRow, Capture]]:
    bodies = {name: body for name, (body, _) in HIDDEN.items()} | KEPT
    with Awkward() as server:
        for name, body in bodies.items():
            server.pages[f"/on/{name}"] = page(name, CONTENT + "</main>" + body)
        paths = [f"/on/{name}" for name in bodies]
        rows = visit(folder, server, paths, overlays, overlays=overlays, page_timeout_s=30.0)
    captures = read_captures(folder / overlays)
    return {
        path[4:]: (row, capture)
        for (path, row), capture in zip(rows.items(), captures, strict=True)
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, tuple]]:
    folder = tmp_path_factory.mktemp("overlays")
    return {overlays: crawled(folder, overlays) for overlays in ("keep", "hide")}


@pytest.mark.parametrize("name", HIDDEN)
def test_an_overlay_is_hidden_and_nothing_else_changes(both, name: str) -> None:
    row, capture = both["hide"][name]
    assert set(row.overlays) == set(HIDDEN[name][1])
    assert capture.screenshot == both["keep"]["bare"][1].screenshot
    assert not [element for element in capture.elements if "ccept" in element.text]


@pytest.mark.parametrize("name", HIDDEN)
def test_by_default_overlays_stay(both, name: str) -> None:
    row, capture = both["keep"][name]
    assert row.overlays == []
    assert capture.screenshot != both["keep"]["bare"][1].screenshot


@pytest.mark.parametrize("name", KEPT)
def test_what_belongs_to_the_page_stays(both, name: str) -> None:
    row, capture = both["hide"][name]
    assert row.overlays == []
    assert capture.screenshot == both["keep"][name][1].screenshot
