"""What must hold in a scheduler and in an owner after every event."""

from __future__ import annotations

from merlin.base.ranges import Range, merged
from merlin.plan.owner import Owner
from merlin.plan.pieces import pieces_of
from merlin.plan.readiness import decided, open_shards
from merlin.plan.schedule import Scheduler
from merlin.plan.task_states import QUEUED, READY, RUNNING, STATE_NAMES, InstanceState


def check(scheduler: Scheduler) -> None:
    held: dict[tuple[str, int], list[Range]] = {}
    consequences = scheduler._consequences
    for kind, chunks in ((RUNNING, scheduler._leases.values()), (QUEUED, scheduler._backlog.chunks())):
        for chunk in chunks:
            held.setdefault((chunk.instance, kind), []).extend(pieces_of(chunk))
    for id, state in scheduler._states.items():
        real = state.tasks.counts()
        assert {k: v for k, v in state.num.items() if v} == real, f"{id}: counts {state.num} but {real}"
        assert state.is_ended == (id in consequences.ended), f"{id}: its end is not known"
        assert all(a >= state.cursor for a, _ in state.tasks.ranges((READY,))), (
            f"{id}: ready below the cursor"
        )
        for kind in (RUNNING, QUEUED):
            have = merged(held.get((id, kind), []))
            assert have == state.tasks.ranges((kind,)), f"{id}: {STATE_NAMES[kind]} {have}"
        _check_dependencies(state, is_settled=not consequences._changed)
        same_queue = [s for s in scheduler._states.values() if s.queue_ready is state.queue_ready]
        assert state.queue_ready.num == sum(s.num[READY] for s in same_queue), f"{id}: ready in its queue"


def _check_dependencies(state: InstanceState, *, is_settled: bool) -> None:
    id = state.instance.id
    started = state.tasks.ranges((READY, QUEUED, RUNNING))
    closed = all(s.is_ended for g in state.groups for s in g.sources)
    assert closed == (state.num_open_groups == 0), f"{id}: {state.num_open_groups} groups are open"
    assert closed or not started, f"{id}: started before what it depends on ended"
    for a, b in started:
        for source in state.same_sources:
            blocking = set(STATE_NAMES) - set(source.passing)
            early = source.tasks.ranges(blocking, a, b)
            assert not early, f"{id}: [{a}, {b}) started before {source.instance.id}"
        if state.block_sources:
            assert not open_shards(state, a, b), f"{id}: a shard started before its rows ended"
    if closed and is_settled:
        assert not decided(state, 0, state.tasks.size), f"{id}: waits for nothing"


def check_owner(owner: Owner) -> None:
    check(owner.scheduler)
    for queue, line in owner._offered.items():
        for lease in line.since:
            chunk = owner.scheduler.held(lease)
            assert chunk is not None, f"an offer that is not handed out: {lease}"
            assert owner._queues[chunk.instance] == queue, f"{chunk} is offered in {queue}"
