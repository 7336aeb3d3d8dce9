"""What runs again after the outcomes of earlier tasks were lost."""

from __future__ import annotations

from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import plans
from small_plans import every, gather, plan, runs, same, step
from storms import World

from merlin.base.ranges import Range, within, without
from merlin.plan.lost_outcomes import reopen_after_loss
from merlin.plan.plan import Plan, StepKind
from merlin.plan.reopen import reopen_failed
from merlin.plan.rerun import dependants, with_downstream
from merlin.plan.tasks import NO_OUTCOME, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)
ALL = [(0, 1 << 40)]
DATA = gather("data", ("b",), 10, 4)
PLAN = plan(
    step("a", 10), step("b", 10, same("a")), DATA,
    step("m", 1, every("data"), every("beside"), kind=StepKind.MANIFEST, aggregate=DATA.aggregate),
    step("train", 1, every("m")), step("beside", 1),
)  # fmt: skip
ALL_OK = {instance.id: runs(instance.num_tasks, (0, instance.num_tasks, OK)) for instance in PLAN.instances}
seeds = st.integers(0, 2**32 - 1)


def no_reset(source: str, target: str) -> list[tuple[list[Range], list[Range]]]:
    return [(ALL, [])]


def test_what_ran_on_lost_tasks_runs_again_to_the_end_of_the_study() -> None:
    lost = ALL_OK | {"a": runs(10, (0, 5, OK), (6, 10, OK))}
    after = {"data": [(1, 2)], "m": [(0, 1)], "train": [(0, 1)]}
    assert reopen_after_loss(PLAN, lost, no_reset) == {"b": [(5, 6)], **after}
    assert reopen_after_loss(PLAN, ALL_OK | {"b": lost["a"]}, no_reset) == after
    assert reopen_after_loss(PLAN, ALL_OK | {"data": runs(3)}, no_reset) == {
        id: after[id] for id in ("m", "train")
    }


def test_tasks_that_were_reset_lost_nothing_unless_others_ran_after_that() -> None:
    missing = ALL_OK | {"a": runs(10, (0, 5, OK), (7, 10, OK))}
    assert reopen_after_loss(PLAN, missing, lambda *_: [(ALL, [(3, 8)])]) == {}
    again = reopen_after_loss(PLAN, missing, lambda *_: [([(0, 6)], [(3, 8)]), ([(6, 10)], [])])
    assert again["b"] == [(6, 7)]


def test_what_has_only_failed_stays_as_it_is() -> None:
    p = plan(step("a", 3, on_failure="continue"), step("b", 3, same("a")))
    assert reopen_after_loss(p, {"a": runs(3), "b": runs(3, (0, 1, FAILED), (1, 2, SKIPPED))}, no_reset) == {}


@settings(max_examples=repeats(40, 2000), deadline=None)
@given(plans(), seeds)
def test_a_live_study_has_lost_nothing_wherever_it_is_cut_off(plan: Plan, seed: int) -> None:
    world = World(plan, seed)
    for _ in range(seed % 60):
        world.round()
        world.workers_act()
        assert reopen_after_loss(plan, world.ledger, no_reset) == {}
    world.run()
    reset = reopen_failed(plan, world.ledger, None if seed % 2 else [plan.instances[0].id])
    for id, ranges in reset.items():
        for lo, hi in ranges:
            world.ledger[id].set(lo, hi, NO_OUTCOME)
    stayed = {id: have.ranges((OK, SOFT_FAILED)) for id, have in world.ledger.items()}
    world.cancelled.clear()
    world.begin_run()
    for _ in range(20):
        found = reopen_after_loss(
            plan,
            world.ledger,
            lambda source, target: [
                (stayed[target], reset.get(source, [])),
                (without(ALL, stayed[target]), []),
            ],
        )
        assert found == {}
        world.round()
        world.workers_act()


@settings(max_examples=repeats(40, 2000), deadline=None)
@given(plans(), seeds, st.data())
def test_after_a_loss_nothing_stays_that_ran_on_what_runs_again(
    plan: Plan, seed: int, data: st.DataObject
) -> None:
    world = World(plan, seed)
    world.run()
    lost: dict[str, list[Range]] = {}
    for id in data.draw(st.sets(st.sampled_from([instance.id for instance in plan.instances]), min_size=1)):
        lo = data.draw(st.integers(0, world.spec[id].num_tasks - 1))
        lost[id] = [(lo, data.draw(st.integers(lo + 1, world.spec[id].num_tasks)))]
        world.ledger[id].set(*lost[id][0], NO_OUTCOME)
    again = reopen_after_loss(plan, world.ledger, no_reset)
    for id, ranges in again.items():
        assert within(ranges, with_downstream(plan, lost).get(id, [])) == ranges
        for lo, hi in ranges:
            world.ledger[id].set(lo, hi, NO_OUTCOME)
    for target in plan.instances:
        for edge in target.edges:
            for lo, hi in world.ledger[edge.source].ranges((NO_OUTCOME, INTERRUPTED)):
                for on in dependants(target, edge.kind, world.spec[edge.source], lo, hi):
                    assert not world.ledger[target.id].ranges((OK, SOFT_FAILED), *on)
    world.begin_run()
    world.run()
    assert all(m.ranges([OK, FAILED, SKIPPED, SOFT_FAILED]) == [(0, m.size)] for m in world.ledger.values())
