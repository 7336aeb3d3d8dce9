"""Small plans and ledgers, made by hand."""

from __future__ import annotations

from typing import Any

from merlin.plan.pieces import Run
from merlin.plan.plan import Aggregate, Edge, Plan, StepInstance, StepKind
from merlin.plan.runs import RunMap


def step(id: str, n: int, *edges: Edge, **more: Any) -> StepInstance:
    usual: dict[str, Any] = {"step": id, "kind": StepKind.CMD, "per_sample": True}
    return StepInstance(id=id, num_tasks=n, edges=edges, **(usual | more))


def same(source: str) -> Edge:
    return Edge(source=source, kind="same", group=source)


def every(source: str, group: str = "") -> Edge:
    return Edge(source=source, kind="all", group=group or f"{source}_*")


def gather(id: str, sources: tuple[str, ...], num_rows: int, size: int) -> StepInstance:
    """An aggregate of `num_rows` rows, `size` to a shard."""
    block = tuple(Edge(source=s, kind="block", group="from") for s in sources)
    aggregate = Aggregate(sources=sources, fields=(), samples_per_shard=size)
    return step(id, -(-num_rows // size), *block, kind=StepKind.AGGREGATE, aggregate=aggregate)


def plan(*instances: StepInstance, **more: Any) -> Plan:
    usual: dict[str, Any] = {
        "name": "p",
        "study_id": "s",
        "workspace": "/w",
        "spec_path": "",
        "spec_root": "",
        "spec_digest": "",
        "created": "",
        "seed": 0,
        "samples": None,
        "variables": {},
    }
    return Plan(instances=instances, **(usual | more))


def runs(n: int, *parts: Run) -> RunMap:
    """The outcomes of an instance with n tasks, as a ledger gives them."""
    out = RunMap(n)
    for part in parts:
        out.set(*part)
    return out
