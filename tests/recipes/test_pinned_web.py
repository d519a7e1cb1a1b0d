"""The recipe of the pinned web's list, on small repositories; and two crawls compared."""

import csv
import hashlib
import io
import subprocess
import time
from dataclasses import replace

import pytest
from PIL import Image

from now_builder.formats.shard import CaptureRow, Element, read_captures, read_rows, write_shard
from now_builder.pinned.git import Source
from now_builder.pinned.make import make
from now_builder.pinned.sites import read_sites
from recipes.pinned_web import compare, make_list, personal
from recipes.pinned_web.look import Found, is_bare, text_of
from tests.now_builder.conftest import write_small_crawl
from tests.now_builder.pinned.conftest import Mirrors, page

pytestmark = pytest.mark.release
LEGAL = b"Apache License, Version 2.0"
WORDS = "Fresh bread and cakes from our bakery in the old town, baked every day. " * 3


def site(subject, number=4, more=""):
    """Return the files of a site about something."""
    names = ["index.html", *(f"{place}/index.html" for place in range(1, number))]
    text = f"<title>{subject}</title>{more}<p>{WORDS}"
    return {name: page(f"{subject}, {name}", text) for name in names}


@pytest.fixture
def made(tmp_path):
    """Make the list of some repositories: (sites by repository, verdicts, arguments)."""
    mirrors = Mirrors(tmp_path / "mirrors")
    cc = '<a href="https://creativecommons.org/licenses/by-nc/4.0/">licence</a>'
    repositories = {
        "Ann/bakery": site("Our bakery shop") | {"LICENSE": LEGAL},
        "Ann/notes": {f"docs/{name}": text for name, text in site("Notizen", more=cc).items()},
        "Bob/source": {"index.html": "---\nlayout: home\n---\n", "README.md": "none"},
        "Bob/copy": site("Our bakery shop"),
        "Cy/bets": site("Casino jackpot"),
        "Cy/saved": site("Wares", more="<!-- saved from url=(0014)http://x.test -->"),
        "Di/template": site("{{ page.summary }}"),
        "Di/theme": site("Minimalistic Hugo blogging theme"),
        "Di/aside": site("Kept aside"),
        "Ed/bare": site("Garden", more="<link rel=stylesheet href=https://cdn.test/a.css>"),
    }
    for name, files in repositories.items():
        mirrors.add(name, files)
    candidates = tmp_path / "candidates.csv"
    candidates.write_text(
        "repository,query\n" + "".join(f"{name},q\n" for name in [*repositories, "Ed/gone"])
    )
    aside = tmp_path / "aside.sha256"
    aside.write_text(hashlib.sha256(b"di/aside").hexdigest() + "\n")
    words = [str(candidates), str(mirrors.folder), str(tmp_path / "out"), "--leave-out", str(aside)]
    make_list.main(words)
    return tmp_path / "out", words


def verdicts(out):
    with (out / "verdicts.csv").open(encoding="utf-8") as file:
        return {row["repository"]: row["verdict"].partition(":")[0] for row in csv.DictReader(file)}


def test_sites_are_kept_or_left_out_for_a_reason(made):
    out, _ = made
    assert verdicts(out) == {
        "Ann/bakery": "accepted", "Ann/notes": "accepted", "Bob/source": "descriptions",
        "Bob/copy": "like Ann/bakery", "Cy/bets": "gambling, adult or spam",
        "Cy/saved": "saved from elsewhere", "Di/template": "descriptions",
        "Di/theme": "descriptions", "Di/aside": "left out",
        "Ed/bare": "style sheets elsewhere", "Ed/gone": "no mirror",
    }  # fmt: skip
    bakery, notes = read_sites(out / "sites.csv")
    assert (bakery.host, bakery.pages, bakery.licence, bakery.language) == (
        "bakery.ann.test", 4, "Apache-2.0", "en")  # fmt: skip
    assert (notes.folder, notes.licence) == ("docs", "CC-BY-NC")


def test_a_second_run_reads_nothing_again_and_changes_nothing(made, monkeypatch):
    out, words = made
    before = (out / "sites.csv").read_bytes(), (out / "found.jsonl").read_bytes()
    monkeypatch.setattr(make_list, "look", None)
    make_list.main(words)
    assert before == ((out / "sites.csv").read_bytes(), (out / "found.jsonl").read_bytes())


def test_a_line_that_a_stop_cut_off_is_read_again(made):
    out, words = made
    before = (out / "found.jsonl").read_bytes()
    (out / "found.jsonl").write_bytes(before[:-20])
    make_list.main(words)
    assert (out / "found.jsonl").read_bytes() == before


def test_sites_that_show_nothing_or_one_picture_or_no_page_are_left_out():
    def row(host, sha256, ink, status="ok"):
        url = f"http://{host}/{sha256}"
        return CaptureRow("k", url, url, host, status, sha256=sha256, ink_middle=ink)

    rows = [
        *(row("blank.test", str(n), 0.0 if n else 0.3) for n in range(3)),
        *(row("half.test", str(n), 0.3 * (n % 2)) for n in range(4)),
        *(row("cover.test", "same" if n < 3 else "other", 0.3) for n in range(5)),
        *(row("few.test", "same", 0.3, status) for status in ("ok", "failed")),
        row("closed.test", "none", None, "refused"),
    ]
    assert make_list.look_at_screens(rows) == {
        "blank.test": "shows nothing: 2 of 3 first screens",
        "cover.test": "one picture: 3 of 5 first screens",
        "closed.test": "no page could be captured",
    }


def test_personal_data_of_captions_and_first_screens_are_listed_until_somebody_looks(
    made, tmp_path, monkeypatch, capsys
):
    """Hidden text is on no screen; what a table lets stay for a page's text may be on a screen."""
    out, words = made
    captures = tmp_path / "captures"
    write_small_crawl(captures, 40)
    rows, pages = list(read_rows(captures, 0)), list(read_captures(captures, shards=[0]))
    names = {rows[0].key: "18312345678.ann.test", rows[1].key: "bakery.ann.test"}
    assert names.keys() <= {shot.key for shot in pages}
    box = (0.0, 0.0, 72.0, 72.0)
    texts = [("Mail jane@example.org", True), ("or call +44 20 7946 0958", False)]
    elements = [Element(box, "p", text=text, visible=visible) for text, visible in texts]
    for row in rows[:2]:
        host, caption = names[row.key], "Ask joe@example.org" if row is rows[0] else "Bread"
        rows[rows.index(row)] = replace(
            row, url=f"http://{host}/", site=host, lang="zh", caption=caption
        )
    pages = [replace(shot, elements=elements if shot.key in names else []) for shot in pages]
    write_shard(captures, 0, rows, pages)
    kept = tmp_path / "kept.csv"
    monkeypatch.setattr(personal, "_KEPT", kept)

    def hits(rows):
        kept.write_text("host,kind,why\n" + rows)
        personal.main([str(captures), str(tmp_path / "hits.csv")])
        with (tmp_path / "hits.csv").open(encoding="utf-8") as file:
            return {(row["url"], row["where"], row["kind"]) for row in csv.DictReader(file)}

    number, bakery = "http://18312345678.ann.test/", "http://bakery.ann.test/"
    both = {(number, "host", "phone"), (number, "caption", "email"), (number, "screen", "email")}
    assert hits("") == both | {(bakery, "screen", "email")}
    assert "4 hits on 2 sites to check" in capsys.readouterr().out
    assert hits("bakery.ann.test,email,a business\n") == both
    assert hits("bakery.ann.test,email,below the first screen\n") > both
    make_list.main([*words, "--captures", str(captures)])
    assert verdicts(out)["Ann/bakery"] == "personal data"
    assert [row.host for row in read_sites(out / "sites.csv")] == ["notes.ann.test"]


def test_texts_of_a_pinned_web_are_searched_without_a_browser(tmp_path, monkeypatch):
    mirrors = Mirrors(tmp_path / "mirrors")
    mirrors.add("ann/cv", site("A page", more="<p>学号：15352099</p>" + "word " * 500 + "j@x.org"))
    web = tmp_path / "web"
    make(web, mirrors.write(tmp_path / "list.csv"), source=Source(mirrors.folder))
    kept = tmp_path / "kept.csv"
    kept.write_text("host,kind,why\n")
    monkeypatch.setattr(personal, "_KEPT", kept)
    found = personal.find(personal.read_texts(web))
    assert {(hit.where, hit.kind, hit.text) for hit in found} == {
        ("text", "id_number", "学号：15352099")
    }
    kept.write_text("host,kind,why\ncv.ann.test,id_number,below the first screen\n")
    assert personal.find(personal.read_texts(web)) == []


def test_a_site_in_a_branch_of_its_own_is_found(tmp_path):
    mirrors = Mirrors(tmp_path / "mirrors")
    mirrors.add("ann/blog", site("A blog"))
    place = mirrors.folder / "ann+blog"
    git = ["git", "--git-dir", str(place)]
    subprocess.run([*git, "branch", "-m", "main", "gh-pages"], check=True)
    mirrors.add("ann/blog", {"source.md": "# none"})
    found = make_list.look(make_list.Git(), mirrors.folder, "ann/blog")
    commit = subprocess.run([*git, "rev-parse", "gh-pages"], capture_output=True, check=True)
    assert (found.status, found.pages, found.commit) == ("", 4, commit.stdout.decode().strip())


def test_the_text_of_a_page_is_without_code():
    source = (
        "<html><head><title>T</title></HEAD><!-- no --><body>One<script>if (1 < 2) x()</script >"
    )
    assert text_of(f"{source} &amp; <b class='a'>two</b><pre>code</pre> three") == "One & two three"
    assert text_of("<head><title>T</title><body>no end") == "T no end"
    started = time.process_time()
    text_of("<code ><!--<" * 30_000)
    assert time.process_time() - started < 2.0


def test_an_owner_has_three_and_hosts_differ():
    sites = [Found(f"ann/{name}", pages=5, captions=[name]) for name in "abcd"]
    assert [*make_list.judge(sites).values()] == ["accepted"] * 3 + ["owner has three"]
    hosts = [one.host for one in make_list.make_sites([Found("a/x.github.io"), Found("A/x")])]
    assert hosts[0] == "x.a.test"
    assert len({*hosts}) == 2
    assert make_list.host_of("a-b/__") == "x.a-b.test"


@pytest.mark.parametrize(
    ("head", "bare"),
    [("", False), ("<link rel=stylesheet href=/css/a.css>", False),
     ("<LINK HREF='../css/a.css?v=1' REL='stylesheet'>", False),
     ("<link rel=icon href=/css/a.css><link rel=stylesheet href=https://cdn.test/a.css>", True),
     ("<link rel=stylesheet href=/gone.css>", True),
     ("<link rel=stylesheet href='/gone.css'><link rel=stylesheet href='/css/a%2Ecss'>", False),
     ("<base href=https://ann.example/><link rel=stylesheet href=css/a.css>", True),
     ("<base href=/><link rel=stylesheet href=css/a.css>", False),
     ("<link rel=stylesheet href=/site/css/a.css>", False),
     ("<link rel=stylesheet href='//[bad'>", True),
     ("<link rel=stylesheet href=/gone.css><style>" + "a{}" * 400 + "</style>", False)],
)  # fmt: skip
def test_a_page_without_its_style_sheets_is_bare(head, bare):
    assert is_bare(f"<head>{head}</head>", "/blog/", {"css/a.css", "blog/index.html"}) == bare


def test_two_crawls_are_compared(tmp_path, monkeypatch, capsys):
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        write_small_crawl(folder, 40)
    rows, shots = [*read_rows(folders[1], 0)], [*read_captures(folders[1], shards=[0])]
    with Image.open(io.BytesIO(shots[0].screenshot)) as picture:
        picture.paste("red", (0, 0, 72, 1280))  # a tenth
        changed, again = io.BytesIO(), io.BytesIO()
        picture.save(changed, "png")
    with Image.open(io.BytesIO(shots[1].screenshot)) as picture:
        picture.save(again, "webp", lossless=True)  # other bytes, the same pixels
    shots[0] = replace(shots[0], screenshot=changed.getvalue())
    shots[1] = replace(shots[1], screenshot=again.getvalue())
    other = {shot.key: hashlib.sha256(shot.screenshot).hexdigest() for shot in shots[:2]}
    rows = [replace(row, sha256=other.get(row.key, row.sha256)) for row in rows]
    rows[-1] = replace(rows[-1], caption="Another")
    write_shard(folders[1], 0, rows, shots)
    monkeypatch.setattr("sys.argv", ["compare", *map(str, folders)])
    compare.main()
    said = capsys.readouterr().out
    changed = next(row.url for row in rows if row.key == shots[0].key)
    number = sum(row.status == "ok" for row in read_rows(folders[0]))
    assert [line.split()[-1] for line in said.splitlines()[:2]] == [rows[-1].url, changed]
    assert "pixels 0.9000" in said
    assert f"screenshots the same: {number - 1} of {number}" in said
    assert "captions the same: 97.50%" in said
