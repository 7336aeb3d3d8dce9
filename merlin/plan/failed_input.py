"""How many tasks ran although something that they depend on had failed; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from merlin.base.ranges import Range, merged
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.runs import RunMap
from merlin.plan.tasks import FAILURES, Outcome

RAN = (Outcome.OK, *FAILURES)


def passing_failures(instance: StepInstance) -> tuple[Outcome, ...]:
    """The failures of a step instance that let later tasks run."""
    return FAILURES if instance.on_failure == "continue" else (Outcome.SOFT_FAILED,)


class OutcomeRecord(Protocol):
    """What is known of the ends of tasks, the quick answers first; the ledger's replay is one."""

    def counts(self) -> Mapping[str, Mapping[int, int]]:
        """Return the number of tasks by outcome, by step instance; any failure counts as FAILED."""

    def may_have_soft_failures(self, instance: str) -> bool:
        """Return False if the step instance certainly has none."""

    def outcomes_of(self, instance: str) -> RunMap:
        """Return the outcome of each task of a step instance."""


def num_on_failed_input(plan: Plan, record: OutcomeRecord) -> dict[str, int]:
    """Per step instance: how many tasks ran although one that they depend on had failed. Those with none are left out.

    A task that waits for all tasks of a step, and only misses the failed ones, does not count.
    """
    passed = _Passed(plan, record)
    found: dict[str, int] = {}
    for target in plan.instances:
        if target.kind.runs_user_code:
            ranges = merged(r for edge in target.edges for r in passed.over(target, edge.source, edge.kind))
            found[target.id] = passed.num_that_ran(target, ranges)
    return {id: num for id, num in found.items() if num}


class _Passed:
    """Per step instance, the failures that let later tasks run."""

    def __init__(self, plan: Plan, record: OutcomeRecord) -> None:
        self._instances = {instance.id: instance for instance in plan.instances}
        self._record, self._counts = record, record.counts()
        self._ranges: dict[str, list[Range]] = {}

    def over(self, target: StepInstance, source: str, kind: str) -> list[Range]:
        """The tasks of the target that depend on such a failure."""
        if source not in self._ranges:
            self._ranges[source] = self._find(self._instances[source])
        ranges = self._ranges[source]
        return [(0, target.num_tasks)] if kind == "all" and ranges else ranges

    def _find(self, source: StepInstance) -> list[Range]:
        if not self._counts[source.id].get(Outcome.FAILED):
            return []
        if source.on_failure == "skip" and not self._record.may_have_soft_failures(source.id):
            return []
        return self._record.outcomes_of(source.id).ranges(passing_failures(source))

    def num_that_ran(self, target: StepInstance, ranges: list[Range]) -> int:
        """How many tasks of these ranges have run."""
        counts = self._counts[target.id]
        num_ran = counts.get(Outcome.OK, 0) + counts.get(Outcome.FAILED, 0)
        if not (ranges and num_ran):
            return 0
        if num_ran == target.num_tasks:
            return sum(b - a for a, b in ranges)
        outcomes = self._record.outcomes_of(target.id)
        return sum(hi - lo for a, b in ranges for lo, hi in outcomes.ranges(RAN, a, b))
