"""The scheduler under random plans, outcomes, losses and restarts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.study.plan import Aggregate, Edge, Plan, StepInstance, StepKind
from merlin.study.reopen import reopen_failed
from merlin.study.runs import RunMap
from merlin.study.schedule import Scheduler
from merlin.study.tasks import NO_OUTCOME, Chunk, ChunkResult, Deferred, Outcome

OK, FAILED, SKIPPED, INTERRUPTED = (int(o) for o in Outcome)


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
    return Plan(
        name="p",
        study_id="s",
        workspace="/w",
        spec_path="",
        spec_root="",
        spec_digest="",
        created="",
        seed=0,
        samples=None,
        variables={},
        instances=tuple(instances),
    )


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


class World:
    """Simulated workers, the ledger they write, and the rules that must hold."""

    def __init__(self, plan: Plan, random: Random) -> None:
        self.plan, self.random = plan, random
        self.spec = {i.id: i for i in plan.instances}
        self.ledger = {i.id: RunMap(i.num_tasks, NO_OUTCOME) for i in plan.instances}
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """A new command on the same ledger."""
        self.out: list[Chunk] = []
        self.scheduler = Scheduler(self.plan, self.ledger, num_workers=self.random.choice([1, 2, 5]))
        self.note_verdicts()

    def note_verdicts(self) -> None:
        self.scheduler.check()
        for v in self.scheduler.verdicts():
            assert self.ledger[v.instance].ranges([NO_OUTCOME, INTERRUPTED], v.lo, v.hi) == [(v.lo, v.hi)]
            self.ledger[v.instance].set(v.lo, v.hi, int(v.outcome))

    def record(self, chunk: Chunk, task: int, outcome: int) -> None:
        """Exactly once: no task that has an outcome gets another."""
        assert self.ledger[chunk.instance][task] in (NO_OUTCOME, INTERRUPTED)
        self.ledger[chunk.instance].set(task, task + 1, outcome)

    def run(self) -> None:
        """Until nothing is left to do."""
        while True:
            while len(self.out) < 5 and (chunk := self.scheduler.take(self.now)) is not None:
                self.scheduler.check()
                self.expect_sources_ended(chunk)
                self.out.append(chunk)
            if not self.out and (wake := self.scheduler.next_wakeup()) is not None:
                self.now = wake
                continue
            if not self.out:
                return
            self.end(self.out.pop(self.random.randrange(len(self.out))))
            self.note_verdicts()

    def expect_sources_ended(self, chunk: Chunk) -> None:
        spec = self.spec[chunk.instance]
        for edge in spec.edges:
            source = self.ledger[edge.source]
            if edge.kind == "same":
                passing = [OK, FAILED] if self.spec[edge.source].on_failure == "continue" else [OK]
                assert all(source[task] in passing for task in chunk.task_ids())
            elif edge.kind == "all":
                assert not source.ranges([NO_OUTCOME, INTERRUPTED])
        if spec.kind is StepKind.AGGREGATE:
            self.expect_rows_ended(spec, chunk)

    def expect_rows_ended(self, spec: StepInstance, chunk: Chunk) -> None:
        assert spec.aggregate is not None and chunk.hi == chunk.lo + 1
        size = spec.aggregate.samples_per_shard
        rows = [self.ledger[s][t] for s in spec.aggregate.sources for t in range(self.spec[s].num_tasks)]
        absent = {row for a, b in chunk.absent_rows for row in range(a, b)}
        mine = range(chunk.lo * size, min(len(rows), chunk.hi * size))
        assert all(rows[row] in (OK, FAILED, SKIPPED) for row in mine)
        assert absent == {row for row in mine if rows[row] != OK}

    def end(self, chunk: Chunk) -> None:
        """A chunk ends as a whole, in part, or with its worker's death."""
        how = self.random.choice(["whole", "whole", "part", "lost", "back"])
        if how == "back":
            self.scheduler.give_back(chunk)
            return
        runs: list[tuple[int, int, int]] = []
        deferred: list[Deferred] = []
        for task in chunk.task_ids():
            lot = self.random.random()
            if how != "whole" and lot < 0.5:
                if lot < 0.25:
                    runs.append((task, task + 1, INTERRUPTED))
                continue
            if how != "lost" and lot > 0.9:
                later = replace(chunk, lo=task, hi=task + 1, holes=(), retries=chunk.retries + 1)
                deferred.append(Deferred(chunk=later, delay_s=self.random.random()))
                continue
            outcome = FAILED if self.random.random() < 0.2 else OK
            self.record(chunk, task, outcome)
            runs.append((task, task + 1, outcome))
        if how == "lost":
            self.scheduler.lost(chunk, runs, self.now, signal="SIGKILL")
        else:
            self.scheduler.finished(
                ChunkResult(chunk=chunk, runs=tuple(runs), deferred=tuple(deferred), busy_s=0.01), self.now
            )

    def expect_complete(self) -> None:
        assert self.scheduler.is_complete
        for id, counts in self.scheduler.counts().items():
            have = self.ledger[id].counts()
            assert counts.missing == 0
            assert counts.planned == counts.ok + counts.failed + counts.skipped
            assert (counts.ok, counts.failed, counts.skipped) == tuple(have.get(v, 0) for v in (0, 1, 2))
        for id, spec in self.spec.items():
            for edge in spec.edges:
                if edge.kind != "same" or self.spec[edge.source].on_failure == "continue":
                    continue
                for a, b in self.ledger[edge.source].ranges([FAILED, SKIPPED]):
                    assert self.ledger[id].ranges([SKIPPED], a, b) == [(a, b)]


@settings(max_examples=150, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_every_task_gets_exactly_one_outcome_and_dependencies_hold(plan: Plan, random: Random) -> None:
    world = World(plan, random)
    world.run()
    world.expect_complete()


@settings(max_examples=100, deadline=None)
@given(plans(), st.randoms(use_true_random=False), st.integers(0, 30))
def test_a_run_killed_anywhere_is_completed_by_the_next(plan: Plan, random: Random, num_chunks: int) -> None:
    world = World(plan, random)
    for _ in range(num_chunks):
        chunk = world.scheduler.take(world.now)
        if chunk is None:
            break
        for task in chunk.task_ids():
            if random.random() < 0.7:
                world.record(chunk, task, random.choice([OK, FAILED, INTERRUPTED]))
        if random.random() < 0.2:
            world.start()
            continue
        left = [r for r in world.ledger[chunk.instance].runs(chunk.lo, chunk.hi) if r[2] != NO_OUTCOME]
        world.scheduler.lost(chunk, left, world.now)
        world.note_verdicts()
    world.start()
    world.run()
    world.expect_complete()


@settings(max_examples=100, deadline=None)
@given(plans(), st.randoms(use_true_random=False))
def test_reopened_failures_leave_a_ledger_that_can_be_completed(plan: Plan, random: Random) -> None:
    world = World(plan, random)
    world.run()
    for id, ranges in reopen_failed(plan, world.ledger).items():
        for lo, hi in ranges:
            assert not world.ledger[id].ranges([NO_OUTCOME], lo, hi)
            world.ledger[id].set(lo, hi, NO_OUTCOME)
    assert not any(m.ranges([FAILED, SKIPPED]) for m in world.ledger.values())
    world.start()
    world.run()
    world.expect_complete()
