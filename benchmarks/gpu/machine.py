"""The machine of a check: its description, and measurements of time and memory."""

import os
import platform
import resource
import statistics
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.report import Figure, Goal, Report, Table, reason_of

ROOT = Path(__file__).parents[2]
KERNELS = 15
"""Rows of a profile."""


@dataclass
class Check:
    """A part of a check while it runs.

    Attributes:
        tiny: Whether it is a rehearsal: everything once, with the smallest sizes.
        command: Command that repeats the part.
        limit_s: Time limit of the part in seconds.
        begun: Start of the part by :func:`time.monotonic`.
        broken: Names of the pieces that failed.
    """

    part: str
    device: torch.device
    tiny: bool
    report: Report
    command: str
    limit_s: float
    begun: float
    broken: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: float | None, unit: str, goal: Goal | None = None, note: str = ""
    ) -> None:
        """Record a figure; a rehearsal's is not compared with its goal."""
        met = goal.is_met(value) if goal and value is not None and not self.tiny else None
        value = None if value is None else float(value)
        figure = Figure(name, value, unit, self.command, str(goal) if goal else None, met, note)
        self.report.add(self.part, figure)

    def table(self, title: str, columns: list[str], rows: list[list[str | float]]) -> None:
        """Record a table."""
        self.report.add(self.part, Table(title, columns, rows))

    def attempt(self, name: str, work: Callable[[], object], needed_s: float = 0.0) -> None:
        """Run a piece of the part; a failure, or lack of time, becomes a row."""
        if self.left_s < needed_s:
            self.add(f"{name}: not measured", None, "", note="no time was left")
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the other pieces still run
            traceback.print_exc()
            self.add(f"{name}: failed", None, "", note=reason_of(error))
            self.broken.append(name)

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.limit_s - (time.monotonic() - self.begun)

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def median_s(self, work: Callable[[], object], repeat: int, warm: int = 2) -> float:
        """Return the median time of some work, by the device's clock if it has one.

        The work runs ``warm`` times before, for one-time set-up.
        """
        for _ in range(1 if self.tiny else warm):
            work()
        self.synchronize()
        return statistics.median(self._once(work) for _ in range(1 if self.tiny else repeat))

    def _once(self, work: Callable[[], object]) -> float:
        if self.device.type != "cuda":
            begun = time.perf_counter()
            work()
            return time.perf_counter() - begun
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def forget_peak(self) -> None:
        """Reset the peak memory; on a CPU it stays that of the process."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_gib(self) -> float:
        """Return the peak memory in GiB: of a GPU's tensors, or of the process on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20

    def profile(self, title: str, work: Callable[[], object]) -> None:
        """Record which kernels (on a CPU, which operations) take the time of some work."""
        on_gpu = self.device.type == "cuda"
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        try:
            with profile(activities=kinds) as recorded:
                work()
                self.synchronize()
        except RuntimeError as error:  # a machine may not let its counters be read
            self.add(f"profile: {title}", None, "", note=str(error)[:200])
            return
        wanted = "CUDA" if on_gpu else "CPU"
        spent = [
            (event.key, event.count, event.self_device_time_total if on_gpu
             else event.self_cpu_time_total)
            for event in recorded.key_averages()
            if event.device_type.name == wanted
        ]  # fmt: skip
        total = sum(us for *_, us in spent) or 1.0
        ordered = sorted(spent, key=lambda row: -row[2])[:KERNELS]
        rows: list[list[str | float]] = [
            [name[:90], float(count), us / 1000, 100 * us / total] for name, count, us in ordered
        ]
        self.table(title, ["kernel", "calls", "ms", "% of the time"], rows)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Round the factors of a GPU's float32 products if the precision is TF32, otherwise not.

    PyTorch's default is to round in cuDNN's convolutions and GRUs alone.
    """
    cudnn = torch.backends.cudnn
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    for switch in switches:
        switch.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        yield
    finally:
        for switch, precision_before in zip(switches, before, strict=True):
            switch.fp32_precision = precision_before


def describe(device: torch.device) -> dict[str, str]:
    """Return the environment of a check: device, driver, versions, commit."""
    on_gpu = device.type == "cuda"
    named = torch.cuda.get_device_name(device) if on_gpu else _processor()
    return {
        "device": f"{device.type}: {named}",
        "memory": f"{torch.cuda.mem_get_info(device)[1] / 2**30:.1f} GiB"
        if on_gpu
        else "the host's",
        "driver": _said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()) if on_gpu else "not used",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "commit": commit(),
    }


def commit() -> str:
    """Return the commit, from git or else from the bundle."""
    said = _said("git", "-C", str(ROOT), "rev-parse", "HEAD")
    if said != "none":
        changed = _said("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
        return said if changed in {"", "none"} else f"{said} with changes"
    noted = Path(os.environ.get("BUNDLE", ROOT / ".gpu-bundle")) / "commit"
    return " ".join(noted.read_text().split()) + ", as bundled" if noted.exists() else "unknown"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "none"
    return done.stdout.strip()
