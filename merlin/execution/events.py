"""The events that a run reports to an observer: the live display, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from merlin.plan.outcome_counts import OutcomeCounts
from merlin.plan.plan import Plan
from merlin.plan.task_states import TaskCounts


class Progress(Struct, frozen=True, kw_only=True):
    """The tasks of every step by state; tasks that ended inside running chunks are counted as ended."""

    seconds: float  # since the run started
    per_step: Mapping[str, TaskCounts]  # in the order of the plan
    num_workers: int  # alive


class RunSummary(OutcomeCounts, frozen=True, kw_only=True):
    """How a run ended."""

    stop_reason: str  # "" when nothing stopped it; "interrupted" after Ctrl-C
    seconds: float
    per_step: Mapping[str, TaskCounts]

    @property
    def is_success(self) -> bool:
        """Every planned task ended ok."""
        return self.ok == self.planned


class Observer:
    """Receives events in the order started, (progress | note)*, finished; never called concurrently.

    This one ignores them.
    """

    def started(self, plan: Plan, progress: Progress) -> None:
        """The ledger has been read; `progress` shows the results of earlier runs."""

    def progress(self, progress: Progress) -> None:
        """A few times per second while something changes."""

    def note(self, text: str) -> None:
        """One line worth reading: a worker was lost, a step stops the study …"""

    def finished(self, summary: RunSummary) -> None:
        """The run is over; not called when it raises."""
