"""Runs the commands of batch schedulers for the jobs of one study, one after the other, in a thread.

They may be slow, so nobody waits for their results.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from merlin.batch.contract import Job
from merlin.batch.jobs import SchedulerClient
from merlin.errors import MerlinError, SchedulerUnreachableError
from merlin.execution.job_folder import StepJob

T = TypeVar("T")
CLOSE_S = 20.0  # at the end, for commands that still run
SLOW_S = 5.0  # a command that takes longer is reported


class Errands:
    """One study's errands to batch schedulers. One thread calls this."""

    def __init__(self, make_client: Callable[[str], SchedulerClient]) -> None:
        self._make_client = make_client
        self._clients: dict[str, SchedulerClient] = {}
        self._thread: threading.Thread | None = None
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._cancellations: list[Future[None]] = []
        self._running: list[tuple[float, Future[object]]] = []  # since when (monotonic)
        # names of jobs whose ids this cluster gave; the thread uses it, too
        self._from_here: set[str] = set()

    def submit(self, job: StepJob, script: str, *, is_again: bool) -> Future[str]:
        """Submit a script; the result is the job's id. With `is_again`, it may have been submitted before."""
        client = self._client(job.scheduler)
        self._from_here.add(job.name)
        return self._run(lambda: client.submit(job.name, script, is_again=is_again))

    def ask(self, jobs: Iterable[StepJob]) -> Future[dict[str, Job]]:
        """Ask about jobs that have an id; the result is by lease."""
        asked = [(self._client(name), several) for name, several in _by_scheduler(jobs).items()]

        def answers() -> dict[str, Job]:
            found = ((several, client.jobs([job.id for job in several])) for client, several in asked)
            return {
                job.lease: self._about(job, listed[job.id]) for several, listed in found for job in several
            }

        return self._run(answers)

    def cancel(self, jobs: Iterable[StepJob]) -> None:
        """End jobs; those without an id are looked for by their names."""
        for name, several in _by_scheduler(jobs).items():
            client = self._client(name)
            errand = partial(cancel_jobs, client, several, self._from_here)
            self._cancellations.append(self._run(errand))

    def troubles(self) -> list[str]:
        """Cancellations that have failed, and commands that take long, since the last call."""
        out = []
        for future in [f for f in self._cancellations if f.done()]:
            self._cancellations.remove(future)
            if isinstance(error := future.exception(), MerlinError):
                out.append(f"cannot cancel a job: {error}")
            elif error is not None:
                raise error
        slow = [pair for pair in self._running if time.monotonic() - pair[0] >= SLOW_S]
        self._running = [pair for pair in self._running if pair not in slow and not pair[1].done()]
        if any(not future.done() for _, future in slow):
            out.append(f"a command of the batch scheduler has not ended for {SLOW_S:.0f} s; waiting for it")
        return out

    def close(self) -> None:
        """Wait for the commands that still run, but not for long."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(CLOSE_S)

    def _about(self, job: StepJob, listed: Job) -> Job:
        if _is_same(job, listed):
            return listed
        self._from_here.discard(job.name)
        return Job(
            id=job.id, name=job.name, reason=f"on this cluster, its id is that of the job {listed.name}"
        )

    def _client(self, name: str) -> SchedulerClient:
        if name not in self._clients:
            self._clients[name] = self._make_client(name)
        return self._clients[name]

    def _run(self, errand: Callable[[], T]) -> Future[T]:
        future = Future[T]()

        def run() -> None:
            try:
                future.set_result(errand())
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)

        self._queue.put(run)
        if self._thread is None:  # a daemon: a command that hangs does not keep the process from its end
            self._thread = threading.Thread(target=self._work, name="batch", daemon=True)
            self._thread.start()
        self._running.append((time.monotonic(), future))  # type: ignore[arg-type]
        return future

    def _work(self) -> None:
        while (errand := self._queue.get()) is not None:
            errand()


def cancel_jobs(client: SchedulerClient, jobs: Collection[StepJob], from_here: Collection[str] = ()) -> None:
    """End these jobs; those without an id are looked for by their names.

    An id is left alone if the scheduler says that it is another job's; it is not asked about jobs of the names
    `from_here`. Raises SchedulerUnreachableError or SchedulerRefusedError.
    """
    others = _other_jobs(client, [job for job in jobs if job.id and job.name not in from_here])
    if ids := [job.id for job in jobs if job.id and job.id not in others]:
        client.cancel(ids)
    if ids := [found.id for job in jobs if not job.id and (found := client.find(job.name))]:
        client.cancel(ids)


def _other_jobs(client: SchedulerClient, jobs: Collection[StepJob]) -> set[str]:
    """The ids of these jobs that are other jobs' on this cluster, as far as its scheduler answers."""
    try:
        listed = client.jobs([job.id for job in jobs], is_urgent=True) if jobs else {}
    except SchedulerUnreachableError:
        return set()  # it may still take orders
    return {job.id for job in jobs if not _is_same(job, listed[job.id])}


def _by_scheduler(jobs: Iterable[StepJob]) -> dict[str, list[StepJob]]:
    found: dict[str, list[StepJob]] = {}
    for job in jobs:
        found.setdefault(job.scheduler, []).append(job)
    return found


def _is_same(job: StepJob, listed: Job) -> bool:
    """False if the id is that of a job with another name: then this is not the cluster that `job` was submitted to."""
    return listed.name in ("", job.name)
