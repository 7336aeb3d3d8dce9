"""Which queues have tasks that could run now, by the numbers of tasks alone. Pure.

The scheduler knows which task is ready; here it only matters whether there is one. Where a step waits for several
others task by task, the answer may be yes although no task is ready yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from merlin.plan.plan import Plan, StepInstance
from merlin.plan.tasks import FAILURES, Outcome

_ENDED = (Outcome.OK, Outcome.SKIPPED, *FAILURES)


def startable_queues(plan: Plan, counts: Mapping[str, Mapping[int, int]]) -> tuple[str, ...]:
    """Queues (as in the spec) with tasks that could run, or that a worker has; `counts`: tasks by outcome."""
    ended = {id: sum(found.get(outcome, 0) for outcome in _ENDED) for id, found in counts.items()}
    instances = {instance.id: instance for instance in plan.instances}
    found = (i.queue for i in plan.instances if ended[i.id] < i.num_tasks and _is_ready(i, instances, ended))
    return tuple(dict.fromkeys(found))


def _is_ready(target: StepInstance, instances: Mapping[str, StepInstance], ended: Mapping[str, int]) -> bool:
    rows = 0
    for edge in target.edges:
        if edge.kind == "all" and ended[edge.source] < instances[edge.source].num_tasks:
            return False
        if edge.kind == "same" and ended[edge.source] <= ended[target.id]:
            return False
        rows += ended[edge.source] if edge.kind == "block" else 0
    if target.aggregate is None or not any(edge.kind == "block" for edge in target.edges):
        return True
    sources = [edge.source for edge in target.edges if edge.kind == "block"]
    if all(ended[source] == instances[source].num_tasks for source in sources):
        return True
    return rows >= (ended[target.id] + 1) * target.aggregate.samples_per_shard
