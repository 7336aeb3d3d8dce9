"""How many tasks ran on input that had failed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from small_plans import every, gather, plan, runs, same, step

from merlin.plan.failed_input import num_on_failed_input
from merlin.plan.plan import Plan, StepKind
from merlin.plan.runs import RunMap
from merlin.plan.tasks import NO_OUTCOME, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)


class Ends:
    """Outcomes, and which of them were asked for."""

    def __init__(self, outcomes: Mapping[str, RunMap]) -> None:
        self._outcomes = outcomes
        self.asked: list[str] = []

    def counts(self) -> dict[str, dict[int, int]]:
        out = {id: found.counts() for id, found in self._outcomes.items()}
        for have in out.values():
            have[FAILED] = have.get(FAILED, 0) + have.pop(SOFT_FAILED, 0)
        return out

    def may_have_soft_failures(self, instance: str) -> bool:
        return SOFT_FAILED in self._outcomes[instance].counts()

    def outcomes_of(self, instance: str) -> RunMap:
        self.asked.append(instance)
        return self._outcomes[instance]


def counted(p: Plan, outcomes: Mapping[str, RunMap]) -> tuple[dict[str, int], list[str]]:
    ends = Ends(outcomes)
    return num_on_failed_input(p, ends), ends.asked


def test_only_direct_dependents_that_ran_are_counted() -> None:
    data = gather("data", ("b",), 10, 5)
    manifest = step("m", 1, every("data"), kind=StepKind.MANIFEST, aggregate=data.aggregate)
    p = plan(
        step("a", 10), step("b", 10, same("a")), step("c", 10, same("b")), data, manifest,
        step("all_a", 3, every("a")), step("all_b", 3, every("b")),
    )  # fmt: skip
    outcomes = {
        "a": runs(10, (0, 10, OK), (1, 4, SOFT_FAILED), (5, 6, FAILED), (8, 9, SOFT_FAILED)),
        "b": runs(10, (0, 3, OK), (3, 4, FAILED), (5, 6, SKIPPED)),
        "c": runs(10, (0, 3, OK), (3, 4, SKIPPED), (5, 6, SKIPPED)),
        "data": runs(2),
        "m": runs(1),
        "all_a": runs(3, (0, 2, OK)),
        "all_b": runs(3, (0, 2, OK)),
    }
    assert counted(p, outcomes)[0] == {"b": 3, "all_a": 2}


@pytest.mark.parametrize(("on_failure", "num"), [("skip", 0), ("continue", 3)])
def test_failures_that_the_step_lets_pass_are_input_that_failed(on_failure: str, num: int) -> None:
    p = plan(step("a", 10, on_failure=on_failure), step("b", 10, same("a")))
    outcomes = {"a": runs(10, (0, 10, OK), (2, 5, FAILED)), "b": runs(10, (0, 10, OK))}
    found, asked = counted(p, outcomes)
    assert found == ({"b": num} if num else {})
    assert asked == (["a"] if num else [])


def test_a_task_with_two_such_sources_is_counted_once() -> None:
    p = plan(step("a", 4), step("b", 4), step("c", 4, same("a"), same("b"), every("a")))
    bad = runs(4, (0, 4, OK), (1, 2, SOFT_FAILED))
    assert counted(p, {"a": bad, "b": bad, "c": runs(4, (0, 4, OK))})[0] == {"c": 4}


def test_outcomes_are_not_read_where_nothing_failed() -> None:
    p = plan(step("a", 4), step("b", 4, same("a")))
    assert counted(p, {"a": runs(4, (0, 3, OK)), "b": runs(4, (0, 1, OK), (2, 3, NO_OUTCOME))}) == ({}, [])
