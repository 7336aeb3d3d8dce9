"""Which tasks run when some are to be run again: these, all that depends on them, and what they need first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from merlin.base.ranges import Range, merged
from merlin.plan.pieces import shards_over
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.reopen import reopen
from merlin.plan.restrict import with_upstream
from merlin.plan.runs import RunMap
from merlin.plan.tasks import ENDED

HasFiles = Callable[[StepInstance, int], bool]


def tasks_to_rerun(
    plan: Plan,
    outcomes: Mapping[str, RunMap],
    chosen: Mapping[str, list[Range]],
    has_files: HasFiles,
    gone: Mapping[str, list[Range]] | None = None,
) -> dict[str, list[Range]]:
    """The recorded outcomes to forget, as sorted ranges by step instance.

    These are the chosen tasks; all tasks that used their results, because these may change; and earlier tasks whose
    files are gone, which make the same files again. `has_files(instance, task)` says whether a script's task left its
    files; `gone` are further such tasks.
    """
    again = with_downstream(plan, chosen, outcomes)
    for id, ranges in (gone or {}).items():
        again[id] = merged([*again.get(id, ()), *ranges])
    return reopen(plan, outcomes, with_upstream(plan, again, has_files))


def with_downstream(
    plan: Plan, chosen: Mapping[str, list[Range]], outcomes: Mapping[str, RunMap] | None = None
) -> dict[str, list[Range]]:
    """The chosen tasks and everything that depends on them; with `outcomes`, as far as it has ended."""
    instances = {instance.id: instance for instance in plan.instances}
    again: dict[str, list[Range]] = {}
    for target in plan.instances:  # after those that it depends on
        ranges = list(chosen.get(target.id, ()))
        for edge in target.edges:
            for lo, hi in again.get(edge.source, ()):
                ranges += dependants(target, edge.kind, instances[edge.source], lo, hi)
        found = merged(ranges)
        if outcomes is not None:
            have = outcomes[target.id]
            found = [r for lo, hi in found for r in have.ranges(ENDED, lo, hi)]
        if found:
            again[target.id] = found
    return again


def dependants(target: StepInstance, kind: str, source: StepInstance, lo: int, hi: int) -> list[Range]:
    """The tasks of the target that depend on tasks [lo, hi) of the source."""
    if kind == "same":
        return [(lo, hi)]
    if kind == "block":
        return [shards_over(target, source, lo, hi)]
    if target.kind is StepKind.AGGREGATE:  # it only waits for this one
        return []
    return [(0, target.num_tasks)]
