"""A plan as the scripts in Redis want it: instances by number, edges turned into lists of what follows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from merlin.errors import ExecutionError
from merlin.study.chunking import ChunkSizer
from merlin.study.pieces import Run
from merlin.study.plan import Plan, StepInstance, StepKind
from merlin.study.schedule import Counts, Scheduler, shown_limit

MAX_TASKS = 2**50  # sums over all instances; numbers in Lua and scores in Redis are exact below 2**53
MAX_INSTANCES = 10**6

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Graph:
    """What does not change while a study runs."""

    indices: Mapping[str, int]  # by instance id
    bases: tuple[int, ...]  # of each instance: the number of its task 0
    num_tasks: int
    descriptions: tuple[Json, ...]
    groups: tuple[tuple[int, str, tuple[int, ...]], ...]  # target, name, sources (one per edge)


def graph_of(plan: Plan) -> Graph:
    """Raises ExecutionError if the plan has more tasks than can be told apart."""
    indices = {instance.id: i for i, instance in enumerate(plan.instances)}
    bases, at = [], 0
    for instance in plan.instances:
        bases.append(at)
        at += instance.num_tasks
    if at > MAX_TASKS or len(bases) > MAX_INSTANCES:
        raise ExecutionError(
            f"the study has {at} tasks in {len(bases)} step instances; Redis can count {MAX_TASKS} in {MAX_INSTANCES}"
        )
    ranks = _ranks(plan)
    descriptions = [
        _describe(instance, bases[i], ranks[instance.id]) for i, instance in enumerate(plan.instances)
    ]
    groups: list[tuple[int, str, tuple[int, ...]]] = []
    for target, instance in enumerate(plan.instances):
        _connect(descriptions, indices, plan, target)
        for name, sources in _groups(instance, indices):
            for source in sources:
                descriptions[source]["member_of"].append(f"g{len(groups)}")
            groups.append((target, name, sources))
    return Graph(indices, tuple(bases), at, tuple(descriptions), tuple(groups))


def _ranks(plan: Plan) -> dict[str, int]:
    """The order in which instances get workers: gathers first, then the deepest, then as in the plan."""
    depth: dict[str, int] = {}
    keys: dict[str, tuple[int, int, int]] = {}
    for index, instance in enumerate(plan.instances):
        depth[instance.id] = 1 + max((depth[e.source] for e in instance.edges), default=-1)
        gathers = instance.kind in (StepKind.AGGREGATE, StepKind.MANIFEST)
        keys[instance.id] = (-int(gathers), -depth[instance.id], index)
    return {id: rank for rank, id in enumerate(sorted(keys, key=keys.__getitem__))}


def _describe(instance: StepInstance, base: int, rank: int) -> Json:
    out: Json = {
        "id": instance.id,
        "kind": str(instance.kind),
        "base": base,
        "n": instance.num_tasks,
        "rank": rank,
        "max_size": ChunkSizer(instance, 1.0).limit,
        "continues": instance.on_failure == "continue",
        "canary": instance.canary,
        "crash_limit": instance.crash_limit,
        "is_root": not instance.edges,
        "same": [],  # sources
        "targets": [],  # of `same` edges
        "shards": [],  # targets of `block` edges: [target, row of task 0]
        "member_of": [],  # groups of `all` edges
    }
    if instance.max_failures is not None:
        limit, n = instance.max_failures, instance.num_tasks
        out["max_failed"] = limit * n if limit < 1 else limit
        out["allowed"] = shown_limit(limit)
    return out


def _connect(descriptions: list[Json], indices: Mapping[str, int], plan: Plan, target: int) -> None:
    """The target's `same` and `block` edges."""
    instance, mine = plan.instances[target], descriptions[target]
    for edge in instance.edges:
        if edge.kind == "same":
            source = indices[edge.source]
            mine["same"].append(source)
            descriptions[source]["targets"].append(target)
    if instance.aggregate is None or not any(edge.kind == "block" for edge in instance.edges):
        return
    mine["rows"], mine["block"], offset = instance.aggregate.samples_per_shard, [], 0
    blocks = {edge.source for edge in instance.edges if edge.kind == "block"}
    for id in instance.aggregate.sources:
        source, n = indices[id], plan.instances[indices[id]].num_tasks
        mine["block"].append([source, offset, n])
        if id in blocks:
            descriptions[source]["shards"].append([target, offset])
        offset += n


def _groups(target: StepInstance, indices: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    groups: dict[str, list[int]] = {}
    for edge in target.edges:
        if edge.kind == "all":
            groups.setdefault(edge.group, []).append(indices[edge.source])
    for name, sources in groups.items():
        yield name, tuple(sources)


# ------------------------------------------------------------------ what changes


@dataclass(frozen=True, slots=True)
class Opening:
    """The state of a study at its start, as the scheduler sees it after reading the ledger."""

    insts: dict[str, str]  # by number, or "g" and the group's number; JSON
    active: list[tuple[int, int]]  # instance, rank
    num_open: int
    verdicts: list[Json]
    scheduler: Scheduler

    def runs(self, graph: Graph) -> Iterator[Run]:
        """All tasks of all instances on one number line."""
        for id, i in graph.indices.items():
            for lo, hi, state in self.scheduler.tasks(id):
                yield graph.bases[i] + lo, graph.bases[i] + hi, state


def opening_of(plan: Plan, graph: Graph, scheduler: Scheduler) -> Opening:
    counts = scheduler.counts()
    open_groups = [0] * len(plan.instances)
    insts: dict[str, str] = {}
    for number, (target, name, sources) in enumerate(graph.groups):
        num_open = sum(counts[plan.instances[s].id].missing > 0 for s in sources)
        open_groups[target] += num_open > 0
        state = {"target": target, "name": name, "open": num_open, "flows": _flows(plan, counts, sources)}
        insts[f"g{number}"] = _dump(state)
    active = []
    for i, instance in enumerate(plan.instances):
        have = counts[instance.id]
        if have.ready:
            active.append((i, graph.descriptions[i]["rank"]))
        insts[str(i)] = _dump(
            {
                **{name: getattr(have, name) for name in ("ok", "soft_failed", "skipped")},
                "failed": have.failed - have.soft_failed,
                **{name: getattr(have, name) for name in ("waiting", "ready", "queued", "running")},
                "requeued": 0,  # chunks in the queue
                "groups": open_groups[i],  # of `all` edges, not closed
                "told": have.missing == 0,  # its targets know that it has ended
                "active": have.ready > 0,
                "wanting": have.ready > 0,
                "started": bool(have.ok or have.failed),
                "size": ChunkSizer(instance, 1.0).size,
                "busy_s": 0.0,
                "learned": 0.0,
                "tickets": 0,  # outstanding
                "touched": 0.0,  # server time of the last ticket or hand-out
            }
        )
    verdicts = [
        {
            "i": graph.indices[v.instance],
            "lo": v.lo,
            "hi": v.hi,
            "outcome": int(v.outcome),
            "cause": v.cause,
            "attempt": v.attempt,
        }
        for v in scheduler.verdicts()
    ]
    num_open = sum(c.missing > 0 for c in counts.values())
    return Opening(insts, active, num_open, verdicts, scheduler)


def _flows(plan: Plan, counts: Mapping[str, Counts], sources: tuple[int, ...]) -> bool:
    """Whether something of a group may flow downstream, as far as its sources have ended."""
    instances = [plan.instances[s] for s in sources]
    if not any(instance.num_tasks for instance in instances):
        return True
    for instance in instances:
        have = counts[instance.id]
        let_through = have.failed if instance.on_failure == "continue" else have.soft_failed
        if have.missing == 0 and (have.ok or let_through):
            return True
    return False


def _dump(data: Json) -> str:
    return json.dumps(data, separators=(",", ":"))
