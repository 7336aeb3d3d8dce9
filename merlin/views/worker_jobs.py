"""The batch jobs that workers live in: what the scheduler says of them, and who is at work there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.base.text import short_name
from merlin.batch.contract import Job
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, to_ask
from merlin.config.model import Config
from merlin.config.reach import is_loopback
from merlin.errors import MerlinError, UsageError, command_line
from merlin.execution.distributed.registry import StudyInfo, WorkerInfo
from merlin.execution.distributed.worker_jobs import PREFIX, unexported
from merlin.execution.job_counts import StepJobCounts, count_jobs
from merlin.execution.job_folder import all_jobs
from merlin.views.servers import require_reachable
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


def warnings_for_jobs(config: Config) -> list[str]:
    """Warnings about the servers, also about what jobs on other nodes will not find.

    Raises ExecutionError if a server does not answer here.
    """
    found = require_reachable(config)
    local = [e.safe_url for e in (config.broker, config.backend) if e.host and is_loopback(e.host)]
    if local:
        found.append(
            f"{local[0]} is on this machine alone; workers on other nodes will not reach it "
            f"(a private server for them: {command_line('server', 'config', '--host', '0.0.0.0')})"
        )
    if unexported(config):
        found.append(
            "MERLIN_BROKER_URL holds a password, so it is not written into the job script; jobs "
            "find it only if the scheduler passes on your environment. An app.yaml is safer: merlin config create"
        )
    return found


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
        workers=tuple(short_name(worker.name) for worker in inside),
        num_chunks=sum(len(worker.running) for worker in inside),
    )
