"""Reads back what Redis holds of a study, and holds it against the invariants of the scheduler in memory."""

from __future__ import annotations

import json
from collections import deque
from itertools import pairwise
from typing import Any

from merlin.execution.distributed.redis_progress import KEYS, RedisProgress
from merlin.study.plan import Plan
from merlin.study.runs import RunMap
from merlin.study.schedule import READY, STATE_NAMES, Scheduler, _Lease
from merlin.study.tasks import Chunk

Json = dict[str, Any]


def check(progress: RedisProgress, client: Any, plan: Plan) -> None:
    """Assert that everything in Redis fits together. The client decodes responses, and nobody writes meanwhile."""
    found = _Found(progress, client)
    assert not found.pending, f"work is left: {found.pending}"
    found.check_indexes(plan)
    scheduler = found.as_scheduler(plan)
    scheduler.check()


class _Found:
    """All keys of one study."""

    def __init__(self, progress: RedisProgress, client: Any) -> None:
        key = dict(zip(KEYS, progress.keys, strict=True))
        pipe = client.pipeline()
        for name in ("meta", "graph", "inst", "leases"):
            pipe.hgetall(key[name])
        for name in ("runs", "ready", "active", "wanting", "expiry", "queue", "deferred"):
            pipe.zrange(key[name], 0, -1, withscores=True)
        pipe.lrange(key["pending"], 0, -1)
        pipe.hgetall(key["tickets"])
        self.meta, graph, inst, leases, *sets, self.pending, self.tickets = pipe.execute()
        self.runs, self.ready, self.active, self.wanting, self.expiry, self.queue, self.deferred = sets
        self.graph: list[Json] = [json.loads(graph[str(i)]) for i in range(len(graph))]
        self.inst: dict[str, Json] = {name: json.loads(text) for name, text in inst.items()}
        self.leases: dict[str, Json] = {name: json.loads(text) for name, text in leases.items()}

    def check_indexes(self, plan: Plan) -> None:
        """What is kept twice, to be found fast, is the same."""
        parsed = [tuple(map(int, member.split(":"))) for member, _ in self.runs]
        assert [run[0] for run in parsed] == [score for _, score in self.runs], (
            "a run is not scored by its start"
        )
        at = 0
        for lo, hi, _ in parsed:
            assert lo == at < hi, f"the runs do not tile at {at}: {parsed}"
            at = hi
        assert at == sum(instance.num_tasks for instance in plan.instances) == int(self.meta["num_tasks"])
        bases = {spec["base"] for spec in self.graph}
        for left, right in pairwise(parsed):
            assert left[2] != right[2] or right[0] in bases, f"{left} and {right} are not merged"
        assert [m for m in self.runs if m[0].endswith(f":{READY}")] == self.ready, "the ready runs differ"
        assert {name for name, _ in self.expiry} == set(self.leases), "leases and their times differ"
        working, wanting = set(), set()
        for i, spec in enumerate(self.graph):
            state = self.inst[str(i)]
            num_queued = sum(m.startswith(f"{i:06d}:") for m, _ in self.queue)
            assert state["requeued"] == num_queued, f"{spec['id']}: {num_queued} chunks wait to run again"
            assert state["tickets"] == sum(int(v) == i for v in self.tickets.values()), (
                f"{spec['id']}: tickets"
            )
            if state["ready"] or state["requeued"]:
                working.add((str(i), spec["rank"]))
                if self.num_to_come(state) > state["tickets"]:
                    wanting.add((str(i), spec["rank"]))
        assert set(self.active) == working, "the instances with work differ"
        assert set(self.wanting) == wanting, "the instances that lack tickets differ"
        num_open = sum(not self.inst[str(i)]["told"] for i in range(len(self.graph)))
        assert int(self.meta["num_open"]) == num_open

    def num_to_come(self, state: Json) -> int:
        """Chunks to come of an instance, as far as they get tickets."""
        workers = int(self.meta.get("ticket_workers", self.meta["workers"]))
        share = -(-(state["ready"] + state["waiting"]) // (2 * workers))
        size = max(1, min(state["size"], share))
        return int(min(int(self.meta.get("ticket_limit", 1)), -(-state["ready"] // size) + state["requeued"]))

    def as_scheduler(self, plan: Plan) -> Scheduler:
        """A scheduler in memory that stands where Redis stands."""
        made = Scheduler(plan, {}, num_workers=1)
        made._changed.clear()
        made._active.clear()
        made._ended = {s["id"] for i, s in enumerate(self.graph) if self.inst[str(i)]["told"]}
        for i, instance in enumerate(plan.instances):
            base, have, state = self.graph[i]["base"], self.inst[str(i)], made._states[instance.id]
            mine = [tuple(map(int, member.split(":"))) for member, _ in self.runs]
            local = [(a - base, b - base, v) for a, b, v in mine if base <= a < base + instance.num_tasks]
            state.tasks = RunMap.from_runs(instance.num_tasks, local)
            state.num = {value: have[name] for value, name in STATE_NAMES.items()}
            state.cursor = 0
            state.num_open_groups = have["groups"]
            waiting = [json.loads(m[20:]) for m, _ in self.queue if m.startswith(f"{i:06d}:")]
            state.requeue = deque(_chunk(plan, data) for data in waiting)
        made._deferred = [
            (due, n, _chunk(plan, json.loads(m[20:]))) for n, (m, due) in enumerate(self.deferred)
        ]
        made._leases.clear()
        for lease, entry in self.leases.items():
            made._leases[lease] = _Lease(_chunk(plan, entry["chunk"]), 0.0)
        return made


def _chunk(plan: Plan, data: Json) -> Chunk:
    holes = tuple((a, b) for a, b in data.get("holes", ()))
    return Chunk(
        instance=plan.instances[data["i"]].id,
        lo=data["lo"],
        hi=data["hi"],
        attempt=data["attempt"],
        holes=holes,
    )
