"""Any implementation of `Progress` under random plans, outcomes, losses, expired leases and restarts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from effort import repeats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from servers import RedisServer

from merlin.execution.distributed.redis_progress import RedisProgress
from merlin.study.plan import Aggregate, Edge, Plan, StepInstance, StepKind
from merlin.study.progress import Progress
from merlin.study.reopen import reopen_failed
from merlin.study.runs import RunMap
from merlin.study.schedule import Scheduler
from merlin.study.tasks import NO_OUTCOME, Outcome
from merlin.testing import redis_check
from merlin.testing.plans import plan
from merlin.testing.progress import LEASE_S
from merlin.testing.random_progress import World

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)

MakeWorld = Callable[[Plan, Random], World]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A random DAG: per-sample steps, single steps, function steps, aggregates with their manifests."""
    num_samples = draw(st.integers(1, 40))
    instances: list[StepInstance] = []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([StepKind.CMD, StepKind.FUNCTION, StepKind.AGGREGATE]))
        per_sample = [i for i in instances if i.per_sample]
        if kind is StepKind.AGGREGATE and per_sample:
            instances += _aggregate(draw, f"s{index}", per_sample, instances)
            continue
        kind = StepKind.CMD if kind is StepKind.AGGREGATE else kind
        n = draw(st.sampled_from([1, num_samples]))
        edges = []
        for source in instances:
            choice = draw(st.sampled_from(["", "", "same", "all", "all"]))
            if choice == "same" and source.per_sample and source.num_tasks == n:
                edges.append(Edge(source=source.id, kind="same", group=source.id))
            elif choice == "all":
                edges.append(Edge(source=source.id, kind="all", group=draw(st.sampled_from(["g", "h"]))))
        instances.append(
            StepInstance(
                id=f"s{index}",
                step=f"s{index}",
                kind=kind,
                num_tasks=n,
                per_sample=n == num_samples,
                canary=0,
                crash_limit=draw(st.integers(1, 3)),
                edges=tuple(edges),
                on_failure=draw(st.sampled_from(["skip", "continue"])),
            )
        )
    return plan(*instances)


def _aggregate(
    draw: st.DrawFn, id: str, sources: list[StepInstance], instances: list[StepInstance]
) -> list[StepInstance]:
    first = draw(st.sampled_from(sources))
    chosen = tuple(s.id for s in sources if s.num_tasks == first.num_tasks)
    size = draw(st.integers(1, 12))
    aggregate = Aggregate(sources=chosen, fields=(), samples_per_shard=size)
    edges = [Edge(source=s, kind="block", group="from") for s in chosen]
    edges += [
        Edge(source=i.id, kind="all", group="g")
        for i in instances
        if i.id not in chosen and draw(st.booleans())
    ]
    shards = StepInstance(
        id=id,
        step=id,
        kind=StepKind.AGGREGATE,
        num_tasks=-(-len(chosen) * first.num_tasks // size),
        per_sample=False,
        canary=0,
        aggregate=aggregate,
        edges=tuple(edges),
    )
    edge = Edge(source=id, kind="all", group=id)
    manifest = replace(shards, id=f"{id}/manifest", kind=StepKind.MANIFEST, num_tasks=1, edges=(edge,))
    return [shards, manifest]


def in_memory(plan: Plan, random: Random) -> World:
    def make(plan: Plan, outcomes: Mapping[str, RunMap], num_workers: int) -> Progress:
        return Scheduler(plan, outcomes, num_workers=num_workers, lease_s=LEASE_S)

    def check(progress: Any) -> None:
        progress.check()

    return World(plan, random, make, check)


def in_redis(client: Any) -> MakeWorld:
    def make(plan: Plan, outcomes: Mapping[str, RunMap], num_workers: int) -> Progress:
        made = RedisProgress(client, "test", plan, lease_s=LEASE_S, clock="caller")
        made.open(outcomes, session="", first_attempt=1, num_workers_hint=num_workers)
        return made

    def make_world(plan: Plan, random: Random) -> World:
        return World(plan, random, make, lambda progress: redis_check.check(progress, client, plan))  # type: ignore[arg-type]

    return make_world


def run_to_the_end(world: World) -> None:
    """Every task gets exactly one outcome, and dependencies hold."""
    world.run()
    world.expect_complete()


def run_killed_and_completed(world: World, random: Random, num_chunks: int) -> None:
    """A run killed anywhere is completed by the next."""
    for _ in range(num_chunks):
        chunk = world.progress.take(world.now)
        if chunk is None:
            break
        for task in chunk.task_ids():
            if random.random() < 0.7:
                world.record(chunk, task, random.choice([OK, FAILED, SOFT_FAILED, INTERRUPTED]))
        if random.random() < 0.2:
            world.start()
            continue
        left = [r for r in world.ledger[chunk.instance].runs(chunk.lo, chunk.hi) if r[2] != NO_OUTCOME]
        assert world.progress.lost(chunk, left, world.now)
        world.note_verdicts()
    world.start()
    run_to_the_end(world)


def run_and_reopen(world: World) -> None:
    """Reopened failures leave a ledger that can be completed."""
    world.run()
    for id, ranges in reopen_failed(world.plan, world.ledger).items():
        for lo, hi in ranges:
            assert not world.ledger[id].ranges([NO_OUTCOME], lo, hi)
            world.ledger[id].set(lo, hi, NO_OUTCOME)
    assert not any(m.ranges([FAILED, SOFT_FAILED, SKIPPED]) for m in world.ledger.values())
    world.start()
    run_to_the_end(world)


randoms = st.randoms(use_true_random=False)


class TestScheduler:
    @settings(max_examples=repeats(75, 1000), deadline=None)
    @given(plans(), randoms)
    def test_every_task_gets_exactly_one_outcome_and_dependencies_hold(
        self, plan: Plan, random: Random
    ) -> None:
        run_to_the_end(in_memory(plan, random))

    @settings(max_examples=repeats(50, 1000), deadline=None)
    @given(plans(), randoms, st.integers(0, 30))
    def test_a_run_killed_anywhere_is_completed_by_the_next(
        self, plan: Plan, random: Random, num_chunks: int
    ) -> None:
        run_killed_and_completed(in_memory(plan, random), random, num_chunks)

    @settings(max_examples=repeats(50, 1000), deadline=None)
    @given(plans(), randoms)
    def test_reopened_failures_leave_a_ledger_that_can_be_completed(self, plan: Plan, random: Random) -> None:
        run_and_reopen(in_memory(plan, random))


few = settings(
    max_examples=repeats(12, 250),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class TestRedis:
    @pytest.fixture(autouse=True)
    def _server(self, any_redis: RedisServer) -> Any:
        with any_redis.client() as client:
            self.world = in_redis(client)
            yield

    @few
    @given(plans(), randoms)
    def test_every_task_gets_exactly_one_outcome_and_dependencies_hold(
        self, plan: Plan, random: Random
    ) -> None:
        run_to_the_end(self.world(plan, random))

    @few
    @given(plans(), randoms, st.integers(0, 30))
    def test_a_run_killed_anywhere_is_completed_by_the_next(
        self, plan: Plan, random: Random, num_chunks: int
    ) -> None:
        run_killed_and_completed(self.world(plan, random), random, num_chunks)

    @few
    @given(plans(), randoms)
    def test_reopened_failures_leave_a_ledger_that_can_be_completed(self, plan: Plan, random: Random) -> None:
        run_and_reopen(self.world(plan, random))
