"""The batch jobs that workers live in: what the scheduler says of them, and who is at work there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.batch.contract import Job
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, to_ask
from merlin.errors import MerlinError, UsageError, command_line
from merlin.execution.distributed.registry import StudyInfo, WorkerInfo
from merlin.execution.distributed.worker_jobs import PREFIX
from merlin.execution.job_counts import StepJobCounts, count_jobs
from merlin.execution.job_folder import all_jobs
from merlin.views.workers import short_name
from merlin.workspace.directory import open_workspace


class JobLine(Struct, frozen=True, kw_only=True):
    """A job as a list shows it."""

    id: str
    name: str
    scheduler: str
    state: str
    reason: str  # why it waits, in the scheduler's words
    num_nodes: int | None
    hosts: Sequence[str]
    left_s: float | None  # of its walltime
    workers: Sequence[str]  # alive
    num_chunks: int  # that they run


class StudyJobs(Struct, frozen=True, kw_only=True):
    """The batch jobs that the steps of an open study have of their own."""

    workspace: str
    steps: Sequence[StepJobCounts]


def clients(scheduler: str = "") -> list[SchedulerClient]:
    """Who can be asked about jobs: the named scheduler, else those that are installed here.

    Raises UsageError if there is none.
    """
    found = to_ask([scheduler] if scheduler else installed())
    if not found:
        raise UsageError(
            "no batch scheduler is installed here (sbatch, flux, bsub, qsub); "
            f"workers on this machine: {command_line('run-workers', 'SPEC')}"
        )
    return [SchedulerClient(each) for each in found]


def our_jobs(client: SchedulerClient, workers: Iterable[WorkerInfo]) -> list[Job]:
    """The user's jobs that were submitted for workers, or in which some live; one question.

    Raises SchedulerUnreachableError.
    """
    with_workers = {worker.job for worker in workers if worker.scheduler == client.scheduler.system}
    every = client.every_job()
    return [job for job in every if not job.state.is_over and (is_ours(job) or job.id in with_workers)]


def jobs_of_steps(studies: Iterable[StudyInfo]) -> list[StudyJobs]:
    """The batch jobs of their steps, of those studies whose workspaces this machine sees."""
    found = []
    for study in studies:
        with suppress(MerlinError):
            if counts := count_jobs(all_jobs(open_workspace(Path(study.workspace)))):
                found.append(StudyJobs(workspace=study.workspace, steps=counts))
    return found


def is_ours(job: Job) -> bool:
    return job.name.startswith(f"{PREFIX}-")


def job_line(job: Job, scheduler: str, workers: Iterable[WorkerInfo], now: float) -> JobLine:
    """A job with the workers that say that they live in it."""
    inside = [worker for worker in workers if worker.job == job.id and worker.scheduler == scheduler]
    return JobLine(
        id=job.id,
        name=job.name,
        scheduler=scheduler,
        state=job.state.value,
        reason=job.reason,
        num_nodes=job.num_nodes,
        hosts=tuple(job.hosts),
        left_s=None if job.ends is None else max(0.0, job.ends - now),
        workers=tuple(short_name(worker) for worker in inside),
        num_chunks=sum(len(worker.running) for worker in inside),
    )
