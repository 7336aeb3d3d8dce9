"""Which recorded outcomes must be forgotten so that failed tasks run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from merlin.study.plan import Plan, StepInstance, StepKind
from merlin.study.runs import RunMap
from merlin.study.tasks import Outcome

Range = tuple[int, int]
_ENDED = (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)


def reopen_failed(
    plan: Plan, outcomes: Mapping[str, RunMap], steps: Collection[str] | None = None
) -> dict[str, list[Range]]:
    """Tasks to run again so that the failed and skipped ones of `steps` (names or instance ids) get a chance.

    That is these tasks, what was skipped because of them, the shards that hold their rows, and the manifests
    over those shards. Other tasks that ended ok stay as they are, also where they saw the failed ones.
    """
    chosen: dict[str, list[Range]] = {}
    for instance in plan.instances:
        if instance.id in outcomes and (steps is None or instance.step in steps or instance.id in steps):
            chosen[instance.id] = outcomes[instance.id].ranges((Outcome.FAILED, Outcome.SKIPPED))
    return reopen(plan, outcomes, chosen)


def reopen(
    plan: Plan, outcomes: Mapping[str, RunMap], chosen: Mapping[str, list[Range]]
) -> dict[str, list[Range]]:
    """The chosen tasks and what follows from them: sorted ranges per instance, all with an outcome."""
    instances = {instance.id: instance for instance in plan.instances}
    opened: dict[str, list[Range]] = {}
    for instance in plan.instances:
        have = outcomes.get(instance.id)
        if have is None:
            continue
        marks = RunMap(instance.num_tasks, 0)
        for lo, hi in chosen.get(instance.id, ()):
            marks.set(lo, hi, 1)
        for lo, hi in _follows(instance, instances, have, opened):
            marks.set(lo, hi, 1)
        ranges = [r for lo, hi in marks.ranges((1,)) for r in have.ranges(_ENDED, lo, hi)]
        if ranges:
            opened[instance.id] = ranges
    return opened


def _follows(
    target: StepInstance,
    instances: Mapping[str, StepInstance],
    have: RunMap,
    opened: Mapping[str, list[Range]],
) -> list[Range]:
    """Tasks of the target that its reopened sources reopen."""
    out: list[Range] = []
    for edge in target.edges:
        ranges = opened.get(edge.source, [])
        if not ranges:
            continue
        if edge.kind == "same":
            out += [r for lo, hi in ranges for r in have.ranges((Outcome.SKIPPED,), lo, hi)]
        elif edge.kind == "block":
            out += _shards(target, instances, edge.source, ranges)
        elif target.kind is StepKind.MANIFEST:
            out.append((0, target.num_tasks))
        else:
            out += have.ranges((Outcome.SKIPPED,))
    return out


def _shards(
    target: StepInstance, instances: Mapping[str, StepInstance], source: str, ranges: list[Range]
) -> list[Range]:
    aggregate = target.aggregate
    if aggregate is None:
        return []
    size, offset = aggregate.samples_per_shard, 0
    out: list[Range] = []
    for id in aggregate.sources:
        if id == source:
            out += [
                ((offset + a) // size, min(target.num_tasks, (offset + b - 1) // size + 1)) for a, b in ranges
            ]
        offset += instances[id].num_tasks
    return out
