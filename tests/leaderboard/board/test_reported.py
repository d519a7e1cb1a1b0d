"""Reported rows: they add up, stand under their own noise, and say what was misprinted."""

from collections import Counter

import pytest

from leaderboard.board.reported import (
    NoiseCondition,
    read_reported,
    read_sources,
    short_name,
)
from now_builder.formats.benchmarks import BOARD_FACTS, BOARDS


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


def test_the_papers_15_rows_are_those_of_now():
    rows = [row for board in ("jieba", "bpe", "bert") for row in read_reported(board)]
    assert {row.source.key for row in rows} == {"duan2024pc2"}
    rsums = Counter({(row.board, row.method): row.rsum for row in rows})
    assert len(rsums) == len(rows) == 15
    assert rsums["jieba", "PC²"] == 163.9
    assert rsums["bert", "SGR"] == 131.4


def _adds_up(figures, board):
    """A test query of up to 1,000 counts for 0.1 points: one-decimal recalls are exact there."""
    tolerance = 0.05 if max(BOARD_FACTS[board].test_size) <= 1000 else 0.1
    if figures.i2t is None or figures.t2i is None or figures.rsum is None:
        return True
    return abs(sum(figures.i2t + figures.t2i) - figures.rsum) <= tolerance + 1e-6


def test_every_board_has_rows_and_every_row_is_plausible_and_adds_up():
    rows, sources = read_reported(), read_sources()
    assert Counter(row.board for row in rows).keys() == set(BOARDS)
    counts = Counter((row.board, row.noise, row.method, row.source.key) for row in rows)
    assert max(counts.values()) == 1
    for row in rows:
        assert 0 < row.rsum <= 600
        assert (row.i2t is None) == (row.t2i is None)
        for way in (row.i2t, row.t2i):
            assert way is None or list(way) == sorted(way)
        for figures in (row, *row.corrections):
            assert _adds_up(figures, row.board), (row.board, row.method)
        assert {correction.source for correction in row.corrections} <= sources.keys()


def test_every_source_is_used_and_has_an_address():
    sources = read_sources()
    used = {row.source.key for row in read_reported()}
    assert used == sources.keys()
    assert all(source.url.startswith("https://") for source in sources.values())
    assert short_name(sources["duan2024pc2"]) == "Duan et al. 2024"
    assert short_name(sources["ucpm2024"]) == "UCPM 2024"


def test_every_noise_has_a_mismatch_unless_it_is_that_of_the_web():
    for noise in {row.noise for row in read_reported()}:
        expected = {"none": noise.mismatch == 0, "web": noise.mismatch is None}
        assert expected.get(noise.protocol, bool(noise.mismatch)), noise


def test_the_two_protocols_do_not_share_a_condition():
    captions, images = (
        NoiseCondition(protocol=name, mismatch=0.2) for name in ("captions", "images")
    )
    assert captions != images
    assert captions.title == "20 % noise, captions shuffled one by one"
    assert images.title == "20 % noise, images shuffled with all their captions"
    methods = {row.method for row in _rows("flickr30k", "captions", 0.4)}
    assert methods == {"BiCro", "CREAM", "IN2R", "PC²", "SPS"}
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


def test_known_misprints_are_put_right_with_a_footnote():
    for *condition, method, right, wrong in MISPRINTS:
        row = _row(*condition, method=method, source="huang2021ncr")
        assert row.rsum == right
        assert row.rsum == pytest.approx(sum(row.recalls), abs=0.05)
        correction = row.corrections[0]
        printed = sum(correction.i2t + correction.t2i) if wrong else correction.rsum
        assert printed == (pytest.approx(wrong, abs=0.05) if wrong else None)
        assert correction.why in row.footnote
        assert short_name(read_sources()[correction.source]) in row.footnote


def test_runs_cited_under_the_wrong_noise_stand_under_their_own():
    for mismatch, method, rsum in [
        (0.4, "NCR", 467.1), (0.6, "NCR", 184.6), (0.4, "DECL-SGR", 465.1),
        (0.6, "DECL-SGR", 439.1), (0.2, "L2RM", 503.8), (0.6, "L2RM", 467.6),
    ]:  # fmt: skip
        row = _row("flickr30k", "images", mismatch, method=method)
        (correction,) = row.corrections
        assert row.rsum == correction.rsum == rsum
        assert correction.source == "duan2024pc2"
        assert not _rows("flickr30k", "captions", mismatch, method=method)
