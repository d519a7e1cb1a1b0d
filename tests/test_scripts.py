"""Programs beside the packages, most of which no test runs, can at least be imported."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAMS = [
    path for folder in ("benchmarks", "docs", "scripts") for path in (ROOT / folder).rglob("*.py")
]


@pytest.mark.parametrize("path", sorted(PROGRAMS), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_program_can_be_imported(path):
    runpy.run_path(str(path), run_name="imported")
