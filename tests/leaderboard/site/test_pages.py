"""The pages: complete, escaped, valid, readable, the same for the same entries."""

import csv
import io
import os
import re
import subprocess
import sys
from base64 import b64encode
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from html.parser import HTMLParser
from itertools import combinations
from pathlib import PurePosixPath
from urllib.parse import unquote

import pytest
from huggingface_hub import SpaceCard

from leaderboard.board.display_text import EVIDENCE, NOTE_MEANS
from leaderboard.board.groups import missed_of
from leaderboard.board.tables import make_board
from leaderboard.scoring.result import Note, Release
from leaderboard.site import pages
from leaderboard.site.environment import compare_path, policy
from leaderboard.site.export import export_site
from leaderboard.site.pages import Site
from leaderboard.store.dataset import dataset_report
from leaderboard.store.entries import (
    Filing,
    Reproduction,
    Withdrawal,
    entry_of,
    file_result,
    read_results,
)
from now_builder.errors import ConfigError
from tests.leaderboard.conftest import proven

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


def _files(entries):
    site = Site(entries)
    return {path: site.get(path)[0] for path in site.paths()}


@pytest.fixture(scope="module")
def files(filed):
    return _files(filed.values())


@pytest.fixture(scope="module")
def looks(files):
    return {path: _Look(text) for path, text in files.items() if path.endswith(".html")}


def test_every_kind_of_page_is_there(files, filed):
    kinds = {re.sub(r"[0-9a-f]{12}", "NAME", path) for path in files}
    assert {
        "index.html",
        "progress.html",
        "404.html",
        "boards/jieba.html",
        "boards/cc152k.by-i2t-1.html",
        "boards/coco-5k.csv",
        "boards/bert.bib",
        "entries/NAME.html",
        "results/NAME.json",
        "ranks/NAME.csv",
        "badges/NAME.svg",
        "compare/NAME..NAME.html",
    } <= kinds
    assert Site(filed.values()).get("boards/jieba.html")[1] == "text/html; charset=utf-8"
    for path in ("nothing.html", "boards/jieba.by-fame.html", "entries/0.html", "../x", ""):
        assert Site(filed.values()).get(path) is None


# Sorted tables of boards on which no entry of the tests is: most of the site, and the same always.
_REPORTED_ALONE = re.compile(r"boards/(flickr30k|coco-.k|cc152k)\.by-.*")


def test_the_order_of_entries_does_not_change_a_byte(filed, files):
    site = Site([*filed.values()][::-1])
    assert set(site.paths()) == set(files)
    for path, text in files.items():
        assert _REPORTED_ALONE.fullmatch(path) or site.get(path)[0] == text, path


def test_an_empty_board_shows_the_reported_rows():
    site = Site([])
    assert site.get("boards/jieba.html")[0].count('class="chip reported"') == 5
    assert "None yet" in site.get("index.html")[0]


def test_every_link_inside_the_site_leads_somewhere(looks, files):
    for path, look in looks.items():
        for link in look.links:
            target, _, mark = link.partition("#")
            if link.startswith("https://"):
                continue
            to = str(PurePosixPath(os.path.normpath(PurePosixPath(path).parent / unquote(target))))
            to = path if not target else to
            assert to in files, (path, link)
            assert not mark or mark in looks[to].ids, (path, link)


def test_the_markup_is_sound(looks):
    for path, look in looks.items():
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
            if "aria-labelledby" in attrs:
                assert attrs["aria-labelledby"] in look.ids, path
        tags = [tag for tag, _ in look.elements]
        assert tags.count("table") == tags.count("caption"), path
        assert tags.count("input") <= tags.count("label"), path
        assert tags.count("main") == 1, path


def test_a_page_loads_nothing_and_allows_only_its_own_style_and_script(files):
    for path, text in files.items():
        if not path.endswith(".html"):
            continue
        assert f'content="{policy()}"' in text
        outward = re.findall(r'<a href="https:[^>]*>', text)
        assert all('rel="nofollow noopener ugc"' in link for link in outward)
        assert not re.search(r"<(link|img|iframe|object|form|embed)\b", text)
        assert not re.search(r"@import|url\(", text)
        for tag, inline in re.findall(r"<(style|script)>(.*?)</\1>", text, re.DOTALL):
            digest = b64encode(sha256(inline.encode()).digest()).decode()
            allowed = policy().split(f"{tag}-src ")[1].split(";")[0]
            assert f"'sha256-{digest}'" in allowed.split()
    assert "unsafe" not in policy()
    assert policy().startswith("default-src 'none';")


_PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style><svg/onload=alert(1)>",
    "{{ 7 * 7 }}{% include 'x' %}",
    "' autofocus onfocus='alert(1)",
    "&lt;b&gt;<b>",
    "javascript:alert(1)//]]>--><b>",
)


def _hostile(entry, payload):
    result = entry.result
    method = result.method.model_copy(
        update={"name": payload, "version": payload, "abstract": payload}
    )
    training = result.training.model_copy(
        update={"external_data": payload, "pretrained_backbones": (payload,)}
    )
    return result.model_copy(
        update={
            "method": method,
            "authors": (payload, payload),
            "affiliation": payload,
            "training": training,
            "postprocessing": result.postprocessing.model_copy(update={"description": payload}),
            "compute": result.compute.model_copy(update={"hardware": payload}),
            "environment": result.environment.model_copy(update={"python": payload}),
            "links": result.links.model_copy(update={"paper": payload, "code_commit": payload}),
            "notes": (Note.model_construct(code=payload, message=payload),),
        }
    )


def _filing(name, payload):
    at = datetime(2026, 1, 2, tzinfo=UTC)
    return Filing.model_construct(name=name, submitter=payload, submitted_at=at)


def test_no_field_can_add_markup_to_any_page(filed, looks):
    payload = " ".join(_PAYLOADS)
    tags = {tag for look in looks.values() for tag in look.tags}
    entries = [
        replace(
            entry,
            result=_hostile(entry, payload),
            filing=_filing(entry.name, payload),
            reproductions=(
                Reproduction.model_construct(
                    name=entry.name, payload_sha256="0" * 64, by=payload, rsum=1.0,
                    reproduced_at=datetime(2026, 1, 3, tzinfo=UTC), code_commit=payload,
                ),
            ),
            withdrawal=None if method != "Gone" else Withdrawal.model_construct(
                name=entry.name, withdrawn_at=datetime(2026, 1, 4, tzinfo=UTC), reason=payload
            ),
        )
        for method, entry in filed.items()
    ]  # fmt: skip
    site = Site(entries)
    for path in site.paths():
        text = "" if _REPORTED_ALONE.fullmatch(path) else site.get(path)[0]
        if path.endswith(".svg"):
            assert _Look(text).tags <= {"svg", "title", "rect", "g", "text"}
        if not path.endswith(".html"):
            continue
        look = _Look(text)
        assert look.tags <= tags, path
        assert not look.wrong, path
        assert not look.handlers, path
        assert all(re.match(r"(https://|[#\w./-]*$)", link) for link in look.links), path
        if path.startswith(("entries", "compare", "boards/jieba")):
            assert payload in " ".join("".join(look.text).split()), path


def test_a_withdrawn_entry_leaves_a_tombstone_without_figures(filed, files):
    gone = filed["Gone"]
    page = files[f"entries/{gone.name}.html"]
    assert "The dev split had been mixed in." in page
    assert f"{gone.result.rsum:.1f}" not in page
    assert not [path for path in files if gone.name in path and not path.startswith("entries")]
    board = files["boards/jieba.html"]
    assert "The dev split had been mixed in." in board.partition('id="withdrawn"')[2]


def test_an_entry_shows_ndcg_of_both_directions(filed, files):
    name, result = filed["Best"].name, filed["Best"].result
    shown = (
        f"nDCG@10: {result.i2t.ndcg:.3f} image → caption, {result.t2i.ndcg:.3f} caption → image."
    )
    assert shown in files[f"entries/{name}.html"]


def test_a_blind_result_says_why_it_shows_no_ranks(filed, files):
    name = filed["Unseen"].name
    page = files[f"entries/{name}.html"]
    assert "would tell which caption belongs to which page" in page
    assert f"ranks/{name}.csv" not in files
    assert ">blind</span>" in page


def test_a_note_is_said_in_words_with_what_was_measured(filed, files):
    page = files[f"entries/{filed['Forged'].name}.html"]
    assert NOTE_MEANS["distances"] in page
    assert "13 times, expected 8" in page
    assert '<span class="chip">distances</span>' in files["boards/bpe.html"]


def test_a_copy_of_an_earlier_entry_is_said_to_be_one_on_its_page_and_its_row(entry_on):
    first, second = (
        replace(entry, filing=_filing(entry.name, "ann").model_copy(update={"submitted_at": at}))
        for entry, at in (
            (
                entry_on("First"),
                datetime(2026, 1, 1, tzinfo=UTC),
            ),
            (entry_on("Second"), datetime(2026, 1, 2, tzinfo=UTC)),
        )
    )
    site = Site([second, first])
    said = f"ranks of {first.name}"
    assert said in site.get(f"entries/{second.name}.html")[0]
    assert said not in site.get(f"entries/{first.name}.html")[0]
    rows = site.get("boards/jieba.html")[0].split("<tr ")
    assert [said in row for row in rows if ">First<" in row or ">Second<" in row] == [
        False,
        True,
    ]


def test_a_board_shows_evidence_ties_and_places(files, filed):
    rows = files["boards/jieba.html"].split("<tr ")
    (level,) = (row for row in rows if ">Level<" in row)
    assert "tied with the first" in level
    (claim,) = (row for row in rows if ">Normalised<" in row)
    assert EVIDENCE["scored"] in claim
    assert '<td role="cell" class="place"></td>' in claim
    (behind,) = (row for row in rows if ">Behind<" in row)
    assert "tied with" not in behind
    (again,) = (row for row in rows if ">Run again<" in row)
    assert 'class="chip reproduced"' in again
    (over,) = (row for row in rows if ">Overstated<" in row)
    assert 'class="chip contradicted"' in over
    assert f"claimed {filed['Overstated'].result.rsum:.1f}" in over


def test_an_entry_that_was_run_again_shows_the_figures_of_the_run(filed, files):
    entry = filed["Overstated"]
    run, page = entry.run.result, files[f"entries/{entry.name}.html"]
    assert "the keeper’s run contradicts it" in page
    assert f'<p class="number">{run.rsum:.1f}</p>' in page
    assert f"<b>{entry.result.rsum:.1f}</b> was claimed" in page
    assert f"verify</span> <span>{entry.name}.run.json" in page
    assert files[f"results/{entry.name}.run.json"] == run.to_json()
    assert files[f"results/{entry.name}.json"] == entry.result.to_json()
    assert f"results/{filed['Normalised'].name}.run.json" not in files
    assert f"rSum {run.rsum:.1f}, contradicted" in files[f"badges/{entry.name}.svg"]


def test_reported_rows_have_their_source_and_their_corrections(files):
    board = files["boards/flickr30k.html"]
    assert "All but R@1 of image to text are the figures of 20 % noise pasted" in board
    assert 'href="https://arxiv.org/abs/2408.01349"' in board
    numbers = re.findall(r'<sup><a href="#([^"]+)"', board)
    assert numbers
    assert all(f'<li id="{number}">' in board for number in numbers)


def test_any_two_entries_of_a_section_have_one_comparison(filed, files):
    first, second = sorted(filed[name].name for name in ("Best", "Level"))
    page = files[f"compare/{first}..{second}.html"]
    assert "does not tell them apart" in page
    assert Site(filed.values()).get(f"compare/{second}..{first}.html")[0] == page
    clear = compare_path(filed["Best"].name, filed["Behind"].name)
    assert "This test set tells them apart" in files[clear]
    for other in ("Forged", "Gone", "On dev", "On noise", "Tied throughout"):
        path = compare_path(filed["Best"].name, filed[other].name)
        assert Site(filed.values()).get(path) is None, other
    known = make_board("jieba", filed.values()).sections[0].comparable
    pairs = {compare_path(a.entry.name, b.entry.name) for a, b in combinations(known, 2)}
    assert pairs <= set(files)


def test_a_comparison_names_the_higher_also_where_that_is_a_claim(entry_on):
    proof, claim = proven(entry_on("Proof", 1.0)), entry_on("Claim", 4.0, seed=2)
    page = Site([proof, claim]).get(compare_path(proof.name, claim.name))[0]
    assert "queries, Claim is better. That is a claim, and the other is proof." in page


def test_a_large_section_is_compared_with_its_first_and_between_neighbours(entry_on):
    entries = [entry_on(f"M{n:02d}", 0.2 * n, seed=n) for n in range(1, 16)]
    site = Site(entries)
    pages = [path for path in site.paths() if path.startswith("compare")]
    known = [row.entry.name for row in make_board("jieba", entries).sections[0].comparable]
    assert len(known) > 12
    assert len(pages) == 2 * len(known) - 3
    assert compare_path(known[3], known[4]) in pages
    assert compare_path(known[3], known[8]) not in pages
    assert site.get(compare_path(known[3], known[8])) is not None


def test_links_of_rows_tied_with_the_first_lead_somewhere(entry_on):
    entries = [proven(entry_on(f"M{n:02d}", 3.0, seed=n)) for n in range(1, 26)]
    site = Site(entries)
    [section] = [part for part in site.board("jieba").sections if part.comparable]
    lead = section.lead.entry.name
    tied = [row.entry.name for row in section.comparable if row.tied and row.entry.name != lead]
    assert len(tied) > 20
    links = _Look(site.get("boards/jieba.html")[0]).links
    for name in tied:
        assert f"../{compare_path(name, lead)}" in links
        assert compare_path(name, lead) in site.paths()


def test_hits_can_be_taken_along_and_give_the_recalls_again_but_no_ranks(filed, files):
    result = filed["Best"].result
    rows = list(csv.DictReader(io.StringIO(files[f"ranks/{filed['Best'].name}.csv"])))
    assert len(rows) == 2 * result.n_pairs
    for name, way in (("i2t", result.i2t), ("t2i", result.t2i)):
        hits = [float(row["hit_at_5"]) for row in rows if row["direction"] == name]
        assert 100 * sum(hits) / len(hits) == pytest.approx(way.r5)
    assert set(rows[0]) == {"direction", "row", "hit_at_1", "hit_at_5", "hit_at_10"}


def test_the_progress_of_a_board_steps_up_to_its_best(files, filed):
    page = files["progress.html"].partition('id="jieba"')[2].partition('id="bpe"')[0]
    assert "<polyline" in page
    assert all(f'<th scope="row">{name}</th>' in page for name in ("Best", "Behind", "Level"))
    assert "On dev" not in page


def test_a_report_of_the_data_becomes_a_page_that_its_sections_lead_to(filed, release):
    report = dataset_report(release)
    site = Site(filed.values(), reports=[report])
    path = f"data/{report.fingerprint[:16]}.html"
    assert path in site.paths()
    page = _Look(site.get(path)[0])
    assert not page.wrong
    assert "test, jieba" in page.text
    assert "1 group of 2" in [text.strip() for text in page.text]
    board, entry = site.get("boards/jieba.html")[0], site.get(f"entries/{filed['Best'].name}.html")
    assert board.count(f'<a href="../{path}">about these data</a>') == 3
    assert f'<a href="../{path}">about these data</a>' in entry[0]
    assert Site(filed.values()).get(path) is None


def test_a_report_gives_entries_their_languages_sites_and_missed_queries(entry_on, release):
    report = dataset_report(release, captions=True)
    entry = entry_on("Mine", 0.5)
    longer = _longer(report, 24)
    site = Site([entry], reports=[longer])
    paths = [f"entries/{entry.name}.queries.html"]
    paths += [f"boards/jieba.{by}.html" for by in ("languages", "sites")]
    assert set(paths) <= set(site.paths())
    page = _Look(site.get(f"entries/{entry.name}.html")[0])
    assert not page.wrong
    text = "".join(page.text)
    assert "Figures of the queries of each language" in text
    assert "Figures of the queries of each site" not in text, "no site has 20 pairs"
    for path in paths:
        look = _Look(site.get(path)[0])
        assert not look.wrong, path
        assert look.headings[0] == 1
    board = "".join(_Look(site.get(paths[1])[0]).text)
    assert f"{entry.result.rsum:.1f}" in board
    missed = site.get(paths[0])[0]
    assert "<script>" not in missed.partition("</head>")[2]
    assert "<b>bold" not in missed, "escaped"
    assert "<img" not in missed
    pictured = Site([entry], reports=[_longer(report, 24, pictures=True)]).get(paths[0])[0]
    assert not _Look(pictured).wrong
    rows = [row for row, _ in missed_of(entry.shown.ranks)]
    shown = re.findall(r'<img src="data:image/webp;base64,(\d+)"', pictured)
    assert [int(number) for number in shown] == [1000 + row for row in rows]
    assert "licence: mit" in pictured
    alone = Site([entry])
    assert "Queries that it missed" not in alone.get(f"entries/{entry.name}.html")[0]
    assert alone.get(paths[0]) is alone.get(paths[1]) is None


def test_figures_of_queries_are_those_of_the_judges_run(entry_on, release):
    """A claim of nearly 600, run again far lower: nothing of the claim's ranks is shown."""
    entry = proven(entry_on("Claim", 6.0), entry_on("Run", 0.5, seed=3).result, (-1.0, 1.0))
    site = Site([entry], reports=[_longer(dataset_report(release), 24)])
    rsum = f"{entry.shown.rsum:.1f}"
    page = site.get(f"entries/{entry.name}.html")[0]
    assert re.search(r"zh</th>.*" + re.escape(rsum), page)
    board = site.get("boards/jieba.languages.html")[0]
    assert board.count(rsum) == 2, "of all queries, and of the one language"
    missed = site.get(f"entries/{entry.name}.queries.html")[0]
    assert missed.count("<tr") - 1 == len(missed_of(entry.shown.ranks)) > 0
    for text in (page.replace(f"<b>{entry.result.rsum:.1f}</b> was claimed", ""), board, missed):
        assert f">{entry.result.rsum:.1f}<" not in text


def test_a_larger_table_of_claims_stands_below_the_one_with_proof(entry_on, tmp_path):
    """Anybody can send an entry on data of their own, where they are the first."""
    own, claim = proven(entry_on("Proof", 1.0)), entry_on("Claim", 9.0)
    larger = {"n_images": 10**6, "n_pairs": 10**6, "ranks": None}
    data = claim.result.release.model_copy(update={"fingerprint": "f" * 64})
    claim = replace(claim, result=claim.result.model_copy(update={"release": data, **larger}))
    board = make_board("jieba", [claim, own])
    assert [part.n_proof > 0 for part in board.sections] == [True, False, False]
    page = Site([own, claim]).get("boards/jieba.html")[0]
    assert page.index(">Proof<") < page.index(">Claim<")


def test_neighbours_of_proof_are_proof(entry_on):
    entries = [entry_on(f"Claim {n}", 3.0 + n, seed=n) for n in range(3)]
    entries += [proven(entry_on(f"Proof {n}", 1.0 + n / 2, seed=n)) for n in range(3)]
    text = "".join(_Look(Site(entries).get(f"entries/{entries[4].name}.html")[0]).text)
    listed = text.partition("Neighbours on the board")[2].partition("Method and training")[0]
    assert "Claim" not in listed
    assert listed.count("Proof") == 4, "two names, each again for screen readers"


def _longer(report, pairs, *, pictures=False):
    """The report with one language for all test queries, and hostile captions."""
    queries = next(split.queries for split in report.splits if split.split == "test")
    captions = ("<b>bold</b><script>x</script>",) * pairs
    queries = queries.model_copy(update={"languages": ("zh",) * pairs, "captions": captions})
    if pictures:
        uris = tuple(f"data:image/webp;base64,{1000 + row}" for row in range(pairs))
        queries = queries.model_copy(update={"pictures": uris, "licence": "mit"})
    splits = tuple(
        split.model_copy(update={"queries": queries}) if split.split == "test" else split
        for split in report.splits
    )
    return report.model_copy(update={"splits": splits})


def test_an_entry_is_counted_among_its_persons(filed):
    site = Site(filed.values())
    numbers = [
        re.search(r"number (\d+) of (\d+)", site.get(f"entries/{entry.name}.html")[0])
        for entry in filed.values()
        if entry.filing and entry.withdrawal is None and entry.result.track == "jieba"
    ]
    counts = {int(found[2]) for found in numbers}
    assert counts == {1, 10}, "one on dev, ten on test, a withdrawn one and one with noise too"


def _luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    parts = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_can_be_read_in_light_and_dark(files, scheme):
    styles = re.findall(r"<style>(.*?)</style>", files["index.html"], re.DOTALL)
    blocks = [re.findall(r":root \{(.*?)\}", style, re.DOTALL)[scheme] for style in styles]
    colour = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", "".join(blocks)))
    pairs = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("paper", "card")]
    pairs += [("soft", "chip"), ("accent", "accent-back"), ("reported", "reported-back")]
    pairs += [("warn", "warn-back"), ("warn", "paper"), ("warn", "card"), ("card", "accent")]
    pairs += [("second", "card"), ("reported", "card"), ("ink", "rail")]
    for ink, ground in pairs:
        assert _contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)


def test_a_site_is_replaced_whole_and_nothing_else_is(tmp_path, filed, monkeypatch):
    monkeypatch.setattr(pages, "BOARDS", ("jieba",))  # the others take time and show nothing new
    site = tmp_path / "site"
    entries = [filed["Best"], filed["Gone"]]
    count = export_site(site, entries)
    assert count == len([path for path in site.rglob("*") if path.is_file()])
    (site / "entries" / "old.html").write_text("old")
    export_site(site, [])
    assert not list(site.glob("entries/*"))
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years")
    with pytest.raises(ConfigError, match="export-site did not write"):
        export_site(precious, entries)
    assert (precious / "thesis.tex").read_text() == "years"


def test_a_space_of_the_hub_has_a_card_that_its_client_reads(tmp_path, now_leaderboard):
    code, _, _ = now_leaderboard("export-site", tmp_path / "site", "--results", tmp_path, "--space")
    card = SpaceCard.load(tmp_path / "site" / "README.md").data
    assert (code, card.sdk, card.app_file) == (0, "static", "index.html")
    assert (tmp_path / "site" / card.app_file).is_file()
    assert {card.colorFrom, card.colorTo} <= {"blue", "gray"}, "colours that the hub has"


def test_a_killed_export_leaves_the_old_site_or_the_new(tmp_path, filed):
    store, site = tmp_path / "store", tmp_path / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pages, "BOARDS", ("jieba",))
        export_site(site, [])
    old = (site / "index.html").read_text()
    for name in ("Best", "Level", "Behind"):
        file_result(store, filed[name].result)
    new = Site(read_results([store])).get("index.html")[0]
    command = [sys.executable, "-c", "from leaderboard.cli import main; main()", "export-site"]
    for wait in (0.7, 1.3, 60):
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


def test_the_first_page_shows_who_leads_also_below_what_language_alone_gives(entry_on):
    """Of a weak method the references stand first in its table; it leads all the same."""
    entry, claim = entry_on("Weak but first", 0.3), entry_on("Claimed", 60.0)
    assert entry.result.rsum < max(entry.result.references.values())
    page = Site([proven(entry), claim]).get("index.html")[0].partition("Newest entries")[0]
    assert "Weak but first" in page
    assert "Claimed" not in page


def test_the_first_page_marks_two_data_sets_in_a_card_as_not_comparable(filed):
    release = Release(origin="archive", fingerprint="1" * 64)
    shape = {"n_pairs": 1000, "n_images": 1000, "release": release}
    paper = proven(entry_of(filed["Level"].result.model_copy(update=shape)))
    page = Site([*filed.values(), paper]).get("index.html")[0]
    card = (
        page.split('<h3><a href="boards/jieba.html">')[1]
        .split("</h3>")[1]
        .split('</ol>\n<p class="count">')[0]
    )
    card = card.split('class="count"')[0]
    assert card.count("Not comparable with the table above") == 1
    assert card.count(">Chance<") == 2
    assert len(set(re.findall(r"on a scale to (\d+)", card))) == 1
    best = filed["Best"].result
    assert " / ".join(f"{value:.1f}" for value in best.i2t.values()) in card


def test_the_newest_entries_include_results_without_a_filing(filed):
    alone = replace(filed["Best"], filing=None)
    page = Site([alone]).get("index.html")[0]
    newest = page.split('id="newest"')[1].split("</section>")[0]
    assert f"entries/{alone.name}.html" in newest
    assert "no date" not in newest


def test_an_entry_begins_with_its_six_recalls(filed):
    best = filed["Best"]
    page = Site(filed.values()).get(f"entries/{best.name}.html")[0]
    first = page.split("<table")[1].split("</table>")[0]
    figures = re.findall(r'num strong">([\d.]+)<', first)
    assert figures == [
        f"{v:.1f}" for way in (best.result.i2t, best.result.t2i) for v in way.values()
    ]


def test_a_board_of_many_tables_is_folded_and_says_each_footnote_once():
    page = Site([]).get("boards/flickr30k.html")[0]
    assert page.count('<details class="card"') == page.count('class="within"') > 4
    assert page.count('<details class="card" open') == 1
    notes = re.findall(r'<li id="note-\d+">(.*?)</li>', page, re.DOTALL)
    assert len(notes) == len(set(notes)) > 3
    assert page.count("Reported rows are single runs as printed") == 1
    assert set(re.findall(r'href="#(note-\d+)"', page)) == set(re.findall(r'id="(note-\d+)"', page))


def test_pc2_is_spelled_one_way(entry_on):
    entry = entry_on("PC2")
    site = Site([entry])
    for path in ("index.html", "boards/jieba.html", f"entries/{entry.name}.html"):
        page = site.get(path)[0]
        assert "PC²" in page
        assert not re.search(r">PC2<", page)


def test_long_lists_do_not_lengthen_an_entrys_page(entry_on):
    entry = entry_on(
        authors=[f"Author {n}" for n in range(200)], training={"seeds": list(range(100))}
    )
    page = Site([entry]).get(f"entries/{entry.name}.html")[0]
    assert "Author 11 and 188 more" in page
    assert "Author 12" not in page
    assert "18, 19 and 80 more" in page


def test_stated_noise_that_no_table_has_gives_no_first_place(filed):
    entry = filed["On noise"]
    site = Site(filed.values())
    section = site.board("jieba").section_of(entry.name)
    assert [row.place for row in section.rows] == [None] * len(section.rows)
    assert "No place" in site.get(f"entries/{entry.name}.html")[0]
    assert site.get(f"badges/{entry.name}.svg")
