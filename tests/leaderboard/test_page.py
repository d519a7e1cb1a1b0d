"""The board and its pages: order, sections, escaping, and how they look in a real browser."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from leaderboard.board import axis_of, make_board
from leaderboard.evaluate import score
from leaderboard.page import export_site, policy, render_site
from leaderboard.store import entry_of, file_result, read_results
from leaderboard.submission import new_submission, pack, with_details
from now_builder.chromium import find_chromium
from now_builder.errors import ConfigError

N = 24


def _entry(folder, release, name="Mine", strength=2.0, **details):
    noise = np.random.default_rng(0).standard_normal((N, N))
    similarity = (noise + strength * np.eye(N)).astype(np.float32)
    if strength == 0:
        similarity[:] = 0
    track = "jieba" if (release / "manifest.json").exists() else "bert"
    meta = with_details(new_submission(release, track, "test", name), details)
    pack(folder / "x.zip", similarity, meta)
    return entry_of(score(folder / "x.zip", release))


def _at_paper_size(entry):
    """The same result as if it were on the authors' 1,000 pairs."""
    return entry_of(
        entry.result.model_copy(update={"n_pairs": 1000, "references": {"chance": 3.2}})
    )


def test_results_on_a_rebuilt_release_stand_apart_from_the_papers(tmp_path, release):
    entries = [_entry(tmp_path, release, "A", 2.0), _entry(tmp_path, release, "B", 4.0)]
    own, paper = make_board(entries)[0].sections
    assert (own.with_paper, paper.with_paper) == (False, True)
    assert [row.method for row in own.rows if row.evidence == "scored"] == ["B", "A"]
    assert {row.evidence for row in own.rows} == {"scored", "reference"}
    assert [row.place for row in paper.rows] == [1, 2, 3, 4, 5, None]
    assert paper.rows[-1].rsum == 3.2


def test_results_on_the_authors_test_set_stand_among_the_papers(tmp_path, archive):
    entry = _at_paper_size(_entry(tmp_path, archive))
    (section,) = make_board([entry])[2].sections
    assert section.with_paper
    assert section.rows[0].entry == entry
    assert [row.place for row in section.rows] == [1, 2, 3, 4, 5, 6, None]
    small = make_board([_entry(tmp_path, archive)])[2].sections
    assert [part.with_paper for part in small] == [False, True]


def test_equal_scores_share_a_place_and_the_unranked_have_none(tmp_path, release):
    entries = [_entry(tmp_path, release, name) for name in "AB"]
    entries += [_entry(tmp_path, release, "C", 1.0), _entry(tmp_path, release, "D", 0)]
    rows = [row for row in make_board(entries)[0].sections[0].rows if row.evidence == "scored"]
    assert [(row.method, row.place) for row in rows] == [("A", 1), ("B", 1), ("C", 3), ("D", None)]


def test_the_axis_is_round_and_long_enough():
    assert [axis_of(value) for value in (10.0, 60.0, 61.0, 599.0, 600.0)] == [60, 60, 120, 600, 600]


def test_the_order_of_results_does_not_change_a_byte(tmp_path, release, archive):
    entries = [_entry(tmp_path, release, name) for name in "AB"] + [_entry(tmp_path, archive)]
    site = render_site(entries)
    assert site == render_site(entries[::-1])
    assert len(site) == 1 + 2 * 3


def test_an_empty_board_shows_the_papers_rows():
    assert render_site([])["index.html"].count("reported by the paper</span>") == 15


_PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% include 'x' %}",
    "' autofocus onfocus='alert(1)",
    "&lt;b&gt;<b>",
)


class _Seen(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.handlers, self.links, self.text = set(), [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.links += [value for name, value in attrs if name in {"href", "src"}]

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("payload", _PAYLOADS)
def test_no_field_can_add_markup_to_a_page(tmp_path, release, payload):
    entry = _entry(
        tmp_path,
        release,
        payload,
        method={"version": payload, "abstract": payload, "name": payload},
        authors=[payload, payload],
        affiliation=payload,
        training={"external_data": payload, "pretrained_backbones": [payload]},
        postprocessing={"kind": "transductive", "description": payload},
        compute={"hardware": payload},
        environment={"toolkit": payload, "python": payload, "numpy": payload, "torch": payload},
        links={"code": "https://github.com/a/b?x=1&y=2"},
    )
    plain = {tag for text in _pages([_entry(tmp_path, release)]) for tag in _look(text).tags}
    for text in _pages([entry]):
        seen = _look(text)
        assert seen.tags <= plain | {"a"}
        assert not seen.handlers
        assert "script" not in seen.tags
        assert all(not link.startswith(("javascript", "data")) for link in seen.links)
        assert payload in " ".join("".join(seen.text).split())


def _pages(entries):
    return [text for name, text in render_site(entries).items() if name.endswith(".html")]


def _look(text):
    seen = _Seen()
    seen.feed(text)
    return seen


def test_a_page_loads_nothing_from_elsewhere(tmp_path, release):
    for text in _pages([_entry(tmp_path, release)]):
        assert f'content="{policy()}"' in text
        assert not re.search(r"<(link|script|img|iframe|object|form)\b", text)
        assert "@import" not in text
        assert "url(" not in text


def test_a_site_is_replaced_whole_and_nothing_else_is(tmp_path, release):
    site = tmp_path / "site"
    entry = _entry(tmp_path, release)
    assert export_site(site, [entry]) == 3
    (site / "entries" / "old.html").write_text("old")
    export_site(site, [])
    assert [path.name for path in site.rglob("*.html")] == ["index.html"]
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    with pytest.raises(ConfigError, match="export-site did not write"):
        export_site(precious, [entry])
    assert (precious / "thesis.tex").read_text() == "years"


def test_a_killed_export_leaves_the_old_site_or_the_new(tmp_path, release):
    store, site = tmp_path / "store", tmp_path / "site"
    export_site(site, [])
    old = (site / "index.html").read_text()
    for strength in range(1, 30):
        file_result(store, _entry(tmp_path, release, f"M{strength}", float(strength)).result)
    new = render_site(read_results([store]))["index.html"]
    command = [sys.executable, "-c", "from leaderboard.cli import main; main()", "export-site"]
    for wait in (0.5, 0.8, 1.1, 60):
        process = subprocess.Popen(
            [*command, str(site), "--results", str(store)],
            stdout=subprocess.DEVNULL,
            env=os.environ,
        )
        try:
            process.wait(wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert (site / "index.html").read_text() in (old, new)
    assert (site / "index.html").read_text() == new


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    with sync_playwright() as playwright:
        path = find_chromium()
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.browser
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_stand_in_a_browser(tmp_path, release, archive, browser, width, scheme):
    """No sideways scrolling, no blocked style, every rSum in view, a link there and back."""
    long = "A method whose name is rather longer than anybody would like " * 2
    entries = [
        _entry(tmp_path, release, "Mine", training={"ensemble_size": 2}, authors=["Ann"] * 40),
        _entry(tmp_path, release, long[:119].strip(), 1.0),
        _entry(tmp_path, release, "w" * 110, 0.0, postprocessing={"kind": "transductive"}),
        _at_paper_size(_entry(tmp_path, archive)),
    ]
    export_site(tmp_path / "site", entries)
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, java_script_enabled=True
    )
    page, messages = context.new_page(), []
    page.on("console", lambda message: messages.append(message.text))
    page.on("requestfailed", lambda request: messages.append(request.url))
    page.goto(f"file://{tmp_path}/site/index.html")
    _stands(page, width)
    sums = page.locator(".board td.sum")
    assert sums.count() >= 20
    for box in (sums.nth(place).bounding_box() for place in range(sums.count())):
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    page.get_by_role("link", name="Mine", exact=True).first.click()
    assert page.locator("h1").inner_text() == "Mine"
    _stands(page, width)
    page.get_by_role("link", name="Leaderboard").click()
    assert Path(page.url.partition("#")[0]).name == "index.html"
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    shade = sum(int(part) for part in re.findall(r"\d+", back)[:3]) / 3
    assert (shade > 200) if scheme == "light" else (shade < 60)
    assert not messages
    context.close()


def _stands(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") == "14px"
    beyond = "[...document.querySelectorAll('.scroll')].map(e => e.scrollWidth - e.clientWidth)"
    assert not any(page.evaluate(beyond))
