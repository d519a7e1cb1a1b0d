"""docs/new-method.md: its method and its commands."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pc2_baseline.config import Plan
from pc2_baseline.data.planted import plant

PAGE = Path(__file__).parents[2] / "docs" / "new-method.md"
SMALL = [
    "model.similarity=pooled", "model.embed_dim=32", "model.word_dim=24", "train.batch=16",
    "train.warmup_epochs=2", "train.epochs=2", "train.lr=2e-3",
    "train.pictures=false", "train.tensorboard=false", "train.device=cpu",
]  # fmt: skip


IN_PLACE = (
    "import sys, pc2_baseline.methods as methods, pc2_baseline.method_section as section;"
    "methods.__path__.append(sys.argv.pop(1));"
    "section.METHODS['small-loss'] = 'small_loss:SmallLoss';"
    "from pc2_baseline.cli import main; main()"
)
"""The program with the page's file in its place, and its line in the table."""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The page's method and its settings file."""
    folder = tmp_path_factory.mktemp("site")
    text = PAGE.read_text(encoding="utf-8")
    for name, code in re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        (folder / Path(name).name).write_text(code)
    assert (folder / "small_loss.py").exists()
    return folder


def run(site, *arguments):
    return subprocess.run(
        [sys.executable, "-c", IN_PLACE, str(site), *arguments],
        capture_output=True, text=True, check=False, cwd=site, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
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


def test_its_settings_are_checked(site):
    done = run(site, *commands()["train"], "--set", "method.keep=2")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"error: small-loss.toml --on demo: method.keep: .*\n", done.stderr)


def test_the_pages_method_goes_on_bit_for_bit(site, tiny, monkeypatch):
    import torch

    from pc2_baseline import method_section, methods
    from pc2_baseline.config import read_settings
    from pc2_baseline.data.pairs import open_pairs
    from pc2_baseline.methods import make_method
    from pc2_baseline.training.method import Sizes

    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(site)])
    monkeypatch.setitem(method_section.METHODS, "small-loss", "small_loss:SmallLoss")
    kind = method_section.settings_class("small-loss")
    settings = read_settings("sgr", SMALL).model_copy(
        update={"method": kind(name="small-loss", keep=0.5)}
    )
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
