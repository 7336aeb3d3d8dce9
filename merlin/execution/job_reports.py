"""Reports on chunks whose batch jobs were interrupted."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from merlin.batch.contract import Job, JobState
from merlin.execution.job_folder import StepJob
from merlin.plan.pieces import Run
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import ENDED, Chunk


def interrupted(job: StepJob, trouble: str = "") -> ChunkReport:
    """The report on an interrupted job: tasks that have ended count, and the rest runs again."""
    worker = f"job {job.id or job.name}"
    return ChunkReport(chunk=job.chunk, worker=worker, is_interrupted=True, trouble=trouble)


def blamed(report: ChunkReport, job: StepJob, ended: Job | None, done: Iterable[Run]) -> ChunkReport:
    """The report, in which a walltime that ended the job blames the first task left, so that this ends one day."""
    if ended is None or ended.state is not JobState.TIMEOUT:
        return report
    return replace(report, cut_off=first_left(report.chunk, done), walltime=job.walltime)


def first_left(chunk: Chunk, done: Iterable[Run]) -> tuple[int, ...]:
    """The first task of a chunk that has not ended; () if all have."""
    over = {task for a, b, outcome in done if outcome in ENDED for task in range(a, b)}
    return tuple(task for task in chunk.task_ids() if task not in over)[:1]
