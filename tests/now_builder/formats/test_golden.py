"""Files written by the first version of each format must be read for ever."""

from pathlib import Path

import numpy as np
import pytest

from now_builder.formats.captions import read_captions, read_vocabulary
from now_builder.formats.features import open_features
from now_builder.formats.release import (
    check_files,
    open_regions,
    read_manifest,
    read_pairs,
    read_release_vocabulary,
    read_split_captions,
    stream_rejects,
)
from now_builder.formats.shard import read_captures, read_plan, read_rows
from now_builder.formats.split import read_split

TINY = Path(__file__).parents[2] / "data" / "tiny"
KEYS = [f"00000_{number:04d}" for number in range(5)]


def test_captures_of_version_1() -> None:
    plan = read_plan(TINY / "captures")
    assert [line.key for line in plan] == [*KEYS, "00000_0005"]
    assert plan[1].url == "http://site1.test/%7Ea?b=1#c"
    assert plan[1].url_canonical == "http://site1.test/~a?b=1"
    rows = read_rows(TINY / "captures")
    assert [row.status for row in rows] == ["ok"] * 5 + ["failed"]
    assert (rows[5].error, rows[5].attempts, rows[5].elapsed_s) == ("timeout", 2, 16.5)
    assert rows[1].caption == "Welcome & read “news”"
    assert rows[0].redirects == ["http://site0.test/%7Ea?b=1#c"]
    captures = list(read_captures(TINY / "captures"))
    assert [capture.key for capture in captures] == KEYS
    assert [capture.extension for capture in captures] == ["png", "webp", "png", "png", "png"]
    assert "网站新闻".encode("gbk") in captures[0].html
    assert captures[3].elements[1].box == (80.0, 80.0, 403.0, 500.0)
    assert captures[3].elements[1].text_box == (90.0, 90.0, 130.0, 110.0)
    assert captures[3].elements[1].interactive


def test_the_split_of_version_1() -> None:
    split = read_split(TINY / "captures" / "split.toml")
    pools = [split.pool_of("site.test", key) for key in KEYS]
    assert pools == ["dev", "test", "test", "train", "train"]


def test_features_of_version_1() -> None:
    with open_features(TINY / "features.h5") as features:
        assert features.keys == KEYS
        assert features.attributes["weights_sha256"] == "ab" * 32
        pages = features.read(np.array([4, 0]))
    assert pages.keys == [KEYS[4], KEYS[0]]
    assert pages.regions.dtype == np.float16
    assert pages.regions[1, 0, 0] == pytest.approx(0.875)
    assert pages.boxes[0, 35].tolist() == [8.0, 16.0, 300.0, 200.0]
    assert pages.source[0].tolist() == [0] * 30 + [2] * 6
    assert pages.n_regions.tolist() == [30, 30]


def test_captions_of_version_1() -> None:
    for name in ("jieba", "bpe", "bert"):
        ids = read_captions(TINY / "captions" / f"{name}.txt")
        vocabulary = read_vocabulary(TINY / "captions" / f"{name}.vocab.json")
        assert list(ids) == KEYS
        assert max(max(line) for line in ids.values()) < vocabulary.idx
    assert vocabulary.learned_on == "train pool alone, 2 captions"


def test_a_release_of_version_1() -> None:
    release = TINY / "release"
    manifest = read_manifest(release)
    assert manifest.counts == {"train": 2, "dev": 1, "test": 2}
    assert check_files(release) == []
    assert [pair.key for pair in read_pairs(release)] == [*KEYS[3:], *KEYS[:3]]
    assert [reject.reason for reject in stream_rejects(release)] == ["failed:timeout"]
    for name in ("jieba", "bpe", "bert"):
        captions = read_split_captions(release, "test", name)
        assert captions.keys == KEYS[1:3]
        assert captions.fingerprint == manifest.fingerprints["test"][name]
        assert read_release_vocabulary(release, name).idx > 4
    with open_regions(release, "dev") as regions:
        assert regions.shape == (1, 36, 768)
        assert regions[0, 0, 0] == pytest.approx(0.875)
