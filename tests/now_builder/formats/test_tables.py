"""Users' tables: CSV or Parquet by their content; other files give one line."""

import gzip
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import FormatError
from now_builder.formats.shard import Planned, write_plan
from now_builder.formats.tables import read_frame

FRAME = pd.DataFrame({"key": ["007", "8", "中"], "matched": [True, False, None]})


def test_cells_of_a_csv_are_texts_and_those_of_parquet_what_they_are(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "table", index=False, encoding="utf-8-sig")
    assert read_frame(tmp_path / "table").to_numpy().tolist() == [
        ["007", "True"], ["8", "False"], ["中", ""],
    ]  # fmt: skip
    FRAME.to_parquet(tmp_path / "table")
    assert list(read_frame(tmp_path / "table")["matched"]) == [True, False, None]


def test_empty_cells_of_parquet_are_empty_texts_or_none(tmp_path: Path) -> None:
    texts = pa.array(["a", None])
    kinds = (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), "utf8"))
    columns = {str(kind): texts.cast(kind) for kind in kinds}
    columns |= {"null": pa.nulls(2), "list": pa.nulls(2, pa.list_(pa.int8()))}
    rest = {"whole": pa.array([12, None]), "truth": pa.array([True, None])}
    pq.write_table(pa.table(columns | rest), tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet").to_dict("list") == {
        **{name: ["" if name in {"null", "list"} else "a", ""] for name in columns},
        "whole": [12, None], "truth": [True, None],
    }  # fmt: skip


def test_a_name_twice_is_named(tmp_path: Path) -> None:
    column = pa.array(["a"])
    pq.write_table(pa.table([column, column], names=["key", "key"]), tmp_path / "t.parquet")
    with pytest.raises(FormatError, match="a name twice"):
        read_frame(tmp_path / "t.parquet")


TORN = [
    # pandas takes the first column for an index here, and moves all others by one.
    ("key,matched\n00000_0000,true,\n00000_0001,false,\n", 2, "3 cells, the header has 2"),
    ("key,matched\n\n00000_0000,true\nk,l,true\n", 4, "3 cells, the header has 2"),
    ('key,note\na,"b\nc,d\n', 2, "opens a cell here and is closed nowhere"),
    ('sep=,\nkey,note\na,b\nc,"d" e\nf,g\n', 4, "text behind a closing double quote"),
    # Two quotes that are forgotten close each other.
    ('key,note\n00000_0000,"27 inch\n00000_0001,b\n00000_0002,c"\n', 2, "other records"),
    ('note,url\n"b,http://a.test/\nc,http://b.test/\nd", http://c.test/\n', 2, "other records"),
    ('url\n"http://a.test/\nhttp://b.test/\n"\n', 2, "other records"),
    ('site,why,by\na.test,"spam\nb.test,spam\nc.test,ads"\n', 2, "other records"),
    ("key,note\na," + "x" * 16_777_217 + "\n", 2, "a cell of more than 16777216"),
]


def test_a_csv_loses_no_record_and_no_part_of_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    for text, line, found in TORN:
        for ending in ("\n", "\r"):
            path.write_text(text, "utf-8", newline=ending)
            with pytest.raises(FormatError, match=rf"t\.csv: line {line}: .*{found}"):
                read_frame(path)


def test_a_csv_is_read_as_it_is_written(tmp_path: Path) -> None:
    """Names in any case and with spaces, quotes behind a space, cells of two lines, short rows."""
    path = tmp_path / "t.csv"
    path.write_text(
        'Key, MATCHED ,note\r\na, "1","he said ""no"", then\nleft, sadly"\r\n\r\nb,0\r\n',
        "utf-8-sig",
        newline="",
    )  # fmt: skip
    frame = read_frame(path)
    assert list(frame.columns) == ["key", "matched", "note"]
    assert frame.to_numpy().tolist() == [
        ["a", "1", 'he said "no", then\nleft, sadly'], ["b", "0", ""],
    ]  # fmt: skip


def test_between_tabs_a_quote_that_is_not_closed_in_its_cell_is_a_letter(tmp_path: Path) -> None:
    path = tmp_path / "t.tsv"
    path.write_text(
        'key\tnote\n00000_0000\t"Quoted at the start\n00000_0001\tx\n'
        '00000_0002\tat the end"\n"00000_0003"\t"two ""words"", a, b"\n00000_0004\t"open\n',
        "utf-8",
    )
    frame = read_frame(path)
    assert list(frame["key"]) == [f"00000_000{number}" for number in range(5)]
    assert list(frame["note"]) == [
        '"Quoted at the start', "x", 'at the end"', 'two "words", a, b', '"open',
    ]  # fmt: skip


def test_a_name_is_read_without_what_is_not_seen_around_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("\ufeff\ufeffKey,note\n\u200b00000_0000\u2060,\u200bx\n", "utf-8")
    assert read_frame(path).to_dict("list") == {"key": ["00000_0000"], "note": ["\u200bx"]}


def test_other_content_than_a_table_is_named(tmp_path: Path) -> None:
    for content, found in (
        (gzip.compress(b"key,matched\na,1\n", mtime=0), "found gzip data; unpack it"),
        (b"PK\x03\x04...", "found a zip archive or an Excel workbook"),
        ("key,matched\na,1\n".encode("utf-16-le"), "found binary data"),
        ("key,matched\na,1\n".encode("utf-16"), "found UTF-16 text"),
        ("key,note\na,b\nc,caf\u00e9\n".encode("latin-1"), "line 3: byte 0xe9 is not UTF-8"),
        (b'\n{"key": "a", "matched": true}\n', "line 2: .*found JSON"),
        (b'[\n  {"key": "a"}]', "line 1: .*found JSON"),
        (b"<table><tr><td>key</td></tr></table>", "found HTML or XML"),
    ):
        (tmp_path / "t.csv").write_bytes(content)
        with pytest.raises(FormatError, match=found):
            read_frame(tmp_path / "t.csv")
    with pytest.raises(FormatError, match="no such file"):
        read_frame(tmp_path / "none.csv")
    with pytest.raises(FormatError, match="neither CSV nor Parquet"):
        read_frame(tmp_path)


def test_a_csv_may_have_the_marks_of_any_spreadsheet(tmp_path: Path) -> None:
    for between in ",;\t":
        odd = "one, two; three"
        lines = [["key", '"matched"', "note"], ["a", "TRUE", "x"], ["b", "", f'"{odd}"']]
        text = "\r\n".join(between.join(line) for line in lines)
        (tmp_path / "t.csv").write_text(text, encoding="utf-8-sig")
        frame = read_frame(tmp_path / "t.csv")
        assert list(frame.columns) == ["key", "matched", "note"]
        assert frame.to_numpy().tolist() == [["a", "TRUE", "x"], ["b", "", odd]]
        (tmp_path / "t.csv").write_text(f"sep={between}\r\n{text}", encoding="utf-8-sig")
        assert read_frame(tmp_path / "t.csv").equals(frame)
        (tmp_path / "t.csv").write_text(text.replace("note", '"note; of, a"'), "utf-8")
        assert list(read_frame(tmp_path / "t.csv").columns) == ["key", "matched", "note; of, a"]


@settings(max_examples=40, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: float, byte: int, *, cut: bool
) -> None:
    """Any error but a FormatError fails, where it is read and where its cells are used."""
    path = tmp_path_factory.getbasetemp() / "damaged.parquet"
    FRAME.to_parquet(path)
    content = bytearray(path.read_bytes())
    at = int(place * len(content))
    content[at] = byte
    path.write_bytes(content[:at] if cut else content)
    try:
        frame = read_frame(path)
    except FormatError:
        return
    texts = frame.map(str)
    assert all(isinstance(text, str) for text in texts.to_numpy().ravel())


def test_no_thread_of_arrow_reads_a_table(tmp_path: Path) -> None:
    """One that still holds a buffer of a Python file at the end aborts a crawl that is done."""
    plan = [
        Planned(str(n), 0, "http://a.test/", f"http://a.test/{n}", "a.test", 0) for n in range(9)
    ]
    write_plan(tmp_path, plan)
    program = f"""
import os
from pathlib import Path
import pandas
import pyarrow.parquet
from now_builder.crawl.plan.urls import read_urls
from now_builder.formats.shard import Planned, read_plan
from now_builder.formats.tables import read_frame, schema_of, stream_rows
folder = Path({str(tmp_path)!r})
path = folder / "plan.parquet"
before = os.listdir("/proc/self/task")
rows = read_plan(folder), list(stream_rows(path, schema_of(Planned), ())), read_frame(path)
assert [len(own) for own in rows] == [9] * 3 and len(read_urls(path)) == 9
print(len(os.listdir("/proc/self/task")) - len(before))
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "0\n"), ended.stderr
