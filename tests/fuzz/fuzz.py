"""Fuzz readers of files that strangers made: mutated files, guided by the coverage of the code.

``python tests/fuzz/fuzz.py FOLDER SECONDS READER...`` fuzzes each reader for so many seconds and
keeps in ``FOLDER/READER`` what it learned (``corpus/``), what broke the reader (``findings/``) and
what killed or stalled the process (``crash-*``, ``timeout-*``, ``oom-*``). It exits with 1 if
anything did. ``python tests/fuzz/fuzz.py --replay READER FILE...`` reads such inputs again.
"""

import hashlib
import importlib
import re
import resource
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

READERS = ("pages", "submissions", "feature_files", "releases", "brought", "trainings")
SLOW = 10.0
"""Seconds of CPU within which any input must be read."""
GREEDY = 512
"""MiB by which the process may grow over its size after the seeds."""
_PACKAGES = ["now_builder", "pc2_baseline", "leaderboard", "webencodings", "tarfile", "tomllib"]
_OPTIONS = ("-timeout=30", "-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1")
_EXECUTED = re.compile(r"stat::number_of_executed_units:\s+(\d+)")
_COVERED = re.compile(r"cov: (\d+)")


def load(name: str) -> Any:
    """Import a reader: a module, or the ``READER`` of one."""
    module = importlib.import_module(name)
    return getattr(module, "READER", module)


class Watched:
    """A reader that is called with one input after another; keeps the inputs that break it."""

    def __init__(self, reader: Any, findings: Path) -> None:
        self._reader, self._findings = reader, findings
        self._peak = 0
        findings.mkdir(parents=True, exist_ok=True)

    def warm_up(self) -> None:
        """Read the seeds, which must not break anything, and note the size of the process."""
        for seed in self._reader.seeds():
            self._reader.read(seed)
        self._peak = _peak()

    def __call__(self, content: bytes) -> None:
        """Read one input."""
        problem = _problem(self._reader, content)
        peak = _peak()
        if self._peak and peak > self._peak + GREEDY:
            problem = problem or f"MemoryPeak {peak - self._peak} MiB"
            self._peak = peak
        if problem:
            self._keep(problem, content)

    def _keep(self, problem: str, content: bytes) -> None:
        """Keep the shortest input for each problem."""
        name = hashlib.sha256(re.sub(r"\d+", "", problem.splitlines()[0]).encode()).hexdigest()[:12]
        path = self._findings / name
        if not path.exists() or path.stat().st_size > len(content):
            path.write_bytes(content)
            path.with_suffix(".txt").write_text(problem, encoding="utf-8", errors="replace")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _problem(reader: Any, content: bytes) -> str:
    """Read one input and say what is wrong with how that ended; its first line names the kind."""
    started = time.process_time()
    try:
        reader.read(content)
    except reader.ERRORS as error:
        if not str(error).isprintable() or len(str(error)) > 4000:
            return f"Message {_place(error)}\n{str(error)[:8000]!r}"
    except Exception as error:  # noqa: BLE001 - whatever it may be, it is what is looked for
        return f"{type(error).__name__} {_place(error)}\n{traceback.format_exc()}"
    taken = time.process_time() - started
    return f"Slow\n{taken:.1f} s of CPU" if taken > SLOW else ""


def _place(error: BaseException) -> str:
    """Name the innermost place in the project where an error came from."""
    frames = [
        f"{frame.filename.rpartition('/')[2]} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
        if re.search("/(now_builder|pc2_baseline|leaderboard)/", frame.filename)
    ]
    return frames[-1] if frames else "outside the project"


def _fuzz_here(name: str, folder: Path, seconds: int) -> None:
    """Fuzz in this process; the fuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=_PACKAGES):
        reader = load(name)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(reader.seeds()):
        (corpus / f"seed-{number:03d}").write_bytes(seed)
    watched = Watched(reader, folder / "findings")
    watched.warm_up()
    options = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/", *_OPTIONS]
    options += [f"-max_len={reader.LONGEST}"]
    atheris.Setup([sys.argv[0], str(corpus), *options], watched, custom_mutator=reader.mutate)
    atheris.Fuzz()


def _fuzz(name: str, folder: Path, seconds: int) -> bool:
    """Fuzz in processes of their own until the time is over; return whether nothing broke."""
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    executed = covered = processes = 0
    with (folder / "log").open("a", encoding="utf-8", errors="replace") as log:
        while (left := int(ends - time.monotonic())) > 0:
            processes += 1
            command = [sys.executable, __file__, "--here", name, str(folder), str(left)]
            done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
            text = done.stderr.decode(errors="replace")
            log.write(text)
            log.flush()
            executed += sum(map(int, _EXECUTED.findall(text)))
            covered = max([covered, *map(int, _COVERED.findall(text))])
            if not _COVERED.search(text):
                sys.exit(f"{name}: the fuzzer does not start\n{text}")
    broken = sorted((folder / "findings").glob("*.txt"))
    killed = [path for kind in ("crash", "timeout", "oom") for path in folder.glob(f"{kind}-*")]
    print(  # noqa: T201 - what the command is for
        f"{name}: {executed} executions, {covered} edges, {processes} processes, "
        f"{len(broken)} findings, {len(killed)} kills"
    )
    for path in broken:
        print(f"  {path.with_suffix('')}: {path.read_text().splitlines()[0]}")  # noqa: T201
    for path in killed:
        print(f"  {path}")  # noqa: T201
    return not broken and not killed


def _replay(name: str, paths: list[str]) -> bool:
    """Read kept inputs again and print what is wrong with each; return whether nothing is."""
    reader = load(name)
    good = True
    for path in paths:
        problem = _problem(reader, Path(path).read_bytes())
        good = good and not problem
        if problem:
            print(f"{path}: {problem}")  # noqa: T201
    return good


def main(arguments: list[str]) -> bool:
    """Run the command; see the module."""
    if arguments[0] == "--here":
        _fuzz_here(arguments[1], Path(arguments[2]), int(arguments[3]))
    if arguments[0] == "--replay":
        return _replay(arguments[1], arguments[2:])
    folder, seconds, *names = arguments
    return not [
        name for name in names or READERS if not _fuzz(name, Path(folder) / name, int(seconds))
    ]


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1:]))
