"""Exports: what leaves the board reads back, and no text in it becomes anything but text."""

import csv
import io
import json
import math
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leaderboard.board.exports import (
    COLOURS,
    CSV_COLUMNS,
    FORMATS,
    RECALLS,
    Badge,
    ExportRow,
    badge_json,
    badge_of,
    badge_svg,
    from_reported,
    rows_of,
    to_bibtex,
    to_csv,
    to_json,
    to_latex,
    to_markdown,
)
from leaderboard.board.reported import read_reported, read_sources
from leaderboard.board.tables import make_board
from leaderboard.scoring.result import AtCutoffs, Folds, Release
from leaderboard.store.entries import entry_of
from leaderboard.submission.archive import Training
from now_builder.formats.benchmarks import BOARDS
from now_builder.formats.noise import Noise as SubmittedNoise
from tests.leaderboard.conftest import proven

GOLDEN = Path(__file__).parent / "golden"

PAYLOADS = [
    "=1+1",
    '=HYPERLINK("https://evil.example","x")',
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3",
    "@SUM(A1)",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    "  =1+1",
    "＝1+1",
    "x;=1+1",
    'x",=1+1',
    'a"b,c',
    "two\nlines\r\nand\ta tab",
    r"\input{/etc/passwd}",
    r"\write18{id}",
    "^^5cinput{/etc/passwd}",
    "100% & $x_1$ #1 ~ ^ { } \\",
    "}}}\\end{tabular}",
    "[1em] x",
    "a|b||c\\|d",
    "](javascript:alert(1))",
    "[x](https://evil.example) ![y](https://evil.example/y.png)",
    "`code` **bold** _em_ ~~gone~~ <b>html</b> &amp; $x$",
    "https://evil.example www.evil.example @everyone #1",
    "<script>alert(1)</script>",
    "]]><svg onload=alert(1)>",
    "\"' onload='x",
    "@misc{evil, title={x}}",
    "NaN",
    "\u202eesrever",
    "nul\x00 bell\x07 \x1b[31m",
    "lone \ud800 surrogate \uffff",
    "模型 Ąć 😀 ²",
    "'",
    "",
]
TEXTS = ("board", "noise", "data", "method", "evidence", "post_processing", "date", "entry", "url")
# Every kind of character that means something to one of the formats, and others.
HOSTILE = st.text(
    st.sampled_from(list("\\{}[]()|`*_~^$&%#<>\"'=+-@;,.:!/ \t\r\n\x00\x1b\u202e\ud800²é模x1"))
    | st.characters(),
    max_size=40,
)


def _rows():
    (ncr, *_) = [row for row in read_reported("coco-1k") if row.method == "NCR" and row.corrections]
    return [
        ExportRow(
            board="jieba",
            noise="noise of the web",
            method="Ours, 50 % | α",
            evidence="reproduced",
            proof=True,
            rsum=164.25,
            claimed=170.5,
            place=1,
            place_interval=(1, 2),
            low=151.5,
            high=177.0,
            recalls=(16.1, 29.6, 37.0, 15.55, 29.0, 37.0),
            ensemble=2,
            post_processing="none",
            date="2026-11-22",
            entry="0123456789ab",
            url="https://example.org/ours_(v2)?a=1&b=2",
            authors=("Ann O'Neil", "李雷"),
            footnote="Trained twice.",
        ),
        replace(
            from_reported(read_reported("jieba")[4]),
            low=153.66699973692954,
            high=174.13300026307047,
        ),
        ExportRow(
            board="jieba", noise="noise of the web", method="chance", evidence="reference", rsum=3.2
        ),
        from_reported(ncr),
        from_reported(next(row for row in read_reported("flickr30k") if not row.recalls)),
    ]


def _everywhere(text):
    row = _rows()[0]
    texts = dict.fromkeys(TEXTS, text) | {"table": text, "footnote": text}
    return replace(row, **texts, authors=(text, text), claimed=None)


def _parsed(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_as_it_was(name):
    assert FORMATS[name](_rows()) == (GOLDEN / f"board.{name}").read_text(encoding="utf-8")


def test_a_badge_is_as_it_was():
    badge = badge_of(_rows()[0])
    assert badge_svg(badge) == (GOLDEN / "badge.svg").read_text(encoding="utf-8")
    assert json.loads(badge_json(badge)) == {
        "schemaVersion": 1,
        "label": "NoW Jieba",
        "message": "rSum 164.2, place 1",
        "color": "#2a6f2a",
    }


@pytest.mark.parametrize(
    ("evidence", "colour"),
    [
        ("scored", "blue"),
        ("blind", "green"),
        ("reproduced", "green"),
        ("reported", "grey"),
        ("contradicted", "grey"),
    ],
)
def test_a_badge_shows_the_evidence(evidence, colour):
    proof = colour == "green"
    badge = badge_of(replace(_rows()[0], evidence=evidence, proof=proof))
    assert badge.colour == colour
    assert badge.message.endswith(
        ", place 1" if proof else ", contradicted" if evidence == "contradicted" else ", claim"
    )


# CSV


@pytest.mark.parametrize("text", PAYLOADS)
def test_no_csv_cell_starts_a_formula(text):
    exported = to_csv([_everywhere(text)])
    (record,) = _parsed(exported)
    for value in record.values():
        assert re.fullmatch(r"-?[\d.]+", value) or value[:1] not in set("=+-@＝＋－＠\t\r")
    # Nor where other programs or countries let a cell begin.
    assert not re.search(r"(^|[;,\"\t])\s*[=+@＝]", exported, re.MULTILINE)


def test_csv_keeps_numbers_even_negative_ones():
    row = replace(_rows()[0], low=-3.5, method="-3.5", footnote="-3.5 points")
    (record,) = _parsed(to_csv([row]))
    assert (record["low"], record["method"]) == ("-3.5", "-3.5")
    assert record["footnote"] == "'-3.5 points"


def test_an_empty_board_has_a_header_only():
    assert to_csv([]) == ",".join(CSV_COLUMNS) + "\n"
    assert json.loads(to_json([])) == {"rows": []}
    assert to_markdown([]) == to_bibtex([]) == ""


@given(HOSTILE, st.floats(), st.floats(allow_nan=False, allow_infinity=False))
def test_csv_reads_back(text, rsum, low):
    row = replace(_everywhere(text), rsum=rsum, low=low)
    (record,) = _parsed(to_csv([row]))
    assert tuple(record) == CSV_COLUMNS
    assert record["rsum"] == (repr(rsum) if math.isfinite(rsum) else "")
    assert float(record["low"]) == low
    assert [float(record[name]) for name in RECALLS] == list(row.recalls)
    plain = "".join(text.encode("utf-8", "replace").decode().split())
    if plain.isascii() and plain.isalnum():
        assert record["method"] == " ".join(text.split())


# JSON


@given(HOSTILE, st.floats())
def test_json_reads_back_and_holds_no_nan(text, number):
    def fail(constant):
        raise AssertionError(constant)

    row = replace(_everywhere(text), rsum=number)
    exported = to_json([row])
    exported.encode("utf-8")
    (record,) = json.loads(exported, parse_constant=fail)["rows"]
    assert record["rsum"] == (number if math.isfinite(number) else None)
    known = text.encode("utf-8", "replace").decode()
    assert {record[name] for name in TEXTS} == {known}
    assert record["authors"] == [known, known]


def test_json_tells_the_source():
    record = json.loads(to_json([_rows()[1]]))["rows"][0]
    assert record["source"] == read_sources()["duan2024pc2"].model_dump(mode="json")
    assert record["authors"] == list(read_sources()["duan2024pc2"].authors)


# Markdown


def _cells(line):
    return re.split(r"(?<!\\)(?:\\\\)*\|", line)


@given(HOSTILE)
def test_markdown_rows_have_as_many_cells_as_the_header(text):
    own = _rows()[0]
    row = replace(_everywhere(text), board=own.board, noise=own.noise, data=own.data)
    exported = to_markdown([row, own])
    header, *rows = [line for line in exported.splitlines() if line.startswith("| ")]
    assert len(rows) == 2
    assert {len(_cells(line)) for line in (header, *rows)} == {13}


@pytest.mark.parametrize("text", PAYLOADS)
def test_markdown_shows_text_as_text(text):
    exported = to_markdown([replace(_everywhere(text), url=None, place_interval=None)])
    # Without escaped marks nothing is left that opens a link, code, emphasis, HTML or an entity.
    body = exported.split("\n", 4)[4]
    bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", body).replace("|", "")
    assert not set(bare) & set("`*_[]<>()#~$&@^")
    assert "://" not in bare
    assert "www." not in bare
    assert len(exported.splitlines()) == (7 if text else 5)


@pytest.mark.parametrize(
    ("url", "link"),
    [
        ("https://example.org/a_(b)", "(https://example.org/a_%28b%29)"),
        ("https://example.org/a b|c<d>\n", "(https://example.org/a%20b%7Cc%3Cd%3E%0A)"),
        ("javascript:alert(1)", None),
        ("data:text/html,x", None),
        ("//example.org", None),
    ],
)
def test_only_web_addresses_become_links(url, link):
    exported = to_markdown([replace(_rows()[0], url=url)])
    assert (link in exported) if link else ("](" not in exported)


def test_rows_of_one_table_stay_together_and_in_order():
    row = _rows()[0]
    rows = [replace(row, noise=noise, method=method) for noise, method in ("aX", "bY", "aZ")]
    assert re.findall(r"\[(\w)\]\(", to_markdown(rows)) == ["X", "Z", "Y"]


def test_a_footnote_stands_once_and_is_numbered():
    exported = to_markdown([from_reported(row) for row in read_reported("jieba")])
    assert exported.count("\\[1\\]") == 6
    assert "\n\\[1\\] Duan et al. 2024, NoW table, Jieba.\n" in exported


# LaTeX and BibTeX


def _balanced(text):
    depth = 0
    for char in re.sub(r"\\.", "", text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    return depth == 0


COMMANDS = {"textbackslash", "textbraceleft", "textbraceright", "textasciicircum",
            "textasciitilde", "textless", "textgreater", "textbar", "nowchar"}  # fmt: skip


@given(HOSTILE)
def test_latex_text_holds_no_command_but_ours(text):
    row = replace(_everywhere(text), board="jieba", noise="web")
    exported = to_latex([row])
    assert _balanced(exported)
    assert not any(char in exported for char in "\t\r\x00\x1b\u202e")
    (line,) = [line for line in exported.splitlines() if line.endswith(r" \\") and "164.2" in line]
    method = re.split(r"(?<!\\)&", line)[1]
    note = exported.partition(r"\footnotesize {[}1{]}")[2].partition(r"\par}")[0]
    for written in (method.removesuffix(" {[}1{]} "), note):
        bare = re.sub(r"\\[$&#%_]", "", written)
        assert set(re.findall(r"\\(\w+)", bare)) <= COMMANDS
        bare = re.sub(r"\\\w+(\{\w*\})", "", bare).replace("{[}", "").replace("{]}", "")
        assert not set(bare) & set("\\{}[]$&#%_^~<>|")
    assert "^" not in exported


@given(HOSTILE)
def test_bibtex_braces_balance_and_entries_stay_one(text):
    exported = to_bibtex([_everywhere(text), _rows()[1]])
    depth = 0
    for char in exported:  # BibTeX counts escaped braces too
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0
    # An entry without a name has nothing to be cited by.
    assert len(re.findall(r"^@", exported, re.MULTILINE)) == 1 + bool(text)
    assert len(re.findall(r"^\}$", exported, re.MULTILINE)) == 1 + bool(text)


def test_bibtex_has_each_source_once():
    rows = [from_reported(row) for board in BOARDS for row in read_reported(board)]
    keys = re.findall(r"^@\w+\{(\w+),$", to_bibtex(rows), re.MULTILINE)
    assert sorted(keys) == sorted(read_sources())


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX engine here")
def test_latex_compiles(tmp_path):
    rows = _rows() + [_everywhere(text) for text in PAYLOADS]
    (tmp_path / "x.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        + "\\clearpage\n".join(to_latex([row]) for row in rows)
        + "\\end{document}\n",
        encoding="utf-8",
    )
    (tmp_path / "x.bib").write_text(to_bibtex(rows), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode("utf-8", "replace")[-2000:]


# Rows of a board


def _published(entry, rsum, **changes):
    """The same result as if it were on the authors' 1,000 pairs."""
    changes = {"n_pairs": 1000, "n_images": 1000, "rsum": rsum} | changes
    return entry_of(entry.result.model_copy(update=changes))


def test_scored_rows_stand_among_the_reported_ones_on_the_same_data(entry_on, archive):
    entry = entry_on(on=archive, track="bert")
    entries = [
        proven(_published(entry, 140.0)),
        _published(entry, 150.0),
        _published(entry, 300.0, ranked=False),
    ]
    rows = rows_of(make_board("bert", entries))
    assert [(row.place, row.method) for row in rows] == [
        (1, "Mine"),
        (None, "PC²"),
        (None, "Mine"),
        (None, "BiCro"),
        (None, "DECL"),
        (None, "NCR"),
        (None, "SGR"),
        (None, "Mine"),
    ]
    assert [row.proof for row in rows] == [True] + 7 * [False]
    assert {(row.noise, row.data) for row in rows} == {("noise of the web", "published test split")}
    assert rows[1].low < 150.6 < rows[1].high
    assert (rows[2].evidence, rows[2].entry) == ("scored", entries[1].name)


def test_scored_rows_on_other_data_stand_apart(entry_on, archive):
    rows = rows_of(make_board("bert", [entry_on(on=archive, track="bert")]))
    assert [row.evidence for row in rows] == ["scored"] + 5 * ["reported"]
    assert rows[0].data.startswith("copy ")
    row = rows_of(make_board("jieba", [entry_on()]))[0]
    assert row.data.startswith("rebuilt release ")
    assert len(to_markdown(rows_of(make_board("jieba", [entry_on()]))).split("### ")) == 3


def test_a_coco_result_gives_its_folds_to_one_board_and_the_whole_to_the_other(entry_on, archive):
    way = AtCutoffs.model_validate({"R@1": 70.0, "R@5": 90.0, "R@10": 95.0})
    folds = Folds(size=1000, count=5, i2t=way, t2i=way, rsum=510.0)
    release = {"origin": "field", "fingerprint": "0" * 64}
    noise = SubmittedNoise(protocol="captions", sha256="0" * 64, mismatch=0.19997)
    training = Training(noise=noise, ensemble_size=2)
    base = entry_on(on=archive, track="bert").result.model_copy(
        update={"track": "coco", "training": training, "release": Release(**release)}
        | {"n_images": 5000, "n_pairs": 25000}
    )
    whole, folded = (entry_of(base.model_copy(update={"folds": f})) for f in (None, folds))
    assert not [row for row in rows_of(make_board("coco-1k", [whole])) if row.entry]
    (row,) = (row for row in rows_of(make_board("coco-5k", [whole])) if row.entry)
    assert row.rsum == base.rsum
    (row,) = (row for row in rows_of(make_board("coco-1k", [folded])) if row.entry)
    assert (row.rsum, row.recalls[:3], row.low) == (510.0, (70.0, 90.0, 95.0), None)
    rows = [row for row in rows_of(make_board("coco-1k", [folded])) if "captions" in row.noise]
    methods = [row.method for row in rows if row.noise.startswith("20 %")]
    assert (methods[0], methods[9]) == ("IN2R", "Mine")


def test_noise_that_is_not_told_is_not_taken_for_none(entry_on, archive):
    base = entry_on(on=archive, track="bert").result
    silent = entry_of(base.model_copy(update={"track": "flickr30k"}))
    (row,) = (row for row in rows_of(make_board("flickr30k", [silent])) if row.entry)
    assert row.noise == "noise not stated"
    shuffled = SubmittedNoise(protocol="either", sha256="0" * 64, mismatch=0.2)
    more = entry_of(base.model_copy(update={"training": Training(noise=shuffled)}))
    (row,) = (row for row in rows_of(make_board("bert", [more])) if row.entry)
    assert row.noise == "noise of the web, 20 % more shuffled"


# Badges


@given(HOSTILE, HOSTILE, st.sampled_from(sorted(COLOURS)))
def test_a_badge_is_xml_and_shows_its_text(label, message, colour):
    badge = Badge(label, message, colour)
    root = ET.fromstring(badge_svg(badge))  # noqa: S314 - what we wrote ourselves
    kinds = [element.tag.rpartition("}")[2] for element in root.iter()]
    assert kinds == ["svg", "title", "rect", "rect", "g", "text", "text"]
    shown = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert shown == [json.loads(badge_json(badge))[name] for name in ("label", "message")]
    assert not any(name.startswith("on") for element in root.iter() for name in element.attrib)


@pytest.mark.parametrize("text", PAYLOADS)
@pytest.mark.parametrize("name", FORMATS)
def test_no_payload_breaks_an_export(name, text):
    exported = FORMATS[name]([_everywhere(text), *_rows()])
    exported.encode("utf-8")
    if name != "json":
        assert not set(exported) & set("\t\r\x00\x07\x1b\u202e\uffff")
