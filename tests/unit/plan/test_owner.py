"""The owner of a study on workers: its answers to each event, and storms of them."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from typing import Any

from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from invariants import check_owner
from random_plans import plans
from small_plans import every, plan, runs, same, step
from storms import FAILED, INTERRUPTED, OK, SKIPPED, SOFT_FAILED, World

from merlin.plan.owner import SECONDS_PER_RESULT, Handout, Owner
from merlin.plan.pieces import num_tasks, pieces_of
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.reopen import reopen_failed
from merlin.plan.reports import ChunkReport
from merlin.plan.runs import RunMap
from merlin.plan.schedule import Scheduler
from merlin.plan.take_over import Legacy, take_over
from merlin.plan.tasks import NO_OUTCOME, Chunk, ChunkResult


def owner_of(*instances: StepInstance, workers: int = 1) -> Owner:
    scheduler = Scheduler(plan(*instances), {}, num_workers=workers)
    return Owner(scheduler, min_chunk_s=3.0)


def result_of(chunk: Chunk, outcome: int = OK, **more: Any) -> ChunkReport:
    runs = tuple((a, b, outcome) for a, b in pieces_of(chunk))
    return ChunkReport(chunk=chunk, worker="w", result=ChunkResult(chunk=chunk, runs=runs, **more))


def test_as_many_chunks_wait_in_each_queue_as_its_workers_run_and_one_where_there_are_none() -> None:
    owner = owner_of(
        step("a", 100, queue="cpu"), step("b", 100, queue="gpu"), step("c", 9, every("b"), queue="x")
    )
    offers = owner.offers({"cpu": 3}, 0.0, 99)
    assert Counter(chunk.instance for chunk in offers) == {"a": 3, "b": 1}
    assert owner.offers({"cpu": 3}, 0.0, 99) == [] and owner.running() == 0
    owner.taken(offers[0].lease)
    owner.taken("no such lease")
    assert owner.running() == 1
    assert [chunk.instance for chunk in owner.offers({"cpu": 3}, 0.0, 99)] == ["a"]
    check_owner(owner)


def test_a_limit_is_shared_by_the_queues() -> None:
    """A queue whose workers are fast must not keep the others waiting."""
    owner = owner_of(step("a", 100, queue="cpu"), step("b", 100, queue="gpu"))
    for _ in range(5):
        offers = owner.offers({"cpu": 50, "gpu": 1}, 0.0, 2)
        assert "b" in {chunk.instance for chunk in offers}
        for chunk in offers:
            owner.taken(chunk.lease)


def test_what_a_worker_says_decides_what_follows() -> None:
    done = [(0, 1, OK)]
    for report, state in (
        ({"died": "SIGSEGV"}, {"failed": 1}),
        ({"died": "SIGSEGV", "is_infrastructure": True}, {"queued": 1}),
        ({"is_interrupted": True}, {"queued": 1}),
        ({"trouble": "no such module"}, {"queued": 1}),
        ({}, {"queued": 2}),
    ):
        owner = owner_of(step("a", 64, canary=0, crash_limit=1), workers=16)
        owner.adopt([Handout(chunk=Chunk(instance="a", lo=0, hi=2, lease="x"), since=0.0, worker="w")])
        assert owner.reported(
            ChunkReport(chunk=Chunk(instance="a", lo=0, hi=2, lease="x"), worker="w", **report), done, 0.0
        )
        counts = owner.scheduler.counts()["a"]
        assert {name: getattr(counts, name) for name in state} == state, report
        assert counts.ok == (1 if report else 0)  # one that was not started has left nothing
        stopped = ("no such module", True) if "trouble" in report else ("", False)
        assert (owner.scheduler.stop_reason, owner.scheduler.stop_now) == stopped
        check_owner(owner)


def test_a_report_or_a_lease_that_ran_out_counts_once() -> None:
    owner = owner_of(step("a", 4))
    (chunk,) = owner.offers({}, 0.0, 9)
    report = result_of(chunk, busy_s=3.0)
    assert owner.reported(report, (), 0.0) and not owner.reported(report, (), 0.0)
    assert owner.expired(chunk.lease, ()) is None
    (second,) = owner.offers({}, 0.0, 9)
    owner.taken(second.lease)
    assert owner.expired(second.lease, ()) == second and owner.expired(second.lease, ()) is None
    assert not owner.reported(result_of(second), (), 0.0)
    (again,) = owner.offers({}, 0.0, 9)
    assert owner.is_retry(again) and not owner.is_retry(second) and again.task_ids() == second.task_ids()
    check_owner(owner)


def test_what_nobody_takes_is_overdue_until_its_message_is_sent_again() -> None:
    owner = owner_of(step("a", 9, queue="cpu"), step("b", 9, queue="gpu"))
    a, b = owner.offers({}, 10.0, 9)
    assert owner.overdue(14.0, 5.0) == {} and owner.overdue(15.0, 5.0) == {"cpu": [a], "gpu": [b]}
    owner.taken(a.lease)
    owner.offered_again([b], 15.0)
    assert owner.overdue(19.0, 5.0) == {} and owner.overdue(20.0, 5.0) == {"gpu": [b]}


def test_offers_are_withdrawn_when_the_study_stops_and_end_with_a_step_that_is_failed() -> None:
    owner = owner_of(step("a", 9, queue="cpu"), step("b", 9, queue="gpu"))
    a, b = owner.offers({}, 0.0, 9)
    assert owner.fail(["b"], "cancelled") == [b] and owner.scheduler.num_running == 1
    owner.scheduler.stop("enough")
    assert owner.withdraw() == [a.lease] and owner.withdraw() == [] and owner.scheduler.num_running == 0
    assert owner.offers({}, 0.0, 9) == []
    check_owner(owner)


def test_leases_that_make_no_sense_are_void() -> None:
    owner = owner_of(step("a", 9), step("b", 9, same("a")))
    at = {"since": 0.0}
    good = Handout(chunk=Chunk(instance="a", lo=0, hi=2, lease="1"), worker="w", **at)
    twice = Handout(chunk=Chunk(instance="a", lo=1, hi=3, lease="2"), worker="w", **at)
    early = Handout(chunk=Chunk(instance="b", lo=0, hi=1, lease="3"), **at)
    unknown = Handout(chunk=Chunk(instance="c", lo=0, hi=1, lease="4"), **at)
    assert owner.adopt([good, twice, early, unknown]) == ["2", "3", "4"]
    assert owner.running() == 1


def legacy(handouts: list[Handout], outcomes: RunMap, **more: Any) -> Legacy:
    empty: dict[str, Any] = {"memories": (), "taken": {}, "dealt_with": (), "unread": ()}
    return Legacy(handouts=handouts, outcomes={"a": outcomes}, **empty | more)


def test_an_offer_of_which_something_has_ended_was_taken_meanwhile_or_the_server_has_gone_back_in_time() -> (
    None
):
    p, chunk = plan(step("a", 9)), Chunk(instance="a", lo=0, hi=4, lease="x")
    left = [Handout(chunk=chunk, since=0.0)], runs(9, (0, 1, OK))
    options: dict[str, Any] = {"first_attempt": 1, "name": "2.", "min_chunk_s": 3.0}
    owner, void = take_over(p, legacy(*left, taken={"x": "w"}), **options)
    assert void == [] and owner.running() == 1 and owner.reported(result_of(chunk), (), 0.0)
    owner, void = take_over(p, legacy(*left), **options)
    assert void == ["x"] and not owner.reported(result_of(chunk), (), 0.0)
    check_owner(owner)


def test_what_was_reported_lately_counts_before_its_records_are_seen() -> None:
    p, chunk = plan(step("a", 9)), Chunk(instance="a", lo=0, hi=4, lease="x")
    options: dict[str, Any] = {"first_attempt": 1, "name": "2.", "min_chunk_s": 3.0}
    recorded = runs(9, (0, 1, FAILED), (1, 2, INTERRUPTED))
    owner, _ = take_over(p, legacy([], recorded, dealt_with=[result_of(chunk)]), **options)
    assert list(owner.scheduler.tasks("a"))[:2] == [(0, 1, FAILED), (1, 4, OK)]  # what is recorded stays
    assert recorded.ranges([OK]) == []  # the ledger's own stays, too


def test_ten_thousand_slots_are_kept_busy_by_one_owner() -> None:
    slots, task_s, tick_s, num_ticks = 10_000, 0.2, 0.1, repeats(300, 600)
    owner, idle, busy = owner_of(step("a", 10**8)), slots, []
    waiting: deque[Chunk] = deque()
    running: list[tuple[float, int, Chunk]] = []
    for tick in range(num_ticks):
        now = tick * tick_s
        waiting.extend(owner.offers({"merlin": slots}, now, 300))
        while running and running[0][0] <= now:
            chunk = heapq.heappop(running)[2]
            owner.reported(result_of(chunk, busy_s=task_s * num_tasks(chunk)), (), now)
            idle += 1
        while idle and waiting:
            chunk = waiting.popleft()
            owner.taken(chunk.lease)
            heapq.heappush(running, (now + task_s * num_tasks(chunk), chunk.lo, chunk))
            idle -= 1
        busy.append(1 - idle / slots)
    later = busy[num_ticks // 2 :]
    assert sum(later) >= 0.95 * len(later)
    assert len(waiting) <= slots  # and no more than workers take within seconds
    shortest_s = task_s * min(num_tasks(chunk) for chunk in waiting)
    assert slots / shortest_s <= 1.1 / SECONDS_PER_RESULT


seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=repeats(60, 3000), deadline=None)
@given(plans(), seeds)
def test_every_task_ends_once_whoever_owns_the_study_and_whatever_workers_do(plan: Plan, seed: int) -> None:
    world = World(plan, seed)
    world.run()
    world.expect_complete()


@settings(max_examples=repeats(20, 1000), deadline=None)
@given(plans(), seeds)
def test_failures_that_are_opened_again_and_a_run_that_is_cut_off_are_completed_by_the_next(
    plan: Plan, seed: int
) -> None:
    world = World(plan, seed)
    world.run()
    for id, ranges in reopen_failed(plan, world.ledger).items():
        for lo, hi in ranges:
            assert not world.ledger[id].ranges([NO_OUTCOME], lo, hi)
            world.ledger[id].set(lo, hi, NO_OUTCOME)
    assert not any(m.ranges([FAILED, SOFT_FAILED, SKIPPED]) for m in world.ledger.values())
    world.cancelled.clear()
    world.begin_run()
    for _ in range(seed % 20):
        world.round()
        world.workers_act()
    world.begin_run()
    world.run()
    assert all(m.ranges([OK, FAILED, SKIPPED, SOFT_FAILED]) == [(0, m.size)] for m in world.ledger.values())


def test_no_more_wide_tasks_are_offered_than_workers_have_room_for() -> None:
    wide = step("wide", 9, resources={"procs": 4}, canary=0)
    owner = owner_of(step("small", 9, canary=0), wide)
    offers = owner.offers({"merlin": 16}, 0.0, 99, None, {"merlin": [(8, 0), (4, 0), (2, 0)]})
    assert Counter(chunk.instance for chunk in offers) == {"small": 9, "wide": 4}
    check_owner(owner)


def test_what_no_worker_has_is_not_offered_and_the_reason_is_known() -> None:
    train = step("train", 3, resources={"gpus": 4}, queue="gpu", canary=0)
    owner = owner_of(step("sim", 3, canary=0), train)
    machines = {"merlin": [(8, 0)], "gpu": [(8, 2), (8, 2)]}
    offers = owner.offers({"merlin": 8, "gpu": 16}, 0.0, 99, None, machines)
    assert {chunk.instance for chunk in offers} == {"sim"}
    reason = "step 'train' needs 4 GPUs; no worker of queue gpu has them"
    assert owner.why_waiting({}, machines) == {"gpu": [reason]}
    machines["gpu"].append((8, 4))
    assert owner.why_waiting({}, machines) == {}
    (offer,) = owner.offers({"merlin": 8, "gpu": 16}, 0.0, 99, None, machines)
    machines["gpu"].pop()
    assert owner.withdraw_unfit({}, machines) == [offer.lease]
    assert owner.why_waiting({}, machines) == {"gpu": [reason]}
    assert owner.why_waiting({}, {}) == {}  # nobody knows what workers will come
