"""A part of a plan that can run on its own, because what it depends on has ended before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec.structs import replace

from merlin.base.ranges import Range
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.runs import RunMap


def restrict(plan: Plan, ids: Collection[str]) -> Plan:
    """The plan with these instances only; edges from others are dropped, as those have ended."""
    kept = [
        replace(instance, edges=tuple(edge for edge in instance.edges if edge.source in ids))
        for instance in plan.instances
        if instance.id in ids
    ]
    return replace(plan, instances=tuple(kept))


def with_upstream(
    plan: Plan,
    tasks: Mapping[str, Iterable[Range]],
    has_files: Callable[[StepInstance, int], bool],
) -> dict[str, list[Range]]:
    """Tasks, and those of the same samples upstream that have to run first because their files are gone.

    `has_files(instance, task)` says whether a task left what it made; asked about `cmd` steps only. Functions leave
    nothing that the steps after them could miss.
    """
    instances = {instance.id: instance for instance in plan.instances}
    wanted = {id: _marked(instances[id], ranges) for id, ranges in tasks.items()}
    for instance in reversed(plan.instances):  # whatever comes after has been looked at
        if instance.id not in wanted:
            continue
        for edge in instance.edges:
            source = instances[edge.source]
            if edge.kind != "same" or source.kind is not StepKind.CMD or not may_lack(source, has_files):
                continue
            for lo, hi in wanted[instance.id].ranges((1,)):
                for task in range(lo, hi):
                    if not has_files(source, task):
                        wanted.setdefault(source.id, RunMap(source.num_tasks, 0)).set(task, task + 1, 1)
    return {id: marks.ranges((1,)) for id, marks in wanted.items()}


def may_lack(instance: StepInstance, has_files: Callable[[StepInstance, int], bool]) -> bool:
    """False if all tasks of the instance are known to have left their files, so that none need be asked about.

    `has_files` may know that, and say so by its method `may_lack`.
    """
    known = getattr(has_files, "may_lack", None)
    return True if known is None else bool(known(instance))


def _marked(instance: StepInstance, ranges: Iterable[Range]) -> RunMap:
    marks = RunMap(instance.num_tasks, 0)
    for lo, hi in ranges:
        marks.set(lo, hi, 1)
    return marks
