"""Why batch jobs of workers bring no workers: by the scheduler, by their records, and by an autoscale that is alive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.base.locks import LockTaken, locked
from merlin.base.records import as_kind, parsed
from merlin.base.text import count
from merlin.batch.contract import Job, JobState
from merlin.batch.job_records import JobRecord
from merlin.batch.jobs import SchedulerClient
from merlin.errors import ExecutionError, command_line
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.worker_jobs import AUTOSCALE_LOCK, autoscale_log, jobs_folder
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.worker_jobs import our_jobs

MAX_JOBS = 5  # that are named for one reason


class Asked(Struct, frozen=True, kw_only=True):
    """What an explanation is wanted of."""

    path: Path  # a spec or workspace, as it was given
    queues: tuple[str, ...]
    clients: Sequence[SchedulerClient]  # () if no scheduler is there
    records: Mapping[Path, Sequence[JobRecord]]  # of worker jobs, by the spec or workspace that they are of


class _Decision(Struct, frozen=True, kw_only=True):
    """The part of a line of autoscale's decisions that is of interest here."""

    move: str
    reason: str


def of_jobs(asked: Asked, workers: Sequence[WorkerInfo]) -> Iterator[Obstacle]:
    """What the scheduler says about the jobs that should bring workers, and how the last of them ended."""
    jobs: list[Job] = []
    for client in asked.clients:
        try:
            jobs += our_jobs(client, workers)
        except ExecutionError as error:
            yield Obstacle(
                what=str(error), remedy="wait for the scheduler, or ask those who run it", kind=Kind.SCHEDULER
            )
            return
    reasons: dict[str, list[str]] = {}
    for job in jobs:
        if job.state is JobState.PENDING:
            reasons.setdefault(job.reason or "the scheduler gives no reason", []).append(job.id)
    for reason, ids in reasons.items():
        more = f" and {len(ids) - MAX_JOBS} more" if len(ids) > MAX_JOBS else ""
        yield Obstacle(
            what=f"{count(len(ids), 'worker job')} ({', '.join(ids[:MAX_JOBS])}{more}) wait: {reason}",
            remedy="fewer nodes or a shorter walltime start sooner",
            kind=Kind.JOB,
        )
    live = {worker.job for worker in workers}
    for job in jobs:
        if job.state is JobState.RUNNING and job.id not in live:
            show = command_line("workers", "logs", asked.path, "--job", job.id)
            yield Obstacle(
                what=f"job {job.id} runs, and no worker of it has reported", remedy=show, kind=Kind.JOB
            )
    if not jobs and asked.clients:
        for path, records in asked.records.items():
            yield from _last_end(path, records[-1]) if records else ()


def of_autoscale(path: Path) -> Iterator[Obstacle]:
    """Why an autoscale that is alive submits nothing, in its own words."""
    lock = jobs_folder(path) / AUTOSCALE_LOCK
    try:
        if lock.exists():
            with locked(lock):
                return  # nobody has it
    except LockTaken:
        with suppress(OSError, ValueError, IndexError):
            last = as_kind(parsed(autoscale_log(path).read_text("utf-8").splitlines()[-1]), _Decision)
            if last.move == "wait":
                yield Obstacle(what=f"merlin workers autoscale submits no job: {last.reason}", kind=Kind.CAP)


def _last_end(path: Path, last: JobRecord) -> Iterator[Obstacle]:
    if last.refused:
        yield Obstacle(
            what=f"the last worker job was refused: {last.refused}",
            remedy=f"look at {last.script}",
            kind=Kind.JOB,
        )
    elif last.id:
        how = f" ({last.seen.state})" if last.seen and last.seen.state.is_over else ""
        show = command_line("workers", "logs", path, "--job", last.id)
        yield Obstacle(
            what=f"no worker job waits or runs; the last one, {last.id}, has ended{how}",
            remedy=show,
            kind=Kind.JOB,
        )
