"""The fuzzed readers read what nobody mutated."""

import sys
from pathlib import Path

import pytest

from tests.fuzz.fuzz import READERS, load


@pytest.mark.parametrize("name", READERS)
def test_every_seed_is_read(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    reader = load(name)
    try:
        for seed in reader.seeds():
            reader.read(seed)
    finally:
        del sys.modules[name]
