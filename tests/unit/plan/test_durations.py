"""What a task needs of a worker's time: learned, given, and what is offered for it."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scheduling import start
from small_plans import plan, step

from merlin.plan.durations import ENOUGH, Durations, added, class_of, longest_of, spread_of, walltime_s
from merlin.plan.owner import Owner
from merlin.plan.pieces import pieces_of
from merlin.plan.reports import ChunkReport
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import ChunkResult, Outcome

HOUR = 3600.0


def durations(*seconds: float, **more: Any) -> Durations:
    found = Durations(step("sim", 100, **more))
    found.learn(spread_of((s, 1) for s in seconds))
    return found


@given(st.floats(1e-3, 1e9))
def test_a_class_holds_its_durations_and_little_more(seconds: float) -> None:
    assert seconds <= longest_of(class_of(seconds)) * 1.001 <= seconds * 1.2


@given(st.lists(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)))))
def test_spreads_that_are_added_hold_every_task_once(several: list[list[tuple[float, int]]]) -> None:
    together = added(spread_of(each) for each in several)
    assert sum(num for _, num in together) == sum(num for each in several for _, num in each)
    assert together == spread_of(entry for each in several for entry in each)


@given(st.lists(st.floats(0.01, 1e5), min_size=1, max_size=200))
def test_what_is_needed_was_enough_for_95_percent(seconds: list[float]) -> None:
    need_s = durations(*seconds).need_s()
    assert sum(s <= need_s * 1.001 for s in seconds) >= 0.95 * len(seconds)
    assert need_s <= 1.2 * max(seconds)


def test_nothing_is_needed_of_a_step_that_nobody_knows() -> None:
    assert durations().need_s() == 0.0


def test_a_walltime_counts_until_enough_tasks_have_ended() -> None:
    asked = {"walltime": "02:00:00"}
    assert durations(resources=asked).need_s() == 2 * HOUR
    assert durations(*[60.0] * (ENOUGH - 1), resources=asked).need_s() == 2 * HOUR
    assert 60 <= durations(*[60.0] * ENOUGH, resources=asked).need_s() < 72
    assert durations(*[3 * HOUR] * ENOUGH, resources=asked).need_s() == 2 * HOUR
    assert durations(resources={"walltime": "$(HOURS)"}).need_s() == 0.0
    assert walltime_s({"walltime": "90"}) == 90 and walltime_s({"walltime": "00:00"}) is None


def test_what_no_task_ended_within_is_too_short() -> None:
    found = durations()
    found.learn((), cut_off_s=600.0)
    assert found.need_s() == 600.0
    assert durations(timeout_s=5.0, resources={"walltime": "60"}).need_s() == 5.0


# ------------------------------------------------------------------ what is handed out


def test_a_step_that_needs_too_long_lets_others_pass_and_keeps_its_place() -> None:
    bench = start(
        step("long", 5, resources={"walltime": "60"}), step("short", 5, resources={"walltime": "5"})
    )
    take = bench.scheduler.take
    first = take(0.0, left_s=10.0)
    assert first is not None and first.instance == "short"
    assert first.need_s == 5.0
    assert take(0.0, left_s=4.0) is None
    second = take(0.0)
    assert second is not None and second.instance == "long"
    bench.finish_ok(first)
    bench.finish_ok(second)
    assert len(bench.drive()) > 0 and bench.scheduler.is_complete


def test_a_scheduler_learns_how_long_tasks_take_and_may_know_it_before() -> None:
    bench = start(step("sim", 50))
    bench.scheduler.know_durations({"sim": spread_of([(30.0, 20)]), "gone": ()})
    chunk = bench.take()
    assert 30 <= chunk.need_s < 36
    bench.finish(chunk, (chunk.lo, chunk.hi, Outcome.OK), spread=spread_of([(300.0, 100)]))
    assert bench.scheduler.take(0.0, left_s=100.0) is None
    assert bench.scheduler.needs() == {"sim": longest_of(class_of(300.0))}


def owner_of(*needs: int) -> Owner:
    steps = [step(f"s{n}", 500, resources={"walltime": str(n)}) for n in needs]
    return Owner(Scheduler(plan(*steps), {}, num_workers=4), min_chunk_s=3.0)


def test_no_more_is_offered_than_the_live_workers_can_finish() -> None:
    owner, times = owner_of(100, 10), {"merlin": [(50.0, 6), (500.0, 2)]}
    offers = owner.offers({"merlin": 8}, 0.0, 99, times)
    assert sorted(chunk.need_s for chunk in offers) == [10.0] * 6 + [100.0] * 2
    assert owner.too_short(times) == {}


def test_a_step_waits_and_says_why_when_no_worker_has_the_time() -> None:
    owner, times = owner_of(7200), {"merlin": [(2400.0, 6), (60.0, 2)]}
    assert owner.offers({"merlin": 8}, 0.0, 99, times) == []
    why = "step s7200 needs 02:00:00; the workers have at most 00:40:00 left"
    assert owner.too_short(times) == {"merlin": [why]}
    assert len(owner.offers({"merlin": 8}, 0.0, 99, {"merlin": [(2400.0, 6), (math.inf, 1)]})) == 1


def test_without_workers_an_offer_waits_for_those_to_come() -> None:
    assert len(owner_of(7200).offers({}, 0.0, 99, {})) == 1


def test_offers_that_nobody_has_the_time_for_any_more_are_taken_back() -> None:
    owner = owner_of(100)
    (chunk,) = owner.offers({"merlin": 1}, 0.0, 99, {"merlin": [(150.0, 1)]})
    assert owner.withdraw_unfit({"merlin": [(100.0, 1)]}) == []
    assert owner.withdraw_unfit({"merlin": []}) == owner.withdraw_unfit({}) == []
    assert owner.withdraw_unfit({"merlin": [(99.0, 1)]}) == [chunk.lease]
    assert owner.scheduler.num_running == 0
    assert len(owner.offers({"merlin": 1}, 0.0, 99, {"merlin": [(150.0, 1)]})) == 1


@given(
    st.lists(st.tuples(st.integers(0, 120), st.integers(1, 4)), min_size=1, max_size=5),
    st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_every_offer_that_waits_finds_a_slot_with_the_time_for_it(
    workers: list[tuple[int, int]], needs: list[int], data: st.DataObject
) -> None:
    """Hall's condition: of those that need so long, never more wait than there are slots with so much time."""
    owner, times = owner_of(*needs), {"merlin": [(float(left_s), num) for left_s, num in workers]}
    num_slots = sum(num for _, num in workers)
    held = []
    for _ in range(6):
        held += owner.offers({"merlin": num_slots}, 0.0, 99, times)
        waiting = [c for c in held if c.lease in {x for line in owner._offered.values() for x in line.since}]
        for need_s in needs:
            num_fit = sum(num for left_s, num in workers if left_s >= need_s)
            assert sum(chunk.need_s >= need_s for chunk in waiting) <= num_fit
        if held:
            chunk = held.pop(data.draw(st.integers(0, len(held) - 1)))
            runs = tuple((a, b, int(Outcome.OK)) for a, b in pieces_of(chunk))
            owner.reported(
                ChunkReport(chunk=chunk, worker="w", result=ChunkResult(chunk=chunk, runs=runs)), (), 0.0
            )
