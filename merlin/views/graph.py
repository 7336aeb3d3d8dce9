"""The graph of a plan's steps, one node per step whatever its parameters, as a list and as Mermaid text. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import count
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.views.forecast import UNKNOWN, tasks_of, total

_WAITS = {"same": "sample by sample, after", "all": "after all of", "block": "shard by shard, after"}
_ARROWS = {"same": "-->", "all": "==>", "block": "-.->"}


class Node(Struct, frozen=True, kw_only=True):
    """A step: how many instances and tasks it has (None: `UNKNOWN`), and after which steps it comes."""

    step: str
    kind: str
    instances: int
    tasks: int | None
    after: dict[str, str]  # step -> kind of edge

    @property
    def caption(self) -> str:
        """ "30 tasks in 3 instances", "1 shard"."""
        noun = "shard" if self.kind == StepKind.AGGREGATE else "task"
        if self.tasks is None:
            return f"{noun}s {UNKNOWN}"
        by = f" in {self.instances} instances" if self.instances > 1 else ""
        return count(self.tasks, noun) + by


def graph_of(plan: Plan) -> list[Node]:
    """The steps of `plan` in topological order; manifests belong to the aggregate they finish."""
    aggregates = {i.id: i.step for i in plan.instances if i.kind is StepKind.AGGREGATE}
    steps: dict[str, str] = {}  # step instance -> node
    members: dict[str, list[StepInstance]] = {}
    for instance in plan.instances:
        collected = [aggregates[e.source] for e in instance.edges if e.source in aggregates]
        is_end = instance.kind is StepKind.MANIFEST and bool(collected)
        steps[instance.id] = collected[0] if is_end else instance.step
        if not is_end:
            members.setdefault(instance.step, []).append(instance)
    return [_node(plan, step, instances, steps) for step, instances in members.items()]


def graph_of_all(plans: Sequence[Plan]) -> list[Node]:
    """The steps of a study's plan, with the tasks of its extensions, too."""
    first, *added = (graph_of(plan) for plan in plans)
    of_steps = [{node.step: node.tasks for node in nodes} for nodes in added]
    return [
        replace(node, tasks=total([node.tasks, *(tasks.get(node.step, 0) for tasks in of_steps)]))
        for node in first
    ]


def _node(plan: Plan, step: str, instances: list[StepInstance], steps: dict[str, str]) -> Node:
    # a manifest also waits for other steps, but gets data only from its shards
    edges = [edge for i in instances if i.kind is not StepKind.MANIFEST for edge in i.edges]
    return Node(
        step=step,
        kind=instances[0].kind.value,
        instances=len(instances),
        tasks=total(tasks_of(plan, instance) for instance in instances),
        after={steps[edge.source]: edge.kind for edge in edges if steps[edge.source] != step},
    )


def listing(nodes: list[Node]) -> list[str]:
    """A line for each step, and indented below it what the step waits for."""
    lines = []
    for node in nodes:
        lines.append(f"{node.step}  [{node.caption}]")
        lines += [f"    {_WAITS[kind]} {source}" for source, kind in node.after.items()]
    return lines


def mermaid(nodes: list[Node]) -> str:
    """Mermaid flowchart: thin arrows go sample by sample, thick wait for all, dotted fill shards."""
    ids = {n.step: f"n{k}_" + re.sub(r"\W", "_", n.step, flags=re.ASCII) for k, n in enumerate(nodes)}
    lines = ["flowchart TD"]
    for node in nodes:
        label = node.step.replace('"', "#quot;")
        lines.append(f'    {ids[node.step]}["{label}<br/>{node.caption}"]')
    for node in nodes:
        lines.extend(f"    {ids[s]} {_ARROWS[kind]} {ids[node.step]}" for s, kind in node.after.items())
    return "\n".join(lines)
