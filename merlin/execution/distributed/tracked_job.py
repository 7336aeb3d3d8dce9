"""A worker job of ours, as autoscale has seen it."""

from __future__ import annotations

from msgspec import Struct

from merlin.batch.contract import JobRequest, JobState
from merlin.batch.job_records import JobRecord


class Tracked(Struct):
    """What was seen of a job of ours."""

    record: JobRecord
    request: JobRequest | None = None  # while nobody knows whether it was submitted
    reported: float | None = None  # when a worker of it was seen first
    ends: float | None = None  # of its walltime, as its workers know it
    busy_at: float = 0.0  # when one was seen at work last
    had_done_s: float = 0.0  # the busy seconds of all tasks when it was seen first
    has_worked: bool = False
    told_at: float | None = None  # when its workers were told to leave
    is_cancelled: bool = False
    is_requeued: bool = False  # workers of its first run may seem alive for a while

    def note(self, state: JobState) -> None:
        """Take in the state that the scheduler has just reported."""
        if state is JobState.PENDING and self.reported is not None:
            self.is_requeued, self.reported = True, None
        elif state is not JobState.PENDING:
            self.is_requeued = False

    @property
    def is_running(self) -> bool:
        return self.reported is not None or (
            self.record.seen is not None and self.record.seen.state is JobState.RUNNING
        )
