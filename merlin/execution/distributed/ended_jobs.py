"""Ends worker jobs: their workers finish first, then the scheduler cancels what is left of the jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from merlin.batch.contract import Job, JobState
from merlin.batch.jobs import SchedulerClient
from merlin.execution.distributed.contracts import Registry
from merlin.execution.distributed.registry import WorkerInfo

POLL_S = 1.0


class EndedJob(Struct, frozen=True, kw_only=True):
    """A job that was ended."""

    job: str
    done: str  # in words


def end_jobs(
    client: SchedulerClient,
    jobs: Sequence[Job],
    workers: Sequence[WorkerInfo],
    registry: Callable[[], Registry],
    wait_s: float,
) -> list[EndedJob]:
    """Tell the workers of the jobs to stop, wait until they have gone, and cancel what is left of the jobs.

    `workers` are alive; the `registry` is opened only to tell some of them. Raises ExecutionError if the servers or
    the scheduler do not answer.
    """
    scheduler, ids = client.scheduler.system, {job.id for job in jobs if job.state is JobState.RUNNING}
    inside = [w for w in workers if w.job in ids and w.scheduler == scheduler]
    left = _stop(registry(), {worker.name for worker in inside}, wait_s) if inside else set()
    client.cancel([job.id for job in jobs])
    told = {worker.job for worker in inside}
    return [EndedJob(job=job.id, done=_done(job, told, left)) for job in jobs]


def _stop(registry: Registry, names: Collection[str], wait_s: float) -> set[str]:
    """Tell workers to stop; returns the jobs in which some are alive after `wait_s` seconds."""
    registry.send(sorted(names), "stop")
    deadline = time.monotonic() + wait_s
    while (left := {w.job for w in registry.workers() if w.name in names}) and time.monotonic() < deadline:
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))
    return left


def _done(job: Job, told: Collection[str], left: Collection[str]) -> str:
    if job.state is JobState.PENDING:
        return "cancelled before it began"
    if job.id in left:
        return "cancelled; its workers give back what they run"
    if job.id in told:
        return "its workers have finished, and it is cancelled"
    return "cancelled; no worker was alive in it"
