"""The graph of a plan's steps, one node per step whatever its parameters, as a list and as Mermaid text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from merlin.plan.plan import Plan, StepKind
from merlin.views.forecast import UNKNOWN, tasks_of, total


@dataclass(slots=True, kw_only=True)
class Node:
    """A step: how many instances and tasks it has, and what it waits for (source name -> edge kind)."""

    name: str
    kind: str
    num_instances: int = 0
    num_tasks: int | None = 0
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def caption(self) -> str:
        """ "3 × 10 tasks", "1 shard"."""
        noun = "shard" if self.kind == StepKind.AGGREGATE else "task"
        if self.num_tasks is None:
            return f"{noun}s {UNKNOWN}"
        plural = "" if self.num_tasks == 1 else "s"
        by = f" in {self.num_instances} instances" if self.num_instances > 1 else ""
        return f"{self.num_tasks:,} {noun}{plural}{by}"


def graph_of(plan: Plan) -> list[Node]:
    """The steps of `plan` in topological order; manifests belong to the aggregate they finish."""
    owner = {i.id: i for i in plan.instances}
    names: dict[str, str] = {}  # instance id -> node name
    nodes: dict[str, Node] = {}
    for instance in plan.instances:
        if instance.kind is StepKind.MANIFEST:
            collected = [e.source for e in instance.edges if owner[e.source].kind is StepKind.AGGREGATE]
            if collected:
                names[instance.id] = names[collected[0]]
                continue
        node = nodes.setdefault(instance.step, Node(name=instance.step, kind=instance.kind.value))
        names[instance.id] = instance.step
        node.num_instances += 1
        node.num_tasks = total((node.num_tasks, tasks_of(plan, instance)))
    for instance in plan.instances:
        if instance.kind is StepKind.MANIFEST:
            continue  # what it waits for besides its shards is no flow of data
        target = names[instance.id]
        for edge in instance.edges:
            source = names[edge.source]
            if source != target:
                nodes[target].sources[source] = edge.kind
    return list(nodes.values())


def listing(nodes: list[Node]) -> list[str]:
    """A line for each step, and indented below it what the step waits for."""
    lines = []
    for node in nodes:
        lines.append(f"{node.name}  [{node.caption}]")
        lines += [f"    {_WAITS[kind]} {source}" for source, kind in node.sources.items()]
    return lines


_WAITS = {"same": "sample by sample, after", "all": "after all of", "block": "shard by shard, after"}
_ARROWS = {"same": "-->", "all": "==>", "block": "-.->"}


def mermaid(nodes: list[Node]) -> str:
    """Mermaid flowchart: thin arrows go sample by sample, thick wait for all, dotted fill shards."""
    ids = {
        node.name: f"n{k}_" + re.sub(r"\W", "_", node.name, flags=re.ASCII) for k, node in enumerate(nodes)
    }
    lines = ["flowchart TD"]
    for node in nodes:
        label = node.name.replace('"', "#quot;")
        lines.append(f'    {ids[node.name]}["{label}<br/>{node.caption}"]')
    for node in nodes:
        lines.extend(f"    {ids[s]} {_ARROWS[kind]} {ids[node.name]}" for s, kind in node.sources.items())
    return "\n".join(lines)
