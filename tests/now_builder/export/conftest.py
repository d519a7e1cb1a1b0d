"""A release in which captions are the same on several pages."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from now_builder.formats.release import read_pairs, write_pairs

ODD = {0: "None", 1: "Two\rlines"}
"""Captions by pair_index: no text for pandas, and two rows unless quoted."""


@pytest.fixture(scope="session")
def repeating_release(small_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small release, a caption of it on every third page, two that are hard to read back."""
    release = tmp_path_factory.mktemp("repeating") / "release"
    shutil.copytree(small_release, release)
    pairs = [
        replace(pair, caption=ODD[pair.pair_index], lang=None)
        if pair.pair_index in ODD
        else replace(pair, caption=pair.caption if pair.pair_index % 3 else 'Say "hi", twice')
        for pair in read_pairs(release)
    ]
    write_pairs(release / "pairs.parquet", pairs)
    return release


@pytest.fixture(scope="module")
def small_files() -> Iterator[None]:
    """Cut exports into files of a megabyte."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("now_builder.export.pairs.FILE_BYTES", 10**6)
        yield
