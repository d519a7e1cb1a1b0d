"""Several seeds and tables of variants."""

import json
import re
from dataclasses import asdict
from statistics import stdev

import pytest

from leaderboard.metrics import recalls
from now_builder.errors import ConfigError, TrainingError
from pc2_baseline.config import read_settings, read_tree
from pc2_baseline.methods.triplet import OneNetworkSettings
from pc2_baseline.runs.ablate import (
    Line,
    Row,
    Table,
    ablate,
    read_rows,
    settings_of,
    to_latex,
    to_markdown,
)
from pc2_baseline.runs.open_run import similarity
from pc2_baseline.runs.series import Spread, read_seeds, train_seeds
from pc2_baseline.runs.text_table import SCORES
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.run_folder import read_run

ROWS = [
    Row(name="full", title="PC2 & all_of it"),
    Row(name="without-cr", title="without CR", set=["method.rectify=false"]),
    Row(name="sgr", title="SGR", set=["method.name=sgr"]),
]


@pytest.fixture
def quick(small_settings):
    return [*small_settings, "train.warmup_epochs=1", "train.epochs=0"]


def with_settings(rows, overrides):
    tree, origin = read_tree("pc2-demo", overrides)
    return [(row, settings_of(row, tree, origin)) for row in rows]


def test_seeds_are_ordinary_runs_with_a_mean_and_a_spread(tiny, tmp_path, quick, monkeypatch):
    settings = read_settings("pc2-demo", quick)
    series = train_seeds(tiny, tmp_path / "three", settings, [0, 3])
    for seed, trained in zip([0, 3], series.runs, strict=True):
        run = tmp_path / "three" / f"seed-{seed}"
        assert read_run(run).settings.train.seed == seed
        assert read_state(run / "best").best_rsum == trained.best_rsum
    rsums = [trained.best_rsum for trained in series.runs]
    assert series.dev["rsum"].mean == pytest.approx(sum(rsums) / 2)
    assert series.dev["rsum"].sd == pytest.approx(stdev(rsums))
    told = json.loads((tmp_path / "three" / "seeds.json").read_text())
    assert told["dev"]["rsum"]["values"] == rsums
    assert told == series.as_json()
    monkeypatch.setattr(
        "pc2_baseline.data.pairs.ReleaseReader.open", lambda *_: pytest.fail("opened")
    )
    again = train_seeds(tiny, tmp_path / "three", settings, [0, 3])
    assert [trained.fresh for trained in again.runs] == [0, 0]
    assert again.dev == series.dev


def test_a_single_run_is_no_folder_of_seeds(tiny, tmp_path, quick):
    (tmp_path / "run.toml").touch()
    with pytest.raises(ConfigError, match="a single run"):
        train_seeds(tiny, tmp_path, read_settings("pc2-demo", quick), [0])


@pytest.mark.parametrize("text", ["", "a", "0,,1", "-1", "0,0", "1.5"])
def test_seeds_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match="--seeds"):
        read_seeds(text)


def test_a_table_of_variants_is_trained_scored_once_and_written(tiny, tmp_path, quick, monkeypatch):
    out = tmp_path / "out"
    rows = with_settings(ROWS, quick)
    table = ablate(tiny, out, rows, [0, 1])
    assert [(line.name, line.seeds) for line in table.lines] == [
        ("full", [0, 1]), ("without-cr", [0, 1]), ("sgr", [0, 1]),
    ]  # fmt: skip
    assert [list(line.parts.values()) for line in table.lines] == [
        [True, True, True], [True, True, False], [False, False, False],
    ]  # fmt: skip
    assert json.loads((out / "table.json").read_text()) == asdict(table)
    assert (out / "table.md").read_text() == to_markdown(table)
    assert (out / "table.tex").read_text() == to_latex(table)

    run, expected = out / "sgr" / "seed-1", table.lines[2].scores["rsum"].values[1]
    assert recalls(similarity(run, "test")).rsum == expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pc2_baseline.runs.ablate.evaluate", _again)
        assert ablate(tiny, out, rows, [0, 1]) == table
    cached = out / "full" / "seed-0.test.json"
    told = json.loads(cached.read_text())
    cached.write_text(json.dumps({**told, "checkpoint": "0" * 64}))
    monkeypatch.setattr("pc2_baseline.runs.ablate.evaluate", _again)
    with pytest.raises(RuntimeError, match="again"):
        ablate(tiny, out, rows, [0])


def _again(*_, **__):
    raise RuntimeError("scored again")


def test_a_row_of_another_method_keeps_what_that_method_knows(quick):
    overrides = [*quick, "method.margin=0.3"]
    (_, settings), *_ = with_settings([ROWS[2]], overrides)
    full = read_settings("pc2-demo", overrides)
    assert settings.method == OneNetworkSettings(margin=0.3, mean_epochs=full.method.mean_epochs)
    assert (settings.model, settings.train, settings.data) == (full.model, full.train, full.data)


def test_an_unknown_setting_names_its_row(quick):
    rows = [Row(name="typo", title="typo", set=["method.rectifies=false"])]
    with pytest.raises(ConfigError, match=r"row typo: method.*rectifies"):
        with_settings(rows, quick)


def test_a_row_that_breaks_down_does_not_stop_the_others(tiny, tmp_path, quick, monkeypatch):
    def breaks(release, run, settings):
        if run.parent.name == "full":
            raise TrainingError("epoch 0: no clean pair")
        return train(release, run, settings)

    monkeypatch.setattr("pc2_baseline.runs.ablate.train", breaks)
    table = ablate(tiny, tmp_path, with_settings([ROWS[0], ROWS[2]], quick), [0])
    assert table.failures == ["full, seed 0: epoch 0: no clean pair"]
    assert [line.seeds for line in table.lines] == [[], [0]]
    assert "| PC2 & all_of it | ✓ | ✓ | ✓ |  |" in (tmp_path / "table.md").read_text()


def line(name, rsums, title=None):
    scores = {column: Spread.of(rsums) for column in SCORES}
    parts = dict.fromkeys(("P-Cls", "P-Cap", "CR"), name == "full")
    return Line(name, title or name, parts, list(range(len(rsums))), scores)


def test_a_folder_with_rows_that_are_not_asked_for_is_refused(tiny, tmp_path, quick):
    for seed in (0, 1):
        (tmp_path / "earlier" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "earlier" / f"seed-{seed}" / "run.toml").touch()
    with pytest.raises(
        ConfigError, match="holds rows that are not asked for, earlier; give another"
    ):
        ablate(tiny, tmp_path, with_settings(ROWS[:1], quick), [0])


def test_both_tables_escape_mark_and_set_the_best_in_bold():
    table = Table(
        "test", [line("full", [50.0, 52.0], r"a_b & 100 % \ | {x}"), line("no", [50.0])], []
    )
    markdown, latex = to_markdown(table), to_latex(table)
    assert markdown.splitlines()[0].endswith("| t2i R@10 | rSum | seeds |")
    assert markdown.splitlines()[2] == (
        r"| a_b & 100 % \ \| {x} | ✓ | ✓ | ✓ |" + " **51.0** ± 1.4 |" * 7 + " 2 |"
    )
    assert markdown.splitlines()[3] == "| no |  |  |  |" + " 50.0 |" * 7 + " 1 |"
    assert r"a\_b \& 100 \% \textbackslash{} | \{x\} & \checkmark" in latex
    assert r"\textbf{51.0} $\pm$ 1.4" in latex
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert rule in latex
    rows = [row for row in latex.splitlines() if row.endswith(r"\\")]
    widths = {
        len(re.findall(r"(?<!\\)&", row))
        + sum(int(n) - 1 for n in re.findall(r"multicolumn{(\d)", row))
        for row in rows
    }
    assert widths == {1 + 3 + 7}


def test_rows_come_from_the_package_or_a_file(tmp_path):
    assert read_rows(None)[0].name == "full"
    assert read_rows("sensitivity")[1].set == ["method.classes=32"]
    tree, origin = read_tree("pc2-paper", [])
    for row in read_rows("sensitivity"):
        settings_of(row, tree, origin)
    (tmp_path / "mine.toml").write_text('[[row]]\nname = "a"\ntitle = "A"\n' * 2)
    with pytest.raises(ConfigError, match="two rows of one name"):
        read_rows(str(tmp_path / "mine.toml"))
    (tmp_path / "mine.toml").write_text('[[row]]\nname = "a/b"\ntitle = "A"\n')
    with pytest.raises(ConfigError, match=r"row\.0\.name"):
        read_rows(str(tmp_path / "mine.toml"))
    with pytest.raises(ConfigError, match="neither a file nor one of ablations, sensitivity"):
        read_rows("mine")
