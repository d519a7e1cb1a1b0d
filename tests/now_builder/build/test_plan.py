"""The plan of a build: counts, time, disk, missing requirements; and presets."""

import json
import shutil
import subprocess
import sys

import pytest

from now_builder.build import plan as planning
from now_builder.build import preset_path, presets
from now_builder.build.plan import plan_build
from now_builder.build.run import read_build_settings
from now_builder.errors import ConfigError
from now_builder.formats.split import choose_shares
from now_builder.machine import doctor

GPU = doctor.Finding(doctor.GPU, found=True, detail="1 x a card")
NO_GPU = doctor.Finding(doctor.GPU, found=False, detail="none", remedy="buy one")


@pytest.fixture
def machine(monkeypatch):
    """A machine of four cores; call it to say what the doctor finds and what disk is free."""
    usage = shutil.disk_usage("/")

    def has(gpu=NO_GPU, free=10**15):
        monkeypatch.setattr(doctor, "check", lambda: [gpu])
        monkeypatch.setattr(planning.os, "sched_getaffinity", lambda _: set(range(4)))
        monkeypatch.setattr(planning.shutil, "disk_usage", lambda _: usage._replace(free=free))

    has()
    return has


def listed(tmp_path, *, hosts, each):
    urls = [f"https://h{h}.example.org/{p}\n" for h in range(hosts) for p in range(each)]
    (tmp_path / "urls.txt").write_text("".join(urls))
    return tmp_path / "urls.txt"


def plan(tmp_path, preset=None, *overrides, hosts=10, each=5):
    settings = read_build_settings(preset, None, overrides)
    return plan_build(listed(tmp_path, hosts=hosts, each=each), tmp_path / "out", settings)


def test_time_and_disk_follow_pages_cores_and_settings(machine, tmp_path):
    found = plan(tmp_path)
    assert (found.urls, found.pages, found.hosts, sum(found.pools.values())) == (50, 50, 10, 30)
    assert found.hours["crawl"] == pytest.approx(50 * 0.8 / 4 / 3600, abs=1e-4)
    assert found.bytes["detect"] == 50 * 36 * 768 * 4
    half = plan(tmp_path, None, "detect.half=true").bytes["detect"]
    assert half == found.bytes["detect"] // 2
    assert found.bytes["package"] > 30 * 36 * 768 * 4
    assert found.peak_bytes > found.bytes["crawl"] + 2 * found.bytes["detect"]
    machine(GPU)
    assert plan(tmp_path).hours["detect"] < found.hours["detect"]
    assert plan(tmp_path, None, 'detect.device="cpu"').hours["detect"] == found.hours["detect"]


def test_one_large_host_sets_the_pace_unless_a_quota_does(machine, tmp_path):
    slow = plan(tmp_path, hosts=2, each=40)
    assert slow.hours["crawl"] == pytest.approx(40 / 3600, abs=1e-4)
    quick = plan(tmp_path, None, "crawl.per_host_quota=10", hosts=2, each=40)
    assert quick.pages == 20


def test_missing_requirements_are_listed_with_their_fixes(machine, tmp_path):
    machine(free=10**6)
    lacks = "\n".join(plan(tmp_path, "now-100k").lacks)
    assert "disk: 1.0 MB free, expected " in lacks
    assert "URLs: about 22 of 98,000 pairs of train, 4 of 1,000 pairs of dev, 4 of 1,000" in lacks
    assert "absent  GPU: none; buy one" in lacks


def test_of_the_published_size_each_pool_has_enough():
    """Where 30 % of the pairs match, as in NoW, dev and test can be drawn from those that do."""
    pools = planning._pools(180_000, choose_shares(None, 180_000))
    assert pools["train"] >= 98_000
    assert 0.3 * min(pools["dev"], pools["test"]) > 1000


def test_every_preset_is_read_and_a_file_and_single_values_go_over_it(tmp_path):
    for name in presets():
        read_build_settings(name, None, [])
    mine = tmp_path / "mine.toml"
    mine.write_text('[crawl]\nimage = "png"\n')
    settings = read_build_settings("now-100k", mine, ["package.dev=7"])
    assert (settings.crawl.image, settings.crawl.per_host_quota) == ("png", 200)
    assert (settings.package.train, settings.package.dev) == (98_000, 7)
    with pytest.raises(ConfigError, match=r"--preset no: expected one of .*now-100k"):
        read_build_settings("no", None, [])
    assert preset_path("now-100k").is_file()


def test_the_command_prints_the_plan_and_writes_nothing(tmp_path):
    urls = listed(tmp_path, hosts=2, each=3)
    code = "import now_builder.machine.doctor as d; d.find_chromium = lambda: None; "
    code += "from now_builder.cli import main; main()"
    words = ["build", urls, tmp_path / "out", "--preset", "now-100k", "--dry-run", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert list(found["hours"]) == ["crawl", "detect", "tokenize", "package"]
    assert any("Chromium" in line for line in found["lacks"])
    assert not (tmp_path / "out").exists()
