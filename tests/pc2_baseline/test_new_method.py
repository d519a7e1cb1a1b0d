"""docs/new-method.md: its method as an installed package, and its commands."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from now_builder.errors import ConfigError
from pc2_baseline import method_section
from pc2_baseline.config import Plan
from pc2_baseline.data.planted import plant
from pc2_baseline.method_section import OutsideSettings, outside_settings

PAGE = Path(__file__).parents[2] / "docs" / "new-method.md"
SMALL = [
    "model.similarity=pooled", "model.embed_dim=32", "model.word_dim=24", "train.batch=16",
    "train.warmup_epochs=2", "train.epochs=2", "train.lr=2e-3",
    "train.pictures=false", "train.tensorboard=false", "train.device=cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page's package as ``pip install`` leaves it, and its settings file beside it."""
    folder = tmp_path_factory.mktemp("site")
    text = PAGE.read_text(encoding="utf-8")
    for name, code in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(code)
    (folder / "small_loss" / "__init__.py").touch()
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = folder / "small_loss-0.1.dist-info"
    info.mkdir()
    name, version = project["name"], project["version"]
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = project["entry-points"].items()
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items())
                for group, own in groups)
    )  # fmt: skip
    return folder


def run(site, *arguments):
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", "from pc2_baseline.cli import main; main()", *arguments],
        capture_output=True, text=True, check=False, cwd=site, timeout=300,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def commands():
    """The page's commands, without the name of the program."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"^pc2-baseline (.*)$", text, re.MULTILINE)
    return {words[0]: words for words in map(shlex.split, found)}


def test_the_pages_method_trains_divides_and_stands_in_a_table(site):
    page = commands()
    assert list(page) == ["plant", "train", "division", "table"]
    plant(site / "planted", Plan(train=96, dev=16, test=16, details=0, vocabulary=0, words=6))
    small = [part for value in SMALL for part in ("--set", value)]
    done = run(site, *page["train"], *small)
    assert done.returncode == 0, done.stderr
    log = (site / "runs" / "small-loss" / "log.jsonl").read_text().splitlines()
    figures = [json.loads(line)["figures"] for line in log]
    assert [epoch["learned"] for epoch in figures] == [96, 96, 60, 60], "0.6 of 16 is 10 a batch"
    assert figures[1]["loss"] < figures[0]["loss"]
    assert figures[-1]["auroc"] > 0.6
    done = run(site, *page["table"], *small, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "jieba/small-loss/seed-2: to do" in done.stdout


def test_a_setting_of_an_outside_method_is_checked_as_ours_are(site):
    done = run(site, *commands()["train"], "--set", "method.keep=2")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: small-loss.toml --on demo: method.keep: .*\n", done.stderr)


class Fine(OutsideSettings):
    """Settings of a method that is not there."""

    implementation: ClassVar[str] = "nowhere.method:Fine"
    name: Literal["fine"] = "fine"


class Nameless(OutsideSettings):
    """Settings without a name."""

    implementation: ClassVar[str] = "nowhere:Nameless"


class Unbound(OutsideSettings):
    """Settings that name no method."""

    name: Literal["unbound"] = "unbound"


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("sgr", "Fine", "already a method of that name"),
        ("fine", "nowhere:Fine", r"cannot be imported \(No module"),
        ("fine", "Missing", r"cannot be imported \(.*Missing"),
        ("fine", "PAGE", "expected a subclass of OutsideSettings"),
        ("other", "Fine", "expected name = 'other', and implementation"),
        ("nameless", "Nameless", "expected name = 'nameless', and implementation"),
        ("unbound", "Unbound", "expected name = 'unbound', and implementation"),
    ],
)
def test_an_entry_point_that_is_none_is_told_in_one_line(monkeypatch, name, value, problem):
    monkeypatch.setitem(sys.modules, "here", sys.modules[__name__])
    points = [EntryPoint(name, value if ":" in value else f"here:{value}", method_section.GROUP)]
    monkeypatch.setattr(method_section, "entry_points", lambda group: points)
    with pytest.raises(
        ConfigError, match=rf"entry point pc2_baseline.methods: {name} = .*{problem}"
    ):
        outside_settings({"sgr": ()})


def test_the_pages_method_goes_on_bit_for_bit(site, tiny, monkeypatch):
    import torch

    from pc2_baseline.config import read_settings
    from pc2_baseline.data.pairs import open_pairs
    from pc2_baseline.methods import make_method
    from pc2_baseline.training.method import Sizes

    monkeypatch.syspath_prepend(site)
    kind = import_module("small_loss.settings").SmallLossSettings
    settings = read_settings("sgr", SMALL).model_copy(update={"method": kind(keep=0.5)})
    cpu = torch.device("cpu")
    with open_pairs(tiny, "train", settings.data, cpu) as pairs:
        sizes = Sizes(len(pairs), pairs.features, 300)
        whole, again = (make_method(settings, sizes, cpu) for _ in range(2))
        for epoch in range(3):
            if epoch == 2:
                again.load_state_dict(whole.state_dict())
            figures = whole.fit_epoch(pairs, epoch)
        assert again.fit_epoch(pairs, 2) == figures
    for group, expected in whole.state_dict().items():
        found = again.state_dict()[group]
        assert all(found[name].equal(value) for name, value in expected.items())


def test_a_method_whose_class_cannot_be_imported_is_told_in_one_line(monkeypatch):
    import torch

    from pc2_baseline.config import Settings
    from pc2_baseline.methods import make_method
    from pc2_baseline.training.method import Sizes

    settings = Settings.model_construct(method=Fine())
    with pytest.raises(ConfigError, match=r"method fine: nowhere.method:Fine cannot be imported"):
        make_method(settings, Sizes(4, 8, 9), torch.device("cpu"))
