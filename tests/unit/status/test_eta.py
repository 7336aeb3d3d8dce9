from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st
from task_costs import cost_of

from merlin.status.eta import NOW, Cost, Eta, Slots, StepWork, estimate, slots_at_work

SECONDS = st.floats(1e-4, 1e5)
COSTS = st.builds(
    Cost, num=st.integers(1, 10**6), mean_s=SECONDS, deviation_s=st.floats(0, 1e5), longest_s=SECONDS
)
SLOTS = st.builds(
    slots_at_work, st.integers(0, 10_000), st.none() | st.floats(1e-6, 2e4), st.none() | st.floats(1e-6, 2e4)
)


@st.composite
def studies(draw: st.DrawFn) -> list[StepWork]:
    """Up to five steps, each of which waits for some of those before it."""
    steps: list[StepWork] = []
    for number in range(draw(st.integers(1, 5))):
        names = [step.step for step in steps]
        earlier = st.sets(st.sampled_from(names)) if names else st.just(set())
        steps.append(
            StepWork(
                step=f"s{number}",
                missing=draw(st.integers(0, 10**8)),
                running=draw(st.integers(0, 10_000)),
                cost=draw(st.none() | COSTS),
                slots_per_task=draw(st.integers(1, 64)),
                after=frozenset(draw(earlier)),
                along=frozenset(draw(earlier)),
                own_slots=draw(st.none() | SLOTS),
            )
        )
    return steps


@given(studies(), SLOTS)
def test_low_is_at_most_mid_and_mid_at_most_high(steps: list[StepWork], slots: Slots) -> None:
    found = estimate(steps, slots)
    for eta in (*found.steps.values(), found.study):
        if eta is not None:
            assert 0 <= eta.low_s <= eta.mid_s <= eta.high_s < math.inf


@given(studies(), SLOTS)
def test_what_has_ended_takes_no_more_time_and_a_study_ends_with_its_last_step(
    steps: list[StepWork], slots: Slots
) -> None:
    found = estimate(steps, slots)
    for step in steps:
        eta = found.steps[step.step]
        assert (eta == NOW) or step.missing
        if eta is not None and step.missing:
            assert eta.mid_s > 0
            assert found.study is not None
            assert step.step not in found.study.without
            assert eta.low_s <= found.study.low_s
            assert eta.mid_s <= found.study.mid_s
            assert eta.high_s <= found.study.high_s
    if not any(step.missing for step in steps):
        assert found.study == NOW


@given(studies(), SLOTS)
def test_a_step_ends_no_sooner_than_those_that_it_waits_for(steps: list[StepWork], slots: Slots) -> None:
    found = estimate(steps, slots).steps
    for step in steps:
        eta = found[step.step]
        for name in step.after | step.along if step.missing and eta is not None else ():
            earlier = found[name]
            assert eta is not None
            assert earlier is not None, "it cannot be known when a step ends that waits for an unknown one"
            assert (earlier.low_s, earlier.mid_s) <= (eta.low_s, eta.mid_s)
            assert earlier.high_s <= eta.high_s


@given(studies(), SLOTS, st.integers(1, 10**6))
def test_more_tasks_do_not_end_sooner(steps: list[StepWork], slots: Slots, more: int) -> None:
    last = steps[-1]
    longer = [*steps[:-1], _with(last, missing=last.missing + more)]
    for before, after in zip(_all(estimate(steps, slots)), _all(estimate(longer, slots)), strict=True):
        if before is not None and after is not None and before.without == after.without:
            assert before.low_s <= after.low_s * (1 + 1e-9)
            assert before.mid_s <= after.mid_s * (1 + 1e-9)
            assert before.high_s <= after.high_s * (1 + 1e-9)


def test_nothing_is_known_without_workers_or_before_a_task_has_ended() -> None:
    cost = Cost(num=10, mean_s=1.0, deviation_s=0.1, longest_s=2.0)
    steps = [StepWork(step="sim", missing=100, cost=cost)]
    assert estimate(steps, Slots(num=0)).study is None
    steps = [StepWork(step="sim", missing=100)]
    assert estimate(steps, Slots(num=4)).study is None


def test_a_step_that_has_never_run_is_named_and_does_not_hide_the_rest() -> None:
    cost = Cost(num=100, mean_s=1.0, deviation_s=0.1, longest_s=2.0)
    steps = [
        StepWork(step="sim", missing=100, cost=cost),
        StepWork(step="train", missing=1, after=frozenset({"sim"})),
        StepWork(step="test", missing=1, cost=cost, after=frozenset({"train"})),
    ]
    found = estimate(steps, Slots(num=10))
    assert found.study is not None
    assert found.study.without == ("train", "test")
    assert found.study.mid_s == 10
    assert found.steps["train"] is None
    assert found.steps["test"] is None


def test_steps_wait_for_each_other_and_share_the_slots() -> None:
    cost = Cost(num=1000, mean_s=1.0, deviation_s=0.0, longest_s=1.0)
    steps = [
        StepWork(step="a", missing=100, cost=cost),
        StepWork(step="b", missing=50, cost=cost),
        StepWork(step="both", missing=1, cost=cost, after=frozenset({"a", "b"})),
    ]
    found = estimate(steps, Slots(num=10))
    mids = {name: eta and eta.mid_s for name, eta in found.steps.items()}
    assert mids == {"a": 15, "b": 10, "both": 16}
    assert found.study == Eta(low_s=15.1, mid_s=16, high_s=15.1 + 2)


def test_batch_jobs_of_a_step_take_no_slots_of_the_others() -> None:
    cost = Cost(num=1000, mean_s=1.0, deviation_s=0.0, longest_s=1.0)
    steps = [
        StepWork(step="here", missing=100, cost=cost),
        StepWork(step="jobs", missing=100, cost=cost, own_slots=Slots(num=50)),
    ]
    found = estimate(steps, Slots(num=10))
    assert {name: eta and eta.mid_s for name, eta in found.steps.items()} == {"here": 10, "jobs": 2}


def test_nine_of_ten_forecasts_hold_for_tasks_of_random_length() -> None:
    """Forty tasks have ended; the other 200 are drawn from the same lengths and given to eight slots in turn."""
    held = [_held(random.Random(seed)) for seed in range(100)]
    assert sum(held) >= 90


def _held(draw: random.Random) -> bool:
    lengths = [draw.lognormvariate(0.0, 0.8) for _ in range(240)]
    cost = cost_of((1, seconds) for seconds in lengths[:40])
    eta = estimate([StepWork(step="sim", missing=200, cost=cost)], Slots(num=8)).study
    slots = [0.0] * 8
    for seconds in lengths[40:]:
        slots[slots.index(min(slots))] += seconds
    assert eta is not None
    return eta.low_s <= max(slots) <= eta.high_s


def test_the_spread_of_tasks_is_seen_through_records_of_many() -> None:
    draw = random.Random(1)
    records = [[draw.expovariate(1.0) for _ in range(50)] for _ in range(200)]
    cost = cost_of((len(each), sum(each)) for each in records)
    assert cost is not None
    assert math.isclose(cost.mean_s, 1.0, rel_tol=0.1)
    assert math.isclose(cost.deviation_s, 1.0, rel_tol=0.2)


def _with(step: StepWork, *, missing: int) -> StepWork:
    from msgspec.structs import replace

    return replace(step, missing=missing)


def _all(found: object) -> list[Eta | None]:
    return [*found.steps.values(), found.study]  # type: ignore[attr-defined]
