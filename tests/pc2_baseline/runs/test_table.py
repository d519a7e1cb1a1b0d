"""One command that makes a benchmark's table."""

import csv
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pandas as pd
import pytest

from leaderboard.core.uncertainty import sign_flip
from leaderboard.metrics import recalls
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import QueryRanks, RankRecord, Release
from leaderboard.scoring.within import figures_within
from leaderboard.store.entries import read_result
from now_builder.errors import ConfigError, FormatError
from pc2_baseline.config import Plan, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs import table as tables
from pc2_baseline.runs import table_plan as plan
from pc2_baseline.runs.measured_run import measure
from pc2_baseline.runs.open_run import open_run, similarity
from pc2_baseline.runs.table_files import (
    LEGEND,
    RECALLS,
    mean_hits,
    other_rows,
    summarise,
    write_table,
)
from pc2_baseline.training.checkpoint import read_state
from pc2_baseline.training.trainer import lock_run
from tests.page_checks import complaints

SMALL = """
extends = "sgr"
[model]
embed_dim = 8
word_dim = 8
similarity_dim = 8
graph_layers = 1
[train]
batch = 8
warmup_epochs = 1
epochs = 1
lr = 1e-3
device = "cpu"
tensorboard = false
pictures = false
"""
METHODS = {
    "one": "",
    "three": '[method]\nname = "crossfit"\nfolds = 3\nmargin = 0.2\n',
    "lost": '[data]\nnoise_file = "nowhere.npy"\n',
}
COMMAND = [sys.executable, "-c", "from pc2_baseline.cli import main; main()", "table"]


def work_of(release, out, *more):
    """What the table of these tests asks for."""
    for name, own in METHODS.items():
        (out.parent / f"{name}.toml").write_text(SMALL + own)
    files = [str(out.parent / f"{name}.toml") for name in METHODS]
    sets = [f"data.truth={release / 'truth.csv'}", *more]
    rows = plan.table_rows(release, plan.read_rows(files), [], sets)
    return tables.Work(release, out, rows, [0, 1], plan.make_slots([], None)[0])


def rows_but(work, method):
    """The row of one method alone."""
    return {row: settings for row, settings in work.rows.items() if row[1] == method}


def run_of(made, method, seed):
    return made / "jieba" / method / f"seed-{seed}"


def line_of(out, method):
    lines = csv.DictReader((out / "table.csv").read_text().splitlines())
    return next(line for line in lines if line["method"] == method)


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """A table that was trained in one process, and its outcome."""
    out = tmp_path_factory.mktemp("table") / "out"
    return out, tables.make_table(work_of(tiny, out))


def test_a_run_that_fails_becomes_a_row_with_its_reason_and_the_others_go_on(made):
    out, outcome = made
    assert list(outcome[1]) == ["jieba/lost/seed-0", "jieba/lost/seed-1"]
    line = line_of(out, "lost")
    assert (line["seeds"], line["rsum"], line["evidence"]) == ("", "", "scored")
    assert re.match(r"seed 0 failed: .*nowhere\.npy.*; seed 1 failed: ", line["notes"])
    assert "| lost (failed) |" in outcome[0]
    assert re.search(r"^- lost \(failed\): seed 0 failed: ", outcome[0], re.MULTILINE)
    assert line_of(out, "three")["seeds"] == "0 1"


def test_figures_are_mean_and_deviation_of_what_the_board_scored(made, tiny):
    out = made[0]
    for method, networks in (("one", 1), ("three", 3)):
        line, rsums, first, two = line_of(out, method), [], [], []
        for seed in (0, 1):
            run = run_of(out, method, seed)
            result = read_result(run.with_name(f"seed-{seed}.result.json"))
            assert score(run.with_name(f"seed-{seed}.zip"), tiny) == result
            matrix = similarity(run, "test")
            assert result.rsum == recalls(matrix).rsum
            rsums.append(result.rsum)
            opened = open_run(run)
            with opened.open("test") as pairs:
                whole = opened.method.similarity(pairs)
                each = opened.method.similarities(pairs) if networks > 1 else [whole]
            first.append(recalls(each[0]).rsum)
            two.append(recalls(ensemble(each[:2])).rsum)
        for name, values in (("rsum", rsums), ("one_network_rsum", first),
                             ("two_networks_rsum", two if networks > 1 else None)):  # fmt: skip
            if values is None:
                assert line[name] == line[f"{name}_sd"] == ""
                continue
            assert float(line[name]) == pytest.approx(fmean(values))
            assert float(line[f"{name}_sd"]) == pytest.approx(stdev(values))
        assert line["networks"] == str(networks)


def test_costs_and_the_divisions_auroc_come_from_the_runs_own_log(made, tiny, tmp_path):
    out = made[0]
    for method in ("one", "three"):
        logs = [read_state(run_of(out, method, n) / "last").history for n in (0, 1)]
        line = line_of(out, method)
        seconds = [sum(epoch.seconds for epoch in log) for log in logs]
        assert float(line["seconds"]) == pytest.approx(fmean(seconds))
        assert 0.1 < float(line["memory_gb"]) < 20
        assert line["gpu_memory_gb"] == ""
    assert line_of(out, "one")["auroc"] == "", "SGR makes no division"
    line = line_of(out, "three")
    for name in ("auroc", "once_auroc", "copies_auroc", "url_kind_auroc", "language_auroc"):
        assert 0 <= float(line[name]) <= 1
    run = shutil.copytree(run_of(out, "three", 0), tmp_path / "seed-0")
    path = run / "last" / "state.json"
    state = json.loads(path.read_text())
    aurocs = [epoch["figures"]["auroc"] for epoch in state["history"]]
    assert aurocs[0] != aurocs[1]
    settings = open_run(run).record.settings
    for best in (0, 1):
        path.write_text(json.dumps({**state, "best_epoch": best}))
        record = measure(tiny, run, settings, "three")
        assert record.auroc == aurocs[best]
        assert record.memory_gb is None, "this call trained nothing"


def test_the_test_is_on_the_mean_of_the_seeds(made):
    out = made[0]
    hits = {
        method: mean_hits(
            read_result(out / "jieba" / method / f"seed-{n}.result.json") for n in (0, 1)
        )
        for method in ("one", "three")
    }
    worse, best = sorted(hits, key=lambda method: hits[method].mean())
    behind = 100 * (hits[best] - hits[worse]).mean()
    assert float(line_of(out, worse)["behind"]) == pytest.approx(behind)
    assert float(line_of(out, worse)["p"]) == pytest.approx(sign_flip(hits[best] - hits[worse]))
    assert float(line_of(out, best)["behind"]) == 0
    assert line_of(out, "lost")["p"] == ""


def test_all_four_formats_hold_the_same_rows_and_can_be_read(made):
    out, outcome = made
    markdown = (out / "table.md").read_text()
    assert markdown == outcome[0]
    assert markdown.endswith(f"{LEGEND}\n")
    cells = [row[2:-2].split(" | ") for row in markdown.splitlines() if row[:2] == "| "]
    assert {len(row) for row in cells} == {len(cells[0])}
    [page] = pd.read_html(out / "table.html", keep_default_na=False, dtype_backend="pyarrow")
    assert list(page.columns) == cells[0]
    assert page["Method"].tolist() == [row[0] for row in cells[2:]]
    lines = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [line["method"] for line in lines] == ["one", "three", "lost", "Chance"]
    assert lines[-1]["evidence"] == "reference"
    latex = (out / "table.tex").read_text()
    rows = [row for row in latex.splitlines() if row.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {len(cells[0]) - 1}
    assert len(re.findall(r"\\textbf", latex)) == markdown.count("**") / 2


@pytest.mark.browser
def test_the_tables_page_can_be_read_at_every_width(made, browser):
    page = browser.new_page()
    page.goto((made[0] / "table.html").as_uri())
    assert complaints(page) == []
    page.close()


def test_reported_rows_are_marked_and_never_rivals_of_ours(made, tiny, tmp_path):
    result = read_result(made[0] / "jieba" / "one" / "seed-0.result.json")
    assert [row["evidence"] for row in other_rows(result)] == ["reference"]
    published = result.model_copy(
        update={"n_images": 1000, "n_pairs": 1000,
                "release": Release(origin="archive", fingerprint="0" * 64)}
    )  # fmt: skip
    rows = other_rows(published)
    assert [row["evidence"] for row in rows] == ["reported"] * 5 + ["reference"]
    pc2 = rows[0]
    assert (pc2["method"], pc2["networks"], pc2["rsum"]) == ("PC²", 2, 163.9)
    assert [pc2[name] for name in RECALLS] == [16.0, 29.5, 36.9, 15.5, 29.0, 37.0]
    assert pc2["notes"] == "Duan et al. 2024, NoW table, Jieba"
    with pytest.MonkeyPatch.context() as patch:
        theirs = {"method": "a|b", "evidence": "reported", "rsum": 999.0, "notes": "X 2024"}
        patch.setattr("pc2_baseline.runs.table_files.other_rows", lambda _: [theirs])
        folder = run_of(made[0], "one", 0)
        run = tables.Run(folder, open_run(folder).record.settings)
        markdown = write_table(tmp_path, tiny, [], {run: tables._read(run)}, {})
    assert re.search(r"\| a\\\|b \(reported\) \|[ |]* 999\.0 \|", markdown)
    assert "- a|b (reported): X 2024" in markdown
    assert "**999.0**" not in markdown


def test_a_release_split_by_domain_has_rsum_within_sites_and_is_tested_by_owner(
    made, tiny, tmp_path
):
    folders = [run_of(made[0], method, 0) for method in ("one", "three")]
    runs = [tables.Run(folder, open_run(folder).record.settings) for folder in folders]
    records = {run: tables._read(run) for run in runs}
    first = QueryRanks(greater=(0,) * 20)
    sites = figures_within("within_site", RankRecord(i2t=first, t2i=first), (10, 10))

    def by_domain(path):
        result = read_result(path)
        owners = tuple(row % 2 for row in range(result.n_images))
        ranks = result.ranks.model_copy(update={"site_owners": owners})
        groups = {"within_site": sites, "within_language": sites}
        return result.model_copy(update={"ranks": ranks, **groups})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pc2_baseline.runs.table_files.read_result", by_domain)
        markdown = write_table(tmp_path, tiny, [], records, {})
    assert "; within 2 sites, by chance 320.0; within 2 languages, by chance 320.0" in markdown
    assert "| within sites | within languages |" in markdown
    assert [float(line_of(tmp_path, name)["within_site_rsum"]) for name in ("one", "three")] == [
        600
    ] * 2
    assert min(float(line_of(tmp_path, name)["p"]) for name in ("one", "three")) > 0.4
    assert "within sites" not in (made[0] / "table.md").read_text().partition(LEGEND)[0]


def test_what_is_done_is_not_done_again_and_the_table_is_the_same(
    made, tiny, tmp_path, monkeypatch, capsys
):
    out = shutil.copytree(made[0], tmp_path / "out")
    files = {path: path.stat().st_mtime_ns for path in out.glob("jieba/*/*") if path.is_file()}
    (out / ".table.md.1.999999999.tmp").touch()  # of a kill
    outcome = tables.make_table(replace(work_of(tiny, made[0]), out=out))
    assert outcome == made[1]
    assert [path for path, time in files.items() if path.stat().st_mtime_ns != time] == []
    assert not list(out.rglob(".*.tmp"))
    assert "6 runs: 4 done, 2 to do" in capsys.readouterr().err


def test_a_dry_run_says_what_is_done_and_writes_nothing(made, tiny, tmp_path):
    out = made[0]
    work = work_of(tiny, out)
    lines = tables.dry_run(work).splitlines()
    assert lines[:3] == ["jieba/one/seed-0: done", "jieba/three/seed-0: done",
                         "jieba/lost/seed-0: to do"]  # fmt: skip
    assert lines[-1].startswith("6 runs: 4 done, 2 to do, 1 at a time")
    tables.dry_run(replace(work, out=tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []
    path = run_of(out, "one", 0).with_name("seed-0.json")
    kept = path.read_text()
    try:  # a record of another training does not count
        path.write_text(kept.replace(json.loads(kept)["checkpoint"], "0" * 64))
        assert tables.dry_run(work).splitlines()[0].endswith("resumes after epoch 2 of 2")
    finally:
        path.write_text(kept)


def test_a_run_whose_files_are_gone_or_torn_is_scored_again(made, tiny, tmp_path):
    out = shutil.copytree(made[0], tmp_path / "out")
    whole = work_of(tiny, made[0])
    work = replace(whole, out=out, rows=rows_but(whole, "one"), seeds=[0])
    for ending in (".zip", ".result.json", ".json"):
        path = run_of(out, "one", 0).with_name(f"seed-0{ending}")
        kept = path.read_bytes()
        path.unlink()
        if ending == ".json":
            path.write_bytes(kept[:20])
        assert not tables.make_table(work)[1]
        assert len(path.read_bytes()) > 20
    assert line_of(out, "one")["rsum"] == line_of(made[0], "one")["rsum"]


def test_a_folder_with_other_runs_in_it_is_refused_before_anything_starts(made, tiny, tmp_path):
    work = work_of(tiny, made[0])
    changed = {("jieba", "one"): read_settings("sgr", ["data.tokenizer=jieba"])}
    for seeds in ([0], [5]):
        with pytest.raises(ConfigError, match=r"one/seed-0: a run of other settings .*train.lr"):
            tables.make_table(replace(work, rows=changed, seeds=seeds))
    plant(tmp_path / "other", Plan(train=24, dev=8, test=8, seed=5))
    other = replace(work, release=tmp_path / "other", rows=rows_but(work, "lost"))
    with pytest.raises(
        ConfigError, match=r"one/seed-0: not a finished run on .*other; give another OUT"
    ):
        tables.make_table(other)
    with (
        lock_run(tmp_path / "out"),
        pytest.raises(ConfigError, match="another command is writing in this folder"),
    ):
        tables.make_table(replace(work, out=tmp_path / "out"))


def test_methods_and_seeds_of_an_earlier_table_stay_in_it(made, tiny, tmp_path, capsys):
    out = shutil.copytree(made[0], tmp_path / "out")
    work = replace(work_of(tiny, made[0]), out=out, seeds=[1])
    tables.make_table(replace(work, rows=rows_but(work, "three")))
    assert "1 runs: 1 done, 0 to do" in (said := capsys.readouterr().err)
    assert said.endswith("; 3 earlier ones stay in the table\n")
    lines = list(csv.DictReader((out / "table.csv").read_text().splitlines()))
    assert [(line["method"], line["seeds"]) for line in lines[:2]] == [
        ("three", "0 1"), ("one", "0 1"),
    ]  # fmt: skip
    assert line_of(out, "one")["rsum"] == line_of(made[0], "one")["rsum"]


def test_in_processes_each_run_ends_with_its_reason_and_the_table_is_the_same(
    made, tiny, tmp_path, monkeypatch
):
    """One that is killed is named with its signal, and the next call makes it."""
    out = tmp_path / "out"
    work = replace(work_of(tiny, out), slots=[{}, {}], seeds=[0])
    start = tables.SpawnProcess.start
    with monkeypatch.context() as patch:
        patch.setattr(tables.SpawnProcess, "start", lambda own: (start(own), own.kill()))
        outcome = tables.make_table(work)
    assert set(outcome[1]) == {f"jieba/{name}/seed-0" for name in METHODS}
    assert all("ended by signal 9, perhaps out" in why for why in outcome[1].values())
    assert list(tables.make_table(work)[1]) == ["jieba/lost/seed-0"]
    for method in ("one", "three"):
        path = run_of(out, method, 0)
        assert np.array_equal(similarity(path), similarity(run_of(made[0], method, 0)))
        assert "epoch 2/2" in path.with_name("seed-0.log").read_text()


def test_ctrl_c_ends_all_processes_and_says_in_a_line_what_is_kept(tiny, tmp_path):
    out = tmp_path / "out"
    work_of(tiny, out)
    command = [*COMMAND, tiny, out, "--methods", tmp_path / "one.toml", "--seeds", "2", "--jobs",
               "2", "--set", "train.epochs=2000"]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True)
    begun, last = run_of(out, "one", 0) / "run.toml", time.monotonic() + 120
    while not begun.exists() and process.poll() is None and time.monotonic() < last:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130
    assert said.strip().splitlines()[-1].startswith("stopped: finished runs and epochs are kept")
    with lock_run(run_of(out, "one", 0)), lock_run(run_of(out, "one", 1)):
        pass  # no process holds them


def test_a_process_ends_with_the_one_that_started_it_even_if_that_is_killed(tiny, tmp_path):
    out = tmp_path / "out"
    [run, *_] = work_of(tiny, out, "train.epochs=2000").runs
    code = "import pickle, sys; from pc2_baseline.runs.table import in_process;"
    code += "in_process(*pickle.load(sys.stdin.buffer), 1, {})"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    parent.stdin.write(pickle.dumps((tiny, run)))
    parent.stdin.close()
    last = time.monotonic() + 120
    while not (run.folder / "run.toml").exists() and time.monotonic() < last:
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    for _ in range(200):
        try:
            with lock_run(run.folder):
                return  # no process holds it
        except ConfigError:
            time.sleep(0.05)
    pytest.fail("the process lives on")


def test_seeds_are_a_number_of_them_or_a_list():
    for text, seeds in {"3": [0, 1, 2], "1": [0], "4,": [4], "0,7": [0, 7]}.items():
        assert plan.read_seeds(text) == seeds
    for text in ("0", "x", "1,1", "", "0,,1", "-1", "1.5"):
        with pytest.raises(ConfigError, match="--seeds"):
            plan.read_seeds(text)
    assert plan.read_seeds("0,1", ["train.lr=1"]) == [0, 1]
    with pytest.raises(ConfigError, match=r"train\.seed is set, but --seeds 0,1"):
        plan.read_seeds("0,1", ["train.lr=1", " train.seed = 7"])


def test_gpus_take_runs_in_turn_by_the_number_that_the_user_sees(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)

    def seen(devices, jobs=None):
        slots, overrides = plan.make_slots(devices, jobs)
        return [slot.get("CUDA_VISIBLE_DEVICES") for slot in slots], overrides

    assert seen(["cuda:0", "cuda:1"]) == (["0", "1"], ['train.device="cuda"'])
    assert seen(["cuda:1"], 2) == (["1", "1"], ['train.device="cuda"'])
    assert seen(["cuda:0", "cuda:1"], 3)[0] == ["0", "1", "0"]
    assert seen(["cpu"], 3) == ([None] * 3, ['train.device="cpu"'])
    assert seen([]) == ([None], [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-b")
    assert seen(["cuda:0", "cuda:1"])[0] == ["4", "GPU-b"]
    with pytest.raises(ConfigError, match="cuda:2: this machine has 2 GPUs"):
        seen(["cuda:0", "cuda:2"])
    with pytest.raises(ConfigError, match="expected one device, or GPUs"):
        seen(["cuda:0", "cpu"])


def test_under_torchrun_a_table_is_refused_instead_of_made_by_every_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="does not run under torchrun"):
        plan.make_slots([], 2)


def names(rows):
    return ["/".join(row) for row in rows]


def rows_on(release, methods, tokenizers=(), overrides=(), on=None):
    return plan.table_rows(release, plan.read_rows(methods), tokenizers, overrides, on)


def test_methods_that_do_not_go_together_are_refused(tiny, flickr):
    for release, methods, tokenizers, on, message in (
        (tiny, ["sgr", "sgr"], [], None, "sgr: two rows have this name"),
        (tiny, [], [], None, "none, expected one or more"),
        (tiny, ["x" * 61 + ".toml"], [], None, "name: expected at most 60 characters"),
        (flickr, ["sgr"], ["bert"], "f30k", "--tokenizers: flickr30k has none"),
        (tiny, ["sgr"], ["jeiba"], None, "jeiba: .* has jieba .did you mean jieba"),
        (tiny, ["bicroo"], [], None, "--methods bicroo: neither a file nor a preset"),
        (tiny, ["sgr", "pc2-released"], [], "demo", "--on demo: no such section in pc2-released"),
    ):
        with pytest.raises(ConfigError, match=message):
            rows_on(release, methods, tokenizers, on=on)


def test_without_tokenizers_the_track_is_jieba_or_the_first_that_is_there(tiny, tmp_path):
    release = Path(shutil.copytree(tiny, tmp_path / "two"))
    captions = release / "now100k_precomp" / "test_caps_jieba.txt"
    shutil.copy(captions, captions.with_name("test_caps_bpe.txt"))
    assert names(rows_on(release, ["sgr", "ridge"])) == ["jieba/sgr", "jieba/ridge"]
    assert len(rows_on(release, ["sgr", "ridge"], ["jieba", "bpe"])) == 4
    captions.unlink()
    assert names(rows_on(release, ["sgr"])) == ["bpe/sgr"]
    captions.with_name("test_caps_bpe.txt").unlink()
    with pytest.raises(FormatError, match=r"no test_caps_jieba\.txt, nor of another tokenizer"):
        rows_on(release, ["sgr"])


def test_a_file_of_rows_sets_its_own_on_top_of_the_tables(tiny, flickr, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[row]]\nname = "PC2 & all"\n'
        '[[row]]\nname = "sgr"\nset = ["method.name=triplet", "train.lr=1e-4"]\n'
        '[[row]]\nname = "ncr"\nconfig = "ncr"\non = "demo"\n'
    )
    read = plan.read_rows([], str(path))
    rows = plan.table_rows(tiny, read, [], ["train.lr=1e-3"], "planted")
    first, second, third = rows.values()
    planted = read_settings("pc2-paper", ["train.lr=1e-3"], on="planted")
    assert (names(rows)[0], first) == ("jieba/PC2 & all", planted)
    assert (second.method.name, second.train.lr) == ("triplet", 1e-4)
    assert second.model == planted.model
    assert third.method.mean_epochs == 14
    path.write_text('[[row]]\nname = "a"\n[[row]]\nname = "b"\non = "f30k"\n')
    with pytest.raises(ConfigError, match="a is for NoW, b is for flickr30k"):
        plan.table_rows(tiny, plan.read_rows([], str(path)), [], [])
    path.write_text('[[row]]\nname = "bert"\nset = ["data.tokenizer=bert"]\n')
    with pytest.raises(ConfigError, match=r"data\.tokenizer is set, but .* --tokenizers"):
        plan.table_rows(tiny, plan.read_rows([], str(path)), [], [])
    path.write_text('[[row]]\nname = "typo"\nset = ["method.rectifies=true"]\n')
    with pytest.raises(ConfigError, match=r"row typo: .*method.rectifies: .* method.rectify"):
        plan.table_rows(tiny, plan.read_rows([], str(path)), [], [])
    path.write_text('[[row]]\nname = "a/b"\n')
    with pytest.raises(ConfigError, match=r"row\.0\.name"):
        plan.read_rows([], str(path))
    with pytest.raises(ConfigError, match=r"sensitivity .did you mean ablations"):
        plan.read_rows([], "ablation")


def test_rows_that_come_with_the_package_differ_from_each_other(tiny):
    for name in ("ablations", "sensitivity"):
        rows = list(plan.table_rows(tiny, plan.read_rows([], name), [], []).values())
        assert len({row.model_dump_json() for row in rows}) == len(rows) > 6
        assert rows[0] == read_settings(None, [])


def test_a_data_set_of_the_field_has_a_table_of_its_own(flickr, tmp_path, small_settings):
    own = [text for text in small_settings if not text.startswith("method.class")]
    quick = ["train.warmup_epochs=1", "train.epochs=0", "data.sentences=false"]
    settings = read_settings("sgr", ['data.name="f30k_precomp"', *own, *quick])
    run = tmp_path / "flickr30k" / "sgr" / "seed-0"
    record = measure(flickr, run, settings, "x")
    records = {tables.Run(run, settings): record}
    found = summarise(flickr, [("flickr30k", "sgr")], records, {})
    assert re.fullmatch(r"Flickr30K: .*, test split, 6 images, 30 captions", found.section[0])
    assert list(found.method) == ["sgr", "Chance"]
    assert found.rsum[0] == record.rsum
    assert pd.isna(found.two_networks_rsum[0])
