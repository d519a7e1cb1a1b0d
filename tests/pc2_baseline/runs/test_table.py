"""One command that makes a benchmark's table."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from leaderboard.core.uncertainty import sign_flip
from leaderboard.metrics import hits_per_image, recalls
from leaderboard.scoring.evaluate import score
from leaderboard.scoring.result import Release
from leaderboard.store.entries import read_result
from leaderboard.submission.archive import open_submission
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import sha256_of
from pc2_baseline.config import Plan, read_settings
from pc2_baseline.data.planted import plant
from pc2_baseline.modules.retrieval import ensemble
from pc2_baseline.runs import table as tables
from pc2_baseline.runs import table_plan as plan
from pc2_baseline.runs.measured_run import Assignment, measure
from pc2_baseline.runs.open_run import open_run, similarity
from pc2_baseline.runs.series import GridRun, MeanStd
from pc2_baseline.runs.side_by_side import side_by_side
from pc2_baseline.runs.table_files import LEGEND, to_latex, to_markdown
from pc2_baseline.runs.table_plan import Row
from pc2_baseline.runs.table_rows import Line, RowRuns, Section, make_sections, other_lines
from pc2_baseline.runs.text_table import RECALLS, SCORES
from pc2_baseline.runs.train import train
from pc2_baseline.training.checkpoint import read_state, read_tensors
from pc2_baseline.training.trainer import locked

SMALL = """
extends = "sgr"
[model]
embed_dim = 32
word_dim = 24
similarity_dim = 16
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
    "four": '[method]\nname = "crossfit"\nfolds = 4\nmargin = 0.2\n',
    "lost": '[data]\nnoise_file = "nowhere.npy"\n',
}
ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in this process: bit for bit
COMMAND = [sys.executable, "-c", "from pc2_baseline.cli import main; main()", "table"]


def methods_of(out):
    """Settings files of the methods, beside the table."""
    files = [out.parent / f"{name}.toml" for name in METHODS]
    for file, own in zip(files, METHODS.values(), strict=True):
        file.write_text(SMALL + own)
    return list(map(str, files))


def command(release, out):
    """The command that makes the table of these tests."""
    truth = f"data.truth={release / 'truth.csv'}"
    methods = ",".join(methods_of(out))
    return [*COMMAND, release, out, "--methods", methods, "--seeds", "2", "--set", truth]


def work_of(release, out):
    """What that command asks for."""
    truth = f"data.truth={release / 'truth.csv'}"
    rows = plan.table_rows(release, plan.rows_of_methods(methods_of(out)), [], [truth])
    return tables.Work(release, out, rows, [0, 1], plan.make_slots([], None)[0])


def lines_of(made):
    return list(csv.DictReader((made / "table.csv").read_text().splitlines()))


def line_of(made, method):
    return next(line for line in lines_of(made) if line["method"] == method)


def run_of(made, method, seed):
    return made / "jieba" / method / f"seed-{seed}"


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A table whose command was stopped by Ctrl-C in the middle of a run, and what it said.

    Some runs were finished before, in this process, which has torch already.
    """
    out = tmp_path_factory.mktemp("table") / "out"
    for run in work_of(tiny, out).runs:
        if run.name in {"jieba/one/seed-1", "jieba/four/seed-0", "jieba/four/seed-1"}:
            title = run.folder.parent.name
            measure(
                Assignment(
                    release=tiny, run=run.folder, settings=run.settings, title=title, threads=1
                )
            )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ALONE}
    process = subprocess.Popen(command(tiny, out), **pipes)
    begun = run_of(out, "one", 0) / "run.toml"
    last = time.monotonic() + 120
    while not begun.exists() and process.poll() is None and time.monotonic() < last:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)
    return out, process.returncode, *(text.decode() for text in said)


@pytest.fixture(scope="module")
def made(tiny, stopped):
    """The same table after the same command was run again, and what it said."""
    out = stopped[0]
    return out, subprocess.run(
        command(tiny, out), capture_output=True, text=True, check=False, timeout=600, env=ALONE
    )


def test_ctrl_c_ends_all_processes_and_says_in_a_line_what_is_kept(stopped):
    out, code, stdout, stderr = stopped
    assert (code, stdout) == (130, "")
    contents, plan, *others, last = stderr.strip().splitlines()
    assert re.fullmatch(
        r".*: one, four, lost; tokenizers jieba; seeds 0, 1; \d+ epochs in all "
        r"\(--methods, --tokenizers, --seeds\)", contents,
    )  # fmt: skip
    assert re.fullmatch(r"6 runs: 3 done, 3 to do, 1 at a time with \d+ threads each", plan)
    assert not [line for line in others if "failed" in line]
    assert last.startswith("stopped: finished runs and epochs are kept; run the same command again")
    with locked(run_of(out, "one", 0)):
        pass  # no process holds it


def test_a_stopped_table_goes_on_to_the_same_networks_as_one_that_never_stopped(
    made, tiny, tmp_path
):
    run = run_of(made[0], "one", 0)
    settings = open_run(run).record.settings
    whole = train(tiny, tmp_path / "whole", settings)
    assert whole.best_dev == read_state(run / "best").history[whole.best_epoch].dev
    expected = read_tensors(tmp_path / "whole" / "best")["networks"]
    found = read_tensors(run / "best")["networks"]
    assert all(found[name].equal(value) for name, value in expected.items())


def test_a_run_that_fails_becomes_a_row_with_its_reason_and_the_others_go_on(made):
    out, done = made
    assert done.returncode == 1
    line = line_of(out, "lost")
    assert (line["seeds"], line["rsum"], line["evidence"]) == ("", "", "scored")
    assert re.match(r"seed 0 failed: .*nowhere\.npy.*; seed 1 failed: ", line["notes"])
    assert "| lost (failed) |" in done.stdout
    assert re.search(r"^- lost \(failed\): seed 0 failed: ", done.stdout, re.MULTILINE)
    assert line_of(out, "four")["seeds"] == "0 1"
    *told, error = done.stderr.strip().splitlines()
    assert re.fullmatch(
        r"error: 2 runs failed: jieba/lost/seed-0, jieba/lost/seed-1; see the notes", error
    )
    assert any(re.match(r"jieba/one/seed-0: epoch \d+/\d+: .* dev rSum", line) for line in told)
    assert re.fullmatch(
        r"jieba/one/seed-0: rSum [\d.]+, \d+ s "
        r"\(4 done, 0 running, 2 to do\)", told[-3],
    )  # fmt: skip
    assert told[-1].endswith("(4 done, 0 running, 0 to do, 2 failed)")


def test_figures_are_mean_and_deviation_of_what_the_board_scored(made):
    out = made[0]
    for method in ("one", "four"):
        line = line_of(out, method)
        results = [read_result(out / "jieba" / method / f"seed-{n}.result.json") for n in (0, 1)]
        for n, result in enumerate(results):
            matrix = similarity(run_of(out, method, n), "test")
            assert result.rsum == recalls(matrix).rsum
            values = (*result.i2t.values(), *result.t2i.values())
            assert values == tuple(
                way.recall(k)
                for way in (recalls(matrix).i2t, recalls(matrix).t2i)
                for k in (1, 5, 10)
            )
        rsums = [result.rsum for result in results]
        assert float(line["rsum"]) == pytest.approx(sum(rsums) / 2)
        assert float(line["rsum_sd"]) == pytest.approx(abs(rsums[0] - rsums[1]) / 2**0.5)
        last = [result.t2i.r10 for result in results]
        assert float(line[RECALLS[-1]]) == pytest.approx(fmean(last))
        assert float(line[f"{RECALLS[-1]}_sd"]) == pytest.approx(stdev(last))


def test_a_method_of_several_networks_is_scored_with_its_first_and_its_first_two(made, tiny):
    out, line = made[0], line_of(made[0], "four")
    assert line["networks"] == "4"
    one, two = [], []
    for seed in (0, 1):
        opened = open_run(run_of(out, "four", seed))
        with opened.open("test") as pairs:
            each = opened.method.similarities(pairs)
            assert np.array_equal(ensemble(each), opened.method.similarity(pairs))
        one.append(recalls(each[0]).rsum)
        two.append(recalls(ensemble(each[:2])).rsum)
        for ending, networks in ((".one", 1), (".two", 2), ("", 4)):
            path = out / "jieba" / "four" / f"seed-{seed}{ending}.zip"
            with open_submission(path) as submission:
                assert submission.meta.training.ensemble_size == networks
    assert float(line["one_network_rsum"]) == pytest.approx(fmean(one))
    assert float(line["one_network_rsum_sd"]) == pytest.approx(stdev(one))
    assert float(line["two_networks_rsum"]) == pytest.approx(fmean(two))
    assert float(line["two_networks_rsum_sd"]) == pytest.approx(stdev(two))


def test_a_method_of_one_network_is_also_scored_as_two_seeds_averaged(made, tiny):
    out, line = made[0], line_of(made[0], "one")
    matrices = [similarity(run_of(out, "one", seed), "test") for seed in (0, 1)]
    expected = recalls(ensemble(matrices)).rsum
    assert line["networks"] == "1"
    assert line["one_network_rsum"] == line["rsum"]
    assert float(line["two_networks_rsum"]) == expected
    assert line["two_networks_rsum_sd"] == ""
    with open_submission(out / "jieba" / "one" / "seeds-0-1.zip") as submission:
        training = submission.meta.training
        assert (training.seeds, training.ensemble_size) == ((0, 1), 2)
        assert submission.meta.method.name == "one, seeds averaged"


def test_of_three_seeds_each_is_averaged_with_the_next_and_made_anew_when_one_is_newer(
    made, tiny, tmp_path, monkeypatch
):
    called = []

    def average(release, runs, title):
        called.append([run.seed for run in runs])
        return read_result(made[0] / "jieba" / "one" / "seeds-0-1.result.json")

    settings = read_settings("sgr", [])
    runs = [GridRun("jieba/one", n, run_of(made[0], "one", n), settings) for n in (0, 1)]
    record = json.loads(runs[0].beside(".json").read_text())
    from pc2_baseline.runs import table_rows

    measured = tables.Measured(**record)
    three = [(runs[0], measured), (runs[1], measured), (replace(runs[1], seed=7), measured)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_rows, "average_runs", average)
        make_sections(tiny, [RowRuns("jieba", "one", three, {})])
    assert called == [[0, 1], [1, 7], [7, 0]]

    monkeypatch.setattr(table_rows, "score", lambda *_: pytest.fail("made anew"))
    before = table_rows.average_runs(tiny, runs, "one")
    os.utime(runs[1].beside(".zip"))
    monkeypatch.setattr(table_rows, "score", score)
    assert table_rows.average_runs(tiny, runs, "one") == before


def test_costs_and_the_divisions_auroc_come_from_the_runs_own_log(made):
    out = made[0]
    for method in ("one", "four"):
        logs = [
            [
                json.loads(line)
                for line in (run_of(out, method, n) / "log.jsonl").read_text().splitlines()
            ]
            for n in (0, 1)
        ]
        line = line_of(out, method)
        seconds = [sum(epoch["seconds"] for epoch in log) for log in logs]
        assert float(line["seconds"]) == pytest.approx(fmean(seconds))
        assert 0.1 < float(line["memory_gb"]) < 20
        assert line["gpu_memory_gb"] == ""
    best = [read_state(run_of(out, "four", n) / "best").best_epoch for n in (0, 1)]
    aurocs = [log[epoch]["figures"]["auroc"] for log, epoch in zip(logs, best, strict=True)]
    assert float(line["auroc"]) == pytest.approx(fmean(aurocs))
    assert line_of(out, "one")["auroc"] == "", "SGR makes no division"


def test_the_auroc_is_of_the_best_epoch_and_memory_is_not_guessed(made, tiny, tmp_path):
    run = shutil.copytree(run_of(made[0], "four", 0), tmp_path / "seed-0")
    path = run / "last" / "state.json"
    state = json.loads(path.read_text())
    aurocs = [epoch["figures"]["auroc"] for epoch in state["history"]]
    assert aurocs[0] != aurocs[1]
    for best in (0, 1):
        path.write_text(json.dumps({**state, "best_epoch": best}))
        job = Assignment(
            release=tiny, run=run, settings=open_run(run).record.settings, title="four", threads=1
        )
        record = measure(job)
        assert record.auroc == aurocs[best]
        assert record.memory_gb is None, "this process trained nothing"


def test_the_board_takes_the_submissions_as_they_are(made, tiny):
    from leaderboard.store.entries import file_result

    out = made[0]
    for path in [*out.glob("jieba/*/seed-*.zip"), out / "jieba" / "one" / "seeds-0-1.zip"]:
        found = score(path, tiny)
        assert found == read_result(path.with_name(f"{path.name.removesuffix('.zip')}.result.json"))
        assert found.training.checkpoint_selection == "dev"
        assert file_result(out.parent / "store", found)[1], path
    assert found.references["chance"] == float(line_of(out, "Chance")["rsum"])


def test_what_is_done_is_not_done_again_and_the_table_is_the_same(
    made, tiny, tmp_path, monkeypatch, capsys
):
    out = shutil.copytree(made[0], tmp_path / "out")
    files = {path: path.stat().st_mtime_ns for path in out.glob("jieba/*/*") if path.is_file()}
    for left in (out / ".table.md.1.999999999.tmp", out / "jieba/lost/.seed-0.zip.1.999999999.tmp"):
        left.touch()  # of kills
    started = []

    def broken(_, tasks, slots, on_line):
        started.extend(task.name for task in tasks)
        return side_by_side(
            [sys.executable, "-c", "exit('error: again')"], tasks[:1], slots, on_line
        )

    monkeypatch.setattr(tables, "side_by_side", broken)
    outcome = tables.make_table(replace(work_of(tiny, made[0]), out=out))
    assert started == ["jieba/lost/seed-0", "jieba/lost/seed-1"]
    assert outcome.failures == {"jieba/lost/seed-0": "again"}

    def without_notes(text):
        return [line for line in text.splitlines() if not line.startswith("- ")]

    assert without_notes(outcome.markdown) == without_notes(made[1].stdout)
    changed = {path for path, time in files.items() if path.stat().st_mtime_ns != time}
    assert changed == {out / "jieba" / "lost" / "seed-0.log"}
    assert not list(out.rglob(".*.tmp"))
    assert "6 runs: 4 done, 2 to do" in capsys.readouterr().err


def test_two_tables_are_not_made_in_one_folder_at_once(tiny, tmp_path):
    """The one that ended last would lack the other's rows, and take its record of the memory."""
    with (
        locked(tmp_path / "out"),
        pytest.raises(ConfigError, match="another command is writing in this folder"),
    ):
        tables.make_table(work_of(tiny, tmp_path / "out"))


def test_a_dry_run_says_what_is_done_and_writes_nothing(made, tiny, tmp_path):
    out = made[0]
    work = work_of(tiny, out)
    lines = tables.dry_run(work).splitlines()
    assert lines[:3] == ["jieba/one/seed-0: done", "jieba/four/seed-0: done",
                         "jieba/lost/seed-0: to do"]  # fmt: skip
    assert lines[-1].startswith("6 runs: 4 done, 2 to do, 1 at a time")
    tables.dry_run(replace(work, out=tmp_path / "new"))
    assert list(tmp_path.iterdir()) == []
    assert tables.Progress(work).in_words(work.runs[2]) == "to do"


def test_a_record_of_another_training_does_not_count(made, tiny):
    work = work_of(tiny, made[0])
    run = work.runs[0]
    progress = tables.Progress(work)
    record = progress.measured(run)
    assert record.checkpoint == sha256_of(run.folder / "best" / "state.json")
    path = run.beside(".json")
    kept = path.read_text()
    try:
        path.write_text(kept.replace(record.checkpoint, "0" * 64))
        assert progress.measured(run) is None
        assert progress.in_words(run) == "goes on after epoch 2 of 2"
    finally:
        path.write_text(kept)


@pytest.mark.parametrize("ending", [".zip", ".one.result.json", ".json"])
def test_a_run_whose_files_are_gone_or_torn_is_scored_anew(made, tiny, tmp_path, ending):
    out = shutil.copytree(made[0], tmp_path / "out")
    whole = work_of(tiny, made[0])
    work = replace(whole, out=out, rows=whole.rows[1:2], seeds=[0])
    path = work.runs[0].beside(ending)
    kept = path.read_bytes()
    path.unlink()
    if ending == ".json":
        path.write_bytes(kept[:20])
    outcome = tables.make_table(work)
    assert not outcome.failures
    assert path.exists()
    assert line_of(out, "four")["rsum"] == line_of(made[0], "four")["rsum"]


def test_a_folder_with_runs_of_other_settings_is_refused_before_anything_starts(made, tiny):
    work = work_of(tiny, made[0])
    rows = [replace(work.rows[0], settings=read_settings("sgr", ["data.tokenizer=jieba"]))]
    with pytest.raises(ConfigError, match=r"one/seed-0: a run of other settings .*train.lr"):
        tables.make_table(replace(work, rows=rows))


def test_methods_and_seeds_of_an_earlier_table_stay_in_it(made, tiny, tmp_path, capsys):
    out = shutil.copytree(made[0], tmp_path / "out")
    work = replace(work_of(tiny, made[0]), out=out, seeds=[1])
    for rows, seeds in (  # by number, whichever was asked: neighbours are averaged
        (work.rows[:1], {"one": "0 1", "four": "0 1"}),
        (work.rows[1:2], {"four": "0 1", "one": "0 1"}),
    ):
        tables.make_table(replace(work, rows=rows))
        assert "1 runs: 1 done, 0 to do" in (said := capsys.readouterr().err)
        assert said.endswith("; 3 earlier ones stay in the table\n")
        scored = [line for line in lines_of(out) if line["evidence"] == "scored"]
        assert {line["method"]: line["seeds"] for line in scored} == seeds
        for method in ("one", "four"):
            assert line_of(out, method)["rsum"] == line_of(made[0], method)["rsum"]
    shutil.rmtree(out / "jieba" / "four")
    tables.make_table(replace(work, rows=work.rows[:1]))
    assert [line["method"] for line in lines_of(out)] == ["one", "Chance"]


def test_a_folder_with_runs_on_other_data_or_seeds_of_other_settings_is_refused(
    made, tiny, tmp_path
):
    work = work_of(tiny, made[0])
    plant(tmp_path / "other", Plan(train=24, dev=8, test=8, seed=5))
    other = replace(work, release=tmp_path / "other", rows=work.rows[2:])
    with pytest.raises(
        ConfigError, match=r"four/seed-0: not a finished run on .*other, whose table"
    ):
        tables.make_table(other)
    one = plan.rows_of_methods(methods_of(made[0])[:1])
    changed = plan.table_rows(tiny, one, [], ["train.lr=1e-4"])
    with pytest.raises(ConfigError, match=r"one/seed-0: a run of other settings .*train.lr"):
        tables.make_table(replace(work, rows=changed, seeds=[5]))


class Tables(HTMLParser):
    """The rows of a page's tables; every element that is opened is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.rows = [], []

    def handle_starttag(self, tag, attrs):
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([dict(attrs).get("class")])
        if tag in {"td", "th"}:
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def test_all_four_formats_hold_the_same_rows_and_can_be_read(made):
    out, done = made
    markdown = (out / "table.md").read_text()
    assert markdown == done.stdout
    assert markdown.endswith(f"{LEGEND}\n")
    cells = [row.split(" | ") for row in markdown.splitlines() if row.startswith("| ")]
    assert {len(row) for row in cells} == {len(cells[0])}
    page = Tables()
    page.feed((out / "table.html").read_text())
    assert not page.open
    assert [len(row) - 1 for row in page.rows] == [len(cells[0])] * (len(cells) - 1)
    classes = [row[0] for row in page.rows]
    assert classes == [None, "scored", "scored", "scored", "reference"]
    for row, same in zip(page.rows[1:], cells[2:], strict=True):
        plain = [cell.strip("| ").replace("**", "") for cell in same]
        assert [cell.strip() for cell in row[1:]] == plain
    assert [line["method"] for line in lines_of(out)] == ["one", "four", "lost", "Chance"]
    latex = (out / "table.tex").read_text()
    rows = [row for row in latex.splitlines() if row.endswith(r"\\")]
    widths = {
        len(re.findall(r"(?<!\\)&", row))
        + sum(int(n) - 1 for n in re.findall(r"multicolumn{(\d)", row))
        for row in rows
    }
    assert widths == {len(cells[0]) - 1}


def section(*lines):
    return Section("jieba", "NoW Jieba", lines)


def test_reported_rows_are_marked_and_never_rivals_of_ours():
    ours = Line("mine", "scored", 1, (0,), {name: MeanStd.of([10.0]) for name in SCORES})
    theirs = Line("a|b", "reported", 2, (), {"rsum": MeanStd.of([300.0])}, notes=("X 2024",))
    markdown, latex = to_markdown([section(ours, theirs)]), to_latex([section(ours, theirs)])
    assert "| mine | **10.0** |" in markdown
    assert re.search(r"\| a\\\|b \(reported\) \|[ |]* 300\.0 \|", markdown)
    assert "- a|b (reported): X 2024" in markdown
    assert r"\textbf{300.0}" not in latex


def test_beside_a_published_test_split_stand_the_rows_of_papers(made):
    result = read_result(made[0] / "jieba" / "one" / "seed-0.result.json")
    assert [line.evidence for line in other_lines(result)] == ["reference"]
    published = result.model_copy(
        update={"n_images": 1000, "n_pairs": 1000,
                "release": Release(origin="archive", fingerprint="0" * 64)}
    )  # fmt: skip
    lines = other_lines(published)
    assert [line.evidence for line in lines] == ["reported"] * 5 + ["reference"]
    pc2 = lines[0]
    assert (pc2.title, pc2.networks, pc2.figures["rsum"].mean) == ("PC²", 2, 163.9)
    assert [pc2.figures[name].mean for name in RECALLS] == [16.0, 29.5, 36.9, 15.5, 29.0, 37.0]
    assert pc2.notes == ("Duan et al. 2024, NoW table, Jieba",)


def test_the_test_is_on_the_mean_of_the_seeds(made):
    out, hits = made[0], {}
    for method in ("one", "four"):
        records = [
            read_result(out / "jieba" / method / f"seed-{n}.result.json").ranks for n in (0, 1)
        ]
        hits[method] = np.mean(
            [hits_per_image(*record.read(), record.owner()) for record in records], axis=0
        )
    worse, best = sorted(hits, key=lambda method: hits[method].mean())
    behind = 100 * (hits[best] - hits[worse]).mean()
    assert float(line_of(out, worse)["behind"]) == pytest.approx(behind)
    assert float(line_of(out, worse)["p"]) == pytest.approx(sign_flip(hits[best] - hits[worse]))
    assert float(line_of(out, best)["behind"]) == 0
    assert line_of(out, "lost")["p"] == ""


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("1", [0]), ("4,", [4]), ("0,7", [0, 7])]
)
def test_seeds_are_a_number_of_them_or_a_list(text, seeds):
    assert plan.read_seed_list(text) == seeds


@pytest.mark.parametrize("text", ["0", "x", "1,1", ""])
def test_seeds_that_are_neither_are_refused(text):
    with pytest.raises(ConfigError, match="--seeds"):
        plan.read_seed_list(text)


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
    with pytest.raises(ConfigError, match="expected one, or such as"):
        seen(["cuda:0", "cpu"])


def test_under_torchrun_a_table_is_refused_instead_of_made_by_every_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="started by torchrun; run it alone"):
        plan.make_slots([], 2)


def test_processes_at_a_time_share_the_cores(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    rows = plan.table_rows(tiny, [Row(name="sgr")], [], [])

    def threads(jobs):
        slots, _ = plan.make_slots([], jobs)
        return tables.dry_run(tables.Work(tiny, tmp_path, rows, [0], slots)).partition(" with ")[2]

    assert [threads(jobs) for jobs in (1, 4, 20)] == [
        "8 threads each", "4 threads each", "1 threads each",
    ]  # fmt: skip


def rows_on(release, methods, tokenizers=(), overrides=(), on=None):
    return plan.table_rows(release, plan.rows_of_methods(methods), tokenizers, overrides, on)


@pytest.mark.parametrize(
    ("data", "methods", "tokenizers", "on", "message"),
    [
        ("tiny", ["sgr", "sgr"], [], None, "sgr: two rows of this name"),
        ("tiny", [], [], None, "none, expected one or more"),
        ("tiny", ["x" * 61 + ".toml"], [], None, "name: expected at most 60 characters"),
        ("flickr", ["sgr"], ["bert"], "f30k", "--tokenizers: flickr30k has none"),
        ("tiny", ["sgr"], ["bert"], None, "--tokenizers bert: .* has jieba"),
        (
            "tiny",
            ["sgr"],
            ["jeiba"],
            None,
            "--tokenizers jeiba: .* has jieba, the nearest is jieba",
        ),
        (
            "tiny",
            ["bicroo"],
            [],
            None,
            "--methods bicroo: neither a file nor a preset, the nearest is bicro; `pc2-",
        ),
        ("tiny", ["sgr", "pc2-released"], [], "demo", "--on demo: no such section in pc2-released"),
    ],
)
def test_methods_that_do_not_go_together_are_refused(
    request, data, methods, tokenizers, on, message
):
    with pytest.raises(ConfigError, match=message):
        rows_on(request.getfixturevalue(data), methods, tokenizers, on=on)


def test_without_tokenizers_the_track_is_jieba_or_the_first_that_is_there(tiny, tmp_path):
    release = Path(shutil.copytree(tiny, tmp_path / "two"))
    captions = release / "now100k_precomp" / "test_caps_jieba.txt"
    shutil.copy(captions, captions.with_name("test_caps_bpe.txt"))
    assert [row.name for row in rows_on(release, ["sgr", "ridge"])] == ["jieba/sgr", "jieba/ridge"]
    assert len(rows_on(release, ["sgr", "ridge"], ["jieba", "bpe"])) == 4
    captions.unlink()
    assert [row.name for row in rows_on(release, ["sgr"])] == ["bpe/sgr"]
    captions.with_name("test_caps_bpe.txt").unlink()
    with pytest.raises(FormatError, match=r"no test_caps_jieba\.txt, nor of another tokenizer"):
        rows_on(release, ["sgr"])


def test_methods_are_rows_of_their_names_on_each_track(tiny, flickr):
    (row,) = rows_on(tiny, ["ridge"], [], ["train.lr=1e-3"], "demo")
    assert (row.name, row.settings.data.tokenizer) == ("jieba/ridge", "jieba")
    assert row.settings.train.lr == 1e-3
    assert [row.name for row in rows_on(flickr, ["pc2-paper"], on="f30k")] == [
        "flickr30k/pc2-paper"
    ]


def test_a_file_of_rows_sets_its_own_on_top_of_the_tables(tiny, flickr, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[[row]]\nname = "PC2 & all"\n'
        '[[row]]\nname = "sgr"\nset = ["method.name=triplet", "train.lr=1e-4"]\n'
        '[[row]]\nname = "ncr"\nconfig = "ncr"\non = "demo"\n'
    )
    rows = plan.rows_of_file(str(path))
    first, second, third = plan.table_rows(tiny, rows, [], ["train.lr=1e-3"], "planted")
    planted = read_settings("pc2-paper", ["train.lr=1e-3"], on="planted")
    assert (first.name, first.settings) == ("jieba/PC2 & all", planted)
    assert (second.settings.method.name, second.settings.train.lr) == ("triplet", 1e-4)
    assert second.settings.model == planted.model
    assert third.settings.method.mean_epochs == 14
    path.write_text('[[row]]\nname = "a"\n[[row]]\nname = "b"\non = "f30k"\n')
    with pytest.raises(ConfigError, match="a is for NoW, b is for flickr30k"):
        plan.table_rows(tiny, plan.rows_of_file(str(path)), [], [])
    path.write_text('[[row]]\nname = "bert"\nset = ["data.tokenizer=bert"]\n')
    with pytest.raises(ConfigError, match=r"data\.tokenizer is set, but .* --tokenizers"):
        plan.table_rows(tiny, plan.rows_of_file(str(path)), [], [])
    path.write_text('[[row]]\nname = "typo"\nset = ["method.rectifies=true"]\n')
    with pytest.raises(ConfigError, match=r"row typo: .*method.rectifies: .* method.rectify"):
        plan.table_rows(tiny, plan.rows_of_file(str(path)), [], [])
    path.write_text('[[row]]\nname = "a/b"\n')
    with pytest.raises(ConfigError, match=r"row\.0\.name"):
        plan.rows_of_file(str(path))
    with pytest.raises(
        ConfigError, match="one of ablations, sensitivity, the nearest is ablations"
    ):
        plan.rows_of_file("ablation")


@pytest.mark.parametrize("name", ["ablations", "sensitivity"])
def test_rows_that_come_with_the_package_differ_from_each_other(tiny, name):
    rows = plan.table_rows(tiny, plan.rows_of_file(name), [], [])
    assert len({row.settings.model_dump_json() for row in rows}) == len(rows) > 6
    assert rows[0].settings == read_settings(None, [])


def test_a_data_set_of_the_field_has_a_table_of_its_own(flickr, tmp_path, small_settings):
    own = [text for text in small_settings if not text.startswith("method.class")]
    quick = ["train.warmup_epochs=1", "train.epochs=0", "data.sentences=false"]
    overrides = ['data.name="f30k_precomp"', *own, *quick]
    settings = read_settings("sgr", overrides)
    run = GridRun("flickr30k/sgr", 0, tmp_path / "flickr30k" / "sgr" / "seed-0", settings)
    record = measure(
        Assignment(release=flickr, run=run.folder, settings=settings, title="sgr", threads=1)
    )
    (found,) = make_sections(flickr, [RowRuns("flickr30k", "sgr", [(run, record)], {})])
    assert re.fullmatch(r"Flickr30K: .*, test split, 6 images, 30 captions", found.title)
    assert [line.title for line in found.lines] == ["sgr", "Chance"]
    assert found.lines[0].figures["rsum"].mean == record.rsum
    assert "two_networks_rsum" not in found.lines[0].figures, "of one seed"
