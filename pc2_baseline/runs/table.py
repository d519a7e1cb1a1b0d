"""A benchmark's table in one command: methods by tokenizers, some seeds each."""

import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue

import torch

from now_builder.config import build
from now_builder.errors import ConfigError, FormatError, NowError
from now_builder.formats.io import (
    read_json,
    refuse_folder_of_others,
    remove_leftovers,
    sha256_of,
)
from pc2_baseline.config import Settings
from pc2_baseline.data.readers import DataIdentity, check_layout, identify, make_reader
from pc2_baseline.progress import say
from pc2_baseline.runs.measured_run import SPLIT, Assignment, Measured, beside, measure
from pc2_baseline.runs.table_files import write_table
from pc2_baseline.runs.table_plan import Environment, TableRow
from pc2_baseline.runs.train import finished, with_seed
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.run_folder import BEST, LAST, other_settings, read_run, refuse_round
from pc2_baseline.training.trainer import locked

COMMAND = (sys.executable, "-m", "pc2_baseline.runs.measured_run")


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a table, in the folder ``OUT/TRACK/METHOD/seed-N``."""

    folder: Path
    settings: Settings = field(compare=False)

    @property
    def row(self) -> tuple[str, str]:
        """Track and method."""
        return self.folder.parent.parent.name, self.folder.parent.name

    @property
    def name(self) -> str:
        """Name in messages."""
        return "/".join([*self.row, self.folder.name])


@dataclass(frozen=True, slots=True)
class Work:
    """The runs of a table, and a slot for each process at a time."""

    release: Path
    out: Path
    rows: Sequence[TableRow]
    seeds: Sequence[int]
    slots: Sequence[Environment]

    @property
    def runs(self) -> list[Run]:
        """All runs, the first seed of every row first."""
        return [
            Run(self.out / row.track / row.title / f"seed-{seed}", with_seed(row.settings, seed))
            for seed in self.seeds
            for row in self.rows
        ]

    @property
    def threads(self) -> int:
        """Threads of each process."""
        share = (os.cpu_count() or 1) // len(self.slots)
        return max(1, min(share, torch.get_num_threads()))  # OMP_NUM_THREADS may ask for fewer


@dataclass(frozen=True, slots=True)
class Outcome:
    """The Markdown of a table, and why each run that failed did."""

    markdown: str
    failures: dict[str, str]


def make_table(work: Work) -> Outcome:
    """Train and score all runs that are not finished, then write the table.

    With one slot, everything is trained in this process. The table is written again after every
    run, of all finished runs in its folder, those of earlier calls included. A run that fails
    becomes a note of its row, and the others go on; it is tried again by the next call.

    Raises:
        ConfigError: If a run's folder holds a run of other settings or on other data, or another
            table is being made in this one, which would lack these rows.
        FormatError: If the release cannot be read, or its test split is a blind round.
    """
    done, earlier = _look(work)
    with locked(work.out):
        for folder in (work.out, *work.out.glob("*/*/")):
            remove_leftovers(folder)
        say(_contents(work))
        say(_plan(work, len(done), len(earlier)))
        left, failures = [run for run in work.runs if run not in done], dict[Run, str]()
        with closing(_trained(work, left)) as ended:
            for run, failure in ended:
                record = None if failure else _read(run)
                if record is None:
                    failures[run] = failure or f"left no record; {run.folder}"
                    words = f"failed: {failures[run]}"
                else:
                    done[run] = record
                    words = f"rSum {record.rsum:.1f}, {record.seconds:.0f} s"
                failed = f", {len(failures)} failed" if failures else ""
                to_do = len(work.runs) - len(done) - len(failures)
                say(f"{run.name}: {words} ({len(done)} done, {to_do} to do{failed})")
                _write(work, done, earlier, failures)
        markdown = _write(work, done, earlier, failures)
    return Outcome(markdown, {run.name: why for run, why in failures.items()})


def dry_run(work: Work) -> str:
    """Return the plan of :func:`make_table`: a line a run, and their number; write nothing."""
    done, earlier = _look(work)
    lines = []
    for run in work.runs:
        state = "done" if run in done else "to do"
        if run not in done and (run.folder / LAST / STATE).exists():
            epochs = read_state(run.folder / LAST).epoch + 1
            state = f"goes on after epoch {epochs} of {run.settings.train.total_epochs}"
        lines.append(f"{run.name}: {state}")
    return "\n".join([*lines, _contents(work), _plan(work, len(done), len(earlier))])


def _look(work: Work) -> tuple[dict[Run, Measured], dict[Run, Measured]]:
    """Return the finished runs that are asked for, and others in the folder of the table."""
    refuse_round(work.release, SPLIT)
    refuse_folder_of_others(work.out)
    asked = {run.folder: run for run in work.runs}
    rows = {(row.track, row.title): row.settings for row in work.rows}

    @cache
    def identity(text: str) -> DataIdentity:
        own = Settings.model_validate_json(text)
        check_layout(work.release, own.data)
        return identify(make_reader(work.release, own.data, own.model), reads=own.reads)

    def is_done(run: Run) -> bool:
        own = with_seed(run.settings, 0).model_dump_json()
        return finished(run.folder, identity(own), run.settings) is not None

    done, earlier = dict[Run, Measured](), dict[Run, Measured]()
    for path in sorted(work.out.glob("*/*/seed-*/run.toml")):
        run = Run(path.parent, read_run(path.parent).settings)
        wanted = with_seed(rows.get(run.row, run.settings), run.settings.train.seed)
        if run.settings != wanted:
            problem = other_settings(run.settings, wanted)
            raise ConfigError(f"{run.folder}: {problem}; give another OUT, or remove it")
        record = _read(run)
        if run.folder in asked:
            if record and is_done(run):
                done[asked[run.folder]] = record
        elif beside(run.folder, ".json").exists():
            try:
                same = record is not None and is_done(run)
            except FormatError:  # another data set
                same = False
            if record is None or not same:
                problem = f"not a finished run on {work.release}, whose table it would be in"
                raise ConfigError(f"{run.folder}: {problem}; give another OUT, or remove it")
            earlier[run] = record
    return done, earlier


def _read(run: Run) -> Measured | None:
    """Return the record of a run whose files are all there and of its best epoch, or ``None``."""
    path, best = beside(run.folder, ".json"), run.folder / BEST / STATE
    files = [path, best, *(beside(run.folder, ending) for ending in (".zip", ".result.json"))]
    if not all(file.exists() for file in files):
        return None
    try:
        record = build(Measured, read_json(path, "no record"), str(path))
    except (ConfigError, FormatError):  # torn, or of another version: it is scored again
        return None
    return record if record.checkpoint == sha256_of(best) else None


def _contents(work: Work) -> str:
    """Return the rows, tracks and seeds of a table, and the options that choose them."""
    titles = ", ".join(dict.fromkeys(row.title for row in work.rows))
    tracks = ", ".join(dict.fromkeys(row.track for row in work.rows))
    epochs = sum(run.settings.train.total_epochs for run in work.runs)
    return (
        f"{work.out}: {titles}; tokenizers {tracks}; seeds {', '.join(map(str, work.seeds))}; "
        f"{epochs} epochs in all (--methods, --tokenizers, --seeds)"
    )


def _plan(work: Work, done: int, earlier: int) -> str:
    kept = f"; {earlier} earlier ones stay in the table" if earlier else ""
    return (
        f"{len(work.runs)} runs: {done} done, {len(work.runs) - done} to do, "
        f"{len(work.slots)} at a time with {work.threads} threads each{kept}"
    )


def _trained(work: Work, runs: Sequence[Run]) -> Generator[tuple[Run, str | None]]:
    """Train and measure runs; yield each that has ended, and why it failed."""

    def job_of(run: Run) -> Assignment:
        return Assignment(
            release=work.release, run=run.folder, settings=run.settings, title=run.row[1],
            threads=work.threads,
        )  # fmt: skip

    if work.slots == [{}]:
        for run in runs:
            try:
                measure(job_of(run))
            except (NowError, torch.OutOfMemoryError) as error:
                yield run, str(error)
            else:
                yield run, None
        return
    free: SimpleQueue[Environment] = SimpleQueue()
    for slot in work.slots:
        free.put(slot)

    def in_process(run: Run) -> str | None:
        slot = free.get()
        try:
            return _in_process(job_of(run), beside(run.folder, ".log"), slot)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(len(work.slots)) as pool:
        running = {pool.submit(in_process, run): run for run in runs}
        try:
            for ended in as_completed(running):
                yield running[ended], ended.result()
        finally:  # Ctrl-C reaches the processes as well, and they end
            pool.shutdown(cancel_futures=True)


def _in_process(job: Assignment, log: Path, slot: Environment) -> str | None:
    """Run :func:`measure` in a process of its own; return why it failed: its last line, if so."""
    log.parent.mkdir(parents=True, exist_ok=True)
    message = f"{job.model_dump_json()}\n".encode()
    with (
        log.open("wb") as output,
        subprocess.Popen(
            COMMAND, bufsize=0, stdin=subprocess.PIPE, stdout=output, stderr=output,
            env={**os.environ, **slot},
        ) as process,
    ):  # fmt: skip
        if process.stdin is not None:  # held open: the process ends when this one does
            with suppress(BrokenPipeError):  # it has ended at once; its log says why
                process.stdin.write(message)
        code = process.wait()
    if not code:
        return None
    if code < 0:
        return f"ended by signal {-code}, perhaps out of memory; {log}"
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}; {log}")
    return last.removeprefix("error: ").strip()


def _write(
    work: Work, done: dict[Run, Measured], earlier: dict[Run, Measured], failures: dict[Run, str]
) -> str:
    """Write the table of all finished runs, the rows that are asked for first."""
    every = sorted([*done.items(), *earlier.items()], key=lambda one: one[0].settings.train.seed)
    runs = [(*run.row, run.settings.train.seed, run.folder, record) for run, record in every]
    notes = [(run.row, f"seed {run.settings.train.seed} failed: {why}")
             for run, why in failures.items()]  # fmt: skip
    asked = [(row.track, row.title) for row in work.rows]
    return write_table(work.out, work.release, asked, runs, notes)
