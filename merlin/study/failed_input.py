"""How many tasks ran although something that they depend on had failed; pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from merlin.study.pieces import Range, merged
from merlin.study.plan import Plan, StepInstance, StepKind
from merlin.study.runs import RunMap
from merlin.study.tasks import FAILURES, Outcome

RAN = (Outcome.OK, *FAILURES)


def passing_failures(instance: StepInstance) -> tuple[Outcome, ...]:
    """The failures of a step instance with which what depends on it runs."""
    return FAILURES if instance.on_failure == "continue" else (Outcome.SOFT_FAILED,)


def num_on_failed_input(
    plan: Plan, counts: Mapping[str, Mapping[int, int]], outcomes_of: Callable[[str], RunMap]
) -> dict[str, int]:
    """Per step instance (those with none are left out): tasks that ran while a failure that they depend on let them.

    What only misses the failed samples, as a step after all of another one does, is not meant. `counts` are tasks by
    outcome, any failure as FAILED; the outcomes are asked for only where the counts leave it open.
    """
    passed = _Passed(plan, counts, outcomes_of)
    found: dict[str, int] = {}
    for target in plan.instances:
        if target.kind in (StepKind.CMD, StepKind.FUNCTION):
            ranges = merged(r for edge in target.edges for r in passed.over(target, edge.source, edge.kind))
            if ranges:
                found[target.id] = _num_that_ran(target, counts[target.id], ranges, outcomes_of)
    return {id: num for id, num in found.items() if num}


class _Passed:
    """The failures of every step instance that did not hold up what depends on them."""

    def __init__(
        self, plan: Plan, counts: Mapping[str, Mapping[int, int]], outcomes_of: Callable[[str], RunMap]
    ) -> None:
        self._instances = {instance.id: instance for instance in plan.instances}
        self._counts, self._outcomes_of = counts, outcomes_of
        self._ranges: dict[str, list[Range]] = {}

    def over(self, target: StepInstance, source: str, kind: str) -> list[Range]:
        """The tasks of the target that depend on such a failure."""
        ranges = self._of(source)
        return [(0, target.num_tasks)] if kind == "all" and ranges else ranges

    def _of(self, source: str) -> list[Range]:
        if source not in self._ranges:
            has_failed = self._counts[source].get(Outcome.FAILED, 0)
            passing = passing_failures(self._instances[source])
            self._ranges[source] = self._outcomes_of(source).ranges(passing) if has_failed else []
        return self._ranges[source]


def _num_that_ran(
    target: StepInstance,
    counts: Mapping[int, int],
    ranges: list[Range],
    outcomes_of: Callable[[str], RunMap],
) -> int:
    num_ran = counts.get(Outcome.OK, 0) + counts.get(Outcome.FAILED, 0)
    if num_ran in (0, target.num_tasks):
        return sum(b - a for a, b in ranges) if num_ran else 0
    outcomes = outcomes_of(target.id)
    return sum(hi - lo for a, b in ranges for lo, hi in outcomes.ranges(RAN, a, b))
