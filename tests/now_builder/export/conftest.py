"""A release in which captions are the same on several pages."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from now_builder.formats.release import read_pairs, write_pairs


@pytest.fixture(scope="session")
def repeating_release(small_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small release, with a caption on every third page, another as pandas reads no text."""
    release = tmp_path_factory.mktemp("repeating") / "release"
    shutil.copytree(small_release, release)
    pairs = [
        replace(pair, caption="None", lang=None)
        if pair.pair_index == 0
        else replace(pair, caption=pair.caption if pair.pair_index % 3 else 'Say "hi",\rtwice')
        for pair in read_pairs(release)
    ]
    write_pairs(release / "pairs.parquet", pairs)
    return release
