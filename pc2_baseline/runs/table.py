"""Train and score all runs of a table: methods, tokenizers and seeds."""

import os
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue

import torch

from now_builder.config import build
from now_builder.errors import ConfigError, FormatError, NowError, TrainingError
from now_builder.formats.io import check_folder_is_ours, read_json, remove_leftovers, sha256_of
from pc2_baseline.config import Settings
from pc2_baseline.data.readers import DataIdentity, check_layout, identify, make_reader
from pc2_baseline.progress import say
from pc2_baseline.runs.measured_run import SPLIT, Measured, Run, measure, sibling, with_seed
from pc2_baseline.runs.table_files import write_table
from pc2_baseline.runs.table_plan import Environment
from pc2_baseline.runs.train import finished
from pc2_baseline.training.checkpoint import STATE, read_state
from pc2_baseline.training.run_folder import BEST, LAST, read_run, refuse_round, settings_mismatch
from pc2_baseline.training.trainer import lock_run


@dataclass(frozen=True, slots=True)
class Work:
    """Plan of a table: settings by track and method, seeds, and a slot for each process."""

    release: Path
    out: Path
    rows: Mapping[tuple[str, str], Settings]
    seeds: Sequence[int]
    slots: Sequence[Environment]

    @property
    def runs(self) -> list[Run]:
        """All runs; those with the first seed of every row come first."""
        return [
            Run(self.out / track / method / f"seed-{seed}", with_seed(settings, seed))
            for seed in self.seeds
            for (track, method), settings in self.rows.items()
        ]

    @property
    def threads(self) -> int:
        """Threads of each process."""
        share = (os.cpu_count() or 1) // len(self.slots)
        return max(1, min(share, torch.get_num_threads()))  # OMP_NUM_THREADS may ask for fewer


def make_table(work: Work) -> tuple[str, dict[str, str]]:
    """Train and score all unfinished runs, then write the table.

    With one slot, runs are trained in this process. The table is written after every run, with all
    finished runs in its folder, also of earlier calls. A failed run becomes a note of its row; the
    others continue, and the next call retries it.

    Returns:
        The Markdown of the table, and the reasons of failed runs by name.

    Raises:
        ConfigError: If a run's folder has a run with other settings or data, or another process
            is making a table in the same folder.
        FormatError: If the release's test split is a blind round.
    """
    records = _finished(work)
    to_do = [run for run in work.runs if run not in records]
    failures: dict[Run, str] = {}
    with lock_run(work.out):
        for folder in (work.out, *work.out.glob("*/*/")):
            remove_leftovers(folder)
        say(_plan(work, records))
        with closing(_outcomes(work, to_do)) as outcomes:
            for ended, (run, failure) in enumerate(outcomes, 1):
                record = None if failure else _read(run)
                if record is None:
                    failures[run] = failure or f"left no record; {run.folder}"
                    words = f"failed: {failures[run]}"
                else:
                    records[run] = record
                    words = f"rSum {record.rsum:.1f}, {record.seconds:.0f} s"
                say(f"{run.name}: {words} ({len(to_do) - ended} to do, {len(failures)} failed)")
                write_table(work.out, work.release, list(work.rows), records, failures)
        markdown = write_table(work.out, work.release, list(work.rows), records, failures)
    return markdown, {run.name: why for run, why in failures.items()}


def dry_run(work: Work) -> str:
    """Return the plan of :func:`make_table`, a line for each run; write nothing."""
    records = _finished(work)
    lines = []
    for run in work.runs:
        state = "done" if run in records else "to do"
        if run not in records and (run.folder / LAST / STATE).exists():
            epochs = read_state(run.folder / LAST).epoch + 1
            state = f"resumes after epoch {epochs} of {run.settings.train.total_epochs}"
        lines.append(f"{run.name}: {state}")
    return "\n".join([*lines, _plan(work, records)])


def _plan(work: Work, records: Mapping[Run, Measured]) -> str:
    """Describe the table, the options that choose its rows, and its progress."""
    tracks, methods = (", ".join(dict.fromkeys(names)) for names in zip(*work.rows, strict=True))
    epochs = sum(run.settings.train.total_epochs for run in work.runs)
    done = sum(run in records for run in work.runs)
    kept = f"; {len(records) - done} earlier ones stay in the table" * (len(records) > done)
    return (
        f"{work.out}: {methods}; tokenizers {tracks}; seeds {', '.join(map(str, work.seeds))}; "
        f"{epochs} epochs in all (--methods, --tokenizers, --seeds)\n"
        f"{len(work.runs)} runs: {done} done, {len(work.runs) - done} to do, "
        f"{len(work.slots)} at a time with {work.threads} threads each{kept}"
    )


def _finished(work: Work) -> dict[Run, Measured]:
    """Return the records of finished runs in the folder of the table, also of earlier tables."""
    refuse_round(work.release, SPLIT)
    check_folder_is_ours(work.out)

    @cache
    def identity(text: str) -> DataIdentity:
        settings = Settings.model_validate_json(text)
        check_layout(work.release, settings.data)
        reader = make_reader(work.release, settings.data, settings.model)
        return identify(reader, reads=settings.reads)

    def is_finished(run: Run) -> bool:
        text = with_seed(run.settings, 0).model_dump_json()  # so that seeds share the cache
        try:
            return finished(run.folder, identity(text), run.settings) is not None
        except FormatError:  # another data set
            return False

    records = {}
    for path in sorted(work.out.glob("*/*/seed-*/run.toml")):
        run = Run(path.parent, read_run(path.parent).settings)
        settings = with_seed(work.rows.get(run.row, run.settings), run.settings.train.seed)
        problem = settings_mismatch(run.settings, settings) if run.settings != settings else ""
        record = _read(run)
        if record and is_finished(run):
            records[run] = record
        elif run not in work.runs and sibling(run.folder, ".json").exists():
            problem = f"not a finished run on {work.release}"
        if problem:
            raise ConfigError(f"{run.folder}: {problem}; give another OUT, or remove it")
    return records


def _read(run: Run) -> Measured | None:
    """Return the record of a run if all its files exist and are of its best epoch."""
    path, best = sibling(run.folder, ".json"), run.folder / BEST / STATE
    files = [path, best, *(sibling(run.folder, ending) for ending in (".zip", ".result.json"))]
    if not all(file.exists() for file in files):
        return None
    try:
        record = build(Measured, read_json(path, "no record"), str(path))
    except (ConfigError, FormatError):  # damaged, or of another version: score the run again
        return None
    return record if record.checkpoint == sha256_of(best) else None


def _outcomes(work: Work, runs: Sequence[Run]) -> Generator[tuple[Run, str | None]]:
    """Train and measure runs; yield each finished one, with the reason if it failed."""
    if work.slots == [{}]:
        for run in runs:
            failure = None
            try:
                measure(work.release, run.folder, run.settings, run.row[1])
            except (NowError, torch.OutOfMemoryError) as error:
                failure = str(error)
            yield run, failure
        return
    free: SimpleQueue[Environment] = SimpleQueue()
    for slot in work.slots:
        free.put(slot)

    def in_slot(run: Run) -> None:
        slot = free.get()
        try:
            in_process(work.release, run, work.threads, slot)
        finally:
            free.put(slot)

    with ThreadPoolExecutor(len(work.slots)) as pool:
        futures = {pool.submit(in_slot, run): run for run in runs}
        try:
            for future in as_completed(futures):
                yield futures[future], str(future.exception() or "") or None
        finally:  # the terminal sends Ctrl-C to the processes too
            pool.shutdown(cancel_futures=True)


def in_process(release: Path, run: Run, threads: int, slot: Environment) -> None:
    """Train and measure a run in its own process, with its messages in ``seed-N.log``."""
    log = sibling(run.folder, ".log")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    process = SpawnProcess(target=_child, args=(release, run, threads, dict(slot), log))
    process.start()
    process.join()
    code = process.exitcode or 0
    if code < 0:
        raise TrainingError(f"ended by signal {-code}, perhaps out of memory; {log}")
    if code:
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        last = next((line for line in reversed(lines) if line.strip()), f"exit code {code}; {log}")
        raise TrainingError(last.removeprefix("error: ").strip())


def _child(release: Path, run: Run, threads: int, slot: dict[str, str], log: Path) -> None:
    """Train and measure a run; exit if the parent process ends."""
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    os.environ.update(slot)
    torch.set_num_threads(threads)

    def end_with_parent() -> None:
        if parent := parent_process():
            parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        measure(release, run.folder, run.settings, run.row[1])
    except NowError as error:
        sys.exit(f"error: {error}")
