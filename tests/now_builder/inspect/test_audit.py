"""The audit: every verdict is on the disk at once, and what audits say is worked out by hand."""

import json
import re
import shutil
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from now_builder.errors import ConfigError, FormatError
from now_builder.formats.release import Pair, read_pairs, write_pairs
from now_builder.formats.shard import read_captures, read_rows, write_shard
from now_builder.formats.verdicts import (
    VerdictRow,
    open_verdicts,
    parse_verdicts,
    to_one_line,
    to_row,
)
from now_builder.inspect.audit import sample_of, serving
from now_builder.inspect.pairs import drawn_by_weight
from now_builder.inspect.settings import AuditSettings
from now_builder.inspect.stats import audit_stats, auroc, clustered, kappa, mean_interval, wilson
from now_builder.program import intervals


def judged(key, matched="match", judge="ann", note="", split="train"):
    at = "2026-03-01T10:00:00Z"
    return VerdictRow(key, f"http://a.test/{key}", split, "en", matched, judge, at, 1.5, note)


def write(path, lines):
    with open_verdicts(path) as file:
        for line in lines:
            file.append(line)
    return path


def stored(path):
    return parse_verdicts(path, path.read_bytes())


def ask(url, path="", body=None, **headers):
    """Send a request; give status, headers and body."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **headers} if data is not None else headers
    request = urllib.request.Request(url + path, data, headers)  # noqa: S310 - our own server
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


@pytest.fixture
def settings(world, tmp_path):
    return AuditSettings(captures=world.captures, output=tmp_path / "audit.csv", sample=12)


@pytest.mark.usefixtures("no_locks")
def test_verdicts_come_back_as_they_were_written_also_where_there_are_no_locks(tmp_path):
    lines = [
        judged("00000_0001", "mismatch", note='a "quoted", note'),
        judged("00000_0002", "unsure", note="中文 עברית"),
    ]
    path = write(tmp_path / "audit.csv", lines)
    assert stored(path) == lines
    header, *rows = path.read_text(encoding="utf-8").splitlines()
    assert header == "key,url,split,lang,matched,judge,at,seconds,note"
    assert len(rows) == 2
    with open_verdicts(path) as file:
        assert file.judged == lines


@given(note=st.text(max_size=80))
def test_any_note_stays_on_one_line(note):
    row = to_row(judged("00000_0001", note=to_one_line(note)))
    assert row.endswith("\n")
    assert len(row.splitlines()) == 1


def test_a_verdict_cut_anywhere_costs_itself_alone(tmp_path):
    path = write(tmp_path / "audit.csv", [judged("a"), judged("b", "unsure", note="x, y")])
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    first = whole.index(b"\n", header) + 1
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = 2 if cut == len(whole) else 1 if cut >= first else 0
        with open_verdicts(path) as file:
            assert [line.key for line in file.judged] == ["a", "b"][:kept]
            file.append(judged("c"))
        assert [line.key for line in stored(path)] == [*["a", "b"][:kept], "c"]


def test_undo_takes_the_last_line_back_and_nothing_else(tmp_path):
    path = write(tmp_path / "audit.csv", [judged("a")])
    before = path.read_bytes()
    with open_verdicts(path) as file:
        file.append(judged("b", note="ö"))
        assert file.undo() == judged("b", note="ö")
        assert path.read_bytes() == before
        file.undo()
        assert file.undo() is None
    assert stored(path) == []


def test_a_file_of_something_else_is_left_alone(tmp_path):
    for content in (b"key,matched\na,true\n", b"thesis", b"\xff\xfe", to_row(judged("a")).encode()):
        path = tmp_path / "other.csv"
        path.write_bytes(content)
        with pytest.raises(FormatError), open_verdicts(path):
            pass
        assert path.read_bytes() == content
    with pytest.raises(FormatError, match="not a file"), open_verdicts(tmp_path):
        pass


def test_two_audits_cannot_write_one_file_nor_two_judges(world, settings):
    with (
        serving(world.release, settings) as url,
        pytest.raises(ConfigError, match="another audit"),
        serving(world.release, settings),
    ):
        pass
    with serving(world.release, settings) as url:
        key = next(iter(sample_of(world.release, settings))).key
        ask(url, "verdict", {"key": key, "matched": "match"})
    other = settings.model_copy(update={"judge": "bo"})
    with (
        pytest.raises(ConfigError, match="has verdicts of 'judge'"),
        serving(world.release, other),
    ):
        pass
    odd = settings.model_copy(update={"judge": "a\nb"})
    with pytest.raises(ConfigError, match="printable"), serving(world.release, odd):
        pass


def test_the_sample_grows_at_its_end(world, settings):
    small = [*sample_of(world.release, settings)]
    large = [*sample_of(world.release, settings.model_copy(update={"sample": 40}))]
    assert large[:12] == small
    dev = [*sample_of(world.release, settings.model_copy(update={"split": "dev", "sample": 500}))]
    assert {pair.key for pair in dev} == {
        pair.key for pair in read_pairs(world.release) if pair.split == "dev"
    }


def test_who_does_not_know_the_url_or_comes_from_elsewhere_changes_nothing(world, settings):
    pair = next(iter(sample_of(world.release, settings)))
    good = {"key": pair.key, "matched": "match"}
    with serving(world.release, settings) as url:
        bare = re.match(r"http://127\.0\.0\.1:\d+/", url)[0]
        assert url.startswith("http://127.0.0.1:")
        for path in ("", "verdict", "x/verdict", f"pictures/{pair.key}"):
            assert ask(bare, path)[0] == 404
            assert ask(bare, path, good)[0] == 404
        for headers in (
            {"Origin": "http://evil.test"}, {"Origin": "null"}, {"Content-Type": "text/plain"},
        ):  # fmt: skip
            assert ask(url, "verdict", good, **headers)[0] == 403
        for body in (b"", b"[]", b"{", b"\xff", b"[" * 9000):
            assert ask(url, "verdict", body)[0] == 400
        for change in ({"key": "none"}, {"matched": "maybe"}, {"key": None}, {"key": ["a"]}):
            assert ask(url, "verdict", {**good, **change})[0] == 409
        assert ask(url, "pictures/../audit.csv")[0] == 404
        status, headers, body = ask(url, f"pictures/{pair.key}")
        assert (status, headers["Content-Type"], body[:4]) == (200, "image/png", b"\x89PNG")
        assert stored(settings.output) == []
        odd = {**good, "seconds": "nan", "note": "a\r\nb\ud800"}
        status, headers, body = ask(url, "verdict", odd)
        assert (status, json.loads(body)) == (200, {"done": [pair.key]})
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert ask(url, "verdict", good)[0] == 409
    [line] = stored(settings.output)
    assert (line.key, line.url, line.note, line.seconds) == (pair.key, pair.url, "a b", 0.0)


def test_pictures_of_another_crawl_under_the_same_keys_are_refused(world, settings, tmp_path):
    """Both before the audit begins, and when the crawl is made again while a person judges."""
    captures = tmp_path / "captures"
    shutil.copytree(world.captures, captures)
    again = settings.model_copy(update={"captures": captures})
    pair = next(iter(sample_of(world.release, again)))
    shard = int(pair.key[:5])
    with serving(world.release, again) as url:
        pages = list(read_captures(captures, shards=[shard]))
        rows = [replace(row, phash="0" * 16) for row in read_rows(captures, shard)]
        turned = [
            replace(a, screenshot=b.screenshot)
            for a, b in zip(pages, pages[1:] + pages[:1], strict=True)
        ]
        write_shard(captures, shard, rows, turned)
        status, _, body = ask(url, f"pictures/{pair.key}")
    assert status == 500
    assert f"screenshot of {pair.key} differs from its sha256" in body.decode()
    with (
        pytest.raises(FormatError, match=r"no screenshot of \d+ of 12 pairs"),
        serving(world.release, again),
    ):
        pass


def test_shares_are_by_owner_where_these_are_known():
    wrong = pd.Series([True] * 10 + [False] * 10)
    even = pd.Series([1.0] * 20)
    by_owner = clustered(wrong, pd.Series(["a.test"] * 10 + ["b.test"] * 10), even)
    by_pair = clustered(wrong, pd.Series([""] * 20), even)
    assert by_pair == wilson(10, 20)
    assert by_owner.value == by_pair.value
    assert by_owner.high - by_owner.low > 1.5 * (by_pair.high - by_pair.low)


def test_weighted_shares_by_hand():
    """One of weight 3 and one of weight 1 are wrong, of weights 3, 1, 3, 1: one half."""
    wrong, weights = pd.Series([True, True, False, False]), pd.Series([3.0, 1.0, 3.0, 1.0])
    share = clustered(wrong, pd.Series([""] * 4), weights)
    assert (share.value, share.hits, share.of) == (0.5, 2, 4)
    # variance (1.5² + 0.5² + 1.5² + 0.5²) × 4/3 / 8² = 5/48, as of 12/5 even trials
    assert (share.low, share.high) == pytest.approx(intervals.wilson(1.2, 2.4))
    assert clustered(wrong, pd.Series([""] * 4), weights * 0 + 1) == wilson(2, 4)


def test_a_weighted_draw_estimates_the_share_among_all_pairs():
    pairs = [Pair(f"{n:05}", "train", n, "", "", "", None, None, None, "") for n in range(4000)]
    wrong = np.random.default_rng(0).random(4000) < 0.1
    probs = {pair.key: 0.1 if bad else 0.9 for pair, bad in zip(pairs, wrong, strict=True)}
    sample = drawn_by_weight(pairs, probs, 600)
    assert len(sample) == 600
    weights = np.array([*sample.values()])
    found = np.array([wrong[pair.pair_index] for pair in sample])
    assert found.mean() > 0.35, "suspects are likelier"
    assert weights.sum() == pytest.approx(4000, rel=0.05)
    assert weights @ found / weights.sum() == pytest.approx(wrong.mean(), abs=0.02)
    assert drawn_by_weight(pairs[:9], probs, 12) == dict.fromkeys(pairs[:9], 1.0)
    certain = drawn_by_weight(pairs[:3], dict(zip(probs, (0.0, 1.0, 1.0), strict=False)), 2)
    assert certain[pairs[0]] == 1
    assert sorted(certain.values()) == [1, 2]


def test_wilson_by_hand():
    """10 of 100, z = 1.96: centre (0.1 + 0.019207) / 1.038415 = 0.114798; half width
    1.959964 / 1.038415 x sqrt(0.0009 + 0.00009604) = 0.059569; so 5.523 % to 17.437 %."""
    share = wilson(10, 100)
    assert share.value == pytest.approx(0.1)
    assert share.low == pytest.approx(0.05523, abs=5e-5)
    assert share.high == pytest.approx(0.17437, abs=5e-5)
    assert wilson(0, 0) is None
    assert wilson(0, 10).low == 0
    assert wilson(10, 10).high == 1
    mean, low, high = mean_interval(np.array([0.0, 1.0, 0.0, 1.0]))
    assert mean == 0.5
    assert low + high == pytest.approx(1.0)
    assert high - mean == pytest.approx(1.959964 * 0.57735 / 2, abs=1e-4)


def test_kappa_by_hand():
    """Cohen's own form: 20 yes-yes, 5, 10, 15 no-no of 50: seen 0.7, by chance 0.5, kappa 0.4."""
    ones = ["yes"] * 25 + ["no"] * 25
    others = ["yes"] * 20 + ["no"] * 5 + ["yes"] * 10 + ["no"] * 15
    assert kappa(ones, others) == pytest.approx(0.4)
    assert kappa(["a"] * 3, ["a"] * 3) is None
    assert kappa([], []) is None


@given(
    cases=st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=12
    )
)
def test_auroc_is_what_counting_every_two_gives(cases):
    good = [belief for belief, matched in cases if matched]
    bad = [belief for belief, matched in cases if not matched]
    found = auroc(np.array([b for b, _ in cases]), np.array([m for _, m in cases]))
    if not good or not bad:
        assert found is None
    else:
        wins = sum((one > other) + (one == other) / 2 for one in good for other in bad)
        assert found == pytest.approx(wins / (len(good) * len(bad)))


def test_stats_of_two_judges_and_a_run(tmp_path):
    """Ann: 2 of 5 decided mismatch, one unsure; Bo differs on one pair, which is then unsure."""
    ann = dict(zip("abcdef", ["match"] * 3 + ["mismatch"] * 2 + ["unsure"], strict=True))
    bo = {**ann, "c": "mismatch", "f": "match"}
    first = write(tmp_path / "ann.csv", [judged(key, word) for key, word in ann.items()])
    second = write(
        tmp_path / "bo.csv",
        [judged(k, word, "bo") for k, word in bo.items()],
    )
    beliefs = tmp_path / "beliefs.csv"
    beliefs.write_text("key,clean_prob\na,0.9\nb,0.4\nc,0.9\nd,0.1\ne,0.45\nz,1\n")
    pairs = [
        Pair(
            k, "dev" if k == "a" else "train", 0, f"http://a.test/{k}", "", "", None, None, None, k
        )
        for k in "abcdef"
    ]
    write_pairs(tmp_path / "pairs.parquet", pairs)
    found = audit_stats([first, second], tmp_path, beliefs)
    assert found.judges[0].counts == {"match": 3, "mismatch": 2, "unsure": 1}
    assert (found.judges[0].noise.hits, found.judges[0].noise.of) == (2, 5)
    assert (found.together.noise.hits, found.together.noise.of) == (2, 4)
    assert found.together.counts["unsure"] == 2
    assert {split: share.of for split, share in found.judges[1].by_split.items()} == {
        "dev": 1, "train": 5,
    }  # fmt: skip
    [pair] = found.between
    assert (pair.both, pair.decided, pair.agree.hits) == (6, 5, 4)
    # Seen 4 of 5; by chance (3 x 2 + 2 x 3) / 25 = 0.48; (0.8 - 0.48) / 0.52.
    assert pair.kappa == pytest.approx(0.32 / 0.52)
    run = found.with_run
    assert (run.decided, run.accuracy.hits, run.called_noisy.hits) == (4, 3, 3)
    assert run.auroc == pytest.approx(3 / 4)
    assert run.kappa == pytest.approx(0.5)
    text = str(found)
    assert "ann: match 3, mismatch 2, unsure 1; mismatched 40.0 %" in text
    assert "together" in text
    assert json.loads(json.dumps(asdict(found)))["between"][0]["first"] == "ann"


def test_stats_name_judges_apart_and_refuse_what_they_cannot_read(tmp_path, world, run):
    train = [pair for pair in read_pairs(world.release) if pair.split == "train"]

    def lines(pairs, *words):
        cases = zip(pairs, words, strict=True)
        return [replace(judged(pair.key, word), url=pair.url) for pair, word in cases]

    one, two = (write(tmp_path / n, lines(train[:1], "match")) for n in ("1.csv", "2.csv"))
    names = [judge.name for judge in audit_stats([one, two], world.release, None).judges]
    assert names == [f"ann ({one})", f"ann ({two})"]
    elsewhere = write(tmp_path / "3.csv", [judged(train[0].key)])
    for path, problem in (
        (tmp_path / "none.csv", "no such file"), (write(tmp_path / "4.csv", []), "none of its 0"),
        (elsewhere, "none of its 1 lines names a key and url of"),
    ):  # fmt: skip
        with pytest.raises(FormatError, match=problem):
            audit_stats([path], world.release, None)
    path = write(tmp_path / "5.csv", lines([train[0], *train[-5:]], "mismatch", *["match"] * 5))
    assert audit_stats([path], world.release, run).with_run.auroc == 1


def test_stats_of_any_table_of_pairs(world, tmp_path):
    """Of the release's pairs 3 are named by key or by URL, one of them twice with two verdicts."""
    some = [pair for pair in read_pairs(world.release) if pair.split == "train"][:4]
    words = ["True", "False", "mismatch"]
    rows = {"key": [p.key for p in some[:3]], "url": [p.url for p in some[:3]], "matched": words}
    rows = {name: [*cells, cells[0], "elsewhere"] for name, cells in rows.items()}
    rows["matched"][3:] = ["no", "no"]
    frame = pd.DataFrame(rows)
    frame[["key", "matched"]].to_csv(tmp_path / "key.csv", index=False)
    frame[["url", "matched"]].to_parquet(tmp_path / "url.parquet")
    for name in ("key.csv", "url.parquet"):
        found = audit_stats([tmp_path / name], world.release, None)
        assert found.judges[0].name == str(tmp_path / name)
        assert found.together.counts == {"match": 0, "mismatch": 2, "unsure": 1}
        assert found.together.by_split.keys() == {"train"}


def test_an_audit_does_not_go_on_with_the_verdicts_on_another_crawl(world, settings):
    first = next(iter(sample_of(world.release, settings)))
    write(settings.output, [judged(first.key, judge="judge")])  # of http://a.test
    before = settings.output.read_bytes()
    with pytest.raises(ConfigError, match="in this release is"), serving(world.release, settings):
        pass
    assert settings.output.read_bytes() == before


def test_only_pairs_that_a_table_names_are_shown_again(world, settings, tmp_path):
    pairs = read_pairs(world.release)
    named = {pair.key for pair in pairs[5:305]}
    lines = [replace(judged(pair.key), url=pair.url) for pair in pairs[5:305]]
    other = replace(judged(pairs[0].key), url="http://another.test/")
    again = {"from_": write(tmp_path / "first.csv", [*lines, other]), "captures": world.captures}
    every = [*sample_of(world.release, AuditSettings(**again))]
    assert {pair.key for pair in every} == named
    assert [*sample_of(world.release, AuditSettings(**again, sample=7))] == every[:7]
    again["from_"] = write(tmp_path / "elsewhere.csv", [other])
    with pytest.raises(FormatError, match=r"elsewhere\.csv: none of its 1 lines names"):
        [*sample_of(world.release, AuditSettings(**again))]


def test_suspects_come_first_and_only_those_of_this_release(world, settings, tmp_path):
    pairs = read_pairs(world.release)
    doubted = [(pair.key, pair.url, place % 5 / 8) for place, pair in enumerate(pairs[3:])]
    file = tmp_path / "pairs.csv"
    table = pd.DataFrame(doubted, columns=["key", "url", "clean_prob"])
    table.to_csv(file, index=False)
    own = settings.model_copy(update={"suspects": file, "sample": 9})
    expected = table.sort_values("clean_prob", kind="stable").key[:9]
    assert [pair.key for pair in [*sample_of(world.release, own)]] == [*expected]
    dev = [*sample_of(world.release, own.model_copy(update={"split": "dev"}))]
    assert {pair.split for pair in dev} == {"dev"}
    once = own.model_copy(update={"once": True, "captures": world.captures})
    weights = sample_of(world.release, once)
    copies = Counter((pair.site, pair.caption) for pair in pairs)
    assert {copies[pair.site, pair.caption] for pair in weights} == {1}
    assert min(weights.values()) >= 1
    with serving(world.release, once) as url:
        ask(url, "verdict", {"key": next(iter(weights)).key, "matched": "match"})
    frame = pd.read_csv(settings.output)
    assert frame.weight[0] == next(iter(weights.values()))
    assert stored(settings.output)[0].weight == frame.weight[0]
    with (
        pytest.raises(FormatError, match="drawn in another way"),
        serving(world.release, once.model_copy(update={"once": False})),
    ):
        pass
    table.assign(url="http://elsewhere.example/").to_csv(file, index=False)
    with pytest.raises(FormatError, match=r"row 2: .* is http://elsewhere.example/, expected http"):
        [*sample_of(world.release, own)]
    table.assign(key="x" + table.key).to_csv(file, index=False)
    with pytest.raises(FormatError, match=r"none of its .* keys is one of the .* pages"):
        [*sample_of(world.release, own)]
