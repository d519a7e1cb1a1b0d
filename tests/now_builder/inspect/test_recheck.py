"""The second reader: silent where captions are right, and naming each one that is not."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from now_builder.errors import FormatError
from now_builder.formats.shard import Capture, CaptureRow, Planned, write_plan, write_shard
from now_builder.inspect.recheck import Disagreement, descriptions, recheck

NOSCRIPT = "<noscript><meta name=description content=no></noscript>"
PAGES = {
    "Caf\u00e9 & bar": ("<meta name=Description content='Cafe\u0301 &amp; \n bar'>", "utf-8"),
    "\u624b\u673a": ("<meta name=description content='\u624b\u673a'>", "gbk"),
    "yes": (
        NOSCRIPT + "<meta name=description content=' '><meta name=description content=yes>",
        "utf-8",
    ),
    "one": ("<meta name=description content=one content=two>", "windows-1252"),
}


def _write(captures, changes=None):
    """Five pages of two shards, the last without a description by name, and a failed one."""
    captures.mkdir(exist_ok=True)
    for shard in (0, 1):
        rows, members = [], []
        for place, (caption, (html, charset)) in enumerate(PAGES.items()):
            key = f"{shard:05d}_{place:04d}"
            row = CaptureRow(key, f"http://a.test/{key}", "", "a.test", "ok", charset=charset)
            rows.append(replace(row, caption=caption, caption_source="name"))
            members.append(Capture(key, b"\x89PNG", html.encode(charset), []))
        key = f"{shard:05d}_0004"
        last = CaptureRow(key, f"http://a.test/{key}", "", "a.test", "ok", charset="utf-8")
        rows.append(replace(last, caption="og", caption_source="og"))
        members.append(Capture(key, b"\x89PNG", b"<meta property=og:description content=og>", []))
        rows.append(CaptureRow(f"{shard:05d}_0005", "http://b.test/", "", "b.test", "failed"))
        rows = [replace(row, **(changes or {}).get(row.key, {})) for row in rows]
        write_shard(captures, shard, rows, members)
    write_plan(captures, [Planned("00000_0000", 0, "http://a.test/", "", "a.test")])
    return captures


def test_right_captions_are_read_the_same(tmp_path):
    found = recheck(_write(tmp_path / "captures"))
    assert (found.pages, found.disagreements) == (10, [])


def test_placeholders_and_what_is_invisible_are_passed_over_by_both(tmp_path):
    named = "<meta name=description content='%s'>"
    pages = [
        (named % "&#x200B;" + named % "bread", "bread", "name"),
        (named % "{{ text }}" + named % "bread", "bread", "name"),
        (named % "{{ text }}" + "<meta property=og:description content=og>", "og", "og"),
        (named % "undefined" + named % "null", "undefined", "name"),
    ]
    rows, members = [], []
    for place, (html, caption, source) in enumerate(pages):
        key = f"00000_{place:04d}"
        row = CaptureRow(key, "http://a.test/", "", "a.test", "ok", charset="utf-8")
        rows.append(replace(row, caption=caption, caption_source=source))
        members.append(Capture(key, b"\x89PNG", html.encode(), []))
    write_shard(tmp_path, 0, rows, members)
    write_plan(tmp_path, [Planned("00000_0000", 0, "http://a.test/", "", "a.test")])
    assert recheck(tmp_path).disagreements == []


def test_each_wrong_caption_is_named_with_both_texts(tmp_path):
    changes = {
        "00000_0001": {"caption": "\u624b"},
        "00001_0002": {"caption": None, "caption_source": None},
        "00001_0004": {"caption_source": "name"},
    }
    found = recheck(_write(tmp_path / "captures", changes))
    assert found.disagreements == [
        Disagreement("00000_0001", "http://a.test/00000_0001", "\u624b", "\u624b\u673a"),
        Disagreement("00001_0002", "http://a.test/00001_0002", None, "yes"),
        Disagreement("00001_0004", "http://a.test/00001_0004", "og", None),
    ]


def test_a_sample_is_seeded_and_a_larger_one_holds_the_smaller(tmp_path):
    wrong = {f"{shard:05d}_{place:04d}": {"caption": "x"} for shard in (0, 1) for place in range(4)}
    captures = _write(tmp_path / "captures", wrong)

    def drawn(count, seed):
        found = recheck(captures, count, seed)
        assert found.pages == count
        return {one.key for one in found.disagreements}

    assert drawn(3, 1) == drawn(3, 1) <= drawn(6, 1)
    assert len({frozenset(drawn(3, seed)) for seed in range(9)}) > 1


def test_what_stands_in_raw_text_is_no_description():
    assert descriptions("<title><meta name=description content=no></title>") == []
    assert descriptions(b"<script><meta name=description content=no></script>") == []
    assert descriptions("<meta name=description content=a>" * 2) == ["a"]


def test_the_command_prints_words_and_json_and_tells_the_folders_apart(tmp_path):
    captures = _write(tmp_path / "captures", {"00000_0003": {"caption": "two"}})

    def verify(*arguments):
        code = "from now_builder.cli import main; main()"
        command = [sys.executable, "-c", code, "verify", captures, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1, done.stderr
        return done.stdout, done.stderr

    out, err = verify("--recheck")
    assert out == "00000_0003 http://a.test/00000_0003\n  stored: 'two'\n  reread: 'one'\n"
    assert "1 of 10 captions are read differently" in err
    out, _ = verify("--recheck", "--sample", "10", "--json")
    assert [one["key"] for one in json.loads(out)["disagreements"]] == ["00000_0003"]
    _, err = verify()
    assert "captures, not a release; --recheck reads their captions again" in err
    with pytest.raises(FormatError, match="takes a folder made by crawl"):
        recheck(tmp_path)


def test_a_missing_page_is_one_line(tmp_path):
    captures = _write(tmp_path / "captures", {"00001_0005": {"status": "ok"}})
    with pytest.raises(FormatError, match=r"00001\.tar: page 00001_0005: not in it"):
        recheck(captures)
