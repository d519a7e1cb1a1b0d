"""The GPU check, rehearsed on the CPU: every part runs, and both of its files say so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def check(out, *parts, **more):
    environment = {
        **os.environ, "DEVICE": "cpu", "SIZE": "tiny", "OUT": str(out), "PYTHON": sys.executable,
        "BUNDLE": str(out / "no-bundle"), **more,
    }  # fmt: skip
    return subprocess.run(
        [SCRIPT, *parts], env=environment, capture_output=True, text=True, timeout=500, check=False
    )


QUICK = ("a", "b", "d", "f")


@pytest.fixture(
    scope="module",
    params=[("d",), pytest.param(QUICK, marks=[pytest.mark.slow])],
    ids=["one", "all"],
)
def rehearsed(request, tmp_path_factory):
    """One part, or slowly all, at the smallest size; the parts and how they ended."""
    out, parts = tmp_path_factory.mktemp("rehearsed"), request.param
    return out, parts, check(out, *(["quick"] if parts == QUICK else parts))


def test_every_part_comes_to_a_good_end_and_measures_all_that_it_names(rehearsed):
    out, asked, done = rehearsed
    assert done.returncode == 0, done.stderr[-3000:]
    parts = json.loads((out / "gpu-check.json").read_text())["parts"]
    assert tuple(parts) == asked
    assert {part["status"] for part in parts.values()} == {"done"}
    for part in parts.values():
        assert {"device", "driver", "CUDA", "torch", "Python", "commit"} <= set(part["environment"])
        assert part["figures"]
        assert all(figure["command"].endswith(f"gpu_check.sh {number}")
                   for number, own in parts.items() for figure in own["figures"])  # fmt: skip
    assert [number for number in parts if number == "b" and not parts[number]["tables"]] == []
    missing = [figure["name"] for part in parts.values() for figure in part["figures"]
               if figure["value"] is None]  # fmt: skip
    assert not missing
    figures = {figure["name"]: figure for part in parts.values() for figure in part["figures"]}
    assert figures
    assert figures["bf16: projected full run"]["goal"] == "≤ 2"
    if asked == QUICK:
        assert figures["tests failed"]["value"] == 0
        assert figures["tests passed"]["value"] > 0
    assert not [name for name, figure in figures.items() if figure["met"] is not None]
    lines = (out / "gpu-check.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("## ")]) == len(asked)


def test_a_part_that_runs_out_of_time_or_breaks_is_told_and_the_rest_goes_on(tmp_path):
    assert check(tmp_path, "d", LIMIT_S="1").returncode == 1
    assert "out of time" in (tmp_path / "gpu-check.md").read_text()
    done = check(tmp_path, "b", ALL_S="0")
    assert done.returncode == 1
    assert "no time was left" in (tmp_path / "gpu-check.md").read_text()
    done = check(tmp_path, "f", "g", DEVICE="nonsense")
    assert done.returncode == 1
    parts = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]
    assert {number: part["status"] for number, part in parts.items()} == {
        "b": "failed", "d": "failed", "f": "failed",
    }  # fmt: skip
    assert "RuntimeError" in parts["f"]["reason"]


def test_what_breaks_a_piece_of_a_part_is_a_row_and_the_next_piece_is_measured(tmp_path):
    done = check(tmp_path, "a", DEVICE="meta")  # has no values to give back
    assert done.returncode == 1
    part = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]["a"]
    assert part["status"] == "failed"
    assert len(part["figures"]) == len(part["reason"].split("; ")) == 9
    assert all("Error at" in figure["note"] for figure in part["figures"])
