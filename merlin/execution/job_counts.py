"""How many batch jobs a study's steps have, and why they wait: for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from merlin.batch.contract import JobState
from merlin.batch.jobs import in_short
from merlin.execution.job_folder import StepJob


class StepJobCounts(Struct, frozen=True, kw_only=True):
    """The batch jobs of one step instance that are not settled."""

    instance: str
    scheduler: str
    pending: int  # also those that are about to be submitted
    refused: int = 0  # they are submitted again
    running: int
    ended: int  # their outcomes are about to be read
    reasons: tuple[str, ...]  # why those that are pending wait, in the scheduler's words
    refusals: tuple[str, ...] = ()  # why it did not take those that are refused

    def __str__(self) -> str:
        why = f" ({', '.join(self.reasons)})" if self.reasons else ""
        ended = f", {self.ended:,} ended" if self.ended else ""
        refused = f", {self.refused:,} refused ({', '.join(self.refusals)})" if self.refused else ""
        counts = f"{self.pending:,} pending{why}, {self.running:,} running{ended}{refused}"
        return f"batch jobs of {self.instance}: {counts}"


def count_jobs(jobs: Iterable[StepJob]) -> list[StepJobCounts]:
    """Count the jobs of each step instance, as the scheduler described them last."""
    by_instance: dict[tuple[str, str], list[StepJob]] = {}
    for job in jobs:
        by_instance.setdefault((job.chunk.instance, job.scheduler), []).append(job)
    return [
        StepJobCounts(
            instance=instance,
            scheduler=scheduler,
            pending=sum(_is_pending(job) for job in ours),
            refused=sum(bool(job.refused) for job in ours),
            running=sum(job.state is JobState.RUNNING for job in ours),
            ended=sum(job.state.is_over for job in ours),
            reasons=tuple(sorted({job.reason for job in ours if _is_pending(job) and job.reason})),
            refusals=tuple(sorted({in_short(job.refused) for job in ours if job.refused})),
        )
        for (instance, scheduler), ours in sorted(by_instance.items())
    ]


def _is_pending(job: StepJob) -> bool:
    return job.state is JobState.PENDING and not job.refused
