"""Reported rows: they add up, stand under their own noise, and say what was misprinted."""

from collections import Counter

import pytest

from leaderboard.board.reported import (
    NoiseCondition,
    parse_reported,
    read_reported,
    read_sources,
    short_name,
)
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.benchmarks import BOARDS


def _rows(board, protocol, mismatch=None, **wanted):
    noise = NoiseCondition(protocol=protocol, mismatch=mismatch)
    return [
        row
        for row in read_reported(board)
        if row.noise == noise and all(getattr(row, name) == value for name, value in wanted.items())
    ]


def _row(*condition, method, source=None):
    rows = _rows(*condition, method=method)
    (row,) = [row for row in rows if source in {None, row.source.key}]
    return row


def _table(**row):
    return {
        "tables": [
            {
                "board": "jieba",
                "noise": {"protocol": "web"},
                "source": "duan2024pc2",
                "table": "T",
                "rows": [{"method": "M", **row}],
            }
        ]
    }


RECALLS = {"i2t": [10.0, 20.0, 30.0], "t2i": [10.0, 20.0, 30.0]}


def test_the_papers_15_rows_are_those_of_now():
    rows = [row for board in ("jieba", "bpe", "bert") for row in read_reported(board)]
    assert {row.source.key for row in rows} == {"duan2024pc2"}
    rsums = Counter({(row.board, row.method): row.rsum for row in rows})
    assert len(rsums) == len(rows) == 15
    assert rsums["jieba", "PC²"] == 163.9
    assert rsums["bert", "SGR"] == 131.4


def test_every_board_has_rows_and_every_row_is_plausible():
    assert Counter(row.board for row in read_reported()).keys() == set(BOARDS)
    for row in read_reported():
        assert 0 < row.rsum <= 600
        for way in (row.i2t, row.t2i):
            assert way is None or list(way) == sorted(way)


def test_every_source_is_used_and_has_an_address():
    sources = read_sources()
    used = {row.source.key for row in read_reported()}
    assert used == sources.keys()
    assert all(source.url.startswith("https://") for source in sources.values())
    assert short_name(sources["duan2024pc2"]) == "Duan et al. 2024"
    assert short_name(sources["ucpm2024"]) == "UCPM 2024"


@pytest.mark.parametrize("rsum", [119.9, 120.1, 600.0])
def test_a_row_that_does_not_add_up_is_refused(rsum):
    with pytest.raises(FormatError, match=rf"x\.toml, jieba M: found rsum {rsum}, .* 120\.0"):
        parse_reported(_table(**RECALLS, rsum=rsum), "x.toml")


def test_rounded_recalls_may_miss_their_sum_by_a_tenth():
    tree = _table(**RECALLS, rsum=120.1)
    tree["tables"][0]["board"] = "coco-1k"
    assert parse_reported(tree, "x.toml")[0].rsum == 120.1
    tree["tables"][0]["rows"][0]["rsum"] = 120.2
    with pytest.raises(FormatError, match="add up"):
        parse_reported(tree, "x.toml")


def test_a_table_without_sums_gets_them_and_a_row_may_be_a_sum_alone():
    (row,) = parse_reported(_table(**RECALLS), "x.toml")
    assert row.rsum == 120.0
    (row,) = parse_reported(_table(rsum=120.0), "x.toml")
    assert (row.recalls, row.rsum) == ((), 120.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "neither recalls nor rsum"),
        ({"i2t": [1.0, 2.0, 3.0], "rsum": 6.0}, "one direction"),
        (
            RECALLS | {"corrections": [{"source": "duan2024pc2", "table": "T", "why": "-"} | RECALLS
                                       | {"rsum": 130.0}]},
            "correction: found rsum 130.0",
        ),
        (
            RECALLS | {"corrections": [{"source": "nobody", "table": "T", "why": "-"}]},
            "found source 'nobody'",
        ),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_checked_is_refused(fields, message):
    with pytest.raises(FormatError, match=message):
        parse_reported(_table(**fields), "x.toml")


@pytest.mark.parametrize(
    "noise",
    [
        {"protocol": "captions"},
        {"protocol": "images", "mismatch": 0.0},
        {"protocol": "none", "mismatch": 0.2},
        {"protocol": "web", "mismatch": 0.7},
        {"protocol": "captions", "mismatch": 1.0},
        {"protocol": "rows", "mismatch": 0.2},
    ],
)
def test_noise_whose_protocol_and_mismatch_disagree_is_refused(noise):
    tree = _table(**RECALLS)
    tree["tables"][0]["noise"] = noise
    with pytest.raises(ConfigError, match="noise"):
        parse_reported(tree, "x.toml")


def test_the_two_protocols_do_not_share_a_condition():
    captions, images = (
        NoiseCondition(protocol=name, mismatch=0.2) for name in ("captions", "images")
    )
    assert captions != images
    assert captions.title == "20 % noise, captions shuffled one by one"
    assert images.title == "20 % noise, images shuffled with all their captions"
    assert {row.method for row in _rows("flickr30k", "captions", 0.4)} == {
        "BiCro",
        "CREAM",
        "PC²",
    }
    assert "L2RM" in {row.method for row in _rows("flickr30k", "images", 0.4)}


# What the board uses, and what another table prints (None: it leaves the row out, or prints the
# same figures under other noise).
MISPRINTS = [
    ("flickr30k", "captions", 0.5, "SAF", 316.0, 378.6),
    ("coco-1k", "captions", 0.5, "SAF", 365.8, 486.7),
    ("coco-1k", "captions", 0.5, "SGR*", 440.8, 447.2),
    ("coco-1k", "captions", 0.5, "NCR", 508.4, 507.2),
    ("coco-1k", "captions", 0.2, "NCR", 518.5, 522.5),
    ("cc152k", "web", None, "SGR*", 342.4, None),
]


@pytest.mark.parametrize(("board", "protocol", "mismatch", "method", "right", "wrong"), MISPRINTS)
def test_known_misprints_are_put_right_with_a_footnote(
    board, protocol, mismatch, method, right, wrong
):
    row = _row(board, protocol, mismatch, method=method, source="huang2021ncr")
    assert row.rsum == right
    assert row.rsum == pytest.approx(sum(row.recalls), abs=0.05)
    correction = row.corrections[0]
    if wrong is None:
        assert correction.rsum is None
    else:
        assert sum(correction.i2t + correction.t2i) == pytest.approx(wrong, abs=0.05)
    assert correction.why in row.footnote
    assert short_name(read_sources()[correction.source]) in row.footnote


def test_a_footnote_says_who_prints_what():
    row = _row("coco-1k", "captions", 0.2, method="NCR")
    assert row.footnote == (
        "Qin et al. 2022, README, 2022-12-20 prints 78.7 95.8 98.5 / 63.3 90.4 95.8. Those are the"
        " figures of NCR without noise; the board uses the source's row for 20 %."
    )


def test_runs_cited_under_the_wrong_noise_stand_under_their_own():
    for mismatch, method, rsum in [
        (0.4, "NCR", 467.1),
        (0.6, "NCR", 184.6),
        (0.4, "DECL-SGR", 465.1),
        (0.6, "DECL-SGR", 439.1),
        (0.2, "L2RM", 503.8),
        (0.4, "L2RM", 490.5),
        (0.6, "L2RM", 467.6),
    ]:
        row = _row("flickr30k", "images", mismatch, method=method)
        (correction,) = row.corrections
        assert row.rsum == correction.rsum == rsum
        assert correction.source == "duan2024pc2"
        assert not _rows("flickr30k", "captions", mismatch, method=method)


def test_a_row_whose_own_source_does_not_add_up_keeps_what_it_prints():
    row = _row("flickr30k", "unknown", 0.2, method="UCPM")
    assert (row.rsum, row.corrections[0].rsum) == (511.8, 512.2)
