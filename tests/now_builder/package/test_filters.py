"""Who becomes a pair, drawn stably; and what a file of judgements may look like."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import FormatError
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import Shares, SplitPlan
from now_builder.package.filters import Pages, select
from now_builder.package.judgements import Judgements, read_judgements

SPLIT = SplitPlan(shares=Shares(train=0.5, dev=0.2, test=0.3))
SIZES = {"train": 98_000, "dev": 1000, "test": 1000}


def line(number: int, site: str = "") -> Planned:
    url = f"http://{site or f'site{number}'}.test/{number}"
    return Planned(f"00000_{number:04d}", 0, url, url, f"{site or f'site{number}'}.test")


def pages(count: int, **changes) -> Pages:
    plan = [line(number) for number in range(count)]
    rows = {
        item.key: CaptureRow(item.key, item.url, item.url, item.site, "ok", caption="a")
        for item in plan
    }
    keys = frozenset(rows)
    ids = {name: {key: [4] for key in rows} for name in ("jieba", "bpe", "bert")}
    found = {"plan": plan, "rows": rows, "features": keys, "ids": ids} | changes
    return Pages(**found)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(0, 60), dev=st.integers(1, 9), test=st.integers(1, 9))
def test_pairs_and_rejects_are_the_plan(count: int, dev: int, test: int) -> None:
    found = select(pages(count), SPLIT, {"train": 20, "dev": dev, "test": test}, None)
    keys = [key for split in found.splits.values() for key in split]
    keys += [reject.key for reject in found.rejects]
    assert sorted(keys) == [line(number).key for number in range(count)]
    assert len(found.splits["dev"]) <= dev
    assert sum(found.reasons.values()) == len(found.rejects)


def test_more_pages_change_a_draw_little() -> None:
    """With a pool that grows by a tenth, nine of ten drawn pages stay on average."""
    sizes = {"train": 100, "dev": 30, "test": 30}
    small, large = (select(pages(count), SPLIT, sizes, None) for count in (400, 440))
    for name in ("dev", "test"):
        kept = {*small.splits[name]} & {*large.splits[name]}
        assert len(kept) >= 24


def test_the_order_of_the_plan_does_not_matter() -> None:
    forward = pages(80)
    backward = pages(80, plan=list(reversed(forward.plan)))
    sizes = {"train": 20, "dev": 5, "test": 5}
    assert select(forward, SPLIT, sizes, None) == select(backward, SPLIT, sizes, None)


def test_what_nobody_judged_is_not_in_dev_or_test() -> None:
    found = pages(60)
    verdicts = {item.key: "match" for item in found.plan[:20]}
    verdicts |= {item.key: "mismatch" for item in found.plan[20:40]}
    selection = select(found, SPLIT, SIZES, Judgements(verdicts))
    drawn = [*selection.splits["dev"], *selection.splits["test"]]
    assert drawn
    assert all(verdicts.get(key) == "match" for key in drawn)
    details = {r.key: r.detail for r in selection.rejects if r.reason == "not_matched"}
    assert {*details.values()} == {"judged mismatch", "judged by nobody"}


def judged(path: Path, count: int = 6) -> dict[str, str]:
    return dict(read_judgements(path, [line(number) for number in range(count)]).verdicts)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["url", "key"])
def test_verdicts_are_read_from_csv_and_parquet_by_url_and_key(
    tmp_path: Path, suffix: str, column: str
) -> None:
    names = [getattr(line(number), column) for number in range(3)]
    table = pd.DataFrame({column: names, "matched": [True, False, True], "topic": ["a", "b", "c"]})
    path = tmp_path / f"truth.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    assert judged(path) == {
        "00000_0000": "match", "00000_0001": "mismatch", "00000_0002": "match",
    }  # fmt: skip


def test_the_words_of_an_audit_are_verdicts(tmp_path: Path) -> None:
    words = ["match", "mismatch", "unsure", "Yes", "0", ""]
    rows = "".join(f"{line(number).url},{word}\n" for number, word in enumerate(words))
    (tmp_path / "audit.csv").write_text(f"\ufeffurl,matched\n{rows}", encoding="utf-8")
    assert list(judged(tmp_path / "audit.csv").values()) == [
        "match", "mismatch", "unsure", "match", "mismatch", "unsure",
    ]  # fmt: skip


def test_a_missing_truth_in_parquet_is_unsure(tmp_path: Path) -> None:
    urls = [line(number).url for number in range(3)]
    pd.DataFrame({"url": urls, "matched": [True, None, False]}).to_parquet(tmp_path / "t.parquet")
    assert list(judged(tmp_path / "t.parquet").values()) == ["match", "unsure", "mismatch"]


def test_two_judges_who_differ_are_unsure(tmp_path: Path) -> None:
    rows = [f"{line(0).url},match", f"{line(0).url},mismatch", f"{line(1).url},match"] * 2
    (tmp_path / "a.csv").write_text("url,matched\n" + "\n".join(rows), encoding="utf-8")
    assert judged(tmp_path / "a.csv") == {"00000_0000": "unsure", "00000_0001": "match"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "neither CSV nor Parquet"),
        ("url,truth\nhttp://site0.test/0,1\n", "expected url or key, and matched"),
        ("url,matched\nhttp://site0.test/0,maybe\n", "row 2"),
        ("url,matched\nhttp://elsewhere.test/,1\n", "none of its 1 lines"),
        ('url,matched\n"http://site0.test/0,1\n', "CSV"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "audit.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=word) as caught:
        judged(path)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_table_are_one_line(tmp_path: Path) -> None:
    for name in ("a.csv", "a.parquet"):
        (tmp_path / name).write_bytes(b"\xff\xfe\x00PAR1 nonsense")
        with pytest.raises(FormatError, match="neither CSV nor Parquet"):
            judged(tmp_path / name)
    with pytest.raises(FormatError, match="no such file"):
        judged(tmp_path / "none.csv")
