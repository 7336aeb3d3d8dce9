"""Which outcomes do not count any more after those of earlier tasks were lost with a part of the ledger. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from merlin.base.ranges import Range, merged, within, without
from merlin.plan.plan import Edge, Plan, StepInstance
from merlin.plan.reopen import reopen
from merlin.plan.rerun import dependants
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome

ResetSince = Callable[[str, str], Iterable[tuple[list[Range], list[Range]]]]
_OPEN = (NO_OUTCOME, Outcome.INTERRUPTED)
_RAN = (Outcome.OK, Outcome.SOFT_FAILED)  # the scheduler itself may decide that a task has failed


def reopen_after_loss(
    plan: Plan, outcomes: Mapping[str, RunMap], reset_since: ResetSince
) -> dict[str, list[Range]]:
    """Tasks that ran although what they depend on has no outcome, and what follows from them; none if nothing is lost.

    A task that was reset has lost nothing: what runs again because of it was reset with it. For a step instance and one
    that depends on it, `reset_since` groups the tasks of the latter; to each group belong the tasks of the former that
    were reset after the group had run.
    """
    instances = {instance.id: instance for instance in plan.instances}
    stale: dict[str, list[Range]] = {}
    for target in plan.instances:
        ran = outcomes[target.id].ranges(_RAN)
        for edge in target.edges if ran else ():
            missing = outcomes[edge.source].ranges(_OPEN)
            source = instances[edge.source]
            if not within(_on(target, edge, source, missing), ran):
                continue
            for tasks, reset in reset_since(source.id, target.id):
                found = within(_on(target, edge, source, without(missing, reset)), within(tasks, ran))
                stale[target.id] = merged([*stale.get(target.id, ()), *found])
    return reopen(plan, outcomes, {}, stale) if any(stale.values()) else {}


def _on(target: StepInstance, edge: Edge, source: StepInstance, ranges: Iterable[Range]) -> list[Range]:
    return merged(r for lo, hi in ranges for r in dependants(target, edge.kind, source, lo, hi))
