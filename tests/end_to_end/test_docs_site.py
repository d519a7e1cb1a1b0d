"""The documentation builds as a site without a broken link, and its notebook runs."""

import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from now_builder.formats.shard import read_rows
from now_builder.package.run import package
from now_builder.package.settings import PackageSettings
from now_builder.tokenize.run import tokenize
from now_builder.tokenize.settings import TokenizeSettings
from tests.end_to_end.documented import DOCS, ROOT
from tests.now_builder.conftest import write_small_crawl, write_small_features
from tests.page_checks import complaints

pytestmark = pytest.mark.release
TEMPLATES = Path(str(distribution("nbconvert").locate_file(""))).parents[2] / "share/jupyter"
"""Of the environment that nbconvert is in; the wheel's lies above it."""


def test_the_site_builds_with_links_that_hold_and_is_readable(tmp_path: Path, browser) -> None:
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default",
             "JUPYTER_PATH": str(TEMPLATES)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    loads = re.compile(
        r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//|<link[^>]*stylesheet[^>]*"http'
    )
    assert [str(path) for path, text in pages.items() if loads.search(text)] == []
    assert "--split-seed" in pages[site / "reference/now-builder.html"]
    assert "read_settings" in pages[site / "reference/pc2_baseline.html"]
    formats = pages[site / "formats.html"]
    assert "<td><code>url_canonical</code></td>" in formats, "a class's fields"
    assert "Fields: <code>" not in formats
    page, wrong = browser.new_page(), {}
    for path in pages:
        page.goto(path.as_uri())
        wrong[path.name] = complaints(page)
    page.close()
    assert {name: found for name, found in wrong.items() if found} == {}


@pytest.fixture
def packaged(tmp_path: Path) -> Path:
    """A folder with captures of sixty drawn pages and the release that is made of them."""
    captures, captions = tmp_path / "captures", tmp_path / "captions"
    write_small_crawl(captures, pages=60)
    keys = [row.key for row in read_rows(captures) if row.status == "ok"]
    write_small_features(tmp_path / "features.h5", keys)
    tokenize(captures, captions, TokenizeSettings(bert="learn"))
    package(captures, tmp_path / "features.h5", captions, tmp_path / "release", PackageSettings())
    return tmp_path


def test_the_notebook_is_kept_with_what_it_showed() -> None:
    import nbformat

    cells = nbformat.read(DOCS / "notebook.ipynb", as_version=4).cells
    shown = [kinds(cell.outputs) for cell in cells if cell.cell_type == "code"]
    assert all(shown)
    assert "error" not in {kind for outputs in shown for kind in outputs}
    assert (DOCS / "notebook.ipynb").stat().st_size < 300_000


def test_the_notebook_runs_on_another_release(packaged: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)
    shown = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    place = {"metadata": {"path": str(packaged)}}
    NotebookClient(notebook, timeout=200, startup_timeout=200, resources=place).execute()
    made = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert [kinds(outputs) for outputs in made] == [kinds(outputs) for outputs in shown]
    text = str(made[-1][0]["data"]["text/html"])
    assert text.count("#16a34a") <= text.count("<p ")
    assert (packaged / "runs/notebook/log.jsonl").exists()


def kinds(outputs: list[dict[str, str]]) -> list[str]:
    """Return what a cell shows: text, pictures; lines of one stream count once."""
    return sorted({output.get("name", output["output_type"]) for output in outputs})
