"""The exported site in a real browser: sorting, filters, keyboard, phones, without script too."""

import re
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from leaderboard.site.environment import compare_path
from leaderboard.site.export import export_site
from now_builder.machine.chromium import find_chromium

pytestmark = pytest.mark.browser

_KINDS = ("index", "jieba", "flickr30k", "entry", "noted", "compare", "progress", "404")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory, filed):
    """The static site on loopback, under a prefix as on a project's pages; its address."""
    folder = tmp_path_factory.mktemp("www")
    export_site(folder / "board", filed.values())
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/board"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def paths(filed):
    return {
        "index": "index.html",
        "jieba": "boards/jieba.html",
        "flickr30k": "boards/flickr30k.html",
        "entry": f"entries/{filed['Best'].name}.html",
        "noted": f"entries/{filed['Forged'].name}.html",
        "compare": compare_path(filed["Best"].name, filed["Level"].name),
        "progress": "progress.html",
        "404": "404.html",
    }


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = find_chromium()
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, site):
    """Open a page; at the end nothing may have complained or left the origin."""
    contexts, messages = [], []

    def noted(request):
        if not request.url.startswith((site, f"{site.rpartition('/')[0]}/favicon.ico")):
            messages.append(request.url)

    def opened(path, width=1280, height=900, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("request", noted)
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("console", lambda m: messages.append(m.text) if "favicon" not in str(m.location)
                else None)  # fmt: skip
        page.goto(f"{site}/{path}")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not messages


def _methods(page, table=0):
    rows = page.locator("table.board").nth(table).locator("tbody tr:visible th.who")
    return [text.split("\n")[0] for text in rows.all_inner_texts()]


@pytest.mark.parametrize("width", [320, 390, 1280])
@pytest.mark.parametrize("kind", _KINDS)
def test_no_page_scrolls_sideways(visit, paths, kind, width):
    page = visit(paths[kind], width)
    page.evaluate("document.querySelectorAll('details.card').forEach(e => { e.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    beyond = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert not any(page.evaluate(beyond))
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "1248px"


def test_a_long_name_pushes_no_figure_out_of_view(browser, filed, paths, tmp_path):
    changed = dict(filed)
    for name in ("Best", "Level", "Run again"):
        result = filed[name].result
        long = f"{name} {'with many words ' * 4}{'WithoutAnySpace' * 4}"
        method = result.method.model_copy(update={"name": long})
        changed[name] = replace(filed[name], result=result.model_copy(update={"method": method}))
    export_site(tmp_path / "site", changed.values())
    for width in (320, 1280):
        page = browser.new_page(viewport={"width": width, "height": 900})
        for kind in ("compare", "entry"):
            page.goto(f"file://{tmp_path}/site/{paths[kind]}")
            page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            beyond = (
                "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
            )
            assert width < 1280 or not page.evaluate(beyond), kind
        page.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_score_is_in_view(visit, paths, width):
    page = visit(paths["jieba"], width)
    boxes = [sum_.bounding_box() for sum_ in page.locator("td.sum").all()]
    assert len(boxes) > 15
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_ground_is_light_or_dark_as_asked(visit, paths, scheme):
    page = visit(paths["index"], color_scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(int(part) for part in re.findall(r"\d+", ground)[:3]) / 3
    assert (shade > 200) if scheme == "light" else (shade < 60)


def test_a_header_sorts_in_place_both_ways_and_says_so(visit, paths):
    page = visit(paths["jieba"])
    placed = _methods(page)
    head = page.locator("table.board").first.get_by_role("columnheader", name="R@5").first
    head.get_by_role("link").click()
    assert page.url.endswith("jieba.html")
    assert head.get_attribute("aria-sort") == "descending"
    assert page.locator("[aria-sort]").count() == page.locator("table.board").count()
    bodies = page.locator("table.board").first.locator("tbody:not(.title)").all()
    assert len(bodies) == 2
    columns = [body.locator("tr td:nth-of-type(6)") for body in bodies]
    for column in columns:
        values = [float(text) for text in column.all_inner_texts() if text.strip()]
        assert len(values) >= 3
        assert values == sorted(values, reverse=True)
    head.get_by_role("link").click()
    assert head.get_attribute("aria-sort") == "ascending"
    for column in columns:
        values = [float(text) for text in column.all_inner_texts() if text.strip()]
        assert values == sorted(values)
    assert page.locator("#said").inner_text().endswith("R@5, ascending")
    page.get_by_role("columnheader", name="Place").first.get_by_role("link").click()
    assert _methods(page) == placed


def test_without_script_a_header_leads_to_the_sorted_page(visit, paths):
    page = visit(paths["jieba"], java_script_enabled=False)
    assert not page.locator("#count").is_visible()
    page.locator("table.board").first.get_by_role("link", name="Method").click()
    assert "jieba.by-method.html#" in page.url
    methods, begin = _methods(page), _methods(page).index("Normalised")
    for part in (methods[:begin], methods[begin:]):
        assert part == sorted(part, key=str.casefold)
    assert begin == 6, "four proven and two references"
    head = page.locator("table.board").first.locator("th.who[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("table.board").first.get_by_role("link", name="Place").click()
    assert _methods(page)[-1] == "Tied throughout"
    assert "Overstated" in _methods(page)[6:], "claims stand beneath proof"


@pytest.mark.parametrize("script", [True, False])
def test_filters_hide_rows_with_and_without_script(visit, paths, script):
    page = visit(paths["jieba"], java_script_enabled=script)
    everything = _methods(page)
    page.get_by_label("one network", exact=True).check()
    assert [name for name in _methods(page) if name not in {"Language alone", "Chance"}] == [
        "Level",
        "Behind",
    ]
    page.get_by_label("one network", exact=True).uncheck()
    page.get_by_label("no post-processing").check()
    assert "Normalised" not in _methods(page)
    page.get_by_label("no post-processing").uncheck()
    page.get_by_label("no external data").check()
    assert "Normalised" not in _methods(page)
    page.get_by_label("no external data").uncheck()
    page.get_by_label("file scored").uncheck()
    shown = {*_methods(page)} - {"Language alone", "Chance"}
    assert shown == {"Best", "Level", "Run again", "Behind", "Overstated"}
    if script:
        assert re.fullmatch(r"\d+ of \d+ rows shown", page.locator("#count").inner_text())
    page.get_by_label("file scored").check()
    assert _methods(page) == everything


def test_a_method_is_found_by_name_and_the_address_keeps_the_filters(visit, paths):
    page = visit(paths["jieba"])
    page.get_by_label("Find a method by its name").fill("  NORMAL ")
    page.get_by_label("one network", exact=True).check()
    page.get_by_label("one network", exact=True).uncheck()
    page.get_by_label("reported", exact=True).uncheck()
    references = {"Language alone", "Chance"}
    assert {*_methods(page)} - references == {"Normalised"}
    assert page.url.endswith("?find=NORMAL&show-reported=0")
    page.reload()
    assert {*_methods(page)} - references == {"Normalised"}
    page.get_by_label("Find a method by its name").fill("")
    page.get_by_label("reported", exact=True).check()
    assert page.url.endswith("jieba.html")
    assert "Best" in _methods(page)


def test_two_rows_are_picked_to_be_compared(visit, paths, filed):
    page = visit(paths["jieba"])
    for name in ("Level", "Best"):
        page.get_by_label(f"Compare {name}", exact=True).first.click()
    page.wait_for_url("**/compare/*.html")
    names = sorted(filed[name].name for name in ("Best", "Level"))
    assert page.url.endswith(f"compare/{names[0]}..{names[1]}.html")
    page = visit(paths["jieba"], java_script_enabled=False)
    assert not page.locator(".pick, #find:visible").count()


def test_a_page_is_walked_by_keyboard(visit, paths):
    page = visit(paths["jieba"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    assert page.url.endswith("#main")
    page.locator("#show-scored").focus()
    page.keyboard.press("Space")
    assert not page.locator("#show-scored").is_checked()
    page.keyboard.press("Space")
    link = page.locator("table.board").first.get_by_role("link", name="Method")
    link.focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert _methods(page)[0] == "Behind"


@pytest.mark.parametrize("script", [True, False])
def test_from_the_first_page_to_an_entry_to_a_comparison_and_back(visit, paths, filed, script):
    page = visit(paths["index"], java_script_enabled=script)
    page.get_by_role("main").get_by_role("link", name="NoW Jieba").first.click()
    page.get_by_role("link", name="Level", exact=True).click()
    assert page.locator("h1").inner_text() == "Level"
    page.get_by_role("link", name="Compare with Best").click()
    assert page.url.endswith(compare_path(filed["Best"].name, filed["Level"].name))
    assert "does not tell them apart" in page.locator(".verdict").inner_text()
    page.get_by_role("link", name="Best", exact=True).click()
    page.locator("details summary").first.click()
    assert page.get_by_role("table", name="Recall at K").is_visible()
    page.get_by_role("banner").get_by_role("link", name="Noise of Web").click()
    assert page.url.endswith("index.html")


@pytest.mark.parametrize("suffix", [".json", ".csv"])
def test_an_entrys_files_can_be_downloaded(visit, paths, filed, suffix, tmp_path):
    page = visit(paths["entry"])
    with page.expect_download() as download:
        page.get_by_role("link", name=f"{filed['Best'].name}{suffix}").click()
    path = tmp_path / "file"
    download.value.save_as(path)
    text = path.read_text(encoding="utf-8")
    if suffix == ".json":
        assert text == filed["Best"].result.to_json()
    assert len(text) > 500


def test_the_site_opens_from_a_folder_too(visit, tmp_path, filed, browser):
    export_site(tmp_path / "site", filed.values())
    context = browser.new_context()
    page, messages = context.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.goto(f"file://{tmp_path}/site/boards/jieba.html")
    page.locator("table.board").first.get_by_role("link", name="Method").click()
    assert _methods(page)[0] == "Behind"
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "14px"
    assert not messages
    context.close()
