"""The owner of a study on workers: its answers to each event, and storms of them."""

from __future__ import annotations

from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import plans
from storms import FAILED, OK, SKIPPED, SOFT_FAILED, World

from merlin.study.plan import Plan
from merlin.study.reopen import reopen_failed
from merlin.study.tasks import NO_OUTCOME

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=repeats(75, 3000), deadline=None)
@given(plans(), seeds)
def test_every_task_ends_once_whoever_owns_the_study_and_whatever_workers_do(plan: Plan, seed: int) -> None:
    world = World(plan, seed)
    world.run()
    world.expect_complete()


@settings(max_examples=repeats(25, 1000), deadline=None)
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
