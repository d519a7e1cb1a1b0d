"""Exports: what leaves the board reads back, and no text in it becomes anything but text."""

import csv
import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaderboard.board.exports import EXPORTED, FORMATS, to_csv, to_json, to_latex, to_markdown
from leaderboard.board.reported import read_sources
from leaderboard.board.tables import COLUMNS, make_board
from leaderboard.metrics import RECALLS
from leaderboard.scoring.evaluate import score
from leaderboard.submission.archive import new_submission, pack
from leaderboard.submission.trec import write_trec
from tests.leaderboard.conftest import SIZES, make_similarity

GOLDEN = Path(__file__).parent / "golden"
N = SIZES["test"]

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
    "\u202eesrever",
    "nul\x00 bell\x07 \x1b[31m",
    "模型 Ąć 😀 ²",
    "'",
    "NaN",
    "",
]
TEXTS = ("board", "noise", "data", "method", "post_processing", "date", "entry", "url", "table",
         "footnote")  # fmt: skip
# Every kind of character that means something to one of the formats, and others.
HOSTILE = st.text(
    st.sampled_from(list("\\{}[]()|`*_~^$&%#<>\"'=+-@;,.:!/ \t\r\n\x00\x1b\u202e²é模x1"))
    | st.characters(exclude_categories=["Cs"]),
    max_size=40,
)
OURS = {
    "board": "jieba",
    "noise": "noise of the web",
    "data": "published test split",
    "proof": True,
    "place": 1,
    "place_low": 1,
    "place_high": 2,
    "method": "Ours, 50 % | α",
    "evidence": "reproduced",
    "rsum": 164.25,
    "claimed": 170.5,
    "low": 151.5,
    "high": 177.0,
    **dict(zip(RECALLS, (16.1, 29.6, 37.0, 15.55, 29.0, 37.0), strict=True)),
    "ensemble": 2,
    "post_processing": "none",
    "date": "2026-11-22",
    "entry": "0123456789ab",
    "url": "https://example.org/ours_(v2)?a=1&b=2",
    "authors": ("Ann O'Neil", "李雷"),
    "footnote": "Trained twice.",
    "notes": (),
    "ranked": True,
}


def _board(*rows):
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _everywhere(text, **changes):
    return OURS | dict.fromkeys(TEXTS, text) | {"authors": (text, text), "claimed": None} | changes


def _golden():
    reported = pd.concat([make_board(name, []) for name in ("jieba", "coco-1k", "flickr30k")])
    rows = reported.to_dict("records")
    printed = [row for row in rows if row["board"] == "jieba"][:1]
    corrected = [row for row in rows if "prints" in str(row["footnote"])][:1]
    printed_sums = [row for row in rows if row["evidence"] == "reported"]
    summed = [row for row in printed_sums if pd.isna(row["i2t_r1"])][:1]
    chance = [row for row in rows if row["evidence"] == "reference"][:1]
    return _board(OURS, *printed, *corrected, *summed, *chance)


def test_exports_are_as_they_were():
    for name, write in FORMATS.items():
        assert write(_golden()) == (GOLDEN / f"board.{name}").read_text(encoding="utf-8"), name


def _parsed(text):
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_no_payload_breaks_an_export_or_becomes_more_than_text():
    for text in PAYLOADS:
        board = _board(_everywhere(text, place_low=None), OURS)
        for name, write in FORMATS.items():
            exported = write(board)
            exported.encode("utf-8")
            if name != "json":
                assert not set(exported) & set("\t\r\x00\x07\x1b\u202e\uffff")
        exported = to_csv(board)
        record = _parsed(exported)[0]
        for value in record.values():
            assert re.fullmatch(r"-?[\d.]+", value) or value[:1] not in set("=+-@＝＋－＠\t\r")
        # Nor where other programs or countries let a cell begin.
        assert not re.search(r"(^|[;,\"\t])\s*[=+@＝]", exported, re.MULTILINE), text
        # Without escaped marks nothing is left that opens a link, code, emphasis or HTML.
        alone = to_markdown(_board(_everywhere(text, url=None, place_low=None)))
        body = alone.split("\n", 4)[4]
        bare = re.sub(r"\\[!-/:-@\[-`{-~]", "", body).replace("|", "")
        assert not set(bare) & set("`*_[]<>()#~$&@^"), text
        assert "://" not in bare
        assert "www." not in bare


@settings(max_examples=25)
@given(HOSTILE, st.floats(0, 600))
def test_any_text_reads_back_and_tables_keep_their_cells(text, rsum):
    board = _board(_everywhere(text, rsum=rsum, board="jieba", noise="web", data="d"), OURS)
    record = _parsed(to_csv(board))[0]
    assert tuple(record) == tuple(EXPORTED)
    assert float(record["rsum"]) == rsum
    if text.isascii() and text.isalnum():
        assert record["method"] == text
    (told, _) = json.loads(to_json(board))["rows"]
    assert (told["method"], told["authors"], told["rsum"]) == (text, [text, text], rsum)
    lines = [line for line in to_markdown(board).splitlines() if line.startswith("| ")]
    assert {len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) for line in lines} == {13}
    _check_latex(to_latex(board))


COMMANDS = {"textbackslash", "textbraceleft", "textbraceright", "textasciicircum",
            "textasciitilde", "textless", "textgreater", "textbar", "nowchar"}  # fmt: skip


def _check_latex(exported):
    """Braces balance, and a hostile row has no command but ours."""
    depth = 0
    for char in re.sub(r"\\.", "", exported):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0
    assert not any(char in exported for char in "\t\r\x00\x1b\u202e^")
    for line in exported.splitlines():
        if line.startswith("1 ") and "Ours" not in line:
            method = re.split(r"(?<!\\)&", line)[1].replace("{[}1{]}", "")
            bare = re.sub(r"\\[$&#%_]", "", method)
            assert set(re.findall(r"\\(\w+)", bare)) <= COMMANDS
            bare = re.sub(r"\\\w+(\{\w*\})", "", bare).replace("{[}", "").replace("{]}", "")
            assert not set(bare) & set("\\{}[]$&#%_^~<>|")


def test_only_web_addresses_become_links():
    for url, link in {
        "https://example.org/a_(b) c|<d>\n": "(https://example.org/a_%28b%29%20c%7C%3Cd%3E%0A)",
        "javascript:alert(1)": None,
        "data:text/html,x": None,
        "//example.org": None,
    }.items():
        exported = to_markdown(_board(OURS | {"url": url}))
        assert (link in exported) if link else ("](" not in exported)


def test_footnotes_and_sources_stand_once_and_tables_apart():
    board = make_board("jieba", [])
    exported = to_markdown(board)
    assert exported.count("\\[1\\]") == 6
    assert "\n\\[1\\] Duan et al. 2024, NoW table, Jieba.\n" in exported
    record = json.loads(to_json(board))["rows"][0]
    assert record["source"] == read_sources()["duan2024pc2"].model_dump(mode="json")
    rows = [OURS | {"noise": noise, "method": method} for noise, method in ("aX", "bY", "aZ")]
    assert re.findall(r"\[(\w)\]\(", to_markdown(_board(*rows))) == ["X", "Z", "Y"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no TeX engine here")
def test_latex_compiles(tmp_path):
    (tmp_path / "x.tex").write_text(
        "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
        + "\\clearpage\n".join(to_latex(_board(_everywhere(text))) for text in PAYLOADS)
        + "\\end{document}\n",
        encoding="utf-8",
    )
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout.decode("utf-8", "replace")[-2000:]


def _cells(path):
    return [line.split() for line in path.read_text().splitlines()]


@pytest.mark.parametrize("each", [1, 5])
def test_a_trec_run_has_the_figures_of_the_result(tmp_path, release, each):
    """By the tools of TREC, of a matrix without ties, of one and of five captions an image."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="pytrec-eval-terrier not installed")
    matrix, track, data = make_similarity(strength=1.0), "jieba", release
    if each == 5:
        matrix = np.random.default_rng(0).standard_normal((12, 60)).astype(np.float32)
        track, data = "coco", tmp_path / "data"
        (data / "coco_precomp").mkdir(parents=True)
        text = "".join(f"caption {row}\n" for row in range(60))
        (data / "coco_precomp" / "testall_caps.txt").write_text(text)
    pack(tmp_path / "x.zip", matrix, new_submission(data, track, "test", "My method"))
    result = json.loads(score(tmp_path / "x.zip", data).to_json())
    names = ("success_1", "success_5", "success_10", "recip_rank", "ndcg_cut_10")
    files = write_trec(tmp_path / "x.zip", data, tmp_path / "out")
    for way, run, qrels in (("i2t", *files[:2]), ("t2i", *files[2:])):
        right, found = {}, {}
        for query, _, document, relevance in _cells(qrels):
            right.setdefault(query, {})[document] = int(relevance)
        for query, _, document, _, value, tag in _cells(run):
            assert tag == f"My-method.{way}"
            found.setdefault(query, {})[document] = float(value)
        queries = pytrec_eval.RelevanceEvaluator(right, set(names)).evaluate(found).values()
        *hits, mrr, ndcg = (np.mean([query[name] for query in queries]) for name in names)
        told = [result[way][name] for name in ("R@1", "R@5", "R@10", "MRR", "nDCG@10")]
        assert told == pytest.approx([*(100 * hit for hit in hits), mrr, ndcg])


def test_a_run_is_cut_after_all_that_tie_with_the_last(tmp_path, release, monkeypatch):
    monkeypatch.setattr("leaderboard.submission.trec.DEPTH", 10)
    matrix = make_similarity()
    matrix[0] = 0
    pack(tmp_path / "x.zip", matrix, new_submission(release, "jieba", "test", "Mine"))
    run, *_ = write_trec(tmp_path / "x.zip", release, tmp_path / "out")
    queries = [query for query, *_ in _cells(run)]
    assert [queries.count(query) for query in dict.fromkeys(queries)] == [N] + [10] * (N - 1)
