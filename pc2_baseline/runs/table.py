"""A benchmark's table in one command: methods by tokenizers, some seeds each, side by side."""

import os
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from now_builder.config import build
from now_builder.errors import ConfigError, FormatError
from now_builder.formats.io import (
    read_json,
    refuse_folder_of_others,
    remove_leftovers,
    sha256_of,
)
from pc2_baseline.config import DataSettings, ModelSettings
from pc2_baseline.data.readers import DataIdentity, check_layout, identify, make_reader
from pc2_baseline.progress import say
from pc2_baseline.runs.measured_run import SPLIT, Assignment, Measured
from pc2_baseline.runs.series import GridRun, seed_folder, with_seed
from pc2_baseline.runs.side_by_side import Environment, Task, side_by_side
from pc2_baseline.runs.table_files import write_table
from pc2_baseline.runs.table_plan import TableRow
from pc2_baseline.runs.table_rows import RowRuns, make_sections
from pc2_baseline.runs.train import finished
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.run_folder import BEST, LAST, other_settings, read_run, refuse_round
from pc2_baseline.training.trainer import locked

COMMAND = (sys.executable, "-m", "pc2_baseline.runs.measured_run")


@dataclass(frozen=True, slots=True)
class Work:
    """The runs of a table, in ``out/TRACK/ROW/seed-N``, and a slot for each process at a time."""

    release: Path
    out: Path
    rows: Sequence[TableRow]
    seeds: Sequence[int]
    slots: Sequence[Environment]

    @property
    def runs(self) -> list[GridRun]:
        """All runs, the first seed of every row first."""
        return [
            GridRun(
                row.name,
                seed,
                self.out / row.name / seed_folder(seed),
                with_seed(row.settings, seed),
            )
            for seed in self.seeds
            for row in self.rows
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The Markdown of a table, and why each run that failed did."""

    markdown: str
    failures: dict[str, str]


class Progress:
    """State of each run of a table.

    Attributes:
        earlier: Finished runs in the table's folder that it does not ask for, and their records.

    Raises:
        ConfigError: If a run's folder holds a run of other settings or on other data, or another
            command made the table's.
        FormatError: If the release cannot be read, or its test split is a blind round.
    """

    def __init__(self, work: Work) -> None:
        refuse_round(work.release, SPLIT)
        refuse_folder_of_others(work.out)
        self._identity = cache(_identity)
        self._release = work.release
        asked = work.runs
        there = _runs_in(work.out)
        settings = {row.name: row.settings for row in work.rows}
        for run in there:
            wanted = with_seed(settings.get(run.row, run.settings), run.seed)
            if run.settings != wanted:
                problem = other_settings(run.settings, wanted)
                raise ConfigError(f"{run.folder}: {problem}; give another OUT, or remove it")
        known = {run.folder for run in asked}
        others = [run for run in there if run.folder not in known and run.beside(".json").exists()]
        self.earlier = [(run, self._of_these_data(run)) for run in others]

    def measured(self, run: GridRun) -> Measured | None:
        """Return the record of a finished run whose files are all there, or ``None``."""
        path = run.beside(".json")
        if not path.exists():
            return None
        own = run.settings
        identity = self._identity(self._release, own.data, own.model, own.reads)
        if finished(run.folder, identity, run.settings) is None:
            return None
        try:
            record = build(Measured, read_json(path, "no record"), str(path))
        except (ConfigError, FormatError):  # torn, or of another version: it is scored anew
            return None
        endings = [f"{part}{kind}" for part in record.scored for kind in (".zip", ".result.json")]
        if not all(run.beside(ending).exists() for ending in endings):
            return None
        return record if record.checkpoint == sha256_of(run.folder / BEST / STATE) else None

    def _of_these_data(self, run: GridRun) -> Measured:
        try:
            found = self.measured(run)
        except FormatError:  # another data set
            found = None
        if found is None:
            problem = f"not a finished run on {self._release}, whose table it would be in"
            raise ConfigError(f"{run.folder}: {problem}; give another OUT, or remove it")
        return found

    def in_words(self, run: GridRun) -> str:
        """Return ``done``, ``to do``, or how many epochs are done."""
        if self.measured(run):
            return "done"
        if not (run.folder / LAST / STATE).exists():
            return "to do"
        epochs = read_state(run.folder / LAST).epoch + 1
        return f"goes on after epoch {epochs} of {run.settings.train.total_epochs}"


def _runs_in(out: Path) -> list[GridRun]:
    """List the runs in the folder of a table, by row and seed."""
    folders = [path.parent for path in out.glob("*/*/seed-*/run.toml")]
    runs = []
    for folder in folders:
        settings = read_run(folder).settings
        row = f"{folder.parent.parent.name}/{folder.parent.name}"
        runs.append(GridRun(row, settings.train.seed, folder, settings))
    return sorted(runs, key=lambda run: (run.row, run.seed))


def _identity(  # cached
    release: Path,
    data: DataSettings,
    model: ModelSettings,
    reads: bool,  # noqa: FBT001
) -> DataIdentity:
    check_layout(release, data)
    return identify(make_reader(release, data, model), reads=reads)


def dry_run(work: Work) -> str:
    """Return the plan of :func:`make_table`: a line a run, and their number; write nothing."""
    progress = Progress(work)
    words = {run.name: progress.in_words(run) for run in work.runs}
    done = list(words.values()).count("done")
    lines = [f"{name}: {state}" for name, state in words.items()]
    return "\n".join([*lines, _contents(work), _plan(work, progress, done)])


def _plan(work: Work, progress: Progress, done: int) -> str:
    kept = f"; {len(progress.earlier)} earlier ones stay in the table" if progress.earlier else ""
    runs = len(work.runs)
    return (
        f"{runs} runs: {done} done, {runs - done} to do, "
        f"{len(work.slots)} at a time with {_threads(work)} threads each{kept}"
    )


def _contents(work: Work) -> str:
    """Return the rows, tracks and seeds of a table, and the options that choose them."""
    titles = ", ".join(dict.fromkeys(row.title for row in work.rows))
    tracks = ", ".join(dict.fromkeys(row.track for row in work.rows))
    epochs = sum(run.settings.train.total_epochs for run in work.runs)
    return (
        f"{work.out}: {titles}; tokenizers {tracks}; seeds {', '.join(map(str, work.seeds))}; "
        f"{epochs} epochs in all (--methods, --tokenizers, --seeds)"
    )


def _say_epoch(name: str, line: str) -> None:
    if line.startswith("epoch "):
        say(f"{name}: {line}")


def make_table(work: Work) -> Outcome:
    """Train and score all runs that are not finished, then write the table.

    The table is written anew after every run, of what there is in its folder, finished runs of
    earlier calls included. A run that fails becomes a note of its row, and the others go on; it is
    tried again by the next call.

    Raises:
        ConfigError: If a run's folder holds a run of other settings, or another table is being made
            in this one, which would lack these rows.
        FormatError: If the release cannot be read, or its test split is a blind round.
    """
    progress = Progress(work)
    with locked(work.out):
        return _make(work, progress)


def _make(work: Work, progress: Progress) -> Outcome:
    for folder in (work.out, *work.out.glob("*/*/")):
        remove_leftovers(folder)
    runs = {run.name: run for run in work.runs}
    done = {name: found for name, run in runs.items() if (found := progress.measured(run))}
    left = [run for name, run in runs.items() if name not in done]
    failures: dict[str, str] = {}
    say(_contents(work))
    say(_plan(work, progress, len(done)))
    tasks = [_task(work, run) for run in left]
    with closing(side_by_side(COMMAND, tasks, work.slots, _say_epoch)) as ended:
        for task in ended:
            measured = None if task.failure else progress.measured(runs[task.name])
            if measured is None:
                failures[task.name] = task.failure or f"left no record; {runs[task.name].folder}"
                words = f"failed: {failures[task.name]}"
            else:
                done[task.name] = measured
                words = f"rSum {measured.rsum:.1f}, {measured.seconds:.0f} s"
            failed = f", {len(failures)} failed" if failures else ""
            counts = f"{len(done)} done, {task.running} running, {task.waiting} to do{failed}"
            say(f"{task.name}: {words} ({counts})")
            _write(work, progress, done, failures)
    return Outcome(_write(work, progress, done, failures), failures)


def _task(work: Work, run: GridRun) -> Task:
    title = run.row.rpartition("/")[2]
    job = Assignment(
        release=work.release, run=run.folder, settings=run.settings, title=title,
        threads=_threads(work),
    )  # fmt: skip
    return Task(run.name, job.model_dump_json(), run.beside(".log"))


def _threads(work: Work) -> int:
    share = (os.cpu_count() or 1) // len(work.slots)
    return max(1, min(share, torch.get_num_threads()))  # OMP_NUM_THREADS may ask for fewer


def _write(
    work: Work, progress: Progress, done: dict[str, Measured], failures: dict[str, str]
) -> str:
    finished = [(run, done[run.name]) for run in work.runs if run.name in done]
    every = sorted([*finished, *progress.earlier], key=lambda pair: pair[0].seed)
    rows = []
    for name in dict.fromkeys([*(row.name for row in work.rows), *(run.row for run, _ in every)]):
        track, _, title = name.partition("/")
        failed = {
            run.seed: failures[run.name]
            for run in work.runs
            if run.row == name and run.name in failures
        }
        rows.append(RowRuns(track, title, [pair for pair in every if pair[0].row == name], failed))
    return write_table(work.out, make_sections(work.release, rows))
