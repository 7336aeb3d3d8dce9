"""Which steps need the files of a step's samples, so that clean-up keeps them; decided from the plan alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from merlin.plan.dependencies import topological_order
from merlin.plan.plan import Edge, StepInstance, StepKind
from merlin.plan.plan_io import replace_path


def wait_before_cleanup(instances: Sequence[StepInstance], workspace: str) -> tuple[StepInstance, ...]:
    """The instances, with manifests of data sets that clean up waiting for every step that needs the files.

    A step that itself waits for the data set cannot be waited for; what it needs is never cleaned up.
    """
    made = {instance.id: instance for instance in instances}
    for instance in instances:
        if instance.kind is not StepKind.MANIFEST or not (instance.aggregate and instance.aggregate.cleanup):
            continue
        needing = {id for ids in needed_by(made, instance.finishes, workspace).values() for id in ids}
        later = _following(made, instance.id)
        # in the group of the shards, so that the manifest is written if these are, however the other steps end
        group = instance.edges[0].group
        more = [Edge(source=id, kind="all", group=group) for id in made if id in needing - later]
        made[instance.id] = replace(instance, edges=(*instance.edges, *more))
    order = topological_order({id: [edge.source for edge in one.edges] for id, one in made.items()})
    return tuple(made[id] for id in order)


def needed_by(
    instances: Mapping[str, StepInstance], aggregate_id: str, workspace: str
) -> dict[str, list[str]]:
    """For each source of an aggregate, the ids of other instances that need the files of its tasks.

    These are other aggregates of it, steps that depend on it, and steps whose script names its step's directory.
    """
    aggregate = instances[aggregate_id].aggregate
    assert aggregate is not None
    found: dict[str, list[str]] = {source: [] for source in aggregate.sources}
    own_step = instances[aggregate.sources[0]].step
    directory = f"{workspace.rstrip('/')}/{aggregate.sources[0].split('/')[0]}"
    for instance in instances.values():
        if instance.id == aggregate_id or instance.kind is StepKind.MANIFEST or instance.step == own_step:
            continue
        if instance.aggregate is not None:
            needs = set(instance.aggregate.sources)
        elif any(
            replace_path(text, directory, "") != text for text in (instance.command, instance.restart or "")
        ):
            needs = set(found)
        else:
            needs = {edge.source for edge in instance.edges}
        for source in needs & found.keys():
            found[source].append(instance.id)
    return found


def _following(instances: Mapping[str, StepInstance], first: str) -> set[str]:
    """Every instance that waits for `first`, directly or not, and itself."""
    found: set[str] = set()
    more = {first}
    while more:
        found |= more
        more = {
            instance.id
            for instance in instances.values()
            if instance.id not in found and any(edge.source in more for edge in instance.edges)
        }
    return found
