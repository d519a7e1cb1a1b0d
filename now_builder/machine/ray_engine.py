"""Run tasks on a Ray cluster: one at a time per worker, with a time limit."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Generic, TypeVar

from now_builder.errors import ConfigError
from now_builder.machine.distribution import DistributedSettings

Task = TypeVar("Task")

_log = logging.getLogger(__name__)
_POLL_S = 5.0


@dataclass(slots=True)
class TaskResults(Generic[Task]):
    """Return values of the tasks, and the tasks that failed in every attempt, with reasons."""

    reports: list[Any] = field(default_factory=list)
    poison: list[tuple[Task, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Running(Generic[Task]):
    worker: Any
    task: Task
    attempt: int
    started: float
    limit_s: float


@dataclass
class RayEngine(Generic[Task]):
    """Runs tasks on workers that are reused.

    Each worker has one task and no queue, so that losing a worker affects only that task. Another
    worker retries the task, first whole and then in parts.

    Attributes:
        work: Runs a task in the worker; importable and idempotent.
        limit_s: Returns the time limit of a task, after which its worker is killed.
        parts: Splits a failed task, to isolate the part at fault.
        settings: CPUs of a worker, and address of the cluster.
        gpus: GPUs of a worker.
        attempts: Maximum number of attempts at a task.

    Raises:
        ConfigError: If Ray is not installed, or its cluster cannot be reached.
    """

    work: Callable[[Task], Any]
    limit_s: Callable[[Task], float]
    parts: Callable[[Task], Sequence[Task]]
    settings: DistributedSettings
    _: KW_ONLY
    gpus: float = 0.0
    attempts: int = 3

    def __post_init__(self) -> None:
        self._ray = _connected(self.settings.ray_address or None)
        self._queue: deque[tuple[Task, int]] = deque()
        self._running: dict[Any, _Running[Task]] = {}
        self._idle: list[Any] = []
        self._outcome: TaskResults[Task] = TaskResults()

    def run(self, tasks: Sequence[Task], on_report: Callable[[Any], object]) -> TaskResults[Task]:
        """Run all tasks, then stop the workers."""
        self._queue.extend((task, 1) for task in tasks)
        workers = min(self._most_workers(), len(tasks))
        try:
            while self._queue or self._running:
                while self._queue and len(self._running) < workers:
                    self._start(*self._queue.popleft())
                done, _ = self._ray.wait(list(self._running), timeout=_POLL_S)
                for reference in done:
                    self._finish(reference, on_report)
                for reference, running in list(self._running.items()):
                    if time.monotonic() - running.started > running.limit_s:
                        self._ray.kill(running.worker)
                        self._failed(reference, f"timeout after {running.limit_s:.0f} s")
        finally:
            for worker in (*(running.worker for running in self._running.values()), *self._idle):
                self._ray.kill(worker)
            self._ray.shutdown()
        return self._outcome

    def _most_workers(self) -> int:
        """Return how many workers fit the cluster; one CPU is left to Ray if there are several."""
        resources = self._ray.cluster_resources()
        if self.gpus:
            return max(1, int(resources.get("GPU", 0) / self.gpus))
        return max(1, int((resources.get("CPU", 1) - 1) / self.settings.worker_cpus))

    def _start(self, task: Task, attempt: int) -> None:
        if not self._idle:
            actor = self._ray.remote(_Worker).options(
                num_cpus=self.settings.worker_cpus, num_gpus=self.gpus, max_restarts=0,
                max_task_retries=0,
            )  # fmt: skip
            self._idle.append(actor.remote(self.work))
        worker = self._idle.pop()
        running = _Running(worker, task, attempt, time.monotonic(), self.limit_s(task))
        self._running[worker.run.remote(task)] = running

    def _finish(self, reference: Any, on_report: Callable[[Any], object]) -> None:
        try:
            report = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            self._idle.append(self._running[reference].worker)
            self._failed(reference, str(error.cause))
        except self._ray.exceptions.RayError as error:
            self._failed(reference, str(error).partition("\n")[0])
        else:
            self._idle.append(self._running.pop(reference).worker)
            self._outcome.reports.append(report)
            on_report(report)

    def _failed(self, reference: Any, reason: str) -> None:
        """Queue a failed task again, whole or in parts, unless this was the last attempt."""
        running = self._running.pop(reference)
        _log.warning("ray: task %s, attempt %d: %s", running.task, running.attempt, reason)
        if running.attempt >= self.attempts:
            self._outcome.poison.append((running.task, reason))
            return
        parts = self.parts(running.task) if running.attempt > 1 else [running.task]
        self._queue.extend((part, running.attempt + 1) for part in parts)


class _Worker:
    """The actor: runs one task after another."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def run(self, task: Any) -> Any:
        """Run a task."""
        return self._work(task)


def _connected(address: str | None) -> Any:
    import ray

    try:
        ray.init(
            address=address,
            include_dashboard=False if address is None else None,
            log_to_driver=True,
            logging_level=logging.WARNING,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--ray-address {address}: {error}") from None
    return ray
