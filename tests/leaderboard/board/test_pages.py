"""The site: complete, escaped, valid, readable, the same for the same entries; in a browser too."""

import csv
import io
import json
import os
import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest

from leaderboard.board import charts, pages
from leaderboard.board.display_text import EVIDENCE
from leaderboard.board.pages import export_site, render_site
from leaderboard.metrics import CUTOFFS, expected_hits
from leaderboard.scoring.result import Note
from leaderboard.store.dataset import dataset_report
from leaderboard.store.entries import Withdrawal, read_result
from leaderboard.store.recompute import verify
from now_builder.errors import ConfigError
from tests.page_checks import complaints

_VOID = {"meta", "col", "br", "input", "link", "img", "hr", "wbr"}


class _Look(HTMLParser):
    """What a page holds, and where its tags do not fit."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.handlers, self.links, self.text = set(), [], [], []
        self.ids, self.open, self.wrong, self.elements, self.headings = [], [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        self.elements.append((tag, found))
        self.handlers += [name for name in found if name.startswith("on") or name == "style"]
        self.links += [found[name] for name in ("href", "src") if name in found]
        self.ids += [found["id"]] if "id" in found else []
        self.headings += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}>")

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.text.append(data)


@pytest.fixture(scope="module")
def files(filed, release):
    return dict(render_site(filed.values(), [dataset_report(release)]))


@pytest.fixture(scope="module")
def looks(files):
    return {path: _Look(text) for path, text in files.items() if path.endswith(".html")}


def test_every_kind_of_file_is_there_and_the_order_of_entries_changes_no_byte(
    files, filed, release
):
    kinds = {re.sub(r"[0-9a-f]{12,16}", "NAME", path) for path in files}
    wanted = (
        "index.html progress.html 404.html boards/jieba.html boards/coco-5k.csv boards/bert.tex"
        " data/NAME.html entries/NAME.html entries/NAME.json results/NAME.json"
        " results/NAME.run.json ranks/NAME.csv"
    )
    assert set(wanted.split()) <= kinds
    again = dict(render_site([*filed.values()][::-1], [dataset_report(release)]))
    assert again == files


def test_every_link_inside_the_site_leads_somewhere_and_the_markup_is_sound(looks, files):
    for path, look in looks.items():
        for link in look.links:
            target, _, mark = link.partition("#")
            if link.startswith("https://"):
                continue
            to = str(PurePosixPath(os.path.normpath(PurePosixPath(path).parent / unquote(target))))
            to = path if not target else to
            assert to in files, (path, link)
            assert not mark or mark in looks[to].ids, (path, link)
        assert not look.wrong, (path, look.wrong)
        assert len(set(look.ids)) == len(look.ids), path
        assert look.headings[0] == 1, path
        assert look.headings.count(1) == 1, path
        steps = zip(look.headings, look.headings[1:], strict=False)
        assert all(after <= before + 1 for before, after in steps), path
        for tag, attrs in look.elements:
            if attrs.get("role") == "img":
                assert attrs.get("aria-label") or attrs["aria-labelledby"] in look.ids, path
            if tag == "th":
                assert attrs["scope"], path
        tags = [tag for tag, _ in look.elements]
        assert tags.count("table") == tags.count("caption"), path
        assert tags.count("main") == 1, path


def test_a_page_loads_nothing_and_allows_only_its_own_style_and_script(files):
    policy = pages._policy()
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none';")
    for path, text in files.items():
        if not path.endswith(".html"):
            continue
        assert f'content="{policy}"' in text
        outward = re.findall(r'<a href="https:[^>]*>', text)
        assert all('rel="nofollow noopener ugc"' in link for link in outward)
        assert not re.search(r"<(link|img|iframe|object|form|embed)\b|@import|url\(", text)
        for tag, inline in re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL):
            digest = b64encode(sha256(inline.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy.split(f"{tag}-src ")[1].split(";")[0].split()


_PAYLOAD = (
    '<script>alert(1)</script> "><img src=x onerror=alert(1)> </style><svg/onload=alert(1)>'
    " {{ 7 * 7 }}{% include 'x' %} ' autofocus onfocus='alert(1) &lt;b&gt;<b>"
    " javascript:alert(1)//]]>--><b>"
)


def _hostile(result):
    """The result with a payload in every text."""
    method = dict.fromkeys(("name", "version", "abstract"), _PAYLOAD)
    training = {"external_data": _PAYLOAD, "pretrained_backbones": (_PAYLOAD,)}
    return result.model_copy(
        update={
            "method": result.method.model_copy(update=method),
            "authors": (_PAYLOAD, _PAYLOAD),
            "affiliation": _PAYLOAD,
            "training": result.training.model_copy(update=training),
            "postprocessing": result.postprocessing.model_copy(update={"description": _PAYLOAD}),
            "compute": result.compute.model_copy(update={"hardware": _PAYLOAD}),
            "environment": result.environment.model_copy(update={"python": _PAYLOAD}),
            "links": result.links.model_copy(update={"paper": _PAYLOAD, "code_commit": _PAYLOAD}),
            "notes": (Note.model_construct(code=_PAYLOAD, message=_PAYLOAD),),
        }
    )


def test_no_field_can_add_markup_to_any_page(filed, looks, release):
    tags = {tag for look in looks.values() for tag in look.tags}
    entries = []
    for entry in filed.values():
        run = entry.run and entry.run.model_copy(
            update={"by": _PAYLOAD, "code_commit": _PAYLOAD, "result": _hostile(entry.run.result)}
        )
        gone = entry.withdrawal and Withdrawal.model_construct(
            name=entry.name, withdrawn_at=entry.withdrawal.withdrawn_at, reason=_PAYLOAD
        )
        changed = {"reproductions": (run,) if run else (), "withdrawal": gone}
        entries.append(replace(entry, result=_hostile(entry.result), **changed))
    report = dataset_report(release).model_copy(update={"name": _PAYLOAD})
    for path, text in render_site(entries, [report]):
        if path.endswith(".html"):
            look = _Look(text)
            assert look.tags <= tags, path
            assert not look.wrong, path
            assert not look.handlers, path
            assert all(re.match(r"(https://|[#\w./-]*$)", link) for link in look.links), path
            if path.startswith(("entries", "boards/jieba", "data")):
                assert _PAYLOAD in " ".join("".join(look.text).split()), path


def _row(files, board, method):
    (row,) = [
        row for row in files[f"boards/{board}.html"].split("<tr ")
        if f">{method}<" in row
    ]  # fmt: skip
    return row


def test_a_board_and_its_entries_show_evidence_ties_and_places(files, filed):
    assert "tied with the first" in _row(files, "jieba", "Level")
    assert "tied with" not in _row(files, "jieba", "Behind")
    claim = _row(files, "jieba", "Normalised")
    assert EVIDENCE["scored"] in claim
    assert '<td role="cell" class="place"></td>' in claim
    assert 'class="place"' not in _row(files, "jieba", "On dev"), "no place in the table"
    assert "medal" not in _row(files, "jieba", "Best"), "tied"
    assert "not ranked" in _row(files, "jieba", "Tied throughout")
    entry = filed["Overstated"]
    page, over = files[f"entries/{entry.name}.html"], _row(files, "jieba", "Poor")
    assert 'class="chip contradicted"' in over
    assert f"claimed {entry.result.rsum:.1f}" in over
    assert f"<b>{entry.result.rsum:.1f}</b> was claimed" in page
    assert "method: nameOverstatedPoor" in " ".join("".join(_Look(page).text).split())
    assert "Contradicted on" in page
    assert "descriptions of claim and run" not in files[f"entries/{filed['Best'].name}.html"]
    for name, result in ((f"{entry.name}.run", entry.shown), (entry.name, entry.result)):
        assert files[f"results/{name}.json"] == result.to_json()


def test_an_entry_shows_figures_that_come_out_again(filed, files, tmp_path):
    entry = filed["Best"]
    page, result = files[f"entries/{entry.name}.html"], entry.shown
    assert f"{result.i2t.ndcg:.3f}</td>" in page
    outside = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert outside.count(f">{result.i2t.r1:.1f}<") == 1, "recalls stand once"
    path = tmp_path / f"{entry.name}.json"
    path.write_text(files[f"results/{entry.name}.json"])
    assert verify(path, read_result(path)) == []
    rows = list(csv.DictReader(io.StringIO(files[f"ranks/{entry.name}.csv"])))
    assert len(rows) == 48
    for name, way in zip(("i2t", "t2i"), result.ranks.read(), strict=True):
        for cutoff in CUTOFFS:
            hits = [float(row[f"hit_at_{cutoff}"]) for row in rows if row["direction"] == name]
            assert hits == pytest.approx(expected_hits(way, cutoff).tolist(), abs=1e-5)


def test_recalls_by_language_stand_on_the_page_and_in_the_json_of_the_entry(
    files, filed, release, monkeypatch
):
    bare = files
    monkeypatch.setattr("leaderboard.scoring.groups.MIN_PAIRS", 8)
    entry = filed["Best"]
    files = dict(render_site([entry], [dataset_report(release)]))
    tree = json.loads(files[f"entries/{entry.name}.json"])
    assert [group["name"] for group in tree["languages"]] == ["de", "en", "zh"]
    assert {group["pairs"] for group in tree["languages"]} == {8}
    assert (tree["sites"], tree["rsum"], tree["place"]) == ([], entry.shown.rsum, 1)
    page = files[f"entries/{entry.name}.html"]
    assert "Recall by language and site" in page
    assert 'class="medal n1"' in files["boards/jieba.html"], "nothing ties with it"
    assert f"{tree['languages'][0]['rsum']:.1f}" in page
    assert "Recall by language and site" not in bare[f"entries/{entry.name}.html"], "too few"


def test_withdrawn_blind_and_noted_entries_say_so(filed, files):
    gone = filed["Gone"]
    page = files[f"entries/{gone.name}.html"]
    assert "The dev split had been mixed in." in page
    assert f"{gone.result.rsum:.1f}" not in page
    assert [path for path in files if gone.name in path] == [f"entries/{gone.name}.html"]
    board = files["boards/jieba.html"]
    assert "The dev split had been mixed in." in board.partition('id="withdrawn"')[2]
    assert 'id="withdrawn"' not in files["boards/bert.html"]
    name = filed["Unseen"].name
    assert "would reveal which caption belongs to which page" in files[f"entries/{name}.html"]
    assert f"ranks/{name}.csv" not in files
    page = files[f"entries/{filed['Forged'].name}.html"]
    assert "distances may have been submitted" in page
    assert "13 times, expected 8" in page


def test_the_first_page_names_the_best_proof_or_says_that_there_is_none(files, filed):
    front, best = files["index.html"], filed["Best"]
    assert front.index("Best proven result") < front.index(best.name) < front.index("NoW Jieba")
    low, high = best.shown.rsum_interval
    for text in (f"{low:.1f} – {high:.1f}", "by Fay Fox", "Ann Archer", "2026-06-01", "Tied with"):
        assert text in front.partition("</section>")[0]
    claims = dict(render_site([replace(best, reproductions=())]))["index.html"]
    assert "Nothing is proven yet" in claims
    assert "Be the first" in claims


def test_progress_is_a_staircase_of_proof_from_the_first_row_to_the_last():
    """Claims are faint dots; the axis holds the rows near the best; labels keep their distance."""
    known = (("2020-01-01", 125.0, 1), ("2021-01-01", 20.0, 1), ("2022-01-01", 138.0, 0),
             ("2023-01-01", 132.0, 1), ("2024-01-01", 120.0, 1))  # fmt: skip
    rows = [
        {"date": day, "rsum": rsum, "proof": bool(proof), "method": day, "entry": "e",
         "equal_to": None, "ranked": True}
        for day, rsum, proof in known
    ]  # fmt: skip
    series = [charts.Series("a", name, name, rows) for name in ("one", "two")]
    chart = charts.progress_chart("x", series, {"a": "scored", "b": "none"})
    heights = {text: y for y, text in chart.y_ticks}
    assert [*heights] == ["120", "125", "130", "135"]
    assert (heights["120"], heights["135"]) == (charts._BOTTOM, charts._TOP)
    assert [text for _, text in chart.x_ticks] == ["2020", "2021", "2022", "2023", "2024"]
    assert [faint for *_, faint in chart.dots] == [False, False, True] * 2, "near, not claims above"
    assert [x for x, _ in chart.lines[0][1]][-1] == chart.right
    top = heights["130"] + 0.4 * (heights["135"] - heights["130"])
    steps = [heights["125"], heights["125"], top, top]
    assert [y for _, y in chart.lines[0][1]] == pytest.approx(steps, abs=0.01)
    (_, at, label, _), (_, _, below, _) = chart.ends
    assert at == label == pytest.approx(top, abs=0.01)
    assert below == label + charts._LINE
    assert chart.legend == [("a", "scored")]
    assert charts.progress_chart("x", [charts.Series("a", "", "", [])], {}) is None


def test_a_site_replaces_a_site_and_nothing_else_and_stays_if_stopped(tmp_path, filed, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").touch()
    for name in ("file", "folder"):
        with pytest.raises(ConfigError, match="did not write"):
            export_site(tmp_path / name, [])
    site = tmp_path / "www" / "site"
    count = export_site(site, [filed["Best"]], space=True)
    assert count == sum(path.is_file() for path in site.rglob("*"))
    assert "sdk: static" in (site / "README.md").read_text()
    before = (site / "index.html").read_text()

    def half(*_):
        yield "index.html", "half"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pages, "render_site", half)
        with pytest.raises(KeyboardInterrupt):
            export_site(site, [])
    assert (site / "index.html").read_text() == before
    assert export_site(site, []) < count
    assert not (site / "README.md").exists()
    assert [path.name for path in site.parent.iterdir()] == ["site"]


@pytest.fixture(scope="module")
def site(tmp_path_factory, filed, release):
    """The site with a long name, in a folder."""
    folder = tmp_path_factory.mktemp("www") / "site"
    entry = filed["Normalised"]
    long = f"Long {'with many words ' * 3}{'WithoutAnySpace' * 3}"
    method = entry.result.method.model_copy(update={"name": long})
    changed = replace(entry, result=entry.result.model_copy(update={"method": method}))
    export_site(folder, [*filed.values(), changed][1:], [dataset_report(release)])
    return folder


@pytest.mark.browser
def test_pages_fit_a_phone_are_dark_if_asked_and_complain_of_nothing(browser, site):
    paths = [*site.rglob("*.html")]
    messages, shades = [], []
    for width, scheme in ((390, "dark"), (1280, "light")):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("console", lambda message: messages.append(message.text))
        page.on("request", lambda request: messages.extend(
            [request.url] if not request.url.startswith("file://") else []))  # fmt: skip
        page.goto(f"file://{site}/index.html")
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shades.append(sum(int(part) for part in re.findall(r"\d+", ground)[:3]) / 3)
        page.goto(f"file://{site}/boards/jieba.html")
        boxes = [box.bounding_box() for box in page.locator("td.sum").all()]
        assert len(boxes) > 10
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        context.close()
    page = browser.new_page()
    for path in paths:
        page.goto(path.as_uri())
        assert complaints(page) == [], path
    page.close()
    assert shades[0] < 60
    assert shades[1] > 200
    assert not messages


@pytest.mark.browser
def test_rows_are_sorted_filtered_and_found(browser, site):
    page = browser.new_page()
    page.goto(f"file://{site}/boards/jieba.html")

    def methods():
        rows = page.locator("table.board").first.locator("tbody tr:visible th.who > a")
        return rows.all_inner_texts()

    proof = ["Best", "Run again", "Level", "Behind"]
    assert methods()[:4] == proof
    head = page.locator("table.board").first.locator("[data-key=who]")
    head.click()
    assert methods()[:4] == sorted(proof)
    head.click()
    assert methods()[:4] == sorted(proof, reverse=True)
    assert page.locator("th[aria-sort=descending] [data-key=who]").count() == 1
    page.locator("table.board").first.locator("[data-key=place]").click()
    assert methods()[:4] == proof
    page.locator("#only-one").check()
    assert methods() == ["Level", "Behind"]
    page.locator("#only-one").uncheck()
    page.locator("#show-reproduced").uncheck()
    assert "Best" not in methods()
    assert "show-reproduced=0" in page.url
    page.reload()
    assert "Best" not in methods()
    page.locator("#find").fill("tied")
    assert methods() == ["Tied throughout"]
    page.locator("#find").fill("nobody")
    assert page.inner_text("#count") == "No row matches the filters."
    assert page.locator(".none:visible").count() == page.locator("table.board").count()
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"file://{site}/boards/jieba.html")
    assert page.locator("tr.row").first.bounding_box()["y"] < 844 - 150
    page.locator("#sort").select_option("who")
    assert methods()[:4] == sorted(proof)
    page.close()
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(f"file://{site}/boards/jieba.html")
    plain.locator("#show-reproduced").uncheck()
    assert not plain.locator("tr.reproduced").first.is_visible()
    plain.context.close()
