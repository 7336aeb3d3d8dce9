"""How a plan goes on from the studies before it: numbers of samples, rows and shards, and what is not run again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.errors import WorkspaceError
from merlin.plan.dependencies import StepNeeds
from merlin.plan.plan import Plan, StepInstance, StepKind


class Extends(Struct, frozen=True, kw_only=True):
    """What an extension is added to."""

    number: int  # from 1
    root: Path  # workspace of the study
    first_sample: int
    planned: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # aggregate -> rows, shards so far


def extends(number: int, root: Path, before: Iterable[Plan]) -> Extends:
    """The state that the plans of a study and of its extensions so far add up to.

    Raises WorkspaceError if an extension between them is gone: its samples and rows would be given out twice.
    """
    num_samples, planned = 0, dict[str, tuple[int, int]]()
    for plan in before:
        if plan.samples is not None and plan.samples.first != num_samples:
            raise WorkspaceError(
                f"{plan.workspace} begins with sample {plan.samples.first}, and there are {num_samples} before it; "
                "put the extension back that is missing there"
            )
        num_samples += plan.num_samples
        tasks = {instance.id: instance.num_tasks for instance in plan.instances}
        for instance in plan.instances:
            if instance.kind is StepKind.AGGREGATE and instance.aggregate is not None:
                rows, shards = planned.get(instance.id, (0, 0))
                more = sum(tasks[source] for source in instance.aggregate.sources)
                planned[instance.id] = rows + more, shards + instance.num_tasks
    return Extends(number=number, root=root, first_sample=num_samples, planned=planned)


def settled_steps(needs: Mapping[str, StepNeeds]) -> frozenset[str]:
    """Steps that new samples do not change: they run once, and follow no step that runs per sample.

    `needs` is in topological order.
    """
    settled: set[str] = set()
    for name, step in needs.items():
        if not step.per_sample and all(dependency.step in settled for dependency in step.depends):
            settled.add(name)
    return frozenset(settled)


def settled_instances(plan: Plan) -> frozenset[str]:
    """Ids of the instances that new samples do not change: an extension of this study does not run them."""
    settled: set[str] = set()
    for instance in plan.instances:
        if not instance.per_sample and all(edge.source in settled for edge in instance.edges):
            settled.add(instance.id)
    return frozenset(settled)


def relied_on(plan: Plan) -> tuple[str, ...]:
    """Ids of the settled instances that an extension of this study would wait for."""
    settled = settled_instances(plan)
    waiting = (edge.source for i in plan.instances if i.id not in settled for edge in i.edges)
    return tuple(dict.fromkeys(source for source in waiting if source in settled))


def users_of_data_sets(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Step instances that wait for a data set, by the id of its manifest instance."""
    found: dict[str, tuple[str, ...]] = {}
    manifests = {instance.id for instance in plan.instances if instance.kind is StepKind.MANIFEST}
    for instance in plan.instances:
        for edge in instance.edges:
            if edge.source in manifests:
                found[edge.source] = (*found.get(edge.source, ()), instance.id)
    return found


def continued(
    instances: Iterable[StepInstance], extending: Extends, settled: frozenset[str]
) -> tuple[StepInstance, ...]:
    """The instances that an extension runs: without the settled steps, its data sets' rows after the old ones."""
    listed = list(instances)
    gone = {instance.id for instance in listed if instance.step in settled}
    return tuple(
        replace(
            _placed(instance, extending),
            edges=tuple(edge for edge in instance.edges if edge.source not in gone),
            feeds=tuple(target for target in instance.feeds if target not in gone),
        )
        for instance in listed
        if instance.id not in gone
    )


def _placed(instance: StepInstance, extending: Extends) -> StepInstance:
    """An aggregate or its manifest, with the numbers of its first row and shard."""
    if instance.aggregate is None:
        return instance
    is_manifest = instance.kind is StepKind.MANIFEST
    rows, shards = extending.planned[instance.finishes if is_manifest else instance.id]
    return replace(instance, aggregate=replace(instance.aggregate, first_row=rows, first_shard=shards))
