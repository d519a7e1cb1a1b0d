"""Who becomes a pair, drawn stably; and what a file of judgements may look like."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.errors import FormatError
from now_builder.formats.captions import UNK
from now_builder.formats.shard import CaptureRow, Planned
from now_builder.formats.split import Shares, SplitPlan
from now_builder.package.filters import CrawledPages, Selection, select
from now_builder.package.inputs import read_judgements
from now_builder.package.settings import PackageSettings

SPLIT = SplitPlan(shares=Shares(train=0.5, dev=0.2, test=0.3))


def chosen(**settings) -> PackageSettings:
    return PackageSettings(seed=0, by="site", **settings)


def line(number: int, site: str = "") -> Planned:
    url = f"http://{site or f'site{number}'}.test/{number}"
    return Planned(f"00000_{number:04d}", 0, url, url, f"{site or f'site{number}'}.test")


def pages(count: int, **changes) -> CrawledPages:
    plan = [line(number) for number in range(count)]
    rows = {
        item.key: CaptureRow(item.key, item.url, item.url, item.site, "ok", caption="a")
        for item in plan
    }
    keys = frozenset(rows)
    ids = {name: {key: [4] for key in rows} for name in ("jieba", "bpe", "bert")}
    found = {"plan": plan, "rows": rows, "features": keys, "ids": ids} | changes
    return CrawledPages(**found)


@settings(max_examples=30)
@given(count=st.integers(0, 60), dev=st.integers(1, 9), test=st.integers(1, 9))
def test_pairs_and_rejects_are_the_plan(count: int, dev: int, test: int) -> None:
    found = select(pages(count), SPLIT, chosen(train=20, dev=dev, test=test))
    keys = [key for split in found.splits.values() for key in split]
    keys += [reject.key for reject in found.rejects]
    assert sorted(keys) == [line(number).key for number in range(count)]
    assert len(found.splits["dev"]) <= dev
    assert sum(found.reasons.values()) == len(found.rejects)


def test_captions_without_known_tokens_are_rejected() -> None:
    found = pages(4)
    known, empty, unknown, partly = (line.key for line in found.plan)
    own = {known: [4], empty: [], unknown: [UNK, UNK], partly: [UNK, 4]}
    for name, lost in (("bert", [empty, unknown]), ("mine", [empty])):
        rest = replace(found, ids={**found.ids, name: own})
        rejects = {r.key: r.reason for r in select(rest, SPLIT, chosen()).rejects}
        assert rejects == dict.fromkeys(lost, f"empty_tokens:{name}")


def test_pages_without_verdict_are_not_in_dev_or_test() -> None:
    found = pages(60)
    verdicts = {item.key: "match" for item in found.plan[:20]}
    verdicts |= {item.key: "mismatch" for item in found.plan[20:40]}
    selection = select(found, SPLIT, chosen(), verdicts)
    drawn = [*selection.splits["dev"], *selection.splits["test"]]
    assert drawn
    assert all(verdicts.get(key) == "match" for key in drawn)
    details = {r.key: r.detail for r in selection.rejects if r.reason == "not_matched"}
    assert {*details.values()} == {"judged mismatch", "judged by nobody"}


def test_suspects_are_rejects_that_say_so_unless_somebody_judged_them() -> None:
    found = pages(30)
    keys = [line.key for line in found.plan]
    doubted = dict(zip(keys, [0.0, 0.4999, 0.5, 1.0] * 6, strict=False))  # the others: no word
    own = replace(found, suspects=doubted)
    low = {key for key, clean_prob in doubted.items() if clean_prob < 0.5}
    reasons = {reject.key: reject for reject in select(own, SPLIT, chosen()).rejects}
    assert {key for key, reject in reasons.items() if reject.reason == "suspect"} == low
    assert reasons[keys[1]].detail == "clean_prob 0.4999, less than 0.5"
    judged = dict.fromkeys(keys, "match") | {keys[0]: "mismatch"}
    left = {reject.key for reject in select(own, SPLIT, chosen(), judged).rejects}
    assert left == {keys[0]}
    assert not select(own, SPLIT, chosen(min_clean=0)).rejects


def world(captions: dict[int, str], **columns: dict[int, str | None]) -> CrawledPages:
    """Pages with these captions; further columns of their rows by name and page."""
    found = pages(len(captions))
    rows = {
        line(number).key: replace(
            found.rows[line(number).key],
            caption=caption,
            **{name: values.get(number) for name, values in columns.items()},
        )
        for number, caption in captions.items()
    }
    return replace(found, rows=rows)


def why(selection: Selection) -> dict[int, tuple[str, str | None]]:
    return {int(r.key[-4:]): (r.reason, r.detail) for r in selection.rejects}


def test_other_languages_are_rejects_and_undecided_is_one() -> None:
    found = world(dict.fromkeys(range(4), "a"), lang={0: "zh", 1: "en", 2: "fr", 3: None})
    assert why(select(found, SPLIT, chosen(languages="zh,und"))) == {
        1: ("language", "en"), 2: ("language", "fr"),
    }  # fmt: skip


def test_a_dropped_flag_is_the_reason_and_all_of_a_page_are_the_detail() -> None:
    flags = {0: {"blank", "email"}, 1: {"phone"}, 2: {"email", "phone"}}
    keyed = {line(number).key: frozenset(found) for number, found in flags.items()}
    found = pages(4, flags=keyed)
    assert why(select(found, SPLIT, chosen(drop="blank,email"))) == {
        0: ("flag:blank", "blank,email"), 2: ("flag:email", "email"),
    }  # fmt: skip


def test_of_urls_that_led_to_one_page_one_is_a_pair() -> None:
    """Sixty sites redirect to three pages, whose URLs are written in several ways."""
    ways = ("http://final.test/{}", "HTTP://Final.test:80/{}", "http://final.test/x/../{}#top")
    landed = {number: ways[number // 3 % 3].format(number % 3) for number in range(60)}
    found = world({number: str(number) for number in landed}, final_url=landed)
    selection = select(found, SPLIT, chosen())
    kept = [int(key[-4:]) for keys in selection.splits.values() for key in keys]
    assert sorted(number % 3 for number in kept) == [0, 1, 2]
    assert len(selection.splits["test"]) == 3
    assert all(
        reason == "duplicate_page" and detail == f"of {line(first).key} in test, {landed[number]}"
        for number, (reason, detail) in why(selection).items()
        for first in kept
        if first % 3 == number % 3
    )
    assert len(why(selection)) == 57


def test_of_equal_captions_one_stays_test_before_dev_before_train() -> None:
    """Sixty pages with three captions: of each one stays, in the test split."""
    texts = ["Straße der BÄCKER", "Фотографии и карты города", "天气预报"]
    kinds = {number: number % 3 for number in range(60)}
    found = world({n: [texts[k], texts[k].upper()][n % 2] for n, k in kinds.items()})
    selection = select(found, SPLIT, chosen(duplicate_captions="exact"))
    kept = [int(key[-4:]) for keys in selection.splits.values() for key in keys]
    assert sorted(kinds[number] for number in kept) == sorted(set(kinds.values()))
    assert len(selection.splits["test"]) == len(kept)
    assert {reject.reason for reject in selection.rejects} == {"duplicate_caption"}
    for reject in selection.rejects:
        original = (reject.detail or "").split()[1]
        assert original in selection.splits["test"]
        assert kinds[int(original[-4:])] == kinds[int(reject.key[-4:])]
        assert (reject.detail or "").startswith(f"of {original} in test, ")


@settings(max_examples=20)
@given(data=st.data())
def test_filters_reject_and_never_lose(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 40))
    texts = data.draw(st.lists(st.sampled_from(["aAbß", "long"]), min_size=count, max_size=count))
    found = world(dict(enumerate(texts)))
    filters = chosen(
        train=data.draw(st.integers(1, 20)),
        duplicate_captions=data.draw(st.sampled_from(["keep", "exact"])),
    )
    backward = replace(found, plan=list(reversed(found.plan)))
    selection = select(found, SPLIT, filters)
    assert selection == select(backward, SPLIT, filters)
    keys = [key for split in selection.splits.values() for key in split]
    assert sorted([*keys, *(r.key for r in selection.rejects)]) == [i.key for i in found.plan]


def judged(path: Path, count: int = 6) -> dict[str, str]:
    return dict(read_judgements([path], [line(number) for number in range(count)]))


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["url", "key"])
def test_verdicts_are_read_from_csv_and_parquet_by_url_and_key(
    tmp_path: Path, suffix: str, column: str
) -> None:
    names = [getattr(line(number), column) for number in range(3)]
    truth = [True, False, None if suffix == "parquet" else ""]
    table = pd.DataFrame({column: names, "matched": truth, "topic": ["a", "b", "c"]})
    path = tmp_path / f"truth.{suffix}"
    table.to_csv(path, index=False) if suffix == "csv" else table.to_parquet(path)
    assert judged(path) == {
        "00000_0000": "match", "00000_0001": "mismatch", "00000_0002": "unsure",
    }  # fmt: skip


def test_a_verdict_on_another_crawls_page_of_the_same_key_is_ignored(tmp_path: Path) -> None:
    rows = [
        (line(0).key, line(0).url, "match"), (line(1).key, "http://other.test/", "match"),
        (line(2).key, "", "mismatch"), ("", line(3).url, "match"), ("", "", "match"),
    ]  # fmt: skip
    text = "".join(f"{key},{url},{word}\n" for key, url, word in rows)
    (tmp_path / "audit.csv").write_text(f"key,url,matched\n{text}", encoding="utf-8")
    assert judged(tmp_path / "audit.csv") == {
        line(0).key: "match", line(2).key: "mismatch", line(3).key: "match",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "neither CSV nor Parquet"),
        ("url,truth\nhttp://site0.test/0,1\n", "expected key or url, and matched"),
        ("url,matched\nhttp://site0.test/0,maybe\n", "row 2"),
        ("url,matched\nhttp://elsewhere.test/,1\n", "none of its 1 lines"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "audit.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=word) as caught:
        judged(path)
    assert "\n" not in str(caught.value)
