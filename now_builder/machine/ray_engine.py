"""Run tasks on a Ray cluster: one at a time per worker, killed when it takes too long."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from now_builder.errors import ConfigError
from now_builder.machine.distribution import DistributedSettings

Task = TypeVar("Task")

_log = logging.getLogger(__name__)
_POLL_S = 5.0


@dataclass(slots=True)
class TaskResults(Generic[Task]):
    """The values that tasks returned, and the tasks that failed in every attempt, with reasons."""

    reports: list[Any] = field(default_factory=list)
    poison: list[tuple[Task, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Running(Generic[Task]):
    worker: Any
    task: Task
    attempt: int
    since: float
    limit_s: float


class RayEngine(Generic[Task]):
    """Runs tasks on workers that are reused.

    Each worker has one task in flight and no queue, so that a lost one costs that task alone; its
    task is given to another worker, at first as it was and then in parts.

    Args:
        work: Does a task in the worker; importable and idempotent.
        limit_s: Returns the wall-clock limit of a task, after which its worker is killed.
        parts: Cuts a task that has failed into parts, to find the one at fault.
        settings: How much of the cluster to take.
        gpus: GPUs of one worker.
        attempts: Attempts at one task, after which it is given up.

    Raises:
        ConfigError: If Ray is not installed, or its cluster cannot be reached.
    """

    def __init__(
        self,
        work: Callable[[Task], Any],
        limit_s: Callable[[Task], float],
        parts: Callable[[Task], Sequence[Task]],
        settings: DistributedSettings,
        *,
        gpus: float = 0.0,
        attempts: int = 3,
    ) -> None:
        self._ray = _connected(settings.ray_address or None)
        self._work, self._limit_s, self._parts = work, limit_s, parts
        self._settings, self._gpus, self._attempts = settings, gpus, attempts
        self._queue: deque[tuple[Task, int]] = deque()
        self._running: dict[Any, _Running[Task]] = {}
        self._idle: list[Any] = []
        self._outcome: TaskResults[Task] = TaskResults()

    def run(self, tasks: Sequence[Task], on_report: Callable[[Any], object]) -> TaskResults[Task]:
        """Run all tasks, then stop the workers."""
        self._queue.extend((task, 1) for task in tasks)
        workers = min(self._capacity(), len(tasks))
        try:
            while self._queue or self._running:
                while self._queue and len(self._running) < workers:
                    self._start(*self._queue.popleft())
                done, _ = self._ray.wait(list(self._running), timeout=_POLL_S)
                for reference in done:
                    self._finish(reference, on_report)
                for reference, running in list(self._running.items()):
                    if time.monotonic() - running.since > running.limit_s:
                        self._ray.kill(running.worker)
                        self._failed(reference, f"no end after {running.limit_s:.0f} s")
        finally:
            for running in self._running.values():
                self._ray.kill(running.worker)
            for worker in self._idle:
                self._ray.kill(worker)
            self._ray.shutdown()
        return self._outcome

    def _capacity(self) -> int:
        """Count the workers that the cluster holds, one CPU left to Ray where there are several."""
        there = self._ray.cluster_resources()
        if self._gpus:
            return max(1, int(there.get("GPU", 0) / self._gpus))
        return max(1, int((there.get("CPU", 1) - 1) / self._settings.worker_cpus))

    def _start(self, task: Task, attempt: int) -> None:
        worker = self._idle.pop() if self._idle else self._new_worker()
        reference = worker.run.remote(task)
        limit_s = self._limit_s(task)
        self._running[reference] = _Running(worker, task, attempt, time.monotonic(), limit_s)

    def _new_worker(self) -> Any:
        share = {"num_cpus": self._settings.worker_cpus, "num_gpus": self._gpus}
        actor = self._ray.remote(_Worker).options(**share, max_restarts=0, max_task_retries=0)
        return actor.remote(self._work)

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

    def _failed(self, reference: Any, why: str) -> None:
        """Queue a failed task again, as it was or in parts, or give it up."""
        running = self._running.pop(reference)
        _log.warning("ray: task %s, attempt %d: %s", running.task, running.attempt, why)
        if running.attempt >= self._attempts:
            self._outcome.poison.append((running.task, why))
            return
        parts = self._parts(running.task) if running.attempt > 1 else [running.task]
        self._queue.extend((part, running.attempt + 1) for part in parts)


class _Worker:
    """The actor: does one task after the other."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def run(self, task: Any) -> Any:
        """Do one task."""
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
